//! What a plugin is, and what it is given: a call about a network, and mostly one attachment to it.

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::error::{Code, Error, Result};
use crate::ip::Cidr;
use crate::json::{self, Raw};
use crate::name::{ContainerId, IfName, NetworkName};
use crate::netlink::Netlink;
use crate::netns::Netns;
use crate::request::Head;
use crate::result::AddResult;
use crate::version::Version;

/// The keys of GC's list. libcni 1.2.0 sent only the second.
const VALID: &str = "cni.dev/valid-attachments";
const OLD_VALID: &str = "cni.dev/attachments";

/// What to do about a fault in the configuration.
pub(crate) const REMEDY: &str = "correct the network's configuration, usually a file in /etc/cni/net.d";

/// A CNI plugin. What its methods are given has been checked; what they return is converted and printed.
pub trait Plugin: Sync {
    /// The plugin's `type`, which is the name of its file too.
    fn name(&self) -> &'static str;
    /// Does of an ADD what changes nothing, for whoever delegates to the plugin and wants to know of mistakes before he
    /// changes anything himself; `None` if the plugin has no such part.
    fn prepare<'a>(&self, _: &'a Call<'a>) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(None)
    }
    /// Returns whether the plugin works in the container's namespace. One that does not, such as an IPAM plugin, never
    /// looks at `CNI_NETNS`: the path may be gone, or lead to another namespace by now.
    fn uses_netns(&self) -> bool {
        true
    }
    /// Attaches a container's interface to the network.
    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult>;
    /// Undoes an ADD, as far as it got; succeeds if nothing is there.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()>;
    /// Undoes an ADD of this very process whose answer could not be told to whoever asked. Nothing is to be done for a
    /// plugin that others delegate to: they call its DEL when it fails.
    fn take_back(&self, _: &Call<'_>, _: &Attachment) -> Result<()> {
        Ok(())
    }
    /// Returns the addresses that are leased to an attachment, for a plugin that delegates to this one and has to know
    /// whose an interface is; `None` if the plugin cannot tell.
    fn leased_to(&self, _: &Call<'_>, _: &Attachment) -> Result<Option<Vec<IpAddr>>> {
        Ok(None)
    }
    /// Returns whether an attachment of any network may hold an address of `subnet`; `None` if the plugin does not know.
    /// Asked of the plugin that manages addresses, before a gateway's address is removed.
    fn uses(&self, _: &Call<'_>, _subnet: Cidr) -> Result<Option<bool>> {
        Ok(None)
    }
    /// Compares what is there with what ADD made.
    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()>;
    /// Removes what belongs to no attachment in [`Call::valid_attachments`].
    fn gc(&self, call: &Call<'_>) -> Result<()>;
    /// Tells whether an ADD could succeed.
    fn status(&self, call: &Call<'_>) -> Result<()>;
}

/// An ADD whose configuration was found good.
pub trait Prepared: fmt::Debug {
    /// The rest of it.
    fn add(&self, at: &Attachment) -> Result<AddResult>;
}

impl fmt::Debug for dyn Plugin + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One interface of one container: what ADD makes and DEL removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `CNI_CONTAINERID`
    pub container: ContainerId,
    /// `CNI_IFNAME`
    pub ifname: IfName,
    /// `CNI_NETNS` as it was given; only DEL can be without.
    pub netns: Option<PathBuf>,
}

impl Attachment {
    /// Opens the container's network namespace.
    pub fn open_netns(&self) -> Result<Netns> {
        match &self.netns {
            Some(path) => Netns::open(path),
            None => Err(Error::bug("an attachment without a namespace")),
        }
    }

    /// Opens the container's network namespace for a command that removes: `None` if it is gone. There is no path,
    /// nothing at the path, something that is not a namespace (any more), or something that cannot be opened.
    pub fn open_netns_if_there(&self) -> Result<Option<Netns>> {
        self.netns.as_deref().map_or(Ok(None), Netns::open_to_clean_up)
    }

    /// `CNI_NETNS` as text, for `sandbox` of an interface in a result.
    pub fn sandbox(&self) -> String {
        self.netns.as_ref().map_or_else(String::new, |path| path.to_string_lossy().into_owned())
    }
}

/// A network that a plugin is called for.
#[derive(Debug)]
pub struct Call<'a> {
    /// Name of the network.
    pub network: NetworkName,
    /// Version of the configuration, and of the answer.
    pub version: Version,
    /// `CNI_ARGS`
    pub args: &'a str,
    /// The directories of `CNI_PATH`.
    pub path: &'a [PathBuf],
    /// The configuration.
    pub config: &'a str,
    /// stdin, byte for byte, for a delegate.
    pub(crate) stdin: &'a [u8],
    /// The plugins in this executable.
    pub(crate) builtin: &'a [&'a dyn Plugin],
    /// What the call was checked with.
    pub(crate) home: RefCell<Option<Home>>,
}

/// The namespace that a plugin was called in, and a socket there.
#[derive(Debug)]
pub struct Home {
    /// The namespace.
    pub netns: Netns,
    /// The socket.
    pub netlink: Netlink,
}

impl Home {
    pub(crate) fn open() -> Result<Home> {
        let (netlink, netns) = Netlink::open_with_netns()?;
        Ok(Home { netns, netlink })
    }
}

impl<'a> Call<'a> {
    /// A call that nobody makes: for those who only want to know what a plugin reads out of a configuration.
    pub fn about(config: &'a str) -> Result<Call<'a>> {
        let head = Head::parse(config)?;
        Ok(Call {
            network: head.network()?,
            version: head.version("ADD", Version::V0_1_0)?,
            args: "",
            path: &[],
            config,
            stdin: config.as_bytes(),
            builtin: &[],
            home: RefCell::default(),
        })
    }

    /// Where the plugin was called: what the call was checked with, and after that a new one.
    pub fn home(&self) -> Result<Home> {
        self.home.take().map_or_else(Home::open, Ok)
    }

    /// The configuration as the plugin's own type.
    pub fn parse<T: Deserialize<'a>>(&self) -> Result<T> {
        json::parse(self.config).map_err(|fault| Error::from(fault).details(REMEDY))
    }

    /// `prevResult` of the configuration.
    pub fn previous(&self) -> Result<Option<AddResult>> {
        let Previous { prev_result } = self.parse()?;
        prev_result.map(|raw| AddResult::read_previous(raw, self.version)).transpose()
    }

    /// The attachments that a GC must keep. Without a list nothing is known to be stale, which is an error: an empty
    /// list means that everything is.
    pub fn valid_attachments(&self) -> Result<Vec<ValidAttachment>> {
        let lists: Lists = self.parse()?;
        if let Some(valid) = lists.valid.or(lists.old) {
            return Ok(valid);
        }
        // libcni sends an empty list as `null`.
        if json::has(self.config, VALID)? || json::has(self.config, OLD_VALID)? {
            return Ok(Vec::new());
        }
        let error = Error::new(Code::CONFIG, "GC without a list of valid attachments");
        Err(error.details("the configuration needs \"cni.dev/valid-attachments\"; an empty list removes everything"))
    }
}

/// What ADD answered, in the configurations of CHECK and DEL.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Previous<'a> {
    #[serde(borrow)]
    prev_result: Option<Raw<'a>>,
}

/// The lists of a GC's configuration.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Lists {
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<ValidAttachment>>,
    #[serde(rename = "cni.dev/attachments")]
    old: Option<Vec<ValidAttachment>>,
}

/// An attachment that a runtime says is alive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
pub struct ValidAttachment {
    /// The container's id.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface in the container.
    pub ifname: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Head;
    use crate::testing::{document, keys};

    #[test]
    fn the_keys_of_the_protocol_are_described() {
        let mut ours = keys::of::<Head<'_>>();
        ours.extend(keys::of::<Previous<'_>>());
        ours.extend(keys::of::<Lists>());
        document::describes("Every network", &ours);
    }
}
