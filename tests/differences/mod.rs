//! Deliberate differences from the reference plugins 1.9.1. docs/differences.md has those that a
//! user meets; the comment of each test says what the reference does.
//!
//! Each test is one difference: it makes the same observation on both sides and asserts what each
//! of them does, so it fails when a newer reference behaves as ours.

mod bandwidth;
mod bridge;
mod call;
mod del;
mod dhcp;
mod dummy;
mod firewall;
mod host_device;
mod host_local;
mod links;
mod loopback;
mod masquerade;
mod portmap;
mod ptp;
mod sbr;
mod stacked;
mod static_;
mod tap;
mod tuning;
mod vrf;

use serde_json::Value;

use crate::support::attachment::{for_ours, for_reference};
use crate::support::netns::Lab;

/// Makes one observation on both sides.
fn differs<T: PartialEq + std::fmt::Debug>(
    plugin: &str,
    ours: T,
    reference: T,
    observe: impl Fn(&Lab) -> T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    for_ours(plugin, |lab| assert_eq!(observe(lab), ours, "ours"));
    for_reference(plugin, |lab| assert_eq!(observe(lab), reference, "the reference"));
}

const OK: i32 = 0;
const FAILED: i32 = 1;

fn check_after_add(lab: &Lab, conf: &Value) -> i32 {
    let attachment = lab.attach(&lab.container(), conf);
    let result = attachment.add();
    attachment.check(&result).status
}

/// Whether this machine can create what a case needs.
fn makes(what: impl Fn(&Lab) -> bool) -> bool {
    what(&Lab::new(crate::support::call::Peer::Ours))
}
