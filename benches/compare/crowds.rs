//! Many containers at once, as on a node that starts.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, with_previous};
use crate::cases::{Bench, chain_confs, chained, network};
use crate::names::{self, Side};
use crate::namespaces::{Netns, SCRATCH};
use crate::ports::portmap_conf;
use crate::process::{Invocation, Prepared};
use crate::schedule::{Lane, Round};
use crate::turns::{Spent, Turn};

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
            if plugins.side == Side::Ours {
                lanes.push(lane_of_networks(bench, plugins, width)?);
            }
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
        let member = |turn: Turn| Member {
            at: Attachment {
                plugins: &plugins,
                netns: pools[turn.member].path(),
                container_id: format!("member-{number}-{}", turn.member),
            },
            confs: confs_of_member(&name, turn.member),
            result: &results[turn.member],
            turn,
            spent: Spent::default(),
        };
        let size = [pools.len(), width];
        round.crowd_of("ADD", size, |turn| member(turn).add());
        // Also for failed ADDs, as runtimes do.
        round.crowd_of("DEL", size, |turn| member(turn).del());
        Ok(())
    };
    // The reference takes a minute or more.
    Ok(bench.lane(names::crowd_of_chains(width), side, Box::new(act))?.slow(1).only_timed())
}

/// Crowds of our `cni-multi net`, which runs the chain of a container in one process. Its
/// `--timings` prints how many requests the process has sent to nf_tables. If another process
/// commits a transaction first, the kernel refuses this one's, and the process sends more requests
/// than it would alone.
fn lane_of_networks(bench: &Bench, plugins: &Plugins, width: usize) -> Result<Lane> {
    let pools = (0..bench.crowd_size()).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let (side, plugins) = (plugins.side, plugins.clone());
    let name = format!("networks-{width}");
    let conf_of = |member: usize| write_network(&name, member, &confs_of_member(&name, member));
    let confs = (0..pools.len()).map(conf_of).collect::<Result<Vec<_>>>()?;
    let act = move |round: &mut Round| {
        let run = |verb: &str, turn: Turn| {
            let netns = pools[turn.member].path();
            run_net(&plugins, &[verb, &name, &netns, "--conf-dir", &confs[turn.member]], turn)
        };
        let size = [pools.len(), width];
        round.crowd_of("ADD", size, |turn| run("add", turn));
        round.crowd_of("DEL", size, |turn| run("del", turn));
        Ok(())
    };
    Ok(bench.lane(names::crowd_of_networks(width), side, Box::new(act))?.slow(1).only_timed())
}

fn run_net(plugins: &Plugins, args: &[&str], turn: Turn) -> Result<Spent> {
    let dir = plugins.dir.to_string_lossy();
    let args = [&["net"], args, &["--plugin-path", &dir, "--timings"]].concat();
    let args = args.into_iter().map(str::to_owned).collect();
    let binary = plugins.binary()?;
    let call = Prepared::new(&Invocation { args, ..Invocation::new(binary) }, turn.slot)?;
    let (sample, _) = call.run()?;
    let requests = requests_in(&call.stderr()).ok_or("`net --timings` shows no requests")?;
    Ok(Spent { cpu: sample.cpu, requests })
}

/// The number of requests to nf_tables in the last line of a table of `--timings`, the sum.
fn requests_in(table: &str) -> Option<u64> {
    let headings = table.lines().find(|line| line.starts_with("CALL "))?;
    let sum = table.lines().rfind(|line| line.starts_with("all "))?;
    let cell = sum.get(headings.find("RULES")?..)?;
    let (_, rest) = cell.split_once('(')?;
    rest.split_once(')')?.0.parse().ok()
}

/// Writes the member's network and returns its directory.
fn write_network(name: &str, member: usize, confs: &[Value]) -> Result<String> {
    let dir = format!("{SCRATCH}/{name}/{member}");
    let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": confs});
    std::fs::create_dir_all(&dir).map_err(|e| format!("create {dir:?}: {e}"))?;
    std::fs::write(format!("{dir}/{name}.conflist"), list.to_string())
        .map_err(|e| format!("write {dir:?}: {e}"))?;
    Ok(dir)
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
    turn: Turn,
    spent: Spent,
}

impl Member<'_> {
    /// Runs ADD of each plugin. Returns what that has cost.
    fn add(mut self) -> Result<Spent> {
        for conf in std::mem::take(&mut self.confs) {
            let stdout = self.call("ADD", &conf)?;
            self.keep(call::result(&stdout)?);
        }
        Ok(self.spent)
    }

    /// Runs DEL of each plugin in reverse order. Returns what that has cost.
    fn del(mut self) -> Result<Spent> {
        for conf in std::mem::take(&mut self.confs).iter().rev() {
            self.call("DEL", conf)?;
        }
        Ok(self.spent)
    }

    fn call(&mut self, command: &str, conf: &Value) -> Result<String> {
        let call = chained(&self.at, command, conf, &self.known());
        let (sample, stdout) = Prepared::new(&call, self.turn.slot)?.run()?;
        self.spent.cpu += sample.cpu;
        Ok(stdout)
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
