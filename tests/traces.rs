//! Replays calls that real runtimes made to the reference plugins 1.9.1.
//!
//! `fixtures/traces/<runtime>.jsonl` has one call per line, in the order they were made: `plugin`,
//! `env`, `stdin`, `stdout`, `stderr` and `rc`, the exit status. Container ids, MAC addresses, host
//! link names and namespace paths are invented; each stands for the same thing wherever it appears.
//! One VERSION call of each kind is kept. The calls of host-local come from the main plugins, which
//! make them again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::protocol::{assert_silent_success, has_user_namespaces, in_own_namespace};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::netns::{Container, Lab, OUTSIDE, UPLINK};
use crate::support::networks::bandwidth::can_limit;
use crate::support::patience;
use crate::support::peers::peers;
use crate::support::scratch::Scratch;
use crate::support::snapshot::Snapshot;
use crate::support::traffic::{TcpServer, connect};

peers! { version_calls_get_the_recorded_answer, status_calls_succeed_as_recorded, loopback_tells_the_recorded_addresses }

peers! {
    chains_of_ctr_work_as_recorded = |peer| Replay::of_chains(peer, RUNTIMES[0]);
    chains_of_containerd_1_6_work_as_recorded = |peer| Replay::of_chains(peer, RUNTIMES[1]);
    chains_of_containerd_2_1_work_as_recorded = |peer| Replay::of_chains(peer, RUNTIMES[2]);
    chains_of_podman_work_as_recorded = |peer| Replay::of_chains(peer, RUNTIMES[3]);
}

const RUNTIMES: [(&str, &str); 4] = [
    ("ctr", include_str!("fixtures/traces/ctr.jsonl")),
    ("containerd 1.6", include_str!("fixtures/traces/containerd-1.6.jsonl")),
    ("containerd 2.1", include_str!("fixtures/traces/containerd-2.1.jsonl")),
    ("podman 4.3", include_str!("fixtures/traces/podman-4.3.jsonl")),
];

#[derive(Deserialize)]
struct Recorded {
    plugin: String,
    env: BTreeMap<String, String>,
    stdin: Value,
    stdout: Value,
    rc: i32,
}

impl Recorded {
    fn command(&self) -> &str {
        &self.env["CNI_COMMAND"]
    }

    /// The same call, to this peer.
    fn call(&self, peer: &Peer) -> Call {
        let mut call = Call::new(peer, &self.plugin, self.command(), self.stdin.to_string());
        call.env.clone_from(&self.env);
        call
    }
}

fn recorded(text: &str) -> Vec<Recorded> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The recorded calls of all runtimes that `wanted` picks, each with the runtime's name; at least
/// one has to exist.
fn all_recorded(wanted: impl Fn(&Recorded) -> bool) -> Vec<(&'static str, Recorded)> {
    let of_runtime = |(runtime, text)| recorded(text).into_iter().map(move |call| (runtime, call));
    let calls: Vec<_> =
        RUNTIMES.into_iter().flat_map(of_runtime).filter(|(_, call)| wanted(call)).collect();
    assert!(!calls.is_empty(), "no such call was recorded");
    calls
}

/// The TCP ports that a call publishes on every host address.
fn ports(recorded: &Recorded) -> Vec<(u64, u16)> {
    let mappings = recorded.stdin["runtimeConfig"]["portMappings"].as_array();
    mappings.into_iter().flatten().filter_map(published).collect()
}

/// The TCP port that a mapping publishes on every host address, and the container's port.
pub fn published(mapping: &Value) -> Option<(u64, u16)> {
    let of = |key: &str| {
        mapping
            .as_object()
            .unwrap()
            .iter()
            .find(|(k, _)| k.eq_ignore_ascii_case(key))
            .map(|(_, v)| v)
    };
    let is_everybody_s = of("hostIP").is_none_or(|ip| *ip == "") && of("protocol")? == "tcp";
    is_everybody_s
        .then_some((of("hostPort")?.as_u64()?, of("containerPort")?.as_u64()?.try_into().unwrap()))
}

/// The outside reaches the container at each port of the host.
#[track_caller]
pub fn assert_published(lab: &Lab, container: &Container, ports: Vec<(u64, u16)>, place: &str) {
    for (port, inner) in ports {
        let _server = TcpServer::start(container, inner);
        let at = format!("{}:{port}", UPLINK[0]);
        let seen = connect(&lab.outside, &at);
        assert_eq!(seen.as_deref(), Some(OUTSIDE[0]), "{place}: {at}");
    }
}

#[track_caller]
pub fn assert_closed(lab: &Lab, ports: Vec<(u64, u16)>, place: &str) {
    for (port, _) in ports {
        assert_eq!(connect(&lab.host, &format!("{}:{port}", UPLINK[0])), None, "{place}");
    }
}

/// The addresses of a result with their prefixes.
pub fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap()).collect()
}

/// Without its bridges, which stay by contract, the host is as before.
#[track_caller]
pub fn assert_as_before(lab: &Lab, before: &Snapshot, bridges: BTreeSet<&str>, who: &str) {
    for bridge in bridges {
        lab.host.sh(&format!("ip link del {bridge}"));
    }
    let left = before.difference(&Snapshot::of_host(lab));
    assert!(left.is_empty(), "{who}: not as before:\n{left}");
}

/// Asserts that a call failed with the recorded message, which users of the runtime read; ours has
/// an error code as well.
#[track_caller]
fn assert_failed_as_recorded(peer: &Peer, outcome: &Outcome, recorded: &Recorded) {
    let error = outcome.err();
    assert_eq!(outcome.status, recorded.rc);
    if *peer == Peer::Ours {
        let words = recorded.stdout["msg"].as_str().unwrap().rsplit("range 0: ").next().unwrap();
        assert!(
            format!("{}; {}", error.msg, error.details).contains(words),
            "does not say {words:?}: {outcome:?}"
        );
        assert!(![0, 999].contains(&error.code), "{outcome:?}");
    } else {
        assert_eq!(outcome.json(), recorded.stdout);
    }
}

fn version_calls_get_the_recorded_answer(peer: &Peer) {
    for (runtime, recorded) in all_recorded(|call| call.command() == "VERSION") {
        let outcome = recorded.call(peer).run();
        assert_eq!(outcome.ok(), recorded.stdout, "{runtime}");
    }
}

fn status_calls_succeed_as_recorded(peer: &Peer) {
    for (runtime, mut recorded) in all_recorded(|call| call.command() == "STATUS") {
        let data = Scratch::new();
        recorded.stdin["ipam"]["dataDir"] = data.text().into();
        let outcome = recorded.call(peer).env("CNI_PATH", peer.dir().to_str().unwrap()).run();
        let is = (outcome.status, outcome.stdout.as_str());
        assert_eq!(is, (recorded.rc, ""), "{runtime}: {outcome:?}");
    }
}

/// The addresses in the results since the last DEL, recorded and replayed.
#[derive(Default)]
struct HandedOut {
    then: Vec<String>,
    now: Vec<String>,
}

impl HandedOut {
    /// Notes the addresses of both results, and writes the replayed ones into the expected result.
    fn take(&mut self, recorded: &Value, expected: &mut Value, result: &Value) {
        for (number, ip) in expected["ips"].as_array_mut().unwrap().iter_mut().enumerate() {
            let now = &result["ips"][number]["address"];
            self.then.push(recorded["ips"][number]["address"].as_str().unwrap().to_owned());
            self.now.extend(now.as_str().map(str::to_owned));
            ip["address"] = now.clone();
        }
    }

    #[track_caller]
    fn assert_same(&mut self, place: &str) {
        self.then.sort();
        self.now.sort();
        assert_eq!(self.now, self.then, "{place}");
        *self = HandedOut::default();
    }
}

/// The reference answers a configuration of version 0.3.1 in the form of 1.0.0, ours in the form of
/// 0.3.1.
fn loopback_tells_the_recorded_addresses(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for (runtime, recorded) in all_recorded(|call| call.plugin == "loopback") {
        let outcome = in_own_namespace(recorded.call(peer)).run();
        if recorded.command() == "DEL" {
            assert_silent_success(&outcome);
            continue;
        }
        let mut expected = recorded.stdout.clone();
        expected["interfaces"][0]["sandbox"] = "/proc/self/ns/net".into();
        if *peer == Peer::Ours {
            assert_eq!(recorded.stdin["cniVersion"], "0.3.1");
            expected["ips"][0]["version"] = "4".into();
            expected["ips"][1]["version"] = "6".into();
            expected["dns"] = json!({});
        }
        assert_eq!(outcome.ok(), expected, "{runtime}");
    }
}

/// Forwarding, which stays on, and the tables that iptables creates at its first use.
pub const LEFT_BY_CONTRACT: &str = "
    echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
    iptables -P FORWARD ACCEPT; ip6tables -P FORWARD ACCEPT";

/// Replays the calls of one runtime on a pretend host. Values that the kernel chooses replace the
/// recorded ones.
struct Replay {
    lab: Lab,
    /// By the recorded path of the namespace.
    containers: BTreeMap<String, (String, Container)>,
    handed_out: HandedOut,
    /// The container that publishes each port.
    ports: BTreeMap<u64, String>,
    /// Containers with a portmap ADD for a taken port; their later calls are skipped up to DEL.
    refused: BTreeSet<String>,
    /// Maps recorded MAC addresses, link names and namespaces to those of the replay.
    here: BTreeMap<String, String>,
}

impl Replay {
    fn new(peer: &Peer) -> Replay {
        let lab = Lab::new(peer.clone());
        Replay {
            lab,
            containers: BTreeMap::new(),
            handed_out: HandedOut::default(),
            ports: BTreeMap::new(),
            refused: BTreeSet::new(),
            here: BTreeMap::new(),
        }
    }

    /// Replays all plugins in the recorded order; checks the traffic and the kernel state on the
    /// way, and that nothing is left at the end.
    fn of_chains(peer: &Peer, (runtime, text): (&str, &str)) {
        let mut replay = Replay::new(peer);
        let is_wanted = |call: &Recorded| {
            !["host-local", "macvlan"].contains(&call.plugin.as_str())
                && call.stdin["name"] != "rt-mv"
                && !["VERSION", "STATUS"].contains(&call.command())
        };
        let calls: Vec<_> = recorded(text).into_iter().filter(is_wanted).collect();
        if calls.iter().any(|call| call.plugin == "bandwidth") && !can_limit(&replay.lab) {
            return;
        }
        replay.lab.host.sh(LEFT_BY_CONTRACT);
        let before = Snapshot::of_host(&replay.lab);
        for (number, recorded) in calls.iter().enumerate() {
            let place =
                format!("{runtime}, call {number}, {} {}", recorded.command(), recorded.plugin);
            if replay.is_to_be_refused(recorded) {
                continue;
            }
            let result = replay.repeat(recorded, &place);
            replay.assert_done(recorded, &result, &place);
        }
        assert!(!replay.here.is_empty(), "{runtime} called nothing");
        replay.assert_no_veth_is_left(runtime);
        if *peer == Peer::Ours {
            let bridges = calls.iter().filter_map(|call| call.stdin["bridge"].as_str());
            assert_as_before(&replay.lab, &before, bridges.collect(), runtime);
        }
    }

    /// podman detects a taken port only after its plugins have published it, and the reference
    /// plugins publish it. Ours refuse, so the recorded calls for that container are skipped until
    /// its DEL.
    fn is_to_be_refused(&mut self, recorded: &Recorded) -> bool {
        let id = &recorded.env["CNI_CONTAINERID"];
        if recorded.command() == "DEL" {
            self.refused.remove(id);
        }
        let asked: Vec<u64> = ports(recorded).iter().map(|(port, _)| *port).collect();
        match (recorded.plugin.as_str(), recorded.command()) {
            ("portmap", "DEL") => self.ports.retain(|_, owner| owner != id),
            ("portmap", "ADD") if asked.iter().any(|port| self.ports.contains_key(port)) => {
                assert!(self.refused.insert(id.clone()), "{id} asked twice");
                if self.lab.peer == Peer::Ours {
                    assert_eq!(self.prepare(recorded).run().err().code, 102, "{id}");
                } else {
                    self.prepare(recorded).run().ok();
                }
            }
            ("portmap", "ADD") => {
                self.ports.extend(asked.into_iter().map(|port| (port, id.clone())))
            }
            _ => (),
        }
        self.refused.contains(id)
    }

    /// Asserts the effect of a successful call, as seen from outside the plugin.
    fn assert_done(&self, recorded: &Recorded, result: &Value, place: &str) {
        let container =
            self.containers.get(&recorded.env["CNI_NETNS"]).map(|(_, container)| container);
        match (recorded.plugin.as_str(), recorded.command(), container) {
            ("bridge", "ADD", Some(container)) if recorded.rc == 0 => {
                let addresses = addresses(result);
                assert_eq!(container.addresses(&recorded.env["CNI_IFNAME"]), addresses, "{place}");
            }
            ("portmap", "ADD", Some(container)) => {
                assert_published(&self.lab, container, ports(recorded), place);
            }
            ("portmap", "DEL", _) => {
                assert_closed(&self.lab, ports(recorded), place);
            }
            ("tuning", "ADD", Some(container)) if recorded.stdin["mtu"].is_number() => {
                assert_eq!(
                    container.link("eth0").unwrap()["mtu"],
                    recorded.stdin["mtu"],
                    "{place}"
                );
            }
            ("bandwidth", "ADD", Some(_))
                if recorded.stdin["runtimeConfig"]["bandwidth"].is_object() =>
            {
                let limited = self.lab.host.sh("tc qdisc show").matches(" tbf ").count();
                assert!(limited >= 2, "{place}: one a direction");
            }
            ("bridge", "DEL", Some(container)) => {
                assert_eq!(container.link(&recorded.env["CNI_IFNAME"]), None, "{place}");
            }
            _ => (),
        }
    }

    /// The recorded call with the values of the replay.
    fn prepare(&self, recorded: &Recorded) -> Call {
        let mut call = recorded.call(&self.lab.peer).wrapped(&self.lab.host.enter);
        call.stdin = self.translate(&recorded.stdin).to_string().into_bytes();
        call.env.insert("CNI_NETNS".to_owned(), self.translate_text(&recorded.env["CNI_NETNS"]));
        let args = recorded.env["CNI_ARGS"].split_inclusive([';', '=']);
        let args = args
            .map(|word| word.trim_end_matches([';', '=']))
            .zip(recorded.env["CNI_ARGS"].split_inclusive([';', '=']));
        let args: String = args
            .map(|(word, with_end)| self.translate_text(word) + &with_end[word.len()..])
            .collect();
        let path = self.lab.peer.dir().to_str().unwrap(); // not that of the record
        call.env("CNI_ARGS", &args).env("CNI_PATH", path)
    }

    /// Makes the call; returns its result, or null without one.
    fn repeat(&mut self, recorded: &Recorded, place: &str) -> Value {
        self.follow_the_namespace(recorded);
        let call = self.prepare(recorded);
        let outcome = call.run();
        if recorded.rc != 0 {
            assert_failed_as_recorded(&self.lab.peer, &outcome, recorded);
            Value::Null
        } else if recorded.command() == "ADD" {
            let result = outcome.ok();
            self.assert_answer(recorded, &call.env["CNI_ARGS"], &result, place);
            result
        } else {
            assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{place}: {outcome:?}");
            self.handed_out.assert_same(place);
            Value::Null
        }
    }

    fn assert_answer(&mut self, recorded: &Recorded, args: &str, result: &Value, place: &str) {
        let mut expected = self.translate(&recorded.stdout);
        match recorded.plugin.as_str() {
            // Another case checks the form of the result.
            "loopback" => return assert_eq!(result["ips"][0]["address"], "127.0.0.1/8", "{place}"),
            "bridge" => self.take_what_is_chosen_anew(&recorded.stdout, &mut expected, result),
            "bandwidth" => self.take_ifb(&mut expected, result),
            "tuning" if self.lab.peer == Peer::Ours && recorded.stdin["mtu"].is_number() => {
                let links = expected["interfaces"].as_array_mut().unwrap().iter_mut();
                let own = links.filter(|link| link.get("sandbox").is_some());
                own.for_each(|link| link["mtu"] = recorded.stdin["mtu"].clone()); // the reference reports the old MTU
            }
            _ => (),
        }
        assert_eq!(*result, expected, "{place}");
        if let Some((_, asked)) = args.split_once("MAC=").filter(|_| recorded.plugin == "bridge") {
            assert_eq!(result["interfaces"][2]["mac"], asked.split(';').next().unwrap(), "{place}");
        }
    }

    /// Creates and deletes namespaces as the runtime does: one exists before a call names it, and
    /// is gone when DEL no longer names it.
    fn follow_the_namespace(&mut self, recorded: &Recorded) {
        let (netns, id) = (&recorded.env["CNI_NETNS"], &recorded.env["CNI_CONTAINERID"]);
        if recorded.command() == "DEL" && netns.is_empty() {
            self.containers.retain(|_, (container_id, container)| {
                let is_gone = container_id == id;
                if is_gone {
                    container.vanish();
                }
                !is_gone
            });
        } else if !netns.is_empty() && !self.here.contains_key(netns) {
            let container = self.lab.container();
            self.here.insert(netns.clone(), container.netns.clone());
            self.containers.insert(netns.clone(), (id.clone(), container));
        }
    }

    /// Takes over the MAC addresses, the name of the host's veth, and the IP addresses.
    fn take_what_is_chosen_anew(&mut self, recorded: &Value, expected: &mut Value, result: &Value) {
        for (number, interface) in
            expected["interfaces"].as_array_mut().unwrap().iter_mut().enumerate()
        {
            let (then, now) = (&recorded["interfaces"][number], &result["interfaces"][number]);
            let is_veth = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("veth"));
            for key in ["mac", "name"] {
                if key == "mac" && now[key].is_string() || is_veth(&then[key]) && is_veth(&now[key])
                {
                    self.here.insert(
                        then[key].as_str().unwrap().to_owned(),
                        now[key].as_str().unwrap().to_owned(),
                    );
                    interface[key] = now[key].clone();
                }
            }
        }
        self.handed_out.take(recorded, expected, result);
        for (then, now) in
            recorded["ips"].as_array().unwrap().iter().zip(result["ips"].as_array().unwrap())
        {
            let [then, now] = [then, now].map(|ip| ip["address"].as_str().unwrap().to_owned());
            self.here.insert(then, now);
        }
    }

    /// Takes over the link that bandwidth creates: its name is derived from the container id, and
    /// the kernel chooses its MAC address.
    fn take_ifb(&self, expected: &mut Value, result: &Value) {
        for (interface, now) in expected["interfaces"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .zip(result["interfaces"].as_array().unwrap())
        {
            let is_ifb = |link: &Value| link["name"].as_str().unwrap().starts_with("bwp");
            if is_ifb(interface) && is_ifb(now) {
                *interface = now.clone();
            }
        }
    }

    fn translate_text(&self, text: &str) -> String {
        self.here.get(text).map_or(text, String::as_str).to_owned()
    }

    fn translate(&self, recorded: &Value) -> Value {
        match recorded {
            Value::String(text) => self.translate_text(text).into(),
            Value::Array(list) => list.iter().map(|value| self.translate(value)).collect(),
            Value::Object(object) => {
                object.iter().map(|(key, value)| (key.clone(), self.translate(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// The kernel destroys a removed namespace asynchronously.
    fn assert_no_veth_is_left(&self, runtime: &str) {
        let deadline = Instant::now() + patience(10);
        loop {
            let links = self.lab.host.json("ip -j link show type veth");
            let is_ours = |link: &&Value| {
                link["ifname"].as_str().is_some_and(|name| name.starts_with("veth"))
            };
            let left: Vec<_> = links.as_array().unwrap().iter().filter(is_ours).collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{runtime}: left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
