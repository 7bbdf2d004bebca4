//! The list of plugins for a container, with the configurations that they would have in a CNI network.

use std::net::IpAddr;

use bridge::Bridge;
use cni::{AddResult, Code, Configured, EmbeddedList, Error, IpConfig, Plugin, Result, Version};
use firewall::Firewall;
use linux::ip::Cidr;
use portmap::Portmap;
use serde_json::{Map, Value, json};
use static_ipam::Static;
use tuning::Tuning;

use crate::input::{Input, Ipam, PortMapping};
use crate::options::Options;

/// The most ports of a container, of all its mappings.
const MAX_PORTS: usize = 65_536;

/// Returns the list that attaches the container of `input`.
pub(crate) fn to_add<'a>(input: &Input, network: &'a str) -> Result<EmbeddedList<'a>> {
    let options = Options::parse(input.network.options.as_ref())?;
    input.network.refuse_special_routes()?;
    if let Some(name) = input.container.options.iter().flatten().map(|(name, _)| name).next() {
        let error = Error::new(Code::UNSUPPORTED, format!("option {name:?} of the container is not supported"));
        return Err(error.details("remove it from --network; the driver cni0 has only options of networks"));
    }
    let addresses = match input.network.ipam()? {
        Ipam::Podman => addresses(input)?,
        Ipam::None => Vec::new(),
    };
    if addresses.iter().any(|ip| ip.gateway.is_some()) && addresses.iter().any(|ip| ip.gateway.is_none()) {
        return Err(half_a_gateway());
    }
    input.network.bridge()?;
    let mut plugins: Vec<Configured<'a>> = vec![(&Bridge, bridge(input, &options, &addresses))];
    let ports = ports(input)?;
    // An internal network has no way to or from the outside.
    if !input.network.internal {
        if !ports.is_empty() {
            plugins.push((&Portmap, portmap(ports)));
        }
        plugins.push((&Firewall, firewall(&options)));
    } else if options.ingress_policy != "open" {
        plugins.push((&Firewall, firewall(&options)));
    }
    if !options.tuning.is_empty() {
        plugins.push((&Tuning, options.tuning));
    }
    Ok(list(network, plugins))
}

/// Returns the error for a network with a gateway in only one of several subnets.
pub(crate) fn half_a_gateway() -> Error {
    let error = Error::new(Code::CONFIG, "some subnets of the network have a gateway, and others do not");
    error.details("give each --subnet a --gateway, or none")
}

/// Returns the list that detaches the container of `input`, and what is known of the result of attaching it. Ignores
/// whatever is invalid: the network may have been edited.
pub(crate) fn to_del<'a>(input: &Input, network: &'a str) -> (EmbeddedList<'a>, AddResult) {
    // The network may have had any policy.
    let edited = |_| Options { ingress_policy: "isolated", ..Options::default() };
    let options = Options::parse(input.network.options.as_ref()).unwrap_or_else(edited);
    let ips = input.container.static_ips.iter().flatten();
    let in_subnet = |ip: &IpAddr| address(input, *ip);
    let host = |ip: &IpAddr| IpConfig { address: Cidr::host(*ip), gateway: None, interface: None };
    let ips: Vec<IpConfig> = ips.map(|ip| in_subnet(ip).unwrap_or_else(|| host(ip))).collect();
    let plugins: Vec<Configured<'a>> = vec![
        (&Bridge, bridge(input, &options, &ips)),
        (&Portmap, portmap(ports(input).unwrap_or_default())),
        (&Firewall, firewall(&options)),
        (&Tuning, options.tuning),
    ];
    (list(network, plugins), AddResult { ips, ..AddResult::default() })
}

fn list<'a>(network: &'a str, mut plugins: Vec<Configured<'a>>) -> EmbeddedList<'a> {
    for (plugin, config) in &mut plugins {
        config.insert("cniVersion".into(), Version::NEWEST.as_str().into());
        config.insert("name".into(), network.into());
        config.insert("type".into(), plugin.name().into());
    }
    const DELEGATES: &[&dyn Plugin] = &[&Static];
    EmbeddedList { program: env!("CARGO_PKG_NAME"), network, plugins, delegates: DELEGATES }
}

fn bridge(input: &Input, options: &Options, addresses: &[IpConfig]) -> Map<String, Value> {
    let network = &input.network;
    let mut config = object(json!({
        "hairpinMode": options.hairpin,
        "isGateway": addresses.iter().any(|ip| ip.gateway.is_some()),
        "ipMasq": options.masquerade && !network.internal && !addresses.is_empty(),
    }));
    if !addresses.is_empty() {
        let addresses_of_static: Vec<_> = addresses.iter().map(with_gateway).collect();
        let routes = routes(input, options, addresses);
        config.insert("ipam".into(), json!({"type": "static", "addresses": addresses_of_static, "routes": routes}));
    }
    for (key, value) in [
        ("bridge", network.bridge().ok().map(|name| name.as_str().into())),
        ("mtu", options.mtu.map(Value::from)),
        ("vlan", options.vlan.map(Value::from)),
        ("ipMasqBackend", options.masquerade_backend.clone().map(Value::from)),
        ("runtimeConfig", input.container.static_mac.as_ref().map(|mac| json!({ "mac": mac }))),
    ] {
        config.extend(value.map(|value| (key.to_owned(), value)));
    }
    config
}

fn with_gateway(ip: &IpConfig) -> Value {
    match ip.gateway {
        Some(gateway) => json!({"address": ip.address, "gateway": gateway}),
        None => json!({"address": ip.address}),
    }
}

/// Returns a default route for each family, and the routes of the network.
fn routes(input: &Input, options: &Options, addresses: &[IpConfig]) -> Vec<Value> {
    let route = |dst: Cidr, gw: Option<IpAddr>, metric| json!({"dst": dst, "gw": gw, "priority": metric});
    let mut routes = Vec::new();
    if options.default_route && !input.network.internal {
        for v4 in [true, false] {
            let gateway = addresses.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4);
            routes.extend(gateway.map(|gateway| route(Cidr::default_route(gateway), Some(gateway), options.metric)));
        }
    }
    let given = input.network.routes.iter().flatten();
    routes.extend(given.map(|given| route(given.destination, given.gateway, given.metric.unwrap_or(options.metric))));
    routes
}

/// Returns the addresses that podman chose, each with its gateway and the prefix length of its subnet.
fn addresses(input: &Input) -> Result<Vec<IpConfig>> {
    let ips = input.container.static_ips.as_deref().unwrap_or_default();
    let (name, subnets) = (&input.network.name, input.network.subnets());
    let in_subnet = |ip: &IpAddr| {
        let what = || Error::new(Code::CONFIG, format!("address {ip} is in no subnet of network {name:?}"));
        address(input, *ip).ok_or_else(what)
    };
    let addresses: Vec<IpConfig> = ips.iter().map(in_subnet).collect::<Result<_>>()?;
    for subnet in subnets {
        let has_address = addresses.iter().any(|ip| subnet.subnet.contains(ip.address.ip()));
        if !has_address {
            let what = format!("network {name:?}: podman passed no address of subnet {}", subnet.subnet);
            return Err(Error::new(Code::CONFIG, what));
        }
    }
    Ok(addresses)
}

/// Returns an address with the gateway and the prefix length of its subnet, if it is in one.
fn address(input: &Input, ip: IpAddr) -> Option<IpConfig> {
    let subnet = input.network.subnets().iter().find(|subnet| subnet.subnet.contains(ip))?;
    let address = Cidr::new(ip, subnet.subnet.prefix())?;
    Some(IpConfig { address, gateway: subnet.gateway, interface: None })
}

/// Returns the ports that the container publishes, one by one.
fn ports(input: &Input) -> Result<Vec<Value>> {
    let mut ports = Vec::new();
    for mapping in input.port_mappings.iter().flatten() {
        let PortMapping { host_ip, host_port, container_port, protocol, range } = mapping;
        let last = range.max(&1) - 1;
        if host_port.checked_add(last).is_none() || container_port.checked_add(last).is_none() {
            let what = format!("port mapping {host_port}:{container_port}: a range of {range} ends above 65535");
            return Err(Error::new(Code::CONFIG, what).details("shorten the range"));
        }
        for protocol in protocol.split(',').map(str::trim) {
            let protocol = if protocol.is_empty() { "tcp" } else { protocol };
            ports.extend((0..=last).map(|offset| {
                json!({
                    "hostIP": host_ip, "hostPort": host_port + offset, "containerPort": container_port + offset,
                    "protocol": protocol,
                })
            }));
        }
        if ports.len() > MAX_PORTS {
            return Err(Error::new(Code::CONFIG, format!("more than {MAX_PORTS} ports are too many")));
        }
    }
    Ok(ports)
}

fn portmap(ports: Vec<Value>) -> Map<String, Value> {
    object(json!({"runtimeConfig": {"portMappings": ports}}))
}

fn firewall(options: &Options) -> Map<String, Value> {
    let mut config = object(json!({"ingressPolicy": options.ingress_policy}));
    config.extend(options.firewall_backend.as_ref().map(|backend| ("backend".to_owned(), backend.as_str().into())));
    config
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
