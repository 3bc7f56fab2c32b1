//! One attachment and the commands that a runtime runs on it.

use serde_json::{Value, json};

use crate::support::attachment::Attachment;
use crate::support::call::{Call, Outcome, farm};
use crate::support::netns::{Container, Lab};
use crate::support::subject::{Subject, in_a_lab};

/// The caller of the plugins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// One process per plugin, as libcni does it.
    EachAlone,
    /// `cni-multi net`: the whole list in one process, with the result in the cache.
    Net,
}

/// The operations that are swept.
pub const OPERATIONS: [&str; 4] = ["ADD", "DEL", "GC", "CHECK"];

/// One test per subject with one process per plugin, and two with the whole list in one process.
macro_rules! test_each_runtime {
    ($sweep:path) => {
        fn each_alone(lab: &$crate::support::netns::Lab, subject: &$crate::support::subject::Subject) {
            $sweep(lab, subject, $crate::faults::life::Runtime::EachAlone);
        }

        $crate::support::subject::test_each_subject!(each_alone);

        $crate::support::peers::tests! {
            a_chain_of_five_by_net = $crate::faults::life::by_net("bridge, portmap, firewall, tuning, bandwidth", $sweep);
            a_chain_on_macvlan_by_net = $crate::faults::life::by_net("macvlan, tuning, sbr", $sweep);
        }
    };
}
pub(super) use test_each_runtime;

pub fn by_net(subject: &str, sweep: fn(&Lab, &Subject, Runtime)) {
    in_a_lab(subject, |lab, subject| sweep(lab, subject, Runtime::Net));
}

/// A container on a network.
pub struct Life<'a> {
    pub container: &'a Container,
    lab: &'a Lab,
    runtime: Runtime,
    plugins: Vec<Attachment<'a>>,
    /// The directory in which `cni-multi net` finds the network.
    conf_dir: &'static str,
    /// Other attachments of the network, which GC gets as valid.
    others: Vec<(String, String)>,
}

impl<'a> Life<'a> {
    pub fn new(
        lab: &'a Lab,
        runtime: Runtime,
        subject: &Subject,
        container: &'a Container,
    ) -> Life<'a> {
        let (plugins, conf_dir) = (subject.attach(lab, container), "/run/net.d");
        Life { container, lab, runtime, plugins, conf_dir, others: vec![] }
    }

    /// Uses a separate configuration directory.
    pub fn configured_in(mut self, conf_dir: &'static str) -> Life<'a> {
        self.conf_dir = conf_dir;
        self
    }

    /// Makes GC spare that attachment.
    pub fn beside(mut self, other: Option<&Life<'_>>) -> Life<'a> {
        self.others.extend(other.map(Life::key));
        self
    }

    fn key(&self) -> (String, String) {
        (self.plugins[0].container_id.clone(), self.plugins[0].ifname.clone())
    }

    pub fn is_net(&self) -> bool {
        self.runtime == Runtime::Net
    }

    /// The number of processes per command.
    pub fn steps(&self) -> usize {
        if self.is_net() { 1 } else { self.plugins.len() }
    }

    /// The plugin that a step calls, for messages.
    pub fn step_name(&self, step: usize) -> &str {
        if self.is_net() { "net" } else { self.plugins[step].conf["type"].as_str().unwrap() }
    }

    pub fn call(&self, step: usize, command: &str, previous: &Value) -> Call {
        let plugin = &self.plugins[step];
        match (self.runtime, command) {
            (Runtime::Net, command) => self.net(&command.to_lowercase()),
            (_, "GC") => {
                let others = self.others.iter();
                let valid: Value = others
                    .map(|(id, ifname)| json!({"containerID": id, "ifname": ifname}))
                    .collect();
                plugin.clone().conf(json!({"cni.dev/valid-attachments": valid})).call("GC", None)
            }
            (_, command) => plugin.call(command, Some(previous)),
        }
    }

    fn net(&self, command: &str) -> Call {
        let options = if command == "gc" {
            // A killed process leaves objects without a record, and its container still exists.
            "--unrecorded --output json".to_owned()
        } else {
            let Container { id, netns, .. } = self.container;
            format!("{netns} --container-id {id} --ifname {}", self.plugins[0].ifname)
        };
        let dirs = format!("--conf-dir {} --plugin-path {}", self.conf_dir, farm().display());
        let line = format!("net {command} net1 {options} {dirs}");
        Call::cni_multi(&self.lab.host.enter, line.split(' '))
    }

    /// ADD of the first `steps` plugins in order. Returns the last result.
    pub fn try_add(&self, steps: usize) -> Result<Value, Outcome> {
        (0..steps).try_fold(Value::Null, |result, step| {
            let outcome = self.call(step, "ADD", &result).run();
            if outcome.status == 0 { Ok(outcome.ok()) } else { Err(outcome) }
        })
    }

    #[track_caller]
    pub fn add(&self, steps: usize) -> Value {
        self.try_add(steps).unwrap_or_else(|outcome| panic!("ADD failed: {outcome:?}"))
    }

    #[track_caller]
    pub fn check(&self, result: &Value) {
        (0..self.steps()).for_each(|step| assert_ok(&self.call(step, "CHECK", result), "CHECK"));
    }

    /// DEL of the whole list, last plugin first.
    #[track_caller]
    pub fn del(&self, result: &Value) {
        let steps = (0..self.steps()).rev();
        steps.for_each(|step| assert_ok(&self.call(step, "DEL", result), "DEL"));
    }

    /// DEL of the whole list without CNI_NETNS.
    #[track_caller]
    pub fn del_without_netns(&self) {
        let bare = |step| self.call(step, "DEL", &Value::Null).without("CNI_NETNS");
        let steps = (0..self.steps()).rev();
        steps.for_each(|step| assert_ok(&bare(step), "DEL without CNI_NETNS"));
    }

    #[track_caller]
    pub fn gc(&self) {
        let none = &Value::Null;
        (0..self.steps()).for_each(|step| assert_ok(&self.call(step, "GC", none), "GC"));
    }
}

#[track_caller]
fn assert_ok(call: &Call, what: &str) {
    let outcome = call.run();
    assert_eq!(outcome.status, 0, "{what} failed: {outcome:?}");
}

/// Writes the network as an operator's file.
pub fn configure(lab: &Lab, subject: &Subject, conf_dir: &str) {
    let list = json!({"cniVersion": "1.1.0", "name": "net1", "plugins": subject.plugins});
    lab.write(&format!("{conf_dir}/net1.conflist"), list);
}
