//! A machine of the model: its disk, its /run, its daemon, and the ADDs that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::block::{Block, address};
use super::super::held::{Blocks, Held};
use super::super::machine::{Machine, Mark, Marks, NodeFile, RequestId, Setup, Written};
use super::super::name::Name;
use super::super::store::Token;
use super::kind::Faults;
use crate::cni::attachment::NetworkName;
use crate::sys::clock::Moment;

/// A lease: the attachment, and the boot in which it was made.
pub type Lease = (u64, u64);

/// A snapshot of a machine's memory: its disk, its daemon, and the confirmation.
pub type Memory = (Disk, Machine, Option<(u64, Option<u64>)>);

/// The files of a network.
#[derive(Clone, Debug)]
pub struct Net {
    pub name: NetworkName,
    /// The plugin has written its file of blocks.
    pub is_known: bool,
    pub blocks: Blocks,
    pub leases: BTreeMap<IpAddr, Lease>,
}

/// What a copy of the data directory has.
#[derive(Clone, Debug)]
pub struct Disk {
    pub file: Option<NodeFile>,
    /// Which file it is: another one after each write, and in each copy.
    pub stamp: u64,
    pub nets: Vec<Net>,
}

/// What an ADD asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Any,
    Address(IpAddr),
    Name(String),
}

/// An ADD that waits for the daemon.
#[derive(Clone, Debug)]
pub struct Add {
    pub id: RequestId,
    pub net: usize,
    pub wish: Wish,
    pub until: Moment,
    /// How often the daemon has told it to look again.
    pub replies: u8,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Name,
    pub hardware: Token,
    pub boot: u64,
    pub is_on: bool,
    /// It is never started again.
    pub is_retired: bool,
    pub disk: Disk,
    /// The confirmation in /run: the boot, and the node's record; None while that is written.
    pub confirmed: Option<(u64, Option<u64>)>,
    /// The confirmation says that the node was withdrawn.
    pub is_withdrawn: bool,
    pub machine: Option<Box<Machine>>,
    /// How many daemons ran before: events for an earlier one are void.
    pub generation: u64,
    /// The daemon does not run until then.
    pub stalled_until: Moment,
    /// The number of the next step: an earlier one is void.
    pub step: u64,
    /// How much its daemon has heard.
    pub heard: usize,
    /// When its leases were read last.
    pub looked: Moment,
    /// Its containers that live: the attachment, and its address.
    pub alive: BTreeMap<u64, IpAddr>,
    pub adds: Vec<Add>,
    pub saved_disk: Option<(Disk, u64)>,
    pub saved_memory: Option<Box<Memory>>,
    /// Something was done to it that ends one of its promises.
    pub is_odd: bool,
    /// Its daemon allocates after a boot before it reaches the store.
    pub trusts_reboot: bool,
    /// The claims that it had when it was resumed from its memory, or its copy was.
    pub before: BTreeSet<Token>,
    /// The claims that it has begun to use since then.
    pub taken: BTreeSet<Token>,
}

fn blocks(spans: &str, names: Option<&str>, length: u8) -> Blocks {
    let pool = |spans: &str, length: u8| {
        let text = format!(r#"{{"length":{length},"spans":["{spans}"]}}"#);
        serde_json::from_str(&text).unwrap()
    };
    let mut blocks = Blocks::new("default".parse().unwrap(), vec![pool(spans, length)], 1);
    blocks.names = names.map(|names| pool(names, 32)).into_iter().collect();
    blocks
}

impl Disk {
    /// The disk of a machine with this number, before the first ADD.
    pub fn new(number: usize, faults: &Faults, stamp: u64, networks: usize) -> Disk {
        let net = |network: usize| Net {
            name: NetworkName::parse(["pods", "web"][network]).unwrap(),
            is_known: false,
            blocks: match (faults.sizes, number % 3) {
                (true, 1) => blocks("10.0.0.0-10.0.0.15", None, 29),
                (true, 2) => blocks("10.0.0.0-10.0.0.63", None, 26),
                (true, _) => blocks("10.0.0.0-10.0.0.15", None, 32),
                (false, _) if faults.names => {
                    blocks("10.0.0.0-10.0.0.2", Some("10.0.0.8-10.0.0.10"), 32)
                }
                (false, _) => blocks("10.0.0.0-10.0.0.3", None, 32),
            },
            leases: BTreeMap::new(),
        };
        Disk { file: None, stamp, nets: (0..networks).map(net).collect() }
    }

    /// Performs marks as the daemon does.
    pub fn mark(&mut self, marks: &Marks, boot: u64) -> Written {
        let Some(net) = self.nets.iter_mut().find(|net| net.name == marks.network) else {
            return Written::Failed("no such network".to_owned());
        };
        let leases = net.leases(boot);
        if leases.iter().any(|ip| marks.unleased.iter().any(|block| block.contains(*ip))) {
            return Written::Leased(leases);
        }
        for mark in &marks.marks {
            let (block, put) = match mark {
                Mark::Put(held) => (held.block, Some(held.clone())),
                Mark::Forget(block) => (*block, None),
            };
            net.blocks.blocks.retain(|held| held.block != block);
            net.blocks.blocks.extend(put);
        }
        Written::Done
    }
}

impl Net {
    /// The addresses with leases of this boot.
    pub fn leases(&self, boot: u64) -> BTreeSet<IpAddr> {
        self.leases.iter().filter(|(_, lease)| lease.1 == boot).map(|(ip, _)| *ip).collect()
    }
}

impl Node {
    pub fn new(name: Name, hardware: u64, disk: Disk, boot: u64) -> Node {
        Node {
            name,
            hardware: Token(hardware.into()),
            boot,
            is_on: true,
            is_retired: false,
            disk,
            confirmed: None,
            is_withdrawn: false,
            machine: None,
            generation: 0,
            stalled_until: Moment::ZERO,
            step: 0,
            heard: 0,
            looked: Moment::ZERO,
            alive: BTreeMap::new(),
            adds: vec![],
            saved_disk: None,
            saved_memory: None,
            is_odd: false,
            trusts_reboot: false,
            before: BTreeSet::new(),
            taken: BTreeSet::new(),
        }
    }

    /// Starts the daemon with the files on the disk.
    pub fn start(&mut self, settle: Moment, now: Moment) {
        let is_confirmed = self.fits();
        let setup = Setup {
            node: self.name.clone(),
            machine: self.hardware,
            boot: format!("boot-{}", self.boot),
            version: "0.1.0".to_owned(),
            settle,
            trusts_reboot: self.trusts_reboot,
            is_complete: true,
            is_replaced: self.is_withdrawn
                || !is_confirmed
                    && self
                        .confirmed
                        .is_some_and(|(boot, stamp)| boot == self.boot && stamp.is_some()),
        };
        let known = self.disk.nets.iter().filter(|net| net.is_known);
        let networks = known.map(|net| (net.name.clone(), net.blocks.clone())).collect();
        let file = self.disk.file.clone();
        let mut machine = Machine::new(setup, file, networks, is_confirmed, now);
        self.tell_leases(&mut machine);
        self.machine = Some(Box::new(machine));
        self.generation += 1;
        self.heard = 0;
        self.stalled_until = Moment::ZERO;
    }

    fn tell_leases(&self, machine: &mut Machine) {
        for net in self.disk.nets.iter().filter(|net| net.is_known) {
            machine.leases(&net.name, net.leases(self.boot));
        }
    }

    /// The daemon reads the leases.
    pub fn look(&mut self, now: Moment) {
        if let Some(mut machine) = self.machine.take() {
            self.tell_leases(&mut machine);
            self.machine = Some(machine);
        }
        self.looked = now;
    }

    /// Whether the confirmation is of this boot and of the record on the disk.
    pub fn fits(&self) -> bool {
        self.confirmed == Some((self.boot, Some(self.disk.stamp))) && self.disk.file.is_some()
    }

    /// Writes the node's record, and the confirmation if there is one.
    pub fn write_file(&mut self, file: NodeFile, stamp: u64) {
        let was_confirmed = self.fits();
        self.disk.file = Some(file);
        self.disk.stamp = stamp;
        if was_confirmed {
            self.confirmed = Some((self.boot, Some(stamp)));
        }
    }

    /// The claims on the disk and in the daemon's memory.
    pub fn claims(&self) -> BTreeSet<Token> {
        let on_disk = self.disk.nets.iter().flat_map(|net| &net.blocks.blocks);
        let mut claims: BTreeSet<Token> = on_disk.map(|held| held.token).collect();
        for network in
            self.machine.iter().flat_map(|it| it.networks().filter_map(|of| it.network(of)))
        {
            claims.extend(network.blocks.values().map(|tracked| tracked.held.token));
        }
        claims
    }

    /// The blocks that plugins allocate from.
    pub fn usable(&self) -> Vec<(usize, Held)> {
        // With `trustReboot`, plugins need no confirmation of this boot, if there is none.
        let own = |file: &NodeFile| file.withdrawn.is_none() && file.machine == self.hardware;
        let is_trusted = self.trusts_reboot && self.confirmed.is_none();
        let is_trusted = is_trusted && self.disk.file.as_ref().is_some_and(own);
        if !self.is_on || !self.fits() && !is_trusted {
            return vec![];
        }
        let of_net = |(number, net): (usize, &Net)| {
            let usable = net.blocks.usable().map(|held| (number, held.clone()));
            usable.collect::<Vec<_>>()
        };
        self.disk.nets.iter().enumerate().flat_map(of_net).collect()
    }

    /// An address that a plugin may give to an ADD.
    pub fn free(&self, net: usize, wish: &Wish) -> Option<IpAddr> {
        let network = &self.disk.nets[net];
        let pool = &network.blocks.pools[0];
        let fits = |held: &Held| match wish {
            Wish::Any => held.name.is_none() && pool.meets(held.block),
            Wish::Address(ip) => held.name.is_none() && held.block.contains(*ip),
            Wish::Name(name) => held.name.as_ref() == Some(name),
        };
        let usable =
            self.usable().into_iter().filter(|(number, held)| *number == net && fits(held));
        let ips = usable.flat_map(|(_, held)| addresses(held.block));
        let mut free = ips.filter(|ip| !network.leases.contains_key(ip));
        free.find(|ip| !matches!(wish, Wish::Address(only) if only != ip))
    }

    /// The memory is gone, and /run.
    pub fn power_off(&mut self) {
        (self.machine, self.is_on, self.confirmed) = (None, false, None);
        self.is_withdrawn = false;
        self.generation += 1;
        self.alive.clear();
        self.adds.clear();
    }
}

/// The addresses of a block.
pub fn addresses(block: Block) -> impl Iterator<Item = IpAddr> {
    (block.start()..=block.end()).map(move |number| address(block.family(), number))
}
