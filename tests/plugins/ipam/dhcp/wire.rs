//! The packets we send, and the result we make of the server's answers.

use serde_json::{Value, json};

use super::{on_each_lan, short};
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{
    DISCOVER, NONSENSE, RELEASE, REQUEST, Scripted, hex, option, wait_for_release,
};
use crate::support::dhcp::{Daemon, Kind, SERVER};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::conf;

/// Runs ADD and DEL; returns every packet that the server received.
fn conversation(
    lab: &Lab,
    flags: &[&str],
    kind: Kind,
    ipam: Value,
    args: Option<&str>,
) -> Vec<Value> {
    lab.lan(kind);
    let server = Scripted::start(lab, json!({}));
    let _daemon = Daemon::with_flags(lab, flags);
    let mut attachment = lab.attach(&lab.container(), &with(&kind.conf(), json!({"ipam": ipam})));
    attachment.args = args.map(str::to_owned);
    attachment.add();
    attachment.del();
    wait_for_release(lab, &server);
    server.heard()
}

/// The result of ADD with these options. The address is released afterwards.
fn result_of(lab: &Lab, ipam: Value, options: Value) -> Value {
    let _server = Scripted::start(lab, json!({"options": options}));
    let attachment = lab.attach(&lab.container(), &with(&conf(), json!({"ipam": ipam})));
    let result = attachment.add();
    attachment.del();
    result
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
        let heard = conversation(lab, &[], Kind::Macvlan, json!({}), None);
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

/// A client ID has at most 255 bytes including the type byte. Ours ends in a hash if it is cut.
#[test]
fn a_long_client_id_is_cut() {
    on_each_lan(json!({}), |lab, server, _| {
        let id = "a".repeat(250);
        let attachment = lab.attach(&lab.container(), &conf()).id(&id);
        attachment.add();
        let text = format!("\0{id}/net1/eth0");
        let sent = option(&server.heard_of(REQUEST)[0], 61).unwrap();
        let common = if lab.peer == Peer::Ours { 221 } else { 255 };
        assert_eq!((sent.len(), &sent[..common * 2]), (2 * 255, &*hex(&text.as_bytes()[..common])));
        attachment.del();
        wait_for_release(lab, server);
    });
}

#[test]
fn provided_options_are_sent() {
    for_each_peer("dhcp", |lab| {
        let ipam = json!({"provide": [
            {"option": "host-name", "value": "web"},
            {"option": "60", "value": "cni"},
            {"option": "user-class", "fromArg": "CLASS"},
            {"option": "250", "value": "configured", "fromArg": "K8S_POD_NAME"},
            {"option": "251", "fromArg": "NOT_THERE"},
            {"option": "dhcp-client-identifier", "value": "\u{1}mine"},
        ]});
        let heard = conversation(
            lab,
            &[],
            Kind::Macvlan,
            ipam,
            Some("IgnoreUnknown=1;K8S_POD_NAME=web-0;CLASS=gold"),
        );
        for packet in &heard[..2] {
            let expected =
                [(12, "web"), (60, "cni"), (61, "\u{1}mine"), (77, "gold"), (250, "web-0")];
            for (code, value) in expected {
                assert_eq!(option(packet, code), Some(hex(value.as_bytes())), "option {code}");
            }
            assert_eq!(option(packet, 251), None, "nobody has said what to send");
        }
    });
}

#[test]
fn requested_options_come_before_the_defaults() {
    let cases = [
        (json!([{"option": "host-name"}]), "0c0301"),
        (json!([{"option": "121"}, {"option": "user-class"}]), "794d0301"),
        (json!([{"skipDefault": true}, {"option": "subnet-mask"}]), "01"),
        (json!([{"option": "routers"}, {"option": "subnet-mask", "skipDefault": true}]), "0301"),
    ];
    for (request, expected) in cases {
        for_each_peer("dhcp", |lab| {
            let heard = conversation(lab, &[], Kind::Macvlan, json!({"request": request}), None);
            for packet in &heard[..2] {
                assert_eq!(option(packet, 55).as_deref(), Some(expected), "{request}");
            }
        });
    }
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
            let heard = conversation(lab, flags, kind, json!({}), None);
            assert_eq!(heard[0]["flags"], 0x8000);
            assert_eq!(heard[1]["flags"], 0x8000);
        });
    }
}

/// Malformed answers arrive before the valid one.
#[test]
fn nonsense_is_ignored() {
    on_each_lan(json!({"before": NONSENSE}), |lab, server, daemon| {
        let result = lab.attach(&lab.container(), &conf()).add();
        assert_eq!(result["ips"][0]["address"], "10.60.0.50/24");
        assert_eq!(server.heard_of(REQUEST).len(), 1);
        assert!(!daemon.has_ended());
    });
}

// --- results ---

#[test]
fn routes_are_those_of_the_options() {
    let gateway = json!([{"address": "10.60.0.50/24", "gateway": SERVER, "interface": 0}]);
    let cases = [
        (
            // Option 121 has 192.0.2.0/25 via .9 and the default route via .8. It overrides the
            // router .1 of option 3 and the route of option 33.
            json!({"33": "c00002800a3c0007", "121": "19c00002000a3c0009000a3c0008"}),
            json!({}),
            &gateway,
            json!([
                {"dst": "192.0.2.0/25", "gw": "10.60.0.9"}, {"dst": "0.0.0.0/0", "gw": "10.60.0.8"}
            ]),
        ),
        (
            // Option 33 has no masks: the mask follows from the address class (RFC 2132).
            json!({"33": "0a0000000a3c0007c00002000a3c0008"}),
            json!({}),
            &gateway,
            json!([
                {"dst": "10.0.0.0/8", "gw": "10.60.0.7"},
                {"dst": "192.0.2.0/24", "gw": "10.60.0.8"},
                {"dst": "0.0.0.0/0", "gw": SERVER},
            ]),
        ),
        (
            json!({"3": null}),
            json!({}),
            &json!([{"address": "10.60.0.50/24", "interface": 0}]),
            Value::Null,
        ),
        (
            json!({"33": "c00002000a3c0008"}),
            json!({"priority": 77}),
            &gateway,
            json!([
                {"dst": "192.0.2.0/24", "gw": "10.60.0.8", "priority": 77},
                {"dst": "0.0.0.0/0", "gw": SERVER, "priority": 77},
            ]),
        ),
    ];
    for_each_peer("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let _daemon = Daemon::start(lab);
        for (options, ipam, ips, routes) in &cases {
            let result = result_of(lab, ipam.clone(), options.clone());
            assert_eq!((&result["ips"], &result["routes"]), (*ips, routes), "{options}");
        }
    });
}

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

/// RFC 2131, table 5. The reference broadcasts the request.
#[test]
fn a_renewal_is_a_request_without_the_options_of_a_first_one() {
    for_ours_on_the_lan(|lab| {
        let server = Scripted::start(lab, short());
        lab.attach(&lab.container(), &conf()).add();
        let renewal = &server.wait_for(REQUEST, 2, 10)[1];
        assert_eq!((&renewal["to"], &renewal["from"]), (&json!("unicast"), &json!("10.60.0.50")));
        assert_eq!(renewal["ciaddr"], "10.60.0.50");
        assert_eq!((option(renewal, 50), option(renewal, 54)), (None, None));
        assert_eq!(option(renewal, 61), Some(hex(b"\0container-1/net1/eth0")));
        assert_eq!(option(renewal, 55).as_deref(), Some("0301"));
    });
}
