//! `net sync --on firewalld`: a repair after each reload of firewalld.

use super::capability::mistake;
use super::operator::Operator;
use crate::error::Result;
use crate::plugins::meta::firewall::firewalld::Reloads;

/// Refuses a run that would only look.
pub fn require_changes(operator: &Operator<'_>) -> Result<()> {
    if is_wanted(operator) && operator.has_flag("dry-run") {
        return Err(mistake("--on and --dry-run are mutually exclusive".to_owned()));
    }
    Ok(())
}

/// Whether the repair is to be repeated.
pub fn is_wanted(operator: &Operator<'_>) -> bool {
    !operator.argument("on").is_empty()
}

/// Calls `repair` now and after each reload of firewalld. Ends with an error once the system bus
/// does; systemd then starts the process again.
pub fn repeat<T>(operator: &Operator<'_>, mut repair: impl FnMut()) -> Result<T> {
    // First the subscription: a reload in between is seen by the first repair, or as a signal.
    let mut reloads = Reloads::subscribe(operator.env)?;
    loop {
        repair();
        reloads.wait()?;
    }
}
