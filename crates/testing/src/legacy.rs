//! Legacy tables of iptables, which only their tools can change.

use std::fs;
use std::os::unix::fs::symlink;

use crate::{Lab, PATH, skip};

/// Returns a host whose legacy tables of this name are in use; `None` if the kernel has no such tables.
pub fn host(table: &str, test: &str) -> Option<Lab> {
    let lab = Lab::new();
    if !use_tables(&lab, table) {
        skip(test, "the kernel or the host has no legacy iptables");
        return None;
    }
    Some(lab)
}

/// Adds a rule of the administrator to the legacy tables of this name, which shows that they are in use. Returns
/// whether the kernel has such tables.
pub fn use_tables(lab: &Lab, table: &str) -> bool {
    let script = format!(
        "for tool in iptables-legacy ip6tables-legacy; do
             $tool -t {table} -A INPUT -p tcp --dport 1 -j RETURN 2>/dev/null || exit 0
         done
         echo works"
    );
    lab.sh(&script) == "works\n"
}

/// Returns a PATH on which the tools of iptables are the legacy ones.
pub fn path(lab: &Lab) -> String {
    let tools = lab.dir().join("legacy-tools");
    if !tools.exists() {
        fs::create_dir(&tools).unwrap();
        for tool in ["iptables", "ip6tables"] {
            for kind in ["", "-restore", "-save"] {
                symlink("/usr/sbin/xtables-legacy-multi", tools.join(format!("{tool}{kind}"))).unwrap();
            }
        }
    }
    format!("{}:{PATH}", tools.display())
}
