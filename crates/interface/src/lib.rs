//! What plugins that create an interface in a container have in common.
//!
//! | module | what it does |
//! |---|---|
//! | `config` | reads the keys that several plugins have: `mtu`, `mac`, `dns`, `ipam` |
//! | `attach` | runs an ADD with its rollback, and leases addresses |
//! | `plan` | derives addresses, routes and gateways from the result of an IPAM plugin |
//! | `container` | configures the interface in the container |
//! | `check` | compares the interface with the result of ADD |
//! | `removal` | deletes the interface of an attachment, if it provably belongs to the attachment |
//! | `link_plugin` | a whole plugin, for those whose only object is a link in the container |
//! | `name` | random names and MAC addresses |

pub mod attach;
pub mod check;
pub mod config;
pub mod container;
pub mod link_plugin;
pub mod name;
pub mod plan;
pub mod removal;

pub use link_plugin::LinkType;
