//! CHECK compares the kernel's values with the requested ones, and with nothing else.

use super::*;
use crate::support::synced::attach;

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

/// This holds for values given in `args` alone, too. A packet capture makes an interface promiscuous; CHECK ignores
/// values that were not requested.
#[test]
fn check_goes_by_the_same_values_as_add() {
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1300, "args": {"cni": {"mtu": 1400}}}));
        let result = chain.add();
        chain.check(&result).ok();
        chain.clone().conf(json!({"args": null})).check(&result).err();
        chain.clone().conf(json!({"args": null, "mtu": null})).check(&result).ok();
        if lab.peer == Peer::Ours {
            chain.container.sh(
                "ip link set eth0 promisc on allmulticast on txqueuelen 5 address 02:00:00:00:00:01",
            );
            chain.check(&result).ok();
            chain.container.vanish();
            chain.check(&result).fails(4, "");
        }
    });
}

/// The kernel separates list values with tabs, and parses numbers as C does, in hexadecimal and octal; hardware
/// addresses are compared as addresses, not text. By the same comparison a repeated ADD recognises its own values and
/// keeps the original ones.
#[test]
fn check_compares_meanings() {
    for_ours("tuning", |lab| {
        for value in ["0x10", "020", "16"] {
            let chain = chain(
                lab,
                json!({"mac": "02-00-00-00-00-AB", "sysctl":
                {"net.core.somaxconn": value, "net.ipv4.ip_local_port_range": "20000 30000"}}),
            );
            let read = || {
                ["core/somaxconn", "ipv4/ip_local_port_range"]
                    .map(|name| sysctl(&chain.container, name))
            };
            let untouched = read();
            let result = chain.add();
            assert_eq!(read()[0], "16", "{value}");
            chain.check(&result).ok();
            chain.add();
            chain.container.sh("echo 20000 30001 > /proc/sys/net/ipv4/ip_local_port_range");
            chain.check(&result).fails(103, "is 20000 30000, current value is");
            chain.container.sh("echo 20000 30000 > /proc/sys/net/ipv4/ip_local_port_range
                echo 10 > /proc/sys/net/core/somaxconn");
            chain.check(&result).fails(103, "");
            chain.container.sh("echo 16 > /proc/sys/net/core/somaxconn");
            chain.del();
            assert_eq!(read(), untouched, "{value}");
            chain.main.del();
        }
    });
}

#[test]
fn attributes_of_the_interface_stay() {
    for_ours("tuning", |lab| {
        let synced =
            attach(lab, &[bridge::conf(), tuning(json!({"mtu": 1400, "promisc": true}))], "");
        synced.container.sh("ip link set eth0 mtu 1300 promisc off");
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let link = synced.container.link("eth0").unwrap();
        assert_eq!((&link["mtu"], &link["promiscuity"]), (&json!(1300), &json!(0)));
        assert!(synced.check().status != 0, "CHECK reports what the repair leaves");
    });
}
