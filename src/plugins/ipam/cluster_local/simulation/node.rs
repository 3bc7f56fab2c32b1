//! A node of the model: its disk, its daemon, and the ADDs that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::{Block, address};
use super::super::engine::{Name, OperationId};
use super::super::held::{Blocks, Confirmation, Held, State, Token};
use super::super::machine::{Machine, Mark, NodeFile, Record, RequestId, Setup, WriteId, Written};
use super::wish::Wish;
use crate::sys::clock::Moment;

/// The files of a network on a node.
#[derive(Clone, Debug)]
pub struct Net {
    pub name: Name,
    /// The plugin has written its file of blocks.
    pub is_known: bool,
    pub blocks: Blocks,
    /// The leases: none of an earlier boot.
    pub leases: BTreeSet<IpAddr>,
    /// What a loss of power leaves of the file, while the last write did not reach the disk.
    pub durable: Option<Blocks>,
}

/// An ADD that waits for the daemon.
#[derive(Clone, Debug)]
pub struct Add {
    pub request: RequestId,
    pub wish: Wish,
    pub until: Moment,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Name,
    pub uid: Token,
    pub file: NodeFile,
    pub nets: Vec<Net>,
    /// The daemon, if it runs: on the heap, so that it is moved cheaply.
    pub machine: Option<Box<Machine>>,
    /// How many daemons ran before: events for an earlier one are void.
    pub generation: u64,
    pub boot: u64,
    /// It has power.
    pub is_on: bool,
    /// It is cut off from the store.
    pub is_cut: bool,
    /// Writes that may or may not have reached the disk.
    pub writes: BTreeMap<WriteId, Record>,
    /// Operations without an outcome.
    pub flights: BTreeSet<OperationId>,
    /// The watch of the realm.
    pub watch: Option<OperationId>,
    /// When the last change that it has sent arrives.
    pub told: Moment,
    pub adds: Vec<Add>,
    /// When its next tick is queued.
    pub tick: Option<Moment>,
}

impl Node {
    pub fn new(number: u64, networks: &[(Name, Blocks)]) -> Node {
        let net = |(name, blocks): &(Name, Blocks)| Net {
            name: name.clone(),
            is_known: false,
            blocks: blocks.clone(),
            leases: BTreeSet::new(),
            durable: None,
        };
        Node {
            name: format!("n{number}").parse().unwrap(),
            uid: Token(u128::from(number) + 1),
            file: NodeFile::default(),
            nets: networks.iter().map(net).collect(),
            machine: None,
            generation: 0,
            boot: 1,
            is_on: true,
            is_cut: false,
            writes: BTreeMap::new(),
            flights: BTreeSet::new(),
            watch: None,
            told: Moment::ZERO,
            adds: vec![],
            tick: None,
        }
    }

    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// Starts the daemon with the files on the disk, and with `settle` and `reclaimAfter` of its configuration.
    pub fn start(&mut self, now: Moment, times: (Duration, Option<Duration>)) {
        let (settle, reclaim_after) = times;
        let setup = Setup {
            node: self.name.clone(),
            uid: self.uid,
            version: "0.1.0".to_owned(),
            boot: self.boot_id(),
            settle,
            reclaim_after,
            is_complete: true,
        };
        let known = self.nets.iter().filter(|net| net.is_known);
        let networks = known.map(|net| (net.name.clone(), net.blocks.clone())).collect();
        self.machine = Some(Box::new(Machine::new(setup, self.file, networks, now)));
        self.tick = None;
    }

    /// The daemon is gone. `reaches_disk` says which of its writes are.
    pub fn crash(&mut self, mut reaches_disk: impl FnMut() -> bool) {
        let writes = std::mem::take(&mut self.writes);
        for record in writes.into_values() {
            if reaches_disk() {
                self.write(&record);
            }
        }
        self.machine = None;
        self.generation += 1;
        self.flights.clear();
        self.watch = None;
        self.adds.clear();
    }

    /// The number of a network.
    pub fn net(&self, name: &Name) -> usize {
        self.nets.iter().position(|net| net.name == *name).unwrap()
    }

    /// Writes to the disk, under the lock of the network.
    pub fn write(&mut self, record: &Record) -> Written {
        match record {
            Record::Node(file) => self.file = *file,
            Record::Marks { network, marks, unleased } => {
                let number = self.net(network);
                let net = &mut self.nets[number];
                if unleased.iter().any(|block| net.is_leased(*block)) {
                    return Written::Leased;
                }
                marks.iter().for_each(|mark| net.mark(mark));
                net.durable = None;
            }
        }
        Written::Done
    }

    /// The same, but a loss of power undoes it.
    pub fn write_in_memory(&mut self, record: &Record) -> Written {
        let Record::Marks { network, .. } = record else { return self.write(record) };
        let number = self.net(network);
        let net = &self.nets[number];
        let before = net.durable.clone().unwrap_or_else(|| net.blocks.clone());
        let written = self.write(record);
        if written == Written::Done {
            self.nets[number].durable = Some(before);
        }
        written
    }

    /// The blocks that plugins allocate from now.
    pub fn usable(&self, net: usize, now: Moment) -> impl Iterator<Item = &Held> {
        let net = &self.nets[net];
        let confirmation = net.blocks.confirmation(&self.boot_id(), now);
        let is_confirmed =
            self.is_on && !net.blocks.confirmed.is_empty() && confirmation == Confirmation::Valid;
        let blocks = net.blocks.blocks.iter();
        blocks.filter(move |held| is_confirmed && held.state == State::Active)
    }
}

impl Net {
    pub fn is_leased(&self, block: Block) -> bool {
        self.leases.range(block.first()..=block.last()).next().is_some()
    }

    fn mark(&mut self, mark: &Mark) {
        let blocks = &mut self.blocks;
        match mark {
            Mark::Put(held) => {
                blocks.blocks.retain(|other| other.block != held.block);
                blocks.blocks.push(held.clone());
            }
            Mark::Forget(block) => blocks.blocks.retain(|other| other.block != *block),
            Mark::Confirm { boot, until } => {
                blocks.confirmed = boot.clone();
                blocks.until = *until;
            }
            Mark::Differs(node) => blocks.differs = node.clone(),
        }
    }
}

/// The addresses of a block.
pub fn addresses(block: Block) -> impl Iterator<Item = IpAddr> {
    (block.start()..=block.end()).map(move |number| address(block.family(), number))
}
