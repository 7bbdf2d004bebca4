//! ADD, from top to bottom.

use std::net::IpAddr;
use std::time::Duration;

use cni::{AddResult, Code, Context, Delegate, Error, Interface, Namespaces, Result};
use interface::attach::{Add, is_forbidden};
use interface::container::{ContainerInterface, DETECTION_TIMEOUT, State, enable_ipv6, prepare_ipv6};
use interface::plan::{AddressPlan, Wanted};
use interface::{forwarding, name};
use linux::Deadline;
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{Change, Event, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, VethPeer, Watch};
use linux::sysctl::ignore_router_advertisements;

use crate::config::Config;
use crate::hops;

/// Attempts to create a veth pair: a name or an index may be taken.
const ATTEMPTS: u32 = 10;
/// How long the host veth may take to come up.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Index of the container veth in the result's list of interfaces.
const CONTAINER: u32 = 1;

/// A veth pair between the host and the container.
struct Pair {
    /// The name of the host veth.
    name: String,
    port: LinkIndex,
    port_mac: MacAddr,
    /// The container veth.
    peer: LinkIndex,
    mac: MacAddr,
}

/// Creates everything that an ADD creates, and returns the result.
pub(crate) fn attach<'a>(add: &mut Add<'a>, config: &'a Config, ipam: Option<&'a Delegate<'a>>) -> Result<AddResult> {
    // Before the addresses are leased: a second ADD of the attachment fails here, and must not release those of the
    // first.
    let pair = create(add, config)?;
    let plan = match ipam {
        Some(ipam) => {
            let port = pair.port;
            let leased =
                add.lease_addresses(ipam, move |namespaces| Ok(namespaces.host.netlink.delete_link(port)?))?;
            let mut plan = AddressPlan::new(leased, &wanted(config))?;
            hops::choose(&mut plan, config.link_local_gateway);
            plan
        }
        None => AddressPlan::default(),
    };
    if let Some(masquerade) = config.masquerade_with_ipam() {
        masquerade.add(add, &hops::masqueraded(&plan.ips, &plan.routes))?;
    }
    forwarding::enable(plan.ips.iter().map(|ip| ip.address.ip()))?;
    let at = add.at;
    let namespaces = add.undo.context();
    configure_host(&mut namespaces.host.netlink, &pair, &plan)?;
    let guest = namespaces.in_guest(|| {
        prepare_ipv6(at.ifname.as_str(), false);
        cni::Guest::open_here(at)
    })?;
    let mut container = ContainerInterface {
        guest,
        index: pair.peer,
        mac: None,
        detects_duplicates: false,
        state: State::Down { has_carrier: true },
    };
    container.apply(namespaces, &plan.addresses(), &hops::in_container(&plan, pair.peer, pair.port_mac))?;
    let Pair { name, port, .. } = &pair;
    namespaces.host.netlink.await_running(*port, name, TIMEOUT, || format!("host veth {name:?} to come up"))?;
    let mtu = config.mtu.filter(|_| add.call.version.has_mtu()).unwrap_or_default();
    let listed = |listed: Interface| Interface { mtu, ..listed };
    Ok(AddResult {
        interfaces: vec![
            listed(Interface::new(name, Some(pair.port_mac), "")),
            listed(Interface::new(at.ifname.as_str(), Some(pair.mac), at.sandbox())),
        ],
        ips: plan.ips,
        routes: plan.routes,
        dns: config.dns.clone().unwrap_or(plan.dns),
    })
}

/// Returns what the configuration says about layer 3.
fn wanted(config: &Config) -> Wanted<'_> {
    Wanted {
        ipam: config.ipam.as_deref().unwrap_or_default(),
        interface: CONTAINER,
        gateway: false,
        default_gateway: false,
        mtu: config.mtu,
        has_layer2: true,
    }
}

/// Creates the veth pair, with both ends in their places, and sets the host veth up. The indexes are chosen here, so
/// that the ends can be configured without looking for them.
fn create(add: &mut Add<'_>, config: &Config) -> Result<Pair> {
    let (at, alias, requested) = (add.at, add.key.alias(), config.mac.address(add.call, add.at)?);
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let (name, port_mac, mac) = name::random_pair()?;
        let (port, peer, mac) = (name::random_index()?, name::random_index()?, requested.unwrap_or(mac));
        add.undo
            .push(format!("delete link {name:?}"), move |namespaces| Ok(namespaces.host.netlink.delete_link(port)?));
        let Namespaces { host, guest } = add.undo.context();
        let end = VethPeer { name: at.ifname.as_str(), mac: Some(mac), netns: guest, index: Some(peer) };
        let new = NewLink {
            name: Some(&name),
            mac: Some(port_mac),
            mtu: config.mtu,
            index: Some(port),
            ..NewLink::of(LinkKind::Veth(end))
        };
        let created = host.netlink.apply(&[
            Change::create_link(&new),
            Change::set_link(port, &LinkChange { alias: Some(&alias), up: Some(true), ..LinkChange::default() }),
        ]);
        match created {
            Ok(()) => {
                // This is in time: the host veth has no carrier until the container veth is up.
                ignore_router_advertisements(&name);
                return Ok(Pair { name, port, port_mac, peer, mac });
            }
            // Another link has one of the names or indexes, and the kernel has created nothing.
            Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EBUSY)) => {
                add.undo.pop();
                add.undo.context().refuse_existing_interface(at)?;
                failure = Some(error.into());
            }
            Err(error) => {
                let error = Error::from(error);
                if is_forbidden(&error) {
                    // The kernel created nothing, so there is nothing to delete.
                    add.undo.pop();
                }
                return Err(error);
            }
        }
    }
    Err(failure.unwrap_or_else(|| Error::bug("no attempt was made")))
}

/// Adds the addresses and routes of the host veth, and waits until its IPv6 addresses are ready.
fn configure_host(host: &mut Netlink, pair: &Pair, plan: &AddressPlan) -> Result<()> {
    if plan.ips.is_empty() {
        return Ok(());
    }
    let Pair { name, port, port_mac, .. } = pair;
    let v6: Vec<IpAddr> =
        hops::host_addresses(&plan.ips, *port_mac).iter().map(Cidr::ip).filter(IpAddr::is_ipv6).collect();
    let watch = match v6.as_slice() {
        [] => None,
        _ => {
            enable_ipv6(name)?;
            Some(Watch::open(Event::Ipv6Address)?)
        }
    };
    host.apply(&hops::on_host(plan, *port, *port_mac))
        .map_err(|error| explain(host, plan, *port, error.into()))
        .context(|| format!("configure host veth {name:?}"))?;
    watch.map_or(Ok(()), |mut watch| Ok(watch.await_addresses(*port, v6, Deadline::after(DETECTION_TIMEOUT))?))
}

/// Returns the error for a route of another link to one of the addresses, instead of the kernel's. Unlike the
/// reference, which ignores it: the container would be unreachable.
fn explain(host: &mut Netlink, plan: &AddressPlan, port: LinkIndex, error: Error) -> Error {
    if error.errno() != Some(libc::EEXIST) {
        return error;
    }
    let Ok(routes) = host.all_routes() else { return error };
    let is_ours = |dst: Cidr| plan.ips.iter().any(|ip| Cidr::host(ip.address.ip()) == dst);
    let mut others = routes.iter().filter(|route| route.link != Some(port) && is_ours(route.route.dst));
    let Some((route, link)) = others.find_map(|route| route.link.map(|link| (route, link))) else { return error };
    let (name, owner) = match host.link(link) {
        Ok(Some(link)) => (link.name, link.alias),
        _ => (link.to_string(), String::new()),
    };
    let what = format!("the host already has a route to {}, by link {name:?}", route.route.dst.ip());
    let remedy = "give each network a subnet of its own, or detach the container that has the address";
    let error = Error::new(Code::INTERNAL, what).details(remedy);
    if owner.is_empty() { error } else { error.details(format!("{name:?} has the alias {owner:?}")) }
}
