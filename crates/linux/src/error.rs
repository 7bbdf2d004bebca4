//! The error type: the steps that failed, the cause, its errno and kind, and how to fix it.

use std::fmt;
use std::io;

use crate::log::warn;

/// The result of any operation that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an error is, for callers that must react to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel rejected a request, or sent an invalid reply.
    Kernel,
    /// Reading or writing a file failed.
    Io,
    /// A network namespace does not exist or cannot be used.
    Namespace,
    /// The failure is transient: another attempt may succeed.
    Transient,
    /// Another program is missing or failed.
    Program,
    /// Another program printed too much.
    Output,
    /// A failure of the program that uses this crate, with a code of its own.
    Code(u32),
    /// Any other failure, such as a state that only a bug can cause.
    Other,
}

/// An error with its context. One pointer wide, so that `Result` stays small.
///
/// The message starts with the outermost step: `set "lo" up: Operation not permitted (os error 1)`.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    kind: Kind,
    steps: Vec<String>,
    cause: String,
    details: String,
    errno: Option<i32>,
}

impl Error {
    /// Creates an error detected by this program.
    #[cold]
    pub fn new(kind: Kind, cause: impl Into<String>) -> Error {
        let cause = cause.into();
        Error(Box::new(Parts { kind, steps: Vec::new(), cause, details: String::new(), errno: None }))
    }

    /// Creates an error from an errno of the kernel and the text of its extended acknowledgement, which may be empty.
    #[cold]
    pub fn kernel(errno: i32, explanation: &str) -> Error {
        let what = match errno {
            // The kernel returns it when a bridge has no free port. musl has no text for it.
            libc::EXFULL => format!("Exchange full (os error {errno})"),
            _ => io::Error::from_raw_os_error(errno).to_string(),
        };
        let mut error = Error::new(Kind::Kernel, what);
        error.0.errno = Some(errno);
        if explanation.is_empty() { error } else { error.details(format!("kernel: {explanation}")) }
    }

    /// Creates an error for a state that only a bug in this program can cause.
    #[cold]
    pub fn bug(what: impl fmt::Display) -> Error {
        Error::new(Kind::Other, format!("bug in cni0: {what}"))
    }

    /// Adds a step to the front of the message: a verb phrase that names the object, such as `open "/run/netns/a"`.
    #[must_use]
    pub fn context(mut self, step: impl Into<String>) -> Error {
        self.0.steps.push(step.into());
        self
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

    /// Replaces the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Error {
        self.0.kind = kind;
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the errno of the system call that failed, if one did.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// Returns whether the kernel refused the request. That is a definite answer, unlike the failure of a system call,
    /// which can hide what the kernel did.
    pub fn is_refusal(&self) -> bool {
        self.kind() == Kind::Kernel && self.errno().is_some()
    }

    /// Returns the details, such as the object in the way and the remedy; may be empty.
    pub fn details_text(&self) -> &str {
        &self.0.details
    }
}

impl AsRef<Error> for Error {
    fn as_ref(&self) -> &Error {
        self
    }
}

impl From<io::Error> for Error {
    #[cold]
    fn from(error: io::Error) -> Error {
        let mut this = Error::new(Kind::Io, error.to_string());
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
        for step in self.0.steps.iter().rev() {
            write!(f, "{step}: ")?;
        }
        f.write_str(&self.0.cause)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        if self.0.details.is_empty() { Ok(()) } else { write!(f, " ({})", self.0.details) }
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

/// Replaces an error by the default value, for a command that removes something and can do without the value. Logs the
/// error and the consequence. Only a lack of resources stays an error: the next attempt may succeed.
pub fn tolerate<T: Default>(consequence: impl fmt::Display, outcome: Result<T, impl Into<Error>>) -> Result<T> {
    match outcome.map_err(Into::into) {
        Err(error) if !matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR)) => {
            warn!("{error:?}; {consequence}");
            Ok(T::default())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "miri has its own error texts")]
    fn the_message_starts_with_the_outermost_step() {
        let inner: Result<()> = Err(Error::kernel(libc::EPERM, "no such luck"));
        let error = inner.context(|| "set \"lo\" up").context(|| "prepare").unwrap_err();
        assert_eq!(error.to_string(), "prepare: set \"lo\" up: Operation not permitted (os error 1)");
        assert_eq!((error.kind(), error.errno()), (Kind::Kernel, Some(libc::EPERM)));
        assert_eq!(format!("{error:?}"), format!("{error} (kernel: no such luck)"));
    }

    #[test]
    fn details_are_joined() {
        let error = Error::new(Kind::Other, "bad").details("a").details("b");
        assert_eq!(error.details_text(), "a; b");
    }

    #[test]
    fn an_io_error_keeps_its_errno() {
        let error = Error::from(io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!((error.kind(), error.errno()), (Kind::Io, Some(libc::ENOSPC)));
        assert_eq!(Error::kernel(libc::EXFULL, "").to_string(), "Exchange full (os error 54)");
    }
}
