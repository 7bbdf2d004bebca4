//! `create`: completes and validates a network.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::{fs, io};

use cni::{Code, Context, Error, Result, json};
use interface::subnets::{self, Use, uses_of_host};
use linux::ip::Cidr;
use linux::log::debug;
use linux::netlink::Netlink;
use linux::process;
use serde_json::{Map, Value};

use crate::input::{Ipam, Network};
use crate::options::Options;

/// Returns the network of `text` with everything that podman leaves to the driver.
pub(crate) fn run(text: &str) -> Result<String> {
    let network: Network = json::parse(text).context(|| "read stdin")?;
    let mut answer: Map<String, Value> = json::parse(text).context(|| "read stdin")?;
    network.key()?;
    Options::parse(network.options.as_ref())?;
    network.refuse_special_routes()?;
    let mut subnets: Vec<Cidr> = network.subnets().iter().map(|subnet| subnet.subnet).collect();
    refuse_overlaps(&subnets)?;
    match network.ipam()? {
        Ipam::Podman => {
            let new = missing_subnets(&network, &subnets)?;
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
    answer.insert("network_interface".into(), network.bridge()?.as_str().into());
    answer.insert("ipv6_enabled".into(), subnets.iter().any(|subnet| subnet.ip().is_ipv6()).into());
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

/// Returns the subnets that a network needs in addition: an IPv4 subnet if it has none, and an IPv6 subnet if it is
/// for IPv6 and has none.
fn missing_subnets(network: &Network, given: &[Cidr]) -> Result<Vec<Cidr>> {
    let mut new = Vec::new();
    if given.is_empty() {
        let mut uses = uses_of_host(&mut Netlink::open()?)?;
        uses.extend(uses_of_podman());
        new.push(free_subnet(&uses)?);
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

/// Returns the subnets of podman's other networks, whose bridges may not exist at the moment.
fn uses_of_podman() -> Vec<Use> {
    let mut uses = Vec::new();
    for dir in podman_networks() {
        let files = match fs::read_dir(&dir) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                debug!("ignore {dir:?}: {error}");
                continue;
            }
        };
        for path in files.filter_map(|file| Some(file.ok()?.path())) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let Ok(network) = json::parse::<Network>(&text) else { continue };
            let by = format!("podman has the network {:?}", network.name);
            uses.extend(network.subnets().iter().map(|subnet| Use { subnet: subnet.subnet, by: by.clone() }));
        }
    }
    uses
}

/// Returns the directories of podman's networks, of root and of this user, unless `containers.conf` names another.
fn podman_networks() -> Vec<PathBuf> {
    let set = |name: &str| process::env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    let of_user = of_user.map(|data| data.join("containers/storage/networks"));
    let of_root = PathBuf::from(OsString::from("/etc/containers/networks"));
    [Some(of_root), of_user].into_iter().flatten().collect()
}
