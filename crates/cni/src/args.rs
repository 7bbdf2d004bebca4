//! `CNI_ARGS`: `KEY=VALUE` pairs, separated by semicolons.

use crate::error::{Code, Error, Result};

/// The values of the arguments that a plugin supports, in the order of the keys it passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args<'a, const N: usize>([Option<&'a str>; N]);

impl<'a, const N: usize> Args<'a, N> {
    /// Parses `text` for a plugin that supports `keys`. Keys are case-sensitive. An unknown key is an error unless
    /// `IgnoreUnknown` is `1` or `true`.
    pub fn parse(text: &'a str, keys: [&str; N]) -> Result<Args<'a, N>> {
        let mut values = [None; N];
        let mut ignore_unknown = false;
        let mut unknown = Vec::new();
        for pair in text.split(';').filter(|_| !text.is_empty()) {
            let (key, value) = match pair.split_once('=') {
                Some((key, value)) if !value.contains('=') => (key, value),
                _ => {
                    let error = Error::new(Code::ENVIRONMENT, format!("invalid pair {pair:?} in CNI_ARGS"));
                    return Err(error.details("write CNI_ARGS as KEY=VALUE;KEY=VALUE, without '=' in a value"));
                }
            };
            if key == "IgnoreUnknown" {
                ignore_unknown = flag(value)?;
            } else if let Some((_, slot)) = keys.iter().zip(&mut values).find(|(known, _)| **known == key) {
                *slot = Some(value);
            } else {
                unknown.push(pair);
            }
        }
        if !unknown.is_empty() && !ignore_unknown {
            let error = Error::new(Code::ENVIRONMENT, format!("unknown arguments {unknown:?} in CNI_ARGS"));
            return Err(error.details("add IgnoreUnknown=1 to CNI_ARGS"));
        }
        Ok(Args(values))
    }

    /// Returns the values, each at the position of its key.
    pub fn values(&self) -> [Option<&'a str>; N] {
        self.0
    }
}

fn flag(value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => {
            let error = Error::new(Code::ENVIRONMENT, format!("invalid value {value:?} of IgnoreUnknown in CNI_ARGS"));
            Err(error.details("use 1, true, 0 or false"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs() {
        let parse = |text| Args::parse(text, ["MAC", "IP"]).map(|args| args.values());
        assert_eq!(parse("").unwrap(), [None, None]);
        assert_eq!(parse("IP=10.0.0.1").unwrap(), [None, Some("10.0.0.1")]);
        assert_eq!(parse("IP=;MAC=m;IP=b").unwrap(), [Some("m"), Some("b")]);
        assert_eq!(parse("K8S_POD_NAME=p;IgnoreUnknown=TRUE;MAC=m").unwrap(), [Some("m"), None]);
        for (bad, culprit) in [
            ("IP", "\"IP\""),
            ("IP=1;", "\"\""),
            (";", "\"\""),
            ("IP=a=b", "IP=a=b"),
            ("ip=1", "ip=1"),
            ("X=1;Y=2", "X=1"),
            ("X=1;IgnoreUnknown=0", "X=1"),
            ("IgnoreUnknown=yes", "\"yes\""),
            ("IgnoreUnknown=", "\"\""),
            ("=", "="),
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.code(), Code::ENVIRONMENT, "{bad}");
            assert!(error.to_string().contains(culprit), "{bad}: {error}");
        }
    }
}
