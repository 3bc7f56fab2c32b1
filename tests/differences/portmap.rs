//! Deliberate differences of portmap from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs};
use crate::plugins::meta::portmap::{host, iptables, udp};
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::networks::portmap::{self, is_open, network, publish, web};
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::{TcpServer, connect};

/// The status of an ADD of portmap on `network()` with these changes.
fn add_portmap(lab: &Lab, backend: Option<&str>, changes: Value) -> i32 {
    lab.chain(&network(), &with(&portmap::portmap(backend, json!([web()])), changes))
        .try_add()
        .status
}

/// The reference silently adds a rule that no packet reaches.
#[test]
fn a_host_port_that_is_taken_is_an_error() {
    for backend in portmap::BACKENDS {
        differs("portmap", FAILED, OK, |lab| {
            publish(lab, Some(backend), json!([web()]));
            add_portmap(lab, Some(backend), json!({}))
        });
    }
}

/// The reference uses nftables only where iptables is missing.
#[test]
fn portmap_uses_nftables_unless_iptables_is_asked_for() {
    differs("portmap", true, false, |lab| {
        publish(lab, None, json!([web()]));
        iptables::rules(lab).is_empty()
    });
}

/// A runtime may call DEL with its configuration alone, as after a restart; the reference leaves
/// the port open.
#[test]
fn del_of_portmap_needs_no_mappings() {
    for backend in portmap::BACKENDS {
        let observe = |lab: &Lab| {
            let chain = publish(lab, Some(backend), json!([web()]));
            let _server = TcpServer::start(&chain.container, 80);
            chain.bare().del();
            is_open(lab, 8080)
        };
        differs("portmap", [false; 2], [true; 2], observe);
    }
}

/// The reference creates tables that stay for ever.
#[test]
fn the_last_del_of_portmap_takes_the_table_away() {
    differs("portmap", true, false, |lab| {
        let before = lab.host.sh("nft -s list ruleset");
        publish(lab, Some("nftables"), json!([web()])).del();
        lab.host.sh("nft -s list ruleset") == before
    });
}

/// The reference finds rules by the container's ID, whatever their network.
#[test]
fn del_of_portmap_is_for_one_network() {
    let observe = |lab: &Lab| {
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        (*chain).clone().conf(json!({"name": "net2"})).del();
        is_open(lab, 8080)
    };
    differs("portmap", [true; 2], [false; 2], observe);
}

/// The reference notices the invalid port after it has created chains and jumps.
#[test]
fn a_failed_add_of_portmap_leaves_no_rule() {
    differs("portmap", false, true, |lab| {
        let before = Watch::start(lab, &[]);
        let chain = lab.chain(
            &network(),
            &portmap::portmap(Some("iptables"), json!([with(&web(), json!({"hostPort": 70_000}))])),
        );
        chain.try_add().err();
        chain.main.del();
        before.changes_now().contains("CNI-")
    });
}

/// The jumps, the mark and the masquerading are shared, and the reference's CHECK does not compare
/// them.
#[test]
fn check_of_portmap_looks_at_what_is_shared() {
    for script in ["iptables -t nat -F CNI-HOSTPORT-MASQ", "ip6tables -t nat -F PREROUTING"] {
        differs("portmap", FAILED, OK, |lab| {
            let chain = publish(lab, Some("iptables"), json!([web()]));
            lab.host.sh(script);
            chain.check(&chain.result).status
        });
    }
}

/// The host does not see packets that the kernel bridges from port to port, so the answer to a
/// neighbour must go through the gateway.
#[test]
fn a_neighbour_reaches_a_port_where_bridges_go_their_own_way() {
    differs("portmap", Some("10.10.0.1".to_owned()), None, |lab| {
        portmap::without_bridge_netfilter(lab);
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        let neighbour = lab.container();
        lab.attach(&neighbour, &network()).add();
        connect(&neighbour, "198.51.100.1:8080")
    });
}

/// Of two tables with the same priority the kernel runs the younger first, which is the
/// reference's.
#[test]
fn a_node_port_of_another_table_goes_first() {
    for service in host::SERVICES.iter().filter(|service| service.node_port) {
        differs("portmap", "service", "published", |lab| {
            host::answering(lab, service, Some("nftables"), true)[1]
        });
    }
}

#[test]
fn masq_all_is_for_nftables_too() {
    differs("portmap", "10.10.0.1".to_owned(), "198.51.100.2".to_owned(), |lab| {
        let chained =
            with(&portmap::portmap(Some("nftables"), json!([web()])), json!({"masqAll": true}));
        let chain = lab.chain(&network(), &chained);
        chain.add();
        let _server = TcpServer::start(&chain.container, 80);
        connect(&lab.outside, "198.51.100.1:8080").unwrap()
    });
}

/// What the reference does; the backend; the changes; the status of ADD, ours and the reference's.
const ADDS: &str = r#"
passes the missing protocol to a program, where the convention's default is TCP | iptables | {"protocol": null} | 0 | 1
passes the missing protocol to a program, where the convention's default is TCP | nftables | {"protocol": null} | 0 | 1
writes capitals, which iptables takes, into nftables' rules | nftables | {"protocol": "TCP"} | 0 | 1
takes a mark bit, which has no meaning where no mark is set | nftables | {"markMasqBit": 5} | 1 | 0
"#;

#[test]
fn adds_of_portmap_that_one_of_the_two_refuses() {
    for [what, backend, changes, ours, reference] in cells(ADDS) {
        let changes: Value = serde_json::from_str(changes).unwrap();
        let mappings = json!({"portMappings": [with(&web(), changes.clone())]});
        let of_mapping = changes.get("markMasqBit").is_none();
        let changes = if of_mapping { json!({"runtimeConfig": mappings}) } else { changes };
        differs("portmap", ours, reference, |lab| {
            eprintln!("the reference {what}"); // shown when the case fails
            ["0", "1"][add_portmap(lab, Some(backend), changes.clone()) as usize]
        });
    }
}

/// The reference publishes nothing, or not what was requested.
#[test]
fn a_mapping_that_cannot_be_made_is_refused() {
    let v4 = with(&network(), json!({"ipam": {"ranges": null, "subnet": "10.10.0.0/24"}}));
    let without =
        with(&network(), json!({"ipam": null, "isGateway": null, "isDefaultGateway": null}));
    let cases = [
        (v4, json!([with(&web(), json!({"hostIP": "2001:db8:ffff::1"}))])),
        (without, json!([web()])),
        (network(), json!([web(), with(&web(), json!({"containerPort": 81}))])),
    ];
    for backend in portmap::BACKENDS {
        for (main, mappings) in &cases {
            differs("portmap", FAILED, OK, |lab| {
                lab.chain(main, &portmap::portmap(Some(backend), mappings.clone())).try_add().status
            });
        }
    }
}

/// The reference writes the conditions before the jump that all containers share, so the last ADD
/// decides for all: an older container is cut off.
#[test]
fn conditions_of_nftables_are_of_one_container() {
    let conditions = json!({"conditionsV4": ["ip", "saddr", "192.0.2.1"]});
    differs("portmap", ([true, true], [false, true]), ([false, true], [false, true]), |lab| {
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
        let other = json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]);
        let second = lab.chain(
            &network(),
            &with(&portmap::portmap(Some("nftables"), other), conditions.clone()),
        );
        second.add();
        let _other_server = TcpServer::start(&second.container, 80);
        (is_open(lab, 8080), is_open(lab, 9090))
    });
}

/// The reference adds the rules again with nftables.
#[test]
fn a_repeated_add_of_portmap_adds_nothing() {
    differs("portmap", true, false, |lab| {
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let once = lab.host.sh("nft -s list ruleset");
        chain.add();
        lab.host.sh("nft -s list ruleset") == once
    });
}

/// Without the deletion the kernel keeps sending a known flow to the container; the reference
/// deletes flows at the next ADD of the port.
#[test]
fn del_of_portmap_ends_the_flows_of_udp() {
    differs("portmap", 0, 4, udp::flows_after_del);
}

/// The same port of another machine is a different flow.
#[test]
fn flows_of_udp_to_other_machines_are_not_ended() {
    differs("portmap", 2, 0, udp::flows_to_others_after_add);
}
