//! For tools: generates the configuration of the delegate, reports problems of the subnet file, and lists state files.

use std::path::Path;

use cni::inspect::{Finding, Generated, Id, Inspect, NetworkView, Object, ObjectKind, Owner, Settings, Shape, Subject};
use cni::{AttachmentKey, Call, Keep, Result};
use linux::ip::Cidr;
use linux::netlink::{Link, Netlink};

use crate::config::{self, Config, DATA_DIR};
use crate::delegate::DelegateConfig;
use crate::state::{self, StateFile};
use crate::subnet::SubnetFile;
use crate::{Flannel, generate_to_clean_up, read_if_exists};

/// The kind of objects that the plugin creates.
static KINDS: [ObjectKind; 1] =
    [ObjectKind { name: "state", noun: "state file", flag: "state", json: "stateFile", is_listed: false }];

/// The checks of the subnet file and of the MTU.
const CHECK: &str = "flannel";
const MTU: &str = "mtu";

/// The names of flanneld's tunnels. The first two end in the number of the virtual network.
const TUNNELS: [&str; 2] = ["flannel.", "flannel-wg"];
const TUNNELS_V6: [&str; 2] = ["flannel-v6.", "flannel-wg-v6"];

impl Inspect for Flannel {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::parse(call).map(|_| Settings::default())
    }

    /// Without a subnet file, generates the configuration as for DEL, so that the tool sees what is left of earlier.
    fn delegate(&self, call: &Call<'_>) -> Result<Option<Generated>> {
        let config = Config::parse(call)?;
        let file = read_if_exists(&config);
        let (kind, config) = generate_to_clean_up(call, &config, file.as_ref())?;
        Ok(Some(Generated { kind, config, is_complete: file.is_some() }))
    }

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    /// Lists the state files in the default directory.
    fn objects(&self) -> Result<Vec<Object>> {
        let directory = Path::new(DATA_DIR);
        Ok(state::list(directory)?.into_iter().map(|file| object(directory, file)).collect())
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        state::collect(&Config::parse_to_clean_up(call)?.data_dir, keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        let path = &config.subnet_file;
        let subject = || [Subject::file(path)];
        let file = match SubnetFile::read(path) {
            Ok(file) => file,
            Err(error) => {
                return Ok(vec![Finding::error(CHECK, Id("flannel-subnet-invalid"), &error).about(subject())]);
            }
        };
        let subnets: Vec<_> = file.subnets.iter().map(ToString::to_string).collect();
        let summary = format!("this node has subnet {}, MTU {} ({})", subnets.join(" and "), file.mtu, path.display());
        let warnings = file.warnings().into_iter();
        let remedy = "check flannel's \"Network\", and the subnet or podCIDR of this node";
        let warnings = warnings.map(|what| {
            Finding::warn(CHECK, Id("flannel-subnet-inconsistent"), format!("{}: {what}", path.display()))
                .remedy(remedy)
                .about(subject())
        });
        let delegate = DelegateConfig::generate(network.call, &config, &file)?;
        let narrow = too_narrow(&Netlink::open()?.links(None)?, &file.subnets, delegate.mtu());
        Ok([Finding::ok(CHECK, Id("flannel-subnet"), summary)].into_iter().chain(warnings).chain(narrow).collect())
    }
}

/// Reports a tunnel that does not carry the packets of containers. In dual stack, flanneld writes the MTU of the IPv4
/// tunnel, and the header of the IPv6 tunnel is larger.
fn too_narrow(links: &[Link], subnets: &[Cidr], mtu: Option<u32>) -> Option<Finding> {
    let is_used = |link: &&Link| {
        let is_v6 = TUNNELS_V6.iter().any(|start| link.name.starts_with(start));
        let is_tunnel = is_v6 || TUNNELS.iter().any(|start| link.name.starts_with(start));
        is_tunnel && subnets.iter().any(|subnet| subnet.ip().is_ipv6() == is_v6)
    };
    let mtu = mtu?;
    let tunnel = links.iter().filter(is_used).min_by_key(|link| link.mtu).filter(|tunnel| tunnel.mtu < mtu)?;
    let (name, carried) = (&tunnel.name, tunnel.mtu);
    let text = format!(
        "containers send packets of {mtu} bytes, and {name} carries {carried}: if ICMP is filtered, they are lost"
    );
    let remedy = format!("set \"mtu\": {carried} in \"delegate\" of the network's configuration");
    Some(Finding::warn(MTU, Id("mtu-exceeds-tunnel"), text).about([Subject::link(name)]).remedy(remedy))
}

fn object(directory: &Path, file: StateFile) -> Object {
    let StateFile { name, network, container, ifname } = file;
    let owner = match &ifname {
        Some(ifname) => Owner::Marked(AttachmentKey { network: &network, container: &container, ifname }.mark()),
        None => Owner::Container(container.clone()),
    };
    Object {
        kind: &KINDS[0],
        owner,
        backend: "file",
        address: None,
        comment: directory.join(&name).display().to_string(),
        about: network,
        detail: String::new(),
        properties: Vec::new(),
        name,
    }
}
