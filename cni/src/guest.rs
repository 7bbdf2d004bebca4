//! The two sides of an attachment: the host, and the container namespace, which code calls the guest.

use linux::Netns;
use linux::netlink::{Link, LinkIndex, Netlink};

use crate::error::{Code, Context, Error, Result};
use crate::plugin::{Attachment, Call, Home};

/// The namespaces on both sides of an attachment.
#[derive(Debug)]
pub struct Namespaces {
    /// The host's namespace, and a netlink socket there.
    pub host: Home,
    /// The container namespace.
    pub guest: Netns,
}

impl Namespaces {
    /// Opens both namespaces. The container namespace must exist.
    pub fn open(call: &Call<'_>, at: &Attachment) -> Result<Namespaces> {
        let guest = at.open_netns()?;
        Ok(Namespaces { host: call.home()?, guest })
    }

    /// Opens both namespaces for DEL; `None` if the container namespace is gone.
    pub fn open_if_exists(call: &Call<'_>, at: &Attachment) -> Result<Option<Namespaces>> {
        let Some(guest) = at.open_netns_if_exists()? else { return Ok(None) };
        Ok(Some(Namespaces { host: call.home()?, guest }))
    }

    /// Runs `work` in the container namespace, where sysctls and new sockets are the container's.
    pub fn in_guest<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.guest.run(&self.host.netns, work)
    }

    /// Opens a netlink socket in the container namespace.
    pub fn open_guest<'a>(&self, at: &'a Attachment) -> Result<Guest<'a>> {
        self.in_guest(|| Guest::open_here(at))
    }

    /// Returns an error if the container already has the attachment's interface.
    pub fn refuse_existing_interface(&self, at: &Attachment) -> Result<()> {
        if self.open_guest(at)?.find_interface_index()?.is_none() {
            return Ok(());
        }
        let what = format!("interface {:?} already exists in {:?}", at.ifname.as_str(), at.sandbox());
        Err(Error::new(Code::INTERNAL, what)
            .details("the container is already attached: call DEL first, or use another CNI_IFNAME"))
    }

    /// Returns this thread to the host's namespace after a failure in the container namespace. If the thread is already
    /// there, this needs no permission.
    pub fn return_to_host(&self) -> Result<()> {
        let host = &self.host.netns;
        match Netns::current()?.same_as(host)? {
            true => Ok(()),
            false => host.run(host, || Ok(())),
        }
    }
}

/// The container's side of an attachment: a netlink socket in the container namespace.
#[derive(Debug)]
pub struct Guest<'a> {
    /// The socket.
    pub netlink: Netlink,
    /// The attachment.
    pub at: &'a Attachment,
}

impl<'a> Guest<'a> {
    /// Opens a netlink socket in the namespace of this thread, for use in [`Namespaces::in_guest`].
    pub fn open_here(at: &'a Attachment) -> Result<Guest<'a>> {
        Ok(Guest { netlink: Netlink::open()?, at })
    }

    /// Returns the attachment's interface. It must exist.
    pub fn interface(&mut self) -> Result<Link> {
        self.find_interface()?.ok_or_else(|| {
            let what = format!("there is no link {:?} in {:?}", self.at.ifname.as_str(), self.at.sandbox());
            Error::new(Code::INTERNAL, what)
        })
    }

    /// Returns the attachment's interface, if it exists.
    pub fn find_interface(&mut self) -> Result<Option<Link>> {
        self.netlink.link(self.at.ifname.as_str()).context(|| place(self.at))
    }

    /// Returns the index of the attachment's interface, if it exists. This costs no message.
    pub fn find_interface_index(&mut self) -> Result<Option<LinkIndex>> {
        self.netlink.link_index(self.at.ifname.as_str()).context(|| place(self.at))
    }
}

/// Names the container namespace, as the context of an error.
fn place(at: &Attachment) -> String {
    format!("in {:?}", at.sandbox())
}
