//! Deliberate differences of portmap from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differ, differs};
use crate::plugins::meta::portmap::{host, udp};
use crate::support::attachment::{Attachment, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::portmap::{self, is_open, network, publish, web};
use crate::support::traffic::{TcpServer, connect};

/// The convention's default of a protocol is TCP. A mark bit has no meaning where no mark is set.
const ROWS: &str = r#"
uses nftables only where iptables is missing | {} | add; iptables-save -t nat|grep -o -m1 CNI-DN |  | CNI-DN
makes tables that stay for ever | {"backend": "nftables"} | nft -s list ruleset >/run/before; add; del; nft -s list ruleset|cmp -s - /run/before && echo same | same
notices an invalid port after it has made chains and jumps | {"backend": "iptables", "runtimeConfig": {"portMappings": [{"hostPort": 70000, "containerPort": 80, "protocol": "tcp"}]}} | try ADD; nft list ruleset|grep -o -m1 CNI- | 1 | 1 CNI-
does not compare the shared masquerading in CHECK | {"backend": "iptables"} | add; iptables -t nat -F CNI-HOSTPORT-MASQ; check | 1 | 0
does not compare the shared jumps in CHECK | {"backend": "iptables"} | add; ip6tables -t nat -F PREROUTING; check | 1 | 0
adds the rules of nftables again in a second ADD | {"backend": "nftables"} | add; nft -s list ruleset >/run/once; add; nft -s list ruleset|cmp -s - /run/once && echo same | same
passes a missing protocol to a program | {"backend": "iptables", "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}} | try ADD | 0 | 1
passes a missing protocol to a program | {"backend": "nftables", "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}} | try ADD | 0 | 1
writes capitals, which iptables takes, into rules of nftables | {"backend": "nftables", "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}]}} | try ADD | 0 | 1
takes a mark bit | {"backend": "nftables", "markMasqBit": 5} | try ADD | 1 | 0
"#;

fn published(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    let chain = lab.chain(&network(), &with(&portmap::portmap(None, json!([web()])), changes));
    let attachment = Attachment::clone(&chain);
    (chain.container, attachment)
}

#[test]
fn published_ports_differ_where_the_table_says_so() {
    differ("portmap", ROWS, published);
}

/// The reference silently adds a rule that no packet reaches.
#[test]
fn a_host_port_that_is_taken_is_an_error() {
    for backend in portmap::BACKENDS {
        differs("portmap", FAILED, OK, |lab| {
            publish(lab, Some(backend), json!([web()]));
            lab.chain(&network(), &portmap::portmap(Some(backend), json!([web()]))).try_add().status
        });
    }
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
