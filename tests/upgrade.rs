//! A node is upgraded or rolled back with its containers running: one peer adds, the other checks
//! and deletes.

mod check;
mod handover;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, ips, not_compared, with};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge;
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::{assert_masqueraded, assert_pings};

/// What a network has, where the first word is its plugin, and changes of the configuration. The last three have keys of the
/// reference of specification 1.1.0.
const NETWORKS: &str = r#"
bridge | {}
bridge, masqueraded | {"ipMasq": true}
bridge, MACs checked | {"macspoofchk": true}
bridge, everything | {"ipMasq": true, "macspoofchk": true, "hairpinMode": true}
ptp | {}
ptp, masqueraded | {"ipMasq": true}
bridge, no IPAM | {"ipam": null}
bridge, nftables | {"ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true}
bridge, iptables | {"ipMasq": true, "ipMasqBackend": "iptables"}
ptp, nftables | {"ipMasq": true, "ipMasqBackend": "nftables"}
"#;

struct Network {
    what: &'static str,
    changes: Value,
}

fn networks(reference: &Peer) -> Vec<Network> {
    let count = if speaks(reference, "1.1.0") { 10 } else { 7 };
    let network = |[what, changes]: [&'static str; 2]| Network {
        what,
        changes: serde_json::from_str(changes).unwrap(),
    };
    cells(NETWORKS).into_iter().take(count).map(network).collect()
}

fn speaks(peer: &Peer, version: &str) -> bool {
    Call::new(peer, "bridge", "VERSION", "").run().stdout.contains(&format!("\"{version}\""))
}

fn conf(network: &Network) -> Value {
    // A default route, in the form that each of the two plugins takes.
    let default = match network.what.starts_with("ptp") {
        true => {
            json!({"type": "ptp", "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}})
        }
        false => json!({"isDefaultGateway": true}),
    };
    with(&with(&bridge::dual_stack(), default), network.changes.clone())
}

/// ADD by one peer, CHECK and DEL by the other. Returns the changes that remain, and the outcome of
/// DEL.
fn handed_over(
    lab: &Lab,
    network: &Network,
    from: &Peer,
    to: &Peer,
    between: impl Fn(&Container),
) -> (String, Outcome) {
    let conf = conf(network);
    // The snapshot must include what both peers may leave: bridge and tables.
    for peer in [from, to] {
        let warm = lab.attach(&lab.container(), &conf).id("warm-up").by(peer);
        warm.add();
        warm.try_del();
    }
    let container = lab.container();
    let before = Watch::start(lab, &[]);
    let result = lab.attach(&container, &conf).by(from).add();
    let deleting = lab.attach(&container, &conf).by(to);
    if conf.get("ipam").is_some() {
        assert_eq!(
            deleting.check(&result).status,
            0,
            "{}: {:?}",
            network.what,
            deleting.check(&result)
        );
    }
    // Another container joins the network after the upgrade, and the two reach each other.
    let newcomer = lab.container();
    let new = lab.attach(&newcomer, &conf).by(to);
    let new_result = new.add();
    if conf.get("ipam").is_some() {
        assert_ne!(ips(&result), ips(&new_result));
        ips(&new_result).iter().for_each(|ip| assert_pings(&container, ip));
        ips(&result).iter().for_each(|ip| assert_pings(&newcomer, ip));
    }
    between(&container);
    let outcome = deleting.try_del();
    if outcome.status == 0 && conf["ipMasq"] == true {
        assert_masqueraded(lab, &newcomer, &ips(&new_result)[0]);
    }
    new.try_del();
    (before.changes(), outcome)
}

fn with_reference(case: impl Fn(&Lab, &Peer)) {
    let Some(reference) = Peer::reference() else { return not_compared("bridge") };
    for_ours("bridge", |lab| case(lab, &reference));
}

/// `between` happens to the container between the reference's ADD and our DEL.
fn assert_our_del_removes_all(between: fn(&Container)) {
    with_reference(|_, reference| {
        for network in networks(reference) {
            let lab = Lab::new(Peer::Ours).without_dad();
            let (left, outcome) = handed_over(&lab, &network, reference, &Peer::Ours, between);
            assert_eq!(outcome.ok(), Value::Null, "{}", network.what);
            assert_eq!(left, "", "left by our DEL of the reference's \"{}\"", network.what);
        }
    });
}

#[test]
fn ours_deletes_what_the_reference_added() {
    assert_our_del_removes_all(|_| ());
}

#[test]
fn our_del_without_netns_removes_what_the_reference_added() {
    assert_our_del_removes_all(Container::vanish);
}

/// A rollback: the reference cannot know our rules, but its DEL removes link, address and lease,
/// and succeeds.
#[test]
fn the_reference_deletes_links_and_addresses_that_ours_added() {
    with_reference(|_, reference| {
        for network in networks(reference) {
            let lab = Lab::new(Peer::Ours).without_dad();
            let iptables = conf(&network)["ipMasqBackend"] == "iptables";
            if !iptables {
                lab.hide_iptables(); // otherwise the reference's DEL fails: see its documentation
                if conf(&network)["ipMasq"] == true && !speaks(reference, "1.1.0") {
                    continue; // an old reference needs iptables
                }
            }
            let (left, outcome) = handed_over(&lab, &network, &Peer::Ours, reference, |_| ());
            assert_eq!(outcome.ok(), Value::Null, "{}", network.what);
            // With iptables our rules equal the reference's and are removed. The reference does not
            // know the index beside the store, which repairs itself.
            let is_ours = |line: &&str| {
                line.contains("/.cni-multi/")
                    || !iptables && (line.starts_with("+ nft:") || line.starts_with("- nft:"))
            };
            let left: Vec<&str> = left.lines().filter(|line| !is_ours(line)).collect();
            assert_eq!(left, [""; 0], "left by the reference's DEL of our \"{}\"", network.what);
        }
    });
}

/// The reference's DEL may fail over iptables rules that no ADD made (see tests/differences). By
/// then link and address are gone, and the runtime's retry succeeds.
#[test]
fn a_second_del_of_the_reference_succeeds_with_iptables() {
    with_reference(|lab, reference| {
        for plugin in ["bridge", "ptp"] {
            let conf =
                with(&bridge::conf(), json!({"type": plugin, "name": plugin, "ipMasq": true}));
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            attachment.clone().by(reference).try_del();
            assert!(container.link("eth0").is_none(), "{plugin}");
            assert!(
                !lab.path(&format!("/var/lib/cni/networks/{plugin}/10.10.0.2")).exists(),
                "{plugin}"
            );
            attachment.by(reference).del();
        }
    });
}

/// After a rollback and another upgrade our GC finds our own rules.
#[test]
fn our_gc_finds_the_rules_a_rollback_left() {
    with_reference(|lab, reference| {
        if !speaks(reference, "1.1.0") {
            return not_compared("specification 1.1.0");
        }
        let conf = with(
            &bridge::dual_stack(),
            json!({"cniVersion": "1.1.0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables"}),
        );
        lab.hide_iptables();
        bridge::warm_up(lab, &conf);
        let before = Watch::start(lab, &[]);
        let container = lab.container();
        let attachment = lab.attach(&container, &conf);
        attachment.add();
        attachment.clone().by(reference).del();
        attachment.gc(&[]).ok();
        before.assert_unchanged("ADD");
    });
}

/// The reference's rules name their network and their container.
#[test]
fn our_gc_removes_masquerade_of_the_reference_s_stale_adds() {
    with_reference(|lab, reference| {
        if !speaks(reference, "1.1.0") {
            return not_compared("specification 1.1.0");
        }
        lab.hide_iptables();
        for plugin in ["bridge", "ptp"] {
            let conf = |network: &str| {
                let changes = json!({"cniVersion": "1.1.0", "type": plugin, "name": network, "ipMasq": true, "ipMasqBackend": "nftables"});
                with(&bridge::dual_stack(), changes)
            };
            let containers = [lab.container(), lab.container(), lab.container()];
            let [kept, stale, other] = &containers;
            let attach = |container: &Container, network: &str| {
                lab.attach(container, &conf(network)).by(reference)
            };
            for (container, network) in [(kept, "net1"), (stale, "net1"), (other, "net2")] {
                attach(container, network).add();
            }
            stale.vanish();
            let masqueraded = || {
                let chain = lab.host.sh("nft list chain inet cni_plugins_masquerade masq_checks");
                containers.each_ref().map(|c| chain.matches(&format!("id: {}\"", c.id)).count())
            };
            assert_eq!(masqueraded(), [2, 2, 2], "a rule for each address");
            let ours = attach(kept, "net1").by(&Peer::Ours);
            ours.call("GC", None).run().ok();
            assert_eq!(masqueraded(), [2, 2, 2], "GC that is told nothing removes nothing");
            ours.gc(&[(&kept.id, "eth0")]).ok();
            assert_eq!(masqueraded(), [2, 0, 2]);
            ours.gc(&[]).ok();
            assert_eq!(masqueraded(), [0, 0, 2]);
            for (container, network) in [(kept, "net1"), (other, "net2")] {
                attach(container, network).by(&Peer::Ours).del();
            }
        }
    });
}
