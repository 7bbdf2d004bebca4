//! Three pods on two bridges and a namespace outside of the host, to prove with packets who reaches whom.

use std::path::{Path, PathBuf};

use crate::packets::Client;
use crate::{Lab, Pod};

/// The addresses of one family.
#[derive(Debug)]
pub struct Family {
    /// The unspecified address.
    pub any: &'static str,
    /// The addresses of the pods `a`, `b` and `c`.
    pub pods: [&'static str; 3],
    /// The host's address on the bridge of `a` and `b`.
    pub bridge: &'static str,
    /// The host's first address on the uplink.
    pub uplink: &'static str,
    /// The host's second address on the uplink.
    pub second: &'static str,
    /// The address of the namespace outside.
    pub outside: &'static str,
}

/// The addresses of IPv4.
pub const IPV4: Family = Family {
    any: "0.0.0.0",
    pods: ["10.1.0.2", "10.1.0.3", "10.2.0.2"],
    bridge: "10.1.0.1",
    uplink: "192.0.2.1",
    second: "192.0.2.9",
    outside: "192.0.2.2",
};
/// The addresses of IPv6.
pub const IPV6: Family = Family {
    any: "::",
    pods: ["fd01::2", "fd01::3", "fd02::2"],
    bridge: "fd01::1",
    uplink: "2001:db8::1",
    second: "2001:db8::9",
    outside: "2001:db8::2",
};

/// The pods, and the namespace of [`Lab::outside`].
#[derive(Debug)]
pub struct Network<'a> {
    /// A pod on the bridge `br0`.
    pub a: Pod<'a>,
    /// Its neighbour on the same bridge.
    pub b: Pod<'a>,
    /// A pod on the bridge `br1`.
    pub c: Pod<'a>,
    /// The path of the namespace outside of the host.
    pub outside: PathBuf,
}

impl<'a> Network<'a> {
    /// Creates the pods and the namespace. Netfilter does not see bridged frames.
    pub fn new(lab: &'a Lab) -> Network<'a> {
        let outside = lab.outside();
        filter_bridged_frames(lab, false);
        Network {
            a: Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]).with_mac(),
            b: Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24", "fd01::3/64"]).with_mac(),
            c: Pod::on_bridge(lab, "br1", "c", &["10.2.0.2/24", "fd02::2/64"]).with_mac(),
            outside,
        }
    }

    /// Returns a client outside of the host.
    pub fn outside(&self) -> Client<'_> {
        Client::in_netns(&self.outside)
    }
}

/// Lets netfilter see frames between the ports of a bridge, or not. Returns whether the kernel can.
pub fn filter_bridged_frames(lab: &Lab, enabled: bool) -> bool {
    if !Path::new("/proc/sys/net/bridge").exists() {
        return !enabled;
    }
    let value = u8::from(enabled);
    lab.sh(&format!(
        "sysctl -qw net.bridge.bridge-nf-call-iptables={value} net.bridge.bridge-nf-call-ip6tables={value}"
    ));
    true
}
