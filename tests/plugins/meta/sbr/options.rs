//! sbr: gateways of the configuration, and routes to the subnets that stay in the main table.

use super::*;

fn default_gateways(container: &Namespace) -> [Value; 2] {
    ["ip -j route show table 100 default", "ip -6 -j route show table 101 default"].map(|command| {
        let found = container.json(command);
        assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
        found[0]["gateway"].clone()
    })
}

/// Also where the interface has a default route by another gateway. One of one family leaves the other's.
#[test]
fn configured_gateways_replace_those_of_the_result() {
    let defaults =
        with(&second(), json!({"ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}));
    let both = ["10.20.0.9", "2001:db8:20::9"];
    for (main, gateways, expected) in [
        (second(), &both[..], both),
        (defaults, &both, both),
        (second(), &both[1..], ["10.20.0.1", both[1]]),
    ] {
        for_ours("sbr", |lab| {
            let container = lab.container();
            let keys = json!({"gateways": gateways});
            let sbr = attach(lab, &container, &main, "net1").changed(keys);
            assert_eq!(sbr.add(), sbr.result);
            assert_eq!(default_gateways(&container), expected.map(Value::from));
            sbr.check(&sbr.result).ok();
            if gateways.len() == 2 {
                container.sh("ip route replace default via 10.20.0.1 dev net1 table 100");
                sbr.check(&sbr.result).fails(103, "no default route through 10.20.0.9");
            }
        });
    }
}

/// Without the hints the packets leave by the first interface, which has the default routes.
#[test]
fn an_unbound_socket_reaches_the_subnet_with_source_hints() {
    let towards = |container: &Namespace| {
        ["ip -j route get 10.20.0.77", "ip -6 -j route get 2001:db8:20::77"].map(|command| {
            let route = container.json(command)[0].clone();
            (route["dev"].clone(), route["prefsrc"].clone())
        })
    };
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({"addSourceHints": true}));
        sbr.add();
        let sources = ["10.20.0.2", "2001:db8:20::2"].map(|own| (json!("net1"), json!(own)));
        assert_eq!(towards(&container), sources);
        assert_eq!(routes(&container, 4, "main", "net1"), ["10.20.0.0/24"]);
        let own = routes(&container, 4, "100", "net1");
        assert_eq!(own, ["10.20.0.0/24", "10.77.0.0/16", "default"]);
        sbr.check(&sbr.result).ok();
        sbr.main.check(&sbr.result).ok();
        sbr.del_all();
    });
}

/// The subnet of a ptp link is behind its gateway.
#[test]
fn source_hints_of_a_ptp_link_lead_by_its_gateway() {
    for_ours("sbr", |lab| {
        let container = lab.container();
        let sbr = attach(lab, &container, &bandwidth::network(), "eth0")
            .changed(json!({"addSourceHints": true}));
        sbr.add();
        assert_eq!(routes(&container, 4, "main", "eth0"), ["10.10.0.0/24", "10.10.0.1"]);
        assert_pings(&container, "10.10.0.1");
        sbr.check(&sbr.result).ok();
    });
}
