//! A socket for links and routes of this host.

use cni::Result;
use linux::netlink::Netlink;

/// A socket for links and routes, which is opened when it is first needed: most DELs do not need it.
#[derive(Debug, Default)]
pub(crate) struct Host(Option<Netlink>);

impl Host {
    /// Returns the socket.
    pub(crate) fn socket(&mut self) -> Result<&mut Netlink> {
        let socket = match self.0.take() {
            Some(socket) => socket,
            None => Netlink::open()?,
        };
        Ok(self.0.insert(socket))
    }
}

impl From<Netlink> for Host {
    fn from(socket: Netlink) -> Host {
        Host(Some(socket))
    }
}
