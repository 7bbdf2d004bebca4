//! The Linux kernel, as far as network plugins need it. This crate does not know what a plugin is.
//!
//! - [`netlink`] changes and queries links, addresses, routes and neighbours; [`netlink::nft`] the packet filter.
//! - [`dir`] has directories of small files, with atomic operations.
//! - [`Netns`] opens and enters network namespaces; [`sysctl`] reads and writes kernel settings. [`Sysfs`] identifies
//!   links.
//! - [`iptables`] has the tables and tools of iptables.
//! - [`child`] runs another program until it exits, [`tool`] finds and runs a tool of the host, and [`DetachedChild`]
//!   continues work after this process has exited.
//! - [`unix`] connects to a server on this host, or is one. [`event`] has what a daemon waits for, and [`packet`] the
//!   packets of a link.
//! - [`Deadline`] limits every wait. [`process`] is this process: its entry point, environment, streams, memory and
//!   build ID.
//! - [`log`] has the macros for messages of the log.
//! - [`ip`] has addresses and address arithmetic, [`sha2`] the hashes of names and files.
//!
//! All unsafe code of the project is in the private module `sys`. Every failure is an [`Error`] with the steps that
//! failed, the errno and a [`Kind`].

pub mod child;
mod detached;
pub mod dir;
mod error;
pub mod event;
#[cfg(feature = "fuzzing")]
pub use netlink::fuzzing;
pub mod ip;
pub mod iptables;
pub mod log;
pub mod netlink;
mod netns;
pub mod packet;
pub mod process;
pub mod sha2;
mod sys;
pub mod sysctl;
mod sysfs;
pub mod tool;
pub mod unix;
mod wait;

pub use detached::DetachedChild;
pub use error::{Context, Error, Kind, Result, tolerate};
pub use netns::Netns;
pub use sys::random;
pub use sysfs::Sysfs;
pub use wait::Deadline;
