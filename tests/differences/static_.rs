//! Deliberate differences of static from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::support::attachment::with;
use crate::support::networks::bridge::{self, static_ipam};

/// The reference's CHECK accepts a prevResult without the configured address.
#[test]
fn check_misses_a_configured_address() {
    let conf = static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
    differs("static", FAILED, OK, |lab| {
        let attachment = lab.attach(&lab.container(), &with(&conf, json!({"type": "static"})));
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.10.0.8/24"}]});
        attachment.check(&result).status
    });
}
