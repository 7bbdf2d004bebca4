//! Code shared by all cni0 plugins: the CNI protocol on one side, the kernel on the other.
//!
//! How one call is handled, from top to bottom:
//!
//! 1. [`main!`] defines the program's entry point. The name under which the program was called selects the [`Plugin`].
//! 2. `request` validates environment and stdin and converts them to a [`Call`], and for ADD, DEL and CHECK also an
//!    [`Attachment`]. Later code does not have to check names, versions or paths again.
//! 3. The plugin parses its own keys with [`Call::parse`] and opens the container's [`Netns`] and a
//!    [`netlink::Netlink`] for each namespace. It registers a rollback step with [`Undo`] before each change, and may
//!    call another plugin through [`Delegate`].
//! 4. It returns an [`AddResult`] in the newest layout, or an [`Error`]. `process` prints either in the layout of the
//!    request's [`Version`].
//!
//! This crate does not depend on any plugin.

mod args;
mod build_id;
mod child;
mod collector;
mod delegate;
mod detached;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod ip;
pub mod json;
pub mod key;
mod logging;
mod name;
pub mod netlink;
mod netns;
mod plugin;
mod process;
mod request;
mod result;
pub mod sha512;
mod sys;
pub mod sysctl;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tool;
mod undo;
mod version;
mod wait;

pub use args::Args;
pub use collector::ErrorCollector;
pub use delegate::{Delegate, DelegateError, Program};
pub use detached::DetachedChild;
pub use error::{Code, Context, Error, Result};
pub use key::AttachmentKey;
pub use logging::report;
pub use name::{ContainerId, IfName, NetworkName};
pub use netns::Netns;
pub use plugin::{Attachment, Call, Home, Plugin, Prepared, ValidAttachment};
pub use request::process_env;
pub use result::{AddResult, Dns, Interface, IpConfig, Route};
pub use sys::random;
#[doc(hidden)]
pub use sys::start;
pub use undo::Undo;
pub use version::Version;
pub use wait::Deadline;

// Sanitizers and miri must see each memory block separately.
#[cfg_attr(not(any(feature = "fuzzing", miri)), global_allocator)]
#[cfg_attr(any(feature = "fuzzing", miri), expect(dead_code, reason = "the system's allocator is used then"))]
static MEMORY: sys::arena::Arena = sys::arena::Arena::new();
