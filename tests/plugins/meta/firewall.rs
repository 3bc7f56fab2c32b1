//! firewall: which packets pass on each kind of host. Isolation, CHECK, DEL, firewalld and failures
//! have modules of their own.

mod check;
pub mod del;
pub mod failed_add;
pub mod firewalld;
pub mod isolation;
mod later;
mod published;
mod repair;

use std::process::{Child, Stdio};
use std::time::Instant;

use super::*;
use crate::support::attachment::has_programs;
use crate::support::networks::bridge::warm_up;
use crate::support::networks::firewall::{
    DROPPING, admit, assert_admitted, firewall, network, route_from_outside,
};
use crate::support::networks::portmap::{at, is_open, other_network};
use crate::support::patience;
use crate::support::synced::{Synced, attach};
use crate::support::traffic::{TcpServer, connect};

#[track_caller]
pub fn assert_shut_out(chain: &Chain<'_>) {
    OUTSIDE.iter().for_each(|outside| assert_no_ping(&chain.container, outside));
}

/// The rules that Docker, kube-proxy and a kubelet leave on a host with policy drop.
const BUSY: &str = r#"for f in iptables-nft ip6tables-nft; do $f-restore <<'END'
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
END
done"#;

/// Sets policy drop in iptables-legacy. False if the kernel has no such tables.
fn drop_by_legacy(lab: &Lab) -> bool {
    let drop = "iptables-legacy -P FORWARD DROP && ip6tables-legacy -P FORWARD DROP && cat /proc/net/ip_tables_names";
    lab.host.try_sh(drop).status.success()
}

/// Runs a case of ours on a host that drops what it forwards, with rules by netlink and by iptables.
pub fn for_ours_on_a_host_that_drops(case: impl Fn(&Lab, Option<&str>)) {
    for backend in [None, Some("iptables")] {
        eprintln!("with {backend:?}:"); // shown when the case fails
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            case(lab, backend);
        });
    }
}

/// The rules of iptables, by both families.
pub fn rules(lab: &Lab) -> String {
    lab.host.sh("iptables -S; ip6tables -S")
}

/// The rules name none of the chain's addresses.
#[track_caller]
pub fn assert_closed(lab: &Lab, chain: &Chain<'_>) -> String {
    let rules = rules(lab);
    assert!(chain.ips().iter().all(|ip| !rules.contains(&format!("{ip}/"))), "{rules}");
    rules
}

/// Our table has gone with its last container.
#[track_caller]
pub fn assert_no_table(lab: &Lab) {
    assert!(!lab.host.sh("nft list tables").contains("cni_multi"));
}

/// ADD opens the path of one container; DEL closes it and leaves the host unchanged.
fn assert_opens_and_closes(lab: &Lab, chained: &Value) {
    route_from_outside(lab);
    let warm = lab.chain(&network(), chained);
    warm.main.del();
    let chain = lab.chain(&network(), chained);
    let before = Watch::start(lab, &[&chain.container]);
    assert_shut_out(&chain);
    let result = chain.add();
    assert_eq!(result, chain.result, "the result is passed on");
    assert_admitted(lab, &chain);
    chain.check(&result).ok();
    chain.bare().del();
    assert_shut_out(&chain);
    before.assert_unchanged("ADD and DEL");
    chain.bare().del();
    chain.main.del();
}

#[test]
fn a_host_that_drops_by_iptables_nft_is_left_unchanged() {
    for host in [DROPPING, BUSY] {
        for backend in [None, Some("nftables"), Some("iptables")] {
            for_ours("firewall", |lab| {
                lab.host.sh(host);
                assert_opens_and_closes(lab, &firewall(backend));
            });
        }
    }
}

/// A second ADD has each rule once, and a second DEL is done.
#[test]
fn either_opens_and_closes_a_host_that_drops() {
    for backend in [None, Some("iptables")] {
        for_each_peer("firewall", |lab| {
            lab.host.sh(DROPPING);
            route_from_outside(lab);
            let chain = lab.chain(&network(), &firewall(backend));
            assert_shut_out(&chain);
            chain.add();
            let once = rules(lab);
            chain.add();
            assert_eq!(rules(lab), once, "{backend:?}");
            assert_admitted(lab, &chain);
            chain.del();
            assert_shut_out(&chain);
            chain.del();
        });
    }
}

/// Also where Docker drops in one variant of iptables and a hardening script in the other: both need the accept rules.
#[test]
fn a_container_passes_a_host_that_drops_by_iptables_legacy() {
    for (also, backend) in [("true", None), (DROPPING, Some("nftables"))] {
        for_ours("firewall", |lab| {
            lab.host.sh(also);
            if !drop_by_legacy(lab) {
                return skip("iptables-legacy");
            }
            assert_opens_and_closes(lab, &firewall(backend));
        });
    }
}

#[test]
fn a_host_without_iptables_gets_no_rules_of_it() {
    for_ours("firewall", |lab| {
        lab.hide_iptables();
        route_from_outside(lab);
        let chain = admit(lab, &firewall(None));
        OUTSIDE.iter().for_each(|outside| assert_pings(&chain.container, outside));
        let tables = lab.host.sh("nft list tables");
        assert_eq!(tables, "table inet cni_multi_firewall\n");
        let table = lab.host.sh("nft list table inet cni_multi_firewall");
        for ip in chain.ips() {
            assert!(table.contains(&format!("{ip} comment \"")), "{table}");
        }
        chain.del_all();
        assert_eq!(lab.host.sh("nft list tables"), "");
    });
}

/// iptables lists the rules of both peers in the same words, although ours does not run iptables.
#[test]
fn the_rules_are_listed_by_iptables_as_the_reference_s() {
    let Some(reference) = Peer::reference() else { return };
    let lists = [Peer::Ours, reference].map(|peer| {
        let lab = Lab::new(peer);
        lab.host.sh(DROPPING);
        let _chains = [(); 2].map(|()| admit(&lab, &firewall(None)));
        let all =
            ["iptables -S", "ip6tables -S"].map(|list| lab.host.sh(&format!("{list} | sort")));
        assert_eq!(all[0].matches("-A CNI-FORWARD").count(), 5, "{all:?}");
        lab.host.sh(
            "iptables-save | iptables-restore; iptables -D CNI-FORWARD -s 10.10.0.2/32 -j ACCEPT",
        );
        all
    });
    assert_eq!(lists[0], lists[1]);
}

/// Rules in the administrator's chain take precedence over the accept rules for containers.
#[test]
fn the_administrator_s_chain_comes_first() {
    for chain_name in [None, Some("MY.OWN_CHAIN-of-28-letters..")] {
        for_each_peer("firewall", |lab| {
            lab.host.sh(DROPPING);
            let chained = with(&firewall(None), json!({"iptablesAdminChainName": chain_name}));
            let chain_name = chain_name.unwrap_or("CNI-ADMIN");
            let chain = admit(lab, &chained);
            let masquerade = "table ip x { chain y { type nat hook postrouting priority 100; oifname uplink masquerade; }; }";
            lab.host.sh(&format!("nft 'add {masquerade}'"));
            assert_pings(&chain.container, OUTSIDE[0]);
            lab.host.sh(&format!("iptables -A {chain_name} -d {} -j DROP", OUTSIDE[0]));
            assert_no_ping(&chain.container, OUTSIDE[0]);
            chain.del();
            let rules = lab.host.sh(&format!("iptables -S {chain_name}"));
            assert!(rules.contains("-j DROP"), "the administrator's rules stay: {rules}");
            chain.main.del();
        });
    }
}

/// An accept of ours cannot override a drop in a foreign table. STATUS reports this and names the
/// table and the chain.
#[test]
fn status_tells_of_a_table_that_drops_and_cannot_be_overridden() {
    for_ours("firewall", |lab| {
        let status = || in_network(lab, &firewall(None)).status();
        status().assert_is(0, "", "");
        lab.host.sh(DROPPING);
        status().assert_is(0, "", ""); // there we can stand
        lab.host.sh("nft 'add table inet strict; add chain inet strict gate { type filter hook forward priority 0; policy drop; }'");
        let told = status();
        assert_eq!(told.ok(), Value::Null);
        for name in ["\"gate\"", "\"inet strict\""] {
            assert!(told.stderr.contains(name), "{told:?}");
        }
        route_from_outside(lab);
        assert_shut_out(&admit(lab, &firewall(None)));
    });
}
