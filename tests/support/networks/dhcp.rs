//! Network configurations for dhcp.

use serde_json::Value;

use crate::support::dhcp::{JOURNAL, Kind};
use crate::support::netns::Lab;

/// A macvlan network, the fastest to create.
pub fn conf() -> Value {
    Kind::Macvlan.conf()
}

/// The lease files of the journal.
pub fn journal(lab: &Lab) -> Vec<String> {
    let listing = lab.host.sh(&format!(
        "find {JOURNAL} -type f ! -name lock ! -name '*.lock' -printf '%P\\n' 2>/dev/null || true"
    ));
    listing.lines().map(str::to_owned).collect()
}
