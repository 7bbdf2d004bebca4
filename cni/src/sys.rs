//! The only unsafe code: what neither std nor nix nor neli wraps safely.
#![expect(unsafe_code, reason = "each block says why it is sound")]

pub(crate) mod arena;
mod start;

pub use start::start;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use neli::socket::NlSocket;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::stat::Mode;

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

/// The number of the link called `name` in the network namespace of `socket`, which may be of any family.
pub(crate) fn link_index(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: all zeroes are a valid `ifreq`, which is made of numbers, bytes and a pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero: the kernel reads up to a NUL.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    // SAFETY: the socket is open, and the request points to an `ifreq` that lives through the call. The cast is as above.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &mut request) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex }.cast_unsigned())
}

/// Opens a file by `openat`, which costs one system call where the `open` of musl costs two. Not unsafe, but for the same
/// users.
pub(crate) fn open(path: &Path, access: OFlag) -> nix::Result<File> {
    openat(AT_FDCWD, path, access | OFlag::O_CLOEXEC, Mode::empty()).map(File::from)
}

/// Lets a socket for notifications hear of two links alone: what is told of others is thrown away before it costs
/// anything. Where everybody makes links at once that is most of it.
pub(crate) fn hear_of(socket: BorrowedFd<'_>, links: [u32; 2]) -> io::Result<()> {
    // linux/filter.h, bpf_common.h: a program for each message. The index stands behind the header (16) and four bytes
    // of `ifinfomsg`; it is read as if it were big-endian.
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let [first, second] = links.map(|link| u32::from_be_bytes(link.to_ne_bytes()));
    let mut steps = [
        step(LOAD_WORD, 0, 20),
        step(JUMP_IF_EQUAL, 2, first),
        step(JUMP_IF_EQUAL, 1, second),
        step(RETURN, 0, 0),
        step(RETURN, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: 5, filter: steps.as_mut_ptr() };
    #[expect(clippy::cast_possible_truncation, reason = "sixteen")]
    let size = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the socket is open, and the program lives through the call, which copies it.
    let status = unsafe {
        let program = std::ptr::from_ref(&program).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, size)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The process's stdin. std's own has a buffer, of which a short call would touch two pages for nothing.
pub(crate) fn stdin() -> BorrowedFd<'static> {
    // SAFETY: `start` made sure that it is open, and nobody closes it.
    unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) }
}

/// The process's stdout, without a buffer as well.
pub(crate) fn stdout() -> BorrowedFd<'static> {
    // SAFETY: as above.
    unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) }
}

/// Bytes that nobody can guess, at most 256 of them: so many come at once or not at all.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the kernel writes at most as many bytes as there are.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got) == Ok(N) { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// Makes SIGALRM interrupt system calls instead of ending the process; they fail with EINTR then.
pub(crate) fn let_alarm_interrupt() -> nix::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, so it is safe at any moment and on any thread.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map(drop)
}

/// Makes a process that is aborted, because it has no memory for instance, tell `stdout` so and exit with 1.
pub(crate) fn answer_aborts() -> nix::Result<()> {
    const ANSWER: &[u8] = br#"{
    "code": 999,
    "msg": "the plugin had to abort",
    "details": "it had no memory left, or it is a bug of cni0; stderr tells; what was done is undone by DEL"
}"#;
    extern "C" fn answer(_: libc::c_int) {
        // SAFETY: both may be called by a handler, the text lives for ever, and nothing runs after them.
        unsafe {
            libc::write(libc::STDOUT_FILENO, ANSWER.as_ptr().cast(), ANSWER.len());
            libc::_exit(1);
        }
    }
    let action = SigAction::new(SigHandler::Handler(answer), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only makes calls that a handler may make.
    unsafe { sigaction(Signal::SIGABRT, &action) }.map(drop)
}
