//! Removes backtraces from the release binary: the one part of the standard library that is cut
//! off.
//!
//! The standard library's own panic hook can print a backtrace, so a static binary carries readers
//! of ELF and DWARF that name functions: 206 kB, a twentieth of the binary. This program replaces
//! that hook, reports a panic as a CNI error object, and is stripped of the names anyway. Neither
//! Cargo nor rustc can leave the code out of a prebuilt standard library, but with an
//! `_Unwind_Backtrace` that visits no frame, link-time optimisation sees that nothing calls it.
//!
//! The price: two definitions of one symbol, ours and libgcc's, of which the linker has to take the
//! first (`-z muldefs`). `install.sh --build` passes that flag and `cfg(small_binary)` together; a
//! plain `cargo build` has neither, and prints backtraces. Panics unwind in both.

use std::ffi::{c_int, c_void};

/// `_URC_END_OF_STACK` of the Itanium C++ ABI, Level I: 1.2.
const END_OF_STACK: c_int = 5;

/// Replaces libgcc's walk of the stack for a backtrace: visits no frame.
// SAFETY: the signature is libgcc's (unwind.h), whose callers expect the end of the stack at any time.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}
