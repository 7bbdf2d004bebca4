//! Finds the network namespaces of this host, and checks whether this process can see all of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cni::{Code, Error, Result};

/// The inode of the initial pid namespace (linux/nsfs.h), the same on every kernel.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Fails if this process may run inside a container, where it cannot decide which containers are gone.
///
/// A pod with the host's network may have its own `/run` and its own processes. There, the paths in the cache do not
/// exist, so that live containers seem to be gone. Process 1 of the initial pid namespace is the host's, so its mount
/// and network namespaces are the host's, too. In any other pid namespace, a node that is itself a container cannot be
/// distinguished from a container on a node: in both, process 1 has the same namespaces as this process.
pub(crate) fn require_host() -> Result<()> {
    let mut foreign = Vec::new();
    for (kind, name) in [("mnt", "mount"), ("pid", "pid"), ("net", "network")] {
        let own = identity(Path::new(&format!("/proc/self/ns/{kind}")))?;
        // Without permission to inspect process 1, the host's namespaces are unknown.
        let host = identity(Path::new(&format!("/proc/1/ns/{kind}"))).ok();
        if host != Some(own) || (kind == "pid" && own.1 != INITIAL_PID_NAMESPACE) {
            foreign.push(name);
        }
    }
    if foreign.is_empty() {
        return Ok(());
    }
    let what = format!(
        "cannot determine which containers are gone: {} of this process may not be the host's",
        match foreign.as_slice() {
            [one] => format!("the {one} namespace"),
            [others @ .., last] => format!("the {} and {last} namespaces", others.join(", ")),
            [] => String::new(),
        }
    );
    Err(Error::new(Code::INTERNAL, what).details(
        "run it on the host, or with `nsenter --target 1 --all` in a privileged pod with hostPID; on a node that is itself \
         a container, use --force",
    ))
}

/// Returns whether both paths lead to one namespace.
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

/// Returns device and inode of a namespace, which identify it.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|inode| (inode.dev(), inode.ino()))
}

/// Returns the paths at which `ip netns` and runtimes have mounted network namespaces.
pub(super) fn mounted() -> Vec<PathBuf> {
    // Without mountinfo, namespaces are found through the cache and through processes.
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(mounted_netns).map(PathBuf::from).collect()
}

/// Returns the mount point in a line of mountinfo if a network namespace is mounted there.
fn mounted_netns(line: &str) -> Option<String> {
    let mut words = line.split(' ').skip(3);
    let (root, point) = (words.next()?, words.next()?);
    // proc(5): white space and backslashes are escaped as octal numbers.
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    root.starts_with("net:[").then(|| plain.iter().fold(point.to_owned(), |text, (code, c)| text.replace(code, c)))
}

/// Returns the paths of the network namespaces of all processes.
pub(super) fn of_processes() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    numbered.map(|entry| entry.path().join("ns/net")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_network_namespaces_are_found() {
        let net = "84 28 0:4 net:[4026532177] /run/netns/a\\040b rw shared:3 - nsfs nsfs rw";
        assert_eq!(mounted_netns(net).as_deref(), Some("/run/netns/a b"));
        for other in ["84 28 0:4 mnt:[4026532177] /run/x rw - nsfs nsfs rw", "21 1 8:1 / / rw - ext4 /dev/sda1 rw", ""]
        {
            assert_eq!(mounted_netns(other), None);
        }
    }
}
