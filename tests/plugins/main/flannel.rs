//! flannel: the delegate is run with what flanneld says of the node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::netns::{Container, Lab};
use crate::support::networks::bandwidth::{BURST, RATE, can_limit};
use crate::support::networks::bridge::warm_up;
use crate::support::networks::flannel::{self, REST, V4, V6, list_of_k3s, write_env};
use crate::support::networks::portmap::{portmap, web};
use crate::support::peers::each_case;
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

/// Runs a case of ours on a node of IPv4 that has what stays by contract.
fn on_a_node(case: impl Fn(&Lab)) {
    for_ours("flannel", |lab| {
        write_env(lab, &env());
        warm_up(lab, &newest());
        case(lab);
    });
}

/// What flanneld has written on a node of IPv4.
fn env() -> String {
    format!("{V4}{REST}")
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
    let mut rest = vec![portmap(None, json!([web()]))];
    if *conf == k3s() && can_limit(lab) {
        let limit = json!({"ingressRate": RATE, "ingressBurst": BURST});
        rest.push(json!({"type": "bandwidth", "runtimeConfig": {"bandwidth": limit}}));
    }
    rest.iter().map(|plugin| lab.attach(container, &with(plugin, of_list.clone()))).collect()
}

/// The original starts the delegate as a process of its own.
fn the_lists_of_kube_flannel_and_k3s_are_served(lab: &Lab) {
    for conf in [kube_flannel(), k3s()] {
        let (container, flannel, before) = lab.watched(&conf);
        let result = flannel.add();
        assert_eq!(result["cniVersion"], conf["cniVersion"]);
        assert_pings(&container, "10.244.1.1");
        assert_eq!(container.link("eth0").unwrap()["mtu"], 1450);
        let rest = chained(lab, &container, (&conf, &result));
        rest.iter().for_each(|plugin| drop(plugin.add()));
        rest.iter().for_each(Attachment::del);
        flannel.del();
        before.assert_unchanged("the list");
    }
}

#[test]
fn both_families_and_ipv6_alone_are_served() {
    let expected = ["10.244.1.2", "2001:cafe:42:1::2"];
    for_ours("flannel", |lab| {
        for (v4, first) in [(V4, 0), ("", 1)] {
            write_env(lab, &format!("{v4}{V6}{REST}"));
            let (container, flannel, result) = lab.added(&newest());
            assert_eq!(ips(&result), expected[first..]);
            assert_pings(&container, "2001:cafe:42:1::1");
            flannel.check_and_del(&result);
            lab.host.sh("ip link del cni0; rm -r /var/lib/cni/networks");
        }
    });
}

/// The original reads the file in a DEL of an attachment of ours.
fn the_kept_configuration_is_the_original_s(lab: &Lab) {
    let (container, flannel, _) = lab.added(&kube_flannel());
    let kept_file = format!("/var/lib/cni/flannel/{}", container.id);
    let expected = r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#;
    assert_eq!(lab.host.sh(&format!("cat {kept_file}")).trim(), expected);
    assert_eq!(lab.host.sh(&format!("stat -c %a {kept_file}")), "600\n");
    flannel.del();
    assert_eq!(kept(lab), "");
}

#[test]
fn del_cleans_up_what_the_original_attached() {
    let delegate = json!({"cniVersion": "0.3.1", "name": "cbr0", "type": "bridge", "mtu": 1450,
        "isGateway": true, "ipMasq": false, "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}]}});
    on_a_node(|lab| {
        let (container, flannel, before) = lab.watched(&kube_flannel());
        lab.attach(&container, &delegate).add();
        let id = &container.id;
        lab.host.sh(&format!("cat >/var/lib/cni/flannel/{id} <<'END'\n{delegate}\nEND"));
        flannel.del();
        before.assert_unchanged("DEL");
    });
}

/// As after a power failure, or without the file. The original's DEL fails with a wrong
/// configuration, and does nothing without the kept one.
fn del_needs_no_kept_configuration(lab: &Lab) {
    for damage in ["truncate -s 0", "truncate -s 20", "rm"] {
        let (_, flannel, before) = lab.watched(&newest());
        flannel.add();
        lab.host.sh(&format!("find /var/lib/cni/flannel -type f -exec {damage} {{}} +"));
        lab.host.sh("rm /run/flannel/subnet.env");
        flannel.clone().conf(json!({"delegate": 7})).del();
        flannel.del();
        lab.host.sh("find /var/lib/cni/flannel -mindepth 2 -type d -empty -delete");
        write_env(lab, &env());
        before.assert_unchanged(damage);
    }
}

fn the_configuration_stays_until_the_delegate_has_succeeded(lab: &Lab) {
    write_env(lab, &env());
    let script = "#!/bin/sh\ncat >/run/told-$CNI_COMMAND\n[ $CNI_COMMAND != DEL ] || [ -e /run/ready ] || exit 1\necho '{\"cniVersion\":\"1.1.0\"}'";
    lab.host.sh(&format!("mkdir /run/theirs; cat >/run/theirs/tubes <<'END'\n{script}\nEND\nchmod +x /run/theirs/tubes"));
    let (_, flannel) = lab.place(&with(&newest(), json!({"delegate": {"type": "tubes"}})));
    let path = format!("{}:/run/theirs", lab.cni_path(&Peer::Ours));
    let call = |command: &str| flannel.call(command, None).env("CNI_PATH", &path).run();
    call("ADD").ok();
    let before = kept(lab);
    assert!(!before.is_empty());
    assert_eq!(call("DEL").err().code, 104);
    assert_eq!(kept(lab), before);
    lab.host.sh("touch /run/ready");
    call("DEL").ok();
    assert_eq!(kept(lab), "");
    lab.host.sh("cmp /run/told-ADD /run/told-DEL");
}

/// The original crashes on a name without `=`.
#[test]
fn a_file_that_does_not_serve_is_an_error_and_status_says_so() {
    let without = |line: &str| env().replace(line, "");
    let no_subnet = "is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET";
    for_ours("flannel", |lab| {
        let (_, flannel) = lab.place(&newest());
        let missing = "failed to load flannel 'subnet.env' file: open /run/flannel/subnet.env: no such file or directory. Check the flannel pod log for this node.";
        let error = flannel.try_add().fails(11, missing);
        assert!(error.details.contains("flanneld writes"), "{error:?}");
        assert_eq!(flannel.status().err().code, 50);
        for (text, code, names) in [
            (without("FLANNEL_MTU=1450\n"), 11, "is missing FLANNEL_MTU."),
            (without("FLANNEL_SUBNET=10.244.1.1/24\n"), 11, no_subnet),
            (String::new(), 11, "is missing FLANNEL_NETWORK"),
            (without("=1450"), 7, "FLANNEL_MTU has no value"),
            (without("/24"), 7, "invalid CIDR address: 10.244.1.1"),
        ] {
            write_env(lab, &text);
            flannel.try_add().fails(code, names);
            assert_eq!(flannel.status().err().code, 50);
        }
        write_env(lab, &env());
        flannel.status().ok();
    });
}

/// As after a boot, when flanneld starts later than kubelet.
fn add_waits_for_the_file_as_long_as_configured(lab: &Lab) {
    let (_, flannel) = lab.place(&newest());
    let timeout = |seconds: u64| flannel.clone().conf(json!({"subnetFileTimeout": seconds}));
    let begin = Instant::now();
    assert_eq!(timeout(1).try_add().err().code, 11);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let begin = Instant::now();
    assert_eq!(timeout(60).status().err().code, 50);
    assert!(begin.elapsed() < Duration::from_secs(50), "STATUS does not wait");
    let text = env().replace('\n', "\\n");
    lab.host.sh(&format!(
        "mkdir -p /run/flannel; (sleep 1; printf '{text}' >/run/flannel/draft; \
         mv /run/flannel/draft /run/flannel/subnet.env) >/dev/null 2>&1 &"
    ));
    assert_eq!(ips(&timeout(60).add()), ["10.244.1.2"]);
    flannel.del();
}

/// Each would take longer with every container of the node.
fn add_and_del_list_neither_links_nor_files(lab: &Lab) {
    let (_, flannel) = lab.place(&newest());
    for command in ["ADD", "DEL"] {
        let mut call = flannel.call(command, None);
        let strace = "strace -f -qq -y -e trace=sendto,sendmsg,getdents64 -o /run/trace";
        call.wrapper.extend(strace.split(' ').map(str::to_owned));
        call.run().ok();
        let trace = lab.host.sh("cat /run/trace");
        let has =
            |words: [&str; 2]| trace.lines().find(|line| words.iter().all(|it| line.contains(it)));
        assert_ne!(has(["RTM_", "nlmsg"]), None, "strace shows messages");
        assert_eq!(has(["RTM_GETLINK", "NLM_F_DUMP"]), None, "{command}");
        assert_eq!(has(["getdents64", "cni/flannel"]), None, "{command}");
    }
}

fn a_stale_file_is_noticed_by_the_link_of_flanneld(lab: &Lab) {
    write_env(lab, &env());
    lab.host.sh(
        "ip link add flannel.1 type veth peer name far; ip addr add 10.244.9.0/32 dev flannel.1",
    );
    let (_, flannel) = lab.place(&newest());
    flannel.try_add().fails(11, "stale");
    lab.host.sh("ip addr flush dev flannel.1; ip addr add 10.244.1.0/32 dev flannel.1");
    flannel.add();
    flannel.del();
}

/// In the original the second interface takes the file of the first.
fn each_interface_has_a_file_of_its_own_until_del_or_gc(lab: &Lab) {
    let (container, first, before) = lab.watched(&newest());
    let second = first.clone().ifname("net1").conf(json!({"delegate": {"isDefaultGateway": null}}));
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
    before.assert_unchanged("GC");
}

fn the_delegate_repairs_by_the_kept_configuration(lab: &Lab) {
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
}

/// Two machines with a vxlan between them as flanneld sets it up.
#[test]
fn pods_of_two_nodes_reach_each_other() {
    for_ours("flannel", |first| {
        let probe = "ip link add probe type vxlan id 9 dstport 8472 && ip link del probe";
        if !first.host.try_sh(probe).status.success() {
            return skip("vxlan");
        }
        let second = Lab::new(Peer::Ours);
        first.host.sh(&format!("ip link add wan type veth peer name wan netns {}", second.pid()));
        let nodes = [first, &second];
        for (at, node) in nodes.iter().enumerate() {
            let (own, other) = (at + 1, 2 - at);
            write_env(node, &env().replace("10.244.1.1", &format!("10.244.{own}.1")));
            node.host.sh(&format!(
                "mac=02:00:0a:f4:0; ip addr add 192.168.77.{own}/24 dev wan; ip link set wan up; \
                 ip link add flannel.1 address ${{mac}}{own}:00 mtu 1450 type vxlan id 1 dev wan local 192.168.77.{own} dstport 8472 nolearning; \
                 ip addr add 10.244.{own}.0/32 dev flannel.1; ip link set flannel.1 up; \
                 ip route add 10.244.{other}.0/24 via 10.244.{other}.0 dev flannel.1 onlink; \
                 ip neigh add 10.244.{other}.0 lladdr ${{mac}}{other}:00 dev flannel.1 nud permanent; \
                 bridge fdb append ${{mac}}{other}:00 dev flannel.1 dst 192.168.77.{other}"
            ));
        }
        for conf in [kube_flannel(), k3s()] {
            let [(a, one, of_a), (b, other, of_b)] = nodes.map(|node| node.added(&conf));
            assert_pings(&a, &ips(&of_b)[0]);
            assert_pings(&b, &ips(&of_a)[0]);
            one.del();
            other.del();
        }
    });
}

each_case! { |case| on_a_node(case);
    the_lists_of_kube_flannel_and_k3s_are_served
    the_kept_configuration_is_the_original_s
    del_needs_no_kept_configuration
    add_and_del_list_neither_links_nor_files
    each_interface_has_a_file_of_its_own_until_del_or_gc
}

each_case! { |case| for_ours("flannel", case);
    the_configuration_stays_until_the_delegate_has_succeeded
    add_waits_for_the_file_as_long_as_configured
    a_stale_file_is_noticed_by_the_link_of_flanneld
    the_delegate_repairs_by_the_kept_configuration
}
