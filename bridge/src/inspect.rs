//! For tools: what a configuration asks for, whose the ports and rules of a host are, and the repair of rules.

use cni::ip::Cidr;
use cni::netlink::nft::Nftables;
use cni::netlink::{Address, Link, Netlink};
use cni::{Attachment, AttachmentKey, Call, Result, key};

use crate::config::{Backend, Config};
use crate::{check, gateway, iptables, masquerade, spoofcheck, vlan};

pub use crate::masquerade::{Masquerade, REPAIR_HINT};
pub use crate::spoofcheck::SpoofCheck;

/// What a network's configuration asks for, as far as it can be seen on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the bridge.
    pub bridge: String,
    /// Name of the link that has the gateway's address, if one should have it: the bridge, or that of a VLAN.
    pub gateway: Option<String>,
    /// May an address in the way be taken from the bridge?
    pub force_address: bool,
    /// MTU of the pair, if not the kernel's choice.
    pub mtu: Option<u32>,
    /// Whether ports need VLANs.
    pub vlans: bool,
    /// Are containers hidden behind the host's addresses?
    pub masquerade: bool,
    /// Is nf_tables needed, and nothing else will do?
    pub needs_nftables: bool,
    /// The plugin that gives addresses.
    pub ipam: Option<String>,
}

/// Reads a configuration; everything that an ADD would refuse is an error.
pub fn settings(call: &Call<'_>) -> Result<Settings> {
    let config = Config::parse(call)?;
    config.refuse_contradictions()?;
    let bridge = config.bridge.to_string();
    let is_gateway = config.gateway && config.ipam.is_some();
    Ok(Settings {
        gateway: is_gateway.then(|| config.vlan_gateway().unwrap_or_else(|| bridge.clone())),
        bridge,
        force_address: config.force_address,
        mtu: config.mtu,
        vlans: config.vlans.is_some(),
        masquerade: config.masquerade.is_some(),
        needs_nftables: config.spoof_check || config.masquerade == Some(Backend::Nftables),
        ipam: config.ipam,
    })
}

/// Would an ADD refuse to give `link` the addresses `gateways`, beside those that it has?
pub fn refuse_conflict(link: &str, have: &[Address], gateways: &[Cidr], force: bool) -> Result<()> {
    gateway::compare(link, have, gateways, force).map(drop)
}

/// Returns the error of an ADD with VLANs if the kernel cannot filter them on the bridge `name`. `link` is that bridge,
/// if it exists.
pub fn refuse_vlans(host: &mut Netlink, name: &str, link: Option<&Link>) -> Result<()> {
    vlan::refuse_unsupported(host, name, link)
}

/// The alias of the host's end of an attachment's pair.
pub fn alias(network: &str, container: &str, ifname: &str) -> String {
    AttachmentKey { network, container, ifname }.alias()
}

/// The keys of an attachment's rules, one for each backend. Those of iptables are of all attachments of a container.
pub fn rule_keys(network: &str, container: &str, ifname: &str) -> [String; 2] {
    let owner = AttachmentKey { network, container, ifname };
    [owner.mark(), owner.iptables_comment()]
}

/// What the keys of all rules of a network begin with, one for each backend.
pub fn network_keys(network: &str) -> [String; 2] {
    [key::network_mark(network), key::iptables_prefix(network)]
}

/// All rules that hide addresses of containers, of both backends.
pub fn masquerades(nft: &mut Nftables) -> Result<Vec<Masquerade>> {
    let mut rules = masquerade::list(nft)?;
    rules.extend(iptables::list(nft)?);
    Ok(rules)
}

/// Does no packet come to those of nftables? The next ADD restores the way, and so does [`restore_masquerade`].
pub fn masquerade_is_cut_off(nft: &mut Nftables) -> Result<bool> {
    masquerade::is_cut_off(nft)
}

/// Adds the masquerade rules of an attachment again if one is missing; `false` if none is, or the network has none.
///
/// `call` is as for CHECK, with the result of the ADD. The container must still have the interface and the addresses of
/// that result: an address that was given to another container since gets no rule.
pub fn restore_masquerade(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some(backend) = config.masquerade.filter(|_| config.ipam.is_some()) else { return Ok(false) };
    let owner = AttachmentKey::new(call, at);
    let ips = check::addresses(call, at, &config)?;
    if !masquerade::restore(backend, owner, &ips)? {
        return Ok(false);
    }
    // A DEL removes the interface before the rules, so it removes these too if the interface is still there.
    if let Err(gone) = check::addresses(call, at, &config) {
        masquerade::remove_all(owner, &ips)?;
        return Err(gone);
    }
    Ok(true)
}

/// All checks of source addresses.
pub fn spoof_checks(nft: &mut Nftables) -> Result<Vec<SpoofCheck>> {
    spoofcheck::list(nft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_told_apart_by_their_comments() {
        let owner = AttachmentKey { network: "net1", container: "c1", ifname: "eth0" };
        let nft = Masquerade { source: None, iptables: false, comment: owner.comment() };
        let iptables = Masquerade { source: None, iptables: true, comment: owner.iptables_comment() };
        let keys = |container, ifname| rule_keys("net1", container, ifname);
        for rule in [&nft, &iptables] {
            let is_of = |network| network_keys(network).iter().any(|key| rule.key().starts_with(key));
            assert!(is_of("net1") && !is_of("net") && !is_of("net2"));
            assert!(keys("c1", "eth0").iter().any(|key| key == rule.key()));
            assert!(!keys("c2", "eth0").iter().any(|key| key == rule.key()));
        }
        assert!(!keys("c1", "eth1").contains(&nft.key().to_owned()));
        assert!(keys("c1", "eth1").contains(&iptables.key().to_owned()), "of all attachments of the container");
        assert_eq!(nft.about(), "net1, if: eth0, id: c1");
    }
}
