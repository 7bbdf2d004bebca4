//! The entry point of a program, instead of std's.
//!
//! std allocates a stack for its handler of stack overflows and aborts if the kernel refuses, before any code of the
//! program runs. A plugin must answer with a CNI error even then. Everything that a plugin needs is done here; it also
//! makes ten system calls less.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use nix::sys::signal::{SigHandler, Signal, signal};

use super::program_head;
use crate::process::elf::segments;

/// Defines the entry point of a program, in a file that begins with `#![no_main]`. `run` gets the [`Arguments`], and
/// returns whether it succeeded.
///
/// The memory of the program comes from an [`Arena`](crate::process::Arena), which is a tenth faster for a short
/// process.
#[macro_export]
macro_rules! main {
    ($run:expr) => {
        #[global_allocator]
        static MEMORY: $crate::process::Arena = $crate::process::Arena::new();

        #[used]
        // SAFETY: linkers write notes into the file, and no code uses this section.
        #[unsafe(link_section = ".note.cni0")]
        static SET: $crate::process::set::Note = $crate::process::set::Note::EMPTY;

        // SAFETY: a program has one `main` function, and it has this type.
        #[unsafe(no_mangle)]
        extern "C" fn main(_: ::std::ffi::c_int, arguments: *const *const ::std::ffi::c_char) -> ::std::ffi::c_int {
            // SAFETY: the C library calls this once, with the arguments from the kernel.
            unsafe { $crate::process::start(arguments, $run) }
        }
    };
}

/// Prepares the process and calls `run`. Returns the exit status.
///
/// # Safety
///
/// `arguments` must be those of a C `main`, and no other code may run yet.
pub unsafe fn start(arguments: *const *const c_char, run: impl FnOnce(Arguments) -> bool) -> c_int {
    protect_addresses();
    if !keep_streams() {
        return 1;
    }
    // Neither a caller that does not read the answer nor a limit for the size of files (RLIMIT_FSIZE) may end a command
    // by a signal: the write fails instead, and the command reports it.
    for of_write in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        // SAFETY: ignoring a signal runs no code of ours.
        let _ = unsafe { signal(of_write, SigHandler::SigIgn) };
    }
    let mut arguments = Arguments { next: arguments };
    // The name of the program.
    arguments.next();
    c_int::from(!run(arguments))
}

/// The arguments of this process.
#[derive(Debug)]
pub struct Arguments {
    next: *const *const c_char,
}

impl Iterator for Arguments {
    type Item = &'static OsStr;

    fn next(&mut self) -> Option<&'static OsStr> {
        // SAFETY: the list ends with a null pointer, behind which nothing is read. Its texts exist as long as the
        // process.
        unsafe {
            let argument = *self.next;
            if argument.is_null() {
                return None;
            }
            self.next = self.next.add(1);
            Some(OsStr::from_bytes(CStr::from_ptr(argument).to_bytes()))
        }
    }
}

/// Makes the addresses read-only that the start of the program computed: the table of addresses, and those in constants
/// (relro). A dynamic linker does so, and a static program has none.
fn protect_addresses() {
    let head = program_head();
    let find = |kind| segments(head).find(|segment| segment.kind == kind);
    let (Some(first), Some(constants)) = (find(libc::PT_LOAD), find(libc::PT_GNU_RELRO)) else { return };
    // SAFETY: it takes a number.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return };
    let program = head.as_ptr().addr().wrapping_sub(first.address);
    let start = program.wrapping_add(constants.address);
    let (start, end) = (start / page * page, (start + constants.memory) / page * page);
    // SAFETY: the linker put into these pages only what nothing writes to after the start. If the kernel refuses, they
    // stay writable, and the program works all the same.
    unsafe { libc::mprotect(std::ptr::without_provenance_mut(start), end.saturating_sub(start), libc::PROT_READ) };
}

/// Opens /dev/null for each of stdin, stdout and stderr that is closed. Otherwise the next file to be opened would take
/// its place, and the answer would be written into it. Returns `false` on failure.
///
/// stdout is opened for reading only. A write to it fails, as it would if the descriptor was still closed, so that an
/// ADD whose result is lost is rolled back.
fn keep_streams() -> bool {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: the array has the given length. `poll` accepts closed descriptors and does not wait.
    if unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) } == 0 {
        return true;
    }
    streams.iter().filter(|stream| stream.revents & libc::POLLNVAL != 0).all(|stream| {
        let access = if stream.fd == libc::STDOUT_FILENO { libc::O_RDONLY } else { libc::O_RDWR };
        // SAFETY: the path ends with a NUL. The kernel uses the lowest free number, which is this one: those below are
        // open.
        unsafe { libc::open(c"/dev/null".as_ptr(), access) == stream.fd }
    })
}
