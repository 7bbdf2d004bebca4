//! The two sides of an attachment: the host, and the container namespace, which code calls the guest.

use linux::Netns;
use linux::netlink::{Link, LinkIndex, Netlink};

use crate::error::{Code, Context, Error, Result};
use crate::plugin::{Attachment, Call, Home};
use crate::request;

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

    /// As [`Namespaces::open`], for the ADD of a plugin whose [`uses_netns`](crate::Plugin::uses_netns) returns
    /// `false`. Returns an error if both are the same namespace, unless `CNI_NETNS_OVERRIDE` permits it.
    pub fn open_excluding_own(call: &Call<'_>, at: &Attachment) -> Result<Namespaces> {
        let namespaces = Namespaces::open(call, at)?;
        match !call.any_netns && namespaces.are_the_same()? {
            true => Err(request::own_netns(namespaces.guest.path())),
            false => Ok(namespaces),
        }
    }

    /// As [`Namespaces::open_if_exists`], for the DEL of such a plugin: if both are the same namespace, that of the
    /// container is gone.
    pub fn open_excluding_own_if_exists(call: &Call<'_>, at: &Attachment) -> Result<Option<Namespaces>> {
        let Some(namespaces) = Namespaces::open_if_exists(call, at)? else { return Ok(None) };
        if namespaces.are_the_same()? {
            request::warn_of_own_netns(namespaces.guest.path());
            return Ok(None);
        }
        Ok(Some(namespaces))
    }

    fn are_the_same(&self) -> Result<bool> {
        Ok(self.guest.same_as(&self.host.netns)?)
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
