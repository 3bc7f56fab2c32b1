//! Many containers at once, as after the reboot of a node.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::plugins::main::bridge;
use crate::support::attachment::{Attachment, for_each_peer, ips, with};
use crate::support::call::Outcome;
use crate::support::netns::Lab;
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_masqueraded, assert_pings};

const CONTAINERS: usize = 50;

fn conf(lab: &Lab) -> Value {
    lab.hide_iptables(); // see there
    with(&bridge::conf(), json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables"}))
}

/// Runs a command for every attachment, all at the same time; their outcomes in order.
fn all_at_once(attachments: &[Attachment<'_>], command: &str) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            attachments.iter().map(|attachment| scope.spawn(move || attachment.call(command, None).run())).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn fifty_adds_and_dels_on_one_bridge_do_not_disturb_each_other() {
    for_each_peer("bridge", |lab| {
        let conf = conf(lab);
        bridge::warm_up(lab, &conf);
        let containers: Vec<_> = (0..CONTAINERS).map(|_| lab.container()).collect();
        let before = Watch::start(lab, &[&containers[0], &containers[CONTAINERS - 1]]);
        let attachments: Vec<_> = containers.iter().map(|container| lab.attach(container, &conf)).collect();
        let results: Vec<Value> = all_at_once(&attachments, "ADD").iter().map(|outcome| outcome.ok()).collect();

        let addresses: BTreeSet<String> = results.iter().flat_map(ips).collect();
        assert_eq!(addresses.len(), CONTAINERS, "each has its own address");
        for (container, result) in containers.iter().zip(&results) {
            assert_pings(container, "10.10.0.1");
            assert_eq!(container.addresses("eth0"), [format!("{}/24", ips(result)[0])]);
        }
        for at in [0, CONTAINERS / 2, CONTAINERS - 1] {
            assert_masqueraded(lab, &containers[at], &ips(&results[at])[0]);
        }
        let checked: Vec<_> =
            attachments.iter().zip(&results).map(|(attachment, result)| attachment.check(result).status).collect();
        assert_eq!(checked, [0; CONTAINERS]);

        all_at_once(&attachments, "DEL").iter().for_each(|outcome| assert_eq!(outcome.ok(), Value::Null));
        before.assert_unchanged("50 ADDs");
    });
}

#[test]
fn first_adds_on_a_fresh_host_make_one_bridge() {
    for_each_peer("bridge", |lab| {
        let conf = conf(lab);
        let containers: Vec<_> = (0..10).map(|_| lab.container()).collect();
        let attachments: Vec<_> = containers.iter().map(|container| lab.attach(container, &conf)).collect();
        all_at_once(&attachments, "ADD").iter().for_each(|outcome| {
            outcome.ok();
        });
        containers.iter().for_each(|container| assert_pings(container, "10.10.0.1"));
        assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/24"]);
    });
}

#[test]
fn no_address_is_given_twice_and_none_is_lost_when_the_range_is_too_small() {
    for_each_peer("host-local", |lab| {
        let conf = json!({"cniVersion": "1.0.0", "name": "net1", "type": "host-local", "ipam": {"type": "host-local", "subnet": "10.0.0.0/28"}});
        let container = lab.container();
        let attachments: Vec<_> = (0..30).map(|n| lab.attach(&container, &conf).id(&format!("c{n}"))).collect();
        let outcomes = all_at_once(&attachments, "ADD");
        let given: Vec<String> = outcomes.iter().filter(|o| o.status == 0).flat_map(|o| ips(&o.ok())).collect();
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 13, "{given:?}");
        assert_eq!(given.len(), 13, "a /28 has 13 addresses next to its gateway");
        all_at_once(&attachments, "DEL").iter().for_each(|outcome| assert_eq!(outcome.ok(), Value::Null));
        assert_eq!(crate::plugins::ipam::host_local::leases(lab), [""; 0]);
    });
}
