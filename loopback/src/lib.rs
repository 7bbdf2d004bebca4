//! The `loopback` plugin: brings `lo` of a container up, and says what is on it.

use cni::key::AliasOwner;
use cni::netlink::{Address, Change, Link, LinkChange, Netlink};

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Error, Interface, IpConfig, Netns, Plugin, Result};

/// The only interface this plugin knows; `CNI_IFNAME` is for others.
const LO: &str = "lo";

/// The `loopback` plugin.
#[derive(Debug)]
pub struct Loopback;

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    /// Unlike upstream, looks at the addresses before it sets anything up.
    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let previous = call.previous()?;
        if let Some(previous) = &previous {
            // What cannot be answered is found out before anything is done.
            previous.as_seen_in(call.version)?;
        }
        let mut netlink = open(call, &at.open_netns()?)?;
        let lo = find(&mut netlink)?;
        let mut addresses = own_addresses(&mut netlink, &lo)?;
        let alias = AttachmentKey::new(call, at).alias();
        // An attachment that was never detached does not keep the mark of a namespace that is used again.
        if !lo.up || (lo.alias != alias && AliasOwner::parse(&lo.alias).is_some()) {
            let change = LinkChange { up: Some(true), alias: Some(&alias), ..LinkChange::default() };
            netlink.apply(&[Change::set_link(lo.index, &change)])?;
            // The kernel gave it 127.0.0.1 and, unless IPv6 is off, ::1.
            addresses = own_addresses(&mut netlink, &lo)?;
        }
        Ok(previous.unwrap_or_else(|| describe(&lo, &addresses, at)))
    }

    /// Unlike upstream, sets `lo` down only if this attachment set it up, as its alias says: the path may lead to the
    /// namespace of another container by now.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let Some(netns) = at.open_netns_if_there()? else { return Ok(()) };
        let mut netlink = open(call, &netns)?;
        let lo = find(&mut netlink)?;
        if lo.alias != AttachmentKey::new(call, at).alias() {
            return Ok(());
        }
        let change = LinkChange { up: Some(false), alias: Some(""), ..LinkChange::default() };
        netlink.apply(&[Change::set_link(lo.index, &change)])
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        if find(&mut open(call, &at.open_netns()?)?)?.up {
            return Ok(());
        }
        let sandbox = at.sandbox();
        let what = format!("link {LO:?} in {sandbox:?} is down, it should be up");
        Err(Error::new(Code::INTERNAL, what).details(format!("`nsenter --net={sandbox} ip link set lo up` sets it up")))
    }

    /// `lo` goes with its namespace: nothing can be left over, and nothing is looked for.
    fn gc(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }

    /// Every namespace has a `lo`: there is nothing that an ADD could lack.
    fn status(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }
}

fn open(call: &Call<'_>, netns: &Netns) -> Result<Netlink> {
    netns.run(&call.home()?.netns, Netlink::open)
}

fn find(netlink: &mut Netlink) -> Result<Link> {
    netlink.link(LO)?.ok_or_else(|| Error::new(Code::INTERNAL, format!("the namespace has no link {LO:?}")))
}

/// The addresses on `lo`; one that is not the host's own is refused.
fn own_addresses(netlink: &mut Netlink, lo: &Link) -> Result<Vec<Address>> {
    let addresses = netlink.addresses(lo.index)?;
    match addresses.iter().find(|address| !address.cidr.ip().is_loopback()) {
        None => Ok(addresses),
        Some(foreign) => {
            let what = format!("link {LO:?} has the address {}, which is no loopback address", foreign.cidr);
            Err(Error::new(Code::INTERNAL, what)
                .details("remove the address, or remove loopback from the network's list of plugins"))
        }
    }
}

/// `lo` and the first address of each family.
fn describe(lo: &Link, addresses: &[Address], at: &Attachment) -> AddResult {
    let first = |v4: bool| addresses.iter().find(|address| address.cidr.ip().is_ipv4() == v4);
    let ip = |address: &Address| IpConfig { address: address.cidr, gateway: None, interface: Some(0) };
    let interface = Interface {
        name: LO.to_owned(),
        mac: lo.mac.map_or_else(String::new, |mac| mac.to_string()),
        sandbox: at.sandbox(),
        ..Interface::default()
    };
    AddResult {
        interfaces: vec![interface],
        ips: [first(true), first(false)].into_iter().flatten().map(ip).collect(),
        ..AddResult::default()
    }
}
