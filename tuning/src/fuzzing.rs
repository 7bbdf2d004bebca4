//! Entry points for the fuzzer: they parse arbitrary configurations, lists and files, and assert the properties that
//! must hold.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "the fuzzer detects a failure by a panic")]

use cni::{Attachment, Call, ContainerId, IfName};

use crate::backup::Backup;
use crate::config::Config;
use crate::pattern::Pattern;

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let ifname = IfName::from_config("eth0.5").unwrap();
    let at = Attachment { container: ContainerId::parse("c1".as_ref()).unwrap(), ifname, netns: None };
    let Ok(config) = Config::parse(call, Some(&at)) else { return };
    assert!(config.data_dir.is_absolute(), "{config:?}");
    for (place, sysctl) in config.sysctls.iter().enumerate() {
        let path = &sysctl.path;
        assert!(path.len() >= 2 && path[0] == "net", "{sysctl:?}");
        assert!(
            path.iter().all(|part| !["", ".", ".."].contains(&part.as_str()) && !part.contains(['/', '\0'])),
            "{sysctl:?}"
        );
        assert!(config.sysctls[..place].iter().all(|earlier| earlier.path != sysctl.path), "{sysctl:?} twice");
    }
    let mac = config.attributes.mac.map(|mac| mac.0);
    assert!(mac.is_none_or(|mac| mac != [0; 6] && mac[0] & 1 == 0), "{config:?}");
    assert_ne!(config.attributes.mtu, Some(0));
    assert_ne!(config.attributes.promiscuous, Some(false));
}

/// Parses a backup file. What was read is written so that it is read again.
pub fn backup(content: &[u8]) {
    let Ok(backup) = Backup::parse(content) else { return };
    let printed = backup.print().unwrap();
    assert_eq!(Backup::parse(&printed).ok(), Some(backup));
}

/// Returns whether a pattern matches a text; `None` if it is not accepted.
#[must_use]
pub fn pattern(pattern: &str, text: &str) -> Option<bool> {
    Pattern::parse(pattern).ok().map(|pattern| pattern.matches(text))
}
