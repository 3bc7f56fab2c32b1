//! D53x: who else has the addresses of containers. `faults` has what does not answer their packets.

use std::time::Instant;

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::netns::Container;
use crate::support::patience;

const V4: &str = "10.189.1.2";
const V6: &str = "fd00:189::2";

/// A host with a network of both families.
fn dual() -> Site {
    let site = Site::empty();
    let mut plugin = bridge("pods0", "10.189.1.0/24");
    plugin["ipam"]["ranges"] =
        json!([[{"subnet": "10.189.1.0/24"}], [{"subnet": "fd00:189::/64"}]]);
    plugin["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    site.configure("pods", &json!([plugin]));
    site
}

/// One finding with this code, which has the text, and that is found only with packets.
#[track_caller]
fn finds(site: &Site, container: &Container, (code, text): (&str, &str)) -> Value {
    let without = format!("{} --no-packets", container.netns);
    assert_eq!(site.codes(&without), [""; 0], "without packets");
    let findings = site.findings(&container.netns);
    let codes: Vec<&str> = findings.iter().map(|it| it["code"].as_str().unwrap()).collect();
    assert_eq!(codes, [code], "{findings:#?}");
    assert!(findings[0]["evidence"].as_str().unwrap().contains(text), "{findings:#?}");
    findings[0].clone()
}

/// Another host on the bridge, which no record knows, with this address.
fn stranger(site: &Site, address: &str) {
    site.lab.host.sh(&format!(
        "ip link add dup0 type veth peer name dup1; ip link set dup0 up master pods0; ip link set dup1 netns outside;
         ip -n outside link set dup1 up; ip -n outside addr add {address} dev dup1 $(case {address} in *:*) echo nodad; esac)"
    ));
}

#[test]
fn another_host_with_the_container_s_address_is_found() {
    let site = dual();
    let container = site.attached("pods");
    let own = container.json("ip -j addr show dev eth0");
    let addresses = own[0]["addr_info"].as_array().unwrap();
    let link_local =
        addresses.iter().find(|it| it["scope"] == "link").unwrap()["local"].as_str().unwrap();
    for (address, prefix) in [(V4, 24), (V6, 64), (link_local, 64)] {
        stranger(&site, &format!("{address}/{prefix}"));
        let mac = site.lab.outside.link("dup1").unwrap()["address"].as_str().unwrap().to_owned();
        let finding = finds(&site, &container, ("D534", &format!("answers for {address}")));
        assert!(finding["evidence"].as_str().unwrap().starts_with(&mac), "{finding}");
        site.lab.host.sh("ip link del dup0");
        assert_eq!(site.findings(&container.netns), [Value::Null; 0], "{address}");
    }
}

/// Linux answers for an address on each of its links.
#[test]
fn another_link_of_the_container_hides_no_other_host() {
    let site = dual();
    let container = site.attached("pods");
    let name = container.netns.rsplit('/').next().unwrap();
    site.lab.host.sh(&format!(
        "ip link add own0 type veth peer name net1 netns {name}; ip link set own0 up master pods0"
    ));
    container.sh("ip link set net1 up");
    assert_eq!(site.findings(&container.netns), [Value::Null; 0]);
    stranger(&site, &format!("{}/24", V4));
    finds(&site, &container, ("D534", V4));
}

/// A host that answers for others, as routers with proxy ARP do, is a gateway.
#[test]
fn a_gateway_by_proxy_arp_is_healthy() {
    let site = Site::empty();
    let ipam = json!({"type": "static", "addresses": [{"address": "10.189.3.2/32", "gateway": "198.51.100.2"}],
        "routes": [{"dst": "0.0.0.0/0"}]});
    site.configure("proxied", &json!([{"type": "ptp", "ipam": ipam}]));
    let container = site.attached("proxied");
    site.lab.host.sh("for end in $(ls /sys/class/net | grep ^veth); do ip addr del 198.51.100.2/32 dev $end; echo 1 >/proc/sys/net/ipv4/conf/$end/proxy_arp; done");
    site.lab.outside.sh("ip route add 10.189.3.2 via 198.51.100.1");
    let codes = site.codes(&container.netns);
    assert!(!codes.iter().any(|code| code.starts_with("D53")), "{codes:?}");
}

/// Each question has a socket, which receives the packets of all others.
#[test]
fn a_container_with_6000_addresses_is_asked_about_some_of_them() {
    let site = Site::with_bridge("10.189.2.0/24");
    let container = site.attached("pods");
    let all = "for a in $(seq 24); do for b in $(seq 250); do echo addr add 10.190.$a.$b/32 dev eth0; done; done";
    container.sh(&format!("{all} | ip -batch -"));
    let count = "awk '$1 == \"eth0:\" {print $11}' /proc/net/dev";
    let sent = || -> u64 { container.sh(count).trim().parse().unwrap() };
    let (before, begin) = (sent(), Instant::now());
    assert_eq!(site.codes(&container.netns), ["D507"]);
    let (packets, time) = (sent() - before, begin.elapsed());
    assert!(packets < 1000, "{packets} packets");
    assert!(time < patience(10), "{time:?}");
}
