//! tuning ADD that fails: the error names the cause, and host and container are unchanged.

use super::*;
use crate::support::networks::stacked::{MACVLAN, VLAN};

/// Every attribute and two sysctls, which ADD sets before the refused value in `changes`.
pub fn after(changes: Value) -> Value {
    let sysctls =
        json!({"sysctl": {"net.core.somaxconn": "99", "net.ipv4.conf.IFNAME.arp_filter": "1"}});
    with(&with(&every_attribute(), sysctls), changes)
}

#[test]
fn add_fails_and_nothing_has_changed() {
    let cases = rows(
        r#"
a value that the kernel refuses | {"sysctl": {"net.ipv4.tcp_congestion_control": "nonesuch"}} | 7: nonesuch
a value that is no number | {"sysctl": {"net.ipv4.conf.IFNAME.log_martians": "x"}} | 7: sysctl.net.ipv4.conf.IFNAME.log_martians: write sysctl net/ipv4/conf/eth0/log_martians = x: invalid argument
a sysctl that is none | {"sysctl": {"net.ipv4.nonesuch": "1"}} | 7: sysctl.net.ipv4.nonesuch: net/ipv4/nonesuch
a sysctl that is a directory | {"sysctl": {"net.ipv4.conf": "1"}} | 7: net/ipv4/conf
a sysctl of another link | {"sysctl": {"net.ipv4.conf.eth7.arp_filter": "1"}} | 7: net/ipv4/conf/eth7/arp_filter is not a setting of the container: IFNAME in its name stands for "eth0"
an mtu that is too large | {"mtu": 70000} | 7: mtu: 70000 is out of range of interface "eth0", expected 68 to 65535
an mtu that is too small | {"mtu": 67} | 7: mtu: 67 is out of range
an mtu that no link takes | {"args": {"cni": {"mtu": 2147483648}}} | 7: args.cni.mtu: 2147483648 is out of range, expected 0 to 2147483647
an mtu that is none | {"mtu": -5} | 7: mtu: -5 is out of range, expected an integer from 0 to 4294967295
a queue that is none | {"txQLen": -1} | 7: txQLen: -1 is out of range
a mac that is none | {"mac": "02:00:00:00:00"} | 7: mac: "02:00:00:00:00" is not a hardware address
a mac of a group | {"args": {"cni": {"mac": "01:00:5e:00:00:01"}}} | 7: args.cni.mac: 01:00:5e:00:00:01
a mac of the runtime | {"runtimeConfig": {"mac": "x"}} | 7: runtimeConfig.mac: "x"
a value that is no text | {"sysctl": {"net.core.somaxconn": 5}} | 6: sysctl.net.core.somaxconn: expected a string, found integer 5
no map | {"sysctl": "net.core.somaxconn"} | 6: sysctl: expected an object
no boolean | {"promisc": "yes"} | 6: promisc: expected a boolean
no number | {"args": {"cni": {"mtu": "1400"}}} | 6: args.cni.mtu: expected
no previous result | {"prevResult": null} | 7: Required prevResult missing
"#,
    );
    // The reference accepts some of these and undoes nothing; see tests/differences.
    for_ours("tuning", |lab| {
        for case in &cases {
            let chain = chain(lab, after(json!({})));
            assert_fails_at(lab, &chain.container, &chain, case);
            chain.main.del();
        }
    });
}

/// The kernel writes a list number by number, so even a refused write changes part of the list.
#[test]
fn a_list_that_is_refused_is_given_back_whole() {
    for_ours("tuning", |lab| {
        let list = json!({"net.core.somaxconn": "99", "net.ipv4.tcp_rmem": "5000 60000 bogus"});
        let chain = chain(lab, json!({"sysctl": list}));
        let read =
            || ["core/somaxconn", "ipv4/tcp_rmem"].map(|name| sysctl(&chain.container, name));
        let untouched = read();
        chain.try_add().fails(7, "sysctl.net.ipv4.tcp_rmem: write sysctl net/ipv4/tcp_rmem");
        assert_eq!(read(), untouched);
    });
}

/// Disabling IPv6 removes addresses and routes that no rollback can restore, so it is set last.
#[test]
fn ipv6_is_disabled_when_all_else_is_done() {
    for_ours("tuning", |lab| {
        for name in ["IFNAME", "all"] {
            let disable = format!("net.ipv6.conf.{name}.disable_ipv6");
            // serde_json sorts keys, so the failing sysctl comes second.
            let sysctls = json!({disable: "1", "net/ipv4/tcp_congestion_control": "nonesuch"});
            let chain = chain(lab, json!({"sysctl": sysctls}));
            chain.container.sh("ip addr add 2001:db8::2/64 dev eth0 nodad; ip -6 route add default via 2001:db8::1");
            let case = Case::new(name, json!({}), 7, "tcp_congestion_control");
            assert_fails_at(lab, &chain.container, &chain, &case);
            chain.clone().conf(json!({"sysctl": {"net/ipv4/tcp_congestion_control": null}})).add();
            assert_eq!(sysctl(&chain.container, "ipv6/conf/eth0/disable_ipv6"), "1");
            chain.main.del();
        }
    });
}

/// A missing interface and wrong CNI_ARGS fail ADD without a change.
#[test]
fn add_without_an_interface_or_with_wrong_args_changes_nothing() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, every_attribute());
        let before = Watch::start(lab, &[&chain.container]);
        let missing = "Cannot find container link \"eth7\"";
        chain.clone().ifname("eth7").try_add().fails(7, missing);
        for (args, code) in
            [("MAC=x", 7), ("MAC=01:00:5e:00:00:01", 7), ("UNKNOWN=1", 4), ("MAC", 4)]
        {
            chain.clone().conf(json!({"mac": null})).args(args).try_add().fails(code, "");
        }
        before.assert_unchanged("refused ADDs");
    });
}

/// The runtime never sees a result that cannot be written, so ADD is rolled back.
#[test]
fn an_add_is_undone_when_its_result_has_no_form() {
    for_ours("tuning", |lab| {
        let main = with(&bridge::conf(), json!({"cniVersion": "0.2.0", "ipam": null}));
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other");
        let before = Watch::start(lab, &[&container]);
        let conf = with(
            &tuning(after(json!({}))),
            json!({"name": main["name"], "cniVersion": "0.2.0", "prevResult": {"cniVersion": "0.2.0"}}),
        );
        lab.attach(&container, &conf).try_add().err();
        before.assert_unchanged("the result that was none");
    });
}

/// The kernel reports no such limit: it refuses the MTU, and its error names nothing.
#[test]
fn an_mtu_above_that_of_the_master_names_the_master() {
    let above = "mtu: 9000 is above the MTU of \"uplink\", the master of \"eth0\", expected";
    for (kind, least) in [(MACVLAN, 68), (VLAN, 0)] {
        kind.for_ours(|lab| {
            let chain = lab.chain(&kind.conf(), &tuning(json!({"mtu": 9000, "promisc": true})));
            let before = Watch::start(lab, &[&chain.container]);
            let error = chain.try_add().fails(7, "raise that of \"uplink\" first");
            before.assert_unchanged("the failed ADD");
            assert_eq!(error.msg, format!("{above} {least} to 1500"), "{}", kind.plugin);
        });
    }
}
