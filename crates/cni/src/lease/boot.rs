//! The time of the last boot.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::error::{Code, Context, Error, Result};

const STAT: &str = "/proc/stat";

/// File systems that are mounted early in every boot. Their root directories have the time of mounting as ctime, which
/// does not change when the clock is set later.
const BOOT_MOUNTS: [&str; 2] = ["/proc", "/sys"];

/// Returns a time, in seconds since 1970, that is not after this boot. The files of containers of this boot have later
/// time stamps.
///
/// The kernel computes `btime` from the current clock. When the clock is stepped forward, `btime` moves past the time
/// stamps of files written since the boot. The result is therefore bounded by time stamps from the start of this boot.
/// On a machine whose clock starts at 1970, the result is too early, which is harmless: fewer leases are reclaimed.
pub(super) fn not_after() -> Result<i64> {
    let text = fs::read_to_string(STAT).context(|| format!("read {STAT:?}"))?;
    let mut bound =
        parse(&text).ok_or_else(|| Error::new(Code::INTERNAL, format!("{STAT:?} does not contain the boot time")))?;
    for mount in BOOT_MOUNTS {
        bound = bound.min(fs::metadata(mount).context(|| format!("stat {mount:?}"))?.ctime());
    }
    Ok(bound)
}

/// Extracts `btime` from the text of `/proc/stat`.
fn parse(stat: &str) -> Option<i64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btime_is_found_among_other_lines() {
        assert_eq!(parse("cpu  1 2\nctxt 5\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
        assert_eq!(parse("cpu  1 2\n"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it reads /proc")]
    fn the_bound_is_not_after_the_start_of_a_process() {
        let process = fs::metadata("/proc/self").unwrap().ctime();
        assert!(not_after().unwrap() <= process);
    }
}
