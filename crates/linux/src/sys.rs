//! All unsafe code: system interfaces that std, nix and neli do not wrap safely, and the
//! start and the memory of a short process.
#![expect(unsafe_code, reason = "each block has a SAFETY comment")]

pub(crate) mod arena;
mod capabilities;
mod packet;
mod start;
#[cfg(all(panic = "abort", target_env = "musl"))]
mod unwind;

pub(crate) use capabilities::limit_capabilities;
pub(crate) use packet::{packet_bind, packet_filter, packet_receive, packet_send};
pub use start::{Arguments, start};

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use neli::socket::NlSocket;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::stat::Mode;

/// Returns whether `fd` is a network namespace (NS_GET_NSTYPE, since Linux 4.11).
pub(crate) fn is_network_namespace(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // linux/nsfs.h: _IO(0xb7, 3)
    const NS_GET_NSTYPE: libc::c_int = 0xb703;
    // SAFETY: the descriptor is open, and this request takes no argument. The cast fits each C library: the type of a
    // request is signed in one and unsigned in the other.
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE as _) };
    if kind >= 0 {
        return Ok(kind == libc::CLONE_NEWNET);
    }
    match io::Error::last_os_error() {
        // The kernel returns it for any file that is not a namespace.
        error if error.raw_os_error() == Some(libc::ENOTTY) => Ok(false),
        error => Err(error),
    }
}

/// Returns the cookie of a socket's network namespace (SO_NETNS_COOKIE, since Linux 5.14).
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // asm-generic/socket.h; musl does not define it.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut len = 8;
    // SAFETY: the kernel writes at most `len` bytes, the size of the number.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut len,
        )
    };
    if status == 0 && len == 8 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Returns a descriptor that becomes readable when the child `pid` exits (since Linux 5.3).
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and does not access our memory.
    descriptor(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Mounts a file system of this kind at no path (since Linux 5.2). It is unmounted when the descriptor is closed.
pub(crate) fn mount_nowhere(kind: &CStr) -> io::Result<OwnedFd> {
    // linux/mount.h: the first flag of both calls closes the descriptor in programs that this process executes.
    const CLOEXEC: libc::c_int = 1;
    const FSCONFIG_CMD_CREATE: libc::c_int = 6;
    let none: *const libc::c_char = std::ptr::null();
    // SAFETY: the kernel reads a text that ends with a NUL.
    let context = descriptor(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOEXEC) })?;
    // SAFETY: the descriptor is open, and this command takes neither a key nor a value.
    let status = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, none, none, 0) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and fsmount takes integers.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOEXEC, 0) })
}

/// Takes over the descriptor that a system call has returned.
fn descriptor(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Forks this process; fails if it has several threads. Returns the process ID of the child, or `None` in the child.
pub(crate) fn fork() -> io::Result<Option<u32>> {
    // In a process with one thread this has no effect. With several threads it fails.
    unshare(CloneFlags::CLONE_VM)?;
    // SAFETY: there is only one thread, so no lock is held forever in the child, which can run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Some(child.cast_unsigned())),
    }
}

/// Exits this process at once, without flushing buffers or running exit handlers, which it shares with its parent.
pub(crate) fn exit_now(status: libc::c_int) -> ! {
    // SAFETY: it takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Reaps the child `pid` if it has exited.
pub(crate) fn reap(pid: u32) {
    // SAFETY: it takes integers, and a null pointer means that no status is written.
    unsafe { libc::waitpid(pid.cast_signed(), std::ptr::null_mut(), libc::WNOHANG) };
}

/// Closes all descriptors from `first` to `last` (since Linux 5.9), in a process that never uses their owners again.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: it takes integers; the owners are never used or dropped, as the caller guarantees.
    let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for an RCU grace period: until no processor uses what was deleted before. Takes no lock of the kernel
/// meanwhile. Fails on a kernel without membarrier(2), and on one with processors that are never interrupted
/// (`nohz_full`).
pub(crate) fn await_grace_period() -> io::Result<()> {
    // linux/membarrier.h
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes integers and does not access our memory.
    let status = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether the kernel has at least this version; `false` if its version cannot be parsed.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    // SAFETY: all zeroes are a valid `utsname`, the kernel writes texts that end with a NUL, and the text is copied.
    let release = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&mut name);
        CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|digits| digits.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Returns neli's socket as a descriptor for `poll`.
pub(crate) fn borrow(socket: &NlSocket) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open while the socket exists, and the borrow cannot outlive the socket.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

/// Receives a datagram of a netlink socket without waiting. Returns its real length and the port ID of the sender.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, u32)> {
    // SAFETY: all zeroes are a valid `sockaddr_nl`, which consists of numbers.
    let mut sender: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut room = libc::socklen_t::try_from(size_of_val(&sender)).unwrap_or_default();
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most as many bytes as the buffer has, and an address of at most `room` bytes.
    let len = unsafe {
        let sender = (&raw mut sender).cast();
        libc::recvfrom(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags, sender, &raw mut room)
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok((len, sender.nl_pid))
}

// linux/sockios.h: ioctl requests. libc defines them with a type that depends on the C library.
const SIOCGIFNAME: u16 = 0x8910;
const SIOCGIFMTU: u16 = 0x8921;
const SIOCGIFHWADDR: u16 = 0x8927;
const SIOCGIFINDEX: u16 = 0x8933;
const SIOCETHTOOL: u16 = 0x8946;
const SIOCGSKNS: u16 = 0x894c;

/// Returns the index of the link called `name` in the network namespace of `socket`, which can be of any family.
pub(crate) fn link_index(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = interface_request(name)?;
    // SAFETY: the request is an `ifreq` without a pointer, as SIOCGIFINDEX expects.
    unsafe { interface_ioctl(socket, SIOCGIFINDEX, &mut request) }?;
    // SAFETY: the kernel has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex }.cast_unsigned())
}

/// Returns the name of the link with this index, padded with NULs. See [`link_index`] for the socket.
pub(crate) fn link_name(socket: BorrowedFd<'_>, index: u32) -> io::Result<[u8; libc::IFNAMSIZ]> {
    let mut request = interface_request("")?;
    request.ifr_ifru.ifru_ifindex = index.cast_signed();
    // SAFETY: the request is an `ifreq` without a pointer, as SIOCGIFNAME expects.
    unsafe { interface_ioctl(socket, SIOCGIFNAME, &mut request) }?;
    Ok(request.ifr_name.map(|byte| byte.to_ne_bytes()[0]))
}

/// Returns the MAC address of the link called `name`, if it has one. See [`link_index`] for the socket.
pub(crate) fn link_mac(socket: BorrowedFd<'_>, name: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = interface_request(name)?;
    // SAFETY: the request is an `ifreq` without a pointer, as SIOCGIFHWADDR expects.
    unsafe { interface_ioctl(socket, SIOCGIFHWADDR, &mut request) }?;
    // SAFETY: the kernel has just written this member of the union.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let bytes = address.sa_data.first_chunk::<6>().filter(|_| address.sa_family == libc::ARPHRD_ETHER);
    Ok(bytes.map(|bytes| bytes.map(|byte| byte.to_ne_bytes()[0])))
}

/// Returns the MTU of the link called `name`. See [`link_index`] for the socket.
pub(crate) fn link_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = interface_request(name)?;
    // SAFETY: the request is an `ifreq` without a pointer, as SIOCGIFMTU expects.
    unsafe { interface_ioctl(socket, SIOCGIFMTU, &mut request) }?;
    // SAFETY: the kernel has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.cast_unsigned())
}

/// Returns whether the link called `name` is up and has a carrier. Since Linux 6.8, the kernel first finishes carrier
/// changes that are pending in a worker. See [`link_index`] for the socket.
pub(crate) fn link_has_carrier(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    // linux/ethtool.h: a command, and space for its result
    const ETHTOOL_GLINK: u32 = 0x0a;
    let mut carrier = [ETHTOOL_GLINK, 0_u32];
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_data = carrier.as_mut_ptr().cast();
    // SAFETY: the request is an `ifreq` that points to a command and space for its result, which outlive the call.
    unsafe { interface_ioctl(socket, SIOCETHTOOL, &mut request) }?;
    Ok(carrier != [ETHTOOL_GLINK, 0])
}

/// Returns the network namespace of `socket` (since Linux 4.10).
pub(crate) fn namespace_of(socket: BorrowedFd<'_>) -> io::Result<File> {
    // SAFETY: the socket is open, and this request takes no argument.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, which is close-on-exec, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The length of [`program_head`]: the smallest page size.
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

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeroes are a valid `ifreq`, which consists of numbers, bytes and a pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero because the kernel reads up to a NUL.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

/// linux/if_tun.h
const TUNSETIFF: u32 = 0x4004_54ca;
const TUNSETIFINDEX: u32 = 0x4004_54da;

/// The properties of a device that a number describes (linux/if_tun.h).
#[derive(Clone, Copy, Debug)]
pub(crate) enum TunProperty {
    /// TUNSETPERSIST
    Persist = 0x4004_54cb,
    /// TUNSETOWNER
    Owner = 0x4004_54cc,
    /// TUNSETGROUP
    Group = 0x4004_54ce,
}

/// Calls an ioctl on a network interface.
///
/// # Safety
///
/// `what` must be a request that takes an `ifreq`, and a pointer in it must be valid for that request.
unsafe fn interface_ioctl(socket: BorrowedFd<'_>, what: u16, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the socket is open, the `ifreq` outlives the call, and the caller guarantees the rest. The type of a
    // request is signed in one C library and unsigned in the other, and the value fits into both.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), what.into(), request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the descriptor of /dev/net/tun a device of this name, or one that the kernel completes.
pub(crate) fn tun_set_device(tun: &File, name: &str, flags: u16) -> io::Result<()> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = flags.cast_signed();
    // SAFETY: the descriptor is open, and the request is an `ifreq` without a pointer, as TUNSETIFF expects. The type
    // of a request is signed in one C library and unsigned in the other.
    let status = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF as _, &mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Chooses the index of the device that [`tun_set_device`] will create.
pub(crate) fn tun_set_index(tun: &File, mut index: u32) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel reads a number, which outlives the call.
    let status = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFINDEX as _, &mut index) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets a property of the device by a request that takes a number.
pub(crate) fn tun_set(tun: &File, what: TunProperty, value: u32) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these requests take a number instead of a pointer.
    let status = unsafe { libc::ioctl(tun.as_raw_fd(), what as _, libc::c_ulong::from(value)) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a file by `openat`, one system call; musl's `open` needs two. Not unsafe, but used by the same callers.
pub(crate) fn open(path: &Path, access: OFlag) -> nix::Result<File> {
    openat(AT_FDCWD, path, access | OFlag::O_CLOEXEC, Mode::empty()).map(File::from)
}

/// Takes over the first descriptor that the service manager passed (sd_listen_fds(3)); `None` if it is not open.
pub(crate) fn passed_descriptor() -> Option<OwnedFd> {
    const FIRST: libc::c_int = 3;
    // SAFETY: it takes integers. It fails if the descriptor is not open.
    let status = unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: the descriptor is open, and the service manager passed it to this process, in which nothing else owns it.
    (status == 0).then(|| unsafe { OwnedFd::from_raw_fd(FIRST) })
}

/// Allows this process as many open files as its hard limit permits.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes an `rlimit`, which outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads an `rlimit`, which outlives the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the process's stdin without a buffer. std's buffer would touch two more pages.
pub(crate) fn stdin() -> BorrowedFd<'static> {
    // SAFETY: `start` has made sure that it is open, and nothing closes it.
    unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) }
}

/// Returns the process's stdout without a buffer.
pub(crate) fn stdout() -> BorrowedFd<'static> {
    // SAFETY: as for stdin.
    unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) }
}

/// Returns the width of the terminal at `fd` in columns; `None` if it is not a terminal or does not know its width.
pub(crate) fn terminal_width(fd: BorrowedFd<'_>) -> Option<u16> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and the kernel writes a `winsize`, which outlives the call.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    (status == 0 && size.ws_col > 0).then_some(size.ws_col)
}

/// Returns cryptographically random bytes, at most 256: up to that number the kernel never returns fewer.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    // SAFETY: the kernel writes at most `N` bytes, the length of the array.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got) == Ok(N) { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// Makes SIGALRM interrupt system calls, which then fail with EINTR, instead of ending the process.
pub(crate) fn let_alarm_interrupt() -> nix::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, so it is safe at any time and on any thread.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map(drop)
}

/// Whether the answer was written to stdout. A failure after that prints nothing there.
pub(crate) static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Makes an aborting process, for example one without memory, print `answer` to stdout and exit with 1.
pub(crate) fn answer_aborts(answer: &'static [u8]) -> nix::Result<()> {
    static ANSWER: OnceLock<&[u8]> = OnceLock::new();
    let _ = ANSWER.set(answer);
    extern "C" fn print(_: libc::c_int) {
        let rest = if ANSWERED.load(Ordering::Relaxed) { b"" } else { ANSWER.get().copied().unwrap_or_default() };
        // SAFETY: both calls are async-signal-safe, the text is static, and nothing runs after them.
        unsafe {
            libc::write(libc::STDOUT_FILENO, rest.as_ptr().cast(), rest.len());
            libc::_exit(1);
        }
    }
    let action = SigAction::new(SigHandler::Handler(print), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only makes async-signal-safe calls.
    unsafe { sigaction(Signal::SIGABRT, &action) }.map(drop)
}
