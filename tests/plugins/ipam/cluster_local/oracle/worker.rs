//! A runtime of a machine: it attaches and detaches at random.

use std::time::Duration;

use cni_multi::sys::random::Random;
use serde_json::Value;

use super::{Boot, Machine, NETWORKS, World, below, conf};
use crate::support::attachment::ips;
use crate::support::call::Outcome;

/// How many attachments a worker has at most.
const MOST: usize = 6;
/// The longest pause between two calls.
const PAUSE: Duration = Duration::from_millis(400);
/// The patience of an ADD, in seconds.
const PATIENCE: u64 = 3;

struct Worker<'a> {
    world: &'a World,
    machine: &'a Machine,
    conf: Value,
    /// The first part of its containers' ids.
    name: String,
    random: Random,
    made: usize,
    held: Vec<Held>,
    boot: Boot,
}

/// An attachment: its result, if its ADD has returned one.
struct Held {
    id: String,
    result: Option<Value>,
}

/// Attaches and detaches until the time is over; then all that is attached is checked and detached.
pub fn work(world: &World, number: usize) {
    let machine = &world.machines[number / 2];
    // Each second machine has both networks.
    let network = if number % 4 == 3 { NETWORKS[1] } else { NETWORKS[0] };
    let mut worker = Worker {
        world,
        machine,
        conf: conf(world.seed, network, PATIENCE),
        name: format!("w{number}"),
        random: world.random(number as u64 + 10),
        made: 0,
        held: vec![],
        boot: Boot(0),
    };
    while !world.is_over() {
        let pause = worker.random.below(PAUSE);
        world.sleep(pause);
        worker.turn();
    }
    worker.end();
}

impl Worker<'_> {
    fn turn(&mut self) {
        let machine = self.machine;
        let boot = machine.power.read().unwrap();
        self.notice(*boot);
        let most = below(&mut self.random, MOST as u64 + 1) as usize;
        match self.held.len() {
            held if held < most => self.attach(),
            0 => (),
            held => {
                let at = below(&mut self.random, held as u64) as usize;
                let held = self.held.swap_remove(at);
                let is_checked = below(&mut self.random, 4) == 0;
                self.detach(held, is_checked);
            }
        }
    }

    /// A machine that was off has lost its containers. The runtime detaches them as well.
    fn notice(&mut self, boot: Boot) {
        if self.boot != boot {
            self.boot = boot;
            for held in std::mem::take(&mut self.held) {
                self.del(&held.id);
            }
        }
    }

    fn attach(&mut self) {
        self.made += 1;
        let id = format!("{}-{}", self.name, self.made);
        let call = self.machine.node.attachment(&self.conf, &id).call("ADD", None);
        let mut child = call.spawn();
        let is_killed = below(&mut self.random, 20) == 0;
        if is_killed {
            std::thread::sleep(self.random.below(Duration::from_millis(20)));
            let _ = child.kill(); // it may have ended
        }
        let result = self.result(&id, &Outcome::of(child), is_killed);
        self.held.push(Held { id, result });
    }

    /// The result of an ADD. One that has failed has nothing, which is not certain of a killed one.
    fn result(&self, id: &str, outcome: &Outcome, is_killed: bool) -> Option<Value> {
        let history = &self.world.history;
        if outcome.status == 0 {
            let result = outcome.ok();
            history.begin(self.machine.node.number, id, &ips(&result)[0]);
            history.count("ADD");
            return Some(result);
        }
        if is_killed {
            history.count("ADD killed");
            return None;
        }
        let error = outcome.err();
        let is_expected = matches!(error.code, 11 | 50 | 101);
        assert!(is_expected, "{error:?}\n{}", self.machine.node.log());
        history.count(format!("ADD refused ({})", error.code));
        if error.msg.contains("no answer within") {
            history.count("ADD without an answer of the daemon"); // it is stopped
        }
        None
    }

    /// Detaches a container; of some the result is checked before.
    fn detach(&mut self, Held { id, result }: Held, is_checked: bool) {
        if let Some(result) = result.filter(|_| is_checked) {
            self.check(&id, &result);
        }
        self.del(&id);
    }

    fn check(&self, id: &str, result: &Value) {
        let node = &self.machine.node;
        let outcome = node.attachment(&self.conf, id).check(result);
        assert_eq!(outcome.status, 0, "CHECK of {id}: {outcome:?}\n{}", node.log());
        self.world.history.count("CHECK");
    }

    fn del(&self, id: &str) {
        let node = &self.machine.node;
        self.world.history.end(node.number, Some(id));
        let outcome = node.attachment(&self.conf, id).try_del();
        assert_eq!(outcome.status, 0, "DEL of {id}: {outcome:?}\n{}", node.log());
        self.world.history.count("DEL");
    }

    fn end(&mut self) {
        let machine = self.machine;
        let boot = machine.power.read().unwrap();
        self.notice(*boot);
        for held in std::mem::take(&mut self.held) {
            self.detach(held, true);
        }
    }
}
