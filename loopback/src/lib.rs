//! The `loopback` plugin: sets `lo` of a container up, and returns its addresses.

use cni::inspect::Inspect;
use cni::{
    AddResult, Attachment, AttachmentKey, Call, Code, Error, Interface, IpConfig, Judgement, KnownOwner, Namespaces,
    Ownership, Plugin, Result, Trace,
};
use linux::netlink::{Address, Change, Link, LinkChange, Netlink};

/// The interface of this plugin. It ignores `CNI_IFNAME`.
const LO: &str = "lo";

/// The `loopback` plugin.
#[derive(Debug)]
pub struct Loopback;

impl Inspect for Loopback {}

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    /// Unlike the reference, checks the addresses before it sets `lo` up.
    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let previous = call.prev_result()?;
        let mut netlink = open(&Namespaces::open(call, at)?)?;
        let lo = find(&mut netlink)?;
        let mut addresses = loopback_addresses(&mut netlink, &lo)?;
        let alias = AttachmentKey::new(call, at).alias();
        let owner = Ownership::new(KnownOwner::Container(at.container.as_str())).judge(Trace::Alias(&lo.alias));
        // Also replaces the mark of another container, which was never detached from a namespace that is reused.
        if !lo.up || (lo.alias != alias && matches!(owner, Judgement::Others(_) | Judgement::Possible(_))) {
            let change = LinkChange { up: Some(true), alias: Some(&alias), ..LinkChange::default() };
            netlink.apply(&[Change::set_link(lo.index, &change)])?;
            // The kernel has added 127.0.0.1 and, unless IPv6 is disabled, ::1.
            addresses = loopback_addresses(&mut netlink, &lo)?;
        }
        Ok(previous.unwrap_or_else(|| describe(&lo, &addresses, at)))
    }

    /// Unlike the reference, sets `lo` down only if its alias shows that this attachment set it up: by now the path may
    /// lead to the namespace of another container.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let Some(namespaces) = Namespaces::open_if_exists(call, at)? else { return Ok(()) };
        let mut netlink = open(&namespaces)?;
        let lo = find(&mut netlink)?;
        if !Ownership::new(AttachmentKey::new(call, at)).judge(Trace::Alias(&lo.alias)).is_ours() {
            return Ok(());
        }
        let change = LinkChange { up: Some(false), alias: Some(""), ..LinkChange::default() };
        netlink.apply(&[Change::set_link(lo.index, &change)])?;
        Ok(())
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        if find(&mut open(&Namespaces::open(call, at)?)?)?.up {
            return Ok(());
        }
        let sandbox = at.sandbox();
        let what = format!("link {LO:?} in {sandbox:?} is down");
        Err(Error::new(Code::INTERNAL, what).details(format!("run `nsenter --net={sandbox} ip link set lo up`")))
    }

    /// Does nothing: `lo` disappears with its namespace, so nothing can be left behind.
    fn gc(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }

    /// Always succeeds: every namespace has `lo`, and ADD needs nothing else.
    fn status(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }
}

/// Opens a netlink socket in the container namespace.
fn open(namespaces: &Namespaces) -> Result<Netlink> {
    namespaces.in_guest(|| Ok(Netlink::open()?))
}

/// Returns `lo`.
fn find(netlink: &mut Netlink) -> Result<Link> {
    netlink.link(LO)?.ok_or_else(|| Error::new(Code::INTERNAL, format!("the namespace has no link {LO:?}")))
}

/// Returns the addresses of `lo`. Returns an error if one of them is not a loopback address.
fn loopback_addresses(netlink: &mut Netlink, lo: &Link) -> Result<Vec<Address>> {
    let addresses = netlink.addresses(lo.index)?;
    match addresses.iter().find(|address| !address.cidr.ip().is_loopback()) {
        None => Ok(addresses),
        Some(foreign) => {
            let what = format!("link {LO:?} has the address {}, which is not a loopback address", foreign.cidr);
            Err(Error::new(Code::INTERNAL, what)
                .details("remove the address, or remove loopback from the network's list of plugins"))
        }
    }
}

/// Returns a result with `lo` and its first address of each family.
fn describe(lo: &Link, addresses: &[Address], at: &Attachment) -> AddResult {
    let first = |v4: bool| addresses.iter().find(|address| address.cidr.ip().is_ipv4() == v4);
    let ip = |address: &Address| IpConfig { address: address.cidr, gateway: None, interface: Some(0) };
    let interface = Interface::new(LO, lo.mac, at.sandbox());
    AddResult {
        interfaces: vec![interface],
        ips: [first(true), first(false)].into_iter().flatten().map(ip).collect(),
        ..AddResult::default()
    }
}
