//! The calls that a runtime makes to the plugins of an attachment, and the faults injected into
//! them.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::networks::{Driver, Network};
use super::world::{Life, World};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::netns::Container;

/// The directory of the networks' files, and the cache of `cni-multi net`.
pub const CONF_DIR: &str = "/run/lives/net.d";
pub const CACHE_DIR: &str = "/run/lives/cache";

/// A disturbance in the middle of a call.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// SIGKILL of the plugin.
    Kill,
    /// The namespace is deleted.
    Vanish(&'a Container),
}

/// An event at one of the calls of a chain.
#[derive(Clone, Copy)]
pub struct Fault<'a> {
    pub event: Event<'a>,
    /// The index of the plugin in the order of the calls.
    pub at: usize,
    /// The moment, as a fraction of the usual duration of the call.
    pub moment: f64,
}

/// The end of a chain of calls.
#[derive(Debug)]
pub enum End {
    /// All calls succeeded; for ADD, the last result.
    Whole(Value),
    /// A plugin was killed.
    Killed,
    /// A plugin failed.
    Failed(#[expect(dead_code, reason = "shown when a test fails")] Outcome),
}

/// Details of a DEL in which runtimes differ.
pub struct Manner {
    /// The plugins' indices in the order of their calls.
    pub order: Vec<usize>,
    pub has_result: bool,
    pub has_netns: bool,
}

impl World<'_> {
    pub fn add(&self, life: &Life, fault: Option<Fault<'_>>) -> End {
        let network = self.network(life);
        if network.driver == Driver::Net {
            return self.run(network, "add", &self.net(life, "add"), fault);
        }
        let mut result = Value::Null;
        for (number, plugin) in network.plugins.iter().enumerate() {
            let call = self.execution(life, plugin, "ADD", Some(&result), true);
            match self.run_plugin(network, plugin, &call, number, fault) {
                End::Whole(next) => result = next,
                end => return end,
            }
        }
        End::Whole(result)
    }

    pub fn check(&self, life: &Life) -> End {
        let network = self.network(life);
        if network.driver == Driver::Net {
            return match self.run(network, "check", &self.net(life, "check"), None) {
                End::Whole(differences) if differences == json!([]) => End::Whole(Value::Null),
                end => end,
            };
        }
        self.silent(network, (0..network.plugins.len()).collect(), None, |plugin| {
            self.execution(life, plugin, "CHECK", life.result.as_ref(), true)
        })
    }

    /// Calls each plugin in the given order until one fails or is killed.
    pub fn del(&self, life: &Life, manner: &Manner, fault: Option<Fault<'_>>) -> End {
        let network = self.network(life);
        if network.driver == Driver::Net {
            return self.run(network, "del", &self.net(life, "del"), fault);
        }
        self.silent(network, manner.order.clone(), fault, |plugin| {
            let result = life.result.as_ref().filter(|_| manner.has_result);
            self.execution(life, plugin, "DEL", result, manner.has_netns)
        })
    }

    /// GC with every attachment that must be spared as valid.
    pub fn gc(&self, number: usize, fault: Option<Fault<'_>>) -> End {
        let network = &self.networks[number];
        self.tell(format!("GC {}", network.name));
        if network.driver == Driver::Net {
            let call = self.command(&["gc", &network.name, "--unrecorded"]);
            return self.run(network, "gc", &call, fault);
        }
        let (valid, _gate) = self.valid(number);
        self.silent(network, (0..network.plugins.len()).collect(), fault, |plugin| {
            let mut conf = network.derive(plugin, &Value::Null);
            conf["cni.dev/valid-attachments"] = valid.clone();
            Call::new(&Peer::Ours, plugin_type(plugin), "GC", conf.to_string())
                .without("CNI_CONTAINERID")
                .without("CNI_IFNAME")
                .without("CNI_NETNS")
                .wrapped(&self.lab.host.enter)
        })
    }

    /// Calls the plugins in this order, which print nothing, until one fails or is killed.
    fn silent(
        &self,
        network: &Network,
        order: Vec<usize>,
        fault: Option<Fault<'_>>,
        call: impl Fn(&Value) -> Call,
    ) -> End {
        for (number, plugin) in order.into_iter().enumerate() {
            let plugin = &network.plugins[plugin];
            match self.run_plugin(network, plugin, &call(plugin), number, fault) {
                End::Whole(Value::Null) => (),
                end => return end,
            }
        }
        End::Whole(Value::Null)
    }

    /// Runs the call of this number, with the fault if it is one of this call.
    fn run_plugin(
        &self,
        network: &Network,
        plugin: &Value,
        call: &Call,
        number: usize,
        fault: Option<Fault<'_>>,
    ) -> End {
        self.run(network, plugin_type(plugin), call, fault.filter(|fault| fault.at == number))
    }

    fn execution(
        &self,
        life: &Life,
        plugin: &Value,
        command: &str,
        result: Option<&Value>,
        has_netns: bool,
    ) -> Call {
        let mut conf = self.network(life).derive(plugin, &life.capabilities);
        if let Some(result) = result.filter(|result| !result.is_null()) {
            conf["prevResult"] = result.clone();
        }
        let call = Call::new(&Peer::Ours, plugin_type(plugin), command, conf.to_string())
            .env("CNI_CONTAINERID", &life.id)
            .env("CNI_IFNAME", &life.ifname)
            .wrapped(&self.lab.host.enter);
        if has_netns { call.env("CNI_NETNS", &life.netns) } else { call.without("CNI_NETNS") }
    }

    fn net(&self, life: &Life, verb: &str) -> Call {
        let (capabilities, name) = (life.capabilities.to_string(), &self.network(life).name);
        let at = [verb, name, &life.netns, "-i", &life.ifname, "--container-id", &life.id];
        self.command(&[&at[..], &["--capability-args", &capabilities]].concat())
    }

    fn command(&self, words: &[&str]) -> Call {
        let dir = Peer::Ours.dir().display().to_string();
        let places =
            ["--conf-dir", CONF_DIR, "--plugin-path", &dir, "--cache-dir", CACHE_DIR, "-o", "json"];
        Call::cni_multi(&self.lab.host.enter, [&["net"], words, &places].concat())
    }

    fn run(&self, network: &Network, what: &str, call: &Call, fault: Option<Fault<'_>>) -> End {
        let command = call.env.get("CNI_COMMAND").map_or(what, String::as_str).to_owned();
        let kind = format!("{command} {what} {}", network.name.trim_end_matches(char::is_numeric));
        let start = Instant::now();
        let mut child = call.spawn();
        if let Some(fault) = fault {
            self.come_between(&mut child, fault, self.pace(&kind));
        }
        let outcome = Outcome::of(child);
        if fault.is_none() {
            self.took(&kind, start.elapsed());
        }
        match outcome.status {
            0 if outcome.stdout.trim().is_empty() || command == "gc" => End::Whole(Value::Null),
            0 => End::Whole(outcome.json()),
            -1 => {
                self.tell(format!("{kind}: killed after {:?}", start.elapsed()));
                self.tally.count(match command.to_uppercase().as_str() {
                    "ADD" => "kills in ADD",
                    "DEL" => "kills in DEL",
                    _ => "kills in GC",
                });
                End::Killed
            }
            _ => {
                self.tell(format!("{kind}: {outcome:?}"));
                End::Failed(outcome)
            }
        }
    }

    fn come_between(&self, child: &mut Child, fault: Fault<'_>, usual: Duration) {
        std::thread::sleep(usual.mul_f64(fault.moment));
        match fault.event {
            Event::Kill => child.kill().unwrap(),
            Event::Vanish(container) => {
                self.tally.count("vanished namespaces");
                container.vanish();
            }
        }
    }
}

fn plugin_type(plugin: &Value) -> &str {
    plugin["type"].as_str().unwrap()
}
