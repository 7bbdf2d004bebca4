//! For tools: reads configurations, lists published ports, reports problems, and publishes ports again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cni::inspect::{
    Finding, Fix, Id, Inspect, Level, NetworkView, Object, ObjectKind, Owner, Property, Settings, Shape, Subject,
    Usage, require_attached,
};
use cni::key::mark_in;
use cni::{AddResult, Attachment, AttachmentKey, Call, Context, Keep, Result};
use linux::iptables::{FAMILIES, Tools};
use linux::log::debug;
use linux::netlink::nft::Nftables;
use linux::netlink::{LinkIndex, Netlink};

use crate::config::{self, Backend, Config};
use crate::entry::{Entry, Listing};
use crate::iptables::NAT;
use crate::localnet::ContainerLink;
use crate::mapping::{Key, Mapping};
use crate::publication::{Publication, REPAIR_HINT};
use crate::published::{Form, PortOwner, PublishedPort};
use crate::table::{Frame, Scope};
use crate::{Portmap, check, localnet, node_ports, other_forms, removal};

/// The kinds of objects that the plugin creates.
static KINDS: [ObjectKind; 1] =
    [ObjectKind { name: "portmap", noun: "published port", flag: "published", json: "portMappings", is_listed: true }];

/// The chain and the target of the rule that leads packets to the chains of iptables.
const PREROUTING: &str = "PREROUTING";
const DNAT: &str = "CNI-HOSTPORT-DNAT";

impl Inspect for Portmap {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn is_chained(&self) -> bool {
        true
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let nftables = match Config::parse(call)?.backend {
            Backend::Auto => Usage::Preferred,
            Backend::Nftables => Usage::Required,
            Backend::Iptables => Usage::No,
        };
        Ok(Settings { nftables, ..Settings::default() })
    }

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    fn objects(&self) -> Result<Vec<Object>> {
        Ok(list(&mut Nftables::open()?)?.into_iter().map(object).collect())
    }

    fn collect(&self, _: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        removal::collect(keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        Config::parse(network.call)?;
        if network.objects.is_none() {
            return Ok(Vec::new());
        }
        Checker { network, nft: Nftables::open()?, host: Netlink::open()? }.run()
    }

    fn needs_repair(&self, call: &Call<'_>, at: &Attachment) -> Result<bool> {
        let config = Config::parse(call)?;
        let Some(result) = call.prev_result()? else { return Ok(false) };
        Ok(is_incomplete(&Publication::new(call, at, &config, &result))
            || !exposed_links(&mut Netlink::open()?, &result, at)?.is_empty())
    }

    /// Publishes the ports of an attachment again if CHECK finds a difference.
    ///
    /// The container must still have its interface with the addresses of the result of ADD, so that no port leads to an
    /// address that now belongs to another container.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        if restore(call, at).context(|| "publish the ports again")? {
            return Ok(Some("published ports"));
        }
        let Some(result) = call.prev_result()? else { return Ok(None) };
        let mut host = Netlink::open()?;
        let mut is_protected = false;
        for link in exposed_links(&mut host, &result, at)? {
            is_protected |= link.protect(&mut host).context(|| "protect services on 127.0.0.1")?;
        }
        Ok(is_protected.then_some("filters that protect services on 127.0.0.1"))
    }
}

/// Lists the published ports of all networks, in all forms.
fn list(nft: &mut Nftables) -> Result<Vec<PublishedPort>> {
    let listing = Listing::read(nft)?;
    let ports: Vec<_> = listing.ports().iter().copied().collect();
    let port_of = |mark: Option<&str>| {
        let place = ports.binary_search_by(|(known, _)| Some(*known).cmp(&mark)).ok()?;
        ports.get(place).map(|(_, port)| (*port).to_owned())
    };
    let published = |entry: &Entry| {
        Some(PublishedPort {
            mapping: entry.read_mapping()?,
            owner: PortOwner::Attachment(entry.comment().to_owned()),
            port: port_of(mark_in(entry.comment())),
            form: Form::Maps,
        })
    };
    let mut all: Vec<PublishedPort> = listing.entries.iter().filter_map(published).collect();
    all.extend(other_forms::list(nft)?);
    all.sort_by_key(|published| (published.mapping.target.is_ipv6(), published.mapping.key));
    Ok(all)
}

fn object(published: PublishedPort) -> Object {
    let PublishedPort { mapping: Mapping { key, target }, owner, form, .. } = published;
    let host = host_address(&key, target.ip());
    let name = port_name(&key, target.ip());
    let number = |port: u16| Property::Number(port.into());
    Object {
        kind: &KINDS[0],
        backend: match form {
            Form::Maps | Form::Rules => "nftables",
            Form::Iptables => "iptables",
        },
        address: Some(target.ip()),
        detail: format!("{name} -> {target}"),
        name,
        properties: vec![
            ("protocol", Property::Text(key.protocol.to_string())),
            ("hostIP", Property::Address(Some(host.ip()))),
            ("hostPort", number(host.port())),
            ("containerIP", Property::Address(Some(target.ip()))),
            ("containerPort", number(target.port())),
        ],
        about: about(&owner),
        comment: comment(&owner),
        owner: mark(owner),
    }
}

/// Returns the name of a published port, such as `tcp 0.0.0.0:8080`.
fn port_name(key: &Key, container: IpAddr) -> String {
    format!("{} {}", key.protocol, host_address(key, container))
}

/// Returns the host's address and port. All addresses are the unspecified one of the container's family.
fn host_address(key: &Key, container: IpAddr) -> SocketAddr {
    let all = match container {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(key.host_ip.unwrap_or(all), key.port)
}

/// Returns the owner for a reader. Begins with the name of the network, as for other plugins.
fn about(owner: &PortOwner) -> String {
    let text = owner.to_string();
    text.strip_prefix("net: ").map(str::to_owned).unwrap_or(text)
}

/// Returns the text by which the owner of a published port is found on the host.
fn comment(owner: &PortOwner) -> String {
    match owner {
        PortOwner::Attachment(comment) => comment.clone(),
        PortOwner::OnNetwork { network, container } => format!("dnat {}", on_network(network, container)),
        PortOwner::Container(container) => container.clone(),
    }
}

/// Returns the owner as tools compare it. The mark of iptables is that of the other plugins, without the first word of
/// the comment.
fn mark(owner: PortOwner) -> Owner {
    match owner {
        PortOwner::Attachment(comment) => Owner::Marked(mark_in(&comment).unwrap_or(&comment).to_owned()),
        PortOwner::OnNetwork { network, container } => Owner::Marked(on_network(&network, &container)),
        PortOwner::Container(container) => Owner::Container(container),
    }
}

fn on_network(network: &str, container: &str) -> String {
    AttachmentKey { network, container, ifname: "" }.iptables_comment()
}

/// Compares the published ports of a network with its live attachments.
struct Checker<'a> {
    network: &'a NetworkView<'a>,
    nft: Nftables,
    host: Netlink,
}

/// The published ports of the live attachments of a network.
#[derive(Default)]
struct Comparison {
    /// The attachments that should have ports.
    publishing: Vec<Subject>,
    /// Of each attachment that lacks ports, the first one.
    lacking: Vec<Mapping>,
    /// The attachments that lack ports, and these ports.
    affected: Vec<Subject>,
    /// The ports that exist.
    live: Vec<PublishedPort>,
    /// What the rules of the maps must cover for them.
    scopes: Vec<Scope>,
    /// The links that lead to live attachments.
    links: Vec<LinkIndex>,
    /// The links that lead to live attachments whose result is unknown.
    unknown_links: Vec<LinkIndex>,
}

impl Checker<'_> {
    /// Reports ports that live attachments lack, and what keeps packets from the others.
    fn run(&mut self) -> Result<Vec<Finding>> {
        let Comparison { publishing, lacking, affected, live, scopes, links, unknown_links } = self.compare()?;
        let mut findings = Vec::new();
        if let Some(first) = lacking.first() {
            let first = port_name(&first.key, first.target.ip());
            let (count, wanted) = (lacking.len(), publishing.len());
            let text = format!("{count} of {wanted} live containers lack a published port, such as {first}");
            findings.push(broken(Level::Fail, text).about(affected));
        }
        if let Some(text) = self.cut_off(&live, &scopes)? {
            let ports = live.iter().map(|published| published_port(&published.mapping));
            let finding = broken(Level::Fail, format!("no packet reaches published ports: {text}"));
            findings.push(finding.about(publishing.iter().cloned().chain(ports)));
        }
        findings.extend(self.find_node_ports(&live)?);
        findings.extend(
            self.find_exposure(&links)?.map(|finding| finding.remedy(REPAIR_HINT).fix(Fix::Repair).about(publishing)),
        );
        let others: Vec<_> = unknown_links.into_iter().filter(|link| !links.contains(link)).collect();
        findings.extend(self.find_exposure(&others)?.map(|finding| {
            finding.remedy("set route_localnet to 0, or publish a port of a container on that link again")
        }));
        if findings.is_empty() && !live.is_empty() {
            findings.push(Finding::ok(
                KINDS[0].name,
                Id("portmap-complete"),
                "live containers have their published ports",
            ));
        }
        Ok(findings)
    }

    /// Compares the published ports of this host with those that live attachments should have.
    fn compare(&mut self) -> Result<Comparison> {
        let all = list(&mut self.nft)?;
        let objects: Vec<Object> = all.iter().cloned().map(object).collect();
        let mut comparison = Comparison::default();
        for at in self.network.alive {
            let Some(added) = &at.added else {
                for container in at.addresses.iter().filter(|ip| ip.is_ipv4()) {
                    comparison.unknown_links.extend(self.host.route_to(*container)?);
                }
                let own = all.iter().zip(&objects).filter(|(_, object)| at.marks.match_object(object));
                comparison.live.extend(own.map(|(published, _)| published.clone()));
                continue;
            };
            let compared = added.with_call(|call, attachment| {
                let (config, result) = (Config::parse(call)?, call.chained_result()?);
                let publication = Publication::new(call, attachment, &config, &result);
                comparison.links.extend(localnet::links_to(&mut self.host, &result, attachment)?);
                self.compare_ports(&publication, &at.subject, &all, &mut comparison)
            });
            // The reference accepts arguments that this plugin refuses. Other attachments are compared all the same.
            if let Err(error) = compared {
                debug!("the ports of {} are unknown: {error}", added.attachment.container);
            }
        }
        Ok(comparison)
    }

    /// Compares the ports that an attachment should have with all that are published.
    fn compare_ports(
        &mut self,
        publication: &Publication<'_>,
        subject: &Subject,
        all: &[PublishedPort],
        into: &mut Comparison,
    ) -> Result<()> {
        let ips = publication.ips();
        let mut own: Vec<&PublishedPort> = Vec::new();
        for published in all {
            if published.is_of(&mut self.host, publication.owner, &ips, publication.port)? {
                own.push(published);
            }
        }
        let mappings = publication.mappings();
        into.publishing.extend((!mappings.is_empty()).then(|| subject.clone()));
        let is_own = |mapping: &Mapping| own.iter().any(|published| published.mapping == *mapping);
        // Through another network.
        let is_of_container = |mapping: &Mapping, published: &PublishedPort| {
            let Mapping { key, target } = published.mapping;
            key == mapping.key
                && target.is_ipv4() == mapping.target.is_ipv4()
                && matches!(published.owner, PortOwner::Attachment(_))
                && published.owner.is_container(publication.owner.container)
        };
        let is_missing = |mapping: &&Mapping| {
            !is_own(mapping)
                && !all.iter().any(|published| is_of_container(mapping, published) && !own.contains(&published))
        };
        let missing: Vec<&Mapping> = mappings.iter().filter(is_missing).collect();
        if let Some(first) = missing.first() {
            into.lacking.push(**first);
            into.affected.push(subject.clone());
            into.affected.extend(missing.into_iter().map(published_port));
        }
        if own.iter().any(|published| published.form == Form::Maps) {
            into.scopes.extend(publication.scopes());
        }
        into.live.extend(own.into_iter().cloned());
        Ok(())
    }

    /// Reports published ports that kube-proxy leads to services.
    fn find_node_ports(&mut self, live: &[PublishedPort]) -> Result<Option<Finding>> {
        let mappings: Vec<Mapping> = live.iter().map(|published| published.mapping).collect();
        let taken = node_ports::find(&mut self.nft, &mappings, u32::MAX)?;
        let finding = Finding::fail(
            KINDS[0].name,
            Id("portmap-node-port"),
            format!(
                "kube-proxy leads {} published ports to services, as NodePorts, before the plugin does",
                taken.len()
            ),
        );
        let remedy = "give the service another nodePort, or the pod another hostPort";
        Ok((!taken.is_empty()).then(|| finding.about(taken.iter().map(published_port)).remedy(remedy)))
    }

    /// Returns what keeps packets from the published ports of live attachments, if anything does.
    fn cut_off(&mut self, live: &[PublishedPort], scopes: &[Scope]) -> Result<Option<String>> {
        if live.iter().any(|published| published.form == Form::Maps)
            && let Some(missing) = Frame::new(scopes, false, None).missing(&mut self.nft)?
        {
            return Ok(Some(format!("{missing} does not exist")));
        }
        for tools in &FAMILIES {
            let is_in = |published: &&PublishedPort| {
                published.form == Form::Iptables && tools.includes(published.mapping.target.ip())
            };
            if live.iter().any(|published| is_in(&published)) && !leads_to_chains(&mut self.nft, tools)? {
                return Ok(Some(format!("no rule in chain PREROUTING leads to chain {DNAT}")));
            }
        }
        Ok(None)
    }

    /// Reports links to containers from which the loopback services of this host can be reached, whatever has enabled
    /// that.
    fn find_exposure(&mut self, links: &[LinkIndex]) -> Result<Option<Finding>> {
        let mut names: Vec<String> = Vec::new();
        for link in links {
            if let Some(link) = ContainerLink::read(&mut self.host, &mut self.nft, *link)?
                && link.is_exposed()
                && !names.contains(&link.name)
            {
                names.push(link.name);
            }
        }
        if names.is_empty() {
            return Ok(None);
        }
        let finding = Finding::new(
            Level::Warn,
            KINDS[0].name,
            Id("portmap-localhost-exposed"),
            localnet::exposure(&names.join(", ")),
        );
        Ok(Some(finding.about(names.iter().map(|name| Subject::link(name)))))
    }
}

/// Returns whether packets to this host reach the chains of iptables for a family.
fn leads_to_chains(nft: &mut Nftables, tools: &Tools) -> Result<bool> {
    if nft.has_jump_to(tools.table(NAT).chain(PREROUTING), DNAT)? {
        return Ok(true);
    }
    let legacy = tools.legacy_table(NAT)?.map(|table| table.lines).unwrap_or_default();
    let is_jump =
        |line: &String| line.starts_with(&format!("-A {PREROUTING} ")) && line.ends_with(&format!(" -j {DNAT}"));
    Ok(legacy.iter().any(is_jump))
}

/// Returns a finding about something that [`Inspect::repair`] restores.
fn broken(level: Level, what: String) -> Finding {
    Finding::new(level, KINDS[0].name, Id("portmap-incomplete"), what).remedy(REPAIR_HINT).fix(Fix::Repair)
}

fn published_port(mapping: &Mapping) -> Subject {
    Subject::published_port(port_name(&mapping.key, mapping.target.ip()))
}

/// Returns whether something of the published ports of an attachment is missing.
fn is_incomplete(publication: &Publication<'_>) -> bool {
    let is_unused = publication.config.ports.is_empty() || publication.addresses.is_empty();
    !is_unused && check::run(publication).is_err()
}

/// Returns the links to an attachment from which the loopback services of this host can be reached.
fn exposed_links(host: &mut Netlink, result: &AddResult, at: &Attachment) -> Result<Vec<ContainerLink>> {
    let (mut nft, mut exposed) = (Nftables::open()?, Vec::new());
    for link in localnet::links_to(host, result, at)? {
        exposed.extend(ContainerLink::read(host, &mut nft, link)?.filter(ContainerLink::is_exposed));
    }
    Ok(exposed)
}

/// Publishes the ports of an attachment. Returns `false` if there is nothing to restore.
fn restore(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some(result) = call.prev_result()? else { return Ok(false) };
    let publication = Publication::new(call, at, &config, &result);
    if !is_incomplete(&publication) {
        return Ok(false);
    }
    let ips = publication.ips();
    require_attached(call, at, &ips, publication.port)?;
    publication.add()?;
    // A concurrent DEL of another runtime may have looked for ports before, and then removes the interface.
    if let Err(gone) = require_attached(call, at, &ips, publication.port) {
        removal::remove(&publication.removal(&ips), None)?;
        return Err(gone);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::inspect::{Marks, network_marks};
    use linux::ip::Protocol;

    fn published(form: Form, owner: PortOwner) -> Object {
        let key = Key { host_ip: None, protocol: Protocol::Tcp, port: 8080 };
        let mapping = Mapping { key, target: "10.1.0.2:80".parse().unwrap() };
        object(PublishedPort { mapping, owner, port: None, form })
    }

    #[test]
    fn owners_are_recognised_in_all_forms() {
        let owner = AttachmentKey { network: "net1", container: "c1", ifname: "eth0" };
        let on_network = PortOwner::OnNetwork { network: "net1".to_owned(), container: "c1".to_owned() };
        let maps = published(Form::Maps, PortOwner::Attachment(owner.comment()));
        let iptables = published(Form::Iptables, on_network);
        let rules = published(Form::Rules, PortOwner::Container("c1".to_owned()));
        let is_of = |object: &Object, network, container, ifname| {
            Marks::new(AttachmentKey { network, container, ifname }).match_object(object)
        };
        for object in [&maps, &iptables, &rules] {
            assert!(is_of(object, "net1", "c1", "eth0") && !is_of(object, "net1", "c2", "eth0"), "{object:?}");
        }
        assert!(!is_of(&maps, "net1", "c1", "eth1"));
        assert!(is_of(&iptables, "net1", "c1", "eth1"), "shared by all attachments of the container");
        assert!(!is_of(&iptables, "net2", "c1", "eth0"));
        assert!(is_of(&rules, "net2", "c1", "eth1"), "the network is unknown");
        let of_network = |object: &Object, network| object.has_mark_of(&network_marks(network));
        assert!(of_network(&maps, "net1") && of_network(&iptables, "net1") && !of_network(&rules, "net1"));
        assert!(!of_network(&maps, "net") && !of_network(&iptables, "net"));
        assert_eq!(iptables.comment, "dnat name: \"net1\" id: \"c1\"");
        assert_eq!(maps.about, "net1, if: eth0, id: c1");
        assert_eq!((iptables.about.as_str(), rules.about.as_str()), ("net1, id: c1", "id: c1"));
    }

    #[test]
    fn ports_are_described_with_both_addresses() {
        let object = published(Form::Maps, PortOwner::Container("c1".to_owned()));
        assert_eq!(object.name, "tcp 0.0.0.0:8080");
        assert_eq!(object.detail, "tcp 0.0.0.0:8080 -> 10.1.0.2:80");
        let key = Key { host_ip: None, protocol: Protocol::Udp, port: 53 };
        assert_eq!(host_address(&key, "fd00::2".parse().unwrap()).to_string(), "[::]:53");
        let key = Key { host_ip: Some("fd00::1".parse().unwrap()), ..key };
        assert_eq!(host_address(&key, "fd00::2".parse().unwrap()).to_string(), "[fd00::1]:53");
    }
}
