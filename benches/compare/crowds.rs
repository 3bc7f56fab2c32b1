//! Many containers at once, as on a node that starts.

use serde_json::{Value, json};

use crate::Result;
use crate::call::{Attachment, Plugins, bridge, with_previous};
use crate::cases::{Bench, network};
use crate::names;
use crate::namespaces::Netns;
use crate::ports::portmap_conf;
use crate::process::Invocation;
use crate::schedule::{Lane, Round, Side};

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
