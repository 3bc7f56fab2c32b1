//! One more container on a full host: the CPU time of the chain of five, and the octets that it sends
//! and receives over sockets.

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, ipam};
use crate::cases::{Bench, attachment, chain_confs, chained, network};
use crate::connections::raise_file_limit;
use crate::names::{self, Side};
use crate::namespaces::{Netns, Pool};
use crate::schedule::{Lane, Round};

/// How many containers a bridge has: the kernel has room for 1023.
const PORTS_OF_A_BRIDGE: usize = 900;
/// Container 0 has this port of the host, and the others have the next ones.
const FIRST_PORT: usize = 20_000;

/// Ours alone: the reference takes minutes to attach hundreds.
pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    raise_file_limit()?;
    let wanted = ["bridge", "host-local", "portmap", "firewall", "tuning", "bandwidth"];
    let mut lanes = vec![];
    for plugins in bench.sides(&wanted).into_iter().filter(|plugins| plugins.side == Side::Ours) {
        for count in bench.densities() {
            lanes.push(lane(bench, plugins, count)?);
        }
    }
    Ok(lanes)
}

fn lane(bench: &Bench, plugins: &Plugins, count: usize) -> Result<Lane> {
    let (side, plugins) = (plugins.side, plugins.clone());
    let attached = (0..count).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let containers = Pool::new(bench.runs)?;
    let network = network(&plugins, "dense");
    let mut is_full = false;
    let act = move |round: &mut Round| {
        if !is_full {
            attach(round, &plugins, &network, &attached)?;
            is_full = true;
        }
        let at = attachment(&plugins, &containers, round.number);
        let confs = confs_of(&network, attached.len());
        let mut result = Value::Null;
        for conf in &confs {
            result = call::result(&round.timed("ADD", &chained(&at, "ADD", conf, &result))?)?;
        }
        confs
            .iter()
            .rev()
            .try_for_each(|conf| round.timed("DEL", &chained(&at, "DEL", conf, &result)).map(drop))
    };
    Ok(bench.lane(names::density(count), side, Box::new(act))?.counting_octets())
}

/// Attaches each container by the chain of five; returns the results.
pub fn attach(
    round: &mut Round,
    plugins: &Plugins,
    network: &str,
    containers: &[Netns],
) -> Result<Vec<Value>> {
    let mut results = vec![];
    for (number, netns) in containers.iter().enumerate() {
        let at = numbered(plugins, number, netns);
        let mut result = Value::Null;
        for conf in confs_of(network, number) {
            result = call::result(&round.untimed(&chained(&at, "ADD", &conf, &result))?)?;
        }
        results.push(result);
    }
    Ok(results)
}

/// Detaches what [`attach`] has attached.
pub fn detach(
    round: &mut Round,
    plugins: &Plugins,
    network: &str,
    containers: &[Netns],
    results: &[Value],
) -> Result<()> {
    for (number, (netns, result)) in containers.iter().zip(results).enumerate() {
        let at = numbered(plugins, number, netns);
        for conf in confs_of(network, number).iter().rev() {
            round.untimed(&chained(&at, "DEL", conf, result))?;
        }
    }
    Ok(())
}

fn numbered<'a>(plugins: &'a Plugins, number: usize, netns: &Netns) -> Attachment<'a> {
    Attachment { plugins, netns: netns.path(), container_id: format!("attached-{number}") }
}

/// The chain of the container with this number: two ports of its own, and a network of its own for
/// each bridge.
fn confs_of(network: &str, number: usize) -> Vec<Value> {
    let bridge = number / PORTS_OF_A_BRIDGE;
    let mut confs = chain_confs(&format!("{network}-{bridge}"));
    confs[0]["bridge"] = json!(format!("bench{bridge}"));
    confs[0]["ipam"] = ipam(&[&format!("10.{}.0.0/16", 88 + bridge)]);
    for mapping in confs[1]["runtimeConfig"]["portMappings"].as_array_mut().into_iter().flatten() {
        mapping["hostPort"] = json!(FIRST_PORT + number);
    }
    confs
}
