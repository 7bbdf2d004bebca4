//! Names that are valid because they exist: container ids, network names, interface names.

use std::ffi::OsStr;
use std::fmt;

use crate::error::{Code, Error, Result};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A container's id: letters, digits, `_`, `.` and `-`, the first one a letter or a digit.
    ContainerId
}
name! {
    /// A network's name, under the same rule; it becomes a directory's name.
    NetworkName
}
name! {
    /// The name of a network interface as the kernel and the specification allow it.
    IfName
}

/// The rule for ids and network names. It leaves no room for a path separator or for `..`.
fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

const IDENTIFIER_RULE: &str = "allowed are letters, digits, '_', '.' and '-'; the first must be a letter or a digit";

impl ContainerId {
    /// Checks `CNI_CONTAINERID`.
    pub fn parse(text: &OsStr) -> Result<ContainerId> {
        match text.to_str() {
            Some(text) if is_identifier(text) => Ok(ContainerId(text.to_owned())),
            _ => Err(Error::new(Code::ENVIRONMENT, format!("invalid container id {text:?} in CNI_CONTAINERID"))
                .details(text.to_string_lossy())
                .details(IDENTIFIER_RULE)),
        }
    }
}

impl NetworkName {
    /// Checks `name` of a network configuration.
    pub fn parse(text: &str) -> Result<NetworkName> {
        if text.is_empty() {
            let error = Error::new(Code::CONFIG, "the network configuration has no \"name\"");
            return Err(error.details("add \"name\": \"...\" to the configuration, usually a file in /etc/cni/net.d"));
        }
        if !is_identifier(text) {
            let error = Error::new(Code::CONFIG, format!("invalid network name {text:?}"));
            return Err(error.details(text).details(IDENTIFIER_RULE));
        }
        Ok(NetworkName(text.to_owned()))
    }
}

impl IfName {
    /// The longest name the kernel takes, in bytes (IFNAMSIZ less the final NUL).
    pub const MAX: usize = 15;

    /// Checks `CNI_IFNAME`.
    pub fn parse(text: &OsStr) -> Result<IfName> {
        let name = text.to_str().ok_or("it is not UTF-8").and_then(|text| IfName::check(text).map(|()| text));
        match name {
            Ok(name) => Ok(IfName(name.to_owned())),
            Err(why) => {
                let error = Error::new(Code::ENVIRONMENT, format!("invalid interface name {text:?} in CNI_IFNAME"));
                Err(error.details(why))
            }
        }
    }

    /// Checks a name that came with the configuration; the caller knows the key.
    pub fn from_config(text: &str) -> Result<IfName, &'static str> {
        IfName::check(text).map(|()| IfName(text.to_owned()))
    }

    fn check(text: &str) -> Result<(), &'static str> {
        if text.is_empty() {
            return Err("an interface name cannot be empty");
        }
        if text.len() > IfName::MAX {
            return Err("an interface name has at most 15 bytes");
        }
        if text == "." || text == ".." {
            return Err("an interface name cannot be '.' or '..'");
        }
        if text.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) {
            return Err("an interface name has no '/', no ':' and no white space");
        }
        // The kernel looks at bytes, and takes this one for a space, also within a letter such as 'à'.
        if text.as_bytes().contains(&0xa0) {
            return Err("an interface name has no byte 0xA0: the kernel takes it for white space");
        }
        // Unlike upstream, which finds the interface under another name than it asked for, and fails then.
        if text.contains('%') {
            return Err("an interface name has no '%': the kernel would put a number in its place");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers() {
        for good in ["a", "0", "k8s-pod.network_1", "a-", "A..b"] {
            assert!(is_identifier(good), "{good:?}");
        }
        for bad in ["", ".", "..", "-a", "_a", "a/b", "../a", "a b", "a\n", "ä", "a\0"] {
            assert!(!is_identifier(bad), "{bad:?}");
        }
    }

    #[test]
    fn interface_names() {
        for good in ["eth0", "a", "fifteen-bytes-x", "eth0.100", "...", "ü", "a@b"] {
            assert_eq!(IfName::from_config(good).map(|n| n.as_str().to_owned()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            ".",
            "..",
            "sixteen-bytes-xx",
            "a/b",
            "a:b",
            "a b",
            "a\t",
            "a\u{a0}",
            "a\u{85}",
            "üüüüüüüü",
            "a\0",
            "eth%d",
        ] {
            assert!(IfName::from_config(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_bad_name_is_shown_in_the_error() {
        let error = ContainerId::parse(OsStr::new("a/b")).unwrap_err();
        assert_eq!(error.code(), Code::ENVIRONMENT);
        assert!(error.to_string().contains("\"a/b\""), "{error}");
        let error = NetworkName::parse("..").unwrap_err();
        assert_eq!(error.code(), Code::CONFIG);
        assert!(error.to_string().contains("\"..\""), "{error}");
    }
}
