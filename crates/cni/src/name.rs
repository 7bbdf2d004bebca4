//! Names that are valid by construction: container IDs, network names, interface names.

use std::ffi::OsStr;
use std::fmt;

use crate::error::{Code, Error, Result};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
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
    /// A container ID: letters, digits, `_`, `.` and `-`; the first character is a letter or a digit.
    ContainerId
}
name! {
    /// A network name, with the same rule. It is also the name of a directory.
    NetworkName
}
name! {
    /// The name of a network interface that is valid for both the kernel and the specification.
    IfName
}

/// Returns whether a text is a valid container ID or network name. Excludes path separators and `..`.
fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

const IDENTIFIER_RULE: &str = "allowed are letters, digits, '_', '.' and '-'; the first must be a letter or a digit";

impl ContainerId {
    /// Validates `CNI_CONTAINERID`.
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
    /// Validates `name` of a network configuration.
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
    /// Maximum length of a name in the kernel, in bytes (IFNAMSIZ less the final NUL).
    pub const MAX: usize = 15;

    /// Validates `CNI_IFNAME`.
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

    /// Validates a name from the configuration; the caller adds the key to the error.
    pub fn from_config(text: &str) -> Result<IfName, &'static str> {
        IfName::check(text).map(|()| IfName(text.to_owned()))
    }

    fn check(text: &str) -> Result<(), &'static str> {
        if text.is_empty() {
            return Err("an interface name must not be empty");
        }
        if text.len() > IfName::MAX {
            return Err("an interface name has at most 15 bytes");
        }
        if text == "." || text == ".." {
            return Err("an interface name must not be '.' or '..'");
        }
        if text.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) {
            return Err("an interface name must not contain '/', ':' or white space");
        }
        // The kernel checks bytes and treats this one as white space, even inside a letter such as 'à'.
        if text.as_bytes().contains(&0xa0) {
            return Err("an interface name must not contain the byte 0xA0: the kernel treats it as white space");
        }
        // Unlike the reference, which creates the interface, finds it under another name than requested, and then
        // fails.
        if text.contains('%') {
            return Err("an interface name must not contain '%': the kernel replaces it by a number");
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
