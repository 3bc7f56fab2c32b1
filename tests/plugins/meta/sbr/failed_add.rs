//! sbr ADD that fails: an error that helps, and everything as it was.

use serde_json::{Value, json};

use super::{attach, first, second};
use crate::plugins::main::bridge::static_ipam;
use crate::support::attachment::{for_ours, with};
use crate::support::snapshot::Watch;

struct Case {
    what: &'static str,
    /// Of the second interface.
    main: Value,
    /// To sbr's configuration.
    changes: Value,
    host: &'static str,
    container: &'static str,
    code: u64,
    names: &'static str,
}

fn case(what: &'static str, changes: Value, code: u64, names: &'static str) -> Case {
    Case { what, main: second(), changes, host: "true", container: "true", code, names }
}

fn cases() -> Vec<Case> {
    // The second address's gateway is nowhere: the first one's table and rule are made by then.
    let unreachable = static_ipam(
        &with(&second(), json!({"isGateway": null})),
        json!([{"address": "10.20.0.5/24", "gateway": "10.20.0.1"}, {"address": "10.30.0.5/24", "gateway": "10.99.0.1"}]),
        json!([]),
    );
    let kernel_s = "is a table of the kernel, expected 1 to 252 or 256 to 4294967295";
    vec![
        case("not chained", json!({"prevResult": null}), 7, "prevResult"),
        case("no addresses", json!({"prevResult": {"ips": []}}), 7, "prevResult.ips"),
        case("prevResult of another version", json!({"prevResult": {"cniVersion": "0.4.0"}}), 6, "prevResult"),
        case("table unspec", json!({"table": 0}), 7, "table: 0 is out of range"),
        case("table negative", json!({"table": -1}), 7, "table: -1 is out of range"),
        case("table too large", json!({"table": 4294967296u64}), 7, "table: 4294967296 is out of range"),
        case("table default", json!({"table": 253}), 7, kernel_s),
        case("table main", json!({"table": 254}), 7, kernel_s),
        case("table local", json!({"table": 255}), 7, kernel_s),
        case("table is no number", json!({"table": "main"}), 6, "table"),
        Case {
            container: "ip link set net1 down; ip link set net1 name other",
            ..case("no such interface", json!({}), 100, "net1")
        },
        Case { container: "ip link set net1 down", ..case("interface is down", json!({}), 100, "10.20.0.1") },
        Case {
            container: "ip rule add from 10.20.0.2 lookup 77",
            ..case("address has a rule", json!({}), 102, "10.20.0.2 has a rule already: it leads to table 77")
        },
        Case {
            container: "ip -6 rule add from 2001:db8:20::2 lookup 5000",
            ..case("address has the rule", json!({"table": 5000}), 102, "2001:db8:20::2")
        },
        Case { main: unreachable.clone(), ..case("gateway unreachable", json!({}), 100, "10.99.0.1") },
        Case {
            host: "mkdir -p /run/cni && : > /run/cni/sbr",
            ..case("nothing can be kept", json!({}), 5, "/run/cni/sbr")
        },
        // The kernel cannot remove what changes under our hands; it refuses to add what is not the interface's.
        Case {
            container: "ip -6 addr del 2001:db8:20::2/64 dev net1; ip -6 route add 2001:db8:20::/64 dev net1",
            main: with(
                &unreachable,
                json!({"ipam": {"addresses": [
                    {"address": "10.20.0.5/24", "gateway": "10.20.0.1"},
                    {"address": "2001:db8:20::2/64", "gateway": "2001:db8:99::1"},
                ]}}),
            ),
            ..case("IPv6 gateway unreachable", json!({}), 100, "2001:db8:99::1")
        },
    ]
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for case in cases() {
        for_ours("sbr", |lab| {
            let container = lab.container();
            lab.attach(&container, &first()).add();
            let sbr = attach(lab, &container, &case.main, "net1", case.changes.clone());
            lab.host.sh(case.host);
            container.sh(case.container);
            let before = Watch::start(lab, &[&container]);
            let error = sbr.try_add().err();
            assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
            assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
            assert!(!error.details.contains("undo:"), "{}: {error:?}", case.what);
            before.assert_unchanged(case.what);
        });
    }
}

#[test]
fn a_second_add_is_refused_and_changes_nothing() {
    // The reference's leaves a rule: see differences.rs.
    for table in [json!({}), json!({"table": 5000})] {
        for_ours("sbr", |lab| {
            let (container, sbr) = super::two_uplinks(lab, table.clone());
            let result = sbr.add();
            let before = Watch::start(lab, &[&container]);
            assert_eq!(sbr.try_add().err().code, 102);
            before.assert_unchanged("the second ADD");
            sbr.check(&result).ok();
            sbr.del();
        });
    }
}
