//! Many containers at once, as on a node that starts.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, with_previous};
use crate::cases::{Bench, chain_confs, chained, network};
use crate::names::{self, Side};
use crate::namespaces::Netns;
use crate::ports::portmap_conf;
use crate::process::{Invocation, Prepared};
use crate::schedule::{Lane, Round};

/// A node that starts: many containers on one bridge at once, then all of them removed.
pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    /// Each takes the reference many seconds.
    const RUNS: usize = 3;
    let lane = |plugins: &Plugins| {
        let mut conf = bridge(&network(plugins, "crowd"));
        conf["ipMasq"] = json!(true);
        crowd_lane(bench, plugins, names::CROWD, RUNS, move |_| conf.clone())
    };
    bench.sides(&["bridge", "host-local"]).into_iter().map(lane).collect()
}

/// The same with a published port for each container.
pub fn lanes_of_ports(bench: &Bench) -> Result<Vec<Lane>> {
    const FIRST_PORT: u16 = 20_000;
    let lane = |plugins: &Plugins| {
        let network = network(plugins, "crowd-of-ports");
        let conf = move |member: usize| {
            let [third, fourth] = u16::try_from(member).unwrap_or_default().to_be_bytes();
            let port = FIRST_PORT + u16::from_be_bytes([third, fourth]);
            let previous = json!({
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/member"}],
                "ips": [{"address": format!("10.88.{third}.{fourth}/16"), "interface": 0}],
            });
            with_previous(&portmap_conf(&network, port..port + 1), &previous)
        };
        // Each takes the reference a minute or more.
        crowd_lane(
            bench,
            plugins,
            names::PORT_CROWD,
            if plugins.side == Side::Ours { 3 } else { 1 },
            conf,
        )
    };
    bench.sides(&["portmap"]).into_iter().map(lane).collect()
}

/// The chain of five for each container, as a runtime runs it: one plugin after the other, and
/// several containers at a time.
pub fn lanes_of_chains(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = vec![];
    for width in names::WIDTHS {
        for plugins in bench.sides(&["bridge", "portmap", "firewall", "tuning", "bandwidth"]) {
            lanes.push(lane_of_chains(bench, plugins, width)?);
        }
    }
    Ok(lanes)
}

fn lane_of_chains(bench: &Bench, plugins: &Plugins, width: usize) -> Result<Lane> {
    let pools = (0..bench.crowd_size()).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let (side, plugins) = (plugins.side, plugins.clone());
    let name = network(&plugins, &format!("chains-{width}"));
    let act = move |round: &mut Round| {
        let number = round.number;
        let results: Vec<Mutex<Value>> = pools.iter().map(|_| Mutex::default()).collect();
        let member = |member: usize, slot: usize| Member {
            at: Attachment {
                plugins: &plugins,
                netns: pools[member].path(),
                container_id: format!("member-{number}-{member}"),
            },
            confs: confs_of_member(&name, member),
            result: &results[member],
            slot,
        };
        let size = [pools.len(), width];
        round.crowd_of("ADD", size, |number, slot| member(number, slot).add());
        // Also for failed ADDs, as runtimes do.
        round.crowd_of("DEL", size, |number, slot| member(number, slot).del());
        Ok(())
    };
    // The reference takes a minute or more.
    Ok(bench.lane(names::crowd_of_chains(width), side, Box::new(act))?.slow(1).only_timed())
}

/// The chain, with host ports that no other member publishes.
fn confs_of_member(network: &str, member: usize) -> Vec<Value> {
    let mut confs = chain_confs(network);
    for mapping in confs[1]["runtimeConfig"]["portMappings"].as_array_mut().into_iter().flatten() {
        mapping["hostPort"] = json!(20_000 + member);
    }
    confs
}

/// One container of the crowd.
struct Member<'a> {
    at: Attachment<'a>,
    confs: Vec<Value>,
    /// The result of the last plugin that succeeded.
    result: &'a Mutex<Value>,
    /// Separates the files of processes that run at the same time.
    slot: usize,
}

impl Member<'_> {
    /// Runs ADD of each plugin. Returns the CPU time.
    fn add(&self) -> Result<Duration> {
        let mut cpu = Duration::ZERO;
        for conf in &self.confs {
            let (its, stdout) = self.call("ADD", conf)?;
            self.keep(call::result(&stdout)?);
            cpu += its;
        }
        Ok(cpu)
    }

    /// Runs DEL of each plugin in reverse order. Returns the CPU time.
    fn del(&self) -> Result<Duration> {
        let calls = self.confs.iter().rev().map(|conf| self.call("DEL", conf));
        calls.map(|done| done.map(|(cpu, _)| cpu)).sum()
    }

    fn call(&self, command: &str, conf: &Value) -> Result<(Duration, String)> {
        let call = chained(&self.at, command, conf, &self.known());
        let (sample, stdout) = Prepared::new(&call, self.slot)?.run()?;
        Ok((sample.cpu, stdout))
    }

    fn known(&self) -> Value {
        self.result.lock().map(|result| result.clone()).unwrap_or_default()
    }

    fn keep(&self, result: Value) {
        if let Ok(mut known) = self.result.lock() {
            *known = result;
        }
    }
}

/// All members of the crowd, with the plugin that their configuration names.
fn crowd_lane(
    bench: &Bench,
    plugins: &Plugins,
    case: &str,
    runs: usize,
    conf: impl Fn(usize) -> Value + 'static,
) -> Result<Lane> {
    const WIDTH: usize = 20;
    // No slot of the pool may be in use twice at a time.
    let pools = (0..bench.crowd_size()).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let side = plugins.side;
    let plugins = plugins.clone();
    let act = move |round: &mut Round| {
        let calls = |command: &str| -> Vec<Invocation> {
            let call = |(member, netns): (usize, &Netns)| {
                let container_id = format!("member-{}-{member}", round.number);
                let conf = conf(member);
                let plugin = conf["type"].as_str().unwrap_or_default();
                Attachment { plugins: &plugins, netns: netns.path(), container_id }
                    .call(plugin, command, &conf)
            };
            pools.iter().enumerate().map(call).collect()
        };
        let (adds, dels) = (calls("ADD"), calls("DEL"));
        round.crowd("ADD", &adds, WIDTH)?;
        // Also for failed ADDs, as runtimes do.
        round.crowd("DEL", &dels, WIDTH).map(drop)
    };
    Ok(bench.lane(case, side, Box::new(act))?.slow(runs).only_timed())
}
