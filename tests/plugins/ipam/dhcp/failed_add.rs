//! A failed ADD ends in time, says why and leaves nothing. An offered address that another host uses
//! is declined, and another address is taken.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{alone, network, on_a_lan, on_each_lan};
use crate::support::attachment::{for_each_peer, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{
    DECLINE, DISCOVER, RELEASE, REQUEST, Scripted, option, wait_for_release,
};
use crate::support::dhcp::servers::{BOTH, Server};
use crate::support::dhcp::{Daemon, HASTY, JOURNAL, Kind, SOCKET, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::{conf, journal};
use crate::support::patience;
use crate::support::peers::each_case;

/// Expects ADD to fail with these words in its error and to leave everything as before. (The
/// reference leaves the link; only the state after DEL is compared for it.)
#[track_caller]
pub fn assert_fails(lab: &Lab, conf: &Value, words: &[&str]) {
    let (_, attachment, before) = lab.watched(conf);
    let text = attachment.try_add().err().text();
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    if lab.peer == Peer::Ours {
        before.assert_unchanged("the ADD that failed");
    }
    attachment.del(); // runtimes call DEL after a failed ADD
    before.assert_unchanged("the ADD that failed, after DEL");
}

/// A network with a scripted server, and a daemon with short timeouts.
fn hasty(lab: &Lab, script: Value) -> (Scripted, Daemon<'_>) {
    (network(lab, script), Daemon::with_flags(lab, &HASTY))
}

#[test]
fn no_server_answers() {
    for_each_peer("dhcp", |lab| {
        let (server, _daemon) = hasty(lab, json!({"discover": "silence"}));
        let start = Instant::now();
        assert_fails(lab, &conf(), &["no more tries"]);
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(2) && took < patience(9), "{took:?}");
        let asked = server.heard_of(DISCOVER).len();
        assert!((2..=6).contains(&asked), "asked {asked} times in three seconds");
    });
}

/// Nobody made the LAN's link a port of it. A container that was there before may be the server.
#[test]
fn a_bridge_without_an_uplink_is_named_in_time() {
    let told = "bridge \"br0\" has no port but containers'";
    let on_bridge = Kind::Bridge.conf();
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let daemon = Daemon::start(lab); // it searches for fifty seconds
        let start = Instant::now();
        assert_fails(lab, &on_bridge, &[told, "make the LAN's link a port of it"]);
        assert!(start.elapsed() < patience(12), "{:?}", start.elapsed());
        drop(daemon);
        let _daemon = Daemon::with_flags(lab, &HASTY);
        lab.added(&with(&on_bridge, json!({"name": "net2", "ipam": null})));
        assert_fails(lab, &on_bridge, &["no more tries", told]);
        lab.host.sh("ip addr add 10.60.0.9/24 dev br0"); // the host may be the server
        let outcome = lab.place(&on_bridge).1.try_add();
        assert!(!outcome.err().text().contains(told), "{outcome:?}");
    });
}

/// At boot containers may be there before systemd-networkd has made the uplink a port.
fn an_uplink_that_comes_after_the_container_is_waited_for(lab: &Lab) {
    let (_server, _daemon) = hasty(lab, json!({}));
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| lab.added(&Kind::Bridge.conf()).2);
        lab.host.sh("until ip link show br0; do sleep 0.1; done; sleep 4"); // longer than the search
        lab.host.sh("ip link set lan down master br0; sleep 0.3; ip link set lan up");
        assert_eq!(adding.join().unwrap()["ips"][0]["address"], "10.60.0.50/24");
    });
}

#[test]
fn the_request_stays_without_answer_or_is_refused() {
    for (answer, least) in [("silence", 2), ("nak", 1)] {
        for_each_peer("dhcp", |lab| {
            let (server, _daemon) = hasty(lab, json!({"request": answer}));
            assert_fails(lab, &conf(), &["no more tries"]);
            assert!(server.heard_of(REQUEST).len() >= least, "{answer}");
        });
    }
}

#[test]
fn an_acknowledgement_without_a_mask_is_given_back() {
    for_each_peer("dhcp", |lab| {
        let (server, _daemon) = hasty(lab, json!({"options": {"1": null}}));
        assert_fails(lab, &conf(), &["DHCP option Subnet Mask not found in DHCPACK"]);
        wait_for_release(lab, &server);
        assert!(server.heard_of(RELEASE).iter().all(|release| release["ciaddr"] == "10.60.0.50"));
    });
}

#[test]
fn a_slow_server_is_waited_for() {
    on_each_lan(json!({"delay": 1500}), |lab, _, _| {
        assert_eq!(ips(&lab.added(&conf()).2), ["10.60.0.50"]);
    });
}

#[test]
fn no_address_is_left() {
    for program in BOTH.into_iter().filter(|program| program.is_there()) {
        for_each_peer("dhcp", |lab| {
            let is_ours = lab.peer == Peer::Ours;
            lab.lan(Kind::Macvlan);
            let server = Server::start(lab, program, 50, 50);
            let _daemon = Daemon::with_flags(lab, &HASTY);
            let (_, first, result) = lab.added(&conf());
            assert_eq!(ips(&result), ["10.60.0.50"]);
            let (container, second) = lab.place(&conf());
            let text = second.try_add().err().text();
            assert!(text.contains("no more tries"), "{text}");
            if is_ours {
                assert!(container.link("eth0").is_none());
                // The journal is not compared as a whole: the first lease is renewed meanwhile.
                assert_eq!(journal(lab).len(), 1);
            }
            second.del();
            first.check_and_del(&result);
            if is_ours {
                server.assert_has_no_lease();
                assert_eq!(ips(&lab.added(&conf()).2), ["10.60.0.50"]);
            }
        });
    }
}

/// There never was one, or it was killed and has left its socket behind.
fn there_is_no_daemon(lab: &Lab) {
    lab.lan(Kind::Macvlan);
    let elsewhere = with(&conf(), json!({"ipam": {"daemonSocketPath": "/run/elsewhere.sock"}}));
    assert_fails(lab, &elsewhere, &["/run/elsewhere.sock"]);
    assert_fails(lab, &conf(), &[SOCKET, "cni-dhcp.socket", "cni-dhcp.service"]);
    Daemon::start(lab).kill();
    assert!(lab.path(SOCKET).exists());
    assert_fails(lab, &conf(), &[SOCKET, "cni-dhcp.service"]);
}

/// The runtime kills the plugin after a timeout: the daemon releases the lease. The reference's
/// daemon goes on, and keeps it.
#[test]
fn the_plugin_is_killed_while_it_waits() {
    on_a_lan(json!({"request": "silence"}), |lab, server, _| {
        let mut plugin = lab.place(&conf()).1.call("ADD", None).spawn();
        server.wait_for(REQUEST, 1, 5);
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        wait_until("the daemon forgets", 5, || journal(lab).is_empty());
        let asked = server.heard_of(REQUEST).len();
        // The server may have granted the lease although its answer was lost.
        server.wait_for(RELEASE, 1, 5);
        server.change(json!({"request": "ack"}));
        lab.added(&conf());
        assert_eq!(server.heard_of(REQUEST).len(), asked + 1, "nothing goes on for the dead one");
    });
}

fn the_interface_is_not_there(lab: &Lab) {
    let (server, _daemon) = hasty(lab, json!({}));
    assert_fails(lab, &alone(), &["eth0", "ptp"]);
    assert!(server.heard().is_empty());
}

/// A configuration error names its path, and no packet is sent.
fn a_mistake_in_the_configuration(lab: &Lab) {
    let (server, _daemon) = hasty(lab, json!({}));
    for (key, value, words) in [
        ("provide", json!([{"option": "256"}]), ["ipam.provide[0].option", "256"]),
        ("daemonSocketPath", json!("run/dhcp.sock"), ["ipam.daemonSocketPath", "run/dhcp.sock"]),
    ] {
        assert_fails(lab, &with(&conf(), json!({"ipam": {key: value}})), &words);
    }
    assert!(server.heard().is_empty(), "{:?}", server.heard());
}

/// If the daemon cannot write a new lease to its journal, it releases the lease: after a crash the
/// lease would have no owner.
fn the_disk_is_full(lab: &Lab) {
    let server = network(lab, json!({"lease": 4}));
    lab.host.sh(&format!(
        "mkdir -p {JOURNAL}; mount -t tmpfs -o size=16k,nr_inodes=64,mode=0700 full {JOURNAL}"
    ));
    let mut daemon = Daemon::with_flags(lab, &HASTY);
    let (_, kept, result) = lab.added(&conf());
    lab.host.sh(&format!("dd if=/dev/zero of={JOURNAL}/filler bs=1k 2>/dev/null || true"));
    let renewed = server.heard_of(REQUEST).len();
    let error = lab.place(&conf()).1.try_add().err().text();
    assert!(error.to_lowercase().contains("no space left"), "{error}");
    // The existing lease is renewed although the disk is full.
    server.wait_for(REQUEST, renewed + 1, 8);
    lab.host.sh(&format!("rm {JOURNAL}/filler"));
    lab.added(&conf());
    kept.check(&result).ok();
    assert!(!daemon.has_ended());
}

// --- an offered address that another host uses ---

/// The host of the server has the first address too.
fn with_a_taken_address(kind: Kind, script: Value, flags: &[&str], case: impl Fn(&Lab, &Scripted)) {
    for_ours("dhcp", |lab| {
        if !kind.is_in(lab) {
            return skip("ipvlan");
        }
        lab.lan(kind);
        lab.outside.sh("ip addr add 10.60.0.50/24 dev lan");
        let server = Scripted::start(lab, script.clone());
        let _daemon = Daemon::with_flags(lab, flags);
        case(lab, &server);
    });
}

#[test]
fn an_address_that_answers_is_declined_and_the_next_one_taken() {
    with_a_taken_address(Kind::Macvlan, json!({}), &[], |lab, server| {
        assert_eq!(ips(&lab.added(&conf()).2), ["10.60.0.51"]);
        let declined = server.heard_of(DECLINE);
        assert_eq!(declined.len(), 1, "{declined:?}");
        assert_eq!(option(&declined[0], 50).as_deref(), Some("0a3c0032"));
        assert_eq!(option(&declined[0], 54).as_deref(), Some("0a3c0001"));
        assert_eq!(declined[0]["ciaddr"], "0.0.0.0");
    });
}

/// The ten-second pause after a DECLINE (RFC 2131) is longer than the timeout set by these flags.
#[test]
fn an_address_in_use_and_no_time_for_another_is_an_error() {
    let only = json!({"addresses": ["10.60.0.50"]});
    with_a_taken_address(Kind::Macvlan, only, &HASTY, |lab, _| {
        assert_fails(lab, &conf(), &["10.60.0.50"]);
    });
}

/// All links of a master answer with its hardware address, so a probe could not identify another
/// owner.
#[test]
fn no_probe_is_sent_on_ipvlan() {
    with_a_taken_address(Kind::Ipvlan, json!({}), &[], |lab, server| {
        assert_eq!(ips(&lab.added(&Kind::Ipvlan.conf()).2), ["10.60.0.50"]);
        assert!(server.heard_of(DECLINE).is_empty());
    });
}

each_case! { |case| for_ours("dhcp", case);
    an_uplink_that_comes_after_the_container_is_waited_for
    there_is_no_daemon
    the_interface_is_not_there
    a_mistake_in_the_configuration
    the_disk_is_full
}
