//! Chapter "static" of docs/differences.md.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge::{self, static_ipam};
use crate::support::attachment::with;
use crate::support::netns::Lab;

/// An address that prevResult does not have at all passes the reference's CHECK.
#[test]
fn check_misses_a_configured_address() {
    let conf = static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &with(&conf, json!({"type": "static"})));
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.10.0.8/24"}]});
        attachment.check(&result).status
    };
    differs("static", observe, FAILED, OK);
}
