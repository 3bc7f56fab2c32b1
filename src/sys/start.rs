//! The process as the kernel starts it (execve(2)), without the standard library's own start.
//!
//! The price: `main` is C's, of which a Rust program has no safe form, and the arguments are read
//! through pointers. What it buys: the standard library's start asks glibc where the stack ends,
//! and glibc parses /proc/self/maps with `sscanf`, which a static binary then carries with all that
//! it can scan: 113 kB, of a budget of 3.7 MB that the binary otherwise misses by 78 kB. And a
//! standard stream that came closed stays unwritable, where the standard library opens /dev/null
//! for reading and writing, and a result would be lost without an error.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::fs::File;
use std::os::fd::IntoRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;

use nix::sys::signal::{SigHandler, Signal, signal};

/// What the standard library's start returns after a panic.
const PANICKED: u8 = 101;

/// Makes C's `main` of a function from arguments to the exit status.
#[macro_export]
macro_rules! c_main {
    ($run:path) => {
        /// What C's start calls.
        ///
        /// # Safety
        ///
        /// `args` are `count` strings of C.
        // SAFETY: the binary has no other symbol of this name, and this one has C's signature of
        // it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn main(
            count: ::std::ffi::c_int,
            args: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: these are the arguments of C's `main`.
            unsafe { $crate::sys::start::run_as_main(count, args, $run) }
        }
    };
}

/// Runs `run` with the arguments of C's `main`; a panic is a status, too.
///
/// # Safety
///
/// `args` are `count` strings of C, as execve(2) hands them on.
pub unsafe fn run_as_main(
    count: c_int,
    args: *const *const c_char,
    run: fn(Vec<OsString>) -> u8,
) -> c_int {
    // SAFETY: the caller's promise.
    let arg = |index| unsafe { CStr::from_ptr(*args.add(index)) };
    let args = (0..usize::try_from(count).unwrap_or_default())
        .map(|index| OsStr::from_bytes(arg(index).to_bytes()));
    let args: Vec<OsString> = args.map(OsStr::to_owned).collect();
    open_standard_streams();
    ignore_broken_pipes();
    c_int::from(catch_unwind(|| run(args)).unwrap_or(PANICKED))
}

/// A stream that came closed has nothing to read and cannot be written, so that an ADD whose result
/// is lost fails and is undone; and no other file gets its number. A root without devices has
/// itself to be opened.
fn open_standard_streams() {
    while let Ok(nothing) = File::open("/dev/null").or_else(|_| File::open("/")) {
        let number = nothing.into_raw_fd();
        if number > 2 {
            let _ = nix::unistd::close(number); // all three are taken
            return;
        }
    }
}

/// Writing to a pipe without a reader is an error like any other: an ADD whose result is lost has
/// to be undone.
fn ignore_broken_pipes() {
    // SAFETY: nothing runs in place of the signal.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }; // it fails for signals that there are not
}
