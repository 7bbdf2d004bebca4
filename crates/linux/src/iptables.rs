//! The iptables tools: their tables in nf_tables, their legacy tables, and how to restore rules.
//!
//! `iptables-nft` keeps its rules in nf_tables, where [`nft`] reads and deletes them without a process. The
//! rules of `iptables-legacy` are only accessible through its tools, which run only if the kernel reports such a table.
//!
//! A [`Rule`] can be written in both ways. A [`TablePlan`] has the changes of a table, computed from a [`View`] of it,
//! and [`change`] and [`change_legacy`] apply it.

mod plan;
mod rule;

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use crate::error::Result;
use crate::netlink::nft::{self, Table};
use crate::{sysctl, tool};

pub use plan::{ListedRule, Step, TablePlan, View, change, change_legacy, rules_in, words};
pub use rule::{ConnectionState, Links, MAX_COMMENT, MAX_PORTS, Match, Rule, Target};

/// How long a tool may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Options of the restore tools. They wait for their lock a little shorter than the timeout.
const RESTORE_OPTIONS: [&str; 2] = ["--noflush", "--wait=15"];

/// The tools and tables of one address family.
#[derive(Debug)]
pub struct Tools {
    /// The family.
    pub family: nft::Family,
    restore: &'static str,
    /// The save and restore tools for legacy tables: their names if both kinds are installed, and if only one is.
    legacy: [(&'static str, &'static str); 2],
    /// The file that lists the legacy tables in use.
    legacy_tables: &'static str,
}

/// The tools of both address families, IPv4 first.
pub const FAMILIES: [Tools; 2] = [
    Tools {
        family: nft::Family::Ipv4,
        restore: "iptables-restore",
        legacy: [("iptables-legacy-save", "iptables-legacy-restore"), ("iptables-save", "iptables-restore")],
        legacy_tables: "/proc/net/ip_tables_names",
    },
    Tools {
        family: nft::Family::Ipv6,
        restore: "ip6tables-restore",
        legacy: [("ip6tables-legacy-save", "ip6tables-legacy-restore"), ("ip6tables-save", "ip6tables-restore")],
        legacy_tables: "/proc/net/ip6_tables_names",
    },
];

impl Tools {
    /// Returns whether an address is of this family.
    pub fn includes(&self, ip: IpAddr) -> bool {
        nft::Family::of(ip) == self.family
    }

    /// Returns whether the kernel has the protocol in this network namespace. It may lack IPv6.
    pub fn is_supported(&self) -> Result<bool> {
        Ok(self.family == nft::Family::Ipv4 || sysctl::read(&["net", "ipv6", "conf", "all", "forwarding"])?.is_some())
    }

    /// Returns the table of `iptables-nft` with this name, such as `nat`.
    pub fn table<'a>(&self, name: &'a str) -> Table<'a> {
        Table { family: self.family, name }
    }

    /// Returns whether the kernel has any legacy table.
    pub fn has_legacy_tables(&self) -> bool {
        fs::read_to_string(self.legacy_tables).is_ok_and(|tables| !tables.is_empty())
    }

    /// Returns the legacy table with this name; `None` if the kernel has none, or the host no tool for it.
    pub fn legacy_table(&self, name: &str) -> Result<Option<LegacyTable>> {
        let in_use = fs::read_to_string(self.legacy_tables).unwrap_or_default();
        if !in_use.lines().any(|table| table == name) {
            return Ok(None);
        }
        let Some((save, restore)) = self.legacy.into_iter().find(|(save, _)| tool::find(save).is_some()) else {
            return Ok(None);
        };
        let listing = tool::run(save, &["-t", name], "", TIMEOUT)?;
        // On a host with only the newer tools `iptables-save` lists the table of nf_tables.
        if listing.lines().next().is_some_and(|head| head.contains("(nf_tables)")) {
            return Ok(None);
        }
        Ok(Some(LegacyTable { lines: listing.lines().map(str::to_owned).collect(), save, restore }))
    }

    /// Returns the lines of a legacy table with the packets and bytes of each rule, as `iptables-save -c` prints them;
    /// `None` as for [`legacy_table`](Tools::legacy_table).
    pub fn legacy_counters(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(LegacyTable { save, .. }) = self.legacy_table(name)? else { return Ok(None) };
        let listing = tool::run(save, &["-c", "-t", name], "", TIMEOUT)?;
        Ok(Some(listing.lines().map(str::to_owned).collect()))
    }

    /// Returns the legacy table with this name if something uses it: it has rules, chains of its own, or a policy other
    /// than ACCEPT. An empty one may be left from a program that listed it.
    pub fn legacy_table_in_use(&self, name: &str) -> Result<Option<LegacyTable>> {
        let is_used = |line: &String| line.starts_with("-A ") || (line.starts_with(':') && !line.contains(" ACCEPT ["));
        Ok(self.legacy_table(name)?.filter(|table| table.lines.iter().any(is_used)))
    }

    /// Applies a script, in the format of `iptables-save`, to the tables that the host's `iptables` uses.
    pub fn restore(&self, script: &str) -> Result<()> {
        tool::run(self.restore, &RESTORE_OPTIONS, script, TIMEOUT).map(drop)
    }

    /// Validates a script without applying it. Waits for the lock of the tools, as [`restore`](Tools::restore) does:
    /// another program may hold it for a moment.
    pub fn test(&self, script: &str) -> Result<()> {
        let [noflush, wait] = RESTORE_OPTIONS;
        tool::run(self.restore, &[noflush, wait, "--test"], script, TIMEOUT).map(drop)
    }
}

/// A legacy table, as its tool lists it.
#[derive(Debug)]
pub struct LegacyTable {
    /// The chains and rules in the format of `iptables-save`.
    pub lines: Vec<String>,
    /// The tool that listed the table.
    pub save: &'static str,
    restore: &'static str,
}

impl LegacyTable {
    /// Returns whether a chain exists.
    pub fn has_chain(&self, chain: &str) -> bool {
        declare_chain(&self.lines, chain)
    }

    /// Applies a script, in the format of `iptables-save`, to the legacy tables.
    pub fn restore(&self, script: &str) -> Result<()> {
        tool::run(self.restore, &RESTORE_OPTIONS, script, TIMEOUT).map(drop)
    }
}

/// Returns whether lines of a save tool declare a chain.
fn declare_chain(lines: &[String], chain: &str) -> bool {
    let declares = |line: &String| line.strip_prefix(':').is_some_and(|rest| rest.split(' ').next() == Some(chain));
    lines.iter().any(declares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_a_legacy_table_is_found_by_its_declaration() {
        let lines = ["*nat", ":POSTROUTING ACCEPT [0:0]", ":CNI-1 - [0:0]", "-A POSTROUTING -j CNI-2", "COMMIT"];
        let table = LegacyTable { lines: lines.map(str::to_owned).to_vec(), save: "", restore: "" };
        assert!(table.has_chain("CNI-1") && table.has_chain("POSTROUTING"));
        assert!(!table.has_chain("CNI-2") && !table.has_chain("CNI") && !table.has_chain("nat"));
    }

    #[test]
    fn an_address_belongs_to_one_family() {
        for ip in ["10.0.0.1", "fd00::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(FAMILIES.iter().filter(|tools| tools.includes(ip)).count(), 1, "{ip}");
        }
    }
}
