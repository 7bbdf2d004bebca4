//! The versions of the protocol, and the commands that each supports.

use std::fmt;

use crate::error::{Code, Error, Result};

/// A supported version of the CNI specification, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0, and configurations without a version.
    V0_1_0,
    /// 0.2.0
    V0_2_0,
    /// 0.3.0
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0: CHECK
    V0_4_0,
    /// 1.0.0
    V1_0_0,
    /// 1.1.0: GC and STATUS
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version.
    pub const NEWEST: Version = Version::V1_1_0;

    /// Returns the version as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Returns the version with exactly this text; empty text means 0.1.0.
    pub fn exact(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::V0_1_0);
        }
        Version::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Returns whether the interfaces of a result have an MTU.
    pub fn has_mtu(self) -> bool {
        self >= Version::V1_1_0
    }

    /// Returns the version that introduced `command`.
    pub fn since(command: &str) -> Version {
        match command {
            "CHECK" => Version::V0_4_0,
            "GC" | "STATUS" => Version::V1_1_0,
            _ => Version::V0_1_0,
        }
    }

    /// Returns the version of a request for `command`.
    ///
    /// Checks in the reference's order, on which tests of runtimes depend: the version must be a number (code 6), the
    /// configuration must be new enough for the command (1), not newer than cni0 supports (1), and a supported version
    /// (1).
    pub(crate) fn of_request(text: &str, command: &str) -> Result<Version> {
        let since = Version::since(command);
        if since > Version::V0_1_0 {
            let wanted = number(text)?;
            if wanted < since.number() {
                let what = format!("cniVersion {text:?} does not have the command {command}");
                return Err(
                    Error::new(Code::VERSION, what).details(format!("{command} needs cniVersion {since} or newer"))
                );
            }
            if wanted > Version::NEWEST.number() {
                let what = format!("cniVersion {text:?} is newer than this plugin");
                return Err(Error::new(Code::VERSION, what).details(supported()));
            }
        }
        Version::exact(text).ok_or_else(|| {
            let what = format!("cniVersion {text:?} is not supported");
            Error::new(Code::VERSION, what).details(format!("config is {text:?}, {}; use one of these", supported()))
        })
    }

    /// Returns the newest of `texts` that is not newer than cni0 supports, for networks that list several versions.
    /// `None` if all are newer.
    pub fn newest_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Option<&'a str>> {
        let mut newest = None;
        for text in texts {
            let number = number(text)?;
            if number <= Version::NEWEST.number() && newest.is_none_or(|(greatest, _)| greatest < number) {
                newest = Some((number, text));
            }
        }
        Ok(newest.map(|(_, text)| text))
    }

    fn number(self) -> [i64; 3] {
        match self {
            Version::V0_1_0 => [0, 1, 0],
            Version::V0_2_0 => [0, 2, 0],
            Version::V0_3_0 => [0, 3, 0],
            Version::V0_3_1 => [0, 3, 1],
            Version::V0_4_0 => [0, 4, 0],
            Version::V1_0_0 => [1, 0, 0],
            Version::V1_1_0 => [1, 1, 0],
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn supported() -> String {
    let all: Vec<String> = Version::ALL.iter().map(|version| format!("{:?}", version.as_str())).collect();
    format!("plugin supports [{}]", all.join(" "))
}

/// Parses up to three numbers separated by dots; missing ones are zero.
fn number(text: &str) -> Result<[i64; 3]> {
    let unreadable = || {
        let what = format!("cniVersion {text:?} is not a version number");
        Error::new(Code::DECODE, what).details("write it as major.minor.micro, such as \"1.0.0\"")
    };
    if text.is_empty() {
        return Ok(Version::V0_1_0.number());
    }
    let mut number = [0; 3];
    let mut slots = number.iter_mut();
    for part in text.split('.') {
        // A sign is accepted here, as in the reference. It fails later as an unknown version.
        *slots.next().ok_or_else(unreadable)? = part.parse().map_err(|_| unreadable())?;
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_run_in_the_order_of_the_reference() {
        let check = |text| Version::of_request(text, "CHECK").map_err(|error| error.code().0);
        assert_eq!(check("0.4.0"), Ok(Version::V0_4_0));
        assert_eq!(check("1.1.0"), Ok(Version::V1_1_0));
        for (text, code) in [
            ("", 1),
            ("0.3.1", 1),
            ("1.1", 1),
            ("1", 1),
            ("1.2.0", 1),
            ("2.0.0", 1),
            ("0.9.0", 1),
            ("x", 6),
            ("1.0.0.0", 6),
            ("1..0", 6),
            ("-1.0.0", 1),
            ("+1.0.0", 1),
            ("1.0.0 ", 6),
            ("99999999999999999999.0.0", 6),
        ] {
            assert_eq!(check(text), Err(code), "{text:?}");
        }
        let add = |text| Version::of_request(text, "ADD").map_err(|error| error.code().0);
        assert_eq!(add(""), Ok(Version::V0_1_0));
        for text in ["x", "1.1", "0.4", "1.2.0", "1.0.0.0"] {
            assert_eq!(add(text), Err(1), "{text:?}");
        }
        for version in Version::ALL {
            assert_eq!(add(version.as_str()), Ok(version));
        }
    }

    #[test]
    fn newest_of_returns_the_newest_supported_version() {
        let newest = |texts: &[&'static str]| Version::newest_of(texts.iter().copied()).map_err(|e| e.code().0);
        assert_eq!(newest(&["0.4.0", "1.0.0", "0.3.1"]), Ok(Some("1.0.0")));
        assert_eq!(newest(&["0.10.0", "0.9.0", "9.0.0"]), Ok(Some("0.10.0")), "numerically, not alphabetically");
        assert_eq!(newest(&["1.2.0", "2.0.0"]), Ok(None));
        assert_eq!(newest(&[]), Ok(None));
        assert_eq!(newest(&["1.0.0", "x"]), Err(6));
    }

    #[test]
    fn versions_are_ordered_by_age() {
        assert!(Version::ALL.is_sorted() && Version::ALL.map(Version::number).is_sorted());
    }
}
