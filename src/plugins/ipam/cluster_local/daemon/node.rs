//! The identity of this machine, made once, and what it knows of its standing: one durable record
//! in the data directory, under the lock that only one daemon can have.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::engine::Epoch;
use super::super::etcd::settings::Settings;
use super::super::held::Token;
use super::super::machine::{NodeFile, Setup};
use crate::error::Result;
use crate::service::journal;
use crate::steps::allocation::files::boot::boot_id;
use crate::sys::random::Random;

/// The directory of the record. No network's name begins with a dot.
const DIRECTORY: &str = ".node";
/// The record's name.
const NAME: &str = "node";

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
        NAME.to_owned()
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
    let node = match journal.find(NAME)? {
        Some(node) => node,
        None => created(journal)?,
    };
    let file = NodeFile { incarnation: node.incarnation, epoch: node.epoch };
    Ok(Own { uid: node.uid, file })
}

fn created(journal: &Journal) -> Result<Node> {
    let mut random = Random::new();
    let uid = u128::from(random.number()) << 64 | u128::from(random.number());
    let node = Node { uid: Token(uid), incarnation: 0, epoch: None };
    journal.write(&node).map(|()| node)
}

/// Writes what has changed.
pub fn write(journal: &Journal, uid: Token, file: NodeFile) -> Result<()> {
    let NodeFile { incarnation, epoch } = file;
    journal.write(&Node { uid, incarnation, epoch })
}

/// The facts about this node that the state machine needs.
pub fn setup(settings: &Settings, own: &Own, is_complete: bool) -> Setup {
    Setup {
        node: settings.node.clone(),
        uid: own.uid,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot: boot_id().trim().to_owned(),
        settle: settings.settle,
        is_complete,
    }
}
