//! The CNI protocol: everything between a runtime and a plugin.
//!
//! How one call is handled, from top to bottom:
//!
//! 1. [`main!`] defines the program's entry point, with a [`Plugin`] and the delegates that can run in its process.
//! 2. `request` validates the environment, and `config` the common keys on stdin. `process` combines them into a
//!    [`Call`], and for ADD, DEL and CHECK also an [`Attachment`]. Later code does not have to check names, versions or
//!    paths again.
//! 3. The plugin parses its own keys with [`Call::parse`]. A chained plugin gets the previous result from
//!    [`Call::chained_result`].
//! 4. It opens the [`Namespaces`] of host and container, with a netlink socket on each side, and registers a
//!    rollback step with [`Undo`] before each change. It may call another plugin through [`Delegate`], with its own
//!    configuration or with a generated one ([`Call::with_config`]).
//! 5. It returns an [`AddResult`] in the newest layout, or an [`Error`]. `process` prints either in the layout of the
//!    request's [`Version`].
//!
//! This crate does not depend on any plugin. The kernel is the subject of the crate [`linux`].

mod args;
pub mod calls;
mod collector;
mod config;
mod delegate;
mod embedded;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod inspect;
mod iptables;
pub mod json;
mod keep;
pub mod key;
pub mod lease;
mod logging;
mod mac;
mod misspelt;
mod name;
mod namespaces;
mod ownership;
mod plugin;
mod process;
mod request;
mod result;
mod shape;
mod sorted;
mod suggest;
mod trial;
mod undo;
mod version;

pub use args::Args;
pub use collector::ErrorCollector;
pub use config::ValidAttachment;
pub use delegate::{Delegate, DelegateError, Program};
pub use embedded::{Configured, EmbeddedList};
pub use error::{Code, Context, Error, Result};
pub use iptables::{add_rules, remove_chains, try_iptables};
pub use keep::{Gone, Keep, Suspect};
pub use key::AttachmentKey;
#[doc(hidden)]
pub use linux;
pub use logging::{report, utc};
pub use mac::requested_mac;
pub use name::{ContainerId, IfName, NetworkName};
pub use namespaces::{Guest, Namespaces};
pub use ownership::{Judgement, KnownOwner, NamedLink, Ownership, Reason, Trace};
pub use plugin::{Attachment, Call, Home, Ipam, Plugin, Prepared};
#[doc(hidden)]
pub use process::{answer_panics, run};
pub use result::{AddResult, Dns, Interface, IpConfig, Route};
pub use sorted::SortedSet;
pub use suggest::nearest;
pub use trial::try_edits;
pub use undo::{Rollback, Undo};
pub use version::Version;
