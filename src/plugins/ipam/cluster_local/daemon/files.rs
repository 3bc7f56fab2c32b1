//! What the node has borrowed, and the leases in it: the files that it shares with the plugin.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::held::{Blocks, Held};
use super::super::machine::{Mark, Marks, Written};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::service::log::Log;
use crate::steps::allocation::files::Place;

/// The limit of the wait for a network's lock, which plugins hold for milliseconds: the event loop
/// waits too.
const PATIENCE: Duration = Duration::from_secs(2);

/// The networks of a data directory.
pub struct Files {
    data_dir: PathBuf,
}

/// What a daemon finds when it starts.
pub struct Found {
    /// The networks with a file of blocks.
    pub networks: Vec<(NetworkName, Blocks)>,
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
        let dirs = plain_file::entries(&self.data_dir).unwrap_or_else(|e| {
            log.line(Error::io(format_args!("list {}", self.data_dir.display()), &e));
            found.is_complete = false;
            vec![]
        });
        for dir in dirs.iter().filter(|dir| dir.is_dir()) {
            let name = dir.file_name().and_then(|name| NetworkName::parse(name.to_str()?).ok());
            let Some(network) = name else { continue };
            match self.network(&network) {
                Ok(blocks) => found.networks.extend(blocks.map(|blocks| (network, blocks))),
                Err(error) => {
                    log.about("network", network.as_str(), error);
                    found.is_complete = false;
                }
            }
        }
        found
    }

    /// The blocks of a network; None if the plugin has written none.
    pub fn network(&self, network: &NetworkName) -> Result<Option<Blocks>> {
        Blocks::read(self.place(network).dir())
    }

    /// The addresses with leases of this boot.
    pub fn leases(&self, network: &NetworkName) -> Result<BTreeSet<IpAddr>> {
        Ok(self.place(network).taken()?.into_iter().collect())
    }

    /// Changes the blocks of a network in one durable write under its lock, unless a block that must
    /// not have a lease has one.
    pub fn mark(&self, marks: &Marks) -> Written {
        self.try_mark(marks).unwrap_or_else(|e| Written::Failed(e.to_string()))
    }

    fn try_mark(&self, of: &Marks) -> Result<Written> {
        let Marks { network, realm, marks, unleased } = of;
        let place = self.place(network);
        let _lock = place.lock()?;
        let leases: BTreeSet<IpAddr> = place.taken()?.into_iter().collect();
        if leases.iter().any(|ip| unleased.iter().any(|block| block.contains(*ip))) {
            return Ok(Written::Leased(leases));
        }
        let mut blocks = Blocks::read(place.dir())?.ok_or_else(|| {
            let msg = format!("network {:?} has no file of blocks any more", network.as_str());
            Error::new(Code::IO, msg)
        })?;
        if blocks.realm != *realm {
            let msg = format!("network {:?} is in realm {} by now", network.as_str(), blocks.realm);
            return Err(Error::new(Code::CONFLICT, msg));
        }
        for mark in marks {
            let (Mark::Put(Held { block, .. }) | Mark::Forget(block)) = mark;
            blocks.blocks.retain(|held| held.block != *block);
            if let Mark::Put(held) = mark {
                blocks.blocks.push(held.clone());
            }
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

    fn place(&self, network: &NetworkName) -> Place {
        Place::new(&self.data_dir, network, Deadline::after(PATIENCE)).of_this_boot()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::super::super::block::Block;
    use super::super::super::held::State;
    use super::super::super::store::Token;
    use super::*;
    use crate::scratch::Scratch;

    fn held(block: &str, state: State) -> Held {
        let block = block.parse().unwrap();
        Held { block, token: Token(7), state, since: 1, contested: false, name: None }
    }

    fn pods() -> NetworkName {
        NetworkName::parse("pods").unwrap()
    }

    /// A data directory whose network `pods` has two blocks, and a lease in the first.
    fn with_blocks() -> Scratch {
        let dir = Scratch::new();
        dir.write("pods/10.1.0.9", "a\r\neth0");
        let mut blocks = Blocks::new("default".parse().unwrap(), vec![], 1);
        blocks.blocks =
            vec![held("4-0a010008-29", State::Active), held("4-0a010010-29", State::Active)];
        blocks.write(&dir.path().join("pods")).unwrap();
        dir
    }

    fn marks(marks: Vec<Mark>, unleased: &[&str]) -> Marks {
        let unleased: Vec<Block> = unleased.iter().map(|block| block.parse().unwrap()).collect();
        Marks { network: pods(), realm: "default".parse().unwrap(), marks, unleased }
    }

    #[test]
    fn networks_are_found_and_one_that_cannot_be_read_is_missed() {
        let nowhere = Scratch::new();
        let log = Log::new(|_| String::new());
        let found = |dir: &Path| {
            let found = Files::new(dir).networks(&log);
            let names = found.networks.iter().map(|(name, _)| name.as_str().to_owned());
            (names.collect::<Vec<_>>(), found.is_complete)
        };
        assert_eq!(found(&nowhere.path().join("none")), (vec![], true));
        let dir = with_blocks();
        dir.write(".node/node.json", "{}");
        dir.write("other/10.2.0.9", "a\r\neth0");
        dir.write("file", "");
        assert_eq!(found(dir.path()), (vec!["pods".to_owned()], true));
        dir.write("torn/blocks.json", "{");
        assert_eq!(found(dir.path()), (vec!["pods".to_owned()], false));
    }

    #[test]
    fn marks_of_another_realm_are_refused() {
        let dir = with_blocks();
        let realm = "lab".parse().unwrap();
        let forget = Mark::Forget("4-0a010010-29".parse().unwrap());
        let marks = Marks { realm, ..marks(vec![forget], &[]) };
        let refused = Files::new(dir.path()).mark(&marks);
        assert_eq!(
            refused,
            Written::Failed("network \"pods\" is in realm default by now".to_owned())
        );
    }

    #[test]
    fn marks_are_one_change_unless_a_block_has_a_lease() {
        let dir = with_blocks();
        let files = Files::new(dir.path());
        let blocks = || files.network(&pods()).unwrap().unwrap().blocks;
        let before = blocks();
        let lost = held("4-0a010008-29", State::Lost);
        let forget = Mark::Forget(before[1].block);
        let both = vec![Mark::Put(lost.clone()), forget.clone()];
        let leases = BTreeSet::from(["10.1.0.9".parse().unwrap()]);
        let refused = files.mark(&marks(both.clone(), &["4-0a010008-29"]));
        assert_eq!((refused, blocks()), (Written::Leased(leases.clone()), before));
        assert_eq!(files.leases(&pods()).unwrap(), leases);
        assert_eq!(files.mark(&marks(both, &["4-0a010010-29"])), Written::Done);
        assert_eq!(blocks(), [lost]);
        let new = held("4-0a010018-29", State::Settling);
        assert_eq!(files.mark(&marks(vec![forget, Mark::Put(new.clone())], &[])), Written::Done);
        assert_eq!(blocks().last(), Some(&new));
    }

    #[test]
    fn leases_of_an_earlier_boot_are_none() {
        let dir = with_blocks();
        dir.write("pods/boot", "an earlier one");
        let files = Files::new(dir.path());
        assert_eq!(files.leases(&pods()).unwrap(), BTreeSet::new());
        let returning = held("4-0a010008-29", State::Returning);
        let marks = marks(vec![Mark::Put(returning)], &["4-0a010008-29"]);
        assert_eq!(files.mark(&marks), Written::Done);
    }

    #[test]
    fn a_network_without_a_file_fails_and_gets_none() {
        let dir = with_blocks();
        let files = Files::new(dir.path());
        fs::remove_file(dir.path().join("pods/blocks.json")).unwrap();
        let failed = files.mark(&marks(vec![], &[]));
        let Written::Failed(why) = failed else { panic!("{failed:?}") };
        assert!(why.contains("\"pods\" has no file of blocks"), "{why}");
        assert_eq!(files.network(&pods()).unwrap(), None);
    }
}
