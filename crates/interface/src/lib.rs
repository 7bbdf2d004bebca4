//! What plugins that create an interface in a container, or change one there, have in common.
//!
//! | module | what it does |
//! |---|---|
//! | `config` | reads the keys that several plugins have: `mtu`, `mac`, `dns`, `ipam` |
//! | `attach` | runs an ADD with its rollback, and leases addresses |
//! | `ipam` | the order of the interface and its addresses |
//! | `plan` | derives addresses, routes and gateways from the result of an IPAM plugin |
//! | `container` | configures the interface in the container |
//! | `check` | compares the interface with the result of ADD |
//! | `forwarding` | enables IP forwarding on the host |
//! | `masquerade` | masquerade by nftables or iptables: its rules, CHECK, GC, and what tools report about it |
//! | `host_access` | a link of the host by which it reaches containers on its own links |
//! | `host_veth` | deletes veth pairs by the end on the host, for DEL and GC |
//! | `removal` | deletes the interface in the container, if it provably belongs to the attachment |
//! | `link_state` | what a link loses when it moves to another namespace, and how to restore it |
//! | `lock` | the locks of the links of the host that several containers share, and of a container |
//! | `differences` | what tools report about containers whose CHECK finds a difference |
//! | `shared_vlan` | a VLAN link of the host that several containers share |
//! | `master` | finds the link on top of which a plugin creates another one |
//! | `link_plugin` | a whole plugin, for those whose only object is a link in the container |
//! | `subnets` | subnets of this host that are in use, and free ones, for new networks |
//! | `name` | random names and MAC addresses |

pub mod attach;
pub mod check;
pub mod config;
pub mod container;
pub mod differences;
pub mod forwarding;
pub mod host_access;
pub mod host_veth;
pub mod ipam;
pub mod link_plugin;
pub mod link_state;
pub mod lock;
pub mod masquerade;
pub mod master;
pub mod name;
pub mod plan;
pub mod removal;
pub mod shared_vlan;
pub mod subnets;

pub use link_plugin::LinkType;
