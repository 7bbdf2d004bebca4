//! What the configuration of an attachment says about its client. The plugin sends it to the daemon, which keeps it
//! with the lease.

use linux::ip::MacAddr;
use serde::{Deserialize, Serialize};

use crate::v4::message::option;

/// The settings of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// By what a server recognises the client; `None` for the MAC address of the interface.
    pub(crate) client: Option<Vec<u8>>,
    /// Options for the server, by number.
    pub(crate) options: Vec<(u8, Vec<u8>)>,
    /// The numbers of the options that the server should send.
    pub(crate) requests: Vec<u8>,
    /// The numbers of those without which the client takes no address.
    pub(crate) required: Vec<u8>,
    /// Whether servers must answer by broadcast; `None` for the default of the interface.
    pub(crate) broadcast: Option<bool>,
    /// The metric of the routes.
    pub(crate) priority: u32,
    pub(crate) ignore_gateway: bool,
    pub(crate) ignore_dns: bool,
    /// Whether the interface gets the MTU of the server.
    pub(crate) set_mtu: bool,
}

impl Settings {
    /// Returns the client identifier. An option of the configuration precedes it, as in the reference.
    pub(crate) fn identifier(&self, mac: MacAddr) -> Vec<u8> {
        let provided = self.options.iter().find(|(number, _)| *number == option::CLIENT).map(|(_, value)| value);
        // The kind of hardware is Ethernet.
        provided.or(self.client.as_ref()).cloned().unwrap_or_else(|| [&[1][..], &mac.0].concat())
    }
}
