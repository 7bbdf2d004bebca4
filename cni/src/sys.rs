//! The only unsafe code: what neither std nor nix nor neli wraps safely, and what a short life needs in place of the C
//! library's own.
#![expect(unsafe_code, reason = "each block says why it is sound")]

pub(crate) mod arena;
#[cfg(target_arch = "x86_64")]
mod copy;
mod start;

pub use start::start;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use neli::socket::NlSocket;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sched::{CloneFlags, unshare};
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

/// A descriptor that becomes readable when the child `pid` ends (since Linux 5.3).
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Splits this process in two, unless it has several threads: the number of the child, or `None` in the child.
pub(crate) fn fork() -> io::Result<Option<u32>> {
    // A process with one thread shares its memory with nobody, and nothing happens. One with several gets an error.
    unshare(CloneFlags::CLONE_VM)?;
    // SAFETY: there is one thread, so no other can hold a lock for ever in the child, which is a process like any other.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Some(child.cast_unsigned())),
    }
}

/// Ends this process at once: nothing that it shares with its parent is written or undone.
pub(crate) fn end(status: libc::c_int) -> ! {
    // SAFETY: it takes an integer, and does not return.
    unsafe { libc::_exit(status) }
}

/// Lets the kernel forget the child `pid`, if it has ended.
pub(crate) fn bury(pid: u32) {
    // SAFETY: it takes integers, and the status is not wanted.
    unsafe { libc::waitpid(pid.cast_signed(), std::ptr::null_mut(), libc::WNOHANG) };
}

/// Closes all descriptors from `first` to `last` (since Linux 5.9), in a process that will never use what owned them.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: it takes integers; nobody uses or drops the owners, as was promised.
    let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Is the kernel of this version or a later one? One that says something strange is not.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    // SAFETY: all zeroes are valid texts, of which the kernel writes some that end with a NUL; the first is copied.
    let release = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&mut name);
        CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|digits| digits.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// neli's socket as something that `poll` takes.
pub(crate) fn borrow(socket: &NlSocket) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as the socket lives, and the borrow cannot outlive it.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

/// A datagram of a netlink socket, if there is one: its true length, and the number of who sent it.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, u32)> {
    // SAFETY: all zeroes are a valid `sockaddr_nl`, which is made of numbers.
    let mut sender: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut room = libc::socklen_t::try_from(size_of_val(&sender)).unwrap_or_default();
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most as many bytes as there are, and an address of a size that it is told.
    let len = unsafe {
        let sender = (&raw mut sender).cast();
        libc::recvfrom(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags, sender, &raw mut room)
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok((len, sender.nl_pid))
}

// linux/sockios.h: what sockets are asked. libc has them in a type that depends on the C library.
const SIOCGIFFLAGS: u16 = 0x8913;
const SIOCGIFHWADDR: u16 = 0x8927;
const SIOCGIFINDEX: u16 = 0x8933;
const SIOCETHTOOL: u16 = 0x8946;
const SIOCGSKNS: u16 = 0x894c;

/// The number of the link called `name` in the network namespace of `socket`, which may be of any family.
pub(crate) fn link_index(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = request_about(name)?;
    // SAFETY: the request is an `ifreq`, and asks for a number.
    unsafe { ask(socket, SIOCGIFINDEX, &mut request) }?;
    // SAFETY: the kernel has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex }.cast_unsigned())
}

/// The Ethernet address of the link called `name`, if it has one. The same socket serves.
pub(crate) fn link_mac(socket: BorrowedFd<'_>, name: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = request_about(name)?;
    // SAFETY: the request is an `ifreq`, and asks for an address.
    unsafe { ask(socket, SIOCGIFHWADDR, &mut request) }?;
    // SAFETY: the kernel has just written this member of the union.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let bytes = address.sa_data.first_chunk::<6>().filter(|_| address.sa_family == libc::ARPHRD_ETHER);
    Ok(bytes.map(|bytes| bytes.map(|byte| byte.to_ne_bytes()[0])))
}

/// Makes the kernel finish what changes of the carrier of the link called `name` have left to a worker (since Linux 6.8).
/// The same socket serves.
pub(crate) fn settle_carrier(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // linux/ethtool.h: a command, and room for its answer
    const ETHTOOL_GLINK: u32 = 0x0a;
    let mut carrier = [ETHTOOL_GLINK, 0_u32];
    let mut request = request_about(name)?;
    request.ifr_ifru.ifru_data = carrier.as_mut_ptr().cast();
    // SAFETY: the request is an `ifreq` that points to a command which outlives it.
    unsafe { ask(socket, SIOCETHTOOL, &mut request) }
}

/// Is the link called `name` up, and does it carry, as far as the workers know? A link of which none has heard yet
/// counts as up. The same socket serves.
pub(crate) fn link_is_running(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut request = request_about(name)?;
    // SAFETY: the request is an `ifreq`, and asks for a number.
    unsafe { ask(socket, SIOCGIFFLAGS, &mut request) }?;
    // SAFETY: the kernel has just written this member of the union.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_RUNNING != 0)
}

/// The network namespace of `socket` (since Linux 4.10).
pub(crate) fn namespace_of(socket: BorrowedFd<'_>) -> io::Result<File> {
    // SAFETY: the socket is open, and this question has no argument.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, which is close-on-exec, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The length of [`program_head`]: the smallest page.
pub(crate) const PROGRAM_HEAD: usize = 4096;

/// Returns the first bytes of this program's file as the kernel mapped them: ELF header, segments and notes.
pub(crate) fn program_head() -> &'static [u8; PROGRAM_HEAD] {
    // SAFETY: linkers define this symbol as the address of the ELF header, which is the start of the file.
    unsafe extern "C" {
        static __ehdr_start: [u8; PROGRAM_HEAD];
    }
    // SAFETY: the segment with the header is mapped in whole pages, from the start of a page, and is never written to.
    unsafe { &__ehdr_start }
}

fn request_about(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeroes are a valid `ifreq`, which is made of numbers, bytes and a pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero: the kernel reads up to a NUL.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

/// # Safety
///
/// `what` must be a question that an `ifreq` answers, and a pointer in it must be valid for that question.
unsafe fn ask(socket: BorrowedFd<'_>, what: u16, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the socket is open, the request lives through the call, and the rest is the caller's promise. The type of
    // a question is signed in one C library and unsigned in the other, and each has room for it.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), what.into(), request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a file by `openat`, which costs one system call where the `open` of musl costs two. Not unsafe, but for the same
/// users.
pub(crate) fn open(path: &Path, access: OFlag) -> nix::Result<File> {
    openat(AT_FDCWD, path, access | OFlag::O_CLOEXEC, Mode::empty()).map(File::from)
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
    const { assert!(N <= 256) };
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

/// Has stdout the answer? Whoever fails after that says nothing there any more.
pub(crate) static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Makes a process that is aborted, because it has no memory for instance, tell `stdout` so and exit with 1.
pub(crate) fn answer_aborts() -> nix::Result<()> {
    const ANSWER: &[u8] = br#"{
    "code": 999,
    "msg": "the plugin had to abort",
    "details": "it had no memory left, or it is a bug of cni0; stderr tells; what was done is undone by DEL"
}"#;
    extern "C" fn answer(_: libc::c_int) {
        let rest = if ANSWERED.load(Ordering::Relaxed) { b"" } else { ANSWER };
        // SAFETY: both may be called by a handler, the text lives for ever, and nothing runs after them.
        unsafe {
            libc::write(libc::STDOUT_FILENO, rest.as_ptr().cast(), rest.len());
            libc::_exit(1);
        }
    }
    let action = SigAction::new(SigHandler::Handler(answer), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only makes calls that a handler may make.
    unsafe { sigaction(Signal::SIGABRT, &action) }.map(drop)
}
