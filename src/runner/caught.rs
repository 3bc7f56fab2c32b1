//! How an execution ends early: a panic is an error, and a refusal names the missing capabilities.

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

/// Runs `work`. A panic in it becomes an error, and a refusal names the missing capabilities:
/// "operation not permitted" alone misleads.
pub fn caught(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let words = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
        Err(Error::new(Code::BUG, format!("a bug in cni-multi: {words}"))
            .with_details("what was done has been undone; please report it"))
    });
    let Err(error) = outcome else { return Ok(()) };
    let is_refusal = error.has_errno(Errno::EPERM)
        || error.has_errno(Errno::EACCES)
        || error.code == Code::HOST_PROGRAM;
    let missing = if is_refusal { capabilities::missing(&RIGHTS) } else { vec![] };
    if missing.is_empty() {
        return Err(error); // the cause lies elsewhere
    }
    let names: Vec<_> = missing.into_iter().map(Capability::name).collect();
    Err(error.with_details(format_args!("the process lacks {}", names.join(", "))))
}
