//! ADD: reads everything, then changes sysctls and the interface. If a step fails, the steps before it are reverted.

use std::io;
use std::rc::Rc;

use cni::json::invalid;
use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Error, Home, Namespaces, Result, Undo};
use linux::Netns;
use linux::netlink::{Link, Netlink};
use linux::sysctl::Sysctl as Setting;

use crate::allowlist;
use crate::attributes::Attributes;
use crate::backup::{BackupFile, BackupOwner};
use crate::config::Config;
use crate::interface::{Interface, set_mtu};
use crate::sysctl::Sysctl;

/// Tunes the container. Returns the previous result with what has changed, and the sysctls, which know their former
/// values.
pub(crate) fn run(
    call: &Call<'_>,
    at: &Attachment,
    config: &Config,
    mut result: AddResult,
) -> Result<(AddResult, Vec<Rc<Setting>>)> {
    let mut changed = Vec::new();
    if config.is_empty() {
        return Ok((result, changed));
    }
    allowlist::require(&config.sysctls, Some(at.ifname.as_str()))?;
    let Namespaces { host: Home { netns: home, netlink: mut host }, guest } = Namespaces::open_excluding_own(call, at)?;
    let key = AttachmentKey::new(call, at);
    // If the thread cannot return, the steps are reverted as well, because they are dropped.
    let mut done = guest.run(&home, || {
        let settings = open_settings(&config.sysctls, at)?;
        changed.clone_from(&settings);
        if config.attributes.is_empty() {
            return tune(config, settings, None, Undo::new(None));
        }
        let mut target = Target::read(at, &guest, &mut host, &home, config.attributes)?;
        target.validate(config.attributes)?;
        let backup = BackupFile::open(&config.data_dir, key, &target.interface, config.attributes)?;
        tune(config, settings, Some((backup, key)), Undo::new(Some(target)))
    })?;
    let raised = done.context().as_ref().and_then(|target| target.raised.as_ref());
    describe(&mut result, at, config.attributes, raised.map(|port| port.name.as_str()));
    done.commit();
    Ok((result, changed))
}

/// The interface to tune, and what depends on it on the host.
#[derive(Debug)]
struct Target<'a> {
    interface: Interface,
    host: &'a mut Netlink,
    /// The host veth, if known. Only a change of the MTU needs it.
    host_veth: Option<Link>,
    /// The host veth as it was, if its MTU is too small for the packets of the interface.
    raised: Option<Link>,
}

impl<'a> Target<'a> {
    /// Reads what the `wanted` attributes need. The interface is in the namespace of this thread, which is `guest`.
    fn read(
        at: &Attachment,
        guest: &Netns,
        host: &'a mut Netlink,
        home: &Netns,
        wanted: Attributes,
    ) -> Result<Target<'a>> {
        let mut interface = Interface::require(at, guest)?;
        let host_veth = if wanted.mtu.is_some() { interface.host_veth(host, home)? } else { None };
        let raised = host_veth.clone().filter(|port| wanted.mtu > Some(port.mtu));
        Ok(Target { interface, host, host_veth, raised })
    }

    /// Returns an error if the interface cannot have the attributes, or its packets would be too large for the bridge.
    fn validate(&mut self, wanted: Attributes) -> Result<()> {
        self.interface.validate(wanted)?;
        let master = self.host_veth.as_ref().and_then(|port| port.master);
        let (Some(mtu), Some(master)) = (wanted.mtu, master) else { return Ok(()) };
        match self.host.link(master)? {
            // Unlike the reference, which lets the bridge drop the packets.
            Some(bridge) if mtu > bridge.mtu => {
                let what = format_args!("{mtu} is above the MTU {} of {} {:?}", bridge.mtu, bridge.kind, bridge.name);
                Err(invalid(
                    "mtu",
                    what,
                    "set \"mtu\" of the plugin that creates the bridge, or use a smaller number here",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Changes the attributes. The MTU of the host veth is raised if it would drop packets of the interface, but never
    /// lowered: a bridge may have the MTU of its smallest port.
    fn set(&mut self, wanted: Attributes) -> Result<()> {
        if let (Some(mtu), Some(port)) = (wanted.mtu, &self.raised) {
            set_mtu(self.host, port, mtu)?;
        }
        self.interface.set(wanted)
    }

    /// Reverts [`Target::set`].
    fn revert(&mut self, wanted: Attributes) -> Result<()> {
        if let Some(port) = &self.raised {
            gone_is_ok(set_mtu(self.host, port, port.mtu))?;
        }
        gone_is_ok(self.interface.set(wanted.of(&self.interface.link)))
    }
}

/// Treats a link that does not exist as success.
fn gone_is_ok(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(()),
        outcome => outcome,
    }
}

/// Changes everything. Returns the steps that revert it, or reverts them after a failure.
fn tune<'a>(
    config: &'a Config,
    settings: Vec<Rc<Setting>>,
    backup: Option<(BackupFile, AttachmentKey<'_>)>,
    mut undo: Undo<'a, Option<Target<'a>>>,
) -> Result<Undo<'a, Option<Target<'a>>>> {
    match apply(config, settings, backup, &mut undo) {
        Ok(()) => Ok(undo),
        Err(error) => Err(undo.roll_back(error)),
    }
}

/// Changes everything. Each rollback step is registered before the step that it reverts.
fn apply<'a>(
    config: &'a Config,
    settings: Vec<Rc<Setting>>,
    backup: Option<(BackupFile, AttachmentKey<'_>)>,
    undo: &mut Undo<'a, Option<Target<'a>>>,
) -> Result<()> {
    let wanted = config.attributes;
    if let (Some((file, key)), Some(target)) = (backup, undo.context()) {
        let before = wanted.of(&target.interface.link);
        let owner = BackupOwner {
            network: key.network.to_owned(),
            container: key.container.to_owned(),
            ifname: key.ifname.to_owned(),
            interface: target.interface.identity.clone(),
            tuned: wanted,
            host_mtu: target.raised.as_ref().map(|port| port.mtu),
        };
        let file = Rc::new(file);
        let written = Rc::clone(&file);
        undo.push("revert the backup file", move |_| written.revert());
        file.write(before, owner)?;
    }
    for (sysctl, setting) in config.sysctls.iter().zip(settings) {
        let changed = Rc::clone(&setting);
        undo.push(format!("restore sysctl {}", sysctl.key), move |_| Ok(changed.restore()?));
        setting.write(&sysctl.value).map_err(|error| explain_value(sysctl, setting.value(), error))?;
    }
    if !wanted.is_empty() {
        undo.push("restore the interface", move |target| match target {
            Some(target) => target.revert(wanted),
            None => Ok(()),
        });
        if let Some(target) = undo.context() {
            target.set(wanted)?;
        }
    }
    Ok(())
}

/// Opens all sysctls for writing, in the namespace of this thread.
fn open_settings(sysctls: &[Sysctl], at: &Attachment) -> Result<Vec<Rc<Setting>>> {
    let open = |sysctl: &Sysctl| {
        let parts: Vec<&str> = sysctl.path.iter().map(String::as_str).collect();
        Setting::open(&parts).map(Rc::new).map_err(|error| {
            let error = explain(sysctl, error);
            error.details(format!("it would be /proc/sys/{} in {:?}", parts.join("/"), at.sandbox()))
        })
    };
    sysctls.iter().map(open).collect()
}

/// Returns the error for a sysctl that cannot be opened or written.
pub(crate) fn explain(sysctl: &Sysctl, error: io::Error) -> Error {
    let Sysctl { key, value, .. } = sysctl;
    let refuse = |what: &str, remedy: &str| Error::new(Code::CONFIG, what).details(remedy);
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::EISDIR) => refuse(
            &format!("key \"sysctl\": the container has no sysctl {:?}", key.to_string()),
            "check the name, and whether the kernel has the feature; write IFNAME for the name of the interface",
        ),
        // The file is read-only in a namespace of a container.
        Some(libc::EACCES | libc::EPERM) => refuse(
            &format!("key \"sysctl\": {:?} cannot be set for a container", key.to_string()),
            "it is a setting of the whole host, or needs more privileges: set it on the host",
        ),
        Some(libc::EROFS) => refuse(
            &format!("key \"sysctl\": {:?} cannot be set, because /proc/sys is read-only", key.to_string()),
            "give the plugin a writable /proc/sys",
        ),
        _ => Error::from(error).context(format!("set sysctl {:?} to {value:?}", key.to_string())),
    }
}

/// Returns the error for a value that the kernel refuses. `now` is the present value.
fn explain_value(sysctl: &Sysctl, now: Option<&str>, error: io::Error) -> Error {
    let Sysctl { key, value, .. } = sysctl;
    let refuse = |what: &str, remedy: &str| Error::new(Code::CONFIG, what).details(remedy);
    let error = match error.raw_os_error() {
        // A congestion control, for example, is a module.
        Some(libc::ENOENT) => refuse(
            &format!("key \"sysctl\": the kernel does not have {value:?} for {:?}", key.to_string()),
            "load the kernel module that provides it on the host, or use another value",
        ),
        Some(libc::EINVAL | libc::ERANGE) => refuse(
            &format!("key \"sysctl\": the kernel refuses the value {value:?} of {:?}", key.to_string()),
            "use a value of the kernel's documentation (ip-sysctl)",
        ),
        _ => return explain(sysctl, error),
    };
    match now {
        Some(now) => error.details(format!("it is {now:?} now")),
        None => error,
    }
}

/// Sets what has changed in the result: MAC address and MTU of the interface, and the MTU of the host veth if it was
/// raised and the result has it.
fn describe(result: &mut AddResult, at: &Attachment, tuned: Attributes, raised: Option<&str>) {
    let ifname = at.ifname.as_str();
    let is_in_container = |found: &cni::Interface| found.name == ifname && !found.sandbox.is_empty();
    let has_sandbox = result.interfaces.iter().any(is_in_container);
    for interface in &mut result.interfaces {
        if is_in_container(interface) || (interface.name == ifname && !has_sandbox) {
            if let Some(mac) = tuned.mac {
                interface.mac = mac.to_string();
            }
            interface.mtu = tuned.mtu.unwrap_or(interface.mtu);
        } else if interface.sandbox.is_empty() && raised == Some(interface.name.as_str()) && interface.mtu != 0 {
            interface.mtu = tuned.mtu.unwrap_or(interface.mtu);
        }
    }
}
