//! What a static binary would carry though nothing here has a use for it, cut off where it begins. Only in the binary that
//! `install.sh` makes smaller (`cfg(small_binary)`): its linker takes the first of two definitions, which is ours.
//!
//! Only what has a public contract that says what it may answer is replaced. glibc's insides (printf(3), gettext(3) and the
//! resolver, which every static program has for what it says before it aborts) would be another 235 kB, but a later call that
//! needs them would crash.

use std::ffi::{c_int, c_void};

/// What an unwinder says when there are no more frames (`_URC_END_OF_STACK` of the Itanium C++ ABI, Level I: 1.2).
const END_OF_STACK: c_int = 5;

/// The unwinder's walk for a backtrace: no frame is visited. The program has its own words for a panic and prints no
/// backtrace, but std's hook for panics is linked all the same. With this in it the compiler, which sees the whole at once,
/// can tell that nothing names functions (206 kB). Panics unwind as ever.
// SAFETY: the signature is the unwinder's, for which a stack without frames is one that has been walked.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}
