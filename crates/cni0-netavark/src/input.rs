//! What podman passes on stdin. Keys that this plugin does not use are ignored.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::{Code, Error, IfName, NetworkName, Result};
use linux::ip::Cidr;
use serde::Deserialize;

/// The names and values of options.
pub(crate) type Pairs = BTreeMap<String, String>;

/// A container and its network, for `setup` and `teardown`.
#[derive(Deserialize)]
pub(crate) struct Input {
    pub(crate) container_id: String,
    #[serde(default)]
    pub(crate) port_mappings: Option<Vec<PortMapping>>,
    pub(crate) network: Network,
    #[serde(rename = "network_options")]
    pub(crate) container: Container,
}

/// What is special about a container on this network.
#[derive(Deserialize)]
pub(crate) struct Container {
    pub(crate) interface_name: String,
    #[serde(default)]
    pub(crate) static_ips: Option<Vec<IpAddr>>,
    #[serde(default)]
    pub(crate) static_mac: Option<String>,
    #[serde(default)]
    pub(crate) options: Option<Pairs>,
}

/// A network.
#[derive(Deserialize)]
pub(crate) struct Network {
    pub(crate) name: String,
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) internal: bool,
    #[serde(default)]
    pub(crate) ipv6_enabled: bool,
    #[serde(default)]
    pub(crate) network_interface: Option<String>,
    #[serde(default)]
    pub(crate) options: Option<Pairs>,
    #[serde(default)]
    pub(crate) ipam_options: Option<Pairs>,
    #[serde(default)]
    pub(crate) subnets: Option<Vec<Subnet>>,
    #[serde(default)]
    pub(crate) routes: Option<Vec<Route>>,
}

#[derive(Deserialize)]
pub(crate) struct Subnet {
    pub(crate) subnet: Cidr,
    #[serde(default)]
    pub(crate) gateway: Option<IpAddr>,
}

#[derive(Deserialize)]
pub(crate) struct Route {
    pub(crate) destination: Cidr,
    #[serde(default)]
    pub(crate) gateway: Option<IpAddr>,
    #[serde(default)]
    pub(crate) metric: Option<u32>,
    #[serde(default)]
    pub(crate) route_type: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct PortMapping {
    #[serde(default)]
    pub(crate) host_ip: String,
    pub(crate) host_port: u16,
    pub(crate) container_port: u16,
    #[serde(default)]
    pub(crate) protocol: String,
    #[serde(default)]
    pub(crate) range: u16,
}

/// Who chooses the addresses of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipam {
    /// podman, from the subnets.
    Podman,
    /// The containers have no addresses.
    None,
}

impl Network {
    /// Returns the name of the network in marks and rules. It differs from that of a CNI network with the same name,
    /// whose GC must not remove containers of podman.
    pub(crate) fn key(&self) -> Result<NetworkName> {
        NetworkName::parse(&format!("netavark-{}", self.name))
    }

    /// Returns the name of the bridge.
    pub(crate) fn bridge(&self) -> Result<IfName> {
        match self.network_interface.as_deref().filter(|name| !name.is_empty()) {
            None => {
                let [name, short] = self.own_bridges()?;
                let has_vlan = self.options.as_ref().is_some_and(|options| options.contains_key("vlan"));
                Ok(if has_vlan { short } else { name })
            }
            Some(name) => IfName::from_config(name).map_err(|why| {
                Error::new(Code::CONFIG, format!("network_interface {name:?} is not a valid bridge name")).details(why)
            }),
        }
    }

    /// Returns the names of the bridge of a network that names none: one as unique as the ID, which shows that the
    /// bridge belongs to the network, and one with room for the name of a VLAN's gateway, such as `cni-2f259b.4094`.
    pub(crate) fn own_bridges(&self) -> Result<[IfName; 2]> {
        let name = |length| {
            let digits = self.id.get(..length).filter(|id| id.bytes().all(|c| c.is_ascii_hexdigit()));
            digits.and_then(|digits| IfName::from_config(&format!("cni-{digits}")).ok())
        };
        match (name(11), name(6)) {
            (Some(long), Some(short)) => Ok([long, short]),
            _ => Err(Error::new(Code::CONFIG, format!("network id {:?} is not one of podman", self.id))),
        }
    }

    /// Returns the subnets.
    pub(crate) fn subnets(&self) -> &[Subnet] {
        self.subnets.as_deref().unwrap_or_default()
    }

    pub(crate) fn ipam(&self) -> Result<Ipam> {
        let driver = self.ipam_options.as_ref().and_then(|options| options.get("driver"));
        match driver.map_or("", String::as_str) {
            "" | "host-local" => Ok(Ipam::Podman),
            "none" => Ok(Ipam::None),
            other => {
                let error = Error::new(Code::UNSUPPORTED, format!("IPAM driver {other:?} is not supported"));
                Err(error.details("use --ipam-driver host-local, which is the default, or none"))
            }
        }
    }

    /// Returns an error if the interfaces of containers cannot have the routes of the network.
    pub(crate) fn refuse_special_routes(&self) -> Result<()> {
        for Route { destination, gateway, route_type, .. } in self.routes.iter().flatten() {
            let refuse = |what: String, remedy| Err(Error::new(Code::UNSUPPORTED, what).details(remedy));
            match route_type.as_deref() {
                None | Some("" | "unicast") => {}
                Some(other) => {
                    let remedy = "add it with `ip route` in the container, or use the driver bridge";
                    return refuse(format!("route to {destination}: type {other:?} is not supported"), remedy);
                }
            }
            let Some(gateway) = gateway else {
                return refuse(format!("route to {destination}: it has no gateway"), "add a gateway");
            };
            if gateway.is_ipv4() != destination.ip().is_ipv4() {
                return refuse(
                    format!("route to {destination} via {gateway}: one is IPv4, the other IPv6"),
                    "correct it",
                );
            }
        }
        Ok(())
    }
}
