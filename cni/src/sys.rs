//! The only unsafe code: what neither std nor nix nor neli wraps safely.
#![expect(unsafe_code, reason = "each block says why it is sound")]

pub(crate) mod arena;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use neli::socket::NlSocket;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Asks the kernel (NS_GET_NSTYPE, since 4.11) whether `fd` is a network namespace.
pub(crate) fn is_network_namespace(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // linux/nsfs.h: _IO(0xb7, 3)
    const NS_GET_NSTYPE: libc::c_int = 0xb703;
    // SAFETY: the descriptor is open, and this request takes no argument. The cast fits the C library at hand: the
    // type of a request is signed in one and unsigned in the other.
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE as _) };
    if kind >= 0 {
        return Ok(kind == libc::CLONE_NEWNET);
    }
    match io::Error::last_os_error() {
        // What any file says that is no namespace.
        error if error.raw_os_error() == Some(libc::ENOTTY) => Ok(false),
        error => Err(error),
    }
}

/// A descriptor that becomes readable when the child `pid` ends; `None` before Linux 5.3.
pub(crate) fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// neli's socket as something that `poll` takes.
pub(crate) fn borrow(socket: &NlSocket) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as the socket lives, and the borrow cannot outlive it.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

/// Makes SIGALRM interrupt system calls instead of ending the process; they fail with EINTR then.
pub(crate) fn let_alarm_interrupt() -> nix::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, so it is safe at any moment and on any thread.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map(drop)
}
