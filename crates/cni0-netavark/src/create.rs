//! `create`: completes and validates a network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use cni::{Code, Context, Error, IfName, Result, json};
use interface::subnets::{self, Use, uses_of_host};
use linux::dir::Dir;
use linux::ip::{Cidr, IPV6_MIN_MTU};
use linux::log::debug;
use linux::netlink::Netlink;
use linux::process;
use serde_json::{Map, Value};

use crate::input::{Ipam, Network};
use crate::list::half_a_gateway;
use crate::options::Options;

/// Returns the network of `text` with everything that podman leaves to the driver.
pub(crate) fn run(text: &str) -> Result<String> {
    let network: Network = json::parse(text).context(|| "read stdin")?;
    let mut answer: Map<String, Value> = json::parse(text).context(|| "read stdin")?;
    network.key()?;
    let options = Options::parse(network.options.as_ref())?;
    network.refuse_special_routes()?;
    let others = networks_of_podman();
    let bridge = free_bridge(&network, &options, &others)?;
    let mut subnets: Vec<Cidr> = network.subnets().iter().map(|subnet| subnet.subnet).collect();
    refuse_overlaps(&subnets)?;
    let has_gateway = |wanted| network.subnets().iter().any(|subnet| subnet.gateway.is_some() == wanted);
    // podman adds the missing gateways of other networks.
    if network.internal && has_gateway(true) && has_gateway(false) {
        return Err(half_a_gateway());
    }
    match network.ipam()? {
        Ipam::Podman => {
            let mut uses = uses_of_host(&mut Netlink::open()?)?;
            uses.extend(others.iter().flat_map(uses_of));
            subnets.iter().try_for_each(|subnet| require_free(*subnet, &uses))?;
            let new = missing_subnets(&network, &subnets, &uses)?;
            let listed = answer.entry("subnets").or_insert_with(|| Value::Null);
            let mut values = listed.as_array().cloned().unwrap_or_default();
            values.extend(new.iter().map(|subnet| serde_json::json!({ "subnet": subnet })));
            *listed = values.into();
            subnets.extend(new);
            answer.insert("ipam_options".into(), serde_json::json!({"driver": "host-local"}));
        }
        Ipam::None if !subnets.is_empty() => {
            let error = Error::new(Code::CONFIG, "the IPAM driver is none, and there are subnets");
            return Err(error.details("remove --subnet, or use --ipam-driver host-local"));
        }
        Ipam::None => {}
    }
    let has_ipv6 = subnets.iter().any(|subnet| subnet.ip().is_ipv6());
    if let Some(mtu) = options.mtu.filter(|mtu| has_ipv6 && *mtu < IPV6_MIN_MTU) {
        let error = Error::new(Code::CONFIG, format!("option \"mtu\": {mtu} is too small for IPv6"));
        return Err(error.details(format!("use at least {IPV6_MIN_MTU}, or only IPv4 subnets")));
    }
    answer.insert("network_interface".into(), bridge.as_str().into());
    answer.insert("ipv6_enabled".into(), has_ipv6.into());
    // Netavark starts its DNS server only for its own driver.
    answer.insert("dns_enabled".into(), false.into());
    Ok(Value::Object(answer).to_string())
}

fn refuse_overlaps(subnets: &[Cidr]) -> Result<()> {
    for (index, subnet) in subnets.iter().enumerate() {
        if let Some(other) = subnets.iter().skip(index + 1).find(|other| other.overlaps(subnet)) {
            return Err(Error::new(Code::CONFIG, format!("subnets {subnet} and {other} overlap")));
        }
    }
    Ok(())
}

/// Returns the name of the bridge, which no other network may have: each would remove it from under the other.
fn free_bridge(network: &Network, options: &Options, others: &[Network]) -> Result<IfName> {
    let bridge = network.bridge()?;
    if let Some(other) = others.iter().find(|other| other.network_interface.as_deref() == Some(bridge.as_str())) {
        let what = format!("bridge {:?} is that of network {:?}", bridge.as_str(), other.name);
        return Err(Error::new(Code::CONFIG, what).details("choose another --interface-name, or leave it out"));
    }
    let vlan = options.vlan.filter(|vlan| *vlan > 0);
    if let Some(gateway) = vlan.map(|vlan| format!("{bridge}.{vlan}"))
        && let Err(why) = IfName::from_config(&gateway)
    {
        let what = format!("option \"vlan\": the gateway of the VLAN would be named {gateway:?}");
        return Err(Error::new(Code::CONFIG, what).details(why).details("choose a shorter --interface-name"));
    }
    Ok(bridge)
}

fn require_free(subnet: Cidr, uses: &[Use]) -> Result<()> {
    match uses.iter().find(|used| used.subnet.overlaps(&subnet)) {
        Some(Use { by, .. }) => {
            let error = Error::new(Code::CONFIG, format!("subnet {subnet} is in use: {by}"));
            Err(error.details("choose another --subnet; without it, a free one is found"))
        }
        None => Ok(()),
    }
}

/// Returns the subnets that a network needs in addition: an IPv4 subnet if it has none, and an IPv6 subnet if it is
/// for IPv6 and has none.
fn missing_subnets(network: &Network, given: &[Cidr], uses: &[Use]) -> Result<Vec<Cidr>> {
    let mut new = Vec::new();
    if given.is_empty() {
        new.push(free_subnet(uses)?);
    }
    if network.ipv6_enabled && !given.iter().any(|subnet| subnet.ip().is_ipv6()) {
        new.push(random_ipv6()?);
    }
    Ok(new)
}

/// Returns the first subnet of podman's default pool that is not in use.
fn free_subnet(uses: &[Use]) -> Result<Cidr> {
    let third = |second: u8, first: u8| (first..=255).map(move |third| Ipv4Addr::new(10, second, third, 0));
    let all = third(89, 0).chain((90..=255).flat_map(|second| third(second, 0)));
    let candidates = all.filter_map(|ip| Cidr::new(IpAddr::V4(ip), 24));
    subnets::first_free(candidates, uses).ok_or_else(|| {
        Error::new(Code::CONFIG, "choose a subnet: all from 10.89.0.0/24 to 10.255.255.0/24 are in use")
            .details("give a subnet with --subnet")
    })
}

/// Returns a subnet of the addresses for private use, which is as unlikely to be in use as its 56 random bits.
fn random_ipv6() -> Result<Cidr> {
    let [a, b, c, d, e, f, g]: [u8; 7] = linux::random().context(|| "get random bytes from the kernel")?;
    let ip = Ipv6Addr::from([0xfd, a, b, c, d, e, f, g, 0, 0, 0, 0, 0, 0, 0, 0]);
    Cidr::new(IpAddr::V6(ip), 64).ok_or_else(|| Error::bug("64 is a valid prefix length"))
}

/// Returns the subnets of a network, whose bridge may not exist at the moment.
fn uses_of(network: &Network) -> impl Iterator<Item = Use> {
    let by = format!("podman has the network {:?}", network.name);
    network.subnets().iter().map(move |subnet| Use { subnet: subnet.subnet, by: by.clone() })
}

/// Returns podman's other networks. Files that are none are ignored.
fn networks_of_podman() -> Vec<Network> {
    let mut networks = Vec::new();
    for path in directories_of_podman() {
        let mut read = || -> io::Result<()> {
            let Some(dir) = Dir::open(&path)? else { return Ok(()) };
            for name in dir.names()? {
                let name = name?;
                // Another user may own the directory, so nothing but a file is opened.
                let content = if name.ends_with(".json") { dir.read(&name) } else { Ok(None) };
                let text = String::from_utf8(content.unwrap_or_default().unwrap_or_default()).unwrap_or_default();
                networks.extend(json::parse::<Network>(&text));
            }
            Ok(())
        };
        if let Err(error) = read() {
            debug!("ignore {path:?}: {error}");
        }
    }
    networks
}

/// Returns the directories of podman's networks, of root and of this user, unless `containers.conf` names another.
fn directories_of_podman() -> Vec<PathBuf> {
    let set = |name: &str| process::env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    let of_user = of_user.map(|data| data.join("containers/storage/networks"));
    [Some(PathBuf::from("/etc/containers/networks")), of_user].into_iter().flatten().collect()
}
