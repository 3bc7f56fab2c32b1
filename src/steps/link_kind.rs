//! STATUS: whether the kernel can make the links that ADD needs.

use crate::error::{Code, Error, Result};
use crate::plugin::Context;

/// Code 50 where the kernel has no links of this kind.
///
/// It is asked as ADD would ask, so it loads the module that ADD would need: who only looked at
/// what is loaded would call a host unable on which no container has been started yet, and a
/// runtime that waits for STATUS would start none.
pub fn require(cx: &Context<'_>, kind: &str) -> Result<()> {
    match cx.host()?.has_kind(kind) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let module = if kind == "vlan" { "8021q" } else { kind };
            Err(Error::new(Code::NOT_AVAILABLE, format!("the kernel has no links of type {kind}"))
                .with_details(format_args!("is the module {module} available?")))
        }
        Err(error) => Err(error.with_code(Code::NOT_AVAILABLE)),
    }
}
