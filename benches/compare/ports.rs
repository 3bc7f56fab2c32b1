//! Published ports: portmap's own time among many mappings, and that of connections through them.

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, conf, with_previous};
use crate::cases::{Bench, attachment, network};
use crate::names::{self, Side};
use crate::namespaces::Pool;
use crate::schedule::{Lane, Round};

/// One more mapping among many, and how long a connection through it takes. The reference only runs
/// at the smallest number: filling up takes it hours.
pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    let counts = bench.mapping_counts();
    let mut lanes = vec![];
    for plugins in bench.sides(&["bridge", "host-local", "portmap"]) {
        let counts = if plugins.side == Side::Ours { &counts[..] } else { &counts[..1] };
        for count in counts {
            lanes.push(lane(bench, plugins, *count)?);
        }
    }
    Ok(lanes)
}

fn lane(bench: &Bench, plugins: &Plugins, count: usize) -> Result<Lane> {
    let container = Pool::new(1)?;
    let network = network(plugins, &format!("portmap-{count}"));
    let side = plugins.side;
    let plugins = plugins.clone();
    let mut result = None;
    let act = move |round: &mut Round| {
        let mut at = attachment(&plugins, &container, 0);
        let result = match &mut result {
            Some(result) => result,
            none => {
                let attached =
                    call::result(&round.untimed(&at.call("bridge", "ADD", &bridge(&network)))?)?;
                container.first().serve(SERVED)?;
                fill_mappings(round, &at, &network, &attached, count)?;
                none.insert(attached)
            }
        };
        at.container_id = format!("run-{}", round.number);
        let conf = with_previous(&portmap_conf(&network, SERVED..SERVED + 1), result);
        call::result(&round.timed("ADD", &at.call("portmap", "ADD", &conf))?)?;
        round.timed_here("50 connections", connect_often)?;
        round.timed("DEL", &at.call("portmap", "DEL", &conf)).map(drop)
    };
    bench.lane(names::mappings(count), side, Box::new(act))
}

/// The host port that each run maps to the same port of the container.
const SERVED: u16 = 8080;

/// Publishes the ports of attachments that exist before the measurement.
fn fill_mappings(
    round: &mut Round,
    at: &Attachment,
    network: &str,
    result: &Value,
    count: usize,
) -> Result<()> {
    const FIRST_PORT: usize = 20_000;
    const EACH: usize = 250;
    for first in (0..count).step_by(EACH) {
        let before =
            Attachment { container_id: format!("before-{first}"), netns: at.netns.clone(), ..*at };
        let port = |index| u16::try_from(FIRST_PORT + index).map_err(|_| "no such port".to_owned());
        let conf = portmap_conf(network, port(first)?..port(count.min(first + EACH))?);
        round.untimed(&before.call("portmap", "ADD", &with_previous(&conf, result)))?;
    }
    Ok(())
}

/// Opens connections: each begins a flow, and its first packet passes all the rules.
fn connect_often() -> Result<()> {
    let gateway = ("10.88.0.1", SERVED);
    (0..50)
        .try_for_each(|_| TcpStream::connect(gateway).map(drop))
        .map_err(|e| format!("connect to {gateway:?}: {e}"))
}

pub fn portmap_conf(network: &str, ports: std::ops::Range<u16>) -> Value {
    let mapping = |port: u16| json!({"hostPort": port, "containerPort": port, "protocol": "tcp"});
    let mappings: Vec<Value> = ports.map(mapping).collect();
    conf(network, "portmap", &json!({"runtimeConfig": {"portMappings": mappings}}))
}
