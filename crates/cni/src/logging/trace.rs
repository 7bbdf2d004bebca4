//! The distributed trace that a call belongs to.

use std::ffi::OsStr;
use std::fmt;

use crate::request::Env;

/// Newer runtimes set it as W3C Trace Context describes.
const VARIABLE: &str = "TRACEPARENT";

/// The identifiers of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(super) trace_id: String,
    /// The span of the caller.
    pub(super) span_id: String,
}

impl Trace {
    /// Returns the trace of the caller.
    pub(crate) fn of_caller(env: Env<'_>) -> Option<Trace> {
        env(VARIABLE).and_then(|text| Trace::parse(&text))
    }

    /// Parses `VERSION-TRACE-SPAN-FLAGS`; `None` for anything else. Later versions may have more fields.
    fn parse(text: &OsStr) -> Option<Trace> {
        let mut fields = text.to_str()?.split('-');
        let mut hexadecimal = |length: usize| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            fields.next().filter(|field| field.len() == length && field.bytes().all(is_digit))
        };
        let (version, trace_id, span_id, _flags) =
            (hexadecimal(2)?, hexadecimal(32)?, hexadecimal(16)?, hexadecimal(2)?);
        let is_zero = |id: &str| id.bytes().all(|byte| byte == b'0');
        if version == "ff" || is_zero(trace_id) || is_zero(span_id) || (version == "00" && fields.next().is_some()) {
            return None;
        }
        Some(Trace { trace_id: trace_id.to_owned(), span_id: span_id.to_owned() })
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trace={} span={}", self.trace_id, self.span_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_trace_is_accepted() {
        const IDS: &str = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        let parsed = |text: &str| Trace::parse(OsStr::new(text)).map(|trace| trace.to_string());
        let wanted = Some("trace=0af7651916cd43dd8448eb211c80319c span=b7ad6b7169203331".to_owned());
        assert_eq!(parsed(&format!("00-{IDS}-01")), wanted);
        assert_eq!(parsed(&format!("cc-{IDS}-09-what-follows")), wanted);
        for invalid in [
            String::new(),
            "00".to_owned(),
            IDS.to_owned(),
            format!("ff-{IDS}-01"),
            format!("00-{IDS}"),
            format!("00-{IDS}-1"),
            format!("00-{IDS}-01-more"),
            format!("00-{}-01", IDS.to_uppercase()),
            format!("00-{}-01", IDS.replace('7', "\n")),
            format!("00-{}-01", IDS.replace('7', "\u{e9}")),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(parsed(&invalid), None, "{invalid}");
        }
    }
}
