//! How an execution ends early: a panic is an error, and a refusal names the missing capabilities.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;

use crate::error::{Code, Error, Result};
use crate::sys::capabilities::{self, Capability};

/// The capabilities that plugins need in some configuration (SECURITY.md).
const RIGHTS: [Capability; 5] = [
    Capability::NetAdmin,
    Capability::SysAdmin,
    Capability::NetRaw,
    Capability::SysPtrace,
    Capability::DacOverride,
];

/// Adds the missing capabilities to a refusal: "operation not permitted" alone misleads.
fn with_missing_rights(error: Error) -> Error {
    let missing = missing_rights(&error);
    if missing.is_empty() {
        return error; // the cause lies elsewhere
    }
    error.with_details(format_args!("the process lacks {}", missing.join(", ")))
}

/// The names of the missing capabilities; empty if the error is no refusal.
fn missing_rights(error: &Error) -> Vec<&'static str> {
    let missing = if is_refusal(error) { capabilities::missing(&RIGHTS) } else { vec![] };
    missing.into_iter().map(Capability::name).collect()
}

fn is_refusal(error: &Error) -> bool {
    let is_of_host_program = error.code == Code::HOST_PROGRAM;
    error.has_errno(Errno::EPERM) || error.has_errno(Errno::EACCES) || is_of_host_program
}

/// Runs `work`. A panic in it becomes an error, and a refusal names the missing capabilities.
pub fn caught(work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(error_of_panic(panic.as_ref())))
        .map_err(with_missing_rights)
}

fn error_of_panic(panic: &(dyn Any + Send)) -> Error {
    let msg = format!("a bug in cni-multi: {}", words_of_panic(panic).unwrap_or("panic"));
    Error::new(Code::BUG, msg).with_details("what was done has been undone; please report it")
}

fn words_of_panic(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
}
