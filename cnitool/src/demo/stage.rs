//! Where the demonstration takes place: namespaces of its own, in which nothing of the host can be touched.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cni::{Context, Error, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// What plugins and this program write to.
const WRITTEN: [&str; 2] = ["/run", "/var/lib"];

/// Moves this process to a host of its own: no network, empty directories where something is written. `plugins` stay
/// where they are, even below these.
pub(super) fn enter(plugins: &[PathBuf]) -> Result<()> {
    let fresh = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    match unshare(fresh) {
        Err(nix::Error::EPERM) => enter_as_user(fresh)?,
        outcome => outcome.trying(|| "make namespaces")?,
    }
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|errno| match errno {
            nix::Error::EINVAL => Error::from(errno).details("/ is no mount point: run it outside of the chroot"),
            errno => errno.into(),
        })
        .trying(|| "keep mounts private")?;
    let mut kept = Vec::new();
    for dir in plugins.iter().filter_map(|dir| dir.canonicalize().ok()) {
        if WRITTEN.iter().any(|written| dir.starts_with(written)) {
            kept.push((File::open(&dir).trying(|| format!("open {dir:?}"))?, dir));
        }
    }
    for written in WRITTEN {
        mount(Some("tmpfs"), written, Some("tmpfs"), MsFlags::empty(), none)
            .trying(|| format!("mount an empty directory over {written}"))?;
    }
    for (file, dir) in kept {
        let what = || format!("keep {dir:?} in sight");
        fs::create_dir_all(&dir).trying(what)?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        mount(Some(source.as_str()), &dir, none, MsFlags::MS_BIND, none).trying(what)?;
    }
    fs::create_dir("/run/netns").trying(|| "make /run/netns")
}

/// Whoever is not root becomes it in a user namespace, if the host allows that.
fn enter_as_user(fresh: CloneFlags) -> Result<()> {
    let own = fs::metadata("/proc/self").trying(|| "look at /proc/self")?;
    unshare(fresh | CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| {
            Error::from(errno).details(
                "that needs CAP_SYS_ADMIN: run it as root, or allow user namespaces (sysctl user.max_user_namespaces)",
            )
        })
        .trying(|| "make namespaces")?;
    // Without the first the kernel does not take the third.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {} 1", own.uid())),
        ("gid_map", format!("0 {} 1", own.gid())),
    ] {
        fs::write(format!("/proc/self/{file}"), text).trying(|| format!("write /proc/self/{file}"))?;
    }
    Ok(())
}
