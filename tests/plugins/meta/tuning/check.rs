//! CHECK compares the kernel's values with the requested ones, and with nothing else.

use serde_json::json;

use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::broken;
use crate::support::broken::assert_check_finds;
use crate::support::call::Peer;
use crate::support::networks::tuning::{chain, every_attribute, sysctl};

#[test]
fn check_finds_what_has_changed() {
    let cases = broken::rows(
        r#"
mac | ip link set eth0 address 02:00:00:00:00:99 | Ethernet of eth0 is 02:00:00:00:00:42, current value is 02:00:00:00:00:99
mtu | ip link set eth0 mtu 1300 | MTU of eth0 is 1400, current value is 1300
promisc | ip link set eth0 promisc off | promisc is true, current value is false
allmulti | ip link set eth0 allmulticast off | all-multicast mode of eth0 is true, current value is false
txQLen | ip link set eth0 txqueuelen 5 | Transmit Queue Length of eth0 is 77, current value is 5
sysctl of the link | echo 0 > /proc/sys/net/ipv4/conf/eth0/arp_filter | net/ipv4/conf/eth0/arp_filter is 1, current value is 0
sysctl of the namespace | echo 5 > /proc/sys/net/core/somaxconn | net/core/somaxconn is 99, current value is 5
link gone | ip link del eth0 | eth0
"#,
    );
    for_each_peer("tuning", |lab| {
        let sysctls =
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "99"}});
        for case in &cases {
            let chain = chain(lab, with(&every_attribute(), sysctls.clone()));
            assert_check_finds(lab, &chain.container, &chain, case);
            chain.del_all();
        }
    });
}

/// This holds for values given in `args` alone, too.
#[test]
fn check_goes_by_the_same_values_as_add() {
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1300, "args": {"cni": {"mtu": 1400}}}));
        let result = chain.add();
        chain.check(&result).ok();
        chain.clone().conf(json!({"args": null})).check(&result).err();
        chain.clone().conf(json!({"args": null, "mtu": null})).check(&result).ok();
    });
}

#[test]
fn check_needs_a_previous_result_and_a_namespace() {
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, every_attribute());
        let result = chain.add();
        let error = chain.clone().conf(json!({"prevResult": null})).call("CHECK", None).run().err();
        assert!(error.text().contains("Required prevResult missing"), "{error:?}");
        chain.container.vanish();
        let error = chain.check(&result).err();
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 4, "{error:?}");
        }
    });
}

/// A packet capture makes an interface promiscuous too; CHECK ignores values that were not
/// requested.
#[test]
fn check_does_not_mind_what_was_not_asked_for() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1400}));
        let result = chain.add();
        chain.container.sh(
            "ip link set eth0 promisc on allmulticast on txqueuelen 5 address 02:00:00:00:00:01",
        );
        chain.check(&result).ok();
    });
}

/// The kernel separates list values with tabs; hardware addresses are compared as addresses, not
/// text.
#[test]
fn check_compares_meanings() {
    for_ours("tuning", |lab| {
        let conf = json!({"mac": "02-00-00-00-00-AB", "sysctl": {"net.ipv4.ip_local_port_range": "20000 30000"}});
        let chain = chain(lab, conf);
        let result = chain.add();
        chain.check(&result).ok();
        chain.container.sh("echo 20000 30001 > /proc/sys/net/ipv4/ip_local_port_range");
        let error = chain.check(&result).err();
        assert!(error.text().contains("is 20000 30000, current value is"), "{error:?}");
        chain.del_all();
    });
    // The kernel parses numbers as C does, in hexadecimal and octal, and so does CHECK.
    for_ours("tuning", |lab| {
        for value in ["0x10", "020", "16"] {
            let chain = chain(lab, json!({"sysctl": {"net.core.somaxconn": value}}));
            let result = chain.add();
            assert_eq!(sysctl(&chain.container, "core/somaxconn"), "16", "{value}");
            chain.check(&result).ok();
            chain.container.sh("echo 10 > /proc/sys/net/core/somaxconn");
            assert_eq!(chain.check(&result).err().code, 103, "{value}");
            chain.del_all();
        }
    });
    // By the same comparison a repeated ADD recognises its own values and keeps the original ones.
    for_ours("tuning", |lab| {
        let set = json!({"sysctl": {"net.core.somaxconn": "0x10", "net.ipv4.ip_local_port_range": "20000 30000"}});
        let chain = chain(lab, set);
        let read = || {
            ["core/somaxconn", "ipv4/ip_local_port_range"]
                .map(|name| sysctl(&chain.container, name))
        };
        let untouched = read();
        chain.add();
        chain.add();
        chain.del();
        assert_eq!(read(), untouched);
    });
}
