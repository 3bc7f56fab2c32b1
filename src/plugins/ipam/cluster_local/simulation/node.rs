//! A node of the model: its disk, its daemon, and the plugin with the attachments.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::block::Block;
use super::super::engine::{Name, OperationId};
use super::super::held::{Blocks, Held, State, Token};
use super::super::machine::{Machine, Mark, NodeFile, Record, RequestId, Setup, WriteId, Written};
use crate::sys::clock::Moment;

/// The files of a node.
#[derive(Clone, Debug)]
pub struct Disk {
    pub file: NodeFile,
    pub blocks: Blocks,
    /// The leases: none of an earlier boot.
    pub leases: BTreeSet<IpAddr>,
}

/// An ADD that waits for the daemon.
#[derive(Clone, Debug)]
pub struct Add {
    pub request: RequestId,
    pub until: Moment,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Name,
    pub uid: Token,
    pub disk: Disk,
    /// The daemon, if it runs.
    pub machine: Option<Machine>,
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
    pub adds: Vec<Add>,
    /// When its next tick is queued.
    pub tick: Option<Moment>,
}

impl Node {
    pub fn new(number: u64, blocks: Blocks) -> Node {
        let name = format!("n{number}");
        Node {
            name: name.parse().unwrap(),
            uid: Token(u128::from(number) + 1),
            disk: Disk { file: NodeFile::default(), blocks, leases: BTreeSet::new() },
            machine: None,
            generation: 0,
            boot: 1,
            is_on: true,
            is_cut: false,
            writes: BTreeMap::new(),
            flights: BTreeSet::new(),
            watch: None,
            adds: vec![],
            tick: None,
        }
    }

    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// Starts the daemon with what the disk has.
    pub fn start(&mut self, network: &Name, now: Moment, settle: Moment) {
        let setup = Setup {
            node: self.name.clone(),
            uid: self.uid,
            version: "0.1.0".to_owned(),
            boot: self.boot_id(),
            settle,
            is_complete: true,
        };
        let networks = vec![(network.clone(), self.disk.blocks.clone())];
        self.machine = Some(Machine::new(setup, self.disk.file, networks, now));
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

    /// Writes to the disk, under the lock of the network.
    pub fn write(&mut self, record: &Record) -> Written {
        match record {
            Record::Node(file) => self.disk.file = *file,
            Record::Marks { marks, unleased, .. } => {
                if unleased.iter().any(|block| self.is_leased(*block)) {
                    return Written::Leased;
                }
                marks.iter().for_each(|mark| self.mark(mark));
            }
        }
        Written::Done
    }

    fn is_leased(&self, block: Block) -> bool {
        self.disk.leases.range(block.first()..=block.last()).next().is_some()
    }

    fn mark(&mut self, mark: &Mark) {
        let blocks = &mut self.disk.blocks;
        match mark {
            Mark::Put(held) => {
                blocks.blocks.retain(|other| other.block != held.block);
                blocks.blocks.push(held.clone());
            }
            Mark::Forget(block) => blocks.blocks.retain(|other| other.block != *block),
            Mark::Confirm(boot) => blocks.confirmed = boot.clone(),
            Mark::Differs(node) => blocks.differs = node.clone(),
        }
    }

    /// The blocks that plugins allocate from now.
    pub fn usable(&self) -> impl Iterator<Item = &Held> {
        let is_confirmed = self.is_on && self.disk.blocks.confirmed == self.boot_id();
        self.disk
            .blocks
            .blocks
            .iter()
            .filter(move |held| is_confirmed && held.state == State::Active)
    }

    /// A free address, as the plugin looks for one under the lock.
    pub fn free_address(&self) -> Option<IpAddr> {
        let pool = self.disk.blocks.pools.first()?;
        let mut all = self.usable().flat_map(|held| {
            (held.block.start()..=held.block.end())
                .map(|number| super::super::block::address(held.block.family(), number))
        });
        all.find(|ip| pool.allocates(*ip) && !self.disk.leases.contains(ip))
    }
}
