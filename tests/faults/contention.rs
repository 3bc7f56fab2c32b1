//! Contention: hundreds of containers at once, a host with thousands of links under constant
//! change, and locks held by other processes. Concurrent ADDs on a small scale are in `parallel`.
//!
//! `CNI_LONG` runs the cases at the size of the tables in docs/evidence.

mod churn;
mod crowd;
mod growth;
mod locks;
mod networks;
mod strangers;

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, with};
use crate::support::extent::is_long;
use crate::support::netns::{Container, Lab};

/// The size of a case in the long or the short form.
fn long_or_short<T>(long: T, short: T) -> T {
    if is_long() { long } else { short }
}

/// Runs `work` for each number below `count`, `at_a_time` in parallel. Returns the results in
/// order.
fn in_turns<T: Send>(count: usize, at_a_time: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let numbers = Mutex::new(0..count);
    let take = || numbers.lock().unwrap().next();
    let worker =
        || std::iter::from_fn(|| take().map(|number| (number, work(number)))).collect::<Vec<_>>();
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The plugins of one network, called in order for one container, as a runtime does.
struct Chain<'a>(Vec<Attachment<'a>>);

impl<'a> Chain<'a> {
    fn new(lab: &'a Lab, container: &Container, confs: &[Value]) -> Chain<'a> {
        let of_network = json!({"name": confs[0]["name"], "cniVersion": "1.1.0"});
        Chain(
            confs
                .iter()
                .map(|conf| lab.attach(container, &with(conf, of_network.clone())))
                .collect(),
        )
    }

    /// The last result, or the error of the first plugin that failed.
    fn add(&self) -> Result<Value, String> {
        self.0.iter().try_fold(Value::Null, |result, plugin| {
            let outcome = plugin.call("ADD", (!result.is_null()).then_some(&result)).run();
            if outcome.status == 0 {
                Ok(outcome.json())
            } else {
                Err(format!("ADD of {}: {outcome:?}", plugin.conf["type"]))
            }
        })
    }

    fn check(&self, result: &Value) -> Result<(), String> {
        self.silent("CHECK", self.0.iter(), result)
    }

    fn del(&self, result: &Value) -> Result<(), String> {
        self.silent("DEL", self.0.iter().rev(), result)
    }

    fn silent<'p>(
        &'p self,
        command: &str,
        mut plugins: impl Iterator<Item = &'p Attachment<'a>>,
        result: &Value,
    ) -> Result<(), String>
    where
        'a: 'p,
    {
        plugins.try_for_each(|plugin| {
            let outcome = plugin.call(command, Some(result)).run();
            let is_done = outcome.status == 0 && outcome.stdout.is_empty();
            if is_done {
                Ok(())
            } else {
                Err(format!("{command} of {}: {outcome:?}", plugin.conf["type"]))
            }
        })
    }
}
