//! Deliberate differences of dummy from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs, makes};
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::networks::{dummy, tap};

/// The reference's dummy ignores the configured dns.
#[test]
fn dns_of_the_network_counts_for_a_dummy() {
    let conf = with(&dummy::conf(), json!({"dns": {"nameservers": ["192.0.2.53"]}}));
    let observe = |lab: &Lab| lab.attach(&lab.container(), &conf).add()["dns"].clone();
    if makes(dummy::makes_dummies) {
        differs("dummy", observe, json!({"nameservers": ["192.0.2.53"]}), Value::Null);
    }
}

/// The reference's CHECK does not compare the routes of a dummy.
#[test]
fn check_of_a_dummy_looks_at_routes() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &dummy::conf());
        let result = attachment.add();
        container.sh("ip route del 10.99.0.0/16");
        attachment.check(&result).status
    };
    if makes(dummy::makes_dummies) {
        differs("dummy", observe, FAILED, OK);
    }
}

/// The reference deletes any interface of that name.
#[test]
fn del_of_a_tap_or_dummy_spares_an_interface_of_another_kind() {
    for conf in [tap::layer_two(), dummy::conf()] {
        let observe = |lab: &Lab| {
            let container = lab.container();
            container.sh("ip link add eth0 type veth peer name other");
            lab.attach(&container, &conf).del();
            container.link("eth0").is_some()
        };
        differs(conf["type"].as_str().unwrap(), observe, true, false);
    }
}
