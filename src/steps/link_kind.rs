//! STATUS: whether the kernel can create the links that ADD needs.

use crate::error::{Code, Error, Result};
use crate::net::module;
use crate::plugin::Context;

/// Fails with code 50 if the kernel has no links of this kind.
///
/// Asks the kernel as ADD would, so that the module which ADD needs is loaded: a look at the loaded
/// modules alone would call a host unable before its first container, and a runtime that waits for
/// STATUS would never start one.
pub fn require(cx: &Context<'_>, kind: &str) -> Result<()> {
    let has_kind = cx.host()?.has_kind(kind).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
    if has_kind {
        return Ok(());
    }
    Err(Error::new(Code::NOT_AVAILABLE, format!("the kernel has no links of type {kind}"))
        .with_details(module::advice(module::of_links(kind))))
}
