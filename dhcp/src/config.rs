//! Reads and validates the configuration of `dhcp`.

use std::path::PathBuf;

use cni::inspect::Shape;
use cni::json::Fault;
use cni::{Attachment, Call, Code, Error, Result};
use serde::Deserialize;

use crate::settings::Settings;
use crate::v4::message::option;

/// Where the daemon listens, as in the reference.
pub(crate) const SOCKET: &str = "/run/cni/dhcp.sock";
/// The options that a client requests by default. A server sends them in this order, and may not have space for all.
/// Those that replace others come first.
const REQUESTS: [u8; 11] = [
    option::SUBNET_MASK,
    option::CLASSLESS_ROUTES,
    option::ROUTERS,
    option::STATIC_ROUTES,
    option::NAME_SERVERS,
    option::DOMAIN,
    option::SEARCH,
    option::MTU,
    option::LEASE_TIME,
    option::RENEWAL_TIME,
    option::REBINDING_TIME,
];
/// The options that the client sets itself.
const OWN: [u8; 8] = [
    option::PAD,
    option::REQUESTED_ADDRESS,
    option::OVERLOAD,
    option::KIND,
    option::SERVER,
    option::REQUESTS,
    option::MAX_SIZE,
    option::END,
];
/// The names of options that the reference knows.
const NAMES: [(&str, u8); 6] = [
    ("dhcp-client-identifier", option::CLIENT),
    ("subnet-mask", option::SUBNET_MASK),
    ("routers", option::ROUTERS),
    ("host-name", option::HOST_NAME),
    ("user-class", option::USER_CLASS),
    ("vendor-class-identifier", option::VENDOR_CLASS),
];
/// The length of a client identifier in the reference, in bytes.
const CLIENT_LENGTH: usize = 254;

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// Whether the interface gets an IPv4 address.
    pub(crate) ipv4: bool,
    /// How it gets IPv6 addresses.
    pub(crate) ipv6: Option<Ipv6>,
    /// What the client sends to the server, and what it does with the answer. The client identifier is that of the
    /// attachment.
    pub(crate) settings: Settings,
}

/// Where IPv6 addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv6 {
    /// The kernel makes them from router advertisements.
    Slaac,
    /// A DHCPv6 server leases one.
    Dhcp,
}

#[derive(Deserialize)]
struct Network {
    ipam: Option<Ipam>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    daemon_socket_path: String,
    start_daemon: Option<bool>,
    request: Vec<Requested>,
    provide: Vec<Provided>,
    priority: u32,
    client_identifier: String,
    broadcast: Option<bool>,
    use_gateway: Option<bool>,
    use_dns: Option<bool>,
    use_mtu: Option<bool>,
    ipv4: Option<bool>,
    ipv6: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Requested {
    option: String,
    skip_default: bool,
    required: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Provided {
    option: String,
    value: String,
    from_arg: String,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Network>()
}

/// The daemon of a network.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint<'a> {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    /// The directories that have its program, if the plugin starts it.
    pub(crate) starts_from: Option<&'a [PathBuf]>,
}

/// Returns the daemon of a network, whatever else the configuration says, for calls that remove or ask.
pub(crate) fn endpoint<'a>(call: &Call<'a>) -> Endpoint<'a> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Only {
        ipam: OnlyIpam,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct OnlyIpam {
        daemon_socket_path: String,
        start_daemon: Option<bool>,
    }
    let OnlyIpam { daemon_socket_path: path, start_daemon } = call.parse().unwrap_or_else(|_| Only::default()).ipam;
    let socket = if path.is_empty() { PathBuf::from(SOCKET) } else { PathBuf::from(path) };
    Endpoint { socket, starts_from: start_daemon.unwrap_or(false).then_some(call.path) }
}

impl Config {
    /// Returns whether the daemon leases an address.
    pub(crate) fn needs_daemon(&self) -> bool {
        self.ipv4 || self.ipv6 == Some(Ipv6::Dhcp)
    }

    /// Reads and validates the whole configuration, without side effects. `at` is the attachment for which the client
    /// sends an identifier.
    pub(crate) fn read(call: &Call<'_>, at: Option<&Attachment>) -> Result<Config> {
        let network: Network = call.parse()?;
        let Some(ipam) = network.ipam else {
            let error = Error::new(Code::CONFIG, "the configuration has no key \"ipam\"");
            return Err(error.details("add \"ipam\" with \"type\": \"dhcp\""));
        };
        let (ipv4, ipv6) = (ipam.ipv4.unwrap_or(true), ipv6(call, &ipam.ipv6)?);
        if !ipv4 && ipv6.is_none() {
            let fault = Fault::value("with false, no address is left to ask for").under("ipam.ipv4");
            return Err(Error::from(fault).details("set \"ipam.ipv6\", or remove \"ipam.ipv4\""));
        }
        let mut requests = Vec::new();
        if !ipam.request.iter().any(|requested| requested.skip_default) {
            requests.extend(REQUESTS);
        }
        let mut required = Vec::new();
        for (i, requested) in ipam.request.iter().enumerate() {
            let number = number(&requested.option, &format!("ipam.request[{i}].option"))?;
            if !requests.contains(&number) {
                requests.push(number);
            }
            if requested.required {
                required.push(number);
            }
        }
        let mut options = Vec::new();
        for (i, provided) in ipam.provide.iter().enumerate() {
            let option = provided.read(call.args, i)?;
            options.retain(|(other, _)| *other != option.0);
            options.push(option);
        }
        let client = match at {
            Some(at) => identifier(call, at, &ipam.client_identifier)?,
            None => None,
        };
        Ok(Config {
            ipv4,
            ipv6,
            settings: Settings {
                client,
                options,
                requests,
                required,
                broadcast: ipam.broadcast,
                priority: ipam.priority,
                ignore_gateway: !ipam.use_gateway.unwrap_or(true),
                ignore_dns: !ipam.use_dns.unwrap_or(true),
                set_mtu: ipam.use_mtu.unwrap_or(false),
            },
        })
    }
}

/// Reads where IPv6 addresses come from.
fn ipv6(call: &Call<'_>, key: &str) -> Result<Option<Ipv6>> {
    /// A key of `macvlan`, `ipvlan` and `vlan`.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Advertisements {
        accept_ra: Option<bool>,
    }
    let ipv6 = match key {
        "" => return Ok(None),
        "slaac" => Ipv6::Slaac,
        "dhcpv6" => Ipv6::Dhcp,
        other => {
            let fault = Fault::value(format!("unknown source of addresses {other:?}")).under("ipam.ipv6");
            return Err(Error::from(fault).details("use \"slaac\" or \"dhcpv6\""));
        }
    };
    let found: Advertisements = call.parse()?;
    if found.accept_ra == Some(false) {
        let fault = Fault::value("needs router advertisements, which \"acceptRa\": false ignores").under("ipam.ipv6");
        return Err(Error::from(fault).details("remove \"acceptRa\", or \"ipam.ipv6\""));
    }
    Ok(Some(ipv6))
}

impl Provided {
    /// Returns the number and the value of the option. A variable in `CNI_ARGS` precedes the value in the
    /// configuration.
    fn read(&self, args: &str, index: usize) -> Result<(u8, Vec<u8>)> {
        let key = format!("ipam.provide[{index}]");
        let number = number(&self.option, &format!("{key}.option"))?;
        let of_variable = Some(self.from_arg.as_str()).filter(|name| !name.is_empty());
        let value = of_variable.and_then(|name| argument(args, name)).unwrap_or(&self.value);
        if value.len() > 255 {
            let why = format!("the value of option {number} has {} bytes", value.len());
            return Err(Error::from(Fault::value(why).under(&key)).details("an option has at most 255"));
        }
        if OWN.contains(&number) {
            let why = format!("the client sets option {number} itself");
            return Err(Error::from(Fault::value(why).under(&key)).details("remove the option"));
        }
        Ok((number, value.as_bytes().to_vec()))
    }
}

/// Returns the number of an option, which the configuration names or numbers.
fn number(name: &str, key: &str) -> Result<u8> {
    let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let number = known.or_else(|| name.parse().ok().filter(|number| ![option::PAD, option::END].contains(number)));
    number.ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let why = format!("cannot parse the option {name:?}");
        Error::from(Fault::value(why).under(key))
            .details(format!("use a number from 1 to 254, or one of {}", names.join(", ")))
    })
}

/// Returns a variable in `CNI_ARGS`. As in the reference, any other variable there is ignored, also without
/// `IgnoreUnknown`.
fn argument<'a>(args: &'a str, name: &str) -> Option<&'a str> {
    args.split(';').filter_map(|pair| pair.split_once('=')).find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// Returns the identifier of a client; `None` for its MAC address. That of the reference names the container, so a
/// container that is created again gets another address.
fn identifier(call: &Call<'_>, at: &Attachment, key: &str) -> Result<Option<Vec<u8>>> {
    let (network, container, ifname) = (call.network.as_str(), at.container.as_str(), at.ifname.as_str());
    let of_pod = |name| argument(call.args, name).filter(|value| !value.is_empty());
    let pod = of_pod("K8S_POD_NAME");
    let namespace = of_pod("K8S_POD_NAMESPACE").unwrap_or_default();
    let text = match key {
        "" => format!("{container}/{network}/{ifname}"),
        "mac" => return Ok(None),
        "name" => match pod {
            Some(pod) => format!("{namespace}/{pod}/{network}/{ifname}"),
            None => format!("{container}/{network}/{ifname}"),
        },
        template => {
            let values = [
                ("{container}", container),
                ("{network}", network),
                ("{interface}", ifname),
                ("{namespace}", namespace),
                ("{pod}", pod.unwrap_or(container)),
            ];
            values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
        }
    };
    if text.contains(['{', '}']) {
        let why = format!("{text:?} has an unknown part");
        let error = Error::from(Fault::value(why).under("ipam.clientIdentifier"));
        return Err(error.details("use {container}, {network}, {interface}, {namespace} and {pod}"));
    }
    let mut bytes = vec![0];
    bytes.extend(text.bytes());
    bytes.truncate(CLIENT_LENGTH);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testing::document;

    use super::*;

    fn read(ipam: serde_json::Value) -> Result<Settings> {
        let text = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam}).to_string();
        let at = Attachment {
            container: cni::ContainerId::parse("c1".as_ref()).unwrap(),
            ifname: cni::IfName::parse("eth0".as_ref()).unwrap(),
            netns: None,
        };
        let mut call = Call::for_config(&text)?;
        call.args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;HOST=web";
        Config::read(&call, Some(&at)).map(|config| config.settings)
    }

    fn client(key: &str) -> Vec<u8> {
        read(json!({"clientIdentifier": key})).unwrap().client.unwrap_or_else(|| b"mac".to_vec())
    }

    #[test]
    fn the_keys_are_described() {
        document::describes("dhcp", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let ipam = json!({"type": "dhcp", "request": [{"option": "26"}], "provide": [{"option": "60"}]});
        let bare = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam});
        document::defaults("dhcp", &bare, |text| {
            Config::read(&Call::for_config(text)?, None).map(|config| format!("{config:?}"))
        });
    }

    #[test]
    fn options_are_named_or_numbered() {
        let settings = read(json!({
            "request": [{"option": "26", "required": true}, {"option": "host-name"}],
            "provide": [
                {"option": "host-name", "value": "other", "fromArg": "HOST"},
                {"option": "60", "value": "cni", "fromArg": "NONE"},
                {"option": "60", "value": "twice"},
            ],
        }))
        .unwrap();
        assert_eq!(settings.options, [(12, b"web".to_vec()), (60, b"twice".to_vec())]);
        assert_eq!(settings.requests, [&REQUESTS[..], &[12]].concat());
        assert_eq!(settings.required, [26]);
        let own = read(json!({"request": [{"option": "6", "skipDefault": true}]})).unwrap();
        assert_eq!(own.requests, [6]);
        for bad in [
            json!({"request": [{"option": "foo"}]}),
            json!({"request": [{"option": "0"}]}),
            json!({"request": [{"option": "255"}]}),
            json!({"provide": [{"option": "256"}]}),
            json!({"provide": [{"option": "53", "value": "x"}]}),
            json!({"provide": [{"option": "12", "value": "x".repeat(256)}]}),
            json!({"clientIdentifier": "{nonsense}"}),
        ] {
            assert_eq!(read(bad.clone()).unwrap_err().code(), Code::CONFIG, "{bad}");
        }
    }

    #[test]
    fn at_least_one_family_is_asked_for() {
        let families = |ipam, more: serde_json::Value| {
            let mut text = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam});
            text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let text = text.to_string();
            Config::read(&Call::for_config(&text).unwrap(), None).map(|config| (config.ipv4, config.ipv6))
        };
        assert_eq!(families(json!({}), json!({})), Ok((true, None)));
        assert_eq!(families(json!({"ipv6": "slaac"}), json!({"acceptRa": true})), Ok((true, Some(Ipv6::Slaac))));
        assert_eq!(families(json!({"ipv4": false, "ipv6": "dhcpv6"}), json!({})), Ok((false, Some(Ipv6::Dhcp))));
        for (ipam, more, why) in [
            (json!({"ipv4": false}), json!({}), "no address is left"),
            (json!({"ipv6": "SLAAC"}), json!({}), "unknown source of addresses \"SLAAC\""),
            (json!({"ipv6": "slaac"}), json!({"acceptRa": false}), "needs router advertisements"),
        ] {
            let error = families(ipam, more).unwrap_err();
            assert!(error.code() == Code::CONFIG && error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_client_identifier_names_what_the_configuration_says() {
        assert_eq!(client(""), b"\0c1/lan/eth0", "as in the reference");
        assert_eq!(client("mac"), b"mac");
        assert_eq!(client("name"), b"\0shop/web-0/lan/eth0");
        assert_eq!(client("{pod}.{namespace}"), b"\0web-0.shop");
        assert_eq!(client(&"x".repeat(300)).len(), CLIENT_LENGTH);
    }
}
