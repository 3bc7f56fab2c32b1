//! As many nodes as no machine has: the daemon's state machines on a clock of their own, around a map in
//! place of the store. What is counted is what they ask the store for, and what they hold.
//!
//! Of each range and number of nodes: addresses that are free but held by others, with half of the
//! addresses attached and with all of them; requests at rest, and for 1000 ADDs. Pods come to random
//! nodes, 50 a second.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::time::Duration;

use cni_multi::cni::attachment::NetworkName;
use cni_multi::plugins::ipam::cluster_local::block::{Block, address};
use cni_multi::plugins::ipam::cluster_local::held::Blocks;
use cni_multi::plugins::ipam::cluster_local::machine::{
    Action, Allocation, Machine, Mark, Marks, Reply, Request, RequestId, Setup, Turn, Written,
};
use cni_multi::plugins::ipam::cluster_local::store::{
    Answer, Heard, Key, Operation, Outcome, Stored, Token,
};
use cni_multi::sys::clock::{Moment, NEVER};
use cni_multi::sys::random::Random;

use super::cases::{Figure, Size};
use super::model::simulation::store::Records;

/// The ranges: name in figures, prefix, first and last usable address, length of the blocks.
const RANGES: [(&str, &str, u8); 4] = [
    ("/28", "10.0.0.2-10.0.0.14", 32),
    ("/24", "10.0.0.2-10.0.0.254", 32),
    ("/22", "10.0.0.2-10.0.3.254", 32),
    ("/16", "10.0.0.2-10.0.255.254", 29),
];
/// The numbers of nodes, and what figures of each are called.
const NODES: [usize; 3] = [3, 50, 1000];
/// From one pod to the next.
const POD: Duration = Duration::from_millis(20);
/// A request's way to the store, and its answer's back.
const WAY: Duration = Duration::from_millis(2);
/// How far a watch lags behind.
const LAG: Duration = Duration::from_millis(20);
/// How often a daemon reads its leases while others want addresses, and usually.
const LOOK: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];
/// How long an ADD waits.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The node's daemon takes a step, unless a later one was set.
    Step(usize, u64),
    /// The node's request reaches the store.
    Arrive(usize),
    /// Its answer comes back.
    Answer(usize),
    /// The node hears what the watch has seen under this number.
    Hear(usize, usize),
    /// A pod comes to a random node.
    Pod,
}

struct Node {
    machine: Machine,
    blocks: Blocks,
    leases: BTreeSet<IpAddr>,
    is_confirmed: bool,
    step: u64,
    looked: Moment,
    operation: Option<Operation>,
    outcome: Option<Outcome<Answer>>,
}

struct Cluster {
    now: Moment,
    nodes: Vec<Node>,
    store: Records,
    version: u64,
    queue: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    queued: u64,
    heard: Vec<Heard>,
    random: Random,
    requests: u64,
    /// How many pods come.
    coming: usize,
}

fn network() -> NetworkName {
    NetworkName::parse("pods").unwrap()
}

impl Cluster {
    /// Nodes that start within a minute, and ten minutes to come to rest.
    fn new(nodes: usize, span: &str, length: u8) -> Cluster {
        let pool = format!(r#"{{"length":{length},"spans":["{span}"]}}"#);
        let pool = serde_json::from_str(&pool).unwrap();
        let blocks = Blocks::new("default".parse().unwrap(), vec![pool], 1);
        let mut cluster = Cluster {
            now: Duration::from_secs(1),
            nodes: vec![],
            store: Records::default(),
            version: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            heard: vec![],
            random: Random::seeded(7),
            requests: 0,
            coming: 0,
        };
        for number in 0..nodes {
            let setup = Setup {
                node: format!("n{number}").parse().unwrap(),
                machine: Token(number as u128 + 1),
                boot: "boot".to_owned(),
                version: "0.1.0".to_owned(),
                settle: Duration::from_secs(60),
                trusts_reboot: false,
                is_complete: true,
                is_replaced: false,
            };
            let networks = vec![(network(), blocks.clone())];
            let mut machine = Machine::new(setup, None, networks, false, cluster.now);
            machine.heard(Heard::Now(cluster.store.heard()), cluster.now);
            cluster.nodes.push(Node {
                machine,
                blocks: blocks.clone(),
                leases: BTreeSet::new(),
                is_confirmed: false,
                step: 0,
                looked: Moment::ZERO,
                operation: None,
                outcome: None,
            });
            let start = cluster.random.below(Duration::from_secs(60));
            cluster.wake(number, start);
        }
        cluster.run(Duration::from_secs(600));
        cluster
    }

    fn at(&mut self, moment: Moment, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((moment, self.queued, event)));
    }

    fn wake(&mut self, number: usize, after: Duration) {
        self.nodes[number].step += 1;
        let step = self.nodes[number].step;
        self.at(self.now + after, Event::Step(number, step));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse((moment, _, event))) = self.queue.peek().copied() {
            if moment > end {
                break;
            }
            self.queue.pop();
            self.now = self.now.max(moment);
            match event {
                Event::Step(number, step) if self.nodes[number].step == step => self.step(number),
                Event::Step(..) => (),
                Event::Arrive(number) => self.execute(number),
                Event::Answer(number) => {
                    let outcome = self.nodes[number].outcome.take().unwrap();
                    self.nodes[number].machine.answered(outcome, self.now);
                    self.wake(number, Duration::ZERO);
                }
                Event::Hear(number, place) => {
                    let heard = self.heard[place].clone();
                    self.nodes[number].machine.heard(heard, self.now);
                    self.wake(number, Duration::ZERO);
                }
                Event::Pod => self.pod(),
            }
        }
        self.now = end;
    }

    /// The daemon of a node does what is due, until it waits.
    fn step(&mut self, number: usize) {
        let now = self.now;
        let node = &mut self.nodes[number];
        let each = LOOK[usize::from(!node.machine.is_wanted())];
        if now >= node.looked + each {
            node.looked = now;
            node.machine.leases(&network(), node.leases.clone());
        }
        let until = loop {
            let node = &mut self.nodes[number];
            let wall = 1_800_000_000 + now.as_secs();
            match node.machine.next(&mut Turn { now, wall, random: &mut self.random }) {
                Action::Wait(until) => break until,
                Action::Node(_) => node.machine.wrote(Written::Done, now),
                Action::Confirm(allocation) => {
                    node.is_confirmed = allocation == Allocation::Confirmed;
                    node.machine.wrote(Written::Done, now);
                }
                Action::Marks(marks) => {
                    let written = node.mark(&marks);
                    node.machine.wrote(written, now);
                }
                Action::Send(operation) => {
                    node.operation = Some(operation);
                    self.at(now + WAY, Event::Arrive(number));
                }
                Action::Reply(_, Reply::LookAgain) => self.attach(number),
                Action::Reply(..) | Action::Log(_) => (),
            }
        };
        let node = &self.nodes[number];
        let look = if node.machine.is_wanted() { node.looked + LOOK[0] } else { NEVER };
        let until = until.min(look);
        if until != NEVER {
            self.wake(number, until.saturating_sub(now).max(Duration::from_millis(1)));
        }
    }

    fn execute(&mut self, number: usize) {
        let operation = self.nodes[number].operation.take().unwrap();
        self.requests += 1;
        let outcome = self.store.execute(&operation, &mut self.version);
        let heard = match (&outcome, operation) {
            (Outcome::Done(Answer::Written(stored)), _) => Some(Heard::Put(stored.clone())),
            (Outcome::Done(Answer::Deleted), Operation::Delete(Stored { record, .. })) => {
                Some(Heard::Gone(record.key))
            }
            _ => None,
        };
        let is_watched = |key: &Key| matches!(key, Key::Meta | Key::Want(_) | Key::Conflict(..));
        let heard = heard.filter(|heard| match heard {
            Heard::Put(stored) => is_watched(&stored.record.key),
            Heard::Gone(key) => is_watched(key),
            Heard::Now(_) => true,
        });
        if let Some(heard) = heard {
            self.heard.push(heard);
            for number in 0..self.nodes.len() {
                self.at(self.now + LAG, Event::Hear(number, self.heard.len() - 1));
            }
        }
        self.nodes[number].outcome = Some(outcome);
        self.at(self.now + WAY, Event::Answer(number));
    }

    /// Pods come, and those that get an address stay.
    fn attach_pods(&mut self, count: usize) {
        self.coming = count;
        if count > 0 {
            self.at(self.now, Event::Pod);
        }
        self.run(POD * count as u32 + PATIENCE * 2);
    }

    fn pod(&mut self) {
        let number = (self.random.number() % self.nodes.len() as u64) as usize;
        self.attach(number);
        self.coming -= 1;
        if self.coming > 0 {
            self.at(self.now + POD, Event::Pod);
        }
    }

    /// An ADD: out of the node's fullest block, or the daemon is asked.
    fn attach(&mut self, number: usize) {
        let (now, id) = (self.now, RequestId(self.queued));
        let node = &mut self.nodes[number];
        if let Some(ip) = node.free() {
            node.leases.insert(ip);
            return;
        }
        let until = now + PATIENCE;
        let network = network();
        node.machine.configured(network.clone(), node.blocks.clone());
        node.machine.leases(&network, node.leases.clone());
        let request = Request { id, network, pool: 0, address: None, name: None, until };
        node.machine.exhausted(request);
        self.wake(number, Duration::ZERO);
    }

    /// The free addresses of blocks with leases, and of blocks without.
    fn free(&self) -> [u64; 2] {
        let mut free = [0, 0];
        for node in &self.nodes {
            for held in &node.blocks.blocks {
                let all = node.allocatable(held.block).count();
                let leased = node.leased(held.block);
                free[usize::from(leased == 0)] += (all - leased) as u64;
            }
        }
        free
    }

    /// The requests since this was asked last.
    fn requests(&mut self) -> u64 {
        std::mem::take(&mut self.requests)
    }
}

impl Node {
    fn allocatable(&self, block: Block) -> impl Iterator<Item = IpAddr> {
        let all = (block.start()..=block.end()).map(move |ip| address(block.family(), ip));
        all.filter(|ip| self.blocks.pools[0].allocates(*ip))
    }

    fn leased(&self, block: Block) -> usize {
        self.leases.range(block.first()..=block.last()).count()
    }

    /// A free address of the fullest block.
    fn free(&self) -> Option<IpAddr> {
        let usable = self.blocks.usable().map(|held| (self.leased(held.block), held.block));
        let usable =
            usable.filter(|(leased, of)| self.is_confirmed && (*leased as u64) < of.size());
        let mut usable: Vec<(usize, Block)> = usable.collect();
        usable.sort_unstable_by(|one, other| other.cmp(one));
        let mut free = usable.into_iter().flat_map(|(_, block)| self.allocatable(block));
        free.find(|ip| !self.leases.contains(ip))
    }

    fn mark(&mut self, marks: &Marks) -> Written {
        if marks.unleased.iter().any(|block| self.leased(*block) > 0) {
            return Written::Leased(self.leases.clone());
        }
        for mark in &marks.marks {
            let (block, put) = match mark {
                Mark::Put(held) => (held.block, Some(held.clone())),
                Mark::Forget(block) => (*block, None),
            };
            self.blocks.blocks.retain(|held| held.block != block);
            self.blocks.blocks.extend(put);
        }
        Written::Done
    }
}

/// The figures of each range with each number of nodes.
pub fn simulated(_: &Size) -> Vec<Figure> {
    let mut figures = vec![];
    for (range, span, length) in RANGES {
        for nodes in NODES {
            figures.extend(figures_of(range, span, length, nodes));
        }
    }
    figures
}

fn figures_of(range: &str, span: &str, length: u8, nodes: usize) -> Vec<Figure> {
    let mut cluster = Cluster::new(nodes, span, length);
    let usable = cluster.nodes[0].blocks.pools[0].spans().iter().map(|span| span.size());
    let usable = usable.sum::<u128>() as usize;
    let mut figures: Vec<(String, &'static str, String)> = vec![];
    cluster.requests();
    cluster.run(Duration::from_secs(600));
    let rest = cluster.requests() as f64 / 600.0;
    figures.push(("requests at rest".to_owned(), "per second", format!("{rest:.1}")));
    let first = (usable / 2).min(1000);
    cluster.attach_pods(first);
    let beats = (nodes as f64 / 30.0 * (POD * first as u32 + PATIENCE * 2).as_secs_f64()) as u64;
    let asked = cluster.requests().saturating_sub(beats);
    figures.push((format!("requests for {first} ADDs"), "", asked.to_string()));
    cluster.attach_pods(usable / 2 - first);
    cluster.run(Duration::from_secs(900));
    let [stranded, spare] = cluster.free();
    figures.push(("stranded at half".to_owned(), "addresses", stranded.to_string()));
    figures.push(("spare at half".to_owned(), "addresses", spare.to_string()));
    cluster.attach_pods(usable - usable / 2);
    let [stranded, _] = cluster.free();
    figures.push(("attached of all".to_owned(), "addresses", cluster.attached().to_string()));
    figures.push(("stranded at the end".to_owned(), "addresses", stranded.to_string()));
    let name = |figure: String| format!("{range} on {nodes} nodes: {figure}");
    figures.into_iter().map(|(figure, unit, value)| (name(figure), unit, value)).collect()
}

impl Cluster {
    fn attached(&self) -> usize {
        self.nodes.iter().map(|node| node.leases.len()).sum()
    }
}
