//! A whole list as engines have it: bridge, portmap, firewall, tuning and bandwidth, each after the other, on a host that lets nothing pass.

use serde_json::{Value, json};

use super::bandwidth::{RATE, can_limit};
use super::firewall::DROPPING;
use super::portmap::{is_open, network, web};
use super::tuning::sysctl;
use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, with};
use crate::support::call::Peer;
use crate::support::flow::assert_rate;
use crate::support::netns::{Container, Lab, OUTSIDE};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, assert_masqueraded, assert_no_ping, assert_pings};

const ADMITTING: &str = "iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT";
const SOMAXCONN: &str = "core/somaxconn";

fn list() -> [Value; 5] {
    let burst = RATE / 10;
    let of_network = json!({"cniVersion": "1.1.0", "name": "net1"});
    [
        with(&network(), json!({"ipMasq": true})),
        json!({"type": "portmap", "runtimeConfig": {"portMappings": [web()]}}),
        json!({"type": "firewall"}),
        json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}, "mtu": 1400, "mac": "02:00:00:00:00:17"}),
        json!({"type": "bandwidth", "ingressRate": RATE, "ingressBurst": burst, "egressRate": RATE, "egressBurst": burst}),
    ]
    .map(|plugin| with(&plugin, of_network.clone()))
}

/// A container, and the list's attachments in their order.
struct List<'a> {
    container: Container,
    all: Vec<Attachment<'a>>,
    /// The last one.
    result: Value,
}

/// ADD of one after the other.
#[track_caller]
fn attach<'a>(lab: &'a Lab, confs: &[Value]) -> List<'a> {
    let mut list = List { container: lab.container(), all: vec![], result: Value::Null };
    for conf in confs {
        let attachment = lab.attach(&list.container, &with(conf, json!({"prevResult": list.result})));
        list.result = attachment.add();
        list.all.push(attachment);
    }
    list
}

impl List<'_> {
    /// DEL in the runtime's order, with the result of ADD.
    #[track_caller]
    fn del(&self) {
        for plugin in self.all.iter().rev() {
            plugin.clone().conf(json!({"prevResult": self.result})).del();
        }
    }
}

fn for_able(lab: &Lab, case: impl Fn(&Lab)) {
    if can_limit(lab) {
        lab.host.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"); // it stays by contract
        lab.host.sh(DROPPING);
        case(lab);
    }
}

#[test]
fn each_does_its_part_and_del_leaves_nothing() {
    for_each_peer("bandwidth", |lab| {
        for_able(lab, |lab| {
            let host = Watch::start(lab, &[]);
            let list = attach(lab, &list());
            let (container, ips) = (&list.container, ips(&list.result));
            let _server = TcpServer::start(container, 80);
            // As in the reference, firewall lets nobody in who was not asked, be it by a published port.
            assert_eq!(is_open(lab, 8080), [false, false]);
            lab.host.sh(ADMITTING);
            assert_eq!(is_open(lab, 8080), [true, true]);
            lab.host.sh(DROPPING);
            ips.iter().for_each(|ip| assert_masqueraded(lab, container, ip));
            ips.iter().for_each(|ip| assert_no_ping(&lab.outside, ip));
            let link = container.link("eth0").unwrap();
            assert_eq!((&link["mtu"], &link["address"]), (&json!(1400), &json!("02:00:00:00:00:17")));
            assert_eq!(sysctl(container, SOMAXCONN), "517");
            assert_rate(&lab.host, container, &ips[0], RATE);
            assert_rate(container, &lab.outside, OUTSIDE[0], RATE);
            if lab.peer == Peer::Ours {
                assert_eq!(list.result["interfaces"].as_array().unwrap().len(), 4, "{}", list.result);
                list.all.iter().for_each(|plugin| assert_eq!(plugin.check(&list.result).ok(), Value::Null));
            }
            list.del();
            if lab.peer == Peer::Ours {
                assert_eq!(sysctl(container, SOMAXCONN), "4096");
                lab.host.sh("ip link del br0"); // it stays by contract
                host.assert_unchanged("the whole list's DEL");
            }
        });
    });
}

/// As after a reboot of the runtime: no namespace, no results, nothing of what the runtime said at ADD.
#[test]
fn del_and_gc_need_nothing_but_the_keys() {
    for_ours("bandwidth", |lab| {
        for_able(lab, |lab| {
            let host = Watch::start(lab, &[]);
            let (kept, gone, collected) =
                (attach(lab, &list_without_ports()), attach(lab, &list()), attach(lab, &list_without_ports()));
            gone.container.vanish();
            collected.container.vanish();
            let bare = json!({"prevResult": null, "runtimeConfig": null});
            gone.all.iter().rev().for_each(|plugin| plugin.clone().netns(None).conf(bare.clone()).del());
            let valid = [(kept.all[0].container_id.as_str(), "eth0")];
            for plugin in collected.all.iter().rev() {
                assert_eq!(plugin.clone().conf(bare.clone()).gc(&valid).ok(), Value::Null);
            }
            kept.all.iter().for_each(|plugin| assert_eq!(plugin.check(&kept.result).ok(), Value::Null));
            OUTSIDE.iter().for_each(|outside| assert_pings(&kept.container, outside));
            kept.del();
            lab.host.sh("ip link del br0");
            host.assert_unchanged("DEL and GC");
        });
    });
}

/// Ports can be published once only.
fn list_without_ports() -> [Value; 5] {
    list().map(|plugin| with(&plugin, json!({"runtimeConfig": null})))
}

/// The runtime calls DEL of the whole list then, also of what never ran.
#[test]
fn an_add_that_fails_anywhere_in_the_list_is_undone_by_its_del() {
    let bad = [
        json!({"mtu": 100_000}),
        json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080}]}}),
        json!({"backend": "none such"}),
        json!({"mtu": 70_000}),
        json!({"egressBurst": 0}),
    ];
    for_ours("bandwidth", |lab| {
        for_able(lab, |lab| {
            let host = Watch::start(lab, &[]);
            for (failing, changes) in bad.iter().enumerate() {
                let mut confs = list();
                confs[failing] = with(&confs[failing], changes.clone());
                let done = attach(lab, &confs[..failing]);
                let plugin = lab.attach(&done.container, &with(&confs[failing], json!({"prevResult": done.result})));
                plugin.try_add().err();
                for conf in confs.iter().rev() {
                    lab.attach(&done.container, conf).del();
                }
                lab.host.try_sh("ip link del br0");
                host.assert_unchanged(&format!("plugin {failing} failed"));
            }
        });
    });
}
