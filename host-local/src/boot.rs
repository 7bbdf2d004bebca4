//! When this machine was started.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cni::{Code, Context, Error, Result};

const STAT: &str = "/proc/stat";

/// File systems that are mounted early in every boot. The kernel stamps their root directories then, and a clock that
/// is set later does not move these time stamps.
const WITNESSES: [&str; 2] = ["/proc", "/sys"];

/// Returns a time, in seconds since 1970, that is not after this boot. The files of containers of this boot have later
/// time stamps.
///
/// The kernel computes `btime` from the clock of today: when the clock is stepped forward, it moves forward past files
/// that were written since the boot. So it is bounded by time stamps of this boot. On a machine whose clock starts at
/// 1970 they are of no use, and the result is too early, which does no harm.
pub(crate) fn not_after() -> Result<i64> {
    let text = fs::read_to_string(STAT).trying(|| format!("read {STAT:?}"))?;
    let mut bound =
        parse(&text).ok_or_else(|| Error::new(Code::INTERNAL, format!("{STAT:?} does not tell the time of boot")))?;
    for witness in WITNESSES {
        bound = bound.min(fs::metadata(witness).trying(|| format!("look at {witness:?}"))?.ctime());
    }
    Ok(bound)
}

fn parse(stat: &str) -> Option<i64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_boot_is_one_line_of_many() {
        assert_eq!(parse("cpu  1 2\nctxt 5\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
        assert_eq!(parse("cpu  1 2\n"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it reads /proc")]
    fn the_bound_is_not_after_the_start_of_any_process() {
        let process = fs::metadata("/proc/self").unwrap().ctime();
        assert!(not_after().unwrap() <= process);
    }
}
