//! `cni-multi dhcp leases`, `release` and `metrics` and the log of the daemon.

use serde_json::{Value, json};

use super::{on_a_lan, short};
use crate::support::attachment::for_ours;
use crate::support::dhcp::scripted::{RELEASE, REQUEST};
use crate::support::dhcp::{SOCKET, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::{conf, journal};

fn succeed(lab: &Lab, args: &[&str]) -> String {
    let outcome = lab.dhcp(args);
    assert_eq!(outcome.status, 0, "{args:?}: {outcome:?}");
    outcome.stdout
}

#[test]
fn leases_are_listed() {
    on_a_lan(json!({"lease": 600}), |lab, _, _| {
        let listed =
            || -> Value { serde_json::from_str(&succeed(lab, &["leases", "-o", "json"])).unwrap() };
        assert_eq!(listed(), json!([]));
        let (first, second) = (lab.container(), lab.container());
        lab.attach(&first, &conf()).add();
        lab.attach(&second, &conf()).ifname("net0").add();
        let text = succeed(lab, &["leases"]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows.len(), 2, "{text}");
        for (row, (key, address)) in rows.iter().zip([
            ("container-1/net1/eth0", "10.60.0.50/24"),
            ("container-2/net1/net0", "10.60.0.51/24"),
        ]) {
            assert!(row.contains(key) && row.contains(address) && row.contains("bound"), "{row}");
        }
        let leases = listed();
        assert_eq!(leases[0]["key"], "container-1/net1/eth0");
        assert_eq!(leases[0]["address"], "10.60.0.50/24");
        assert_eq!(leases[0]["server"], "10.60.0.1");
        assert_eq!(leases[0]["state"], "bound");
        assert_eq!(leases[1]["key"], "container-2/net1/net0");
    });
}

#[test]
fn a_lease_is_released_by_its_key() {
    on_a_lan(json!({"lease": 600}), |lab, server, _| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        let result = attachment.add();
        let error = lab.dhcp(&["release", "container-9/net1/eth0"]);
        assert_ne!(error.status, 0);
        assert!(error.stderr.contains("container-9/net1/eth0"), "{error:?}");
        succeed(lab, &["release", "container-1/net1/eth0"]);
        assert_eq!(server.wait_for(RELEASE, 1, 5)[0]["ciaddr"], "10.60.0.50");
        assert_eq!(container.addresses("eth0"), [""; 0], "the address may be another's soon");
        assert_eq!(journal(lab), [""; 0]);
        attachment.check(&result).err();
        attachment.del();
        assert_eq!(server.heard_of(RELEASE).len(), 1);
    });
}

/// The value of a metric; the name includes its labels as printed.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_count() {
    on_a_lan(json!({"lease": 600}), |lab, server, _| {
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        server.change(json!({"before": ["garbage", "short"]}));
        let second = lab.attach(&lab.container(), &conf());
        second.add();
        second.del();
        let text = succeed(lab, &["metrics"]);
        for line in text.lines() {
            let is_a_sample =
                line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
            assert!(line.starts_with("# ") || is_a_sample, "{line:?} is not of the format");
        }
        assert_eq!(metric(&text, "cni_dhcp_leases{state=\"bound\"}"), Some(1.0), "{text}");
        assert_eq!(metric(&text, "cni_dhcp_packets_sent_total"), Some(5.0), "{text}");
        assert_eq!(metric(&text, "cni_dhcp_packets_received_total"), Some(4.0), "{text}");
        assert!(
            metric(&text, "cni_dhcp_packets_malformed_total").is_some_and(|count| count >= 2.0),
            "{text}"
        );
        assert_eq!(metric(&text, "cni_dhcp_acquire_failures_total"), Some(0.0), "{text}");
    });
}

#[test]
fn without_a_daemon_the_error_names_the_socket() {
    for_ours("dhcp", |lab| {
        for args in [&["leases"][..], &["metrics"], &["release", "a/b/c"]] {
            let outcome = lab.dhcp(args);
            assert_eq!(outcome.status, 1, "{outcome:?}");
            assert!(
                outcome.stderr.contains(SOCKET) && outcome.stderr.contains("cni-dhcp.service"),
                "{outcome:?}"
            );
            assert_eq!(outcome.stdout, "");
        }
    });
}

/// `cni-multi dhcp daemon` is the same as `dhcp daemon`.
#[test]
fn the_daemon_starts_by_either_name() {
    for_ours("dhcp", |lab| {
        let output = lab
            .host
            .try_sh(&format!("{} dhcp daemon -nonsense", crate::support::call::binary().display()));
        assert_eq!(output.status.code(), Some(2));
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("-resendtimeout"), "{log}");
    });
}

/// One line for each transition, in a format that programs can parse.
#[test]
fn each_transition_is_a_line_of_the_log() {
    on_a_lan(short(), |lab, server, daemon| {
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        server.wait_for(REQUEST, 2, 5);
        attachment.del();
        let of_lease = || -> Vec<String> {
            let log = daemon.log();
            let lines = log.lines().filter(|line| line.contains("lease=container-1/net1/eth0"));
            lines.map(str::to_owned).collect()
        };
        wait_until("the end is told", 3, || {
            of_lease().iter().any(|line| line.contains("state=released"))
        });
        let lines = of_lease();
        let at = |state: &str| {
            let found = lines.iter().position(|line| line.contains(&format!("state={state}")));
            found.unwrap_or_else(|| panic!("no {state} in {lines:#?}"))
        };
        assert!(at("bound") < at("renewing") && at("renewing") < at("released"), "{lines:#?}");
        let bound = &lines[at("bound")];
        assert!(
            bound.contains("address=10.60.0.50/24") && bound.contains("server=10.60.0.1"),
            "{bound}"
        );
    });
}
