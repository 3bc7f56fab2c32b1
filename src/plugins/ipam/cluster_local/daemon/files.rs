//! What the node has borrowed, and the leases in it: the files that it shares with the plugin.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::Name;
use super::super::held::Blocks;
use super::super::machine::{Mark, Written};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::service::log::Log;
use crate::steps::allocation::files::{Place, operator};

/// The limit of the wait for a network's lock, which plugins hold for milliseconds: the daemon has
/// one thread.
const PATIENCE: Duration = Duration::from_secs(2);

/// The networks of a data directory.
pub struct Files {
    data_dir: PathBuf,
}

/// What a daemon finds when it starts.
pub struct Found {
    /// The networks with a file of blocks.
    pub networks: Vec<(Name, Blocks)>,
    /// Whether every such file was read.
    pub is_complete: bool,
}

impl Files {
    /// The networks of this directory.
    pub fn new(data_dir: &Path) -> Files {
        Files { data_dir: data_dir.to_owned() }
    }

    /// Every network with a file of blocks. One that cannot be read is logged, and its blocks stay
    /// the node's.
    pub fn networks(&self, log: &Log) -> Found {
        let mut found = Found { networks: vec![], is_complete: true };
        for network in operator::networks(&self.data_dir) {
            match self.network(network.as_str()) {
                Ok(Some(named)) => found.networks.push(named),
                Ok(None) => (),
                Err(error) => {
                    log.about("network", network.as_str(), error);
                    found.is_complete = false;
                }
            }
        }
        found
    }

    /// The name and the blocks of a network; None if the plugin has written none.
    pub fn network(&self, network: &str) -> Result<Option<(Name, Blocks)>> {
        let name = name_of(network)?;
        let blocks = Blocks::read(self.place(&name)?.dir())?;
        Ok(blocks.map(|blocks| (name, blocks)))
    }

    /// The addresses with leases of this boot.
    pub fn leases(&self, network: &Name) -> Result<BTreeSet<IpAddr>> {
        Ok(self.place(network)?.taken()?.into_iter().collect())
    }

    /// Changes the blocks of a network in one durable write under its lock, unless one of `unleased`
    /// has a lease.
    pub fn mark(&self, network: &Name, marks: Vec<Mark>, unleased: &[Block]) -> Written {
        let changed = self.try_mark(network, marks, unleased);
        changed.unwrap_or_else(|e| Written::Failed(e.to_string()))
    }

    fn try_mark(&self, network: &Name, marks: Vec<Mark>, unleased: &[Block]) -> Result<Written> {
        let place = self.place(network)?;
        let _lock = place.lock()?;
        let taken = place.taken()?;
        if taken.iter().any(|ip| unleased.iter().any(|block| block.contains(*ip))) {
            return Ok(Written::Leased);
        }
        let mut blocks = Blocks::read(place.dir())?.ok_or_else(|| no_file(network))?;
        for mark in marks {
            apply(&mut blocks, mark);
        }
        let written = blocks.write(place.dir());
        // A failed fsync of the directory comes after the rename, which plugins see: it has happened. After
        // a loss of power nothing is used before every block was verified.
        let is_visible =
            || Blocks::read(place.dir()).is_ok_and(|now| now.as_ref() == Some(&blocks));
        if written.is_err() && !is_visible() {
            written?;
        }
        Ok(Written::Done)
    }

    fn place(&self, network: &Name) -> Result<Place> {
        let name = NetworkName::parse(network.as_str())?;
        Ok(Place::new(&self.data_dir, &name, Deadline::after(PATIENCE)).of_this_boot())
    }
}

fn apply(blocks: &mut Blocks, mark: Mark) {
    match mark {
        Mark::Put(held) => {
            blocks.blocks.retain(|other| other.block != held.block);
            blocks.blocks.push(held);
        }
        Mark::Forget(block) => blocks.blocks.retain(|held| held.block != block),
        Mark::Confirm { boot, until } => {
            blocks.confirmed = boot;
            blocks.until = until;
        }
        Mark::Differs(node) => blocks.differs = node,
    }
}

/// A network's name as a part of keys.
pub fn name_of(network: &str) -> Result<Name> {
    let name = network.parse();
    name.map_err(|e| Error::new(Code::INVALID_CONFIG, format!("network name: {e}")))
}

fn no_file(network: &Name) -> Error {
    let msg = format!("network {:?} has no file of blocks any more", network.as_str());
    Error::new(Code::IO, msg)
}
