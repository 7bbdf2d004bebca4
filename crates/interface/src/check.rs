//! CHECK: compares the interface in the container with the result of ADD.

use std::fmt::Display;

use cni::{
    AddResult, Attachment, Call, Code, Context, Error, Guest, IfName, Interface, IpConfig, Namespaces, Result, Route,
};
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{self, KernelRoute, Link, LinkKind, Netlink, VlanTag};

use crate::master::Master;
use crate::{config, ipam, shared_vlan};

/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// Both sides of an attachment, and the result of its ADD.
#[derive(Debug)]
pub struct Checker<'a> {
    /// The attachment.
    pub at: &'a Attachment,
    /// The result of ADD.
    pub prev_result: AddResult,
    /// A socket in the host's namespace.
    pub host: Netlink,
    /// A socket in the container's namespace.
    pub guest: Guest<'a>,
    /// Whether the IPAM plugin compares the addresses: a server or a router may have replaced those of ADD.
    ipam_compares: bool,
}

impl<'a> Checker<'a> {
    /// Opens both sides.
    pub fn open(call: &Call<'_>, at: &'a Attachment) -> Result<Checker<'a>> {
        let prev_result = call.prev_result()?.ok_or_else(|| {
            Error::new(Code::CONFIG, "CHECK without \"prevResult\"").details("the runtime must pass the result of ADD")
        })?;
        let namespaces = Namespaces::open(call, at)?;
        let guest = namespaces.open_guest(at)?;
        let ipam_compares = config::ipam_name(call)?.as_deref() == Some(ipam::DHCP);
        Ok(Checker { at, prev_result, host: namespaces.host.netlink, guest, ipam_compares })
    }

    /// Checks the interface in the container, which must be a link of this kind. If `up`, it must be up.
    pub fn interface(&mut self, kind: &str, up: bool) -> Result<Link> {
        self.interface_of(Some(kind), up)
    }

    /// Checks the interface in the container, a link of this or any kind.
    pub fn interface_of(&mut self, kind: Option<&str>, up: bool) -> Result<Link> {
        let name = self.at.ifname.as_str();
        let place =
            self.place().ok_or_else(|| not_listed(&format!("interface {name:?} in {:?}", self.at.sandbox())))?;
        let link = self.guest.interface()?;
        kind.map_or(Ok(()), |kind| same(name, "kind", kind, link.kind.as_str()))?;
        if let Some(listed) = self.prev_result.interfaces.get(place) {
            same_mac(listed, &link)?;
        }
        if up {
            same(name, "up", true, link.up)?;
        }
        Ok(link)
    }

    /// Checks what distinguishes the link from others of its kind, and its MTU, if the configuration has one.
    pub fn link(&self, link: &Link, kind: LinkKind<'_>, mtu: Option<u32>) -> Result<()> {
        if let LinkKind::Upper(want) = kind {
            match link.upper {
                Some(have) if have.is_like(want) => {}
                Some(have) => same(&link.name, "properties", want.to_string(), have.to_string())?,
                None => same(&link.name, "properties", want.to_string(), None)?,
            }
        }
        if let LinkKind::Tap { tap: want, .. } = kind {
            let have = link.tap.unwrap_or_default();
            same(&link.name, "multi-queue", want.multi_queue, have.multi_queue)?;
            same(&link.name, "vnet_hdr", want.vnet_hdr, have.vnet_hdr)?;
            for (what, want, have) in [("owner", want.owner, have.owner), ("group", want.group, have.group)] {
                want.map_or(Ok(()), |want| same(&link.name, what, want, have))?;
            }
        }
        mtu.map_or(Ok(()), |mtu| same(&link.name, "MTU", mtu, link.mtu))
    }

    /// Checks that the link is on top of its master, or of the link that the master has for a shared VLAN. Without a
    /// name in the configuration, it may be on top of any: the default route may have changed.
    pub fn master(&mut self, link: &Link, master: &Master, vlan: Option<VlanTag>) -> Result<()> {
        if master.name.is_none() {
            return Ok(());
        }
        let socket = if master.in_container { &mut self.guest.netlink } else { &mut self.host };
        let mut found = master.find_by(socket)?;
        if let Some(tag) = vlan {
            let what = || Error::new(Code::INTERNAL, format!("{:?} has no link for VLAN {tag}", found.name));
            let shared = shared_vlan::find(&mut self.host, &found, tag)?;
            found = shared.ok_or_else(|| what().details("attach the container again"))?;
            same(&found.name, "up", true, found.up)?;
        }
        if link.lower == Some(found.index) && link.lower_netns.is_none() == master.in_container {
            return Ok(());
        }
        let what = format!("{:?} should be on top of {:?}, but is not", link.name, found.name);
        Err(Error::new(Code::INTERNAL, what).details("attach the container again"))
    }

    /// Checks that the link is a port of the bridge of this name in the container.
    pub fn bridge(&mut self, link: &Link, bridge: &IfName) -> Result<()> {
        let master = link.master.map(|index| self.guest.netlink.link(index)).transpose()?.flatten();
        same(&link.name, "bridge", bridge.to_string(), master.map(|master| master.name))
    }

    /// Checks the host veth, which is found as the peer of the container veth.
    pub fn host_veth(&mut self, container: &Link) -> Result<Link> {
        let no_peer = || {
            let what = format!("{:?} in {:?} has no peer on this host", container.name, self.at.sandbox());
            Error::new(Code::INTERNAL, what)
        };
        let port = match container.lower {
            Some(index) => self.host.link(index)?.ok_or_else(no_peer)?,
            None => return Err(no_peer()),
        };
        let name = port.name.as_str();
        same(name, "kind", "veth", port.kind.as_str())?;
        same(name, "peer", container.index, port.lower)?;
        let mut interfaces = self.prev_result.interfaces.iter();
        let listed = interfaces.find(|listed| listed.name == name && listed.sandbox.is_empty());
        same_mac(listed.ok_or_else(|| not_listed(&format!("port {name:?}")))?, &port)?;
        Ok(port)
    }

    /// Returns the index of the interface in the result's list of interfaces.
    fn place(&self) -> Option<usize> {
        let (name, sandbox) = (self.at.ifname.as_str(), self.at.sandbox());
        self.prev_result.interfaces.iter().rposition(|listed| listed.name == name && listed.sandbox == sandbox)
    }

    /// Checks that the interface has all addresses of the result, unless the IPAM plugin does so, and returns them.
    pub fn addresses(&mut self, link: &Link) -> Result<Vec<IpConfig>> {
        let have = self.guest.netlink.addresses(link.index)?;
        let place = self.place();
        let is_ours = |ip: &&IpConfig| ip.interface.is_none_or(|index| usize::try_from(index).ok() == place);
        let mut ips: Vec<_> = self.prev_result.ips.iter().filter(is_ours).cloned().collect();
        for ip in &mut ips {
            if self.ipam_compares {
                if ip.address.ip().is_ipv6() {
                    ip.gateway = None; // the router's, which the host does not have
                }
                continue;
            }
            if !have.iter().any(|have| have.cidr == ip.address) {
                let have: Vec<_> = have.iter().map(|have| have.cidr.to_string()).collect();
                let what =
                    format!("{:?} should have the address {}, but has [{}]", link.name, ip.address, have.join(" "));
                return Err(Error::new(Code::INTERNAL, what));
            }
        }
        Ok(ips)
    }

    /// Checks that the container has all routes of the result.
    pub fn routes(&mut self, link: &Link) -> Result<()> {
        let have = self.guest.netlink.routes(link.index)?;
        for route in &self.prev_result.routes {
            if have.iter().any(|have| matches_route(route, have)) {
                continue;
            }
            let similar: Vec<_> =
                have.iter().filter(|have| have.leads_to(route.dst)).map(|have| describe(&have.route)).collect();
            let what = format!(
                "{:?} should have the route {}, but has [{}]",
                link.name,
                describe(&route.into()),
                similar.join("; ")
            );
            return Err(Error::new(Code::INTERNAL, what));
        }
        Ok(())
    }
}

/// Returns the addresses of an attachment whose interface in the container, a link of this kind, is as ADD configured
/// it. Does not check the host.
pub fn addresses(call: &Call<'_>, at: &Attachment, kind: &str, up: bool) -> Result<Vec<Cidr>> {
    let mut checker = Checker::open(call, at)?;
    let link = checker.interface(kind, up)?;
    Ok(checker.addresses(&link)?.iter().map(|ip| ip.address).collect())
}

/// Returns whether a route of the kernel is the route `want`. Properties that `want` leaves out are not compared.
fn matches_route(want: &Route, have: &KernelRoute) -> bool {
    let scope_matters = want.dst.ip().is_ipv4(); // IPv6 routes have none.
    // An unspecified gateway and table 0 mean that none is given.
    let gw = want.gw.filter(|gw| !gw.is_unspecified());
    let table = want.table.filter(|table| *table != 0);
    have.leads_to(want.dst)
        && gw.is_none_or(|gw| have.route.gw == Some(gw))
        // A later plugin of the list, such as `sbr`, may have moved it out of the main table.
        && table.is_none_or(|table| have.route.table == Some(table))
        && (want.priority == 0 || want.priority == have.route.priority)
        && (!scope_matters || want.scope.is_none_or(|scope| have.route.scope == Some(scope)))
}

/// Formats a route as `ip route` does.
fn describe(route: &netlink::Route) -> String {
    let gw = route.gw.map_or_else(String::new, |gw| format!(" via {gw}"));
    let table = route.table.filter(|table| *table != MAIN);
    let table = table.map_or_else(String::new, |table| format!(" table {table}"));
    let metric = if route.priority > 0 { format!(" metric {}", route.priority) } else { String::new() };
    format!("{}{gw}{table}{metric}", route.dst)
}

/// Returns a link of the host. It must exist.
pub fn find_link(host: &mut Netlink, name: &str) -> Result<Link> {
    host.link(name)?.ok_or_else(|| {
        let error = Error::new(Code::INTERNAL, format!("there is no link {name:?} on the host"));
        error.details("attach the container again")
    })
}

/// Returns the error for an object that is missing from the previous result.
pub fn not_listed(what: &str) -> Error {
    Error::new(Code::INTERNAL, format!("\"prevResult\" does not list {what}"))
        .details("it must be the result of an ADD with this configuration")
}

/// Compares the MAC address of a link with the one in the previous result, if that has one.
pub fn same_mac(listed: &Interface, link: &Link) -> Result<()> {
    if listed.mac.is_empty() {
        return Ok(());
    }
    let want = listed.mac.parse::<MacAddr>();
    let want = want.map_err(|why| Error::new(Code::CONFIG, why.to_string())).context(|| "read \"prevResult\"")?;
    same(&link.name, "MAC address", want, link.mac)
}

/// Returns an error that names the property `what` of `link` unless it has the value `want`.
pub fn same<T: PartialEq + Display>(link: &str, what: &str, want: T, got: impl Into<Option<T>>) -> Result<()> {
    match got.into() {
        Some(got) if got == want => Ok(()),
        Some(got) => Err(difference(link, what, &want, &got)),
        None => Err(difference(link, what, &want, &"none")),
    }
}

/// Returns the error for the property `what` of `link`.
#[cold]
pub fn difference(link: &str, what: &str, want: &dyn Display, got: &dyn Display) -> Error {
    Error::new(Code::INTERNAL, format!("{what} of {link:?}: want {want}, got {got}"))
}
