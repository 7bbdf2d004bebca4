//! The permissions of this process.

use std::io;

/// linux/capability.h: _LINUX_CAPABILITY_VERSION_3
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// The lower or the upper half of the three sets.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Keeps those of the permitted capabilities whose bits are set, all of them below 32. Programs that this process
/// executes gain no others.
pub(crate) fn limit_capabilities(bits: u32) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the kernel reads the header, and writes two sets for this version. Both outlive the call.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let kept = sets.map(|half| half.permitted).first().copied().unwrap_or_default() & bits;
    let sets = [Sets { effective: kept, permitted: kept, inheritable: 0 }, Sets::default()];
    // SAFETY: the kernel reads the header and two sets, which outlive the call.
    if unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request takes integers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
