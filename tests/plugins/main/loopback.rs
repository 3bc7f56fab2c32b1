//! loopback: `lo` is up after ADD, and the result says so.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, with};
use crate::support::failed_add::{Case, assert_fails_at};
use crate::support::netns::Lab;
use crate::support::networks::host_device::is_up;
use crate::support::peers::each_case;
use crate::support::traffic::assert_pings;

fn conf(version: &str) -> Value {
    json!({"cniVersion": version, "name": "lo", "type": "loopback"})
}

fn add_brings_lo_up_and_its_addresses_answer(lab: &Lab) {
    for version in ["0.1.0", "0.3.1", "1.0.0"] {
        let (container, attachment) = lab.place(&conf(version));
        assert!(!is_up(&container, "lo"));
        // Runtimes pass CNI_ARGS to every plugin; loopback ignores it.
        let attachment = attachment.ifname("lo").args("none");
        let result = attachment.add();
        assert!(is_up(&container, "lo"));
        ["127.0.0.1", "::1"].iter().for_each(|own| assert_pings(&container, own));
        if version == "1.0.0" {
            let expected = json!({
                "cniVersion": version,
                "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": container.netns}],
                "ips": [{"address": "127.0.0.1/8", "interface": 0}, {"address": "::1/128", "interface": 0}],
            });
            assert_eq!(result, expected);
            attachment.check(&result).ok();
            container.sh("ip link set lo down");
            let error = attachment.check(&result).err();
            assert!(error.text().contains("lo") && error.text().contains("down"), "{error:?}");
        }
        attachment.del();
        attachment.del();
    }
}

#[test]
fn a_result_of_the_plugin_before_is_passed_on() {
    let prev = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["192.0.2.53"]},
    });
    for_each_peer("loopback", |lab| {
        let (container, _, result) = lab.added(&with(&conf("1.0.0"), json!({"prevResult": prev})));
        assert_eq!(result, prev);
        assert!(is_up(&container, "lo"));
    });
}

fn an_address_that_is_not_loopback_is_refused(lab: &Lab) {
    let (container, attachment) = lab.place(&conf("1.0.0"));
    let case = Case::new("another address", json!({}), 102, "192.0.2.1");
    let case = case.container("ip addr add 192.0.2.1/32 dev lo");
    assert_fails_at(lab, &container, &attachment.ifname("lo"), &case);
}

/// A process in the namespace can add alternative names until the kernel's message about the link
/// exceeds a fixed buffer. A truncated message has no second part to wait for.
fn a_link_with_64_kilobytes_of_other_names_is_set_up_and_down(lab: &Lab) {
    let (container, attachment) = lab.place(&conf("1.0.0"));
    let names = "n=0; while [ $n -lt 430 ]; do printf 'link property add dev lo altname a%0124d\\n' $n; n=$((n+1)); done";
    container.sh(&format!("{names} | ip -batch -"));
    let attachment = attachment.ifname("lo");
    attachment.add();
    assert!(is_up(&container, "lo"));
    attachment.del();
    assert!(!is_up(&container, "lo"));
}

each_case! { |case| for_each_peer("loopback", case);
    add_brings_lo_up_and_its_addresses_answer
    an_address_that_is_not_loopback_is_refused
    a_link_with_64_kilobytes_of_other_names_is_set_up_and_down
}
