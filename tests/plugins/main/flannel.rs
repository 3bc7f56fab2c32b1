//! flannel: the delegate is run with what flanneld says of the node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::netns::{Container, Lab};
use crate::support::networks::bandwidth::{BURST, RATE, can_limit};
use crate::support::networks::flannel::{self, REST, V4, V6, list_of_k3s, write_env};
use crate::support::snapshot::Watch;
use crate::support::synced::attach;
use crate::support::traffic::assert_pings;

/// The first plugin of kube-flannel's list.
fn kube_flannel() -> Value {
    json!({"cniVersion": "0.3.1", "name": "cbr0", "type": "flannel",
        "delegate": {"hairpinMode": true, "isDefaultGateway": true}})
}

/// The first plugin of k3s's list.
fn k3s() -> Value {
    with(&list_of_k3s()["plugins"][0], json!({"cniVersion": "1.0.0", "name": "cbr0"}))
}

/// The same, of the newest version, which has CHECK, GC and STATUS.
fn newest() -> Value {
    with(&k3s(), json!({"cniVersion": "1.1.0"}))
}

/// A lab whose flanneld has written this, and that has what stays by contract.
fn prepared<'l>(lab: &'l Lab, env: &str) -> &'l Lab {
    write_env(lab, env);
    let warm = lab.attach(&lab.container(), &newest()).id("warm-up").ifname("warm0");
    warm.add();
    warm.del();
    lab
}

fn kept(lab: &Lab) -> String {
    lab.host.sh("cd /var/lib/cni/flannel && find . -type f | sort")
}

/// The rest of k3s's list, after the result of flannel; that of kube-flannel has no bandwidth.
fn chained<'l>(
    lab: &'l Lab,
    container: &Container,
    (conf, result): (&Value, &Value),
) -> Vec<Attachment<'l>> {
    let of_list =
        json!({"name": conf["name"], "cniVersion": conf["cniVersion"], "prevResult": result});
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let portmap = json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}});
    let mut rest = vec![portmap];
    if *conf == k3s() && can_limit(lab) {
        let limit = json!({"ingressRate": RATE, "ingressBurst": BURST});
        rest.push(json!({"type": "bandwidth", "runtimeConfig": {"bandwidth": limit}}));
    }
    rest.iter().map(|plugin| lab.attach(container, &with(plugin, of_list.clone()))).collect()
}

/// The original starts the delegate as a process of its own.
#[test]
fn the_lists_of_kube_flannel_and_k3s_are_served() {
    for_ours("flannel", |lab| {
        prepared(lab, &format!("{V4}{REST}"));
        for conf in [kube_flannel(), k3s()] {
            let container = lab.container();
            let watch = Watch::start(lab, &[&container]);
            let flannel = lab.attach(&container, &conf);
            let result = flannel.add();
            assert_eq!(result["cniVersion"], conf["cniVersion"]);
            assert_pings(&container, "10.244.1.1");
            assert_eq!(container.link("eth0").unwrap()["mtu"], 1450);
            let rest = chained(lab, &container, (&conf, &result));
            rest.iter().for_each(|plugin| drop(plugin.add()));
            rest.iter().for_each(Attachment::del);
            flannel.del();
            watch.assert_unchanged("the list");
        }
    });
}

#[test]
fn both_families_and_ipv6_alone_are_served() {
    for_ours("flannel", |lab| {
        for (env, expected) in [
            (format!("{V4}{V6}{REST}"), vec!["10.244.1.2", "2001:cafe:42:1::2"]),
            (format!("{V6}{REST}"), vec!["2001:cafe:42:1::2"]),
        ] {
            write_env(lab, &env);
            let container = lab.container();
            let flannel = lab.attach(&container, &newest());
            let result = flannel.add();
            assert_eq!(ips(&result), expected);
            assert_pings(&container, "2001:cafe:42:1::1");
            flannel.check(&result).ok();
            flannel.del();
            lab.host.sh("ip link del cni0; rm -r /var/lib/cni/networks");
        }
    });
}

/// The original reads the file in a DEL of an attachment of ours.
#[test]
fn the_kept_configuration_is_the_original_s() {
    for_ours("flannel", |lab| {
        prepared(lab, &format!("{V4}{REST}"));
        let container = lab.container();
        let flannel = lab.attach(&container, &kube_flannel());
        flannel.add();
        let text = lab.host.sh(&format!("cat /var/lib/cni/flannel/{}", container.id));
        let expected = r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#;
        assert_eq!(text.trim(), expected);
        let mode = lab.host.sh(&format!("stat -c %a /var/lib/cni/flannel/{}", container.id));
        assert_eq!(mode.trim(), "600");
        flannel.del();
        assert_eq!(kept(lab), "");
    });
}

#[test]
fn del_cleans_up_what_the_original_attached() {
    for_ours("flannel", |lab| {
        prepared(lab, &format!("{V4}{REST}"));
        let container = lab.container();
        let watch = Watch::start(lab, &[&container]);
        let delegate = json!({"cniVersion": "0.3.1", "name": "cbr0", "type": "bridge", "mtu": 1450,
            "isGateway": true, "ipMasq": false, "ipam": {"type": "host-local",
            "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}]}});
        lab.attach(&container, &delegate).add();
        lab.host
            .sh(&format!("cat >/var/lib/cni/flannel/{} <<'END'\n{delegate}\nEND", container.id));
        lab.attach(&container, &kube_flannel()).del();
        watch.assert_unchanged("DEL");
    });
}

/// As after a power failure, or without the file. The original's DEL fails with a wrong
/// configuration, and does nothing without the kept one.
#[test]
fn del_needs_no_kept_configuration() {
    for_ours("flannel", |lab| {
        prepared(lab, &format!("{V4}{REST}"));
        for damage in ["truncate -s 0", "truncate -s 20", "rm"] {
            let container = lab.container();
            let watch = Watch::start(lab, &[&container]);
            let flannel = lab.attach(&container, &newest());
            flannel.add();
            lab.host.sh(&format!("find /var/lib/cni/flannel -type f -exec {damage} {{}} +"));
            lab.host.sh("rm /run/flannel/subnet.env");
            flannel.clone().conf(json!({"delegate": 7})).del();
            flannel.del();
            lab.host.sh("find /var/lib/cni/flannel -mindepth 2 -type d -empty -delete");
            write_env(lab, &format!("{V4}{REST}"));
            watch.assert_unchanged(damage);
        }
    });
}

#[test]
fn the_configuration_stays_until_the_delegate_has_succeeded() {
    for_ours("flannel", |lab| {
        write_env(lab, &format!("{V4}{REST}"));
        let script = "#!/bin/sh\ncat >/run/told-$CNI_COMMAND\n[ $CNI_COMMAND != DEL ] || [ -e /run/ready ] || exit 1\necho '{\"cniVersion\":\"1.1.0\"}'";
        lab.host.sh(&format!("mkdir /run/theirs; cat >/run/theirs/tubes <<'END'\n{script}\nEND\nchmod +x /run/theirs/tubes"));
        let container = lab.container();
        let conf = with(&newest(), json!({"delegate": {"type": "tubes"}}));
        let flannel = lab.attach(&container, &conf);
        let call = |command: &str| {
            let path = format!("{}:/run/theirs", Peer::Ours.dir().display());
            flannel.call(command, None).env("CNI_PATH", path).run()
        };
        call("ADD").ok();
        let before = kept(lab);
        assert!(!before.is_empty());
        assert_eq!(call("DEL").err().code, 104);
        assert_eq!(kept(lab), before);
        lab.host.sh("touch /run/ready");
        call("DEL").ok();
        assert_eq!(kept(lab), "");
        assert_eq!(lab.host.sh("cat /run/told-ADD"), lab.host.sh("cat /run/told-DEL"));
    });
}

/// The original crashes on a name without `=`.
#[test]
fn a_file_that_does_not_serve_is_an_error_and_status_says_so() {
    for_ours("flannel", |lab| {
        let container = lab.container();
        let flannel = lab.attach(&container, &newest());
        let without = |line: &str| format!("{V4}{REST}").replace(line, "");
        let error = flannel.try_add().err();
        let missing = "failed to load flannel 'subnet.env' file: open /run/flannel/subnet.env: no such file or directory. Check the flannel pod log for this node.";
        assert_eq!((error.code, error.msg.as_str()), (11, missing));
        assert!(error.details.contains("flanneld writes"), "{error:?}");
        assert_eq!(flannel.status().err().code, 50);
        for (text, code, names) in [
            (without("FLANNEL_MTU=1450\n"), 11, "is missing FLANNEL_MTU."),
            (
                without("FLANNEL_SUBNET=10.244.1.1/24\n"),
                11,
                "is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET",
            ),
            (String::new(), 11, "is missing FLANNEL_NETWORK"),
            (without("=1450"), 7, "FLANNEL_MTU has no value"),
            (without("/24"), 7, "invalid CIDR address: 10.244.1.1"),
        ] {
            write_env(lab, &text);
            let error = flannel.try_add().err();
            assert!(error.code == code && error.msg.contains(names), "{text}: {error:?}");
            assert_eq!(flannel.status().err().code, 50);
        }
        write_env(lab, &format!("{V4}{REST}"));
        flannel.status().ok();
    });
}

/// As after a boot, when flanneld starts later than kubelet.
#[test]
fn add_waits_for_the_file_as_long_as_configured() {
    for_ours("flannel", |lab| {
        let flannel = lab.attach(&lab.container(), &newest());
        let timeout = |seconds: u64| flannel.clone().conf(json!({"subnetFileTimeout": seconds}));
        let begin = Instant::now();
        assert_eq!(timeout(1).try_add().err().code, 11);
        assert!(begin.elapsed() >= Duration::from_secs(1));
        let begin = Instant::now();
        assert_eq!(timeout(60).status().err().code, 50);
        assert!(begin.elapsed() < Duration::from_secs(50), "STATUS does not wait");
        let text = format!("{V4}{REST}").replace('\n', "\\n");
        lab.host.sh(&format!(
            "mkdir -p /run/flannel; (sleep 1; printf '{text}' >/run/flannel/draft; \
             mv /run/flannel/draft /run/flannel/subnet.env) >/dev/null 2>&1 &"
        ));
        assert_eq!(ips(&timeout(60).add()), ["10.244.1.2"]);
        flannel.del();
    });
}

/// Each would take longer with every container of the node.
#[test]
fn add_and_del_list_neither_links_nor_files() {
    for_ours("flannel", |lab| {
        prepared(lab, &format!("{V4}{REST}"));
        let flannel = lab.attach(&lab.container(), &newest());
        for command in ["ADD", "DEL"] {
            let mut call = flannel.call(command, None);
            let strace = "strace -f -qq -y -e trace=sendto,sendmsg,getdents64 -o /run/trace";
            call.wrapper.extend(strace.split(' ').map(str::to_owned));
            call.run().ok();
            let trace = lab.host.sh("cat /run/trace");
            let all = |words: [&str; 2]| {
                let is_meant = |line: &&str| words.iter().all(|word| line.contains(word));
                trace.lines().filter(is_meant).map(str::to_owned).collect::<Vec<String>>()
            };
            assert_ne!(all(["RTM_", "nlmsg"]), [""; 0], "strace shows messages");
            assert_eq!(all(["RTM_GETLINK", "NLM_F_DUMP"]), [""; 0], "{command}");
            assert_eq!(all(["getdents64", "cni/flannel"]), [""; 0], "{command}");
        }
    });
}

#[test]
fn a_stale_file_is_noticed_by_the_link_of_flanneld() {
    for_ours("flannel", |lab| {
        write_env(lab, &format!("{V4}{REST}"));
        lab.host.sh("ip link add flannel.1 type veth peer name far; ip addr add 10.244.9.0/32 dev flannel.1");
        let container = lab.container();
        let flannel = lab.attach(&container, &newest());
        let error = flannel.try_add().err();
        assert!(error.code == 11 && error.msg.contains("stale"), "{error:?}");
        lab.host.sh("ip addr flush dev flannel.1; ip addr add 10.244.1.0/32 dev flannel.1");
        flannel.add();
        flannel.del();
    });
}

/// In the original the second interface takes the file of the first.
#[test]
fn each_interface_has_a_file_of_its_own_until_del_or_gc() {
    for_ours("flannel", |lab| {
        prepared(lab, &format!("{V4}{REST}"));
        let container = lab.container();
        let watch = Watch::start(lab, &[&container]);
        let first = lab.attach(&container, &newest());
        let second = lab
            .attach(&container, &newest())
            .ifname("net1")
            .conf(json!({"delegate": {"isDefaultGateway": null}}));
        first.add();
        let result = second.add();
        assert_eq!(kept(lab).lines().count(), 3, "{}", kept(lab));
        first.del();
        second.check(&result).ok();
        first.gc(&[(&container.id, "net1")]).ok();
        second.check(&result).ok();
        first.gc(&[]).ok();
        assert_eq!(kept(lab), "");
        second.del();
        watch.assert_unchanged("GC");
    });
}

#[test]
fn the_delegate_repairs_by_the_kept_configuration() {
    for_ours("flannel", |lab| {
        write_env(lab, &format!("{V4}{}", REST.replace("true", "false")));
        let delegate = json!({"delegate": {"ipMasqBackend": "nftables"}});
        let synced = attach(lab, &[with(&flannel::conf(), delegate)], "");
        lab.host.sh("rm /run/flannel/subnet.env");
        for (fault, change) in [
            ("nft flush ruleset", "masquerade 10.244.1.2/24"),
            ("rm /var/lib/cni/networks/pods/10.244.1.2", "lease 10.244.1.2 again"),
        ] {
            synced.assert_repaired(fault, &[change]);
        }
        synced.del();
        assert_eq!(kept(lab), "");
    });
}

/// Two machines with a vxlan between them as flanneld sets it up.
#[test]
fn pods_of_two_nodes_reach_each_other() {
    for_ours("flannel", |first| {
        if !first
            .host
            .try_sh("ip link add probe type vxlan id 9 dstport 8472 && ip link del probe")
            .status
            .success()
        {
            return skip("vxlan");
        }
        let second = Lab::new(Peer::Ours);
        first.host.sh(&format!("ip link add wan type veth peer name wan netns {}", second.pid()));
        let nodes = [first, &second];
        let mac = |nth: usize| format!("02:00:0a:f4:0{nth}:00");
        for (at, node) in nodes.iter().enumerate() {
            let (own, other) = (at + 1, 2 - at);
            write_env(
                node,
                &format!("{V4}{REST}").replace("10.244.1.1", &format!("10.244.{own}.1")),
            );
            node.host.sh(&format!(
                "ip addr add 192.168.77.{own}/24 dev wan; ip link set wan up; \
                 ip link add flannel.1 address {} mtu 1450 type vxlan id 1 dev wan local 192.168.77.{own} dstport 8472 nolearning; \
                 ip addr add 10.244.{own}.0/32 dev flannel.1; ip link set flannel.1 up; \
                 ip route add 10.244.{other}.0/24 via 10.244.{other}.0 dev flannel.1 onlink; \
                 ip neigh add 10.244.{other}.0 lladdr {} dev flannel.1 nud permanent; \
                 bridge fdb append {} dev flannel.1 dst 192.168.77.{other}",
                mac(own), mac(other), mac(other)
            ));
        }
        for conf in [kube_flannel(), k3s()] {
            let pods = nodes.map(Lab::container);
            let attached: Vec<_> =
                nodes.iter().zip(&pods).map(|(node, pod)| node.attach(pod, &conf)).collect();
            let addresses: Vec<String> =
                attached.iter().map(|one| ips(&one.add())[0].clone()).collect();
            assert_pings(&pods[0], &addresses[1]);
            assert_pings(&pods[1], &addresses[0]);
            attached.iter().for_each(Attachment::del);
        }
    });
}
