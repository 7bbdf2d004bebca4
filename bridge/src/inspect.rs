//! For tools: reads configurations, finds the owners of ports and rules on a host, and repairs rules.

use cni::{Attachment, AttachmentKey, Call, Result, key};
use linux::ip::Cidr;
use linux::netlink::nft::Nftables;
use linux::netlink::{Address, Link, Netlink};

use crate::config::{Backend, Config};
use crate::{check, gateway, iptables, masquerade, spoofcheck, vlan};

pub use crate::rule::{Masquerade, REPAIR_HINT};
pub use crate::spoofcheck::SpoofCheck;

/// The settings of a network that are visible on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the bridge.
    pub bridge: String,
    /// Name of the link that should have the gateway address, if any: the bridge, or the interface of a VLAN.
    pub gateway: Option<String>,
    /// Whether ADD removes conflicting addresses of the bridge.
    pub force_address: bool,
    /// MTU of the veth pair; `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// Whether ports need VLANs.
    pub vlans: bool,
    /// Whether packets of containers are masqueraded.
    pub masquerade: bool,
    /// Whether ADD needs nf_tables, without an alternative.
    pub needs_nftables: bool,
    /// Name of the IPAM plugin.
    pub ipam: Option<String>,
}

/// Parses a configuration. Returns an error for everything that an ADD would reject.
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

/// Returns the error of an ADD if the addresses of `link` conflict with the addresses `gateways`.
pub fn check_gateway_conflict(link: &str, have: &[Address], gateways: &[Cidr], force: bool) -> Result<()> {
    gateway::compare(link, have, gateways, force).map(drop)
}

/// Returns the error of an ADD with VLANs if the kernel cannot filter them on the bridge `name`. `link` is that bridge,
/// if it exists.
pub fn check_vlan_support(host: &mut Netlink, name: &str, link: Option<&Link>) -> Result<()> {
    vlan::refuse_unsupported(host, name, link)
}

/// Returns the aliases that an attachment's host veth can have: that of this version, and that of earlier versions.
pub fn aliases(network: &str, container: &str, ifname: &str) -> [String; 2] {
    AttachmentKey { network, container, ifname }.aliases()
}

/// Returns the keys of an attachment's masquerade rules, one for each backend. All attachments of a container to the
/// network share the key of iptables.
pub fn rule_keys(network: &str, container: &str, ifname: &str) -> [String; 2] {
    let owner = AttachmentKey { network, container, ifname };
    [owner.mark(), owner.iptables_comment()]
}

/// Returns the prefixes of the keys of all masquerade rules of a network, one for each backend.
pub fn network_keys(network: &str) -> [String; 2] {
    [key::network_mark(network), key::iptables_prefix(network)]
}

/// Lists all masquerade rules, of both backends.
pub fn masquerades(nft: &mut Nftables) -> Result<Vec<Masquerade>> {
    let mut rules = masquerade::list(nft)?;
    rules.extend(iptables::list(nft)?);
    Ok(rules)
}

/// Returns whether no packet reaches the masquerade rules of nftables. The next ADD repairs that, and so does
/// [`restore_masquerade`].
pub fn masquerade_is_unreachable(nft: &mut Nftables) -> Result<bool> {
    masquerade::is_cut_off(nft)
}

/// Adds the masquerade rules of an attachment again if one is missing. Returns `false` if none is missing, or if the
/// network has no masquerade.
///
/// `call` is as for CHECK, with the result of ADD. The container must still have the interface and the addresses of
/// that result, so that an address that now belongs to another container gets no rule.
pub fn restore_masquerade(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some(backend) = config.masquerade.filter(|_| config.ipam.is_some()) else { return Ok(false) };
    let owner = AttachmentKey::new(call, at);
    let ips = check::addresses(call, at, &config)?;
    if !masquerade::restore(backend, owner, &ips)? {
        return Ok(false);
    }
    // DEL removes the interface before the rules. If the interface still exists now, a concurrent DEL also removes
    // these rules; otherwise it may have missed them.
    if let Err(gone) = check::addresses(call, at, &config) {
        masquerade::remove_all(owner, &ips)?;
        return Err(gone);
    }
    Ok(true)
}

/// Lists all spoof checks.
pub fn spoof_checks(nft: &mut Nftables) -> Result<Vec<SpoofCheck>> {
    spoofcheck::list(nft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_distinguished_by_their_comments() {
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
        assert!(keys("c1", "eth1").contains(&iptables.key().to_owned()), "shared by all attachments of the container");
        assert_eq!(nft.about(), "net1, if: eth0, id: c1");
    }
}
