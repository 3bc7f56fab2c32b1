//! The identity of this machine, made once, and what it knows of its standing: one durable record
//! in the data directory, under the lock that only one daemon can have.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::engine::{Epoch, Name};
use super::super::etcd::settings::Settings;
use super::super::held::{Blocks, Token};
use super::super::machine::{NodeFile, Setup};
use super::super::wire::DAEMON;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::service::journal;
use crate::sys::clock::id_of_boot;
use crate::sys::random::Random;

/// The directory of the record. No network's name begins with a dot.
const DIRECTORY: &str = ".node";
/// The record's name.
const RECORD: &str = "node";
/// The file that is written when the node has lost blocks: systemd watches it, and has the
/// containers in them cut off.
const LOST: &str = "lost";

/// The daemon's journal.
pub type Journal = journal::Journal<Node>;

/// The record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    uid: Token,
    incarnation: u64,
    /// None before the first contact.
    epoch: Option<Epoch>,
}

impl journal::Record for Node {
    const VERSION: u64 = 1;
    const LIMIT: usize = 1024;
    const ENDS_WITH_BOOT: bool = false;
    /// A machine that has lost its uid is another machine with the same name.
    const SURVIVES_POWER_LOSS: bool = true;

    fn name(&self) -> String {
        RECORD.to_owned()
    }
}

/// This machine as its record has it.
pub struct Own {
    /// The uid.
    pub uid: Token,
    /// What changes.
    pub file: NodeFile,
}

/// The directory of the record of a data directory.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join(DIRECTORY)
}

/// Reads the record; a machine without one gets it.
pub fn of_this_machine(journal: &Journal) -> Result<Own> {
    let node = match journal.find(RECORD)? {
        Some(node) => node,
        None => created(journal)?,
    };
    Ok(own(node))
}

fn created(journal: &Journal) -> Result<Node> {
    let node = Node { uid: Token::random(&mut Random::new()), incarnation: 0, epoch: None };
    journal.write(&node).map(|()| node)
}

/// Reads the record while no daemon runs; None if there is none.
pub fn left_behind(data_dir: &Path) -> Result<Option<Own>> {
    let Some(journal) = Journal::left_behind(&DAEMON, &directory(data_dir))? else {
        return Ok(None);
    };
    Ok(journal.find(RECORD)?.map(own))
}

/// The last epoch that the daemon of this machine has seen; it may run. 0 without one.
pub fn epoch_seen(data_dir: &Path) -> Epoch {
    let path = directory(data_dir).join(format!("{RECORD}.json"));
    let text = plain_file::read(&path, <Node as journal::Record>::LIMIT).unwrap_or_default();
    let node = serde_json::from_slice::<Node>(&text).ok();
    node.and_then(|node| node.epoch).unwrap_or_default()
}

fn own(node: Node) -> Own {
    let file = NodeFile { incarnation: node.incarnation, epoch: node.epoch };
    Own { uid: node.uid, file }
}

/// Fails if the networks have blocks that no store of a cluster knows of.
pub fn require_joined(own: &Own, networks: &[(Name, Blocks)]) -> Result<()> {
    let alone = networks.iter().find(|(_, blocks)| blocks.active().next().is_some());
    let Some((network, _)) = alone.filter(|_| own.file.epoch.is_none()) else { return Ok(()) };
    let msg = format!(
        "network {:?} has blocks of the time before this machine was part of a cluster",
        network.as_str()
    );
    Err(Error::new(Code::CONFLICT, msg).with_details(
        "run `cni-multi ipam join` once, which claims them in the cluster; then start the daemon",
    ))
}

/// Writes what has changed.
pub fn write(journal: &Journal, uid: Token, file: NodeFile) -> Result<()> {
    let NodeFile { incarnation, epoch } = file;
    journal.write(&Node { uid, incarnation, epoch })
}

/// Tells systemd that the node has lost blocks, by a write to the file that it watches.
pub fn announce_loss(data_dir: &Path) -> Result<()> {
    let path = directory(data_dir).join(LOST);
    plain_file::put(&path, b"").map_err(Error::at_path("write", &path))
}

/// The facts about this node that the state machine needs.
pub fn setup(settings: &Settings, own: &Own, is_complete: bool) -> Result<Setup> {
    Ok(Setup {
        node: settings.node.clone(),
        uid: own.uid,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // Blocks that are confirmed with an empty id would stay confirmed in every later boot.
        boot: id_of_boot()?,
        settle: settings.settle,
        reclaim_after: settings.reclaim_after,
        is_complete,
    })
}
