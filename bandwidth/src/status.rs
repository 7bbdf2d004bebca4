//! STATUS: returns an error if an ADD would fail now.

use cni::{AttachmentKey, Call, Code, Error, Result};
use linux::Netns;
use linux::log::warn;
use linux::netlink::{Netlink, TokenBucket};

use crate::config::{Config, LATENCY};
use crate::limits::Limits;

/// The MTU of an imaginary veth.
const MTU: u32 = 1500;

/// Tries the limits of the network. A network without limits gets them from the runtime for some containers: if the
/// kernel cannot set these, only a warning says so. After an error, runtimes evict all containers from the node.
pub(crate) fn run(call: &Call<'_>, config: &Config) -> Result<()> {
    if config.is_empty() {
        if let Err(error) = try_both(call) {
            warn!("a container with limits cannot be attached: {error:?}");
        }
        return Ok(());
    }
    try_limits(call, config).map_err(|error| error.with_code(Code::NOT_AVAILABLE))
}

/// Tries to limit both directions, as a runtime may request it.
pub(crate) fn try_both(call: &Call<'_>) -> Result<()> {
    let limit = Some(TokenBucket::with_latency(1_000_000, 10_000, LATENCY));
    try_limits(call, &Config { ingress: limit, egress: limit })
}

/// Limits a link in a new network namespace, so that nothing on the host changes. Only an attempt shows what the kernel
/// can: modules are loaded on demand, as in ADD.
fn try_limits(call: &Call<'_>, config: &Config) -> Result<()> {
    let home = call.home()?;
    Netns::run_in_new(&home.netns, || {
        let mut host = Netlink::open()?;
        let mut link = host.link("lo")?.ok_or_else(|| Error::bug("a network namespace without lo"))?;
        link.mtu = MTU;
        let owner = AttachmentKey { network: "", container: "", ifname: "" };
        Limits { owner, config, veth: link }.set(host).map(drop)
    })
}
