//! What the node has borrowed, and the leases in it: the files that it shares with the plugin.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
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

/// Every network with a file of blocks, and whether all were read. One that cannot be read is logged, and
/// its blocks stay the node's.
pub fn networks(data_dir: &Path, log: &Log) -> (Vec<(NetworkName, Blocks)>, bool) {
    let (mut found, mut is_complete) = (vec![], true);
    let dirs = plain_file::entries(data_dir).unwrap_or_else(|e| {
        log.line(Error::io(format_args!("list {}", data_dir.display()), &e));
        is_complete = false;
        vec![]
    });
    for dir in dirs.iter().filter(|dir| dir.is_dir()) {
        let name = dir.file_name().and_then(|name| NetworkName::parse(name.to_str()?).ok());
        let Some(network) = name else { continue };
        match Blocks::read(dir) {
            Ok(blocks) => found.extend(blocks.map(|blocks| (network, blocks))),
            Err(error) => {
                log.about("network", network.as_str(), error);
                is_complete = false;
            }
        }
    }
    (found, is_complete)
}

/// The files of a network in a data directory, of this boot.
pub fn place(data_dir: &Path, network: &NetworkName) -> Place {
    Place::new(data_dir, network, Deadline::after(PATIENCE)).of_this_boot()
}

/// Changes the blocks of a network in one durable write under its lock, unless a block that must
/// not have a lease has one.
pub fn mark(data_dir: &Path, marks: &Marks) -> Result<Written> {
    let Marks { network, realm, marks, unleased } = marks;
    let place = place(data_dir, network);
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
    let is_visible = || Blocks::read(place.dir()).is_ok_and(|now| now.as_ref() == Some(&blocks));
    if written.is_err() && !is_visible() {
        written?;
    }
    Ok(Written::Done)
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
            let (found, is_complete) = networks(dir, &log);
            let names = found.iter().map(|(name, _)| name.as_str().to_owned());
            (names.collect::<Vec<_>>(), is_complete)
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
        let refused = mark(dir.path(), &marks).unwrap_err();
        assert_eq!(refused.to_string(), "network \"pods\" is in realm default by now");
    }

    #[test]
    fn marks_are_one_change_unless_a_block_has_a_lease() {
        let dir = with_blocks();
        let blocks = || Blocks::read(&dir.path().join("pods")).unwrap().unwrap().blocks;
        let mark = |marks: Marks| mark(dir.path(), &marks).unwrap();
        let before = blocks();
        let lost = held("4-0a010008-29", State::Lost);
        let forget = Mark::Forget(before[1].block);
        let both = vec![Mark::Put(lost.clone()), forget.clone()];
        let leases = BTreeSet::from(["10.1.0.9".parse().unwrap()]);
        let refused = mark(marks(both.clone(), &["4-0a010008-29"]));
        assert_eq!((refused, blocks()), (Written::Leased(leases.clone()), before));
        assert_eq!(mark(marks(both, &["4-0a010010-29"])), Written::Done);
        assert_eq!(blocks(), [lost]);
        let new = held("4-0a010018-29", State::Settling);
        assert_eq!(mark(marks(vec![forget, Mark::Put(new.clone())], &[])), Written::Done);
        assert_eq!(blocks().last(), Some(&new));
    }

    #[test]
    fn leases_of_an_earlier_boot_are_none() {
        let dir = with_blocks();
        dir.write("pods/boot", "an earlier one");
        assert!(place(dir.path(), &pods()).taken().unwrap().is_empty());
        let returning = held("4-0a010008-29", State::Returning);
        let marks = marks(vec![Mark::Put(returning)], &["4-0a010008-29"]);
        assert_eq!(mark(dir.path(), &marks).unwrap(), Written::Done);
    }

    #[test]
    fn a_network_without_a_file_fails_and_gets_none() {
        let dir = with_blocks();
        fs::remove_file(dir.path().join("pods/blocks.json")).unwrap();
        let why = mark(dir.path(), &marks(vec![], &[])).unwrap_err().to_string();
        assert!(why.contains("\"pods\" has no file of blocks"), "{why}");
        assert!(!dir.path().join("pods/blocks.json").exists());
    }
}
