//! `net plan`: that it changes nothing, and that ADD then does what it says.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, skip};
use crate::support::call::{Call, Outcome};
use crate::support::dhcp::{Daemon, Kind};
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::stacked::{IPVLAN, MACVLAN, VLAN};
use crate::support::networks::{bridge, portmap, ptp};
use crate::support::snapshot::Watch;
use crate::support::synced::net;

/// A network to plan for: what the host needs before, its plugins, and options of ADD.
struct Case {
    name: &'static str,
    needs: &'static str,
    plugins: Value,
    options: &'static str,
}

fn firewall() -> Value {
    json!({"type": "firewall"})
}

fn published() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

fn limited() -> Value {
    json!({"type": "bandwidth", "ingressRate": 10_000_000, "ingressBurst": 1_000_000,
        "egressRate": 10_000_000, "egressBurst": 1_000_000})
}

fn tuning() -> Value {
    json!({"type": "tuning", "mtu": 1400, "mac": "02:00:00:00:00:07",
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})
}

fn fixed(plugin: &str, keys: Value) -> Value {
    let ipam = json!({"type": "static", "addresses": [{"address": "10.40.0.2/24"}]});
    let mut conf = keys;
    conf["type"] = plugin.into();
    conf["ipam"] = ipam;
    conf
}

fn cases() -> Vec<Case> {
    let five = json!([portmap::network(), published(), firewall(), tuning(), limited()]);
    let masked = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipMasqBackend": "iptables", "ipam": {"type": "host-local", "subnet": "10.10.0.0/24"}});
    let by_iptables = json!({"type": "firewall", "backend": "iptables"});
    let case = |name, needs, plugins, options| Case { name, needs, plugins, options };
    vec![
        case("bridge", "true", json!([bridge::conf()]), ""),
        case("five", "true", five, "-p 8080:80 -p 8081:81/udp"),
        case("iptables", "iptables -S", json!([masked, by_iptables]), ""),
        case("ptp", "true", json!([ptp::conf(), {"type": "sbr"}]), ""),
        case("macvlan", MACVLAN_NEEDS, json!([MACVLAN.conf()]), ""),
        case("ipvlan", IPVLAN_NEEDS, json!([IPVLAN.conf()]), ""),
        case("vlan", VLAN_NEEDS, json!([VLAN.conf()]), ""),
        case("vrf", VRF_NEEDS, json!([ptp::conf(), {"type": "vrf", "vrfname": "blue"}]), ""),
        case("dummy", DUMMY_NEEDS, json!([fixed("dummy", json!({}))]), ""),
        case("tap", ": <>/dev/net/tun", json!([fixed("tap", json!({}))]), ""),
        case("host-device", DEVICE, json!([fixed("host-device", json!({"device": "dev0"}))]), ""),
        case("loopback", "true", json!([{"type": "loopback"}]), "-i lo"),
        case("flannel", SUBNET_ENV, json!([{"type": "flannel"}, published()]), "-p 8080:80"),
        case("layer2", "true", json!([{"type": "bridge", "bridge": "br0"}]), ""),
    ]
}

const MACVLAN_NEEDS: &str = "ip link add link uplink name probe type macvlan && ip link del probe";
const IPVLAN_NEEDS: &str = "ip link add link uplink name probe type ipvlan && ip link del probe";
const VLAN_NEEDS: &str =
    "ip link add link uplink name probe type vlan id 4000 && ip link del probe";
const VRF_NEEDS: &str = "ip link add probe type vrf table 999 && ip link del probe";
const DUMMY_NEEDS: &str = "ip link add probe type dummy && ip link del probe";
const DEVICE: &str = "ip link add dev0 type veth peer name dev1";

const SUBNET_ENV: &str = "mkdir -p /run/flannel; printf 'FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/run/flannel/subnet.env";

/// Writes the network `pods` of these plugins.
fn configure(lab: &Lab, plugins: &Value) {
    let network = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": plugins});
    let file = "/run/net.d/pods.conflist";
    lab.host.sh(&format!("mkdir -p /run/net.d; cat >{file} <<'END'\n{network}\nEND"));
}

/// Every file that a plugin may write, locks included.
fn files(lab: &Lab) -> String {
    let text =
        lab.host.sh("find /run /var/lib/cni -path /run/netns -prune -o -printf '%p %s %T@\\n'");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Plans in a table of networks, without a change; then adds, and compares.
fn for_each_case(check: impl Fn(&Lab, &Case)) {
    for case in cases() {
        for_ours("bridge", |lab| {
            eprintln!("{}:", case.name); // shown when the case fails
            if !lab.host.try_sh(case.needs).status.success() {
                return skip(&format!("what {} is made of", case.name));
            }
            configure(lab, &case.plugins);
            check(lab, &case);
        });
    }
}

#[test]
fn a_plan_changes_neither_kernel_nor_disk() {
    for_each_case(|lab, case| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let on_disk = files(lab);
        let line = format!("plan pods {} {}", container.netns, case.options);
        let outcome = net(lab, &line).run();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        assert_eq!(files(lab), on_disk, "{}", case.name);
        before.assert_unchanged(case.name);
    });
}

#[test]
fn add_does_what_the_plan_says() {
    for_each_case(|lab, case| {
        let container = lab.container();
        let words = format!("pods {} {}", container.netns, case.options);
        let plan = net(lab, &format!("plan {words} -o json")).run().ok();
        let before =
            [lab.host.json("ip -j link"), container.json("ip -j link")].map(|all| names(&all));
        let result = net(lab, &format!("add {words}")).run().ok();
        assert_eq!(
            plan["result"],
            without_macs(&result, &plan["result"]),
            "{}: {plan:#}",
            case.name
        );
        let changes = plan["changes"].as_array().unwrap();
        let text = plan["changes"].to_string();
        for change in changes {
            let namespace = if change["where"] == "container" { &container } else { &lab.host };
            let what = change["change"].as_str().unwrap();
            let is_changed_later =
                what.starts_with("create link \"eth0\"") && text.contains("set the mtu of");
            assert_made(
                lab,
                namespace,
                what.split(", mtu 1500").next().filter(|_| is_changed_later).unwrap_or(what),
            );
        }
        let now =
            [lab.host.json("ip -j link"), container.json("ip -j link")].map(|all| names(&all));
        for (place, (now, before)) in ["host", "container"].iter().zip(now.iter().zip(&before)) {
            let made: BTreeSet<String> = now.difference(before).cloned().collect();
            assert_eq!(made, planned_links(&plan, place), "{} {place}: {plan:#}", case.name);
        }
        let ports: Vec<&str> = case.options.split(' ').filter(|word| word.contains(':')).collect();
        assert_eq!(plan["ports"].as_array().unwrap().len(), ports.len(), "{plan:#}");
        assert_eq!(plan["unknown"], json!([]));
    });
}

/// A second container, beside one that is attached: what the first has made is found.
#[test]
fn a_plan_sees_what_others_have() {
    for_ours("bridge", |lab| {
        configure(lab, &cases()[1].plugins);
        let (first, second) = (lab.container(), lab.container());
        net(lab, &format!("add pods {} -p 8080:80", first.netns)).run().ok();
        let words = format!("pods {} -p 8090:80", second.netns);
        let plan = net(lab, &format!("plan {words} -o json")).run().ok();
        let texts: Vec<&str> = plan["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["change"].as_str().unwrap())
            .collect();
        for text in ["create link \"br0\"", "add table ", "ip_forward"] {
            assert!(!texts.iter().any(|found| found.contains(text)), "{text}: {texts:#?}");
        }
        let result = net(lab, &format!("add {words}")).run().ok();
        assert_eq!(plan["result"], without_macs(&result, &plan["result"]), "{plan:#}");
    });
}

fn names(links: &Value) -> BTreeSet<String> {
    let names = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

/// The result without the hardware addresses that the plan does not have.
fn without_macs(result: &Value, planned: &Value) -> Value {
    let mut result = result.clone();
    let interfaces = result["interfaces"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    for (index, interface) in interfaces.iter_mut().enumerate() {
        if planned["interfaces"][index]["mac"].is_null() {
            interface.as_object_mut().unwrap().remove("mac");
        }
    }
    result
}

fn planned_links(plan: &Value, place: &str) -> BTreeSet<String> {
    let mut links = BTreeSet::new();
    for change in plan["changes"].as_array().unwrap() {
        let text = change["change"].as_str().unwrap();
        let quoted: Vec<&str> = text.split('"').collect();
        if text.starts_with("create link") && change["where"] == place {
            links.insert(quoted[1].to_owned());
        } else if text.starts_with("move link") && place == "container" {
            links.insert(quoted[3].to_owned());
        }
    }
    links
}

/// Requires what a change says to be so.
fn assert_made(lab: &Lab, namespace: &Namespace, change: &str) {
    let quoted: Vec<&str> = change.split('"').collect();
    let words: Vec<&str> = change.split(' ').collect();
    let script = match words[..] {
        ["create", "link", ..] => {
            let mtu = change.split(", mtu ").nth(1).and_then(|rest| rest.split(',').next());
            let wanted = mtu.map_or_else(String::new, |mtu| format!("mtu {mtu} "));
            format!("ip link show dev {} | grep '{wanted}'", quoted[1])
        }
        ["create" | "change", file] => format!("test -f {file}"),
        ["add", "address", address, ..] => {
            format!("ip address show dev {} | grep -w {address}", quoted[1])
        }
        ["add", "route", dst, ..] => {
            let dst = if dst.ends_with("/0") { "default" } else { dst };
            let dst = dst.trim_end_matches("/32").trim_end_matches("/128");
            format!(
                "(ip route show table all; ip -6 route show table all) | grep -E '^([a-z]+ )?{dst} '"
            )
        }
        ["add", "rule", "from", source, "lookup", table] => {
            format!("ip rule show from {source} | grep -w 'lookup {table}'")
        }
        ["add", "qdisc", kind, ..] => format!("tc qdisc show dev {} | grep -w {kind}", quoted[1]),
        ["add", "table", family, table] => format!("nft list table {family} {table} >/dev/null"),
        ["add", _, "element" | "elements", "to", set, "of", "table", family, table] => {
            format!("nft list table {family} {table} | grep -w {set}")
        }
        ["set", "sysctl", name, "=", ..] => {
            let value = change.split(" = ").nth(1).unwrap();
            format!("test \"$(cat /proc/sys/{name})\" = \"{value}\"")
        }
        ["set", "the", "mtu", ..] => {
            format!("ip link show dev {} | grep 'mtu {}'", quoted[1], words[words.len() - 1])
        }
        ["set", "the", "hardware", ..] => {
            format!("ip link show dev {} | grep {}", quoted[1], words[words.len() - 1])
        }
        ["set", "the", "master", ..] => {
            format!("ip link show dev {} | grep 'master {}'", quoted[1], quoted[3])
        }
        ["set", _, "up"] => format!("ip link show dev {} | grep '[<,]UP'", quoted[1]),
        ["move", "link", ..] => format!("! ip link show dev {} 2>/dev/null", quoted[1]),
        ["delete", "route", ..] => "true".to_owned(),
        _ => panic!("no test of {change:?}"),
    };
    let outcome = namespace.try_sh(&script);
    assert!(
        outcome.status.success(),
        "{change}: {outcome:?}\n{}",
        lab.host.sh("nft list tables; ls -R /run/cni")
    );
}

/// The error of ADD, apart from what it says of its undo.
fn cause(outcome: &Outcome) -> String {
    let text = outcome.stderr.replace("what was done has been undone", "");
    let text = text.split("; not undone, because ").next().unwrap().to_owned();
    let text = text.split("; \"eth0\" was there before").next().unwrap().trim_end();
    text.trim_end_matches(';').to_owned()
}

#[test]
fn errors_and_exit_status_are_those_of_add() {
    for_ours("bridge", |lab| {
        let full = json!({"type": "bridge", "bridge": "br0", "capabilities": {"ips": true},
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.10.0.0/24", "rangeStart": "10.10.0.2", "rangeEnd": "10.10.0.3"}]]}});
        configure(lab, &json!([full, published()]));
        let bad = json!({"cniVersion": "1.1.0", "name": "lost", "plugins": [{"type": "macvlan", "master": "gone0", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.2/24"}]}}]});
        let typo = json!({"cniVersion": "1.1.0", "name": "typo", "plugins": [{"type": "brigde"}]});
        let dhcp = json!({"cniVersion": "1.1.0", "name": "dhcp", "plugins": [{"type": "bridge", "ipam": {"type": "dhcp"}}]});
        for (name, network) in [("lost", bad), ("typo", typo), ("dhcp", dhcp)] {
            lab.host.sh(&format!("cat >/run/net.d/{name}.conflist <<'END'\n{network}\nEND"));
        }
        let (first, second) = (lab.container(), lab.container());
        net(lab, &format!("add pods {} -p 8080:80", first.netns)).run().ok();
        let netns = &second.netns;
        let cases = [
            (format!("podz {netns}"), "available networks: "),
            ("pods nowhere".to_owned(), "`ip netns add nowhere` makes it"),
            (format!("pods {}", first.netns), "`net del` removes it"),
            (format!("pods {netns} -p 8080:80"), "hostPort 8080/tcp is taken"),
            (format!("pods {netns} --ip 10.10.0.2"), ""),
            (format!("pods {netns} --mac 02:00:00:00:00:01"), "--mac: no plugin of network"),
            (format!("lost {netns}"), "\"gone0\" is not a link of the host"),
            (format!("typo {netns}"), "did you mean \"bridge\"?"),
            (format!("dhcp {netns}"), "dhcp.sock"),
            ("pods /proc/self/ns/net".to_owned(), "should not be the same"),
        ];
        for (words, text) in cases {
            let before = files(lab);
            let plan = net(lab, &format!("plan {words}")).run();
            assert_eq!(files(lab), before, "{words}");
            let add = net(lab, &format!("add {words}")).run();
            assert_eq!((plan.status, add.status), (1, 1), "{words}: {plan:?} {add:?}");
            assert!(plan.stderr.contains(text), "{words}: {plan:?}");
            assert_eq!(cause(&plan), cause(&add), "{words}");
        }
        net(lab, &format!("add pods {netns}")).run().ok();
        let third = lab.container();
        let [plan, add] =
            ["plan", "add"].map(|verb| net(lab, &format!("{verb} pods {}", third.netns)).run());
        assert!(plan.stderr.contains("no IP addresses available"), "{plan:?}");
        assert_eq!((plan.status, cause(&plan)), (1, cause(&add)));
    });
}

/// A program that would leave a file.
const STRANGER: &str = "mkdir -p /run/bin; printf '#!/bin/sh\\ntouch /run/ran\\n' >/run/bin/calico; chmod +x /run/bin/calico";

#[test]
fn plugins_of_others_are_named_and_not_run() {
    for_ours("bridge", |lab| {
        lab.host.sh(STRANGER);
        let container = lab.container();
        let plan = |plugins: Value| -> Value {
            configure(lab, &plugins);
            let mut call: Call = net(lab, &format!("plan pods {} -o json", container.netns));
            let place = call.args.iter().position(|word| word == "--plugin-path").unwrap();
            call.args[place + 1] += ":/run/bin";
            call.run().ok()
        };
        let last = plan(json!([bridge::conf(), {"type": "calico"}]));
        let gap = json!([{"plugin": "calico", "why": "/run/bin/calico is not asked: it is another program"}]);
        assert_eq!(last["unknown"], gap);
        assert_eq!(last["result"]["ips"][0]["address"], "10.10.0.2/24");

        let first = plan(json!([{"type": "calico"}, published()]));
        assert_eq!((&first["result"], &first["changes"]), (&Value::Null, &json!([])));
        assert_eq!(first["unknown"].as_array().unwrap().len(), 2, "{first}");

        let ipam = plan(
            json!([{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "calico"}}]),
        );
        assert!(
            ipam["result"].get("ips").is_none() && !ipam.to_string().contains("192.0.2"),
            "{ipam}"
        );
        assert!(ipam.to_string().contains("create link \\\"br0\\\""), "{ipam}");

        lab.host.sh(SUBNET_ENV);
        let delegate = plan(json!([{"type": "flannel", "delegate": {"type": "calico"}}]));
        assert_eq!(delegate["unknown"][0]["why"], gap[0]["why"], "{delegate}");
        assert_eq!(delegate["changes"], json!([]));

        let ports = plan(json!([{"type": "ovs", "bridge": "ovs0"}]));
        assert_eq!(ports["unknown"][0]["why"], "Open vSwitch is not asked", "{ports}");
        assert!(!lab.path("/run/ran").exists());
    });
}

#[test]
fn no_lease_is_asked_of_a_dhcp_server() {
    for_ours("dhcp", |lab| {
        let daemon = Daemon::start(lab);
        configure(lab, &json!([Kind::Bridge.conf()]));
        let container = lab.container();
        let plan = net(lab, &format!("plan pods {}", container.netns)).run();
        assert_eq!(plan.status, 0, "{plan:?}");
        let line = "not known: the DHCP server is not asked, so addresses and what depends on them are not known";
        assert!(plan.stdout.contains(line), "{plan:?}");
        assert!(plan.stdout.ends_with(" gets an address that is not known\n"), "{plan:?}");
        assert_eq!(daemon.log().lines().count(), 1, "{}", daemon.log()); // that it listens
    });
}

/// The process of the host that listens at a published port is named, as by ADD.
#[test]
fn a_listener_at_a_published_port_is_named() {
    for_ours("portmap", |lab| {
        configure(lab, &json!([portmap::network(), published()]));
        let container = lab.container();
        let listener =
            "import socket,sys,time; s=socket.socket(); s.bind(('0.0.0.0',8080)); s.listen()";
        let line = format!("python3 -c \"{listener}; print('ready',flush=True); time.sleep(60)\"");
        let mut words = lab.host.enter.clone();
        words.extend(["sh", "-c", &format!("exec {line}")].map(str::to_owned));
        let mut child = std::process::Command::new(&words[0])
            .args(&words[1..])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let plan = net(lab, &format!("plan pods {} -p 8080:80", container.netns)).run();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(plan.status, 0, "{plan:?}");
        assert!(plan.stderr.contains("of the host listens at port 8080/tcp"), "{plan:?}");
    });
}
