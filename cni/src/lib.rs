//! What all cni0 plugins share: the CNI protocol on one side, the kernel on the other.
//!
//! One call, from top to bottom:
//!
//! 1. [`main!`] makes a program, which picks the [`Plugin`] by the name under which the program was called.
//! 2. `request` turns environment and stdin into checked values: a [`Call`], and for ADD, DEL and CHECK an
//!    [`Attachment`]. From there on no name, version or path can be wrong.
//! 3. The plugin reads its own keys with [`Call::parse`], opens the container's [`Netns`] and a [`netlink::Netlink`] per
//!    namespace, changes what has to change, registers each step back with [`Undo`] before it, and may ask another
//!    plugin through [`Delegate`].
//! 4. It returns an [`AddResult`] in the newest shape, or an [`Error`]; `process` prints either in the layout of the
//!    request's [`Version`].
//!
//! Nothing here knows a plugin.

mod args;
mod aside;
mod build_id;
mod child;
mod delegate;
mod error;
mod failures;
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
pub use aside::Aside;
pub use delegate::{Delegate, Failure, Program};
pub use error::{Code, Context, Error, Result};
pub use failures::Failures;
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

// Sanitizers and miri must see every block by itself.
#[cfg_attr(not(any(feature = "fuzzing", miri)), global_allocator)]
#[cfg_attr(any(feature = "fuzzing", miri), expect(dead_code, reason = "then the system's is used"))]
static MEMORY: sys::arena::Arena = sys::arena::Arena::new();
