//! The one error type: a CNI code, what was being tried, what went wrong, and what to do about it.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// The result of everything that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A CNI error code. A newtype instead of an enum: a delegate may answer any number, and it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

impl Code {
    /// Another plugin answered with something that is no CNI error.
    pub const UNKNOWN: Code = Code(0);
    /// The `cniVersion` asked for cannot be served.
    pub const VERSION: Code = Code(1);
    /// A key of the configuration is valid but cannot be served here.
    pub const UNSUPPORTED: Code = Code(2);
    /// The container is not known; the runtime need not clean up.
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// An environment variable is missing or invalid.
    pub const ENVIRONMENT: Code = Code(4);
    /// Reading or writing failed.
    pub const IO: Code = Code(5);
    /// The input is not the JSON that was expected.
    pub const DECODE: Code = Code(6);
    /// The configuration was understood and is wrong.
    pub const CONFIG: Code = Code(7);
    /// `CNI_NETNS` is no network namespace, or the plugin's own.
    pub const NETNS: Code = Code(8);
    /// Try again later.
    pub const TRY_LATER: Code = Code(11);
    /// STATUS: an ADD would fail now.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// STATUS: an ADD would fail now, and containers that are there may have trouble.
    pub const LIMITED: Code = Code(51);
    /// Everything else; what the reference answers for nearly all failures.
    pub const INTERNAL: Code = Code(999);
}

/// What went wrong. One pointer wide, so that `Result` stays small.
///
/// The message reads outside-in: `set "lo" up: Operation not permitted (os error 1)`.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    code: Code,
    trying: Vec<String>,
    cause: String,
    details: String,
    errno: Option<i32>,
}

/// An error as it stands on stdout, in the reference's key order.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    #[serde(default = "unknown")]
    pub(crate) code: Code,
    #[serde(default)]
    pub(crate) msg: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) details: String,
}

fn unknown() -> Code {
    Code::UNKNOWN
}

impl Error {
    /// An error of our own finding.
    #[cold]
    pub fn new(code: Code, cause: impl Into<String>) -> Error {
        let cause = cause.into();
        Error(Box::new(Parts { code, trying: Vec::new(), cause, details: String::new(), errno: None }))
    }

    /// The kernel's refusal: its errno, and the text of its extended acknowledgement if it gave one.
    #[cold]
    pub fn kernel(errno: i32, explanation: &str) -> Error {
        let what = match errno {
            // What a bridge without a free port says; musl has no words for it.
            libc::EXFULL => format!("Exchange full (os error {errno})"),
            _ => io::Error::from_raw_os_error(errno).to_string(),
        };
        let mut error = Error::new(Code::INTERNAL, what);
        error.0.errno = Some(errno);
        if explanation.is_empty() { error } else { error.details(format!("kernel: {explanation}")) }
    }

    /// Something only a mistake in this program can cause.
    #[cold]
    pub(crate) fn bug(what: impl fmt::Display) -> Error {
        Error::new(Code::INTERNAL, format!("bug in cni0: {what}"))
    }

    /// Says more: what the kernel explained, who is in the way, the remedy.
    #[must_use]
    pub fn details(mut self, more: impl AsRef<str>) -> Error {
        if !self.0.details.is_empty() {
            self.0.details.push_str("; ");
        }
        self.0.details.push_str(more.as_ref());
        self
    }

    /// The same error under another code.
    #[must_use]
    pub fn code_is(mut self, code: Code) -> Error {
        self.0.code = code;
        self
    }

    /// The CNI code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The errno at the bottom, if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// What was said beside the message: the culprit, the remedy; or empty.
    pub fn remarks(&self) -> &str {
        &self.0.details
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer { code: self.0.code, msg: self.to_string(), details: self.0.details.clone() }
    }
}

impl From<Answer> for Error {
    /// Another plugin's error, passed on as it is.
    fn from(answer: Answer) -> Error {
        Error::new(answer.code, answer.msg).details(answer.details)
    }
}

impl From<io::Error> for Error {
    #[cold]
    fn from(error: io::Error) -> Error {
        let mut this = Error::new(Code::IO, error.to_string());
        this.0.errno = error.raw_os_error();
        this
    }
}

impl From<nix::Error> for Error {
    fn from(errno: nix::Error) -> Error {
        io::Error::from(errno).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in self.0.trying.iter().rev() {
            write!(f, "{step}: ")?;
        }
        f.write_str(&self.0.cause)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.0.code.0)?;
        if self.0.details.is_empty() { Ok(()) } else { write!(f, " ({})", self.0.details) }
    }
}

impl std::error::Error for Error {}

/// Says what was being tried when a result turned out to be an error.
pub trait Context<T> {
    /// `what` is a verb phrase that names the object: `open "/run/netns/a"`. It is only made on failure.
    fn trying<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn trying<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| {
            let mut error = error.into();
            error.0.trying.push(what().into());
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it has its own words for errors")]
    fn the_message_reads_outside_in() {
        let inner: Result<()> = Err(Error::kernel(libc::EPERM, "no such luck"));
        let error = inner.trying(|| "set \"lo\" up").trying(|| "prepare").unwrap_err();
        assert_eq!(error.to_string(), "prepare: set \"lo\" up: Operation not permitted (os error 1)");
        assert_eq!(error.errno(), Some(libc::EPERM));
        assert_eq!(format!("{error:?}"), format!("[999] {error} (kernel: no such luck)"));
    }

    #[test]
    fn details_add_up() {
        let error = Error::new(Code::CONFIG, "bad").details("a").details("b");
        assert_eq!(error.answer().details, "a; b");
    }

    #[test]
    fn an_io_error_keeps_its_errno() {
        let error = Error::from(io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!((error.code(), error.errno()), (Code::IO, Some(libc::ENOSPC)));
        assert_eq!(Error::kernel(libc::EXFULL, "").to_string(), "Exchange full (os error 54)");
    }
}
