//! Whose an object on this host is. Objects of the reference, and those that are shared, do not say so themselves:
//! leases, the aliases of links and the previous result prove it.

use std::cell::OnceCell;
use std::net::IpAddr;

use linux::log::debug;
use linux::netlink::Netlink;

use crate::error::Result;
use crate::key::{AliasOwner, AttachmentKey, network_mark};
use crate::lease::{self, NetworkLease};
use crate::plugin::Call;

/// Decides whether objects belong to an owner. The first row with an entry for the kind of trace decides; without any,
/// the owner is unknown.
///
/// | evidence | [`Alias`] | [`Address`] | [`OnNetwork`] | [`OfContainer`] |
/// |---|---|---|---|---|
/// | Its address is leased to the owner. | | ours (1) | ours | ours |
/// | It is leased to another interface of the container on the network. | | others' | others' | others' |
/// | It is leased to the container on another network. | | others' | | others' |
/// | It is leased to another container. | | others' | | |
/// | The alias of its link names the owner. | ours | | ours | |
/// | The alias names another interface of the container on the network. | others' | | others' | |
/// | The alias names another attachment. | others' | | | |
/// | The alias is cut, and not that of the owner. | others' (2) | | | |
/// | The link that it names does not exist. | | | ours (3) | |
/// | It names no link, and the container has leases of its family, but not of its address. | | | ours (3) | |
/// | The previous result has addresses, and its address is one of them, or not. | | | | ours, others' |
/// | The container has leases only of the network, or also of others. | | | | ours, others' |
///
/// 1. Unless another network has leased it to another attachment: then it is others'.
/// 2. For an owner that is not known in full, it is possible if the alias names the network, and unknown otherwise.
/// 3. The container had the address earlier.
///
/// [`Alias`]: Trace::Alias
/// [`Address`]: Trace::Address
/// [`OnNetwork`]: Trace::OnNetwork
/// [`OfContainer`]: Trace::OfContainer
#[derive(Debug)]
pub struct Ownership<'a> {
    owner: KnownOwner<'a>,
    /// The addresses in the previous result; empty if unknown.
    ips: &'a [IpAddr],
    /// The leases of the container in all networks, read once: it may have many rules.
    leases: OnceCell<Vec<NetworkLease>>,
}

/// The owner of objects, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownOwner<'a> {
    /// An attachment.
    Attachment(AttachmentKey<'a>),
    /// The attachment with this [mark](AttachmentKey::mark).
    Mark(&'a str),
    /// A container on a network, with any interface.
    OnNetwork {
        /// The network.
        network: &'a str,
        /// The container.
        container: &'a str,
    },
    /// A container on an unknown network.
    Container(&'a str),
}

/// What an object on this host shows about its owner.
#[derive(Clone, Copy, Debug)]
pub enum Trace<'a> {
    /// The alias of a link.
    Alias(&'a str),
    /// The address that an object is for, which says nothing else about its owner.
    Address(IpAddr),
    /// A rule that names the network and the container of the attachment, but not the interface.
    OnNetwork {
        /// The address that the rule is for.
        ip: IpAddr,
        /// The link that the rule names.
        link: &'a NamedLink,
    },
    /// A rule for this address that names the container of the attachment, but not the network.
    OfContainer(IpAddr),
}

/// The link on this host that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedLink {
    /// The rule names none.
    None,
    /// The link does not exist.
    Gone,
    /// The link exists, and has this alias.
    Alias(String),
}

impl NamedLink {
    /// Looks for a link. The name is empty if the rule does not have one.
    pub fn find(host: &mut Netlink, name: &str) -> Result<NamedLink> {
        Ok(match name {
            "" => NamedLink::None,
            name => host.link(name)?.map_or(NamedLink::Gone, |link| NamedLink::Alias(link.alias)),
        })
    }
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It belongs to the owner.
    Ours(Reason),
    /// It may belong to the owner.
    Possible(Reason),
    /// It belongs to another attachment.
    Others(Reason),
    /// There is no evidence.
    Unknown,
}

/// The evidence that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A lease of the address.
    Lease,
    /// An alias that names an attachment.
    Alias,
    /// An alias that is cut, because it would be too long for the kernel.
    CutAlias,
    /// The link that the object names does not exist.
    NoLink,
    /// The leases of the container: none of this address, or none of another network.
    OtherLeases,
    /// The previous result.
    PrevResult,
}

impl Judgement {
    fn new(is_ours: bool, reason: Reason) -> Judgement {
        if is_ours { Judgement::Ours(reason) } else { Judgement::Others(reason) }
    }

    /// Returns whether the object provably belongs to the owner.
    pub fn is_ours(self) -> bool {
        matches!(self, Judgement::Ours(_))
    }

    /// Returns whether the object provably belongs to another attachment.
    pub fn is_others(self) -> bool {
        matches!(self, Judgement::Others(_))
    }
}

impl<'a> From<AttachmentKey<'a>> for KnownOwner<'a> {
    fn from(key: AttachmentKey<'a>) -> KnownOwner<'a> {
        KnownOwner::Attachment(key)
    }
}

impl KnownOwner<'_> {
    /// Returns whether this is an attachment; `ifname` is `None` if its interface is unknown.
    fn is(&self, network: &str, container: &str, ifname: Option<&str>) -> bool {
        match *self {
            KnownOwner::Attachment(key) => {
                key.network == network && key.container == container && ifname.is_none_or(|ifname| ifname == key.ifname)
            }
            KnownOwner::Mark(mark) => {
                AttachmentKey { network, container, ifname: ifname.unwrap_or_default() }.mark() == mark
            }
            KnownOwner::OnNetwork { network: own, container: id } => own == network && id == container,
            KnownOwner::Container(id) => id == container,
        }
    }

    /// Returns whether a lease belongs to the owner. One without an interface belongs to all of the container.
    fn has(&self, lease: &NetworkLease) -> bool {
        self.is(&lease.network, &lease.container, lease.ifname.as_deref())
    }

    /// Returns whether the owner may be attached to a network.
    fn may_be_on(&self, network: &str) -> bool {
        match *self {
            KnownOwner::Attachment(AttachmentKey { network: own, .. }) | KnownOwner::OnNetwork { network: own, .. } => {
                own == network
            }
            KnownOwner::Mark(mark) => mark.starts_with(&network_mark(network)),
            KnownOwner::Container(_) => true,
        }
    }
}

impl<'a> Ownership<'a> {
    /// Returns the ownership of an owner without a previous result.
    pub fn new(owner: impl Into<KnownOwner<'a>>) -> Ownership<'a> {
        Ownership { owner: owner.into(), ips: &[], leases: OnceCell::new() }
    }

    /// Adds the addresses of the previous result; none if they are unknown.
    #[must_use]
    pub fn with_addresses(self, ips: &'a [IpAddr]) -> Ownership<'a> {
        Ownership { ips, ..self }
    }

    /// Returns whose the object with this trace is, and why: see the table of [`Ownership`].
    pub fn judge(&self, trace: Trace<'_>) -> Judgement {
        let judgement = match (trace, self.owner) {
            // Not logged: a host may have thousands of links.
            (Trace::Alias(alias), _) => return self.judge_alias(alias),
            (Trace::Address(ip), _) => self.judge_address(ip),
            (Trace::OnNetwork { ip, link }, KnownOwner::Attachment(key)) => judge_on_network(key, ip, link),
            (Trace::OfContainer(ip), KnownOwner::Attachment(key)) => self.judge_of_container(key, ip),
            (Trace::OnNetwork { .. } | Trace::OfContainer(_), _) => Judgement::Unknown,
        };
        debug!("{trace:?} of {:?}: {judgement:?}", self.owner);
        judgement
    }

    fn judge_alias(&self, alias: &str) -> Judgement {
        let Some(found) = AliasOwner::parse(alias) else { return Judgement::Unknown };
        match (&found.attachment, self.owner) {
            (Some((container, ifname)), owner) => {
                Judgement::new(owner.is(&found.network, container, Some(ifname)), Reason::Alias)
            }
            (None, KnownOwner::Attachment(key)) => {
                Judgement::new(key.aliases().iter().any(|own| own == alias), Reason::CutAlias)
            }
            (None, owner) if owner.may_be_on(&found.network) => Judgement::Possible(Reason::CutAlias),
            (None, _) => Judgement::Unknown,
        }
    }

    fn judge_address(&self, ip: IpAddr) -> Judgement {
        let mut leases = lease::of_address(ip).peekable();
        match leases.peek() {
            Some(_) => Judgement::new(leases.all(|lease| self.owner.has(&lease)), Reason::Lease),
            None => Judgement::Unknown,
        }
    }

    fn judge_of_container(&self, key: AttachmentKey<'_>, ip: IpAddr) -> Judgement {
        let leases = self.leases.get_or_init(|| lease::of_container(key.container));
        let mut of_address = leases.iter().filter(|lease| lease.ip == ip).peekable();
        match of_address.peek() {
            Some(_) => Judgement::new(of_address.any(|lease| self.owner.has(lease)), Reason::Lease),
            None if self.ips.is_empty() => {
                Judgement::new(leases.iter().all(|lease| lease.network == key.network), Reason::OtherLeases)
            }
            None => Judgement::new(self.ips.contains(&ip), Reason::PrevResult),
        }
    }

    /// Returns whether the owner has a lease; `None` if that is unknown.
    pub fn has_lease(&self) -> Option<bool> {
        let has = |leases: Vec<NetworkLease>| leases.iter().any(|lease| self.owner.has(lease));
        match self.owner {
            KnownOwner::Attachment(AttachmentKey { network, .. }) | KnownOwner::OnNetwork { network, .. } => {
                lease::read_all(&lease::directories_of(network)).map(has)
            }
            // The network may have another data directory. Leases that cannot be read may be the owner's.
            KnownOwner::Mark(_) => {
                let dirs = lease::directories_if(|network| self.owner.may_be_on(network));
                (!dirs.is_empty() && lease::read_all(&dirs).is_none_or(has)).then_some(true)
            }
            KnownOwner::Container(id) => (!lease::of_container(id).is_empty()).then_some(true),
        }
    }

    /// Returns the addresses that are leased to the owner, an attachment of this call, which may have the `dataDir` of
    /// its network.
    pub fn leased_addresses(&self, call: &Call<'_>) -> Vec<IpAddr> {
        let leases = lease::of_call(call);
        leases.iter().filter(|lease| self.owner.has(lease)).map(|lease| lease.ip).collect()
    }
}

fn judge_on_network(key: AttachmentKey<'_>, ip: IpAddr, link: &NamedLink) -> Judgement {
    let mut leases = lease::in_network(key.network);
    // Another IPAM plugin may be responsible for the other family.
    leases.retain(|lease| lease.container == key.container && lease.ip.is_ipv4() == ip.is_ipv4());
    let lease = leases.iter().find(|lease| lease.ip == ip);
    if let Some(ifname) = lease.and_then(|lease| lease.ifname.as_deref()) {
        return Judgement::new(ifname == key.ifname, Reason::Lease);
    }
    match link {
        NamedLink::Alias(alias) if key.is_sibling_alias(alias) => Judgement::Others(Reason::Alias),
        NamedLink::Alias(alias) if key.aliases().contains(alias) => Judgement::Ours(Reason::Alias),
        NamedLink::Gone => Judgement::Ours(Reason::NoLink),
        NamedLink::None if lease.is_none() && !leases.is_empty() => Judgement::Ours(Reason::OtherLeases),
        NamedLink::Alias(_) | NamedLink::None => Judgement::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: AttachmentKey<'_> = AttachmentKey { network: "net1", container: "c1", ifname: "eth0" };

    #[test]
    fn a_lease_belongs_to_one_attachment() {
        let is_of = |network: &str, container: &str, ifname: Option<&str>| {
            let (network, container) = (network.to_owned(), container.to_owned());
            let lease =
                NetworkLease { network, ip: [10, 1, 0, 2].into(), container, ifname: ifname.map(str::to_owned) };
            KnownOwner::from(KEY).has(&lease)
        };
        assert!(is_of("net1", "c1", Some("eth0")) && is_of("net1", "c1", None));
        assert!(!is_of("net1", "c1", Some("eth1")) && !is_of("net1", "c2", Some("eth0")));
        assert!(!is_of("net2", "c1", Some("eth0")));
    }

    #[test]
    fn an_alias_proves_whose_a_link_is() {
        use Judgement::{Others, Ours, Possible, Unknown};
        let (alias, cut) = (Reason::Alias, Reason::CutAlias);
        let long = "c".repeat(300);
        let long = AttachmentKey { container: &long, ..KEY };
        let (mark, long_mark) = (KEY.mark(), long.mark());
        // For the alias of the same attachment, another interface, another container, another network, a cut one of
        // this network, and a cut one of another network.
        for (owner, want) in [
            (KEY.into(), [Ours(alias), Others(alias), Others(alias), Others(alias), Others(cut), Others(cut)]),
            (long.into(), [Others(alias), Others(alias), Others(alias), Others(alias), Ours(cut), Others(cut)]),
            (
                KnownOwner::Mark(&mark),
                [Ours(alias), Others(alias), Others(alias), Others(alias), Possible(cut), Unknown],
            ),
            (
                KnownOwner::Mark(&long_mark),
                [Others(alias), Others(alias), Others(alias), Others(alias), Possible(cut), Unknown],
            ),
            (
                KnownOwner::OnNetwork { network: "net1", container: "c1" },
                [Ours(alias), Ours(alias), Others(alias), Others(alias), Possible(cut), Unknown],
            ),
            (
                KnownOwner::Container("c1"),
                [Ours(alias), Ours(alias), Others(alias), Ours(alias), Possible(cut), Possible(cut)],
            ),
        ] {
            let keys = [
                KEY,
                AttachmentKey { ifname: "eth1", ..KEY },
                AttachmentKey { container: "c2", ..KEY },
                AttachmentKey { network: "net2", ..KEY },
                long,
                AttachmentKey { network: "net2", ..long },
            ];
            let ownership = Ownership::new(owner);
            for (key, want) in keys.iter().zip(want) {
                for alias in key.aliases() {
                    assert_eq!(ownership.judge(Trace::Alias(&alias)), want, "{owner:?} {alias}");
                }
            }
            for other in ["", "uplink to rack 4", "cni0"] {
                assert_eq!(ownership.judge(Trace::Alias(other)), Unknown, "{owner:?} {other}");
            }
        }
    }
}
