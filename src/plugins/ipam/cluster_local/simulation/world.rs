//! The world of a schedule: the store, the nodes, and everything that is on its way between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Change, Name, Operation, OperationId, Outcome};
use super::super::held::{Blocks, State};
use super::super::machine::{
    Action, Event, Record, Reply, Request, RequestId, Turn, WriteId, Written,
};
use super::node::{Add, Node};
use super::store::Store;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// How long new claims settle after a restore.
pub const SETTLE: Duration = Duration::from_secs(30);
/// An operation whose outcome is not known by then is given up.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long an ADD waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is on its way. The number is the daemon's that it is for.
#[derive(Clone, Debug)]
pub enum Coming {
    Request(usize, u64, OperationId, Operation),
    Outcome(usize, u64, OperationId, Outcome),
    Change(usize, u64, Change),
    Disk(usize, u64, WriteId),
    Tick(usize, u64),
    Start(usize),
}

/// The world.
pub struct World {
    pub now: Moment,
    pub random: Random,
    pub store: Store,
    pub nodes: Vec<Node>,
    pub network: Name,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    coming: BTreeMap<u64, Coming>,
    last: u64,
    /// The attachments, by their address: node and boot.
    pub held: BTreeMap<IpAddr, usize>,
    /// Blocks whose claim a restore lost while the node could not be notified in time.
    pub forgiven: Vec<Block>,
    /// How many in a hundred requests meet a fault.
    pub faults: u64,
    pub steps: u64,
    pub trace: Option<Vec<String>>,
    /// ADDs that were answered with an address, or without.
    pub served: u64,
    pub denied: u64,
    pub violation: Option<String>,
}

impl World {
    pub fn new(seed: u64, count: usize, blocks: &Blocks) -> World {
        let nodes = (0..count as u64).map(|number| Node::new(number, blocks.clone())).collect();
        let mut world = World {
            now: Duration::from_secs(1),
            random: Random::seeded(seed),
            store: Store::default(),
            nodes,
            network: "net".parse().unwrap(),
            queue: BinaryHeap::new(),
            coming: BTreeMap::new(),
            last: 0,
            held: BTreeMap::new(),
            forgiven: vec![],
            faults: 0,
            steps: 0,
            trace: None,
            served: 0,
            denied: 0,
            violation: None,
        };
        (0..count).for_each(|node| world.start(node));
        world
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.random.number() % limit
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(1 + self.below(limit))
    }

    pub fn say(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} {}", now.as_secs_f64(), text()));
        }
    }

    pub fn push(&mut self, after: Duration, coming: Coming) {
        self.last += 1;
        self.queue.push(Reverse((self.now + after, self.last)));
        self.coming.insert(self.last, coming);
    }

    /// Lets the next thing arrive; false if it would be after `until`.
    pub fn step(&mut self, until: Moment) -> bool {
        let Some(Reverse((at, number))) =
            self.queue.peek().copied().filter(|Reverse((at, _))| *at <= until)
        else {
            self.now = self.now.max(until);
            return false;
        };
        self.queue.pop();
        self.now = self.now.max(at);
        self.steps += 1;
        if let Some(coming) = self.coming.remove(&number) {
            self.arrive(coming);
        }
        true
    }

    pub fn run(&mut self, span: Duration) {
        let until = self.now + span;
        while self.violation.is_none() && self.step(until) {}
    }

    fn arrive(&mut self, coming: Coming) {
        match coming {
            Coming::Request(node, generation, id, operation) => {
                self.apply(node, generation, (id, &operation))
            }
            Coming::Outcome(node, generation, id, outcome) => {
                let is_awaited =
                    self.is_running(node, generation) && self.nodes[node].flights.remove(&id);
                if is_awaited {
                    if self.nodes[node].watch == Some(id) {
                        self.nodes[node].watch = None;
                    }
                    self.give(node, Event::Outcome { id, outcome });
                }
            }
            Coming::Change(node, generation, change) => {
                if self.is_running(node, generation) && self.nodes[node].watch.is_some() {
                    self.give(node, Event::Changed { realm: self.realm(), change });
                }
            }
            Coming::Disk(node, generation, id) => {
                if self.is_running(node, generation) {
                    self.finish_write(node, id);
                }
            }
            Coming::Tick(node, generation) => {
                if self.is_running(node, generation) && self.nodes[node].tick == Some(self.now) {
                    self.nodes[node].tick = None;
                    self.give(node, Event::Time);
                }
            }
            Coming::Start(node) => self.start(node),
        }
    }

    fn realm(&self) -> Name {
        self.nodes[0].disk.blocks.realm.clone()
    }

    fn is_running(&self, node: usize, generation: u64) -> bool {
        self.nodes[node].machine.is_some() && self.nodes[node].generation == generation
    }

    pub fn start(&mut self, node: usize) {
        if self.nodes[node].machine.is_some() || !self.nodes[node].is_on {
            return;
        }
        self.say(|| format!("n{node} starts"));
        let network = self.network.clone();
        self.nodes[node].start(&network, self.now, SETTLE);
        self.tell_leases(node);
        self.give(node, Event::Time);
    }

    /// Tells the daemon of the leases as they are.
    pub fn tell_leases(&mut self, node: usize) {
        let leases = self.nodes[node].disk.leases.clone();
        self.give(node, Event::Leases { network: self.network.clone(), leases });
    }

    /// Gives an event to a daemon, and does what it says.
    pub fn give(&mut self, node: usize, event: Event) {
        if self.trace.is_some() {
            self.say(|| format!("  n{node} < {event:?}"));
        }
        let Some(mut machine) = self.nodes[node].machine.take() else { return };
        let mut random = Random::seeded(self.random.number());
        let actions = machine.on(event, Turn::new(self.now, self.now.as_secs(), &mut random));
        let next = machine.deadline();
        self.nodes[node].machine = Some(machine);
        for action in actions {
            self.act(node, action);
        }
        let is_sooner = self.nodes[node].tick.is_none_or(|tick| next < tick);
        if is_sooner && next < crate::sys::clock::NEVER {
            self.nodes[node].tick = Some(next);
            let generation = self.nodes[node].generation;
            self.push(next.saturating_sub(self.now), Coming::Tick(node, generation));
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        if self.trace.is_some() {
            self.say(|| format!("  n{node} > {action:?}"));
        }
        let generation = self.nodes[node].generation;
        match action {
            Action::Log(_) => (),
            Action::Write { id, record } => {
                self.nodes[node].writes.insert(id, record);
                let delay = self.millis(5);
                self.push(delay, Coming::Disk(node, generation, id));
            }
            Action::Send { id, operation } => self.send(node, id, operation),
            Action::Reply { request, reply } => self.answer(node, request, &reply),
        }
    }

    fn finish_write(&mut self, node: usize, id: WriteId) {
        let Some(record) = self.nodes[node].writes.remove(&id) else { return };
        let fails = self.faults > 0 && self.percent(1);
        let written = if fails {
            Written::Failed("no space left on device".to_owned())
        } else {
            self.nodes[node].write(&record)
        };
        self.check_usable(node, &record);
        self.give(node, Event::Written { id, written });
    }

    /// No two nodes may allocate from one address.
    fn check_usable(&mut self, node: usize, record: &Record) {
        if matches!(record, Record::Node(_)) {
            return;
        }
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            for mine in self.nodes[node].usable() {
                let theirs =
                    self.nodes[other].usable().find(|theirs| theirs.block.overlaps(mine.block));
                let is_forgiven = self.forgiven.iter().any(|block| block.overlaps(mine.block));
                if let Some(theirs) = theirs.filter(|_| !is_forgiven) {
                    let text =
                        format!("n{node} uses {} and n{other} uses {}", mine.block, theirs.block);
                    self.violation.get_or_insert(text);
                }
            }
        }
    }

    /// Sends a request: it may be lost, late, done twice, or its answer may be lost.
    fn send(&mut self, node: usize, id: OperationId, operation: Operation) {
        let generation = self.nodes[node].generation;
        self.nodes[node].flights.insert(id);
        if self.nodes[node].is_cut {
            let outcome = Outcome::Unreachable { reason: "no route to host".to_owned() };
            let delay = self.millis(2000);
            return self.push(delay, Coming::Outcome(node, generation, id, outcome));
        }
        let delay = self.millis(10);
        if self.faults == 0
            || !self.percent(self.faults)
            || matches!(operation, Operation::Watch { .. })
        {
            return self.push(delay, Coming::Request(node, generation, id, operation));
        }
        let unknown = Outcome::Unknown { reason: "no answer within 5 s".to_owned() };
        let fate = self.below(6);
        self.say(|| format!("  n{node} request {id:?} meets fault {fate}"));
        match fate {
            0 => (),                                                               // lost
            1 => self.push(delay, Coming::Request(node, u64::MAX, id, operation)), // its answer is lost
            2 => self.push(TIMEOUT + delay * 500, Coming::Request(node, u64::MAX, id, operation)), // done late
            3 => {
                self.push(delay, Coming::Request(node, generation, id, operation.clone())); // done twice
                let again = self.millis(3000);
                return self.push(again, Coming::Request(node, u64::MAX, id, operation));
            }
            4 => {
                let outcome = Outcome::Unreachable { reason: "connection refused".to_owned() };
                return self.push(delay, Coming::Outcome(node, generation, id, outcome));
            }
            _ => {
                let slow = self.millis(4000);
                return self.push(slow, Coming::Request(node, generation, id, operation));
            }
        }
        let after = if self.percent(50) { TIMEOUT } else { delay * 2 }; // a 503 comes soon
        self.push(after, Coming::Outcome(node, generation, id, unknown));
    }

    /// A request arrives at the store.
    fn apply(&mut self, node: usize, generation: u64, asked: (OperationId, &Operation)) {
        let (id, operation) = asked;
        if let Operation::Watch { from, .. } = operation {
            return self.watch(node, generation, (id, *from));
        }
        let outcome = self.store.apply(operation, self.now);
        self.spread_changes();
        let delay = self.millis(10);
        self.push(delay, Coming::Outcome(node, generation, id, outcome));
    }

    /// The model keeps no history: a watch from an earlier revision ends as compacted.
    fn watch(&mut self, node: usize, generation: u64, (id, from): (OperationId, u64)) {
        if !self.is_running(node, generation) {
            return;
        }
        self.nodes[node].watch = Some(id);
        if self.store.revision >= from {
            let ended = Outcome::Compacted { revision: self.store.revision };
            self.push(Duration::from_millis(5), Coming::Outcome(node, generation, id, ended));
        }
    }

    pub fn spread_changes(&mut self) {
        let changes = std::mem::take(&mut self.store.changes);
        for node in 0..self.nodes.len() {
            let Some(watch) = self.nodes[node].watch else { continue };
            let generation = self.nodes[node].generation;
            if self.nodes[node].is_cut || self.faults > 0 && self.percent(3) {
                let ended = Outcome::Compacted { revision: self.store.revision };
                self.push(
                    Duration::from_millis(5),
                    Coming::Outcome(node, generation, watch, ended),
                );
                continue;
            }
            for change in &changes {
                let delay = self.millis(10);
                self.push(delay, Coming::Change(node, generation, change.clone()));
            }
        }
    }

    /// The plugin's ADD: it allocates from files, or asks the daemon.
    pub fn add(&mut self, node: usize) {
        let until = self.now + PATIENCE;
        self.allocate(node, until);
    }

    fn allocate(&mut self, node: usize, until: Moment) {
        if let Some(ip) = self.nodes[node].free_address() {
            self.say(|| format!("n{node} ADD {ip}"));
            let is_forgiven = self.forgiven.iter().any(|block| block.contains(ip));
            if let Some(other) = self.held.insert(ip, node).filter(|_| !is_forgiven) {
                self.violation.get_or_insert(format!("{ip} is held on n{other} and on n{node}"));
            }
            self.nodes[node].disk.leases.insert(ip);
            self.served += 1;
            self.tell_leases(node);
        } else if self.nodes[node].machine.is_some() && self.now < until {
            self.last += 1;
            let request = RequestId(self.last);
            self.say(|| format!("n{node} ADD waits, {request:?}"));
            self.nodes[node].adds.push(Add { request, until });
            self.tell_leases(node);
            let network = self.network.clone();
            self.give(
                node,
                Event::Exhausted(Request { id: request, network, pool: 0, address: None, until }),
            );
        } else {
            self.denied += 1;
        }
    }

    fn answer(&mut self, node: usize, request: RequestId, reply: &Reply) {
        let adds = &mut self.nodes[node].adds;
        let Some(place) = adds.iter().position(|add| add.request == request) else { return };
        let add = adds.remove(place);
        if *reply == Reply::LookAgain { self.allocate(node, add.until) } else { self.denied += 1 }
    }

    /// The plugin's DEL.
    pub fn del(&mut self, node: usize, ip: IpAddr) {
        if !self.nodes[node].disk.leases.remove(&ip) {
            return;
        }
        self.say(|| format!("n{node} DEL {ip}"));
        if self.held.get(&ip) == Some(&node) {
            self.held.remove(&ip);
        }
        if self.nodes[node].machine.is_some() {
            self.tell_leases(node);
        }
    }

    pub fn crash(&mut self, node: usize) {
        self.say(|| format!("n{node} daemon crashes"));
        let mut random = Random::seeded(self.random.number());
        self.nodes[node].crash(|| random.number().is_multiple_of(2));
        let record =
            Record::Marks { network: self.network.clone(), marks: vec![], unleased: vec![] };
        self.check_usable(node, &record);
    }

    /// The node loses power: its attachments are gone, and the leases are of an earlier boot.
    pub fn power_off(&mut self, node: usize) {
        self.crash(node);
        self.say(|| format!("n{node} loses power"));
        self.nodes[node].is_on = false;
        self.nodes[node].boot += 1;
        self.nodes[node].disk.leases.clear();
        self.held.retain(|_, holder| *holder != node);
    }

    pub fn power_on(&mut self, node: usize) {
        self.nodes[node].is_on = true;
        self.start(node);
    }

    /// Blocks on disks that the store no longer has.
    pub fn forgive_lost_claims(&mut self) {
        let mut lost = vec![];
        for held in self.nodes.iter().flat_map(|node| &node.disk.blocks.blocks) {
            let key =
                held.of.map_or((held.block, held.token), |origin| (origin.block, origin.token));
            let is_there =
                self.store.blocks.get(&key.0).is_some_and(|found| found.value.token == key.1);
            if !is_there && !matches!(held.state, State::Returning) {
                lost.push(key.0);
            }
        }
        self.forgiven.extend(lost);
    }
}
