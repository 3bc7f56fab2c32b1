//! One attachment and what a runtime does with it.

use serde_json::{Value, json};

use crate::faults::subject::Subject;
use crate::support::attachment::Attachment;
use crate::support::call::{Call, Outcome, binary, farm};
use crate::support::netns::{Container, Lab};

/// Who calls the plugins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// One process for each of them, as libcni does it.
    EachAlone,
    /// `cni-multi net`: the whole list in one process, and the result in the cache.
    Net,
}

/// A container on a network.
pub struct Life<'a> {
    pub container: &'a Container,
    lab: &'a Lab,
    runtime: Runtime,
    plugins: Vec<Attachment<'a>>,
    /// Where `cni-multi net` finds the network.
    conf_dir: &'static str,
    /// Others on the network, that GC is told.
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

    /// Its network is configured in a directory of its own.
    pub fn configured_in(mut self, conf_dir: &'static str) -> Life<'a> {
        self.conf_dir = conf_dir;
        self
    }

    /// GC spares that one.
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

    /// How many processes it takes.
    pub fn steps(&self) -> usize {
        if self.is_net() { 1 } else { self.plugins.len() }
    }

    /// Who is called in one of them, for people.
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
            // Where a process was killed, what it made has no record, and its container lives.
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

    /// The plugins up to there, one after the other; the last one's result.
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

    /// The same without CNI_NETNS.
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

/// The network as an operator's file.
pub fn configure(lab: &Lab, subject: &Subject, conf_dir: &str) {
    let list = json!({"cniVersion": "1.1.0", "name": "net1", "plugins": subject.plugins});
    std::fs::create_dir(lab.path(conf_dir)).unwrap();
    std::fs::write(lab.path(conf_dir).join("net1.conflist"), list.to_string()).unwrap();
}
