//! Stands in for the unwinder, which a program that aborts on a panic never needs: it is 45 KB of every plugin.
//!
//! std calls it only to print a backtrace, if `RUST_BACKTRACE` requests one. The released programs have no symbols, so
//! that such a backtrace says nothing. Here it has no frames.

use std::ffi::{c_int, c_void};

/// _URC_END_OF_STACK
const END_OF_STACK: c_int = 5;

/// Defines functions that the unwinder would define. Each returns a value that stands for nothing.
macro_rules! absent {
    ($($name:ident -> $kind:ty = $value:expr;)+) => {
        $(
            // SAFETY: no other function of this name is linked, and the caller's arguments are not used.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $kind {
                $value
            }
        )+
    };
}

absent! {
    _Unwind_Backtrace -> c_int = END_OF_STACK;
    _Unwind_GetDataRelBase -> usize = 0;
    _Unwind_GetIP -> usize = 0;
    _Unwind_GetIPInfo -> usize = 0;
    _Unwind_GetLanguageSpecificData -> *mut c_void = std::ptr::null_mut();
    _Unwind_GetRegionStart -> usize = 0;
    _Unwind_GetTextRelBase -> usize = 0;
    _Unwind_SetGR -> () = ();
    _Unwind_SetIP -> () = ();
}

/// Continues to unwind, which never began.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    std::process::abort()
}
