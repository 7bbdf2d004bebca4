//! The `host-device` plugin: gives a container a device of the host, and takes it back under its name.
//!
//! `config` validates the keys, and `device` finds the device that they describe. `add` moves it into the container.
//! `record` is the file that has what the device was before, and `give_back` finds the device by it, by its alternative
//! name or by its alias, and moves it back for DEL, GC and the rollback of ADD. `inspect` is for `cnitool`.

mod add;
mod config;
mod device;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod give_back;
mod inspect;
mod record;

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Error, ErrorCollector, Keep, Namespaces, Plugin, Result};
use interface::attach::{Add, explain_forbidden, prepare_ipam};
use interface::check::{Checker, difference, same};
use interface::config::ipam_to_clean_up;
use interface::ipam::remove_and_release;
use linux::netlink::Netlink;

use config::Config;
use give_back::GiveBack;

/// The `host-device` plugin.
#[derive(Debug)]
pub struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        let device = config.require_device()?;
        let mut ipam = config.find_ipam(call)?;
        prepare_ipam(call, at, ipam.as_mut())?;
        Add::run(call, at, |add| add::attach(add, &config, device, ipam.as_ref()))
    }

    /// Unlike the reference, needs neither the namespace nor the device, nor a configuration that describes the device.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call);
        let device = config.as_ref().ok().and_then(|config| config.device.clone());
        let mut failures = ErrorCollector::default();
        let ipam = failures.keep(ipam_to_clean_up(call, config.map(|config| config.ipam))).flatten();
        let give_back = GiveBack::new(AttachmentKey::new(call, at));
        remove_and_release(
            &mut failures,
            ipam.as_ref(),
            |ipam| ipam.del(at),
            |failures| {
                let outcome = failures.keep(give_back.take_from_container(call, at, device.as_ref(), ipam.as_ref()));
                if let Some(Some(namespace)) = outcome {
                    failures.record(Netlink::open().map_err(Error::from).and_then(|mut host| {
                        give_back.on_host(&mut host, namespace, Some((at.ifname.as_str(), device.as_ref())))
                    }));
                }
                // The container can still use the addresses of a device that it still has.
                outcome.is_some()
            },
        );
        failures.into_result()
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        let device = config.require_device()?;
        let ipam = config.find_ipam(call)?;
        if let Some(ipam) = &ipam {
            ipam.check(at)?;
        }
        let mut checker = Checker::open(call, at)?;
        if config.is_dpdk(device) {
            return Ok(());
        }
        let link = checker.interface_of(None, true)?;
        let is_listed = |listed: &&cni::Interface| listed.name == link.name && listed.mtu != 0;
        if let Some(listed) = checker.prev_result.interfaces.iter().find(is_listed) {
            same(&link.name, "MTU", listed.mtu, link.mtu)?;
        }
        // The reference does not mark devices.
        let key = AttachmentKey::new(call, at);
        if !GiveBack::new(key).may_be_of(&Namespaces::open(call, at)?, &link)?
            || give_back::has_other_mark(&link, &key.alternative_name())
        {
            return Err(difference(&link.name, "device", &"that of this attachment", &"another one"));
        }
        if ipam.is_some() {
            checker.addresses(&link)?;
            checker.routes(&link)?;
        }
        Ok(())
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let valid = call.valid_attachments()?;
        let mut failures = ErrorCollector::default();
        failures.record(give_back::collect(&Keep::new(call.network.as_str(), &valid)));
        let ipam = ipam_to_clean_up(call, Config::parse(call).map(|config| config.ipam));
        failures.record(ipam.and_then(|ipam| ipam.map_or(Ok(()), |ipam| ipam.gc())));
        failures.into_result()
    }

    /// Unlike the reference, fails if the host does not have the device, unless a container has it.
    fn status(&self, call: &Call<'_>) -> Result<()> {
        let config = Config::parse(call)?;
        let not_available = |error| explain_forbidden(error).with_code(Code::NOT_AVAILABLE);
        let ipam = config.find_ipam(call).map_err(not_available)?;
        if let Some(device) = config.device_of_network()?.filter(|device| !config.is_dpdk(device))
            && device.holder().is_none()
            && let Err(missing) = device.find(&mut Netlink::open()?, "")
            // An ADD may have taken it meanwhile.
            && device.holder().is_none()
        {
            return Err(not_available(missing));
        }
        ipam.map_or(Ok(()), |ipam| ipam.status())
    }
}
