//! What killed ADDs leave: SIGKILL at moments that are spread over the system calls of each plugin
//! of a chain, then the DEL and the GC of a runtime, then a look at the host.

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins};
use crate::cases::{Bench, chain_confs, chained, network};
use crate::host_state::{HostState, Left};
use crate::kill::{self, Ended};
use crate::names;
use crate::namespaces::Netns;
use crate::schedule::{Lane, Round};

/// How often a runtime repeats a DEL that fails.
const ATTEMPTS: usize = 3;
/// How long the kernel may take to remove the links of a namespace that has ended.
const SETTLES: std::time::Duration = std::time::Duration::from_millis(500);

pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    let wanted = ["bridge", "host-local", "portmap", "firewall", "tuning", "bandwidth"];
    bench.sides(&wanted).into_iter().map(|plugins| lane(bench, plugins)).collect()
}

fn lane(bench: &Bench, plugins: &Plugins) -> Result<Lane> {
    let confs = chain_confs(&network(plugins, "leaks"));
    let (side, each) = (plugins.side, bench.kills() / confs.len());
    let plugins = plugins.clone();
    let act = move |round: &mut Round| {
        let victim = Victim { plugins: &plugins, confs: &confs };
        let mut left = Left::new();
        for moment in moments(&victim.measure(round)?, each) {
            for (kind, count) in victim.kill(round, moment)? {
                *left.entry(kind).or_default() += count;
            }
        }
        round.left("ADD", left);
        Ok(())
    };
    Ok(bench.lane(names::killed(bench.kills()), side, Box::new(act))?.slow(1).only_timed())
}

/// A moment of the chain's ADD.
#[derive(Clone, Copy)]
struct Moment {
    /// The plugin that is running, by its place in the chain.
    plugin: usize,
    /// The stop of that plugin.
    stop: usize,
}

/// What an ADD of the chain has done.
struct Added {
    /// The stops of each plugin that ended.
    stops: Vec<usize>,
    /// Of the last of them.
    result: Value,
}

/// As many moments in each plugin, in the middle of equal parts of its stops. Moments that are
/// spread over the whole chain would hit the plugin with the most system calls nearly every time,
/// and another one on either side.
fn moments(stops: &[usize], each: usize) -> Vec<Moment> {
    let of = |(plugin, stops): (usize, &usize)| {
        let stops = *stops;
        (0..each).map(move |part| Moment { plugin, stop: (2 * part + 1) * stops / (2 * each) })
    };
    stops.iter().enumerate().flat_map(of).collect()
}

struct Victim<'a> {
    plugins: &'a Plugins,
    confs: &'a [Value],
}

impl Victim<'_> {
    /// Attaches and detaches twice: the first creates what stays, such as the bridge; the second
    /// is counted. Returns the stops of each plugin.
    fn measure(&self, round: &mut Round) -> Result<Vec<usize>> {
        let mut stops = vec![];
        for container in ["first", "second"] {
            let netns = Netns::create()?;
            let at = self.attachment(&netns, container);
            let added = self.add(&at, None)?;
            self.delete(round, &at, &added.result)?;
            stops = added.stops;
        }
        Ok(stops)
    }

    /// Kills an ADD at this moment and returns what is left of it.
    fn kill(&self, round: &mut Round, moment: Moment) -> Result<Left> {
        let before = HostState::read()?;
        let netns = Netns::create()?;
        let container = format!("killed-{}-{}", moment.plugin, moment.stop);
        let at = self.attachment(&netns, &container);
        self.add(&at, Some(moment))?;
        // libcni caches no result of an ADD that failed.
        if let Err(e) = self.delete(round, &at, &Value::Null) {
            eprintln!("note: DEL of {} after a kill: {e}", self.plugins.side.name());
        }
        drop(netns);
        self.collect_garbage(round, &at);
        std::thread::sleep(SETTLES);
        Ok(HostState::read()?.since(&before))
    }

    fn attachment(&self, netns: &Netns, container: &str) -> Attachment<'_> {
        Attachment {
            plugins: self.plugins,
            netns: netns.path(),
            container_id: container.to_owned(),
        }
    }

    /// ADD of the chain, whole or until this moment.
    fn add(&self, at: &Attachment, until: Option<Moment>) -> Result<Added> {
        let mut added = Added { stops: vec![], result: Value::Null };
        for (plugin, conf) in self.confs.iter().enumerate() {
            let kill_at = until.filter(|until| until.plugin == plugin).map(|until| until.stop);
            match kill::run(&chained(at, "ADD", conf, &added.result), kill_at)? {
                Ended::Killed => return Ok(added),
                Ended::Whole { stops, stdout, .. } => {
                    added.stops.push(stops);
                    added.result = call::result(&stdout)?;
                }
            }
        }
        match until {
            None => Ok(added),
            Some(until) => Err(format!("plugin {} ended before stop {}", until.plugin, until.stop)),
        }
    }

    /// DEL in libcni's way: the first failure ends the list. A runtime repeats it.
    fn delete(&self, round: &mut Round, at: &Attachment, result: &Value) -> Result<()> {
        let mut delete = || {
            let mut calls = self.confs.iter().rev();
            calls.try_for_each(|conf| round.untimed(&chained(at, "DEL", conf, result)).map(drop))
        };
        (1..ATTEMPTS).fold(delete(), |done, _| done.or_else(|_| delete()))
    }

    /// GC with no attachment that is valid.
    fn collect_garbage(&self, round: &mut Round, at: &Attachment) {
        for conf in self.confs {
            let mut conf = conf.clone();
            call::merge(
                &mut conf,
                &json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}),
            );
            let _ = round.untimed(&chained(at, "GC", &conf, &Value::Null)); // what it leaves is counted
        }
    }
}
