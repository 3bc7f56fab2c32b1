//! ADD on a host that cannot do what is asked: the error names the obstacle, and the host is
//! unchanged.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::networks::firewall::firewall;
use crate::support::networks::portmap::{portmap, web};
use crate::support::networks::{bandwidth, bridge};
use crate::support::snapshot::Watch;
use crate::support::table::cells;

/// An obstacle, the script that makes it on the host, the configuration that meets it, the code of the error, and the words
/// that the error must contain.
const OBSTACLES: &str = r#"
forwarding cannot be turned on | mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys | {} | 5 | net/ipv4/ip_forward, read-only file system
the container's IPv6 settings cannot be written | mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys | {"isGateway": false, "ipam": {"subnet": null, "ranges": [[{"subnet": "2001:db8:10::/64"}]]}} | 5 | net/ipv6/conf/eth0/keep_addr_on_down, read-only file system
no room for the address | mkdir -p /run/full && mount -t tmpfs -o size=16k tmpfs /run/full && { cat /dev/zero > /run/full/filler; true; } | {"ipam": {"dataDir": "/run/full"}} | 5 | /run/full, no space left on device
no file can be made for the address | mkdir -p /run/full && mount -t tmpfs -o nr_inodes=2 tmpfs /run/full | {"ipam": {"dataDir": "/run/full"}} | 5 | /run/full, no space left on device
the addresses' directory is read-only | mkdir -p /run/locked && mount -t tmpfs -o ro tmpfs /run/locked | {"ipam": {"dataDir": "/run/locked"}} | 5 | /run/locked, read-only file system
no program for the backend that is asked for | mount -t tmpfs tmpfs /usr/sbin && mount -t tmpfs tmpfs /sbin; true | {"ipMasq": true, "ipMasqBackend": "iptables"} | 105 | iptables, not found, nftables
"#;

#[test]
fn the_obstacle_is_named_and_nothing_is_left() {
    for [what, script, changes, code, says] in cells(OBSTACLES) {
        for_ours("bridge", |lab| {
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            lab.host.sh(script);
            let conf = with(&bridge::conf(), serde_json::from_str(changes).unwrap());
            let error = lab.attach(&container, &conf).try_add().err();
            lab.host.try_sh("umount /proc/sys /run/full /run/locked /sbin /usr/sbin; rmdir /run/full /run/locked");
            assert_eq!(error.code.to_string(), code, "{what}: {error:?}");
            for part in says.split(", ") {
                assert!(error.text().contains(part), "{what}: {error:?} does not say {part:?}");
            }
            before.assert_unchanged(what);
        });
    }
}

/// For kernels without VLAN filtering; `bridge::vlan` covers the others.
#[test]
fn a_missing_kernel_feature_is_named_and_nothing_is_left() {
    for_ours("bridge", |lab| {
        let has = "ip link add probe type bridge vlan_filtering 1 && ip link del probe";
        if lab.host.try_sh(has).status.success() {
            return;
        }
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let conf = with(&bridge::conf(), json!({"vlan": 100}));
        let error = lab.attach(&container, &conf).try_add().fails(100, "VLAN");
        assert!(error.text().contains("not supported"), "{error:?}");
        before.assert_unchanged("an ADD that needs VLAN filtering");
    });
}

/// The kernel would make `eth0` of the name, and no later call would find the link.
#[test]
fn an_interface_name_that_is_a_pattern_is_refused_and_undone() {
    let ipam = json!({"type": "static", "addresses": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1"}]});
    let plugins = [
        json!({"type": "bridge", "bridge": "br0"}),
        json!({"type": "ptp"}),
        json!({"type": "macvlan", "master": "uplink"}),
        json!({"type": "macvlan", "master": "port", "linkInContainer": true}),
        json!({"type": "tap"}),
        json!({"type": "host-device", "device": "dev0"}),
    ];
    for plugin in plugins {
        for_ours(plugin["type"].as_str().unwrap(), |lab| {
            lab.host.sh("ip link add dev0 type veth peer name dev1");
            let container = lab.container();
            container.sh("ip link add port type veth peer name other");
            let before = Watch::start(lab, &[&container]);
            let conf = with(&plugin, json!({"cniVersion": "1.0.0", "name": "net1", "ipam": ipam}));
            let attachment = lab.attach(&container, &conf).ifname("eth%d");
            let error = attachment.try_add().err();
            assert_eq!(error.code, 4, "{conf}: {error:?}");
            assert!(error.msg.contains("CNI_IFNAME: \"eth%d\""), "{error:?}");
            before.assert_unchanged("the refused ADD");
            attachment.del();
        });
    }
}

/// What replaces /run/cni, so that nothing can be written there.
const NO_DIRECTORY: [(&str, &str); 2] = [
    ("a file", "rmdir /run/cni && echo mine >/run/cni"),
    ("a read-only disk", "mount -t tmpfs -o ro x /run/cni"),
];

/// Plugins that keep no records there, each alone or after a main plugin.
fn without_records() -> Vec<(Value, Option<Value>)> {
    let plain = with(&bridge::conf(), json!({"cniVersion": "1.1.0"}));
    let masqueraded = json!({"ipMasq": true, "ipMasqBackend": "nftables"});
    let all = with(&with(&plain, masqueraded.clone()), json!({"macspoofchk": true}));
    let ptp = with(&plain, json!({"type": "ptp", "bridge": null}));
    let limited = json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000});
    let chained = [portmap(Some("nftables"), json!([web()])), firewall(None), limited];
    let chained = chained.map(|conf| (plain.clone(), Some(conf)));
    [(all, None), (with(&ptp, masqueraded), None)].into_iter().chain(chained).collect()
}

#[test]
fn run_cni_is_not_touched_where_it_is_not_needed() {
    for (obstacle, script) in NO_DIRECTORY {
        for (main, chained) in without_records() {
            for_ours("bridge", |lab| {
                bridge::warm_up(lab, &bridge::conf());
                lab.host.sh(&format!("rm -rf /run/cni/*; {script}"));
                let (container, other) = (lab.container(), lab.container());
                let before = Watch::start(lab, &[&container, &other]);
                let what = format!("{obstacle}, {} {chained:?}", main["type"]);
                let attachment = lab.attach(&container, &main);
                let result = attachment.add();
                attachment.check(&result).ok();
                if let Some(chained) = &chained {
                    let keys = json!({"name": "net1", "cniVersion": "1.1.0", "prevResult": result});
                    let chained = lab.attach(&container, &with(chained, keys));
                    chained.add();
                    chained.check(&result).ok();
                    chained.del();
                    chained.gc(&[]).ok();
                    chained.status().ok();
                }
                attachment.status().ok();
                attachment.del();
                attachment.gc(&[]).ok();
                let late =
                    json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}});
                let error = lab.attach(&other, &with(&main, late)).try_add().err();
                assert!(error.code == 100 && !error.details.contains("undo:"), "{what}: {error:?}");
                before.assert_unchanged(&what);
            });
        }
    }
}

/// Every plugin. A runtime also detaches an attachment after a failed ADD, or one from before a
/// reboot.
fn every_plugin() -> Vec<Value> {
    let conf = |kind: &str, keys: Value| {
        with(&json!({"cniVersion": "1.1.0", "name": "net1", "type": kind}), keys)
    };
    let leased = json!({"type": "host-local", "subnet": "10.10.0.0/24"});
    let mut all = vec![
        conf("dhcp", json!({"ipam": {"type": "dhcp"}})),
        conf("macvlan", json!({"master": "up0", "ipam": {"type": "dhcp"}})),
        conf("host-device", json!({"device": "up0"})),
        conf("vlan", json!({"master": "up0", "vlanId": 5})),
        conf("vrf", json!({"vrfname": "blue"})),
        conf("sbr", json!({"table": 500})),
        conf("tuning", json!({"sysctl": {"net.core.somaxconn": "500"}})),
        conf("bandwidth", bandwidth::both()),
    ];
    all.extend(["sbr", "ipvlan", "dummy", "tap", "loopback"].map(|kind| conf(kind, json!({}))));
    for kind in ["host-local", "static"] {
        all.push(conf(kind, json!({"ipam": with(&leased, json!({"type": kind}))})));
    }
    for backend in ["nftables", "iptables"] {
        all.push(conf("firewall", json!({"backend": backend})));
        all.push(with(&conf("portmap", json!({})), portmap(Some(backend), json!([web()]))));
        let masqueraded = json!({"ipMasq": true, "ipMasqBackend": backend, "ipam": leased});
        all.extend(["bridge", "ptp"].map(|kind| conf(kind, masqueraded.clone())));
    }
    all
}

#[test]
fn del_and_gc_without_records_need_no_run_cni() {
    for (obstacle, script) in NO_DIRECTORY {
        for_ours("bridge", |lab| {
            lab.host.sh("ip link add up0 up type veth peer name up1");
            let container = lab.container();
            let result = json!({
                "cniVersion": "1.1.0",
                "interfaces": [{"name": "veth0"}, {"name": "eth0", "sandbox": container.netns}],
                "ips": [{"address": "10.10.0.2/24", "interface": 1}],
            });
            lab.host.sh(&format!("rm -rf /run/cni/*; {script}"));
            for conf in every_plugin() {
                let kind = &conf["type"];
                let attachment = lab.attach(&container, &conf);
                for netns in [Some(container.netns.as_str()), None] {
                    let outcome = attachment.clone().netns(netns).call("DEL", Some(&result)).run();
                    assert_eq!(outcome.status, 0, "{obstacle}, DEL of {kind}: {outcome:?}");
                }
                let outcome = attachment.gc(&[]);
                assert_eq!(outcome.status, 0, "{obstacle}, GC of {kind}: {outcome:?}");
            }
        });
    }
}
