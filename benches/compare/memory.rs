//! What attachments take of the kernel's memory: 200 containers are attached by the chain of five.

use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::call::Plugins;
use crate::cases::{Bench, network};
use crate::connections::raise_file_limit;
use crate::density::{attach, detach};
use crate::names;
use crate::namespaces::Netns;
use crate::schedule::{Lane, Round};

/// Fields of /proc/meminfo that the kernel's objects are in: slabs that it cannot reclaim, memory of
/// each processor, and tables too large for a slab.
const FIELDS: [&str; 3] = ["SUnreclaim:", "Percpu:", "VmallocUsed:"];
/// How often the kernel adds up the counts of its processors (vm.stat_interval).
const INTERVAL: Duration = Duration::from_secs(1);

pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    raise_file_limit()?;
    let wanted = ["bridge", "host-local", "portmap", "firewall", "tuning", "bandwidth"];
    bench.sides(&wanted).into_iter().map(|plugins| lane(bench, plugins)).collect()
}

fn lane(bench: &Bench, plugins: &Plugins) -> Result<Lane> {
    /// Each takes the reference two minutes.
    const RUNS: usize = 3;
    let (side, plugins, count) = (plugins.side, plugins.clone(), bench.crowd_size());
    let network = network(&plugins, "memory");
    let act = move |round: &mut Round| {
        let empty = settled()?;
        let containers = (0..count).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
        let bare = settled()?;
        let results: Vec<Value> = attach(round, &plugins, &network, &containers)?;
        let attached = settled()?;
        detach(round, &plugins, &network, &containers, &results)?;
        let detached = settled()?;
        for (what, [before, after]) in [
            (names::BARE, [empty, bare]),
            (names::ATTACHED, [bare, attached]),
            (names::FREED, [detached, attached]),
        ] {
            round.takes_memory(what, (after - before) / count_of(count));
        }
        Ok(())
    };
    Ok(bench.lane(names::memory(count), side, Box::new(act))?.slow(RUNS).only_timed())
}

/// Memory of the kernel's objects in KiB, once the freeing of earlier ones has come to its end.
fn settled() -> Result<f64> {
    /// What other programs of the machine may change in an interval.
    const NOISE: f64 = 64.0;
    const LONGEST: usize = 10;
    let mut last = now()?;
    for _ in 0..LONGEST {
        std::thread::sleep(INTERVAL);
        let memory = now()?;
        if (memory - last).abs() < NOISE {
            return Ok(memory);
        }
        last = memory;
    }
    Ok(last)
}

fn now() -> Result<f64> {
    let text =
        std::fs::read_to_string("/proc/meminfo").map_err(|e| format!("read meminfo: {e}"))?;
    let of = |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        kib.ok_or_else(|| format!("/proc/meminfo has no {field}"))
    };
    FIELDS.iter().map(|field| of(field)).sum()
}

#[allow(clippy::cast_precision_loss)] // hundreds
fn count_of(containers: usize) -> f64 {
    containers as f64
}
