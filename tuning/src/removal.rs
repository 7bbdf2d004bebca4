//! DEL restores the interface and removes the backup file; GC removes the files of attachments that are gone.

use std::net::IpAddr;
use std::path::Path;

use cni::{
    AddResult, Attachment, AttachmentKey, Call, Context, ErrorCollector, Home, Keep, Namespaces, Ownership, Result,
    Trace,
};
use linux::dir::{Dir, TEMP_SUFFIX};
use linux::log::{debug, warn};
use linux::netlink::Link;
use linux::tolerate;

use crate::backup::{Backup, SUFFIX, file_names, temp_name};
use crate::config::{self, Config};
use crate::interface::{Interface, set_mtu};

/// Restores the interface, if it provably is the one that ADD changed, and removes the backup file.
pub(crate) fn restore(call: &Call<'_>, at: &Attachment, key: AttachmentKey<'_>) -> Result<()> {
    let data_dir = config::data_dir(call);
    let dir = tolerate(format_args!("there can be no backup file in {data_dir:?}"), Dir::open(&data_dir));
    let Some(dir) = dir.context(|| format!("open the directory {data_dir:?}"))? else { return Ok(()) };
    for name in file_names(key).into_iter().chain([temp_name(key)]) {
        let read = tolerate(format_args!("the backup file {name:?} is not used"), dir.read_private(&name).map(Some));
        let backup = match read.context(|| format!("read the backup file {name:?}"))? {
            Some(None) => continue,
            Some(Some(content)) => {
                Backup::parse(&content).map_err(|fault| warn!("{name:?} is not valid: {fault}")).ok()
            }
            None => None,
        };
        match backup {
            // The name is ambiguous, and the interface may be attached to another network by now.
            Some(Backup { owner: Some(owner), .. }) if owner.key() != key => {
                debug!("{name:?} belongs to {:?}", owner.key());
                continue;
            }
            Some(backup) => restore_interface(call, at, &backup)?,
            None => {}
        }
        // A later attachment of the same name must not find it.
        if let Err(error) = dir.remove(&name) {
            warn!("the backup file {name:?} in {data_dir:?} stays: {error}");
        }
    }
    Ok(())
}

/// Restores the interface. A failure is only logged, as in the reference: the interface usually disappears with the
/// container. Only a lack of resources is an error, so that the runtime tries again.
fn restore_interface(call: &Call<'_>, at: &Attachment, backup: &Backup) -> Result<()> {
    // With an owner, the file identifies the interface, also in the plugin's own namespace (`CNI_NETNS_OVERRIDE` at
    // ADD).
    let open = match backup.owner {
        Some(_) => Namespaces::open_if_exists,
        None => Namespaces::open_excluding_own_if_exists,
    };
    let Some(Namespaces { host: Home { netns: home, netlink: mut host }, guest }) = open(call, at)? else {
        return Ok(());
    };
    let restored = guest.run(&home, || -> Result<()> {
        let Some(mut interface) = Interface::find(at, &guest)? else { return Ok(()) };
        let host_mtu = backup.owner.as_ref().and_then(|owner| owner.host_mtu);
        let needs_host_veth = host_mtu.is_some() || backup.owner.is_none();
        let host_veth = if needs_host_veth { interface.host_veth(&mut host, &home)? } else { None };
        if !is_same(call, at, backup, &mut interface, host_veth.as_ref())? {
            debug!("keep {:?}: another attachment, or another interface, has the backup file", interface.link.name);
            return Ok(());
        }
        // Another program may have set it since.
        if let Some(mtu) = host_mtu
            && let Some(port) = host_veth.filter(|port| port.mtu == interface.link.mtu)
        {
            set_mtu(&mut host, &port, mtu)?;
        }
        interface.set(backup.before)
    });
    if let Err(error) = restored {
        warn!("the interface is not restored: {error:?}");
    }
    Ok(())
}

/// Returns whether a backup provably is that of this interface.
///
/// A file of the reference does not say whose it is. The interface must have what the configuration requests for each
/// attribute in the file, and no other, and must be that of the attachment: so ADD wrote the file for this interface.
fn is_same(
    call: &Call<'_>,
    at: &Attachment,
    backup: &Backup,
    interface: &mut Interface,
    host_veth: Option<&Link>,
) -> Result<bool> {
    if let Some(owner) = &backup.owner {
        return Ok(owner.interface == interface.identity);
    }
    let Ok(config) = Config::parse(call, Some(at)) else { return Ok(false) };
    let wanted = config.attributes;
    let has = wanted.of(&interface.link);
    let same_keys = wanted.values().map(|(key, _)| key).eq(backup.before.values().map(|(key, _)| key));
    if !same_keys || wanted != has {
        return Ok(false);
    }
    let ownership = Ownership::new(AttachmentKey::new(call, at));
    Ok(is_in_result(&call.prev_result_to_clean_up(), at, &interface.link)
        || host_veth.is_some_and(|port| ownership.judge(Trace::Alias(&port.alias)).is_ours())
        || has_leased_address(&ownership.leased_addresses(call), interface)?)
}

/// Returns whether the interface has one of the addresses that are leased to the attachment.
fn has_leased_address(leased: &[IpAddr], interface: &mut Interface) -> Result<bool> {
    if leased.is_empty() {
        return Ok(false);
    }
    let has = interface.netlink.addresses(interface.link.index)?;
    Ok(has.iter().any(|found| leased.contains(&found.cidr.ip())))
}

/// Returns whether the result of ADD has the interface with the same MAC address.
fn is_in_result(result: &AddResult, at: &Attachment, link: &Link) -> bool {
    let mac = |text: &str| text.parse().ok();
    let is_its = |found: &cni::Interface| {
        found.name == at.ifname.as_str()
            && !found.sandbox.is_empty()
            && link.mac.is_some()
            && mac(&found.mac) == link.mac
    };
    result.interfaces.iter().any(is_its)
}

/// Removes the backup files of attachments to the network that are not kept. Files of the reference do not name a
/// network.
pub(crate) fn collect(data_dir: &Path, keep: &Keep<'_>) -> Result<()> {
    let mut failures = ErrorCollector::default();
    for_each_backup(data_dir, |dir, name, backup| {
        let owner = backup.and_then(|backup| backup.owner);
        // A name may have the mark of the attachment.
        if keep.is_stale_comment(name) || owner.is_some_and(|owner| keep.is_stale(owner.key())) {
            failures.record(dir.remove(name).map(drop).context(|| format!("remove the backup file {name:?}")));
        }
    })?;
    failures.into_result()
}

/// Calls `function` for each backup file that can be read, without a backup if it is not valid.
pub(crate) fn for_each_backup(data_dir: &Path, mut function: impl FnMut(&Dir, &str, Option<Backup>)) -> Result<()> {
    let Some(dir) = Dir::open(data_dir).context(|| format!("open the directory {data_dir:?}"))? else { return Ok(()) };
    let list = || format!("list the backup files in {data_dir:?}");
    for name in dir.names().context(list)? {
        let name = name.context(list)?;
        if !name.ends_with(SUFFIX) && !name.ends_with(TEMP_SUFFIX) {
            continue;
        }
        let content = tolerate(format_args!("the backup file {name:?} is ignored"), dir.read_private(&name));
        // Without content, it has just been removed.
        let content = content.context(|| format!("read the backup file {name:?}"))?;
        if let Some(content) = content {
            function(&dir, &name, Backup::parse(&content).map_err(|fault| debug!("{name:?}: {fault}")).ok());
        }
    }
    Ok(())
}
