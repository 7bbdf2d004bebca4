//! When this machine was started.

use std::fs;
use std::time::{Duration, SystemTime};

use cni::{Code, Context, Error, Result};

const STAT: &str = "/proc/stat";

/// The moment of this boot, as the kernel tells it by the clock of today.
pub(crate) fn time() -> Result<SystemTime> {
    let text = fs::read_to_string(STAT).trying(|| format!("read {STAT:?}"))?;
    let seconds =
        parse(&text).ok_or_else(|| Error::new(Code::INTERNAL, format!("{STAT:?} does not tell the time of boot")))?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn parse(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_boot_is_one_line_of_many() {
        assert_eq!(parse("cpu  1 2\nctxt 5\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
        assert_eq!(parse("cpu  1 2\n"), None);
        assert!(time().unwrap() < SystemTime::now());
    }
}
