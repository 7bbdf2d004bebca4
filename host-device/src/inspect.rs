//! For tools: reads configurations, lists the devices that containers have, and reports devices that are missing.

use cni::inspect::{
    ContainerLink, Finding, Id, Inspect, Master, NetworkView, Object, ObjectKind, Owner, Property, Settings, Shape,
    Subject,
};
use cni::{Call, IfName, Keep, Result};
use linux::netlink::Netlink;

use crate::config::{self, Config};
use crate::device::Device;
use crate::record::Record;
use crate::{HostDevice, give_back};

/// The kind of objects that the plugin creates.
static KINDS: [ObjectKind; 1] =
    [ObjectKind { name: "device", noun: "device", flag: "device", json: "devices", is_listed: true }];

impl Inspect for HostDevice {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let config = Config::parse(call)?;
        let name = config.device_of_network()?.map(|device| match device {
            Device::Name(name) => IfName::to_string(name),
            Device::Mac(mac) => mac.to_string(),
            Device::Hardware { dir, .. } => dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        });
        let name = Some(name.unwrap_or_else(|| "each container's own".to_owned()));
        let link = ContainerLink { what: "host-device".to_owned(), master: Some(Master { name, in_container: false }) };
        Ok(Settings { link: Some(link), ..Settings::default() })
    }

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    fn objects(&self) -> Result<Vec<Object>> {
        Ok(Record::all()?.iter().map(object).collect())
    }

    fn collect(&self, _: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        give_back::collect(keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        let Some(device) = config.device_of_network()?.filter(|device| !config.is_dpdk(device)) else {
            return Ok(Vec::new());
        };
        if let Some(holder) = device.holder() {
            return Ok(vec![Finding::ok(
                KINDS[0].name,
                Id("device-chosen-by-runtime"),
                format!("{:?} is in container {}", holder.name, holder.container),
            )]);
        }
        Ok(vec![match device.find(&mut Netlink::open()?, "") {
            Ok(link) => Finding::ok(KINDS[0].name, Id("device-present"), format!("{} is on the host", link.name))
                .about([Subject::link(&link.name)]),
            Err(missing) => Finding::error(KINDS[0].name, Id("device-missing"), &missing),
        }])
    }
}

/// Returns what a tool shows of a device that a container has.
fn object(record: &Record) -> Object {
    let key = record.key();
    let comment = key.comment();
    Object {
        kind: &KINDS[0],
        owner: Owner::Marked(key.mark()),
        backend: "file",
        address: None,
        name: record.name.clone(),
        detail: format!("{} -> {}", record.name, record.ifname),
        properties: vec![
            ("device", Property::Text(record.name.clone())),
            ("ifname", Property::Text(record.ifname.clone())),
            ("hardware", Property::Text(record.hardware.clone())),
        ],
        about: comment.split_once(", net: ").map_or(comment.as_str(), |(_, about)| about).to_owned(),
        comment,
    }
}
