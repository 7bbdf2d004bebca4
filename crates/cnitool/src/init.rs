//! `cnitool init`: writes the configuration of a new network.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use cni::{Code, Context, Error, NetworkName, Program, Result};
use fs2::FileExt;
use interface::subnets::{self, Use, uses_of_host};
use linux::Deadline;
use linux::ip::Cidr;
use linux::netlink::Netlink;
use serde_json::Value;

use crate::conf::{self, NetworkList};
use crate::node::Network;
use crate::{file, out, settings};

/// The network that `cni0-install --conf` writes, too.
pub(crate) const EXAMPLE: &str = include_str!("../../../docs/example.conflist");
/// What a network has in place of these parts of the example.
const NAME: &str = r#""name": "pods""#;
const BRIDGE: &str = r#""bridge": "cni0""#;
const SUBNET: &str = r#""subnet": "10.22.0.0/16""#;

/// The mode of the file. It has no secrets.
const MODE: u32 = 0o644;
/// How long to wait for another `cnitool init`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Writes the network `name`, with these subnets or a free one.
pub(crate) fn run(name: &str, subnets: &[String]) -> Result<()> {
    let name = NetworkName::parse(name)?;
    let dir = settings::configurations();
    let mut subnets = parse(subnets)?;
    let list = validate(&name, &dir, &subnets)?;
    let mut host = Netlink::open()?;
    let mut uses = uses_of_host(&mut host)?;
    subnets.iter().try_for_each(|subnet| require_free(*subnet, &uses))?;
    DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(may_need_root).context(|| create(&dir))?;
    let _lock = lock(&dir)?;

    let found = conf::all(&dir)?;
    conf::warn_of_broken(&found.broken);
    if let Some(list) = found.lists.iter().find(|list| list.name == name) {
        let what = format!("create network {:?}: {} has a network of this name", name.as_str(), list.path.display());
        return Err(Error::new(Code::CONFIG, what).details("choose another name, or remove that file"));
    }
    uses.extend(found.lists.iter().flat_map(uses_of_network));
    subnets.iter().try_for_each(|subnet| require_free(*subnet, &uses))?;
    if subnets.is_empty() {
        subnets.push(free_subnet(&uses)?);
    }
    let bridge = free_bridge(&mut host, &found.lists)?;
    let text = text(&name, &bridge, &subnets);

    let mut files: Vec<OsString> =
        conf::files(&dir)?.iter().filter_map(|path| path.file_name().map(OsString::from)).collect();
    files.sort();
    let path = dir.join(file_name(&name, files.first()));
    // Runtimes ignore the extension of the draft.
    let draft = dir.join(format!(".{name}.{}", std::process::id()));
    file::create(&path, &draft, text.as_bytes(), MODE).map_err(may_need_root).context(|| create(&path))?;
    report(&list, &path, &bridge, &subnets, files.first())
}

fn create(path: &Path) -> String {
    format!("create {}", path.display())
}

fn may_need_root(error: std::io::Error) -> Error {
    let is_denied = error.kind() == ErrorKind::PermissionDenied;
    let error = Error::from(error);
    if is_denied { error.details("run as root, or set NETCONFPATH to a directory of yours") } else { error }
}

/// Keeps other calls of `cnitool init` from choosing the same subnet and bridge. Leaves no trace in the directory.
fn lock(dir: &Path) -> Result<File> {
    let what = || format!("lock {}", dir.display());
    let file = File::open(dir).context(what)?;
    let taken = Deadline::after(TIMEOUT).run_interruptible(|| FileExt::lock_exclusive(&file)).context(what)?;
    taken.ok_or_else(|| {
        let what = format!("lock {}: another program held it for {} seconds", dir.display(), TIMEOUT.as_secs());
        Error::new(Code::TRY_LATER, what).details("`lslocks` shows the program")
    })?;
    Ok(file)
}

/// Parses the values of `--subnet`: at most one of each family.
fn parse(texts: &[String]) -> Result<Vec<Cidr>> {
    let mut subnets: Vec<Cidr> = Vec::new();
    for text in texts {
        let invalid = |why: String| Error::new(Code::CONFIG, format!("--subnet: {why}"));
        let subnet: Cidr = text.parse().map_err(|why: linux::ip::Invalid| invalid(why.to_string()))?;
        if subnet.network() != subnet {
            let error = invalid(format!("{subnet} has host bits set"));
            return Err(error.details(format!("write {}", subnet.network())));
        }
        if subnet.ip().is_multicast() {
            return Err(invalid(format!("{subnet} is for multicast")).details("write a subnet such as 10.22.0.0/16"));
        }
        if let Some(other) = subnets.iter().find(|other| other.ip().is_ipv4() == subnet.ip().is_ipv4()) {
            let error = invalid(format!("{other} and {subnet} are of the same family"));
            return Err(error.details("give at most one subnet of IPv4 and one of IPv6"));
        }
        subnets.push(subnet);
    }
    Ok(subnets)
}

/// Returns the network as a runtime reads it, if its plugins accept it. Its bridge can be another one.
fn validate(name: &NetworkName, dir: &Path, subnets: &[Cidr]) -> Result<NetworkList> {
    let list = conf::parse(&dir.join(format!("{name}.conflist")), text(name, "cni0", subnets).as_bytes())?;
    Network::read(list.clone()).faults.into_iter().next().map_or(Ok(list), Err)
}

/// Returns the subnets in the configuration of a network: all texts of an `ipam` object that are one, except in routes.
fn uses_of_network(list: &NetworkList) -> Vec<Use> {
    fn collect(value: &Value, subnets: &mut Vec<Cidr>) {
        match value {
            Value::String(text) => subnets.extend(text.parse::<Cidr>().ok().filter(|subnet| !subnet.is_default())),
            Value::Array(values) => values.iter().for_each(|value| collect(value, subnets)),
            Value::Object(members) => {
                let members = members.iter().filter(|(key, _)| !key.eq_ignore_ascii_case("routes"));
                members.for_each(|(_, value)| collect(value, subnets));
            }
            _ => {}
        }
    }
    let mut subnets = Vec::new();
    for (_, ipam) in list.plugins.iter().flat_map(|plugin| &plugin.config).filter(|(key, _)| *key == "ipam") {
        collect(ipam, &mut subnets);
    }
    let by = |subnet: &Cidr| format!("network {:?} in {} has {subnet}", list.name.as_str(), list.path.display());
    subnets.into_iter().map(|subnet| Use { subnet, by: by(&subnet) }).collect()
}

fn require_free(subnet: Cidr, uses: &[Use]) -> Result<()> {
    match uses.iter().find(|used| used.subnet.overlaps(&subnet)) {
        Some(Use { by, .. }) => {
            let error = Error::new(Code::CONFIG, format!("--subnet: {subnet} is in use: {by}"));
            Err(error.details("choose another subnet; without --subnet, cnitool finds one"))
        }
        None => Ok(()),
    }
}

/// Returns the first private subnet that is not in use. Those that other programs often take, such as 10.42.0.0/16 and
/// 10.244.0.0/16 of Kubernetes, are not tried.
fn free_subnet(uses: &[Use]) -> Result<Cidr> {
    let tens = (22..40).map(|n| (Ipv4Addr::new(10, n, 0, 0), 16));
    let seventeens = (24..32).map(|n| (Ipv4Addr::new(172, n, 0, 0), 16));
    let nineteens = (100..200).map(|n| (Ipv4Addr::new(192, 168, n, 0), 24));
    let all = tens.chain(seventeens).chain(nineteens);
    let candidates = all.filter_map(|(ip, prefix)| Cidr::new(IpAddr::V4(ip), prefix));
    subnets::first_free(candidates, uses).ok_or_else(|| {
        let what = "choose a subnet: all that cnitool tries are in use";
        Error::new(Code::CONFIG, what).details("give a subnet with --subnet")
    })
}

/// Returns the first `cniN` that is neither a link of the host nor the bridge of another network.
fn free_bridge(host: &mut Netlink, lists: &[NetworkList]) -> Result<String> {
    let bridges: Vec<String> = lists.iter().filter_map(|list| Some(Network::read(list.clone()).bridge?.name)).collect();
    let mut number = 0_u32;
    loop {
        let name = format!("cni{number}");
        if !bridges.contains(&name) && host.link_index(&name)?.is_none() {
            return Ok(name);
        }
        number += 1;
    }
}

/// Returns the configuration: the example with another name and bridge, and with these subnets if there are any.
fn text(name: &NetworkName, bridge: &str, subnets: &[Cidr]) -> String {
    let ranges = match subnets {
        [] => SUBNET.to_owned(),
        [subnet] => format!(r#""subnet": "{subnet}""#),
        _ => {
            let sets: Vec<String> = subnets.iter().map(|subnet| format!(r#"[{{ "subnet": "{subnet}" }}]"#)).collect();
            format!(r#""ranges": [{}]"#, sets.join(", "))
        }
    };
    let text = EXAMPLE.replacen(NAME, &format!(r#""name": "{name}""#), 1);
    text.replacen(BRIDGE, &format!(r#""bridge": "{bridge}""#), 1).replacen(SUBNET, &ranges, 1)
}

/// Returns the name of the file. It sorts after the first file of the directory, so that it does not become the network
/// of runtimes that use only the first one.
fn file_name(name: &NetworkName, first: Option<&OsString>) -> String {
    let mut names = (1..=9).map(|n| format!("{n}0-{name}.conflist"));
    let fitting = names.find(|file| first.is_none_or(|first| **first < *file.as_str()));
    fitting.unwrap_or_else(|| format!("99-{name}.conflist"))
}

fn report(list: &NetworkList, path: &Path, bridge: &str, subnets: &[Cidr], first: Option<&OsString>) -> Result<()> {
    let (name, subnets) = (&list.name, subnets.iter().map(Cidr::to_string).collect::<Vec<_>>().join(", "));
    out::print(format!("network {name} is configured in {}: bridge {bridge}, {subnets}\n", path.display()))?;
    if let Some(first) = first.filter(|first| path.file_name().is_some_and(|own| **first < *own)) {
        let first = first.display();
        out::print(format!("containerd and CRI-O use the first file of the directory, which is still {first}\n"))?;
    }
    let dirs = settings::plugins();
    let wanted = list.plugins.iter().map(|plugin| plugin.kind.as_str()).chain(["host-local"]);
    for error in wanted.filter_map(|plugin| Program::find(&dirs, plugin).err()) {
        out::print_error(&error);
    }
    out::print(format!(
        "\nWhat you can do next, as root:\n  \
           ip netns add blue\n  \
           cnitool add {name} blue   # attaches a namespace\n  \
           cnitool show {name}       # shows the bridge and its containers\n  \
           cnitool del {name} blue   # detaches the namespace\n  \
           cnitool doctor {name}     # checks this host\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NetworkName {
        NetworkName::parse(text).unwrap()
    }

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn the_example_is_a_network_like_any_other() {
        for part in [NAME, BRIDGE, SUBNET] {
            assert_eq!(EXAMPLE.matches(part).count(), 1, "{part}");
        }
        assert_eq!(text(&name("pods"), "cni0", &[cidr("10.22.0.0/16")]), EXAMPLE);
        let both = text(&name("p2"), "cni7", &[cidr("10.9.0.0/24"), cidr("fd09::/64")]);
        let ipam = r#""ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]]"#;
        assert!(both.contains(ipam) && both.contains("\"p2\"") && both.contains("\"cni7\""), "{both}");
    }

    #[test]
    fn the_first_free_subnet_is_chosen() {
        let in_use = |subnets: &[&str]| {
            free_subnet(&subnets.iter().map(|text| Use { subnet: cidr(text), by: String::new() }).collect::<Vec<_>>())
        };
        assert_eq!(in_use(&[]).unwrap(), cidr("10.22.0.0/16"));
        assert_eq!(in_use(&["10.22.200.0/24", "10.23.0.1/32"]).unwrap(), cidr("10.24.0.0/16"));
        assert_eq!(in_use(&["10.0.0.0/8"]).unwrap(), cidr("172.24.0.0/16"));
        assert_eq!(in_use(&["10.0.0.0/8", "172.16.0.0/12"]).unwrap(), cidr("192.168.100.0/24"));
        assert!(in_use(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]).is_err());
    }

    #[test]
    fn the_file_does_not_become_the_first() {
        let file = |first: Option<&str>| file_name(&name("pods"), first.map(OsString::from).as_ref());
        assert_eq!(file(None), "10-pods.conflist");
        assert_eq!(file(Some("05-other.conf")), "10-pods.conflist");
        assert_eq!(file(Some("10-zz.conflist")), "20-pods.conflist");
        assert_eq!(file(Some("87-podman.conflist")), "90-pods.conflist");
        assert_eq!(file(Some("99-a.conf")), "99-pods.conflist");
    }

    #[test]
    fn subnets_of_other_networks_are_in_use() {
        let text = r#"{"cniVersion": "1.0.0", "name": "x", "type": "macvlan", "ipam": {"type": "static",
            "addresses": [{"address": "10.5.0.7/24"}], "routes": [{"dst": "10.6.0.0/16"}, {"dst": "0.0.0.0/0"}]}}"#;
        let list = conf::parse(Path::new("/x/x.conf"), text.as_bytes()).unwrap();
        let uses = uses_of_network(&list);
        assert_eq!(uses.iter().map(|used| used.subnet).collect::<Vec<_>>(), [cidr("10.5.0.7/24")]);
        assert!(require_free(cidr("10.5.0.0/16"), &uses).is_err() && require_free(cidr("10.6.0.0/16"), &uses).is_ok());
    }
}
