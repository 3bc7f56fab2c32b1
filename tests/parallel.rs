//! ADD and DEL of many containers at once, as after the reboot of a node.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, interface, ips, skip, with};
use crate::support::call::{Call, Outcome};
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::patience;
use crate::support::traffic::{assert_masqueraded, assert_pings};

fn conf(lab: &Lab) -> Value {
    lab.hide_iptables(); // the reason is at the function
    with(
        &bridge::conf(),
        json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables"}),
    )
}

/// Runs a command for all attachments at the same time; returns the outcomes in order.
pub fn all_at_once(attachments: &[Attachment<'_>], command: &str) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let running: Vec<_> = attachments
            .iter()
            .map(|attachment| scope.spawn(move || attachment.call(command, None).run()))
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The reference may create `<bridge>.<vlan>` twice, and then one ADD fails.
#[test]
fn first_adds_on_a_fresh_host_make_one_bridge() {
    for_each_peer("bridge", |lab| {
        let conf = conf(lab);
        let containers: Vec<_> = (0..10).map(|_| lab.container()).collect();
        let attachments: Vec<_> =
            containers.iter().map(|container| lab.attach(container, &conf)).collect();
        all_at_once(&attachments, "ADD").iter().for_each(|outcome| {
            outcome.ok();
        });
        containers.iter().for_each(|container| assert_pings(container, "10.10.0.1"));
        assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/24"]);
    });
}

#[test]
fn a_range_too_small_gives_no_address_twice_and_loses_none() {
    for_each_peer("host-local", |lab| {
        let conf = json!({"cniVersion": "1.0.0", "name": "net1", "type": "host-local", "ipam": {"type": "host-local", "subnet": "10.0.0.0/28"}});
        let container = lab.container();
        let attachments: Vec<_> =
            (0..30).map(|n| lab.attach(&container, &conf).id(&format!("c{n}"))).collect();
        let outcomes = all_at_once(&attachments, "ADD");
        let given: Vec<String> =
            outcomes.iter().filter(|o| o.status == 0).flat_map(|o| ips(&o.ok())).collect();
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 13, "{given:?}");
        assert_eq!(given.len(), 13, "a /28 has 13 addresses next to its gateway");
        all_at_once(&attachments, "DEL")
            .iter()
            .for_each(|outcome| assert_eq!(outcome.ok(), Value::Null));
        assert_eq!(crate::support::networks::host_local::leases(lab), [""; 0]);
    });
}

/// An ADD that waits before each message to the kernel, so that a case can act in between; None if
/// strace cannot delay system calls. The case has to start programs in that time, which takes
/// longer on a busy machine.
fn slow_add(attachment: &Attachment<'_>) -> Option<Call> {
    let delay = patience(1).as_micros().min(5_000_000) / 5;
    let strace =
        format!("strace -f -qq -o /dev/null -e trace=sendto -e inject=sendto:delay_enter={delay}");
    let mut call = attachment.call("ADD", None);
    call.wrapper.extend(strace.split(' ').map(str::to_owned));
    let tried =
        std::process::Command::new("sh").args(["-c", &format!("{strace} true")]).output().unwrap();
    if !tried.status.success() {
        skip("strace that can delay system calls");
    }
    tried.status.success().then_some(call)
}

/// Runs the slow ADD, and `meanwhile` as soon as the shell condition holds on the host.
fn come_between(lab: &Lab, call: &Call, condition: &str, meanwhile: impl FnOnce()) -> Outcome {
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| call.run());
        lab.host
            .sh(&format!("for n in $(seq 2000); do {condition} && exit; sleep 0.01; done; exit 1"));
        meanwhile();
        adding.join().unwrap()
    })
}

/// An attachment to a bridge without addresses.
fn layer_two(lab: &Lab) -> Attachment<'_> {
    lab.attach(&lab.container(), &with(&bridge::conf(), json!({"ipam": null})))
}

/// The rollback of the ADD that created the bridge may delete it while another ADD uses it.
#[test]
fn a_bridge_that_goes_before_it_has_the_port_is_made_anew() {
    for_ours("bridge", |lab| {
        let Some(call) = slow_add(&layer_two(lab)) else { return };
        let delete = || drop(lab.host.sh("ip link del br0"));
        let result =
            come_between(lab, &call, "ip link show type veth | grep -q alias", delete).ok();
        assert_eq!(lab.host.link(&interface(&result, 1)).unwrap()["master"], "br0");
    });
}

/// A port that lost its bridge is not attached, even if there is a new bridge of the same name.
#[test]
fn a_bridge_that_is_replaced_fails_the_add() {
    for_ours("bridge", |lab| {
        let Some(call) = slow_add(&layer_two(lab)) else { return };
        let replace = || drop(lab.host.sh("ip link del br0; ip link add br0 type bridge"));
        let error =
            come_between(lab, &call, "ip link show master br0 | grep -q veth", replace).err();
        assert_eq!(error.code, 11, "{error:?}");
        assert_eq!(lab.host.json("ip -j link show type veth master br0"), json!([]));
    });
}

/// Another ADD found the gateway's address and relies on it, so the rollback must not delete it.
#[test]
fn a_failed_add_leaves_the_gateway_to_containers_that_joined() {
    for_ours("bridge", |lab| {
        lab.hide_iptables();
        let failing = lab.attach(
            &lab.container(),
            &with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"})),
        );
        let Some(call) = slow_add(&failing) else { return };
        let container = lab.container();
        let join = || drop(lab.attach(&container, &bridge::conf()).add());
        let error =
            come_between(lab, &call, "ip addr show dev br0 2>&1 | grep -q 10.10.0.1", join).err();
        assert!(
            error.text().contains("iptables"),
            "it failed after it gave the bridge its address: {error:?}"
        );
        assert_pings(&container, "10.10.0.1");
    });
}

/// Every second ADD fails near its end, on a host that has no bridge yet.
#[test]
fn adds_that_fail_do_not_disturb_those_that_succeed() {
    for_ours("bridge", |lab| {
        let good = conf(lab);
        let bad = with(&good, json!({"ipMasqBackend": "iptables"}));
        let containers: Vec<_> = (0..20).map(|_| lab.container()).collect();
        let attachments: Vec<_> = containers
            .iter()
            .zip([&good, &bad].into_iter().cycle())
            .map(|(c, conf)| lab.attach(c, conf))
            .collect();
        let outcomes = all_at_once(&attachments, "ADD");
        for (container, pair) in containers
            .iter()
            .zip(&outcomes)
            .collect::<Vec<_>>()
            .chunks(2)
            .map(|pair| (pair[0].0, pair))
        {
            pair[0].1.ok();
            assert!(pair[1].1.err().text().contains("iptables"), "{:?}", pair[1].1);
            assert_masqueraded(lab, container, &ips(&pair[0].1.json())[0]);
        }
    });
}
