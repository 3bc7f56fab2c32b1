//! A process in a container replaces the attachment's interface by the end of a pair of its own. It
//! chooses the ifindex of both ends, so the end names any link of the host as its other end. CHECK
//! reports it, and no repair and no DEL touches that link.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bandwidth::{both, can_limit};
use crate::support::networks::{fastpath, ovs};
use crate::support::peers::tests;
use crate::support::snapshot::Watch;
use crate::support::synced::{Synced, attach, net};

/// Of the variables, `victim` is the ifindex of the host's link, `far` that of its own other end,
/// `mac` the hardware address of the record, and `third` a namespace that is neither the host's nor
/// the container's.
const FORGERIES: [(&str, &str); 2] = [
    (
        "both ends in the container",
        "ip link add name x index $victim type veth peer name eth0 address $mac",
    ),
    (
        "the other end elsewhere, and both ends with the ifindexes of the victim's pair",
        "ip link add name eth0 index $far address $mac type veth peer name x index $victim netns $third",
    ),
];

/// A link of the host that leads to another container, and that container.
struct Victim {
    link: String,
    container: Container,
}

impl Victim {
    /// A port of a bridge that another program has made.
    fn of_docker(lab: &Lab) -> Victim {
        let container = lab.container();
        lab.host.sh(&format!(
            "ip link add docker0 up type bridge
            ip link add docker1 master docker0 type veth peer name eth0 netns {}",
            container.netns
        ));
        Victim { link: "docker1".to_owned(), container }
    }

    /// The host's end of another attachment of ours.
    fn of_ours(lab: &Lab) -> Victim {
        let ipam = json!({"type": "host-local", "subnet": "10.48.0.0/24"});
        let bridge = json!({"type": "bridge", "bridge": "others0", "ipam": ipam});
        lab.configure(&json!({"cniVersion": "1.1.0", "name": "others", "plugins": [bridge]}));
        let container = lab.container();
        let result = net(lab, &format!("add others {}", container.netns)).run().ok();
        Victim { link: result["interfaces"][1]["name"].as_str().unwrap().to_owned(), container }
    }

    fn state(&self, lab: &Lab) -> [Value; 2] {
        let show = |what: &str| lab.host.json(&format!("{what} show dev {}", self.link));
        [show("ip -j addr"), show("tc -j qdisc")]
    }
}

/// Puts a forged pair in the place of the container's.
fn forge(synced: &Synced<'_>, victim: &Victim, how: &str) {
    let Synced { lab, container, .. } = synced;
    let third = lab.container();
    let link = lab.host.link(&victim.link).unwrap();
    let mac = &container.link("eth0").unwrap()["address"];
    let addresses = container.addresses("eth0").into_iter();
    let give: String =
        addresses.map(|address| format!("ip addr add {address} dev eth0;")).collect();
    container.sh(&format!(
        "set -e; victim={} far={} mac={mac} third={}; ip link del eth0; {how}; ip link set eth0 up; {give}",
        link["ifindex"], link["link_index"], third.netns
    ));
}

/// A repair is an error that says why, and changes nothing, although lease and rules are gone. CHECK
/// says the same.
#[track_caller]
fn assert_nothing_is_repaired(synced: &Synced<'_>, victims: &[&Container], problem: &str) {
    let lab = synced.lab;
    lab.host.sh("nft flush ruleset; rm -f /var/lib/cni/networks/pods/10.*");
    let mut watched: Vec<&_> = vec![&*synced.container];
    watched.extend(victims.iter().map(|container| &***container));
    let before = Watch::start(lab, &watched);
    for (line, none) in [
        ("sync pods", "0 repaired, 1 could not be\n"),
        ("sync pods --dry-run", "0 to repair, 1 could not be looked at\n"),
    ] {
        let outcome = synced.net(line);
        before.assert_unchanged(line);
        assert!(outcome.status == 1 && outcome.stdout.ends_with(none), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(problem), "{line}: {outcome:?}");
    }
    let check = synced.check();
    assert!(check.status == 1 && check.stderr.contains(problem), "{check:?}");
}

fn try_out(lab: &Lab, main: &Value) {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let victims = [Victim::of_docker(lab), Victim::of_ours(lab)];
    for victim in &victims {
        for (what, how) in FORGERIES {
            eprintln!("{} and {what}", victim.link); // shown when the case fails
            let synced = attach(lab, &[main.clone(), portmap.clone()], "-p 8080:80");
            synced.check().ok();
            let before = victim.state(lab);
            forge(&synced, victim, how);
            assert_nothing_is_repaired(&synced, &[&victim.container], "leads back to it");
            synced.del();
            assert_eq!(victim.state(lab), before, "after DEL");
        }
    }
}

/// A network with everything of the host's that a plugin repairs by the host's end.
fn network(keys: Value) -> Value {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.47.0.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]});
    with(&json!({"ipMasq": true, "ipMasqBackend": "nftables", "ipam": ipam}), keys)
}

fn bridge() -> Value {
    network(json!({"type": "bridge", "bridge": "pods0", "isGateway": true, "macspoofchk": true}))
}

fn ptp() -> Value {
    network(json!({"type": "ptp"}))
}

fn try_out_where(prepare: fn(&Lab) -> bool, main: &Value) {
    for_ours(main["type"].as_str().unwrap(), |lab| {
        if prepare(lab) {
            try_out(lab, &with(main, json!({"cniVersion": null, "name": null})));
        }
    });
}

tests! {
    bridge_repairs_no_link_that_a_container_names = try_out_where(|_| true, &bridge());
    ptp_repairs_no_link_that_a_container_names = try_out_where(|_| true, &ptp());
    fast_path_goes_through_no_link_that_a_container_names = try_out_where(fastpath::prepare, &fastpath::fast(&ptp()));
    ovs_repairs_no_link_that_a_container_names = try_out_where(ovs::node, &ovs::conf());
}

/// The reference sets no alias. Its pair is the one that the record names.
fn without_alias<'a>(lab: &'a Lab, main: Value) -> (Synced<'a>, String) {
    let synced = attach(lab, &[main], "");
    let end =
        lab.host.sh("ip -o link | sed -n 's/.*: \\(veth[0-9a-f]*\\)@.*/\\1/p'").trim().to_owned();
    lab.host.sh(&format!("ip link set {end} alias ''"));
    (synced, end)
}

#[test]
fn pair_without_alias_is_repaired_unless_it_is_forged() {
    for (plugin, change) in [("bridge", "connect"), ("ptp", "set")] {
        for_ours(plugin, |lab| {
            let main = if plugin == "bridge" { bridge() } else { ptp() };
            let (synced, end) = without_alias(lab, main);
            synced.check().ok();
            synced.assert_repaired(&format!("ip link set {end} down"), &[change]);
            let victim = Victim::of_docker(lab);
            forge(&synced, &victim, FORGERIES[1].1);
            assert_nothing_is_repaired(&synced, &[&victim.container], "leads back to it");
            synced.del();
        });
    }
}

/// Its name is not the recorded one.
#[test]
fn pair_without_alias_and_record_is_not_repaired() {
    for_ours("bridge", |lab| {
        let (synced, end) = without_alias(lab, bridge());
        lab.host.sh(&format!(
            "ip link set {end} down; ip link set {end} name other0; ip link set other0 nomaster up"
        ));
        assert_nothing_is_repaired(&synced, &[], "\"other0\" of interface \"eth0\" is another");
    });
}

/// A container on two networks gives the interface of one of them the name and the hardware address
/// of the other.
#[test]
fn repair_leaves_the_pair_of_another_attachment() {
    for_ours("bridge", |lab| {
        let synced = attach(lab, &[bridge()], "");
        let victim = Victim::of_ours(lab);
        let netns = &synced.container.netns;
        let added = net(lab, &format!("add others {netns} --ifname eth1")).run().ok();
        let end = added["interfaces"][1]["name"].as_str().unwrap();
        let mac = &synced.container.link("eth0").unwrap()["address"];
        synced.container.sh(&format!(
            "ip link set eth0 down; ip link set eth1 down; ip link set eth0 name x
            ip link set eth1 name eth0 address {mac}; ip link set eth0 up"
        ));
        let problem = format!("the other end {end:?} of interface \"eth0\" is another");
        assert_nothing_is_repaired(&synced, &[&victim.container], &problem);
    });
}

/// The set of allowed addresses is repaired by the record, and not by the address that the
/// interface has now.
#[test]
fn macspoofchk_allows_no_address_that_a_container_chooses() {
    for_ours("bridge", |lab| {
        let synced = attach(lab, &[bridge()], "");
        let forged = "02:00:00:00:00:99";
        synced.container.sh(&format!("ip link set eth0 address {forged}"));
        let check = synced.check();
        // A record without an address, so that the repair does not end before macspoofchk.
        let edit = r#"s/"mac":"[^"]*","name":"eth0"/"mac":"","name":"eth0"/"#;
        lab.host.sh(&format!("sed -i '{edit}' /var/lib/cni/results/pods-*; nft flush ruleset"));
        let sync = synced.net("sync pods");
        assert!(!lab.host.sh("nft list ruleset").contains(forged), "{sync:?}");
        let problem = "prevResult.interfaces[2].mac is \"\"";
        assert!(sync.status == 1 && sync.stderr.contains(problem), "{sync:?}");
        assert!(check.stderr.contains("doesn't match container Mac"), "{check:?}");
        assert!(!check.stderr.contains("macspoofchk"), "{check:?}"); // it is as it was
    });
}

#[test]
fn del_of_bandwidth_spares_a_link_that_a_container_names() {
    for_ours("bandwidth", |lab| {
        if !can_limit(lab) {
            return;
        }
        let synced = attach(lab, &[ptp(), both()], "");
        let end = lab.host.sh("ip -o link | sed -n 's/.*: \\(veth[0-9a-f]*\\)@.*/\\1/p'");
        // The same limits as of the container.
        let queue = format!("tc -o qdisc show dev {} root", end.trim());
        let queue = lab.host.sh(&format!("{queue} | sed 's/qdisc //; s/ root.*rate/ rate/'"));
        let queue = queue.trim_end_matches(['\\', ' ', '\n']).replace("tbf 1:", "handle 1: tbf");
        let victim = Victim::of_docker(lab);
        lab.host.sh(&format!("tc qdisc add dev {} root {queue}", victim.link));
        let before = victim.state(lab);
        forge(&synced, &victim, FORGERIES[1].1);
        synced.del();
        assert_eq!(victim.state(lab), before);
    });
}
