//! What a plugin reports to a tool such as `cnitool` about this host: what a configuration requests, what exists, what
//! is wrong, and what can be repaired. A tool iterates over all plugins, without knowing them by name.
//!
//! The traits are separate from [`Plugin`], so that the plugin programs do not contain this code.

mod command;
mod finding;
mod leases;

use std::fmt;
use std::net::IpAddr;

use linux::ip::Cidr;
use linux::netlink::Address;

use crate::error::{Code, Error, Result};
use crate::keep::Keep;
use crate::key::{self, AttachmentKey};
use crate::namespaces::Namespaces;
use crate::ownership::{Judgement, Ownership, Reason, Trace};
use crate::plugin::{Attachment, Call, Plugin};

pub use crate::config::{FIX_HINT, common_shape};
pub use crate::shape::Shape;
pub use command::{Command, CommandLine, shell_word};
pub use finding::{Finding, Fix, Id, Level, Subject};
pub use leases::{Grant, Lease, LeaseHolder, LeaseStore, LockHolder, collect_leases};

/// A plugin that can be inspected. The defaults are for a plugin that leaves nothing on the host.
pub trait Inspect: Plugin {
    /// Returns the keys that the plugin itself reads, without those that all plugins read ([`common_shape`]).
    fn shape(&self) -> Shape {
        Shape::empty()
    }
    /// Returns the paths of keys that the plugin ignores, although the reference reads them.
    fn ignored_keys(&self) -> &'static [&'static str] {
        &[]
    }
    /// Returns whether the plugin needs the result of an earlier plugin, so that it cannot be the first in a list.
    fn is_chained(&self) -> bool {
        false
    }
    /// Parses a configuration. Returns an error for everything that an ADD would reject.
    fn settings(&self, _: &Call<'_>) -> Result<Settings> {
        Ok(Settings::default())
    }
    /// Returns the configuration of the delegate, if the plugin generates one. Delegates that get the plugin's own
    /// configuration, such as an IPAM plugin, are not included.
    fn delegate(&self, _: &Call<'_>) -> Result<Option<Generated>> {
        Ok(None)
    }
    /// Returns the leases of the plugin, if it is an IPAM plugin that keeps them on this host.
    fn lease_store(&self) -> Option<&dyn LeaseStore> {
        None
    }
    /// Returns the kinds of [`Object`] that the plugin creates.
    fn kinds(&self) -> &'static [ObjectKind] {
        &[]
    }
    /// Lists the objects of all networks on this host.
    fn objects(&self) -> Result<Vec<Object>> {
        Ok(Vec::new())
    }
    /// Removes the objects and leases of attachments that are not in `keep`, as GC does, but not those of delegates,
    /// and no links of attachments: those that have one are alive.
    fn collect(&self, _: &Call<'_>, _keep: &Keep<'_>) -> Result<()> {
        Ok(())
    }
    /// Reports what would make an ADD fail or block traffic, and what was verified. Objects whose owner is gone are not
    /// included: the tool finds them itself.
    fn findings(&self, _: &NetworkView<'_>) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
    /// Returns the error of an ADD if the addresses `have` of the gateway's link conflict with the addresses
    /// `gateways`.
    fn check_gateway_conflict(&self, _: &Call<'_>, _have: &[Address], _gateways: &[Cidr]) -> Result<()> {
        Ok(())
    }
    /// Returns whether an ADD makes this chain accept the packets of containers, even if it drops others.
    fn accepts_in(&self, _: &Call<'_>, _: ForwardChain<'_>) -> Result<bool> {
        Ok(false)
    }
    /// Returns why CHECK of the reference fails with this configuration whatever it finds; `None` if it does not.
    fn flaw_of_reference_check(&self, _: &Call<'_>) -> Result<Option<&'static str>> {
        Ok(None)
    }
    /// Returns whether [`repair`](Inspect::repair) has something to restore. `call` is as for CHECK.
    fn needs_repair(&self, _: &Call<'_>, _: &Attachment) -> Result<bool> {
        Ok(false)
    }
    /// Restores objects of an attachment that are missing. `call` is as for CHECK, with the result of ADD. Returns what
    /// was missing, as a noun in the plural; `None` if nothing was.
    fn repair(&self, _: &Call<'_>, _: &Attachment) -> Result<Option<&'static str>> {
        Ok(None)
    }
}

impl fmt::Debug for dyn Inspect + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The configuration that a plugin generates for its delegate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Name of the delegate.
    pub kind: String,
    /// Its configuration.
    pub config: String,
    /// Whether an ADD would generate the same. If not, what is missing in it is not a mistake of the user.
    pub is_complete: bool,
}

/// What the configuration of a plugin requests, as far as it is visible on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The bridge to which containers are attached.
    pub bridge: Option<Bridge>,
    /// The link of a container, if the host has no other end of it.
    pub link: Option<ContainerLink>,
    /// The ranges of each range set. Empty if only the runtime knows them.
    pub ranges: Vec<Vec<Range>>,
    /// Whether an ADD uses nf_tables.
    pub nftables: Usage,
}

/// A chain for packets that are not addressed to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardChain<'a> {
    /// The chain FORWARD of iptables in nf_tables.
    Iptables,
    /// The chain FORWARD of the legacy table `filter`.
    Legacy,
    /// A chain in another table of nf_tables, of this name.
    InTable(&'a str),
}

/// Whether an ADD uses a feature of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// Not at all.
    #[default]
    No,
    /// If the kernel has it.
    Preferred,
    /// There is no alternative.
    Required,
}

/// The bridge of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Name of the bridge.
    pub name: String,
    /// Name of the link that should have the gateway address, if any: the bridge, or the interface of a VLAN.
    pub gateway: Option<String>,
    /// MTU of the veth pair; `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// Whether its ports have hairpin mode.
    pub hairpin: bool,
    /// Whether its ports are isolated.
    pub isolated: bool,
}

/// A link that a plugin gives to a container, and of which the host has no other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLink {
    /// What it is, such as `macvlan, mode bridge`.
    pub what: String,
    /// The link on top of which it is, or that it is itself on the host; `None` if it needs no link of the host.
    pub master: Option<Master>,
}

/// The link on top of which a plugin creates those of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Its name; `None` for the link of the default route.
    pub name: Option<String>,
    /// Whether it is in the containers, and not on the host.
    pub in_container: bool,
}

impl fmt::Display for ContainerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let Some(Master { name, in_container }) = &self.master else { return Ok(()) };
        let place = if *in_container { " in the container" } else { "" };
        match name {
            Some(name) => write!(f, " on {name}{place}"),
            None => write!(f, " on the link of the default route{place}"),
        }
    }
}

/// A range of addresses from which a network leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The subnet that the range is a part of.
    pub subnet: Cidr,
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
    /// The gateway.
    pub gateway: IpAddr,
    /// The number of addresses that can be leased.
    pub size: u128,
    /// Whether the range covers its whole subnet.
    pub is_whole: bool,
}

impl Range {
    /// Returns whether the range contains this address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        // All IPv4 addresses are less than all IPv6 addresses.
        (self.first..=self.last).contains(&ip)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A kind of objects.
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectKind {
    /// The name of the kind, and of the check of `doctor`.
    pub name: &'static str,
    /// What one object is called in a sentence.
    pub noun: &'static str,
    /// The flag with which `show` marks a port that has such an object.
    pub flag: &'static str,
    /// The key in JSON.
    pub json: &'static str,
    /// Whether `show` lists the objects. Otherwise it only sets the flag.
    pub is_listed: bool,
}

/// Something that a plugin has created on this host for an attachment, such as a firewall rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: &'static ObjectKind,
    /// What it belongs to.
    pub owner: Owner,
    /// What holds it, such as `nftables`.
    pub backend: &'static str,
    /// The container's address that it is for.
    pub address: Option<IpAddr>,
    /// What distinguishes it from other objects of its kind, such as `10.1.0.2` or `tcp 0.0.0.0:8080`.
    pub name: String,
    /// What it does, such as `tcp 0.0.0.0:8080 -> 10.1.0.2:80`. Empty if the name says everything.
    pub detail: String,
    /// What it does, as members of a JSON object.
    pub properties: Vec<(&'static str, Property)>,
    /// The text by which the plugin recognises it.
    pub comment: String,
    /// The part of the comment that names the owner for a reader.
    pub about: String,
}

/// A value in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// An address; `null` if it is unknown.
    Address(Option<IpAddr>),
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// A value before and after ADD.
    Change(Box<[Property; 2]>),
    /// Whether something is so.
    Boolean(bool),
}

/// The owner of an object, as far as the object itself identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The attachment with this mark: one of [`Marks`].
    Marked(String),
    /// The host's link with this name: the attachment of this port, or all attachments on this bridge.
    Port(String),
    /// A container with this ID, on any network. GC cannot remove such an object, because it is called for one network.
    /// DEL removes it if the previous result has the object's address.
    Container(String),
}

impl Object {
    /// Returns whether the object belongs to a network with these [`network_marks`].
    pub fn has_mark_of(&self, network: &[String]) -> bool {
        matches!(&self.owner, Owner::Marked(mark) if network.iter().any(|prefix| mark.starts_with(prefix)))
    }
}

/// What objects of an attachment are recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The mark in comments of nftables, and that of iptables, which all attachments of a container to the network
    /// share.
    marks: [String; 2],
    container: String,
}

impl Marks {
    /// Returns the marks of an attachment.
    pub fn new(attachment: AttachmentKey<'_>) -> Marks {
        Marks { marks: [attachment.mark(), attachment.iptables_comment()], container: attachment.container.to_owned() }
    }

    /// Returns whether the object belongs to the attachment, as far as its owner is known: an object that names only
    /// the container may belong to any of its attachments.
    pub fn match_object(&self, object: &Object) -> bool {
        match &object.owner {
            Owner::Marked(mark) => self.marks.contains(mark),
            Owner::Container(id) => *id == self.container,
            Owner::Port(_) => false,
        }
    }
}

/// Returns the prefixes of the marks of all attachments to a network.
pub fn network_marks(network: &str) -> [String; 2] {
    [key::network_mark(network), key::iptables_prefix(network)]
}

/// A network with its live attachments, for [`Inspect::findings`].
#[derive(Clone, Copy)]
pub struct NetworkView<'a> {
    /// The configuration of the plugin in this network.
    pub call: &'a Call<'a>,
    /// The live attachments.
    pub alive: &'a [LiveAttachment],
    /// The objects of the network; `None` if those of the plugin could not be listed.
    pub objects: Option<&'a [&'a Object]>,
    /// Returns whether any container of this host may have the address.
    pub is_used: &'a dyn Fn(IpAddr) -> bool,
}

impl fmt::Debug for NetworkView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkView")
            .field("alive", &self.alive)
            .field("objects", &self.objects)
            .finish_non_exhaustive()
    }
}

/// A live attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveAttachment {
    /// The attachment, for findings about it.
    pub subject: Subject,
    /// The marks of its objects.
    pub marks: Marks,
    /// Whether the host veth has its alias.
    pub has_port: bool,
    /// Its addresses: those of its ADD if the runtime has recorded it, otherwise the leased ones. Empty if they are
    /// unknown.
    pub addresses: Vec<IpAddr>,
    /// Its ADD; `None` if the runtime has not recorded it.
    pub added: Option<Added>,
}

/// Returns findings about live attachments that lack something, which `describe` describes: those whose ADD the runtime
/// has recorded, for which [`Inspect::repair`] restores it, as `hint` says, and the others.
pub fn lacking(
    affected: &[&LiveAttachment],
    hint: &str,
    describe: impl Fn(&[&LiveAttachment]) -> Finding,
) -> Vec<Finding> {
    let (recorded, others): (Vec<_>, Vec<_>) = affected.iter().copied().partition(|at| at.added.is_some());
    let finding = |of: &[&LiveAttachment]| describe(of).about(of.iter().map(|at| at.subject.clone()));
    let recorded = (!recorded.is_empty()).then(|| finding(&recorded).remedy(hint).fix(Fix::Repair));
    let others = (!others.is_empty()).then(|| finding(&others).remedy(NOT_RECORDED));
    recorded.into_iter().chain(others).collect()
}

/// The remedy for attachments that cannot be repaired.
const NOT_RECORDED: &str = "detach the containers and attach them again; they cannot be repaired, because the runtime has not \
                            recorded their adds";

/// What a runtime has recorded of an ADD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// The attachment.
    pub attachment: Attachment,
    /// The configuration of the plugin as for CHECK: with the runtime's arguments, and with the result of the ADD.
    pub config: String,
}

impl Added {
    /// Calls `function` as for CHECK.
    pub fn with_call<T>(&self, function: impl FnOnce(&Call<'_>, &Attachment) -> Result<T>) -> Result<T> {
        function(&Call::for_config(&self.config)?, &self.attachment)
    }
}

/// Returns an error unless the interface of an attachment has these addresses, and `link` is its link on this host. A
/// link that was renamed keeps its alias. Without an alias, the name decides.
pub fn require_attached(call: &Call<'_>, at: &Attachment, ips: &[IpAddr], link: Option<&str>) -> Result<()> {
    let fail = |what: String| Err(Error::new(Code::INTERNAL, what).details("attach the container again"));
    let mut namespaces = Namespaces::open(call, at)?;
    let mut guest = namespaces.open_guest(at)?;
    let interface = guest.interface()?;
    let have = guest.netlink.addresses(interface.index)?;
    if let Some(ip) = ips.iter().find(|ip| !have.iter().any(|address| address.cidr.ip() == **ip)) {
        let (ifname, sandbox) = (at.ifname.as_str(), at.sandbox());
        return fail(format!("interface {ifname:?} in {sandbox:?} does not have the address {ip}"));
    }
    let Some(link) = link else { return Ok(()) };
    let host = &mut namespaces.host.netlink;
    let ownership = Ownership::new(AttachmentKey::new(call, at));
    let judge = |alias: &str| ownership.judge(Trace::Alias(alias));
    let is_found = host.link(link)?.is_some_and(|found| judge(&found.alias) != Judgement::Others(Reason::Alias));
    if !is_found && host.find_veths_by_alias(&|alias| judge(alias).is_ours())?.is_empty() {
        return fail(format!("link {link:?} of the container does not exist, or belongs to another container"));
    }
    Ok(())
}
