//! The messages of all crates for the log. The crate `log` passes them to the logger of the program.
//!
//! The macros of that crate record where each message comes from, in constants with four addresses. A
//! position-independent program computes all of them when it starts, whether or not it logs: two memory pages of every
//! process. The messages of this project are recognised by their text, so these macros omit their origin.

use std::fmt::Arguments;

#[doc(inline)]
pub use crate::{log_debug as debug, log_error as error, log_info as info, log_warn as warn};
pub use ::log::Level;

/// Returns whether messages of this level are logged.
pub fn is_enabled(level: Level) -> bool {
    level <= ::log::max_level()
}

#[doc(hidden)]
#[cold]
pub fn write(level: Level, message: Arguments<'_>) {
    ::log::log!(level, "{message}");
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_message {
    ($level:ident, $($message:tt)+) => {
        if $crate::log::is_enabled($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, ::std::format_args!($($message)+));
        }
    };
}

/// Logs a failure of the call.
#[macro_export]
macro_rules! log_error {
    ($($message:tt)+) => { $crate::log_message!(Error, $($message)+) };
}

/// Logs a problem that does not fail the call.
#[macro_export]
macro_rules! log_warn {
    ($($message:tt)+) => { $crate::log_message!(Warn, $($message)+) };
}

/// Logs the outcome of a call.
#[macro_export]
macro_rules! log_info {
    ($($message:tt)+) => { $crate::log_message!(Info, $($message)+) };
}

/// Logs a change to the kernel or the disk, or a decision.
#[macro_export]
macro_rules! log_debug {
    ($($message:tt)+) => { $crate::log_message!(Debug, $($message)+) };
}
