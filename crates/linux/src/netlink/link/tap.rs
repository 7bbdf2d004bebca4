//! TAP devices: links whose frames a program reads and writes, such as that of a virtual machine.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::OFlag;

use super::super::wire;
use super::LinkIndex;
use crate::error::{Context, Error, Result};
use crate::sys::{self, TunProperty};

/// The file by which devices are created, in the network namespace of the thread.
const TUN: &str = "/dev/net/tun";
/// The SELinux label of the sockets that this thread creates, such as that behind a device.
const LABEL: &str = "/proc/thread-self/attr/sockcreate";

// linux/if_tun.h
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_TUN_EXCL: u16 = 0x8000;

// linux/if_link.h
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;

/// What distinguishes a TAP device from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapDevice {
    /// Whether several programs, or threads, can use it at the same time.
    pub multi_queue: bool,
    /// Whether each frame has a header about checksums and segments that the program completes.
    pub vnet_hdr: bool,
    /// The user who may open it, besides root.
    pub owner: Option<u32>,
    /// The group that may open it.
    pub group: Option<u32>,
}

impl fmt::Display for TapDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TapDevice { multi_queue, vnet_hdr, owner, group } = *self;
        f.write_str("tap")?;
        for (is_set, name) in [(multi_queue, "multi-queue"), (vnet_hdr, "vnet_hdr")] {
            if is_set {
                write!(f, ", {name}")?;
            }
        }
        for (id, name) in [(owner, "owner"), (group, "group")] {
            if let Some(id) = id {
                write!(f, ", {name} {id}")?;
            }
        }
        Ok(())
    }
}

impl TapDevice {
    /// Creates the device, down, with a name of the kernel's choice, in the namespace of this thread.
    pub fn create(&self, index: LinkIndex, label: Option<&str>) -> Result<()> {
        let flags = [(self.multi_queue, IFF_MULTI_QUEUE), (self.vnet_hdr, IFF_VNET_HDR)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        let flags = flags.fold(IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL, |all, (_, flag)| all | flag);
        let tun = match label {
            None => open()?,
            Some(label) => {
                let refuse = |error: Error| error.details("the kernel has no SELinux, or not this label");
                set_label(label).context(|| format!("set the socket label {label:?}")).map_err(refuse)?;
                let tun = open();
                set_label("").context(|| "reset the socket label")?;
                tun?
            }
        };
        let create = || {
            sys::tun_set_index(&tun, index.number())?;
            sys::tun_set_device(&tun, "", flags)?;
            let properties = [(TunProperty::Owner, self.owner), (TunProperty::Group, self.group)];
            for (what, value) in properties {
                if let Some(value) = value {
                    sys::tun_set(&tun, what, value)?;
                }
            }
            // Without this, the device goes when the file is closed.
            sys::tun_set(&tun, TunProperty::Persist, 1)
        };
        create().context(|| format!("create a TAP device with the index {index}"))
    }

    /// Returns an error if this process cannot create devices.
    pub fn check_available() -> Result<()> {
        open().map(drop)
    }

    /// Parses the attributes of a device.
    pub(super) fn read(data: &[u8]) -> Result<TapDevice> {
        let mut tap = TapDevice::default();
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (IFLA_TUN_OWNER, value) => tap.owner = Some(wire::number(value, 0)?),
                (IFLA_TUN_GROUP, value) => tap.group = Some(wire::number(value, 0)?),
                (IFLA_TUN_VNET_HDR, value) => tap.vnet_hdr = wire::byte(value, 0)? != 0,
                (IFLA_TUN_MULTI_QUEUE, value) => tap.multi_queue = wire::byte(value, 0)? != 0,
                _ => {}
            }
        }
        Ok(tap)
    }
}

fn open() -> Result<File> {
    let opened = sys::open(Path::new(TUN), OFlag::O_RDWR).context(|| format!("open {TUN:?}"));
    opened.map_err(|error| match error.errno() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => error.details("load the module \"tun\""),
        _ => error,
    })
}

/// Sets the label of the sockets that this thread creates; an empty one for the default.
fn set_label(label: &str) -> io::Result<()> {
    std::fs::write(LABEL, label)
}
