//! Entry points for the fuzzer: they parse arbitrary configurations, and assert the properties that must hold.

use cni::Call;

use crate::config::Config;

/// Parses a configuration and asserts that the kernel accepts every limit.
pub fn config(call: &Call<'_>) {
    let Ok(Config { ingress, egress }) = Config::parse(call) else { return };
    for limit in [ingress, egress].into_iter().flatten() {
        assert!(limit.rate > 0 && limit.burst > 0 && limit.limit >= limit.burst, "{limit:?}");
    }
}
