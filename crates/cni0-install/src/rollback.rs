//! Goes back to the previous plugins on a node with running containers: restores the files, and removes the rules that
//! only cni0 knows. The restored plugins would leave them, and a later container with the same address would get them.
//!
//! Calls of the plugins of cni0 that are running can still add rules. The kernel keeps the file of a running program
//! until it ends, and reports that then: the rules are removed afterwards.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::netlink::nft::{Data, Edit, Family, Nftables, Set, Table};
use linux::netlink::{Conntrack, FlowFilter, Netlink};
use linux::{Context, Deadline, Result};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::{disk, say, uninstall};

/// How long running calls are awaited.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What only plugins of cni0 have in their versions.
const OF_CNI0: &str = "+cni0.";

/// Rules that other plugins do not know.
struct Left {
    /// The plugin whose predecessor does not know them.
    plugin: &'static str,
    table: Table<'static>,
    /// The set with an element for each attachment; empty if there is none.
    attachments: &'static str,
    what: &'static str,
}

const PORTS: Table<'_> = Table { family: Family::Inet, name: "cni_hostport" };
const MASQUERADE: Table<'_> = Table { family: Family::Inet, name: "cni_plugins_masquerade" };

const LEFT: [Left; 5] = [
    Left { plugin: "portmap", table: PORTS, attachments: "attachments", what: "published ports" },
    Left {
        plugin: "firewall",
        table: Table { family: Family::Inet, name: "cni_firewall" },
        attachments: "attachments",
        what: "accepted addresses",
    },
    Left {
        plugin: "firewall",
        table: Table { family: Family::Bridge, name: "cni_isolation" },
        attachments: "ports",
        what: "isolation",
    },
    Left {
        plugin: "bridge",
        table: Table { family: Family::Bridge, name: "cni_spoofcheck" },
        attachments: "ports",
        what: "spoof checks",
    },
    Left { plugin: "bridge", table: MASQUERADE, attachments: "", what: "masquerade rules" },
];

/// Restores the previous plugins, and removes what they do not know. Fails if there are none, unless `allow_empty`.
pub(crate) fn run(prefix: &Path, allow_empty: bool) -> Result<()> {
    let mut running = Running::new()?;
    let was_installed = uninstall::revert_all(prefix, allow_empty, &mut |file| running.watch(file))?;
    running.wait()?;
    let mut nft = Nftables::open()?;
    for left in &LEFT {
        match knows(prefix, left)? {
            // The rules are those of plugins in another directory.
            None if !was_installed => {}
            Some(true) => say(&format!("kept: {}, which {} knows", left.what, left.plugin)),
            Some(false) | None => remove(&mut nft, left)?,
        }
    }
    report_guards()
}

/// Returns whether the plugin in the directory knows the rules, if there is one: it is of cni0, or names the table for
/// masquerade, which is the same as that of cni0.
fn knows(prefix: &Path, left: &Left) -> Result<Option<bool>> {
    let Some(bytes) = disk::read(&prefix.join(left.plugin))? else { return Ok(None) };
    let contains = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    Ok(Some(contains(OF_CNI0) || (left.table == MASQUERADE && contains(MASQUERADE.name))))
}

/// Removes the rules, and the flows that they have translated.
fn remove(nft: &mut Nftables, left: &Left) -> Result<()> {
    let Left { table, attachments, what, .. } = left;
    if !nft.has_table(&|family, name| (family, name) == (table.family, table.name))? {
        return Ok(());
    }
    let number = match *attachments {
        "" => None,
        name => {
            let elements = nft.elements(Set { table: *table, name })?;
            Some(elements.into_iter().map(|element| element.userdata.comment).collect::<BTreeSet<_>>().len())
        }
    };
    let flows = if *table == PORTS { flows(nft)? } else { Vec::new() };
    nft.apply(&[Edit::delete_table(*table)])?;
    if !flows.is_empty() {
        Conntrack::open()?.delete(&flows)?;
    }
    let number = number.map(|number| format!(" of {number} attachments")).unwrap_or_default();
    say(&format!("removed: {what}{number} (table {table})"));
    Ok(())
}

/// Returns the flows of published ports that a client can continue without a connection, so that they would reach a
/// later container with the address.
fn flows(nft: &mut Nftables) -> Result<Vec<FlowFilter>> {
    let mut flows: Vec<FlowFilter> = Vec::new();
    for name in nft.sets(PORTS)? {
        for element in nft.elements(Set { table: PORTS, name: &name })? {
            // Keys end with the protocol and the port, each in four bytes; values are an address and a port.
            let Some(Data::Value(value)) = &element.data else { continue };
            let Some((ip, _)) = value.split_last_chunk::<4>() else { continue };
            let ip = match (<[u8; 4]>::try_from(ip), <[u8; 16]>::try_from(ip)) {
                (Ok(ip), _) => IpAddr::from(ip),
                (_, Ok(ip)) => IpAddr::from(ip),
                _ => continue,
            };
            let protocol = element.key.len().checked_sub(8).and_then(|at| element.key.get(at)).copied();
            let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let filter =
                |protocol| FlowFilter { protocol, destination: SocketAddr::new(any, 0), reply_source: Some(ip) };
            flows.extend(protocol.map(filter).filter(|filter| !flows.contains(filter)));
        }
    }
    Ok(flows)
}

/// Reports links whose filter protects services on 127.0.0.1: without it, containers could reach them.
fn report_guards() -> Result<()> {
    let mut host = Netlink::open()?;
    for link in host.links(None)? {
        if !host.loopback_filters(link.index)?.is_empty() {
            let name = &link.name;
            say(&format!(
                "kept: the filter of {name} that protects services on 127.0.0.1; when no container needs that any more: \
                 sysctl -w net.ipv4.conf.{name}.route_localnet=0; tc filter del dev {name} ingress pref 1"
            ));
        }
    }
    Ok(())
}

/// The installed files, to wait for the programs that execute them.
struct Running {
    inotify: Inotify,
    files: Vec<(WatchDescriptor, PathBuf)>,
}

impl Running {
    fn new() -> Result<Running> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).context(|| "watch files")?;
        Ok(Running { inotify, files: Vec::new() })
    }

    /// Watches a file that is going to be deleted.
    fn watch(&mut self, file: &Path) -> Result<()> {
        let watch =
            self.inotify.add_watch(file, AddWatchFlags::IN_DELETE_SELF).context(|| format!("watch {file:?}"))?;
        self.files.push((watch, file.to_owned()));
        Ok(())
    }

    /// Waits until no program executes one of the files.
    fn wait(mut self) -> Result<()> {
        let (deadline, what) = (Deadline::after(TIMEOUT), || "wait for running programs");
        while !self.files.is_empty() {
            if !deadline.readable(self.inotify.as_fd()).context(what)? {
                let names: Vec<String> = self.files.iter().map(|(_, file)| file.display().to_string()).collect();
                say(&format!("these programs of cni0 are still running, and may add rules: {}", names.join(", ")));
                break;
            }
            for event in self.inotify.read_events().context(what)? {
                self.files.retain(|(watch, _)| *watch != event.wd);
            }
        }
        Ok(())
    }
}
