//! The kernel's directories of links in sysfs, whose inode numbers identify links.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::error::{Context, Result};
use crate::netlink::Link;
use crate::sys;

/// sysfs with the links of one network namespace, mounted at no path.
#[derive(Debug)]
pub struct Sysfs {
    root: OwnedFd,
}

impl Sysfs {
    /// Opens it for the network namespace of the calling thread. What is mounted at `/sys` does not matter: that may
    /// show the links of another namespace. Needs CAP_SYS_ADMIN, and Linux 5.2.
    pub fn open() -> Result<Sysfs> {
        let root = sys::mount_nowhere(c"sysfs").context(|| "open the links of the network namespace in sysfs")?;
        Ok(Sysfs { root })
    }

    /// Returns the number by which the kernel knows a link from its creation to its deletion: no new name and no other
    /// namespace changes it, no program can choose it, and no other link gets it before the next boot. `None` if the
    /// link is gone or was renamed.
    pub fn identity(&self, link: &Link) -> Result<Option<u64>> {
        let what = || format!("identify {:?} in sysfs", link.name);
        let open = |dir: &OwnedFd, path: &Path, flags| match openat(dir, path, flags | OFlag::O_CLOEXEC, Mode::empty())
        {
            Ok(fd) => Ok(Some(fd)),
            Err(nix::Error::ENOENT | nix::Error::ENODEV) => Ok(None),
            Err(errno) => Err(errno).context(what),
        };
        let dir = open(&self.root, &Path::new("class/net").join(&link.name), OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let Some(dir) = dir else { return Ok(None) };
        let Some(index) = open(&dir, Path::new("ifindex"), OFlag::O_RDONLY)? else { return Ok(None) };
        let mut number = String::new();
        match File::from(index).read_to_string(&mut number) {
            // What the kernel returns for a link that is being deleted.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => return Ok(None),
            outcome => outcome.context(what)?,
        };
        let identity = File::from(dir).metadata().context(what)?.ino();
        // Another link may have got the name meanwhile.
        Ok((number.trim_end() == link.index.number().to_string()).then_some(identity))
    }
}
