//! One attachment of one container: ADD, CHECK and DEL with what a runtime would send.

use serde_json::{Value, json};

use super::call::{Call, Outcome, Peer, farm};
use super::case;
use super::extent::{is_emulated, is_long};
use super::netns::{Container, Lab};
pub use super::programs::{has_programs, skip};

/// Every value of `cniVersion`: absent, and each released version.
pub const EVERY_VERSION: [Option<&str>; 8] = [
    None,
    Some("0.1.0"),
    Some("0.2.0"),
    Some("0.3.0"),
    Some("0.3.1"),
    Some("0.4.0"),
    Some("1.0.0"),
    Some("1.1.0"),
];

/// Runs a case in a lab of its own for each peer that has the plugin: ours once it is built, and
/// the reference where `CNI_REFERENCE` is set.
///
/// The reference passes the same cases from one version of ours to the next, and takes longer than ours: a run of
/// `tests/run` has it in a quarter of them, and the virtual machine in none. Where the two differ, both are always run.
pub fn for_each_peer(plugin: &str, case: impl Fn(&Lab)) {
    let is_compared = is_long() || !is_emulated() && case::is_its_turn(4);
    let compared = if is_compared { Peer::all() } else { vec![Peer::Ours] };
    let peers: Vec<Peer> = compared.into_iter().filter(|peer| has(peer, plugin)).collect();
    if peers.is_empty() {
        skip(&format!("plugin {plugin} (ours or CNI_REFERENCE with specification 1.1.0)"));
    }
    case::run(|| peers.into_iter().for_each(|peer| in_a_lab(peer, &case)));
}

/// Runs a case that only our plugin is expected to pass. `tests/differences` records what the
/// reference does instead.
pub fn for_ours(plugin: &str, case: impl Fn(&Lab)) {
    if has(&Peer::Ours, plugin) {
        case::run(|| in_a_lab(Peer::Ours, &case));
    } else {
        skip(&format!("our plugin {plugin}"));
    }
}

/// Runs a case that shows how the reference differs, if the reference is installed.
pub fn for_reference(plugin: &str, case: impl Fn(&Lab)) {
    match reference_with(plugin) {
        Some(peer) => case::run(|| in_a_lab(peer, &case)),
        None => not_compared("specification 1.1.0"),
    }
}

/// The reference, if its version is the one described: plugins before 1.6 behave differently.
pub fn reference_with(plugin: &str) -> Option<Peer> {
    Peer::reference().filter(|peer| has(peer, plugin))
}

fn in_a_lab(peer: Peer, case: &impl Fn(&Lab)) {
    eprintln!("with {peer:?}:"); // shown when the case fails
    case(&Lab::new(peer));
}

/// Whether the peer has the plugin. A reference before 1.6 behaves differently from the one
/// described; only the upgrade tests use one.
pub fn has(peer: &Peer, plugin: &str) -> bool {
    match peer {
        Peer::Ours => farm().join(plugin).exists(),
        Peer::Reference(dir) => {
            dir.join(plugin).exists()
                && Call::new(peer, plugin, "VERSION", "").run().stdout.contains("\"1.1.0\"")
        }
    }
}

/// Reports that there is no reference plugin to compare with, or none with the feature of the case.
/// This is not a missing kernel feature, so no other tier could run the comparison; tests/run says
/// at its start whether there is a reference.
pub fn not_compared(needs: &str) {
    eprintln!("not compared: CNI_REFERENCE names no plugins with {needs}");
}

/// A configuration with some keys changed; null removes one (RFC 7396).
pub fn with(base: &Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { return changes };
    let mut merged = base.as_object().cloned().unwrap_or_default();
    for (key, change) in changes {
        if change.is_null() {
            merged.remove(&key);
        } else {
            let changed = with(merged.get(&key).unwrap_or(&Value::Null), change);
            merged.insert(key, changed);
        }
    }
    merged.into()
}

/// A container on a network.
#[derive(Clone)]
pub struct Attachment<'a> {
    lab: &'a Lab,
    pub conf: Value,
    pub container_id: String,
    pub ifname: String,
    pub netns: Option<String>,
    pub args: Option<String>,
    by: Peer,
}

impl Lab {
    /// An attachment before its ADD; the plugin is the configuration's `type`.
    pub fn attach(&self, container: &Container, conf: &Value) -> Attachment<'_> {
        self.attach_at(&container.id, &container.netns, conf)
    }

    /// As `attach`, for a container that the lab did not create.
    pub fn attach_at(&self, id: &str, netns: &str, conf: &Value) -> Attachment<'_> {
        Attachment {
            lab: self,
            conf: conf.clone(),
            container_id: id.to_owned(),
            ifname: "eth0".to_owned(),
            netns: Some(netns.to_owned()),
            args: None,
            by: self.peer.clone(),
        }
    }
}

impl Attachment<'_> {
    pub fn ifname(mut self, ifname: &str) -> Self {
        ifname.clone_into(&mut self.ifname);
        self
    }

    pub fn id(mut self, container_id: &str) -> Self {
        container_id.clone_into(&mut self.container_id);
        self
    }

    pub fn netns(mut self, path: Option<&str>) -> Self {
        self.netns = path.map(str::to_owned);
        self
    }

    /// CNI_ARGS.
    pub fn args(mut self, args: &str) -> Self {
        self.args = Some(args.to_owned());
        self
    }

    pub fn conf(mut self, changes: Value) -> Self {
        self.conf = with(&self.conf, changes);
        self
    }

    /// Runs the plugins of another peer: an upgrade or a rollback.
    pub fn by(mut self, peer: &Peer) -> Self {
        self.by = peer.clone();
        self
    }

    /// The call as a runtime would make it; cases about the call itself change it. A null is no result.
    pub fn call(&self, command: &str, prev_result: Option<&Value>) -> Call {
        let mut conf = self.conf.clone();
        if let Some(prev) = prev_result.filter(|prev| !prev.is_null()) {
            conf["prevResult"] = prev.clone();
        }
        let mut call =
            Call::new(&self.by, conf["type"].as_str().unwrap(), command, conf.to_string())
                .env("CNI_CONTAINERID", &self.container_id)
                .env("CNI_IFNAME", &self.ifname)
                .without("CNI_NETNS")
                .wrapped(&self.lab.host.enter);
        if let Some(netns) = &self.netns {
            call = call.env("CNI_NETNS", netns);
        }
        if let Some(args) = &self.args {
            call = call.env("CNI_ARGS", args);
        }
        call
    }

    pub fn try_add(&self) -> Outcome {
        self.call("ADD", None).run()
    }

    /// ADD that has to succeed; returns its result.
    #[track_caller]
    pub fn add(&self) -> Value {
        self.try_add().ok()
    }

    pub fn check(&self, result: &Value) -> Outcome {
        self.call("CHECK", Some(result)).run()
    }

    pub fn try_del(&self) -> Outcome {
        self.call("DEL", None).run()
    }

    /// DEL that has to succeed with an empty stdout.
    #[track_caller]
    pub fn del(&self) {
        assert_eq!(self.try_del().ok(), Value::Null, "DEL has no result");
    }

    pub fn status(&self) -> Outcome {
        self.call("STATUS", None).run()
    }

    /// CHECK exists from version 0.4.0 on, STATUS and GC from 1.1.0; each has to succeed on what
    /// ADD created.
    #[track_caller]
    pub fn assert_operations_of(&self, version: &str, result: &Value) {
        let (check, others) =
            (self.check(result), [self.status(), self.gc(&[(&self.container_id, &self.ifname)])]);
        if version < "0.4.0" {
            assert_eq!(check.err().code, 1, "{version} has no CHECK");
        } else {
            check.ok();
        }
        for outcome in others {
            if version < "1.1.0" {
                assert_eq!(outcome.err().code, 1, "{version} has neither STATUS nor GC");
            } else {
                assert_eq!(outcome.ok(), Value::Null);
            }
        }
    }

    /// GC with the attachments that are still valid.
    pub fn gc(&self, valid: &[(&str, &str)]) -> Outcome {
        let valid: Vec<Value> =
            valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
        self.clone().conf(json!({"cni.dev/valid-attachments": valid})).call("GC", None).run()
    }
}

/// The addresses of a result, without their prefixes.
pub fn ips(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap_or_else(|| panic!("no ips in {result}"));
    ips.iter()
        .map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
        .collect()
}

/// The name of the interface at this index of a result.
pub fn interface(result: &Value, at: usize) -> String {
    result["interfaces"][at]["name"]
        .as_str()
        .unwrap_or_else(|| panic!("no interfaces[{at}].name in {result}"))
        .to_owned()
}
