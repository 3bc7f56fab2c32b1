//! What a static binary would carry though nothing here has a use for it, cut off where it begins. Only in the binary that
//! `install.sh` makes smaller (`cfg(small_binary)`): its linker takes the first of two definitions, which is ours.
//!
//! Each of these answers as the function in whose place it is would in this program, or as it may when it fails. So who comes
//! to call printf(3), or to look up the name of a host, takes that out here first. Where another release of the C library has
//! other names inside, nothing is cut off and nothing else changes.

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

/// Of glibc: what prints, translates, and asks name servers. None of its functions that are called here does.
#[cfg(target_env = "gnu")]
mod glibc {
    use std::arch::global_asm;
    use std::ffi::{CStr, c_char, c_int};

    use nix::libc::ERANGE;

    /// What printf(3) returns when nothing could be written.
    const UNWRITTEN: c_int = -1;

    /// The locale of the process, which stays C's (`LC_GLOBAL_LOCALE` of locale.h).
    const GLOBAL_LOCALE: usize = usize::MAX;

    unsafe extern "C" {
        fn strerror_l(number: c_int, locale: usize) -> *const c_char;
    }

    /// All of the family of printf(3) (119 kB with `__fxprintf`). What is left that calls it are statistics of malloc(3),
    /// which nobody asks for, and what glibc says before it aborts.
    // SAFETY: none of the arguments is looked at, and it is the caller who takes them from the stack.
    #[unsafe(no_mangle)]
    extern "C" fn __vfprintf_internal() -> c_int {
        UNWRITTEN
    }

    /// The same to a stream of either width of characters.
    // SAFETY: as of `__vfprintf_internal`.
    #[unsafe(no_mangle)]
    extern "C" fn __fxprintf() -> c_int {
        UNWRITTEN
    }

    /// gettext(3): a text stands for itself (25 kB), as wherever no locale has been set.
    // SAFETY: the signature is glibc's.
    #[unsafe(no_mangle)]
    extern "C" fn __dcgettext(_domain: *const c_char, text: *const c_char, _category: c_int) -> *const c_char {
        text
    }

    // Where each thread notes its state of resolver(3), which brings reading /etc/resolv.conf along (90 kB). No name of a host
    // is ever looked up.
    global_asm!(
        r#".pushsection .tbss.__libc_resp, "awT", %nobits"#,
        ".globl __libc_resp",
        ".balign 8",
        "__libc_resp: .zero 8",
        ".popsection",
    );

    /// strerror_r(3), from which std has its texts: glibc's would have nothing for an error that it does not know, since it
    /// writes the number by printf(3). Its strerror_l(3) says so.
    ///
    /// # Safety
    ///
    /// `text` has room for `size` bytes.
    // SAFETY: the signature is the one of POSIX.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn __xpg_strerror_r(number: c_int, text: *mut c_char, size: usize) -> c_int {
        // SAFETY: the locale is there as long as the process.
        let known = unsafe { strerror_l(number, GLOBAL_LOCALE) };
        let found = match known.is_null() {
            true => format!("Unknown error {number}\0").into_bytes(),
            // SAFETY: a text that is there is C's, and stays until this thread asks again.
            false => unsafe { CStr::from_ptr(known) }.to_bytes_with_nul().to_vec(),
        };
        if found.len() > size {
            return ERANGE;
        }
        // SAFETY: there is room for as many bytes, which are no longer the table's.
        unsafe { text.copy_from_nonoverlapping(found.as_ptr().cast(), found.len()) };
        0
    }
}
