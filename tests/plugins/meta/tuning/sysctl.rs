//! How sysctls are named, and that no name reaches beyond the container's network.

use super::*;

#[test]
fn sysctls_may_be_spelled_with_dots_or_slashes() {
    for_each_peer("tuning", |lab| {
        for name in [
            "net.ipv4.conf.IFNAME.arp_filter",
            "net/ipv4/conf/IFNAME/arp_filter",
            "net/ipv4.conf/eth0.arp_filter",
            "/net//ipv4..conf.eth0.arp_filter",
        ] {
            let chain = chain(lab, json!({"sysctl": {name: "1"}}));
            chain.container.sh("ip link add eth1 type veth peer name other");
            let result = chain.add();
            let read = |at: &Namespace, link| sysctl(at, &format!("ipv4/conf/{link}/arp_filter"));
            let [own, other] = ["eth0", "eth1"].map(|link| read(&chain.container, link));
            assert_eq!([own, other, read(&lab.host, "uplink")], ["1", "0", "0"], "{name}");
            assert_eq!(result, chain.result, "{name}");
            chain.check_and_del_all(&result);
        }
    });
}

/// Both peers handle `IFNAME` for a link with dots in its name; a name written out works in ours
/// only.
#[test]
fn links_may_have_dots_in_their_names() {
    for_each_peer("tuning", |lab| {
        for ifname in ["eth0.5", "a..b"] {
            for name in ["net.ipv4.conf.IFNAME.arp_filter", "net/ipv4/conf/IFNAME/arp_filter"] {
                let container = lab.container();
                let set = tuning(json!({"sysctl": {name: "1"}}));
                let chained = lab.chain_in(&container, ifname, &bridge::conf(), &set);
                let result = chained.add();
                let path = format!("ipv4/conf/{ifname}/arp_filter");
                assert_eq!(sysctl(&container, &path), "1", "{name}");
                chained.check_and_del_all(&result);
            }
        }
    });
    for_ours("tuning", |lab| {
        for name in [
            "net.ipv4.conf.eth0.5.arp_filter",
            "net/ipv4/conf/eth0.5/arp_filter",
            "net.ipv4.conf.eth0/5.arp_filter",
        ] {
            let chain = chain(lab, json!({"sysctl": {name: "1"}}));
            chain.container.sh("ip link add eth0.5 type veth peer name x");
            let before = Watch::start(lab, &[&chain.container]);
            let result = chain.add();
            let read =
                |link: &str| sysctl(&chain.container, &format!("ipv4/conf/{link}/arp_filter"));
            assert_eq!([read("eth0.5"), read("eth0")], ["1", "0"], "{name}");
            chain.check(&result).ok();
            chain.del();
            before.assert_unchanged(name);
        }
    });
}

/// Every name resolves to a sysctl of the container's network or is an error. Both peers must leave
/// the values in OUTSIDE unchanged.
#[test]
fn nothing_outside_the_container_s_network_can_be_written() {
    const OUTSIDE: &str =
        "cat /proc/sys/vm/swappiness /proc/sys/kernel/hostname /proc/sys/kernel/core_pattern";
    let names = r"vm.swappiness kernel.hostname net/../vm/swappiness net/../../sys/vm/swappiness
        net/./../vm/swappiness ../vm/swappiness net//../../vm/swappiness /proc/sys/vm/swappiness
        net/../../../proc/sys/vm/swappiness net.ipv4.conf.IFNAME/../../../../vm/swappiness
        net/%2e%2e/vm/swappiness net/..%2fvm/swappiness net\..\vm\swappiness netfilter/../vm/swappiness
        net net.ipv4 net.ipv4.conf.IFNAME .";
    let strange = [
        "net/\u{ff0e}\u{ff0e}/vm/swappiness",
        "net\u{0}/../vm/swappiness",
        "net/ipv4\u{0}/../../vm/swappiness",
        "net/\u{2025}/vm/swappiness",
        "",
    ];
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, json!({}));
        let outside = lab.host.sh(OUTSIDE);
        let before = Watch::start(lab, &[&chain.container]);
        for name in names.split_whitespace().chain(strange) {
            for set in [
                json!({"sysctl": {name: "1"}}),
                json!({"sysctl": {}, "args": {"cni": {"sysctl": {name: "1"}}}}),
            ] {
                eprintln!("{set}"); // shown when the case fails
                let outcome = chain.clone().conf(set.clone()).try_add();
                assert_eq!(lab.host.sh(OUTSIDE), outside);
                match lab.peer {
                    Peer::Ours => outcome.fails(7, "sysctl."),
                    _ => outcome.err(),
                };
            }
        }
        before.assert_unchanged("refused ADDs");
    });
}

/// `all` and `default` are not links, although CNI_IFNAME may have these values. A caller that may
/// choose CNI_IFNAME must not gain the settings of all links, also not by a suffix.
#[test]
fn ifname_stands_for_a_link_only() {
    for_ours("tuning", |lab| {
        for (key, ifname, path) in
            [("IFNAME", "all", "all"), ("IFNAME", "default", "default"), ("IFNAMEl", "al", "all")]
        {
            let key = format!("net.ipv4.conf.{key}.arp_filter");
            let chain = chain(lab, json!({"sysctl": {&key: "1"}}));
            let names = format!("sysctl.{key}: IFNAME is \"{ifname}\"");
            chain.clone().ifname(ifname).try_add().fails(7, &names);
            assert_eq!(sysctl(&chain.container, &format!("ipv4/conf/{path}/arp_filter")), "0");
        }
        // A configuration that names all links means them.
        let chain = chain(lab, json!({"sysctl": {"net.ipv4.conf.all.arp_filter": "1"}}));
        chain.add();
        assert_eq!(sysctl(&chain.container, "ipv4/conf/all/arp_filter"), "1");
    });
}

/// Single values, lists and strings: DEL restores the original value and nothing else.
#[test]
fn del_gives_sysctls_back() {
    let sysctls = [
        ("net.ipv4.conf.IFNAME.arp_filter", "ipv4/conf/eth0/arp_filter", "1"),
        ("net.core.somaxconn", "core/somaxconn", "77"),
        ("net.ipv4.ip_local_port_range", "ipv4/ip_local_port_range", "20000 30000"),
        ("net.ipv4.ip_local_reserved_ports", "ipv4/ip_local_reserved_ports", "8080,9000-9010"),
        ("net.ipv4.tcp_congestion_control", "ipv4/tcp_congestion_control", "reno"),
        ("net.ipv6.conf.all.forwarding", "ipv6/conf/all/forwarding", "1"),
    ];
    for_ours("tuning", |lab| {
        let all: Value =
            sysctls.iter().map(|(name, _, value)| ((*name).to_owned(), json!(value))).collect();
        let chain = chain(lab, json!({"sysctl": all}));
        let read = || sysctls.map(|(_, path, _)| sysctl(&chain.container, path).replace('\t', " "));
        let untouched = read();
        let before = Watch::start(lab, &[&chain.container]);
        let result = chain.add();
        assert_eq!(read(), sysctls.map(|(_, _, value)| value));
        chain.check(&result).ok();
        let not_ours = "/proc/sys/net/ipv4/tcp_fin_timeout";
        chain.container.sh(&format!("cat {not_ours} > /run/was; echo 5 > {not_ours}"));
        chain.del();
        assert_eq!(read(), untouched);
        assert_eq!(chain.container.sh(&format!("cat {not_ours}")).trim(), "5");
        chain.container.sh(&format!("cat /run/was > {not_ours}; rm /run/was"));
        before.assert_unchanged("ADD");
    });
}

/// `flush` is write-only and an unset secret is unreadable: neither is restored nor compared.
#[test]
fn sysctls_that_cannot_be_read_can_be_set() {
    for_each_peer("tuning", |lab| {
        let secret = "2001:db8:0:0:0:0:0:1";
        let sysctls =
            json!({"net.ipv4.route.flush": "1", "net.ipv6.conf.IFNAME.stable_secret": secret});
        let chain = chain(lab, json!({"sysctl": sysctls}));
        let result = chain.add();
        if lab.peer == Peer::Ours {
            let without = json!({"sysctl": {"net.ipv6.conf.IFNAME.stable_secret": null}});
            chain.clone().conf(without).check(&result).ok();
        }
        chain.del();
    });
}

/// Sysctls are set in the order of the configuration, those of `args` last.
#[test]
fn sysctls_are_set_in_their_order() {
    for_ours("tuning", |lab| {
        for (first, second, expected) in [("all", "IFNAME", "0"), ("IFNAME", "all", "1")] {
            let conf = format!(
                r#"{{"sysctl": {{"net.ipv4.conf.{first}.forwarding": "{}", "net.ipv4.conf.{second}.forwarding": "{}"}}}}"#,
                u8::from(first == "all"),
                u8::from(second == "all")
            );
            let chain = chain(lab, json!({}));
            chain.container.sh("echo 0 > /proc/sys/net/ipv4/conf/all/forwarding");
            // serde_json sorts keys, so the JSON text is spliced in by hand.
            let mut call = chain.call("ADD", None);
            let text = String::from_utf8(call.stdin.clone()).unwrap();
            call.stdin = format!("{},{}", &conf[..conf.len() - 1], &text[1..]).into_bytes();
            call.run().ok();
            assert_eq!(sysctl(&chain.container, "ipv4/conf/eth0/forwarding"), expected, "{conf}");
            chain.del_all();
        }
    });
}
