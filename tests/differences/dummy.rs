//! Deliberate differences of dummy from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs, differs_where};
use crate::support::attachment::with;
use crate::support::networks::{dummy, tap};

/// The reference's dummy ignores the configured dns.
#[test]
fn dns_of_the_network_counts_for_a_dummy() {
    let conf = with(&dummy::conf(), json!({"dns": {"nameservers": ["192.0.2.53"]}}));
    differs_where(
        "dummy",
        dummy::makes_dummies,
        json!({"nameservers": ["192.0.2.53"]}),
        Value::Null,
        |lab| lab.attach(&lab.container(), &conf).add()["dns"].clone(),
    );
}

/// The reference's CHECK does not compare the routes of a dummy.
#[test]
fn check_of_a_dummy_looks_at_routes() {
    differs_where("dummy", dummy::makes_dummies, FAILED, OK, |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &dummy::conf());
        let result = attachment.add();
        container.sh("ip route del 10.99.0.0/16");
        attachment.check(&result).status
    });
}

/// The reference deletes any interface of that name.
#[test]
fn del_of_a_tap_or_dummy_spares_an_interface_of_another_kind() {
    for conf in [tap::layer_two(), dummy::conf()] {
        differs(conf["type"].as_str().unwrap(), true, false, |lab| {
            let container = lab.container();
            container.sh("ip link add eth0 type veth peer name other");
            lab.attach(&container, &conf).del();
            container.link("eth0").is_some()
        });
    }
}
