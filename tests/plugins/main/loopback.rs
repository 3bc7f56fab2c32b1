//! loopback: `lo` is up after ADD, and the result says so.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, with};
use crate::support::call::Peer;
use crate::support::netns::Namespace;
use crate::support::snapshot::Watch;

fn conf(version: &str) -> Value {
    json!({"cniVersion": version, "name": "lo", "type": "loopback"})
}

fn is_up(namespace: &Namespace) -> bool {
    namespace.link("lo").unwrap()["flags"].as_array().unwrap().contains(&json!("UP"))
}

#[test]
fn add_brings_lo_up_and_its_addresses_answer() {
    for_each_peer("loopback", |lab| {
        for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let container = lab.container();
            assert!(!is_up(&container));
            // Runtimes pass CNI_ARGS to every plugin; loopback ignores it.
            let attachment = lab.attach(&container, &conf(version)).ifname("lo").args("none");
            let result = attachment.add();
            assert!(is_up(&container));
            crate::support::traffic::assert_pings(&container, "127.0.0.1");
            crate::support::traffic::assert_pings(&container, "::1");
            if version >= "1.0.0" {
                let expected = json!({
                    "cniVersion": version,
                    "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": container.netns}],
                    "ips": [{"address": "127.0.0.1/8", "interface": 0}, {"address": "::1/128", "interface": 0}],
                });
                assert_eq!(result, expected);
            }
            if version >= "0.4.0" {
                attachment.check(&result).ok();
                container.sh("ip link set lo down");
                let error = attachment.check(&result).err();
                assert!(error.text().contains("lo") && error.text().contains("down"), "{error:?}");
            }
            attachment.del();
            attachment.del();
        }
    });
}

#[test]
fn a_result_of_the_plugin_before_is_passed_on() {
    for_each_peer("loopback", |lab| {
        let prev = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["192.0.2.53"]},
        });
        let container = lab.container();
        assert_eq!(
            lab.attach(&container, &with(&conf("1.0.0"), json!({"prevResult": prev}))).add(),
            prev
        );
        assert!(is_up(&container));
    });
}

#[test]
fn an_address_that_is_not_loopback_is_refused() {
    for_each_peer("loopback", |lab| {
        let container = lab.container();
        container.sh("ip addr add 192.0.2.1/32 dev lo");
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &conf("1.0.0")).ifname("lo").try_add().err();
        assert!(error.text().contains("192.0.2.1"), "{error:?}");
        if lab.peer == Peer::Ours {
            before.assert_unchanged("the refused ADD");
        }
    });
}

/// A process in the namespace can add alternative names until the kernel's message about the link
/// exceeds a fixed buffer. A truncated message has no second part to wait for.
#[test]
fn a_link_with_64_kilobytes_of_other_names_is_set_up_and_down() {
    for_each_peer("loopback", |lab| {
        let container = lab.container();
        let names = "n=0; while [ $n -lt 430 ]; do printf 'link property add dev lo altname a%0124d\\n' $n; n=$((n+1)); done";
        container.sh(&format!("{names} | ip -batch -"));
        let attachment = lab.attach(&container, &conf("1.0.0")).ifname("lo");
        attachment.add();
        assert!(is_up(&container));
        attachment.del();
        assert!(!is_up(&container));
    });
}
