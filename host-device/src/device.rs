//! The device that a configuration describes: finding it on the host, by its name, its address or its hardware.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

use cni::{Code, Context, Error, IfName, Result};
use linux::ip::MacAddr;
use linux::netlink::{Link, Netlink};

use crate::config::refuse;
use crate::record::Record;

/// The devices of the PCI bus, by their addresses.
const PCI: &str = "/sys/bus/pci/devices";
/// The auxiliary devices, such as scalable functions of a network card, by their names.
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
/// Below this directory, the kernel shows hardware.
const DEVICES: &str = "/sys/devices";
/// The drivers of devices that programs use without the kernel's network.
const DPDK_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// What describes a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Name(IfName),
    Mac(MacAddr),
    Hardware {
        key: &'static str,
        /// The directory of the hardware in sysfs.
        dir: PathBuf,
    },
}

impl Device {
    pub(crate) fn named(name: &str) -> Result<Device> {
        let name = IfName::from_config(name).map_err(|why| refuse("device", name, why, "write the name of a link"))?;
        Ok(Device::Name(name))
    }

    pub(crate) fn with_mac(text: &str) -> Result<Device> {
        let mac = text.parse().map_err(|_| {
            // The text of the reference, by which users recognise the mistake.
            let why = format!("failed to parse MAC address {text:?}");
            refuse("hwaddr", text, &why, "write six bytes, such as 0a:58:0a:f4:00:02")
        })?;
        Ok(Device::Mac(mac))
    }

    pub(crate) fn at_kernel_path(text: &str) -> Result<Device> {
        let dir = Path::new(text);
        let is_plain = dir.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !dir.starts_with(DEVICES) || !is_plain {
            // The text of the reference, by which users recognise the mistake.
            let why = format!("kernel device path {text:?} must be absolute and begin with /sys/devices/");
            return Err(refuse("kernelpath", text, &why, "write the path of a device without \"..\""));
        }
        Ok(Device::Hardware { key: "kernelpath", dir: dir.to_owned() })
    }

    pub(crate) fn on_pci_bus(key: &'static str, id: &str) -> Result<Device> {
        match is_pci_address(id) {
            true => Ok(Device::Hardware { key, dir: Path::new(PCI).join(id.to_ascii_lowercase()) }),
            false => Err(refuse(key, id, "is not a PCI address", "write an address such as 0000:3d:00.1")),
        }
    }

    /// Returns the device that the runtime passes. Whether it exists matters only to ADD.
    pub(crate) fn with_id(id: &str) -> Result<Device> {
        let key = "runtimeConfig.deviceID";
        if is_pci_address(id) {
            return Device::on_pci_bus(key, id);
        }
        let is_name =
            !id.starts_with('.') && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        match is_name {
            true => Ok(Device::Hardware { key, dir: Path::new(AUXILIARY).join(id) }),
            false => Err(refuse(
                key,
                id,
                "not found or unsupported",
                "it must be a PCI address such as 0000:3d:00.1, or an auxiliary device such as mlx5_core.sf.4",
            )),
        }
    }

    /// Returns the PCI address, if the configuration has one.
    pub(crate) fn pci_address(&self) -> Option<&str> {
        match self {
            Device::Hardware { dir, .. } => dir.file_name()?.to_str().filter(|_| dir.starts_with(PCI)),
            _ => None,
        }
    }

    pub(crate) fn has_dpdk_driver(&self) -> bool {
        let Device::Hardware { dir, .. } = self else { return false };
        let driver = fs::read_link(dir.join("driver")).ok();
        let name = driver.as_deref().and_then(Path::file_name);
        self.pci_address().is_some() && name.is_some_and(|name| DPDK_DRIVERS.iter().any(|driver| name == *driver))
    }

    /// Returns whether this describes the hardware that the kernel calls `name` on its bus.
    pub(crate) fn is_hardware(&self, name: &str) -> bool {
        let Device::Hardware { dir, .. } = self else { return false };
        let is_called = |dir: &Path| dir.file_name().is_some_and(|own| own == name);
        // The link of a virtio card belongs to a device below that of the PCI bus.
        !name.is_empty() && !name.contains('/') && (is_called(dir) || dir.join(name).is_dir())
            || fs::canonicalize(dir).is_ok_and(|dir| is_called(&dir))
    }

    /// Returns whether this describes a link, wherever it is, whose name on the host is `name`.
    pub(crate) fn is_link(&self, link: &Link, name: &str) -> bool {
        match self {
            Device::Name(own) => own.as_str() == name,
            Device::Mac(mac) => link.mac == Some(*mac),
            Device::Hardware { .. } => self.is_hardware(&link.hardware),
        }
    }

    /// Finds the device on the host. One that came back by itself can still have the name of its last container, or
    /// `ifname`.
    pub(crate) fn find(&self, host: &mut Netlink, ifname: &str) -> Result<Link> {
        let found = match self {
            Device::Name(name) => match host.link(name.as_str())? {
                Some(link) => Some(link),
                None => host.links(None)?.into_iter().find(|link| was_called(link, name.as_str(), ifname)),
            },
            Device::Mac(mac) => {
                let mut links = host.links(None)?;
                links.retain(|link| link.mac == Some(*mac));
                // A VLAN has the address of its master.
                links.sort_by_key(|link| !link.kind.is_empty());
                links.into_iter().next()
            }
            Device::Hardware { dir, .. } => {
                let link = self.net_name(dir)?.map(|name| host.link(name.as_str())).transpose()?.flatten();
                // The directory may be that of another namespace.
                link.filter(|link| link.hardware.is_empty() || self.is_hardware(&link.hardware))
            }
        };
        found.ok_or_else(|| self.not_found(format!("failed to find host device: Link not found: {self}")))
    }

    /// Returns the name of the only link of the hardware.
    fn net_name(&self, dir: &Path) -> Result<Option<IfName>> {
        let Ok(entries) = fs::read_dir(dir) else {
            return Err(self.not_found(format!("failed to find host device: the hardware does not exist: {self}")));
        };
        let parts = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let is_virtio =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("virtio"));
        let virtio = parts.filter(is_virtio).map(|path| path.join("net"));
        let lists = [dir.join("net")].into_iter().chain(virtio);
        let links = lists.filter_map(|list| fs::read_dir(list).ok()).flatten().filter_map(|entry| entry.ok());
        let mut names: Vec<(String, PathBuf)> =
            links.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect();
        if names.len() > 1 {
            names.retain(|(_, path)| !is_representor(path));
        }
        names.sort();
        match names.as_slice() {
            [] => Ok(None),
            [(name, _)] => Ok(IfName::from_config(name).ok()),
            several => {
                let names: Vec<_> = several.iter().map(|(name, _)| format!("{name:?}")).collect();
                let what = format!("failed to find host device: {self} has several links: {}", names.join(", "));
                Err(Error::new(Code::INTERNAL, what).details("set \"device\" to the name of one of them"))
            }
        }
    }

    /// Returns the record of the attachment that has the device.
    pub(crate) fn holder(&self) -> Option<Record> {
        let mut records = Record::all().unwrap_or_default();
        records.retain(|record| match self {
            Device::Name(name) => record.name == name.as_str(),
            Device::Mac(mac) => record.mac == mac.to_string(),
            Device::Hardware { .. } => self.is_hardware(&record.hardware),
        });
        records.pop()
    }

    /// Returns an error, which has the text of the reference, by which users recognise the mistake.
    fn not_found(&self, what: String) -> Error {
        let error = Error::new(Code::INTERNAL, what);
        match self.holder() {
            Some(record) => error.details(format!("{record} has it")),
            None => error.details("the host does not have it: correct the key, or look for it in other namespaces"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Name(name) => write!(f, "\"device\" {:?}", name.as_str()),
            Device::Mac(mac) => write!(f, "\"hwaddr\" \"{mac}\""),
            Device::Hardware { key, dir } => write!(f, "{key:?} {dir:?}"),
        }
    }
}

/// Returns whether a link of the host that came back by itself had this name before. The records decide: the container
/// can have changed the alias, even to the name of another device.
fn was_called(link: &Link, name: &str, ifname: &str) -> bool {
    match Record::of(link) {
        Ok(records) if !records.is_empty() => !link.up && records.iter().any(|record| record.name == name),
        _ => name_on_host(link, ifname) == name,
    }
}

/// Returns the name that a link of the host should have. One whose container's namespace is gone has the name of that
/// container, or one that the kernel chose, and its alias is its own name.
pub(crate) fn name_on_host<'a>(link: &'a Link, ifname: &str) -> &'a str {
    let is_name = IfName::from_config(&link.alias).is_ok();
    let is_marked = link.alternative_names.iter().any(|name| cni::key::mark_in_alternative_name(name).is_some());
    // Of a device that the reference attached, the alias may be one that a user chose for another purpose.
    let numbered =
        |word: &str| link.name.strip_prefix(word).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let has_guest_name = link.name == ifname || numbered("net") || numbered("dev");
    if is_name && (is_marked || has_guest_name && !link.up) { &link.alias } else { &link.name }
}

/// Returns the PCI address of a link of the host: the last one in the path of its hardware.
pub(crate) fn pci_address_of(link: &Link) -> Result<Option<String>> {
    if link.hardware.is_empty() || is_pci_address(&link.hardware) {
        return Ok(Some(link.hardware.clone()).filter(|address| !address.is_empty()));
    }
    let path = Path::new("/sys/class/net").join(&link.name).join("device");
    let path = fs::canonicalize(&path).context(|| format!("resolve {path:?}"))?;
    let mut parts = path.components().rev().filter_map(|part| part.as_os_str().to_str());
    Ok(parts.find(|part| is_pci_address(part)).map(str::to_owned))
}

/// Returns whether the text is a PCI address: domain, bus, device and function.
fn is_pci_address(text: &str) -> bool {
    let is_hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let [domain, bus, device, function] = parts.as_slice() else { return false };
    // Some buses have longer domains.
    (is_hex(domain, 4) || is_hex(domain, 5) || is_hex(domain, 8))
        && is_hex(bus, 2)
        && is_hex(device, 2)
        && is_hex(function, 1)
        && text.rfind(':') < text.find('.')
}

/// Returns whether a link represents a function of a switch in the network card, such as `pf0vf1`, and not the card.
fn is_representor(link: &Path) -> bool {
    let name = fs::read_to_string(link.join("phys_port_name")).unwrap_or_default();
    let name = name.trim_end().trim_start_matches(|c: char| c == 'c' || c.is_ascii_digit());
    name.starts_with("pf") && (name.contains("vf") || name.contains("sf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_recognised() {
        for good in ["0000:3d:00.1", "10000:e1:00.0", "ABCD:ef:1f.7"] {
            assert!(is_pci_address(good), "{good}");
        }
        for bad in [
            "",
            "3d:00.1",
            "0000:3d:00",
            "0000:3d:00.10",
            "0000:3d:00.g",
            "../..:00:00.0",
            "0000.3d:00:1",
            "mlx5_core.sf.4",
        ] {
            assert!(!is_pci_address(bad), "{bad}");
        }
    }

    #[test]
    fn paths_stay_in_sysfs() {
        for bad in
            ["", "sys/devices/x", "/sys/devices/../class", "/sys/device", "/dev/null", "/sys/devices/./../../etc"]
        {
            assert!(Device::at_kernel_path(bad).is_err(), "{bad}");
        }
        for bad in ["..", "a/b", ".hidden", "0000:3d:00.1/..", "a b", ""] {
            assert!(Device::on_pci_bus("pciBusID", bad).is_err(), "{bad}");
            assert!(bad.is_empty() || Device::with_id(bad).is_err(), "{bad}");
        }
        assert_eq!(Device::with_id("0000:3d:00.1").unwrap().pci_address(), Some("0000:3d:00.1"));
        assert_eq!(Device::with_id("mlx5_core.sf.4").unwrap().pci_address(), None);
        assert!(Device::at_kernel_path("/sys/devices/pci0000:00/0000:00:03.0").is_ok());
    }
}
