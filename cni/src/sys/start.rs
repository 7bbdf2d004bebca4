//! The start of a program, in place of std's own.
//!
//! std's would prepare for overflows of the stack, which end a program either way, and keep the arguments for later. Of a
//! call that lives for a fifth of a millisecond that is a tenth. What a plugin relies on is done here.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use nix::sys::signal::{SigHandler, Signal, signal};

use crate::plugin::Plugin;
use crate::process;

/// Makes a program of plugins: `cni::main!(Loopback)`, in a file that begins with `#![no_main]`. With several plugins
/// the name under which the program is called picks one.
#[macro_export]
macro_rules! main {
    ($($plugin:expr),+ $(,)?) => {
        // SAFETY: a program has one `main`, and it is of this type.
        #[unsafe(no_mangle)]
        extern "C" fn main(_: ::std::ffi::c_int, arguments: *const *const ::std::ffi::c_char) -> ::std::ffi::c_int {
            // SAFETY: the C library calls this once, with what the kernel gave it.
            unsafe { $crate::start(arguments, &[$(&$plugin),+]) }
        }
    };
}

#[doc(hidden)]
/// What [`main!`](crate::main) runs; the answer is the status of the process.
///
/// # Safety
///
/// `arguments` must be those of a C `main`, and nothing else may run yet.
pub unsafe fn start(arguments: *const *const c_char, plugins: &[&dyn Plugin]) -> c_int {
    if !keep_streams() {
        return 1;
    }
    // A caller that does not read the answer must not end a command halfway.
    // SAFETY: ignoring a signal runs no code of ours.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    // SAFETY: the list ends with a null pointer, and what lies before it are texts that live as long as the process.
    let name = unsafe {
        let first = *arguments;
        if first.is_null() { c"" } else { CStr::from_ptr(first) }
    };
    let success = process::run(plugins, OsStr::from_bytes(name.to_bytes()));
    c_int::from(!success)
}

/// Puts /dev/null where stdin, stdout or stderr is closed: the next file to be opened would take its place, and be
/// written an answer into. `false` if that cannot be had.
fn keep_streams() -> bool {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: the array is as long as is said. It asks about numbers, whatever they stand for, and does not wait.
    if unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) } == 0 {
        return true;
    }
    streams.iter().filter(|stream| stream.revents & libc::POLLNVAL != 0).all(|stream| {
        // SAFETY: the path ends with a NUL. The lowest free number is taken, which is this one: those below are open.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) == stream.fd }
    })
}
