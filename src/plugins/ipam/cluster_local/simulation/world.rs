//! The world of a schedule: the store, the nodes, and everything that is on its way between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Change, Name, Operation, OperationId, Outcome};
use super::super::held::{Blocks, Held, State};
use super::super::machine::{Action, Event, Mark, Record, Turn, WriteId, Written};
use super::node::Node;
use super::store::Store;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// How long new claims settle after a restore.
pub const SETTLE: Duration = Duration::from_secs(30);

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
    pub realm: Name,
    /// Values of `reclaimAfter`: each start of a daemon chooses one at random.
    pub absences: &'static [Option<Duration>],
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    coming: BTreeMap<u64, Box<Coming>>,
    pub last: u64,
    /// The attachments, by their address: node and network.
    pub held: BTreeMap<IpAddr, (usize, usize)>,
    /// The store has no leader until then.
    pub leaderless: Moment,
    /// The address of the last ADD.
    pub last_served: Option<IpAddr>,
    /// Each name that an attachment has had, as in the keys of blocks, with the attachment's address.
    pub named: BTreeSet<(String, IpAddr)>,
    /// Blocks whose claim a restore lost while the node could not be notified in time.
    pub forgiven: Vec<Block>,
    /// How many in a hundred requests meet a fault.
    pub faults: u64,
    pub steps: u64,
    pub trace: Option<Vec<String>>,
    /// ADDs that were answered with an address, or without.
    pub served: u64,
    pub denied: u64,
    /// ADDs that failed because another node has the address of the name.
    pub elsewhere: u64,
    /// Nodes that daemons have fenced.
    pub fenced: u64,
    pub violation: Option<String>,
}

impl World {
    pub fn new(
        seed: u64,
        count: usize,
        networks: &[(Name, Blocks)],
        absences: &'static [Option<Duration>],
    ) -> World {
        let nodes = (0..count as u64).map(|number| Node::new(number, networks)).collect();
        let mut world = World {
            now: Duration::from_secs(1),
            random: Random::seeded(seed),
            store: Store::default(),
            nodes,
            realm: networks[0].1.realm.clone(),
            absences,
            queue: BinaryHeap::new(),
            coming: BTreeMap::new(),
            last: 0,
            held: BTreeMap::new(),
            leaderless: Duration::ZERO,
            last_served: None,
            named: BTreeSet::new(),
            forgiven: vec![],
            faults: 0,
            steps: 0,
            trace: None,
            served: 0,
            denied: 0,
            elsewhere: 0,
            fenced: 0,
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
        self.coming.insert(self.last, Box::new(coming));
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
            self.arrive(*coming);
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
                    self.give(node, Event::Changed { realm: self.realm.clone(), change });
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

    pub fn is_running(&self, node: usize, generation: u64) -> bool {
        self.nodes[node].machine.is_some() && self.nodes[node].generation == generation
    }

    pub fn start(&mut self, node: usize) {
        if self.nodes[node].machine.is_some() || !self.nodes[node].is_on {
            return;
        }
        self.say(|| format!("n{node} starts"));
        let place = self.below(self.absences.len() as u64) as usize;
        self.nodes[node].start(self.now, (SETTLE, self.absences[place]));
        for net in 0..self.nodes[node].nets.len() {
            if self.nodes[node].nets[net].is_known {
                self.tell_leases(node, net);
            }
        }
        self.give(node, Event::Time);
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
        let written = match self.below(200) {
            0 if self.faults > 0 => Written::Failed("no space left on device".to_owned()),
            1 if self.faults > 0 => self.nodes[node].write_in_memory(&record), // a failed fsync
            _ => self.nodes[node].write(&record),
        };
        self.check(node, &record);
        self.give(node, Event::Written { id, written });
    }

    pub fn violate(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    /// Fails if an invariant was violated.
    pub fn verdict(&self) -> Result<(), String> {
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// What a write has made usable is used nowhere else. Other writes make nothing usable.
    fn check(&mut self, node: usize, record: &Record) {
        let Record::Marks { network, marks, .. } = record else { return };
        let makes_usable = |mark: &Mark| match mark {
            Mark::Put(held) => held.state == State::Active,
            Mark::Confirm { .. } => true,
            Mark::Forget(_) | Mark::Differs(_) => false,
        };
        if marks.iter().any(makes_usable) {
            self.check_usable(node, self.nodes[node].net(network));
        }
    }

    /// No two networks may allocate from one address, and no name has two.
    pub fn check_usable(&mut self, node: usize, net: usize) {
        if let Some(twice) = self.used_twice(node, net, &self.forgiven) {
            self.violate(|| twice);
        }
    }

    /// What a network may allocate that another one may, too, but for these blocks.
    pub fn used_twice(&self, node: usize, net: usize, but: &[Block]) -> Option<String> {
        let is_forgiven = |block: Block| but.iter().any(|other| other.overlaps(block));
        for mine in self.nodes[node].usable(net, self.now).filter(|held| !is_forgiven(held.block)) {
            for (number, other) in self.nodes.iter().enumerate() {
                for of in (0..other.nets.len()).filter(|of| (number, *of) != (node, net)) {
                    let is_named = |theirs: &Held| of == net && theirs.sticky == mine.sticky;
                    let mut theirs = other.usable(of, self.now);
                    let twice = theirs.find(|theirs| {
                        let is_same_name = mine.sticky.is_some() && is_named(theirs);
                        theirs.block.overlaps(mine.block)
                            || is_same_name
                                && is_same_pool(theirs.block, mine.block)
                                && !is_forgiven(theirs.block)
                    });
                    if let Some(theirs) = twice {
                        return Some(format!(
                            "{node}/{net} uses {mine:?} and {number}/{of} uses {theirs:?}"
                        ));
                    }
                }
            }
        }
        None
    }

    pub fn crash(&mut self, node: usize) {
        self.say(|| format!("n{node} daemon crashes"));
        let mut random = Random::seeded(self.random.number());
        self.nodes[node].crash(|| random.number().is_multiple_of(2));
        (0..self.nodes[node].nets.len()).for_each(|net| self.check_usable(node, net));
    }

    /// The node loses power: its attachments are gone, and the leases are of an earlier boot.
    pub fn power_off(&mut self, node: usize) {
        self.crash(node);
        self.say(|| format!("n{node} loses power"));
        self.nodes[node].is_on = false;
        self.nodes[node].boot += 1;
        for net in 0..self.nodes[node].nets.len() {
            let is_undone = self.percent(50);
            let net = &mut self.nodes[node].nets[net];
            net.leases.clear();
            if let Some(blocks) = net.durable.take().filter(|_| is_undone) {
                net.blocks = blocks;
            }
        }
        self.held.retain(|_, (holder, _)| *holder != node);
    }

    pub fn power_on(&mut self, node: usize) {
        self.nodes[node].is_on = true;
        self.start(node);
    }

    /// A daemon has fenced a node that was absent for `reclaimAfter`. If the node still runs, its attachments
    /// keep their addresses, and other nodes may allocate the same ones: `reclaimAfter` does not prevent that.
    /// It guarantees that the node allocates nothing more from these blocks, which `used_twice` checks.
    pub fn abandon(&mut self, name: &Name) {
        self.say(|| format!("{name} was fenced"));
        let Some(node) = self.nodes.iter().position(|node| node.name == *name) else { return };
        self.held.retain(|_, (holder, _)| *holder != node);
    }

    /// Blocks on disks that the store no longer has.
    pub fn forgive_lost_claims(&mut self) {
        let mut lost = vec![];
        for held in self.nodes.iter().flat_map(|node| &node.nets).flat_map(|net| &net.blocks.blocks)
        {
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

/// Names of range sets differ in the family alone, in the model.
fn is_same_pool(one: Block, other: Block) -> bool {
    one.family() == other.family()
}
