//! The separate namespaces of the demonstration, from which it cannot change the host.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cni::{Context, Error, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// The directories that plugins and this program write to.
const WRITTEN: [&str; 2] = ["/run", "/var/lib"];

/// Moves this process into new network and mount namespaces, with empty directories in place of [`WRITTEN`]. The
/// directories `plugins` stay visible, even below these.
pub(super) fn enter(plugins: &[PathBuf]) -> Result<()> {
    let fresh = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    match unshare(fresh) {
        Err(nix::Error::EPERM) => enter_as_user(fresh)?,
        outcome => outcome.context(|| "create namespaces")?,
    }
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|errno| match errno {
            nix::Error::EINVAL => Error::from(errno).details("/ is not a mount point: run it outside of the chroot"),
            errno => errno.into(),
        })
        .context(|| "make mounts private")?;
    let mut kept = Vec::new();
    for dir in plugins.iter().filter_map(|dir| dir.canonicalize().ok()) {
        if WRITTEN.iter().any(|written| dir.starts_with(written)) {
            kept.push((File::open(&dir).context(|| format!("open {dir:?}"))?, dir));
        }
    }
    for written in WRITTEN {
        mount(Some("tmpfs"), written, Some("tmpfs"), MsFlags::empty(), none)
            .context(|| format!("mount an empty directory over {written}"))?;
    }
    for (file, dir) in kept {
        let what = || format!("keep {dir:?} visible");
        fs::create_dir_all(&dir).context(what)?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        mount(Some(source.as_str()), &dir, none, MsFlags::MS_BIND, none).context(what)?;
    }
    fs::create_dir("/run/netns").context(|| "create /run/netns")
}

/// Creates the namespaces inside a user namespace in which this process is root, if the host allows that.
fn enter_as_user(fresh: CloneFlags) -> Result<()> {
    let own = fs::metadata("/proc/self").context(|| "stat /proc/self")?;
    unshare(fresh | CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| {
            Error::from(errno).details(
                "that needs CAP_SYS_ADMIN: run it as root, or allow user namespaces (sysctl user.max_user_namespaces)",
            )
        })
        .context(|| "create namespaces")?;
    // The kernel accepts gid_map only after setgroups is denied.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {} 1", own.uid())),
        ("gid_map", format!("0 {} 1", own.gid())),
    ] {
        fs::write(format!("/proc/self/{file}"), text).context(|| format!("write /proc/self/{file}"))?;
    }
    Ok(())
}
