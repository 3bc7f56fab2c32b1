//! tuning: the kernel's state after ADD, the packets that show it, and a DEL that restores
//! everything. Sysctls and their names, the backup file, CHECK and the allowlist have modules of
//! their own.

pub mod allowlist;
mod backup;
mod check;
pub mod failed_add;
mod sysctl;

use super::*;
use crate::support::attachment::EVERY_VERSION;
use crate::support::networks::tuning::{MAC, chain, every_attribute, has_backup, sysctl, tuning};

/// Address, MTU, promiscuous, all multicast, queue length of a link.
pub fn attributes(container: &Namespace, link: &str) -> Value {
    let link = container.link(link).unwrap();
    let has = |flag: &str| link["flags"].as_array().unwrap().contains(&json!(flag));
    json!({"mac": link["address"], "mtu": link["mtu"], "promisc": has("PROMISC"), "allmulti": has("ALLMULTI"), "txQLen": link["txqlen"]})
}

/// ADD changes only the interface that CNI_IFNAME names.
#[test]
fn each_attribute_is_tuned_by_itself_from_either_place() {
    for_each_peer("tuning", |lab| {
        for (key, value) in every_attribute().as_object().unwrap() {
            for changes in [json!({key: value}), json!({key: null, "args": {"cni": {key: value}}})]
            {
                let chain = chain(lab, changes.clone());
                chain.container.sh("ip link add eth1 type veth peer name other");
                let before = Watch::start(lab, &[&chain.container]);
                let both = || ["eth0", "eth1"].map(|link| attributes(&chain.container, link));
                let [tuned, other] = both();
                let result = chain.add();
                assert_eq!(both(), [with(&tuned, json!({key: value})), other], "{changes}");
                chain.check(&result).ok();
                chain.del();
                before.assert_unchanged(&format!("ADD with {changes}"));
                chain.main.del();
            }
        }
    });
}

/// `args` take precedence over the network's own keys; an MTU of 0 and an empty address count as
/// unset.
#[test]
fn args_count_before_the_configuration() {
    for_each_peer("tuning", |lab| {
        let given = json!({"mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}});
        let conf = json!({"mac": "02:00:00:00:00:01", "mtu": 1300, "promisc": false, "allmulti": false, "txQLen": 5,
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "0", "net.ipv4.conf.IFNAME.log_martians": "1"}});
        let chain = chain(lab, with(&conf, json!({"args": {"cni": given}})));
        chain.add();
        assert_eq!(attributes(&chain.container, "eth0"), every_attribute());
        for name in ["arp_filter", "log_martians"] {
            assert_eq!(sysctl(&chain.container, &format!("ipv4/conf/eth0/{name}")), "1", "{name}");
        }
        chain.del();
        let nothing = json!({"args": {"cni": {"mac": "", "mtu": 0, "promisc": null}}, "runtimeConfig": {"mac": ""}});
        let chain = lab.chain_added(&bridge::conf(), &tuning(with(&conf, nothing)));
        let link = chain.container.link("eth0").unwrap();
        assert_eq!(link["mtu"], 1500);
        assert_eq!(link["address"], chain.result["interfaces"][2]["mac"]);
    });
}

#[test]
fn the_mac_comes_from_the_most_specific_source() {
    let cases = cells(
        r#"
{"mac": "02:00:00:00:00:04", "args": {"cni": {"mac": "02:00:00:00:00:01"}}, "runtimeConfig": {"mac": "02:00:00:00:00:02"}} | MAC=02:00:00:00:00:03 | 02:00:00:00:00:01
{"mac": "02:00:00:00:00:04", "RuntimeConfig": {"mac": "02:00:00:00:00:02"}} | MAC=02:00:00:00:00:03 | 02:00:00:00:00:02
{"mac": "02:00:00:00:00:04"} | IgnoreUnknown=1;K8S_POD_NAME=x;MAC=02:00:00:00:00:03 | 02:00:00:00:00:03
{"mac": "02:00:00:00:00:0A"} |  | 02:00:00:00:00:0a
"#,
    );
    for_each_peer("tuning", |lab| {
        for [changes, args, expected] in &cases {
            let chain = chain(lab, serde_json::from_str(changes).unwrap());
            let result = chain.clone().args(args).add();
            let link = chain.container.link("eth0").unwrap();
            assert_eq!(link["address"], *expected, "{changes} {args}");
            assert_eq!(result["interfaces"][2]["mac"], *expected, "{changes} {args}");
            chain.del_all();
        }
    });
}

#[test]
fn the_result_is_the_previous_one_with_the_new_address_and_mtu() {
    for_each_peer("tuning", |lab| {
        for version in EVERY_VERSION {
            let main = with(&bridge::conf(), json!({"cniVersion": version}));
            let chain = lab.chain(&main, &tuning(every_attribute()));
            let mut expected = chain.result.clone();
            if expected.get("interfaces").is_some() {
                expected["interfaces"][2]["mac"] = json!(MAC);
                if lab.peer == Peer::Ours && version >= Some("1.0.0") {
                    expected["interfaces"][2]["mtu"] = json!(1400);
                }
            }
            let result = chain.add();
            assert_eq!(result, expected, "{version:?}");
            if version >= Some("0.4.0") {
                chain.check(&result).ok();
            }
            chain.del_all();
            assert!(!has_backup(lab, &chain), "{version:?}");
        }
    });
}

/// An ADD with nothing to tune passes the result through and writes no file.
#[test]
fn nothing_to_tune_is_no_mistake() {
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, json!({"sysctl": {}, "mtu": 0, "mac": ""}));
        let before = Watch::start(lab, &[&chain.container]);
        assert_eq!(chain.add(), chain.result);
        chain.check(&chain.result).ok();
        before.assert_unchanged("nothing");
        chain.del();
    });
}

/// The neighbour learns the new address, and a packet longer than the MTU does not leave.
#[test]
fn packets_show_the_new_address_and_mtu() {
    for_each_peer("tuning", |lab| {
        let main = with(&bridge::conf(), json!({"isGateway": true}));
        let chain = lab.chain(&main, &tuning(json!({"mac": MAC, "mtu": 1400})));
        let fits = |size: u16| {
            let ping = format!("ping -c1 -W2 -M do -s {} 10.10.0.1", size - 28);
            chain.container.try_sh(&ping).status.success()
        };
        assert_pings(&chain.container, "10.10.0.1");
        assert!(fits(1500));
        chain.add();
        assert_pings(&chain.container, "10.10.0.1");
        assert!(fits(1400) && !fits(1401));
        let seen = || lab.host.json("ip -j neigh show 10.10.0.2")[0]["lladdr"].clone();
        assert_eq!(seen(), MAC);
        chain.del();
        assert_pings_with(&chain.container, "10.10.0.1", "-s 1472");
        assert_ne!(seen(), MAC);
        assert!(fits(1500));
    });
}

/// STATUS reports why ADD would fail. The reference has no STATUS.
#[test]
fn status_says_why_add_could_not_be_served() {
    for_ours("tuning", |lab| {
        let served = json!({"mtu": 1400, "sysctl": {"net.core.somaxconn": "5"}});
        let status = in_network(lab, &tuning(served));
        status.status().ok();
        lab.host
            .sh("touch /run/file && ln -s /run/cni /run/link && mkdir /run/fixed && mount -t tmpfs -o ro x /run/fixed");
        for (data_dir, code) in
            [("/run/file/x", 50), ("/run/fixed/x", 50), ("/run/link", 50), ("x", 7)]
        {
            status.clone().conf(json!({"dataDir": data_dir})).status().fails(code, "dataDir");
        }
        let nothing = json!({"dataDir": "/run/file/x", "mtu": null, "sysctl": null});
        status.conf(nothing).status().ok();
    });
}
