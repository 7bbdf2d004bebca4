//! Where this host's network namespaces can be found.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What tells a namespace from others.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|inode| (inode.dev(), inode.ino()))
}

/// Where network namespaces are mounted, as `ip netns` and runtimes do it.
pub(super) fn mounted() -> Vec<PathBuf> {
    // Other mounts may be where no text says.
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(mounted_netns).map(PathBuf::from).collect()
}

/// The mount point in a line of mountinfo, if a network namespace is mounted there.
fn mounted_netns(line: &str) -> Option<String> {
    let mut words = line.split(' ').skip(3);
    let (root, point) = (words.next()?, words.next()?);
    // proc(5): white space and backslashes are written as octal numbers.
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    root.starts_with("net:[").then(|| plain.iter().fold(point.to_owned(), |text, (code, c)| text.replace(code, c)))
}

/// The namespaces of all processes.
pub(super) fn of_processes() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    numbered.map(|entry| entry.path().join("ns/net")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_network_namespaces_are_told_from_others() {
        let net = "84 28 0:4 net:[4026532177] /run/netns/a\\040b rw shared:3 - nsfs nsfs rw";
        assert_eq!(mounted_netns(net).as_deref(), Some("/run/netns/a b"));
        for other in ["84 28 0:4 mnt:[4026532177] /run/x rw - nsfs nsfs rw", "21 1 8:1 / / rw - ext4 /dev/sda1 rw", ""]
        {
            assert_eq!(mounted_netns(other), None);
        }
    }
}
