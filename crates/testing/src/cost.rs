//! The cost of a call, which tests limit so that it grows only on purpose.

use crate::{Lab, Process};

/// What one call costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Netlink messages.
    pub messages: usize,
    /// System calls after the configuration was read. The programs under test may use glibc, which makes more system
    /// calls at the start than the released program.
    pub calls: usize,
    /// Child processes. They execute no other program.
    pub children: usize,
}

/// Runs a call, which must succeed and execute no other program, and returns its cost.
#[track_caller]
pub fn of(lab: &Lab, call: Process) -> Cost {
    let (outcome, log) = call.trace(lab, &["-f"]);
    outcome.ok();
    let count = |call: &str| log.lines().filter(|line| line.contains(&format!(" {call}("))).count();
    assert_eq!(count("execve"), 1, "{log}");
    // A call that another process interrupts in the log has a second line.
    let calls = log.lines().filter(|line| line.contains('(') && !line.contains(" resumed>")).count();
    let start = log.lines().position(|line| line.contains("read(0,")).unwrap();
    let children = ["clone", "clone3", "fork", "vfork"].map(count).iter().sum();
    Cost { messages: count("sendto"), calls: calls - start, children }
}

/// Runs a call, which must succeed, and returns its edits of nf_tables, such as `add table inet cni_hostport`.
#[track_caller]
pub fn nft_edits(call: Process) -> Vec<String> {
    let outcome = call.env("CNI_LOG", "debug").run();
    outcome.ok();
    let edits = outcome.stderr.lines().filter_map(|line| line.split_once("nf_tables: "));
    edits.map(|(_, edit)| edit.to_owned()).collect()
}
