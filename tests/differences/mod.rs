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

use std::fmt::Debug;

use serde_json::Value;

use crate::support::attachment::{for_ours, for_reference};
use crate::support::netns::Lab;

/// Makes one observation on both sides.
fn differs<T: PartialEq + Debug>(plugin: &str, ours: T, reference: T, observe: impl Fn(&Lab) -> T) {
    differs_where(plugin, |_| true, ours, reference, observe);
}

/// As `differs`, where the kernel can do what it needs.
fn differs_where<T: PartialEq + Debug>(
    plugin: &str,
    can: impl Fn(&Lab) -> bool,
    ours: T,
    reference: T,
    observe: impl Fn(&Lab) -> T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    let case = |expected: &T, lab: &Lab| {
        if can(lab) {
            assert_eq!(observe(lab), *expected, "{:?}", lab.peer);
        }
    };
    for_ours(plugin, |lab| case(&ours, lab));
    for_reference(plugin, |lab| case(&reference, lab));
}

const OK: i32 = 0;
const FAILED: i32 = 1;

fn check_after_add(lab: &Lab, conf: &Value) -> i32 {
    let attachment = lab.attach(&lab.container(), conf);
    let result = attachment.add();
    attachment.check(&result).status
}
