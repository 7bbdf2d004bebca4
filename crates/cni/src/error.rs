//! The error of a plugin: what failed, and its CNI code.

use std::fmt;
use std::io;

use linux::Kind;
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
    /// A port to be published belongs to another attachment. Codes from 100 on are those of plugins.
    pub const PORT_IN_USE: Code = Code(101);
    /// Any other failure. The reference uses it for nearly all failures.
    pub const INTERNAL: Code = Code(999);
}

/// An error with its context and its CNI code. The message starts with the outermost step, as in [`linux::Error`]. One
/// pointer wide, as that.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(linux::Error);

/// An error as printed on stdout, with keys in the order of the reference.
#[derive(Serialize, Deserialize)]
pub(crate) struct ErrorAnswer {
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
        Error(linux::Error::new(Kind::Code(code.0), cause))
    }

    /// Creates an error for a state that only a bug in this program can cause.
    #[cold]
    pub fn bug(what: impl fmt::Display) -> Error {
        linux::Error::bug(what).into()
    }

    /// Adds a step to the front of the message: a verb phrase that names the object, such as `read "lock"`.
    #[must_use]
    pub fn context(self, step: impl Into<String>) -> Error {
        Error(self.0.context(step))
    }

    /// Adds details: the kernel's explanation, the object in the way, the remedy.
    #[must_use]
    pub fn details(self, more: impl AsRef<str>) -> Error {
        Error(self.0.details(more))
    }

    /// Adds details to an error for which `applies` returns true.
    #[must_use]
    pub fn details_if(self, applies: impl FnOnce(&Error) -> bool, more: impl AsRef<str>) -> Error {
        if applies(&self) { self.details(more) } else { self }
    }

    /// Replaces the code.
    #[must_use]
    pub fn with_code(self, code: Code) -> Error {
        Error(self.0.with_kind(Kind::Code(code.0)))
    }

    /// Returns the CNI code. For a failure in the crate [`linux`], its kind determines it.
    pub fn code(&self) -> Code {
        match self.0.kind() {
            Kind::Code(code) => Code(code),
            Kind::Io => Code::IO,
            Kind::Namespace => Code::NETNS,
            Kind::Transient => Code::TRY_LATER,
            Kind::Output => Code::UNKNOWN,
            Kind::Kernel | Kind::Program | Kind::Other => Code::INTERNAL,
        }
    }

    /// Returns the errno of the system call that failed, if one did.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno()
    }

    /// Returns the details, such as the object in the way and the remedy; may be empty.
    pub fn details_text(&self) -> &str {
        self.0.details_text()
    }

    pub(crate) fn answer(&self) -> ErrorAnswer {
        ErrorAnswer { code: self.code(), msg: self.to_string(), details: self.details_text().to_owned() }
    }
}

impl From<ErrorAnswer> for Error {
    /// Passes on the error of another plugin unchanged.
    fn from(answer: ErrorAnswer) -> Error {
        Error::new(answer.code, answer.msg).details(answer.details)
    }
}

impl From<linux::Error> for Error {
    fn from(cause: linux::Error) -> Error {
        Error(cause)
    }
}

impl AsRef<linux::Error> for Error {
    fn as_ref(&self) -> &linux::Error {
        &self.0
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        linux::Error::from(error).into()
    }
}

impl From<nix::Error> for Error {
    fn from(errno: nix::Error) -> Error {
        linux::Error::from(errno).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {:?}", self.code().0, self.0)
    }
}

impl std::error::Error for Error {}

/// Adds the step that failed to an error.
pub trait Context<T> {
    /// Prefixes an error with a step, as [`Error::context`] does. `step` is evaluated only on failure.
    fn context<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.into().context(step()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_failure_determines_the_code() {
        let failure: linux::Result<()> = Err(linux::Error::kernel(libc::EPERM, "no such luck"));
        let error = failure.context(|| "prepare").unwrap_err();
        assert_eq!((error.code(), error.errno()), (Code::INTERNAL, Some(libc::EPERM)));
        assert_eq!(format!("{error:?}"), format!("[999] {error} (kernel: no such luck)"));
        let code = |kind| Error::from(linux::Error::new(kind, "")).code();
        assert_eq!(code(Kind::Transient), Code::TRY_LATER);
        assert_eq!(code(Kind::Namespace), Code::NETNS);
        assert_eq!(Error::from(io::Error::from_raw_os_error(libc::ENOSPC)).code(), Code::IO);
    }

    #[test]
    fn details_are_printed() {
        let error = Error::new(Code::CONFIG, "bad").details("a").details("b");
        assert_eq!(error.answer().details, "a; b");
    }
}
