//! One attachment and the commands that a runtime runs on it.

use serde_json::{Value, json};

use crate::support::attachment::Attachment;
use crate::support::call::{Call, Outcome, binary, farm};
use crate::support::netns::{Container, Lab};
use crate::support::subject::Subject;

/// The caller of the plugins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// One process per plugin, as libcni does it.
    EachAlone,
    /// `cni-multi net`: the whole list in one process, with the result in the cache.
    Net,
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
                let valid: Vec<Value> = self
                    .others
                    .iter()
                    .map(|(id, ifname)| json!({"containerID": id, "ifname": ifname}))
                    .collect();
                plugin.clone().conf(json!({"cni.dev/valid-attachments": valid})).call("GC", None)
            }
            (_, command) => plugin.call(command, (!previous.is_null()).then_some(previous)),
        }
    }

    fn net(&self, command: &str) -> Call {
        let mut args = vec!["net".to_owned(), command.to_owned(), "net1".to_owned()];
        if command == "gc" {
            // A killed process leaves objects without a record, and its container still exists.
            args.extend(["--unrecorded", "--output", "json"].map(str::to_owned));
        } else {
            args.extend([
                self.container.netns.clone(),
                "--container-id".to_owned(),
                self.container.id.clone(),
            ]);
            args.extend(["--ifname".to_owned(), self.plugins[0].ifname.clone()]);
        }
        args.extend(
            ["--conf-dir", self.conf_dir, "--plugin-path", farm().to_str().unwrap()]
                .map(str::to_owned),
        );
        let env = std::collections::BTreeMap::new();
        Call { program: binary(), args, env, stdin: vec![], wrapper: self.lab.host.enter.clone() }
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
        (0..self.steps())
            .for_each(|step| assert_ok(&self.call(step, "CHECK", result).run(), "CHECK"));
    }

    /// DEL of the whole list, last plugin first.
    #[track_caller]
    pub fn del(&self, result: &Value) {
        (0..self.steps())
            .rev()
            .for_each(|step| assert_ok(&self.call(step, "DEL", result).run(), "DEL"));
    }

    /// DEL of the whole list without CNI_NETNS.
    #[track_caller]
    pub fn del_without_netns(&self) {
        let bare = |step| self.call(step, "DEL", &Value::Null).without("CNI_NETNS");
        (0..self.steps())
            .rev()
            .for_each(|step| assert_ok(&bare(step).run(), "DEL without CNI_NETNS"));
    }

    #[track_caller]
    pub fn gc(&self) {
        (0..self.steps())
            .for_each(|step| assert_ok(&self.call(step, "GC", &Value::Null).run(), "GC"));
    }
}

#[track_caller]
fn assert_ok(outcome: &Outcome, what: &str) {
    assert_eq!(outcome.status, 0, "{what} failed: {outcome:?}");
}

/// Writes the network as an operator's file.
pub fn configure(lab: &Lab, subject: &Subject, conf_dir: &str) {
    let list = json!({"cniVersion": "1.1.0", "name": "net1", "plugins": subject.plugins});
    std::fs::create_dir(lab.path(conf_dir)).unwrap();
    std::fs::write(lab.path(conf_dir).join("net1.conflist"), list.to_string()).unwrap();
}
