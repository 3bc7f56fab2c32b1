//! bridge CHECK succeeds while all is as ADD left it and fails for every change.

use serde_json::json;

use crate::support::attachment::{for_each_peer, interface, with};
use crate::support::call::Peer;
use crate::support::networks::bridge::{conf, dual_stack};

#[test]
fn check_finds_what_has_changed() {
    /// A command that breaks the attachment, in the container or on the host (`$port` is the host's
    /// end), and the text that the error must contain.
    struct Case {
        what: &'static str,
        container: &'static str,
        host: &'static str,
        names: &'static str,
    }
    let cases = [
        Case {
            what: "v4 address removed",
            container: "ip addr del 10.10.0.2/24 dev eth0",
            host: "",
            names: "10.10.0.2",
        },
        Case {
            what: "v6 address removed",
            container: "ip addr del 2001:db8:10::2/64 dev eth0",
            host: "",
            names: "2001:db8:10::2",
        },
        Case {
            what: "v4 route removed",
            container: "ip route del 10.99.0.0/16",
            host: "",
            names: "10.99.0.0",
        },
        Case {
            what: "v6 route removed",
            container: "ip -6 route del 2001:db8:99::/48",
            host: "",
            names: "2001:db8:99::",
        },
        Case { what: "link down", container: "ip link set eth0 down", host: "", names: "eth0" },
        Case {
            what: "link renamed",
            container: "ip link set eth0 down; ip link set eth0 name eth9",
            host: "",
            names: "eth0",
        },
        Case {
            what: "mac changed",
            container: "ip link set eth0 address 02:00:00:00:00:01",
            host: "",
            names: "eth0",
        },
        Case {
            what: "port without bridge",
            container: "true",
            host: "ip link set $port nomaster",
            names: "veth",
        },
        Case {
            what: "wrong bridge",
            container: "true",
            host: "ip link add br9 type bridge; ip link set $port master br9",
            names: "veth",
        },
        Case { what: "bridge deleted", container: "true", host: "ip link del br0", names: "br0" },
    ];
    for_each_peer("bridge", |lab| {
        for case in &cases {
            let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
            let container = lab.container();
            // A fixed address, because the error must name it.
            let fixed = with(
                &dual_stack(),
                json!({"ipam": {"routes": routes, "dataDir": format!("/run/{}", case.what.replace(' ', "-"))}}),
            );
            let attachment = lab.attach(&container, &fixed);
            let result = attachment.add();
            attachment.check(&result).ok();
            container.sh(case.container);
            lab.host.sh(&format!(
                "port={}; {}",
                interface(&result, 1),
                if case.host.is_empty() { "true" } else { case.host }
            ));
            let outcome = attachment.check(&result);
            assert_ne!(outcome.status, 0, "CHECK does not see: {}", case.what);
            let error = outcome.err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 103, "{}: {error:?}", case.what);
                assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
            }
            attachment.del();
            lab.host.try_sh("ip link del br0; ip link del br9"); // the case left one of them
        }
    });
}

#[test]
fn check_refuses_another_namespace() {
    for_each_peer("bridge", |lab| {
        let attachment = lab.attach(&lab.container(), &conf());
        let result = attachment.add();
        let elsewhere = lab.container();
        attachment.clone().netns(Some(&elsewhere.netns)).check(&result).err();
        elsewhere.vanish();
        attachment.netns(Some(&elsewhere.netns)).check(&result).err();
    });
}
