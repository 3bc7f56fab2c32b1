//! What killed ADDs leave: SIGKILL at moments that are spread over the system calls of each plugin
//! of a chain, then the DEL and the GC of a runtime, then a look at the host.

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins};
use crate::cases::{Bench, chain_confs, chained, names, network};
use crate::host_state::{HostState, Left};
use crate::kill::{self, Ended};
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
            stops = self.add(&at, None)?;
            self.delete(round, &at)?;
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
        if let Err(e) = self.delete(round, &at) {
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

    /// ADD of the chain, whole or until this moment. Returns the stops of each plugin that ended.
    fn add(&self, at: &Attachment, until: Option<Moment>) -> Result<Vec<usize>> {
        let (mut result, mut stops) = (Value::Null, vec![]);
        for (plugin, conf) in self.confs.iter().enumerate() {
            let kill_at = until.filter(|until| until.plugin == plugin).map(|until| until.stop);
            match kill::run(&chained(at, "ADD", conf, &result), kill_at)? {
                Ended::Killed => return Ok(stops),
                Ended::Whole { stops: made, stdout } => {
                    stops.push(made);
                    result = call::result(&stdout)?;
                }
            }
        }
        match until {
            None => Ok(stops),
            Some(until) => Err(format!("plugin {} ended before stop {}", until.plugin, until.stop)),
        }
    }

    /// DEL in libcni's way: no result is cached of an ADD that failed, and the first failure ends
    /// the list. A runtime repeats it.
    fn delete(&self, round: &mut Round, at: &Attachment) -> Result<()> {
        let mut delete = || {
            let mut calls = self.confs.iter().rev();
            calls.try_for_each(|conf| {
                round.untimed(&chained(at, "DEL", conf, &Value::Null)).map(drop)
            })
        };
        (1..ATTEMPTS).fold(delete(), |done, _| done.or_else(|_| delete()))
    }

    /// GC with no attachment that is valid. A side without GC answers with an error.
    fn collect_garbage(&self, round: &mut Round, at: &Attachment) {
        for conf in self.confs {
            let mut conf = conf.clone();
            call::merge(
                &mut conf,
                &json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}),
            );
            let _ = round.untimed(&chained(at, "GC", &conf, &Value::Null)); // as above
        }
    }
}
