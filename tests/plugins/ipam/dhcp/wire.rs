//! The packets we send, and the result we make of the server's answers.

use serde_json::{Value, json};

use super::on_each_lan;
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{
    DISCOVER, NONSENSE, RELEASE, REQUEST, Scripted, hex, option, wait_for_release,
};
use crate::support::dhcp::{Daemon, Kind, SERVER};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::conf;

/// Runs ADD and DEL; returns every packet that the server received.
fn conversation(lab: &Lab, flags: &[&str], kind: Kind) -> Vec<Value> {
    lab.lan(kind);
    let server = Scripted::start(lab, json!({}));
    let _daemon = Daemon::with_flags(lab, flags);
    let attachment = lab.attach(&lab.container(), &kind.conf());
    attachment.add();
    attachment.del();
    wait_for_release(lab, &server);
    server.heard()
}

fn for_ours_on_the_lan(case: impl Fn(&Lab)) {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let _daemon = Daemon::start(lab);
        case(lab);
    });
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
            let order: Vec<u64> =
                packet["order"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            assert!(order.is_sorted(), "options are in the order of their numbers: {order:?}");
        }
        let [discover, request, rest @ ..] = &heard[..] else { unreachable!() };
        assert_eq!(discover["to"], "broadcast");
        assert_eq!(option(discover, 55).as_deref(), Some("0301"), "routers and mask are asked for");
        assert_eq!(
            option(discover, 57).as_deref(),
            Some("05dc"),
            "packets of 1500 bytes are taken"
        );
        assert_eq!(option(discover, 50), None);
        assert_eq!(request["xid"], discover["xid"]);
        assert_eq!(option(request, 50).as_deref(), Some("0a3c0032"));
        assert_eq!(option(request, 54).as_deref(), Some("0a3c0001"));
        assert_eq!(option(request, 55), option(discover, 55));
        for release in rest {
            assert_eq!(
                (&release["to"], &release["from"]),
                (&json!("unicast"), &json!("10.60.0.50"))
            );
            assert_eq!(release["ciaddr"], "10.60.0.50");
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
                return crate::support::attachment::skip("ipvlan");
            }
            let heard = conversation(lab, flags, kind);
            assert_eq!(heard[0]["flags"], 0x8000);
            assert_eq!(heard[1]["flags"], 0x8000);
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
    on_each_lan(
        json!({"before": NONSENSE.split('|').collect::<Vec<_>>()}),
        |lab, server, daemon| {
            let result = lab.attach(&lab.container(), &conf()).add();
            assert_eq!(result["ips"][0]["address"], "10.60.0.50/24");
            assert_eq!(server.heard_of(REQUEST).len(), 1);
            assert!(!daemon.has_ended());
        },
    );
}

// --- results ---

/// A router of 0.0.0.0 means that the destination is on the link.
#[test]
fn a_route_without_a_router_is_of_the_link() {
    for_ours_on_the_lan(|lab| {
        let container = lab.container();
        let _server = Scripted::start(lab, json!({"options": {"121": "18cb007100000000"}}));
        let result = lab.attach(&container, &conf()).add();
        assert_eq!(result["routes"][0]["dst"], "203.0.113.0/24");
        assert_eq!(result["routes"][0]["scope"], 253);
        assert!(
            container.sh("ip route").contains("203.0.113.0/24 dev eth0 scope link"),
            "{}",
            container.sh("ip route")
        );
    });
}

/// The reference omits these fields.
#[test]
fn name_service_and_mtu_are_in_the_result() {
    for_ours_on_the_lan(|lab| {
        let search = [&b"\x03lab\x07example\0\x04corp\xc0\x04"[..]].concat();
        let options = json!({
            "6": "0a3c00350a3c0036", "15": hex(b"lab.example"), "26": "0578", "119": hex(&search),
        });
        let container = lab.container();
        let _server = Scripted::start(lab, json!({"options": options}));
        let result = lab.attach(&container, &conf()).add();
        assert_eq!(
            result["dns"],
            json!({
                "nameservers": ["10.60.0.53", "10.60.0.54"], "domain": "lab.example",
                "search": ["lab.example", "corp.example"],
            })
        );
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": SERVER, "mtu": 1400}]));
        assert!(container.sh("ip route").contains("mtu 1400"), "{}", container.sh("ip route"));
    });
}
