//! What a static binary would carry though nothing here has a use for it, cut off where it begins.
//! Only in the binary that `install.sh` makes smaller (`cfg(small_binary)`): its linker takes the
//! first of two definitions, which is ours.
//!
//! glibc's printf(3), which every static program has for what is said before it aborts, would be
//! another 75 kB; but what comes to need it later would be silently wrong.

use std::ffi::{c_char, c_int, c_void};

/// What an unwinder says when there are no more frames (`_URC_END_OF_STACK` of the Itanium C++ ABI,
/// Level I: 1.2).
const END_OF_STACK: c_int = 5;

/// The unwinder's walk for a backtrace: no frame is visited. The program has its own words for a
/// panic and prints no backtrace, but std's hook for panics is linked all the same. With this in it
/// the compiler, which sees the whole at once, can tell that nothing names functions (206 kB).
/// Panics unwind as ever.
// SAFETY: the signature is the unwinder's, for which a stack without frames is one that has been
// walked.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}

// Of glibc: where each thread notes its state of resolver(3), which brings reading /etc/resolv.conf
// along (67 kB). No name of a host is ever looked up here; whoever comes to do that takes this out
// first, and `tests/run` says so. Where another release of glibc has another name for it, nothing
// is cut off and nothing else changes.
#[cfg(target_env = "gnu")]
std::arch::global_asm!(
    r#".pushsection .tbss.__libc_resp, "awT", %nobits"#,
    ".globl __libc_resp",
    ".balign 8",
    "__libc_resp: .zero 8",
    ".popsection",
);

/// gettext(3) of glibc: a text stands for itself (49 kB), as wherever no locale has been set.
// SAFETY: the signature is glibc's.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
extern "C" fn __dcgettext(
    _domain: *const c_char,
    text: *const c_char,
    _category: c_int,
) -> *const c_char {
    text
}

/// printf(3) of glibc, for a floating-point number: it fails, as for a conversion that it does not
/// have (44 kB). C here prints names and integers, before it aborts; numbers of ours are not
/// printed by C.
// SAFETY: the signature is glibc's.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
extern "C" fn __printf_fp(
    _file: *mut c_void,
    _format: *const c_void,
    _arguments: *const *const c_void,
) -> c_int {
    -1
}

/// The same for one that is printed in hexadecimal.
// SAFETY: the signature is glibc's.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
extern "C" fn __printf_fphex(
    _file: *mut c_void,
    _format: *const c_void,
    _arguments: *const *const c_void,
) -> c_int {
    -1
}
