//! sbr: packets leave by the interface that owns their source address.

mod del;
mod failed_add;
mod options;
mod repair;

use super::*;
use crate::support::networks::bandwidth;
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::sbr::{attach, first, rules, second, two_uplinks};

/// The destinations in a table that are reached by `ifname`, sorted; empty if the table is missing.
pub fn routes(container: &Namespace, family: u8, table: &str, ifname: &str) -> Vec<String> {
    let listed =
        container.try_sh(&format!("ip -{family} -j route show table {table} dev {ifname}"));
    let found: Value = match listed.status.success() {
        true => serde_json::from_slice(&listed.stdout).unwrap(),
        false => json!([]),
    };
    let text = |route: &Value| route["dst"].as_str().unwrap().to_owned();
    let mut found: Vec<String> = found.as_array().unwrap().iter().map(text).collect();
    found.sort();
    found
}

pub fn pair(address: &str, table: &str) -> (String, String) {
    (address.to_owned(), table.to_owned())
}

/// The outside has routes to both subnets, and the host drops packets on one uplink that carry the
/// other uplink's source address, as real uplinks do.
fn with_uplinks_that_check_sources(lab: &Lab) {
    lab.outside.sh("ip route add 10.10.0.0/24 via 198.51.100.1; ip route add 10.20.0.0/24 via 198.51.100.1; \
         ip route add 2001:db8:10::/64 via 2001:db8:ffff::1; ip route add 2001:db8:20::/64 via 2001:db8:ffff::1");
    lab.host.sh(r#"nft -f - <<'END'
table inet uplinks {
  chain forward { type filter hook forward priority 0;
    iifname br0 ip saddr 10.20.0.0/24 drop; iifname br0 ip6 saddr 2001:db8:20::/64 drop;
    iifname br1 ip saddr 10.10.0.0/24 drop; iifname br1 ip6 saddr 2001:db8:10::/64 drop; }
}
END"#);
}

#[test]
fn a_reply_leaves_by_the_interface_that_the_request_came_in_by() {
    for_each_peer("sbr", |lab| {
        let (_container, sbr) = two_uplinks(lab, json!({}));
        with_uplinks_that_check_sources(lab);
        ["10.10.0.2", "2001:db8:10::2"].iter().for_each(|ip| assert_pings(&lab.outside, ip));
        let own = ips(&sbr.result);
        own.iter().for_each(|ip| assert_no_ping(&lab.outside, ip));
        sbr.add();
        own.iter().for_each(|ip| assert_pings(&lab.outside, ip));
        ["10.10.0.2", "2001:db8:10::2"].iter().for_each(|ip| assert_pings(&lab.outside, ip));
        sbr.del();
        own.iter().for_each(|ip| assert_no_ping(&lab.outside, ip));
    });
}

#[test]
fn each_address_gets_a_table_with_the_interface_s_routes() {
    for_each_peer("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        let of_eth0 = || [4, 6].map(|family| routes(&container, family, "main", "eth0"));
        let before = of_eth0();
        let result = sbr.add();
        assert_eq!(result, sbr.result, "the result is that of the plugin before");
        assert_eq!(rules(&container), [pair("10.20.0.2", "100"), pair("2001:db8:20::2", "101")]);
        let v4 = routes(&container, 4, "100", "net1");
        assert_eq!(v4, ["10.20.0.0/24", "10.77.0.0/16", "default"]);
        let v6 = routes(&container, 6, "101", "net1");
        for dst in ["2001:db8:20::/64", "default", "fe80::/64"] {
            assert!(v6.iter().any(|found| found == dst), "{dst} is not in {v6:?}");
        }
        assert_eq!(routes(&container, 4, "main", "net1"), [""; 0]);
        assert!(!routes(&container, 6, "main", "net1").iter().any(|dst| dst.starts_with("2001")));
        assert_eq!(of_eth0(), before);
        let default = container.json("ip -j route show table 100 default")[0].clone();
        assert_eq!(default["gateway"], "10.20.0.1");
    });
}

#[test]
fn routes_keep_their_attributes() {
    for_each_peer("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        // The reference's library does not support router preference.
        let preference = if lab.peer == Peer::Ours { "high" } else { "medium" };
        container.sh(&format!(
            "ip route add 10.78.0.0/16 via 10.20.0.1 dev net1 src 10.20.0.2 metric 7 mtu 1300 advmss 1200 proto static; \
             ip route add 2001:db8:78::/48 via 2001:db8:20::1 dev net1 metric 7 mtu 1300 proto static pref {preference}",
        ));
        let whole = |family: u8, table: &str, dst: &str| {
            let route = container
                .json(&format!("ip -{family} -j -d route show table {table} {dst}"))[0]
                .clone();
            with(&route, json!({"table": null}))
        };
        let before = (whole(4, "main", "10.78.0.0/16"), whole(6, "main", "2001:db8:78::/48"));
        sbr.add();
        let after = (whole(4, "100", "10.78.0.0/16"), whole(6, "101", "2001:db8:78::/48"));
        assert_eq!(after, before);
        assert_eq!(before.0["metrics"][0]["mtu"], 1300);
    });
}

#[test]
fn two_addresses_of_a_family_get_two_tables() {
    let addresses = json!([
        {"address": "10.20.0.5/24", "gateway": "10.20.0.1"},
        {"address": "10.30.0.5/24", "gateway": "10.30.0.1"},
    ]);
    let conf = static_ipam(
        &with(&second(), json!({"isGateway": null})),
        addresses,
        json!([{"dst": "10.79.0.0/16", "gw": "10.30.0.9"}]),
    );
    for_each_peer("sbr", |lab| {
        let container = lab.container();
        attach(lab, &container, &conf, "net1").add();
        assert_eq!(rules(&container), [pair("10.30.0.5", "101"), pair("10.20.0.5", "100")]);
        let of_second = ["10.30.0.0/24", "10.79.0.0/16", "default"];
        assert_eq!(routes(&container, 4, "100", "net1"), ["10.20.0.0/24", "default"]);
        assert_eq!(routes(&container, 4, "101", "net1"), of_second);
        let gateway = |table: u32| {
            container.json(&format!("ip -j route show table {table} default"))[0]["gateway"].clone()
        };
        assert_eq!((gateway(100), gateway(101)), (json!("10.20.0.1"), json!("10.30.0.1")));
    });
}

/// Each network has a default route for its interface. The kernel merges the IPv6 ones into one
/// route with two hops.
#[test]
fn of_two_default_routes_each_goes_with_its_interface() {
    let defaults = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let conf =
        |base: Value| with(&base, json!({"isDefaultGateway": null, "ipam": {"routes": defaults}}));
    // The reference does not move a multipath route.
    for_ours("sbr", |lab| {
        let container = lab.container();
        lab.attach(&container, &conf(first())).add();
        let sbr = attach(lab, &container, &conf(second()), "net1");
        let via = |table: &str| {
            ["ip", "ip -6"].map(|ip| {
                container.sh(&format!("{ip} route show default table {table} 2>/dev/null || true"))
            })
        };
        let main = via("main");
        assert!(main.iter().all(|routes| routes.matches(" dev ").count() == 2), "{main:?}");
        sbr.add();
        let main = via("main");
        let is_of_eth0 = |routes: &String| routes.contains("eth0") && !routes.contains("net1");
        assert!(main.iter().all(is_of_eth0), "{main:?}");
        assert_eq!(routes(&container, 4, "100", "net1"), ["10.20.0.0/24", "default"]);
        assert!(via("100")[0].contains("10.20.0.1 dev net1"));
        assert!(via("101")[1].contains("2001:db8:20::1 dev net1"));
        with_uplinks_that_check_sources(lab);
        for ip in ["10.10.0.2", "2001:db8:10::2", "10.20.0.2", "2001:db8:20::2"] {
            assert_pings(&lab.outside, ip);
        }
        sbr.check(&sbr.result).ok();
    });
}

#[test]
fn a_configured_table_gets_rules_only() {
    for_each_peer("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({"table": 5000}));
        let before = [4, 6].map(|family| routes(&container, family, "main", "net1"));
        sbr.add();
        assert_eq!(rules(&container), [pair("10.20.0.2", "5000"), pair("2001:db8:20::2", "5000")]);
        assert_eq!([4, 6].map(|family| routes(&container, family, "main", "net1")), before);
        assert_eq!(routes(&container, 4, "5000", "net1"), [""; 0]);
        sbr.check(&sbr.result).ok();
        container.sh("ip route add default via 10.20.0.1 dev net1 table 5000");
        sbr.del();
        assert_eq!(rules(&container), []);
        let left = routes(&container, 4, "5000", "net1");
        assert_eq!(left, ["default"], "the table is the configuration's");
    });
}

#[test]
fn routes_of_a_ptp_link_move_as_well() {
    let first = bandwidth::network();
    let other = json!({"name": "net2", "ipam": {"ranges": second()["ipam"]["ranges"]}});
    let other = with(&first, other);
    for_each_peer("sbr", |lab| {
        bridge::warm_up(lab, &first);
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let both = [(&first, "eth0"), (&other, "net1")].map(|(main, ifname)| {
            let sbr = attach(lab, &container, main, ifname);
            sbr.add();
            sbr
        });
        for sbr in &both {
            ips(&sbr.result).iter().for_each(|ip| assert_pings(&lab.host, ip));
            if lab.peer == Peer::Ours {
                sbr.check(&sbr.result).ok();
                sbr.main.check(&sbr.result).ok();
            }
        }
        both.iter().rev().for_each(|sbr| sbr.del_all());
        before.assert_unchanged("ADD");
    });
}

/// The kernel keeps link-local routes in the main table. Connections that name the interface need
/// them there.
#[test]
fn link_local_neighbours_stay_within_reach() {
    // The reference removes the route; see tests/differences.
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        let address = lab.host.sh("ip -6 -o addr show dev br1 scope link | grep -o 'fe80::[^/]*'");
        let neighbour = format!("{}%net1", address.trim());
        assert_pings(&container, &neighbour);
        sbr.add();
        assert_pings(&container, &neighbour);
    });
}

#[test]
fn interfaces_that_are_attached_at_once_get_tables_of_their_own() {
    let numbers = 20..26;
    for_each_peer("sbr", |lab| {
        let container = lab.container();
        let attach_one = |number: u8| {
            let ipam =
                json!({"ranges": [[{"subnet": format!("10.{number}.0.0/24")}]], "routes": null});
            let changes = json!({"name": format!("net{number}"), "bridge": format!("br{number}"), "ipam": ipam});
            attach(lab, &container, &with(&second(), changes), &format!("net{number}"))
        };
        let all: Vec<Chained<'_>> = numbers.clone().map(attach_one).collect();
        std::thread::scope(|scope| all.iter().for_each(|sbr| drop(scope.spawn(|| sbr.add()))));
        let found = rules(&container);
        let mut tables: Vec<&str> = found.iter().map(|(_, table)| table.as_str()).collect();
        tables.sort_unstable();
        assert_eq!(tables, ["100", "101", "102", "103", "104", "105"]);
        for (source, table) in &found {
            let ifname = format!("net{}", &source[3..5]);
            assert_eq!(routes(&container, 4, table, &ifname).len(), 2, "{ifname}: table {table}");
        }
    });
}

#[test]
fn check_finds_what_has_changed() {
    let cases = broken::rows(
        r#"
v4 rule removed | ip rule del from 10.20.0.2 | 10.20.0.2
v6 rule removed | ip -6 rule del from 2001:db8:20::2 lookup 101 | 2001:db8:20::2
table emptied | ip route flush table 100 | table 100
default route removed | ip route del default table 100 | 10.20.0.1
v6 default route removed | ip -6 route del default table 101 | 2001:db8:20::1
route in main again | ip route add 10.20.0.0/24 dev net1 | 10.20.0.0/24
link down and up | ip link set net1 down; ip link set net1 up | table 100
link gone | ip link del net1 | net1
"#,
    );
    // The reference's CHECK verifies nothing; see tests/differences.
    for case in &cases {
        for_ours("sbr", |lab| {
            let (container, sbr) = two_uplinks(lab, json!({}));
            assert_check_finds(lab, &container, &sbr, case);
        });
    }
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({"table": 5000}));
        let result = sbr.add();
        sbr.main.check(&result).ok(); // the main plugin accepts what sbr did
        container.sh("ip rule del from 10.20.0.2; ip rule add from 10.20.0.2 lookup 77");
        sbr.check(&result).fails(103, "no rule leads what 10.20.0.2 sends to table 5000");
    });
}
