//! The entry point of the process (execve(2)), replacing the standard library's start code.
//!
//! The price: `main` is C's, for which Rust has no safe form, and the arguments are read through
//! pointers. The gain: the standard library's start code asks glibc for the end of the stack, and
//! glibc parses /proc/self/maps with `sscanf`, so a static binary contains all of its conversions:
//! 113 kB. And a standard stream that is closed at start stays unwritable, whereas the standard
//! library opens /dev/null for reading and writing, so that a result would be lost without an error.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::fs::File;
use std::os::fd::IntoRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;

use nix::sys::signal::{SigHandler, Signal, signal};

/// The exit status of the standard library's start code after a panic.
const PANICKED: u8 = 101;

/// Defines C's `main` with a function from arguments to the exit status.
#[macro_export]
macro_rules! c_main {
    ($run:path) => {
        /// The entry point that C's start code calls.
        ///
        /// # Safety
        ///
        /// `args` are `count` C strings.
        // SAFETY: the binary has no other symbol of this name, and the signature is that of C's
        // `main`.
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

/// Runs `run` with the arguments of C's `main`; a panic becomes an exit status.
///
/// # Safety
///
/// `args` are `count` C strings, as passed by execve(2).
pub unsafe fn run_as_main(
    count: c_int,
    args: *const *const c_char,
    run: fn(Vec<OsString>) -> u8,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let arg = |index| unsafe { CStr::from_ptr(*args.add(index)) };
    let args = (0..usize::try_from(count).unwrap_or_default())
        .map(|index| OsStr::from_bytes(arg(index).to_bytes()));
    let args: Vec<OsString> = args.map(OsStr::to_owned).collect();
    open_standard_streams();
    // Writing to a pipe without a reader is an error like any other: an ADD whose result is lost
    // must be undone.
    // SAFETY: no handler is installed.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }; // it fails only for unknown signals
    let Ok(status) = catch_unwind(|| run(args)) else { return c_int::from(PANICKED) };
    c_int::from(status)
}

/// Opens closed standard streams so that reads return nothing and writes fail: an ADD whose result
/// is lost fails and is undone, and no other file gets the stream's number. If the root directory
/// has no devices, `/` itself is opened.
fn open_standard_streams() {
    while let Ok(nothing) = File::open("/dev/null").or_else(|_| File::open("/")) {
        let number = nothing.into_raw_fd();
        if number > 2 {
            let _ = nix::unistd::close(number); // all three are open
            return;
        }
    }
}
