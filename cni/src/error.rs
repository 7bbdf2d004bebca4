//! The only error type: a CNI code, the steps that failed, the cause, and how to fix it.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// The result of any operation that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A CNI error code. A newtype instead of an enum because codes of a delegate are passed on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

impl Code {
    /// Another plugin failed without a valid CNI error.
    pub const UNKNOWN: Code = Code(0);
    /// The requested `cniVersion` is not supported.
    pub const VERSION: Code = Code(1);
    /// A configuration key is valid but not supported here.
    pub const UNSUPPORTED: Code = Code(2);
    /// The container is unknown; the runtime does not have to clean up.
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// An environment variable is missing or invalid.
    pub const ENVIRONMENT: Code = Code(4);
    /// Reading or writing failed.
    pub const IO: Code = Code(5);
    /// The input is not valid JSON, or has a value of the wrong type.
    pub const DECODE: Code = Code(6);
    /// The configuration is readable but invalid.
    pub const CONFIG: Code = Code(7);
    /// `CNI_NETNS` is not a network namespace, or is the plugin's own.
    pub const NETNS: Code = Code(8);
    /// A transient failure: try again later.
    pub const TRY_LATER: Code = Code(11);
    /// STATUS: an ADD would fail now.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// STATUS: an ADD would fail now, and running containers may have limited connectivity.
    pub const LIMITED: Code = Code(51);
    /// Any other failure. The reference uses it for nearly all failures.
    pub const INTERNAL: Code = Code(999);
}

/// An error with its context. One pointer wide, so that `Result` stays small.
///
/// The message starts with the outermost step: `set "lo" up: Operation not permitted (os error 1)`.
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

/// An error as printed on stdout, with keys in the order of the reference.
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
    /// Creates an error detected by this program.
    #[cold]
    pub fn new(code: Code, cause: impl Into<String>) -> Error {
        let cause = cause.into();
        Error(Box::new(Parts { code, trying: Vec::new(), cause, details: String::new(), errno: None }))
    }

    /// Creates an error from an errno of the kernel and the text of its extended acknowledgement, which may be empty.
    #[cold]
    pub fn kernel(errno: i32, explanation: &str) -> Error {
        let what = match errno {
            // The kernel returns it when a bridge has no free port. musl has no text for it.
            libc::EXFULL => format!("Exchange full (os error {errno})"),
            _ => io::Error::from_raw_os_error(errno).to_string(),
        };
        let mut error = Error::new(Code::INTERNAL, what);
        error.0.errno = Some(errno);
        if explanation.is_empty() { error } else { error.details(format!("kernel: {explanation}")) }
    }

    /// Creates an error for a state that only a bug in this program can cause.
    #[cold]
    pub(crate) fn bug(what: impl fmt::Display) -> Error {
        Error::new(Code::INTERNAL, format!("bug in cni0: {what}"))
    }

    /// Adds details: the kernel's explanation, the object in the way, the remedy.
    #[must_use]
    pub fn details(mut self, more: impl AsRef<str>) -> Error {
        if !self.0.details.is_empty() {
            self.0.details.push_str("; ");
        }
        self.0.details.push_str(more.as_ref());
        self
    }

    /// Replaces the code.
    #[must_use]
    pub fn code_is(mut self, code: Code) -> Error {
        self.0.code = code;
        self
    }

    /// Returns the CNI code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the errno of the system call that failed, if one did.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// Returns the details, such as the object in the way and the remedy; may be empty.
    pub fn remarks(&self) -> &str {
        &self.0.details
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer { code: self.0.code, msg: self.to_string(), details: self.0.details.clone() }
    }
}

impl From<Answer> for Error {
    /// Passes on the error of another plugin unchanged.
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

/// Adds the step that failed to an error.
pub trait Context<T> {
    /// Prefixes an error with `what`, a verb phrase that names the object: `open "/run/netns/a"`. It is evaluated only
    /// on failure.
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
    #[cfg_attr(miri, ignore = "miri has its own error texts")]
    fn the_message_starts_with_the_outermost_step() {
        let inner: Result<()> = Err(Error::kernel(libc::EPERM, "no such luck"));
        let error = inner.trying(|| "set \"lo\" up").trying(|| "prepare").unwrap_err();
        assert_eq!(error.to_string(), "prepare: set \"lo\" up: Operation not permitted (os error 1)");
        assert_eq!(error.errno(), Some(libc::EPERM));
        assert_eq!(format!("{error:?}"), format!("[999] {error} (kernel: no such luck)"));
    }

    #[test]
    fn details_are_joined() {
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
