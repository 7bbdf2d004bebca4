//! What an attachment publishes, from its configuration and its previous result: ADD creates it, CHECK compares it,
//! DEL removes it.

use std::net::IpAddr;

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Error};
use linux::ip::Cidr;
use linux::netlink::LinkIndex;

use crate::config::{Config, Masquerade};
use crate::entry::{Entry, EntryKey};
use crate::mapping::{Mapping, container_addresses, mappings};
use crate::table::{self, Scope};

/// The remedy if something of an attached container is missing.
pub(crate) const REPAIR_HINT: &str =
    "the rules were changed, or made by another implementation; run `cnitool repair`, or repeat the ADD";

/// The published ports of an attachment.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    pub(crate) owner: AttachmentKey<'a>,
    pub(crate) config: &'a Config,
    /// The addresses of the container with their mappings, one for each family.
    pub(crate) addresses: Vec<(Cidr, Vec<Mapping>)>,
    /// An address of the container without mappings: all ports are published at addresses of the other family.
    pub(crate) unpublished: Option<Cidr>,
    /// The link of the attachment on this host, if known.
    pub(crate) port: Option<&'a str>,
    /// The result of the plugins before, which names the links that lead to the container.
    pub(crate) result: &'a AddResult,
}

impl<'a> Publication<'a> {
    /// Returns what an ADD with this previous result publishes.
    pub(crate) fn new(
        call: &'a Call<'_>,
        at: &'a Attachment,
        config: &'a Config,
        result: &'a AddResult,
    ) -> Publication<'a> {
        let addresses = container_addresses(result, at).into_iter();
        let addresses = addresses.map(|address| (address, mappings(&config.ports, address.ip())));
        let (addresses, unpublished): (Vec<_>, Vec<_>) = addresses.partition(|(_, mappings)| !mappings.is_empty());
        Publication {
            owner: AttachmentKey::new(call, at),
            config,
            addresses,
            unpublished: unpublished.first().map(|(address, _)| *address),
            port: result.host_link(at),
            result,
        }
    }

    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        self.addresses.iter().flat_map(|(_, mappings)| mappings.clone()).collect()
    }

    /// Returns the container's address if its ports are reachable from this host's loopback addresses, which need
    /// masquerade.
    pub(crate) fn loopback_target(&self) -> Option<Cidr> {
        let reachable =
            |(_, mappings): &&(Cidr, Vec<Mapping>)| mappings.iter().any(Mapping::is_reachable_from_loopback);
        let found = self.addresses.iter().find(reachable)?;
        (self.config.masquerade != Masquerade::Never).then_some(found.0)
    }

    /// Returns the scope of each address.
    pub(crate) fn scopes(&self) -> Vec<Scope> {
        self.addresses.iter().map(|(ip, _)| Scope::new(ip.ip(), self.config.conditions(ip.ip()))).collect()
    }

    /// Returns the chains that the entries need beside those of all attachments: one that counts the attachments of the
    /// link through which loopback addresses reach the ports, and those of scopes with conditions.
    pub(crate) fn chains(scopes: &[Scope], link: Option<LinkIndex>) -> Vec<String> {
        [table::attached(link)].into_iter().chain(scopes.iter().filter_map(Scope::chain).map(str::to_owned)).collect()
    }

    /// Returns the entries of the attachment in the table, without its inventory. CHECK compares them in this order.
    pub(crate) fn entries(&self, scopes: &[Scope]) -> Vec<Entry> {
        let comment = self.owner.comment();
        let mut entries = Vec::new();
        for ((address, mappings), scope) in self.addresses.iter().zip(scopes) {
            entries.extend(mappings.iter().map(|mapping| Entry::mapping(scope, mapping, &comment)));
            entries.extend(Entry::masquerade(scope, *address, self.config.masquerade, &comment));
        }
        entries
    }

    /// Returns the keys of these entries.
    pub(crate) fn keys(&self) -> Vec<EntryKey> {
        self.entries(&self.scopes()).iter().map(Entry::key).collect()
    }

    /// Returns the removal of what was published, by an ADD that fails or replaces it. `ips` are the addresses of the
    /// attachment.
    pub(crate) fn removal<'b>(&'b self, ips: &'b [IpAddr]) -> PortRemoval<'b> {
        PortRemoval { owner: self.owner, ips, link: self.port, is_del: false }
    }

    /// Returns the container's addresses to which ports lead.
    pub(crate) fn ips(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(|(address, _)| address.ip()).collect()
    }
}

/// The attachment whose published ports are removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortRemoval<'a> {
    pub(crate) owner: AttachmentKey<'a>,
    /// The addresses of the attachment; empty if unknown.
    pub(crate) ips: &'a [IpAddr],
    /// The link of the attachment on this host, if known.
    pub(crate) link: Option<&'a str>,
    /// Whether the attachment ends, so that rules of unknown interfaces must not stay. An ADD leaves them alone.
    pub(crate) is_del: bool,
}

impl<'a> PortRemoval<'a> {
    /// Returns the removal of all attachments of a container to a network.
    pub(crate) fn of_container(network: &'a str, container: &'a str) -> PortRemoval<'a> {
        let owner = AttachmentKey { network, container, ifname: "" };
        PortRemoval { owner, ips: &[], link: None, is_del: true }
    }
}

/// Returns the error for a difference between what is published and what should be.
pub(crate) fn difference(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}
