//! `ipam recover`: tells every node that etcd was restored from a snapshot.

use clap::{ArgMatches, Command};

use super::super::daemon::node;
use super::super::engine::{Epoch, Operation};
use super::arguments::{config, data_dir, value};
use super::session::{Session, Write, unreadable};
use crate::error::{Code, Error, Result};
use crate::terminal::manual::Terms;

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam recover", "Have every node verify its blocks, after etcd was restored.")];

/// How often a race with another recovery, or a lost reply, is met with another look.
const ROUNDS: u32 = 5;

/// The command line.
pub fn command(recover: Command) -> Command {
    recover
        .about("Have every node verify its blocks, after etcd was restored from a snapshot")
        .arg(data_dir())
        .arg(config())
}

/// Raises the epoch.
pub fn run(matches: &ArgMatches) -> Result<String> {
    let mut session = Session::open(&value(matches, "config"))?;
    let seen = node::epoch_seen(&value(matches, "data-dir"));
    let state = session.survey()?;
    let (before, nodes) = (state.epoch, state.nodes.len());
    let epoch = raise(&mut session, before, seen)?;
    let settle = session.settings.settle.as_secs();
    Ok(format!(
        "epoch {before} is now {epoch}: {nodes} nodes verify their blocks, each within a minute\n\
         new blocks are used after {settle} s of settling; then see `cni-multi ipam conflicts`\n"
    ) + &unreadable(&state))
}

/// Raises the epoch by one, and beyond the one that this node has seen: a snapshot may be of an
/// earlier one, and only an epoch that is new makes nodes settle.
fn raise(session: &mut Session, before: Epoch, seen: Epoch) -> Result<Epoch> {
    let mut epoch = before;
    let mut lost = 0;
    while epoch <= before.max(seen) {
        match session.write(Operation::Recover { seen: epoch })? {
            Write::Done(_) => epoch += 1,
            Write::Lost(_) | Write::Unknown if lost < ROUNDS => {
                lost += 1;
                epoch = session.survey()?.epoch;
            }
            Write::Lost(_) | Write::Unknown => return Err(unsettled()),
        }
    }
    Ok(epoch)
}

fn unsettled() -> Error {
    Error::new(Code::TRY_AGAIN, "raise the epoch: others change it, or replies are lost")
        .with_details("run the command again: a second raise does no harm")
}
