//! Replays the calls of runtimes as their sources make them: for runtimes that no package lets us
//! record, and for calls that are in no recording. Recorded calls are in `traces.rs`.
//!
//! `fixtures/callers/<runtime>.json` has networks as the runtime writes them, and operations in its
//! order. Requests are derived as libcni does it, with `capabilities` left in.

use std::collections::BTreeMap;
use std::thread;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::attachment::with;
use crate::support::call::{Call, Outcome, Peer};
use crate::support::netns::{Container, Lab, OUTSIDE};
use crate::support::networks::bandwidth::can_limit;
use crate::support::peers::peers;
use crate::support::snapshot::Snapshot;
use crate::support::traffic::assert_pings;
use crate::traces::{
    LEFT_BY_CONTRACT, addresses, assert_as_before, assert_closed, assert_published, published,
};

peers! {
    containerd_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/containerd.json"));
    cri_o_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/cri-o.json"));
    ocicni_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/ocicni.json"));
    podman_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/podman.json"));
    nerdctl_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/nerdctl.json"));
    nomad_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/nomad.json"));
    multus_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/multus.json"));
    cri_dockerd_s_calls_work = |peer| replay(peer, include_str!("fixtures/callers/cri-dockerd.json"));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Script {
    #[serde(rename = "caller")]
    _caller: String,
    /// CHECK and DEL have the arguments of the ADD, from libcni's cache, while it has a record.
    #[serde(default)]
    cached: bool,
    networks: Vec<Value>,
    calls: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    /// Operations that the runtime starts concurrently.
    Together {
        together: Vec<Operation>,
    },
    One(Box<Operation>),
}

/// One operation on a network: a call of each of its plugins.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Operation {
    command: String,
    /// The first network if absent.
    network: Option<String>,
    #[serde(default)]
    container: String,
    #[serde(default = "eth0")]
    ifname: String,
    /// The path of the namespace is that of a process.
    #[serde(default)]
    process: bool,
    /// CNI_NETNS: the container's path, or `` (nothing), `gone` (its path after its removal),
    /// `invalid` (another file).
    netns: Option<String>,
    /// The namespace was removed before the call.
    #[serde(default)]
    gone: bool,
    /// CNI_ARGS, where `ID` stands for the container's ID.
    #[serde(default)]
    args: String,
    #[serde(default)]
    capability_args: Value,
    /// The containers that GC gets as valid, each with `ifname`, or null.
    #[serde(default)]
    valid: Value,
    /// An address that the result must have.
    address: Option<String>,
    /// The hardware address that the interface must have.
    mac: Option<String>,
    /// The call fails with these words in the message.
    fails: Option<String>,
    /// Why the operation is left out for the reference.
    ours: Option<String>,
}

fn eth0() -> String {
    "eth0".to_owned()
}

fn replay(peer: &Peer, text: &str) {
    let script: Script = serde_json::from_str(text).unwrap();
    let mut runtime = Runtime::new(peer, script.networks, script.cached);
    if runtime.calls("bandwidth") && !can_limit(&runtime.lab) {
        return;
    }
    runtime.lab.host.sh(LEFT_BY_CONTRACT);
    let before = Snapshot::of_host(&runtime.lab);
    for (number, step) in script.calls.into_iter().enumerate() {
        let operations = match step {
            Step::Together { together } => together,
            Step::One(operation) => vec![*operation],
        };
        let is_wanted = |operation: &Operation| operation.ours.is_none() || *peer == Peer::Ours;
        runtime.operate(operations.into_iter().filter(is_wanted).collect(), number);
    }
    if *peer == Peer::Ours {
        let plugins = runtime.networks.iter().flat_map(|list| list["plugins"].as_array().unwrap());
        let bridges = plugins.filter_map(|plugin| plugin["bridge"].as_str());
        assert_as_before(&runtime.lab, &before, bridges.collect(), "the caller");
    }
}

/// A runtime as its plugins see it.
struct Runtime {
    lab: Lab,
    networks: Vec<Value>,
    containers: BTreeMap<String, Pod>,
    /// The result cache.
    results: BTreeMap<[String; 3], Value>,
    /// CNI_ARGS and capability arguments in the cache, where the runtime takes them from there.
    arguments: Option<BTreeMap<[String; 3], (String, Value)>>,
}

struct Pod {
    id: String,
    /// None after its removal.
    container: Option<Container>,
    netns: String,
}

impl Runtime {
    fn new(peer: &Peer, networks: Vec<Value>, cached: bool) -> Runtime {
        Runtime {
            lab: Lab::new(peer.clone()),
            networks,
            containers: BTreeMap::new(),
            results: BTreeMap::new(),
            arguments: cached.then(BTreeMap::new),
        }
    }

    fn calls(&self, plugin: &str) -> bool {
        let plugins =
            self.networks.iter().flat_map(|network| network["plugins"].as_array().unwrap());
        plugins.into_iter().any(|conf| conf["type"] == plugin)
    }

    fn operate(&mut self, operations: Vec<Operation>, number: usize) {
        operations.iter().for_each(|operation| self.prepare(operation));
        let this = &*self;
        let outcomes: Vec<Result<Value, Outcome>> = thread::scope(|scope| {
            let running: Vec<_> = operations
                .iter()
                .map(|operation| scope.spawn(|| this.run_all(operation)))
                .collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (operation, outcome) in operations.iter().zip(outcomes) {
            let place = format!("call {number}, {} {}", operation.command, operation.container);
            match (outcome, &operation.fails) {
                (Ok(result), None) => self.finish(operation, result, &place),
                (Err(failed), Some(words)) => {
                    let text = failed.err().text();
                    assert!(text.contains(words), "{place}: {text:?} does not say {words:?}");
                }
                (outcome, _) => panic!("{place}: {outcome:?}"),
            }
        }
    }

    /// Brings the container into its state at the time of the call.
    fn prepare(&mut self, operation: &Operation) {
        let number = self.containers.len() + 1;
        let lab = &self.lab;
        let pod = self.containers.entry(operation.container.clone()).or_insert_with(|| {
            let container =
                if operation.process { lab.container_of_process() } else { lab.container() };
            Pod {
                id: format!("{number:064x}"),
                netns: container.netns.clone(),
                container: Some(container),
            }
        });
        if operation.gone || operation.netns.as_deref() == Some("gone") {
            pod.container.take().inspect(Container::vanish);
        }
    }

    fn network(&self, operation: &Operation) -> &Value {
        let wanted = |network: &&Value| {
            operation.network.as_ref().is_none_or(|name| network["name"] == **name)
        };
        self.networks.iter().find(wanted).unwrap()
    }

    fn key(&self, operation: &Operation) -> [String; 3] {
        let network = self.network(operation)["name"].as_str().unwrap();
        [network, &operation.container, &operation.ifname].map(str::to_owned)
    }

    /// CNI_ARGS and capability arguments.
    fn arguments(&self, operation: &Operation) -> (String, Value) {
        let cached = self.arguments.as_ref().filter(|_| operation.command != "ADD");
        cached.and_then(|cached| cached.get(&self.key(operation)).cloned()).unwrap_or_else(|| {
            let id = &self.containers[&operation.container].id;
            let args = operation.args.replace("=ID;", &format!("={id};"));
            (args, operation.capability_args.clone())
        })
    }

    /// Calls all plugins. Returns the last result or the first failure.
    fn run_all(&self, operation: &Operation) -> Result<Value, Outcome> {
        let network = self.network(operation);
        let version = network["cniVersion"].as_str().unwrap();
        let mut plugins: Vec<&Value> = network["plugins"].as_array().unwrap().iter().collect();
        if operation.command == "DEL" {
            plugins.reverse();
        }
        let mut previous = match operation.command.as_str() {
            "CHECK" | "DEL" if version >= "0.4.0" => {
                self.results.get(&self.key(operation)).cloned()
            }
            _ => None,
        };
        for plugin in plugins {
            let outcome = self.call(operation, plugin, previous.as_ref()).run();
            if outcome.status != 0 {
                return Err(outcome);
            }
            match operation.command.as_str() {
                "ADD" => previous = Some(outcome.ok()),
                "VERSION" => {
                    let answer = outcome.ok();
                    let supported = answer["supportedVersions"].as_array().unwrap();
                    assert!(supported.contains(&json!(version)), "{plugin}: {supported:?}");
                }
                _ => assert_eq!(outcome.stdout, "", "{plugin}"),
            }
        }
        Ok(previous.filter(|_| operation.command == "ADD").unwrap_or_default())
    }

    /// The request for one plugin, as libcni derives it.
    fn call(&self, operation: &Operation, plugin: &Value, previous: Option<&Value>) -> Call {
        let network = self.network(operation);
        let mut conf =
            with(plugin, json!({"name": network["name"], "cniVersion": network["cniVersion"]}));
        let pod = &self.containers[&operation.container];
        let is_declared = |capability: &str| plugin["capabilities"][capability] == true;
        let (args, capability_args) = self.arguments(operation);
        let capability_args = capability_args.as_object().cloned().unwrap_or_default();
        let declared: serde_json::Map<_, _> =
            capability_args.into_iter().filter(|(name, _)| is_declared(name)).collect();
        if !declared.is_empty() {
            conf["runtimeConfig"] = declared.into();
        }
        if let Some(previous) = previous {
            conf["prevResult"] = previous.clone();
        }
        let id_of = |name: &Value| self.containers[name.as_str().unwrap()].id.clone();
        if operation.command == "GC" {
            let valid = operation.valid.as_array().map(|names| {
                names
                    .iter()
                    .map(|name| json!({"containerID": id_of(name), "ifname": operation.ifname}))
                    .collect::<Vec<_>>()
            });
            conf["cni.dev/valid-attachments"] = valid.clone().into();
            conf["cni.dev/attachments"] = valid.into();
        }
        let (netns, ifname, path) = match operation.command.as_str() {
            "VERSION" => ("dummy", "dummy", "dummy"),
            "GC" | "STATUS" => ("", "", self.lab.peer.dir().to_str().unwrap()),
            _ => (
                self.netns(operation),
                operation.ifname.as_str(),
                self.lab.peer.dir().to_str().unwrap(),
            ),
        };
        let is_of_container = !["VERSION", "GC", "STATUS"].contains(&operation.command.as_str());
        let stdin = if netns == "dummy" { json!({"cniVersion": "1.1.0"}) } else { conf };
        Call::new(
            &self.lab.peer,
            plugin["type"].as_str().unwrap(),
            &operation.command,
            stdin.to_string(),
        )
        .env("CNI_CONTAINERID", if is_of_container { pod.id.as_str() } else { "" })
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", ifname)
        .env("CNI_ARGS", &args)
        .env("CNI_PATH", path)
        .wrapped(&self.lab.host.enter)
    }

    fn netns<'a>(&'a self, operation: &'a Operation) -> &'a str {
        match operation.netns.as_deref() {
            None | Some("gone") => &self.containers[&operation.container].netns,
            Some("invalid") => "/proc/self/status",
            Some(path) => path,
        }
    }

    /// Asserts the effects of a successful operation.
    fn finish(&mut self, operation: &Operation, result: Value, place: &str) {
        let key = self.key(operation);
        let container = self.containers[&operation.container].container.as_ref();
        let arguments = self.arguments(operation);
        let mappings = arguments.1["portMappings"].as_array();
        let ports = mappings.into_iter().flatten().filter_map(published).collect();
        match (operation.command.as_str(), container) {
            ("ADD", Some(container)) => {
                let ips: Vec<&str> = match result.get("ips") {
                    Some(_) => addresses(&result),
                    None => vec![result["ip4"]["ip"].as_str().unwrap()], // 0.2.0 has another form
                };
                if operation.ifname == "lo" {
                    assert!(container.sh("ip addr show dev lo").contains(ips[0]), "{place}");
                    container.sh("ping -c 1 -W 2 127.0.0.1");
                } else {
                    assert_eq!(container.addresses(&operation.ifname), ips, "{place}");
                    assert!(
                        operation.address.iter().all(|address| ips.contains(&address.as_str())),
                        "{place}: {ips:?}"
                    );
                }
                if let Some(mac) = &operation.mac {
                    let link = container.link(&operation.ifname).unwrap();
                    assert_eq!(link["address"], **mac, "{place}");
                }
                if self.network(operation)["plugins"].to_string().contains("\"ipMasq\":true") {
                    assert_pings(container, OUTSIDE[0]);
                }
                assert_published(&self.lab, container, ports, place);
                self.results.insert(key.clone(), result);
                self.arguments.iter_mut().for_each(|cached| {
                    cached.insert(key.clone(), arguments.clone());
                });
            }
            ("DEL", container) => {
                if let Some(container) =
                    container.filter(|_| operation.ifname != "lo" && operation.netns.is_none())
                {
                    assert_eq!(container.link(&operation.ifname), None, "{place}");
                }
                assert_closed(&self.lab, ports, place);
                self.results.remove(&key);
                self.arguments.iter_mut().for_each(|cached| drop(cached.remove(&key)));
            }
            _ => (),
        }
    }
}
