//! The cluster of the model: its time, its network, its machines, and what must always be true.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::time::Duration;

use super::super::held::{Held, State};
use super::super::machine::reclaim::{Reclaim, Step};
use super::super::machine::{Action, Allocation, Mark, Reply, Request, RequestId, Turn, Written};
use super::super::name::Name;
use super::super::store::{Answer, Operation, Outcome, Stored, Token};
use super::kind::{Faults, Kind};
use super::node::{Add, Disk, Memory, Node, Wish, addresses};
use super::promise::short;
use super::store::Records;
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// How long claims settle.
pub const SETTLE: Duration = Duration::from_secs(60);
/// How long no daemon starts after a restore: a condition of the promise.
const QUIET_AFTER_RESTORE: Duration = Duration::from_secs(65);
/// More steps are no schedule but a loop.
const MOST_STEPS: u64 = 100_000;

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Who sends an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A daemon, of this generation.
    Daemon(usize, u64),
    Reclaim(usize),
}

/// An operation on its way.
#[derive(Clone, Debug)]
pub struct Flight {
    pub(super) operation: Operation,
    pub(super) from: Sender,
    pub(super) outcome: Option<Outcome<Answer>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Step(usize, u64),
    Execute(usize),
    Answer(usize),
    Hear(usize, u64, usize),
    Fault,
    Reclaim(usize),
    Start(usize, u64),
    PowerOn(usize),
    StoreUp,
    FaultsEnd,
}

/// A reclaim that runs.
pub struct Reclaiming {
    pub stepper: Reclaim,
    pub is_done: bool,
    pub is_asking: bool,
}

/// The cluster.
pub struct World {
    pub faults: Faults,
    pub now: Moment,
    pub store: Records,
    pub other: Records,
    pub is_other: bool,
    pub is_up: bool,
    pub down_until: Moment,
    pub nodes: Vec<Node>,
    pub reclaims: Vec<Reclaiming>,
    pub snapshot: Option<Records>,
    pub restores: u8,
    /// The addresses that nodes had before their first claim.
    pub joined: BTreeSet<IpAddr>,
    /// Faults happen.
    pub is_rough: bool,
    pub quiet_since: Moment,
    pub served: u64,
    pub violation: Option<String>,
    pub trace: Option<Vec<String>>,
    pub random: Random,
    /// What the machines draw, which does not change what happens around them.
    inner: Random,
    queue: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    queued: u64,
    pub flights: Vec<Flight>,
    /// What watches have heard, in this order.
    pub heard: Vec<Vec<Stored>>,
    /// The records some time ago: what a list of a realm may have.
    pub old: Records,
    pub version: u64,
    fresh: u64,
    ticks: u32,
    pub steps: u64,
}

impl World {
    pub fn new(kind: Kind, seed: u64, is_traced: bool) -> World {
        let mut world = World {
            faults: kind.faults(),
            now: ms(1000),
            store: Records::default(),
            other: Records::default(),
            is_other: false,
            is_up: true,
            down_until: Moment::ZERO,
            nodes: vec![],
            reclaims: vec![],
            snapshot: None,
            restores: 0,
            joined: BTreeSet::new(),
            is_rough: true,
            quiet_since: NEVER,
            served: 0,
            violation: None,
            trace: is_traced.then(Vec::new),
            random: Random::seeded(seed),
            inner: Random::seeded(!seed),
            queue: BinaryHeap::new(),
            queued: 0,
            flights: vec![],
            heard: vec![],
            old: Records::default(),
            version: 0,
            fresh: 100,
            ticks: 0,
            steps: 0,
        };
        let networks = 1 + usize::from(world.one_in(3));
        for number in 0..3 {
            let (boot, stamp) = (world.fresh(), world.fresh());
            let disk = Disk::new(number, &world.faults, stamp, networks);
            let name = format!("n{number}").parse().unwrap();
            let mut node = Node::new(name, number as u64 + 1, disk, boot);
            node.trusts_reboot = world.faults.trusts_reboot;
            world.nodes.push(node);
            if world.faults.joins && number < 2 {
                world.join(number);
            }
        }
        world
    }

    /// The node has a lease of the address of its number, as `ipam join` leaves it.
    fn join(&mut self, number: usize) {
        let (token, attachment) = (Token(self.fresh().into()), self.fresh());
        let node = &mut self.nodes[number];
        let net = &mut node.disk.nets[0];
        let Some(block) = net.blocks.pools[0].block(number as u128) else { return };
        let state = State::Claiming;
        net.is_known = true;
        net.blocks.blocks.push(Held {
            block,
            token,
            state,
            since: 0,
            contested: false,
            name: None,
        });
        for ip in addresses(block) {
            net.leases.insert(ip, (attachment, node.boot));
            node.alive.insert(attachment, ip);
            self.joined.insert(ip);
        }
    }

    pub fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.random.number() % limit.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn pick(&mut self, times: &[u64]) -> Duration {
        ms(times[self.below(times.len())])
    }

    pub fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} {}", self.now.as_secs_f64(), line()));
        }
    }

    pub fn at(&mut self, moment: Moment, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((moment, self.queued, event)));
    }

    /// The daemon takes its next step after this time.
    pub fn wake(&mut self, number: usize, after: Duration) {
        self.nodes[number].step += 1;
        let step = self.nodes[number].step;
        self.at(self.now + after, Event::Step(number, step));
    }

    pub fn fail(&mut self, what: String) {
        if self.violation.is_none() {
            self.log(|| format!("VIOLATION {what}"));
            self.violation = Some(what);
        }
    }

    // The network.

    // The daemons.

    fn step(&mut self, number: usize) {
        if self.is_rough && self.faults.crashes && self.may_stop() && self.one_in(120) {
            let after = self.pick(&[10, 1000, 5000, 40_000]);
            return self.crash(number, after);
        }
        if self.is_rough && self.faults.power && self.one_in(300) {
            self.power_off(number);
            let after = self.pick(&[100, 5000, 60_000, 130_000]);
            return self.power_on_after(number, after);
        }
        let now = self.now;
        if now >= self.nodes[number].looked + ms(250) {
            self.nodes[number].look(now);
        }
        let Some(mut machine) = self.nodes[number].machine.take() else { return };
        let wall = 1_800_000_000 + now.as_secs();
        let mut inner = self.inner.clone();
        let action = machine.next(&mut Turn { now, wall, random: &mut inner });
        self.inner = inner;
        self.nodes[number].machine = Some(machine);
        let after = if self.is_rough { self.pick(&[5, 5, 5, 50, 800]) } else { ms(5) };
        if let Some(at) = self.perform(number, action) {
            let wait = at.saturating_sub(now).max(ms(1)).min(ms(60_000));
            return self.wake(number, wait);
        }
        self.wake(number, after);
    }

    /// Performs an action; returns until when the daemon waits.
    fn perform(&mut self, number: usize, action: Action) -> Option<Moment> {
        let fails = self.is_rough && self.faults.crashes && self.one_in(60);
        let written = match action {
            Action::Wait(until) => return Some(until),
            Action::Send(operation) => {
                let generation = self.nodes[number].generation;
                self.send(Sender::Daemon(number, generation), operation);
                return None;
            }
            Action::Log(line) => {
                self.log(|| format!("n{number}: {line}"));
                return None;
            }
            Action::Reply(id, reply) => {
                self.reply(number, id, &reply);
                return None;
            }
            _ if fails => Written::Failed("no space left".to_owned()),
            Action::Node(file) => {
                self.log(|| format!("n{number} disk: {}", short(&file)));
                let stamp = self.fresh();
                self.nodes[number].write_file(file, stamp);
                Written::Done
            }
            Action::Confirm(allocation) => {
                self.log(|| format!("n{number}: {allocation:?}"));
                let node = &mut self.nodes[number];
                let stamp = (allocation == Allocation::Confirmed).then_some(node.disk.stamp);
                node.confirmed = Some((node.boot, stamp));
                node.is_withdrawn = allocation == Allocation::Withdrawn;
                Written::Done
            }
            Action::Marks(marks) => {
                self.log(|| format!("n{number} disk: {}", short(&marks)));
                let node = &mut self.nodes[number];
                let written = node.disk.mark(&marks, node.boot);
                for mark in marks.marks.iter().filter(|_| written == Written::Done) {
                    if let Mark::Put(Held { state: State::Active, token, .. }) = mark
                        && !node.before.contains(token)
                    {
                        node.taken.insert(*token);
                    }
                }
                written
            }
        };
        self.check();
        if let Some(machine) = &mut self.nodes[number].machine {
            machine.wrote(written, self.now);
        }
        None
    }

    fn reply(&mut self, number: usize, id: RequestId, reply: &Reply) {
        let adds = &mut self.nodes[number].adds;
        let Some(place) = adds.iter().position(|add| add.id == id) else { return };
        let mut add = adds.remove(place);
        add.replies += 1;
        self.log(|| format!("n{number}: ADD {id:?} hears {reply:?}"));
        let goes_on = match reply {
            Reply::LookAgain => !self.try_add(number, add.net, &add.wish) && add.replies < 4,
            _ => false,
        };
        if goes_on {
            self.ask(number, add);
        }
    }

    fn ask(&mut self, number: usize, mut add: Add) {
        add.id = RequestId(self.fresh());
        let (now, node) = (self.now, &mut self.nodes[number]);
        node.look(now);
        let net = &mut node.disk.nets[add.net];
        net.is_known = true;
        let (network, blocks) = (net.name.clone(), net.blocks.clone());
        let (address, name) = match &add.wish {
            Wish::Any => (None, None),
            Wish::Address(ip) => (Some(*ip), None),
            Wish::Name(name) => (None, Some(name.clone())),
        };
        if let Some(machine) = &mut node.machine {
            machine.configured(network.clone(), blocks);
            machine.leases(&network, net.leases(node.boot));
            let (id, until) = (add.id, add.until);
            machine.exhausted(Request { id, network, pool: 0, address, name, until });
            node.adds.push(add);
            self.wake(number, ms(1));
        }
    }

    /// An ADD.
    pub fn add(&mut self, number: usize, net: usize, wish: Wish) {
        if !self.nodes[number].is_on || self.try_add(number, net, &wish) {
            return;
        }
        let until = self.now + ms(60_000);
        self.log(|| format!("n{number} ADD of {wish:?} asks the daemon"));
        self.ask(number, Add { id: RequestId(0), net, wish, until, replies: 0 });
    }

    fn try_add(&mut self, number: usize, net: usize, wish: &Wish) -> bool {
        let Some(ip) = self.nodes[number].free(net, wish) else { return false };
        let attachment = self.fresh();
        let node = &mut self.nodes[number];
        node.disk.nets[net].leases.insert(ip, (attachment, node.boot));
        node.alive.insert(attachment, ip);
        self.served += 1;
        self.log(|| format!("n{number} ADD #{attachment} of {wish:?} gets {ip}"));
        self.check();
        true
    }

    pub fn del(&mut self, number: usize, ip: IpAddr) {
        let node = &mut self.nodes[number];
        for net in &mut node.disk.nets {
            if let Some((attachment, _)) = net.leases.remove(&ip) {
                node.alive.remove(&attachment);
            }
        }
        self.log(|| format!("n{number} DEL {ip}"));
    }

    // Life of machines.

    pub fn start(&mut self, number: usize) {
        let node = &self.nodes[number];
        if !node.is_on || node.machine.is_some() {
            return;
        }
        let quiet = self.down_until + QUIET_AFTER_RESTORE;
        if self.restores > 0 && self.faults.outage.is_some() && self.now < quiet {
            let generation = node.generation;
            return self.at(quiet, Event::Start(number, generation));
        }
        let now = self.now;
        self.nodes[number].start(SETTLE, now);
        self.log(|| format!("n{number} daemon starts"));
        let after = if self.is_rough { self.pick(&[10, 100, 1000]) } else { ms(10) };
        self.wake(number, after);
        self.tell(number);
    }

    /// Whether a daemon may end: in the minute after a restore those with attachments run, which is a
    /// condition of the promise.
    fn may_stop(&self) -> bool {
        let is_kept = self.restores == 0 || self.faults.outage.is_none();
        is_kept || self.now >= self.down_until + QUIET_AFTER_RESTORE
    }

    pub fn crash(&mut self, number: usize, after: Duration) {
        if !self.may_stop() || self.nodes[number].machine.take().is_none() {
            return;
        }
        self.log(|| format!("n{number} daemon CRASHES"));
        let node = &mut self.nodes[number];
        node.generation += 1;
        node.adds.clear();
        let generation = node.generation;
        self.at(self.now + after, Event::Start(number, generation));
    }

    pub fn power_off(&mut self, number: usize) {
        if self.nodes[number].is_on {
            self.log(|| format!("n{number} POWER OFF"));
            self.nodes[number].power_off();
        }
    }

    pub fn power_on_after(&mut self, number: usize, after: Duration) {
        self.at(self.now + after, Event::PowerOn(number));
    }

    pub fn power_on(&mut self, number: usize) {
        if self.nodes[number].is_on || self.nodes[number].is_retired {
            return;
        }
        let boot = self.fresh();
        (self.nodes[number].is_on, self.nodes[number].boot) = (true, boot);
        self.log(|| format!("n{number} BOOTS, boot {boot}"));
        self.start(number);
    }

    pub fn reclaim(&mut self, node: &Name) {
        if self.is_rough && self.reclaims.iter().filter(|it| !it.is_done).count() >= 2 {
            return;
        }
        let number = self.reclaims.len();
        self.log(|| format!("R{number} reclaims {node}"));
        let mark = Token(self.fresh().into());
        let is_destroyed = self.nodes.iter().any(|it| it.name == *node && it.is_retired);
        let stepper = Reclaim::new(node.clone(), mark, is_destroyed);
        self.reclaims.push(Reclaiming { stepper, is_done: false, is_asking: false });
        self.at(self.now + ms(10), Event::Reclaim(number));
    }

    fn step_reclaim(&mut self, number: usize) {
        let reclaim = &mut self.reclaims[number];
        if reclaim.is_done || reclaim.is_asking {
            return;
        }
        match reclaim.stepper.next(self.now) {
            Step::Ask(operation) => {
                reclaim.is_asking = true;
                self.send(Sender::Reclaim(number), operation);
            }
            Step::Wait(until) => self.at(until, Event::Reclaim(number)),
            Step::Done(end) => {
                reclaim.is_done = true;
                self.log(|| format!("R{number} ends: {end:?}"));
            }
        }
    }

    pub fn restore(&mut self, snapshot: Records) {
        self.restores += 1;
        self.store = snapshot;
        match self.faults.outage {
            Some(outage) => {
                self.log(|| "the store is DOWN, and restored".to_owned());
                self.is_up = false;
                self.down_until = self.now + outage;
                self.at(self.down_until, Event::StoreUp);
            }
            None => {
                self.log(|| "the store is restored ROUGHLY".to_owned());
                self.publish();
            }
        }
    }

    // Time.

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step(number, step) => {
                let node = &self.nodes[number];
                if node.step != step || node.machine.is_none() || !node.is_on {
                    return;
                }
                match node.stalled_until.checked_sub(self.now) {
                    Some(left) if !left.is_zero() => self.wake(number, left),
                    _ => self.step(number),
                }
            }
            Event::Execute(id) => self.execute(id),
            Event::Answer(id) => self.answer(id),
            Event::Hear(number, generation, place) => self.hear(number, generation, place),
            Event::Fault if self.is_rough => {
                self.ticks += 1;
                let after = self.pick(&[10, 10, 200, 1000, 4000, 12_000, 35_000]);
                if self.ticks < 30 {
                    self.at(self.now + after, Event::Fault);
                    if self.one_in(3) {
                        self.old = self.store.clone();
                    }
                    super::schedule::happen(self);
                } else {
                    self.at(self.now + after, Event::FaultsEnd);
                }
            }
            Event::Reclaim(number) => self.step_reclaim(number),
            Event::Start(number, generation) => {
                if self.nodes[number].generation == generation {
                    self.start(number);
                }
            }
            Event::PowerOn(number) => self.power_on(number),
            Event::StoreUp if self.now >= self.down_until => {
                self.is_up = true;
                self.log(|| "the store is UP".to_owned());
                self.publish();
            }
            Event::Fault | Event::StoreUp | Event::FaultsEnd => (),
        }
    }

    /// Lets time pass until a moment, or until the faults end.
    pub fn run_until(&mut self, end: Moment) {
        while let Some(Reverse((moment, _, event))) = self.queue.peek().copied() {
            if moment > end || self.violation.is_some() {
                break;
            }
            self.queue.pop();
            self.now = self.now.max(moment);
            self.steps += 1;
            if self.steps > MOST_STEPS {
                self.fail("the schedule does not end".to_owned());
            }
            if event == Event::FaultsEnd {
                return;
            }
            self.handle(event);
        }
        if end != NEVER && self.violation.is_none() {
            self.now = self.now.max(end);
        }
    }

    pub fn run(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    pub fn begin_faults(&mut self) {
        self.at(self.now + ms(1000), Event::Fault);
    }

    /// A machine beside another, out of its memory.
    pub fn resume(&mut self, number: usize, memory: Memory) {
        let (disk, mut machine, confirmed) = memory;
        let now = self.now;
        machine.answered(Outcome::Unknown("no answer".to_owned()), now);
        let mut node = self.nodes[number].clone();
        (node.disk, node.confirmed, node.machine) = (disk, confirmed, Some(Box::new(machine)));
        node.alive.clear();
        node.adds.clear();
        (node.generation, node.is_odd, node.saved_memory) = (node.generation + 1000, true, None);
        let claims = &self.nodes[number].claims() | &node.claims();
        (node.before, node.taken) = (claims.clone(), BTreeSet::new());
        self.nodes.push(node);
        let original = &mut self.nodes[number];
        (original.is_odd, original.before, original.taken) = (true, claims, BTreeSet::new());
        let copy = self.nodes.len() - 1;
        self.log(|| format!("n{number} is RESUMED as n{copy}"));
        self.wake(copy, ms(10));
        self.tell(copy);
    }
}
