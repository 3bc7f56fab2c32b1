//! dhcp leases addresses from a server on the network through a daemon.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{
    DISCOVER, NONSENSE, RELEASE, REQUEST, Scripted, hex, option, wait_for_release,
};
use crate::support::dhcp::servers::{BOTH, Program, Server};
use crate::support::dhcp::{Daemon, Kind, SERVER};
use crate::support::netns::{Container, Lab};
use crate::support::networks::dhcp::conf;
use crate::support::peers::tests;
use crate::support::snapshot::Watch;
use crate::support::traffic::assert_pings;

mod confinement;
mod daemon;
mod del;
pub mod failed_add;
mod many;
mod old_and_new;
mod renewal;
mod v6;

/// Runs the case with each server program on a network, and with a daemon.
fn with_each_server(kind: Kind, case: impl Fn(&Lab, &Server, &mut Daemon)) {
    for program in BOTH {
        if !program.is_there() {
            continue;
        }
        let one = |lab: &Lab| {
            if !kind.is_in(lab) {
                return skip("ipvlan");
            }
            eprintln!("from {program:?}:"); // shown when the case fails
            lab.lan(kind);
            let server = Server::start(lab, program, 50, 59);
            // The reference's first packet is lost on a bridge because its port does not forward
            // yet.
            let flags: &[&str] = if lab.peer == Peer::Ours { &[] } else { &["-timeout", "1s"] };
            case(lab, &server, &mut Daemon::with_flags(lab, flags));
        };
        // The reference never sets the broadcast flag, and a unicast answer does not reach an
        // ipvlan link without an address.
        if kind == Kind::Ipvlan { for_ours("dhcp", one) } else { for_each_peer("dhcp", one) }
    }
}

/// The only lease the server knows.
#[track_caller]
fn only_lease(server: &Server) -> String {
    let leases = server.leases();
    assert_eq!(leases.len(), 1, "{leases:?}");
    leases.into_keys().next().unwrap()
}

/// A network for macvlan, with a scripted server.
fn network(lab: &Lab, script: Value) -> Scripted {
    lab.lan(Kind::Macvlan);
    Scripted::start(lab, script)
}

/// Runs the case of our plugin on a network for macvlan, with a scripted server and a daemon.
fn on_a_lan(script: Value, case: impl Fn(&Lab, &Scripted, &mut Daemon)) {
    for_ours("dhcp", |lab| {
        let server = network(lab, script.clone());
        case(lab, &server, &mut Daemon::start(lab));
    });
}

/// Runs the case of each plugin there.
fn on_each_lan(script: Value, case: impl Fn(&Lab, &Scripted, &mut Daemon)) {
    for_each_peer("dhcp", |lab| {
        let server = network(lab, script.clone());
        case(lab, &server, &mut Daemon::start(lab));
    });
}

/// Leases that are renewed every second.
fn short() -> Value {
    json!({"lease": 8, "t1": 1, "t2": 6})
}

/// The plugin alone, with a link that stays when no main plugin deletes it.
fn plugged<'a>(lab: &'a Lab, container: &Container) -> Attachment<'a> {
    let name = container.netns.rsplit('/').next().unwrap();
    lab.host.sh(&format!("ip link add link lan name eth0 netns {name} type macvlan"));
    lab.attach(container, &alone())
}

/// The network of the plugin alone.
fn alone() -> Value {
    with(&conf(), json!({"type": "dhcp", "master": null}))
}

fn add_check_and_del(kind: Kind) {
    with_each_server(kind, |lab, server, _| {
        let (container, attachment) = lab.place(&kind.conf());
        attachment.add();
        // The first attachment gives the bridge its address. After its DEL nothing of it is left
        // that could hide leftovers of the second one.
        attachment.del();
        let before = Watch::start(lab, &[&container]);
        let result = attachment.add();
        let address = ips(&result)[0].clone();
        assert_eq!(only_lease(server), address);
        assert_eq!(container.addresses("eth0"), [format!("{address}/24")]);
        assert_eq!(result["ips"][0]["gateway"], SERVER);
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": SERVER}]));
        assert!(container.sh("ip route").contains(&format!("default via {SERVER} dev eth0")));
        assert_pings(&container, SERVER);
        attachment.check_and_del(&result);
        server.assert_has_no_lease();
        before.assert_unchanged("ADD");
    });
}

#[test]
fn the_page_s_recipe_gives_no_default_route() {
    let page = include_str!("../../../docs/dhcp.md");
    let mut recipes =
        page.lines().filter(|line| line.starts_with('{') && line.contains("\"skipDefault\": true"));
    let ipam: Value = serde_json::from_str(recipes.next().unwrap()).unwrap();
    let conf = with(&conf(), json!({"ipam": ipam}));
    with_each_server(Kind::Macvlan, |lab, server, _| {
        if matches!(server.program, Program::Kea) {
            return; // it sends its router all the same
        }
        let (container, _, result) = lab.added(&conf);
        assert_eq!(container.addresses("eth0"), [format!("{}/24", ips(&result)[0])]);
        assert_eq!(container.sh("ip route show default"), "");
        assert_pings(&container, SERVER);
    });
}

tests! {
    bridge_add_check_and_del = add_check_and_del(Kind::Bridge);
    macvlan_add_check_and_del = add_check_and_del(Kind::Macvlan);
    ipvlan_add_check_and_del = add_check_and_del(Kind::Ipvlan);
}

/// The hardware address is shared, the client ID is not.
#[test]
fn two_containers_on_ipvlan_have_addresses_of_their_own() {
    with_each_server(Kind::Ipvlan, |lab, server, _| {
        let [(a, _, one), (_b, _, other)] = [(), ()].map(|()| lab.added(&Kind::Ipvlan.conf()));
        assert_ne!(ips(&one), ips(&other));
        assert_eq!(server.leases().len(), 2);
        assert_pings(&a, &ips(&other)[0]);
    });
}

/// The specification of IPAM plugins: the result of the plugin alone has no interfaces.
#[test]
fn the_plugin_alone_answers_with_addresses_and_routes() {
    let expected = json!({
        "cniVersion": "1.1.0",
        "ips": [{"address": "10.60.0.50/24", "gateway": SERVER}],
        "routes": [{"dst": "0.0.0.0/0", "gw": SERVER}],
    });
    on_each_lan(json!({}), |lab, _, _| {
        let container = lab.container();
        let attachment = plugged(lab, &container);
        assert_eq!(attachment.add(), expected);
        // The plugin sets a link up, because nothing can be sent through a link that is down.
        let link = container.link("eth0").unwrap();
        assert!(link["flags"].as_array().unwrap().contains(&json!("UP")));
        attachment.check_and_del(&expected);
        for (version, ip) in
            [("0.2.0", "/ip4/ip"), ("0.4.0", "/ips/0/address"), ("1.0.0", "/ips/0/address")]
        {
            let attachment = plugged(lab, &lab.container()).conf(json!({"cniVersion": version}));
            let result = attachment.add();
            let ip = result.pointer(ip).unwrap().as_str().unwrap();
            assert!(ip.starts_with("10.60.0."), "{version}: {result}");
            attachment.assert_operations_of(version, &result);
            attachment.del();
        }
    });
}

#[test]
fn add_for_a_lease_that_is_there_gives_the_same_address() {
    on_each_lan(json!({}), |lab, server, _| {
        let attachment = plugged(lab, &lab.container());
        let first = attachment.add();
        assert_eq!(attachment.add(), first);
        assert_eq!(server.heard_of(DISCOVER).len(), 1, "no server was asked again");
    });
}

/// Each interface of each container is an attachment with a lease of its own.
#[test]
fn each_interface_has_a_lease_of_its_own() {
    with_each_server(Kind::Macvlan, |lab, server, _| {
        let has_only = |addresses: &[&String]| {
            let leases = server.leases().into_keys().collect::<BTreeSet<_>>();
            assert_eq!(leases.iter().collect::<BTreeSet<_>>(), addresses.iter().copied().collect());
        };
        let (_, first) = lab.place(&conf());
        let (second, (_, third)) = (first.clone().ifname("eth1"), lab.place(&conf()));
        let [a, b, c] = [&first, &second, &third].map(|at| ips(&at.add())[0].clone());
        has_only(&[&a, &b, &c]);
        second.del();
        if lab.peer == Peer::Ours {
            has_only(&[&a, &c]);
        }
        first.del();
        third.del();
        server.assert_has_no_lease();
    });
}

// --- the packets we send, and the result we make of the server's answers ---

/// Runs ADD and DEL; returns every packet that the server received.
fn conversation(lab: &Lab, flags: &[&str], kind: Kind) -> Vec<Value> {
    lab.lan(kind);
    let server = Scripted::start(lab, json!({}));
    let _daemon = Daemon::with_flags(lab, flags);
    lab.added(&kind.conf()).1.del();
    wait_for_release(lab, &server);
    server.heard()
}

#[test]
fn the_packets_are_those_of_the_reference() {
    for_each_peer("dhcp", |lab| {
        let heard = conversation(lab, &[], Kind::Macvlan);
        let types: Vec<&Value> = heard.iter().map(|packet| &packet["type"]).collect();
        // The reference's RELEASE does not reach a socket.
        let expected = [DISCOVER, REQUEST, RELEASE];
        assert_eq!(types, expected[..if lab.peer == Peer::Ours { 3 } else { 2 }]);
        let client_id = hex(b"\0container-1/net1/eth0");
        for packet in &heard {
            assert_eq!(packet["op"], 1);
            assert_eq!(packet["ended"], true, "the option End is there");
            assert!(packet["length"].as_u64().unwrap() >= 300, "no shorter than BOOTP's: {packet}");
            assert_eq!(packet["flags"], 0, "answers may come by unicast");
            assert_eq!(option(packet, 61).as_deref(), Some(&*client_id));
            let order = packet["order"].as_array().unwrap();
            assert!(order.is_sorted_by_key(Value::as_u64), "options are in order: {order:?}");
        }
        let [discover, request, rest @ ..] = &heard[..] else { unreachable!() };
        assert_eq!(discover["to"], "broadcast");
        // Routers and mask are asked for, and packets of 1500 bytes are taken.
        for (number, value) in [(55, Some("0301")), (57, Some("05dc")), (50, None)] {
            assert_eq!(option(discover, number).as_deref(), value, "{number}");
        }
        assert_eq!(request["xid"], discover["xid"]);
        for (number, value) in [(50, "0a3c0032"), (54, "0a3c0001"), (55, "0301")] {
            assert_eq!(option(request, number).as_deref(), Some(value), "{number}");
        }
        for release in rest {
            for (key, value) in
                [("to", "unicast"), ("from", "10.60.0.50"), ("ciaddr", "10.60.0.50")]
            {
                assert_eq!(release[key], value, "{key}");
            }
            assert_eq!(option(release, 54).as_deref(), Some("0a3c0001"));
            assert_eq!(option(release, 50), None);
        }
    });
}

/// The reference has the flag but has ignored it since 1.6.0. All links of an ipvlan master share
/// its hardware address, so a unicast answer does not find a link that has no address yet.
#[test]
fn answers_are_asked_for_by_broadcast_by_the_flag_and_on_ipvlan() {
    for (kind, flags) in [(Kind::Macvlan, &["-broadcast"][..]), (Kind::Ipvlan, &[])] {
        for_ours("dhcp", |lab| {
            if !kind.is_in(lab) {
                return skip("ipvlan");
            }
            let heard = conversation(lab, flags, kind);
            assert_eq!([&heard[0]["flags"], &heard[1]["flags"]], [0x8000, 0x8000]);
        });
    }
}

/// Options of the configuration, of CNI_ARGS and to be asked for are in each packet; the priority is
/// the routes'.
#[test]
fn what_ipam_asks_for_is_on_the_wire() {
    on_each_lan(json!({}), |lab, server, _| {
        let ipam = json!({"priority": 77, "request": [{"option": "host-name"}],
            "provide": [{"option": "60", "value": "cni"}, {"option": "user-class", "fromArg": "CLASS"}]});
        let attachment = lab.attach(&lab.container(), &with(&conf(), json!({"ipam": ipam})));
        let result = attachment.args("IgnoreUnknown=1;CLASS=gold").add();
        assert_eq!(result["routes"][0]["priority"], 77);
        for kind in [DISCOVER, REQUEST] {
            let packet = &server.heard_of(kind)[0];
            assert_eq!(option(packet, 60), Some(hex(b"cni")));
            assert_eq!(option(packet, 77), Some(hex(b"gold")));
            assert_eq!(option(packet, 55).as_deref(), Some("0c0301"));
        }
    });
}

/// Malformed answers arrive before the valid one.
#[test]
fn nonsense_is_ignored() {
    let before = json!({"before": NONSENSE.split('|').collect::<Vec<_>>()});
    on_each_lan(before, |lab, server, daemon| {
        assert_eq!(ips(&lab.added(&conf()).2), ["10.60.0.50"]);
        assert_eq!(server.heard_of(REQUEST).len(), 1);
        assert!(!daemon.has_ended());
    });
}

// --- results ---

/// A router of 0.0.0.0 means that the destination is on the link.
#[test]
fn a_route_without_a_router_is_of_the_link() {
    on_a_lan(json!({"options": {"121": "18cb007100000000"}}), |lab, _, _| {
        let (container, _, result) = lab.added(&conf());
        assert_eq!(result["routes"][0]["dst"], "203.0.113.0/24");
        assert_eq!(result["routes"][0]["scope"], 253);
        let routes = container.sh("ip route");
        assert!(routes.contains("203.0.113.0/24 dev eth0 scope link"), "{routes}");
    });
}

/// The reference omits these fields.
#[test]
fn name_service_and_mtu_are_in_the_result() {
    let search = [&b"\x03lab\x07example\0\x04corp\xc0\x04"[..]].concat();
    let options = json!({
        "6": "0a3c00350a3c0036", "15": hex(b"lab.example"), "26": "0578", "119": hex(&search),
    });
    let dns = json!({"nameservers": ["10.60.0.53", "10.60.0.54"], "domain": "lab.example",
        "search": ["lab.example", "corp.example"]});
    on_a_lan(json!({"options": options}), |lab, _, _| {
        let (container, _, result) = lab.added(&conf());
        assert_eq!(result["dns"], dns);
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": SERVER, "mtu": 1400}]));
        let routes = container.sh("ip route");
        assert!(routes.contains("mtu 1400"), "{routes}");
    });
}
