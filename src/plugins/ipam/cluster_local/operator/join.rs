//! `ipam join`: a machine that allocated without a cluster becomes a node of one, and keeps every
//! address.
//!
//! It claims in etcd the blocks that its leases need. Everything is compared before anything is
//! changed. A claim that another node wins in between is an error, after which the claims of this
//! command are given back. A command that was interrupted is run again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgMatches, Command};

use super::super::claims;
use super::super::daemon::node::{self, Journal, Own};
use super::super::engine::{
    Claimed, ClusterState, Ground, Identity, Member, Name, NodeRecord, Operation, Revision, Rival,
    Seen, Standing, Token,
};
use super::super::held::{Blocks, Held, State};
use super::super::machine::NodeFile;
use super::super::machine::names::full_name;
use super::super::node::{CONFIGURATION, is_of_cluster};
use super::super::wire::DAEMON;
use super::arguments::{config, data_dir, flag, is_json, output, value};
use super::plan::{Local, Others, Piece, networks, pieces};
use super::session::{Session, Write};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::steps::allocation::files::lock::Lock;
use crate::sys::clock::id_of_boot;
use crate::sys::random::Random;
use crate::terminal::manual::Terms;
use crate::terminal::table::{self, Members, put, put_text};

/// For the manual.
pub const EXAMPLES: Terms = &[
    ("cni-multi ipam join --dry-run", "Print which blocks this machine would claim."),
    ("cni-multi ipam join", "Claim the blocks of the leases that this machine has."),
];

/// The columns of the table.
const COLUMNS: [(&str, &str); 5] = [
    ("NETWORK", "network"),
    ("BLOCK", "block"),
    ("HELD", "held"),
    ("REALM", "realm"),
    ("NAME", "name"),
];

/// The limit of the wait for locks: ADDs hold them for milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The command line.
pub fn command(join: Command) -> Command {
    join.about("Claim in the cluster what a machine without a cluster has allocated")
        .arg(data_dir())
        .arg(config())
        .arg(flag("dry-run", "Only print what would be claimed"))
        .arg(output())
}

/// Joins, and lists what was claimed.
pub fn run(matches: &ArgMatches) -> Result<String> {
    let mut join = Join::open(matches)?;
    if join.own.file.epoch.is_some() {
        let (node, cluster) = (&join.session.settings.node, &join.session.settings.cluster);
        return Ok(format!(
            "{node} is a node of cluster {cluster} already: nothing is to be done\n"
        ));
    }
    let as_json = is_json(matches);
    let (locals, plan) = join.plan()?; // before anything is changed
    let is_dry = matches.get_flag("dry-run");
    if is_dry {
        return Ok(text(&locals, &plan, as_json));
    }
    let (locals, plan) = join.carry_out()?;
    let end = if as_json { "" } else { "joined; start the daemon now: `cni-multi ipam daemon`\n" };
    Ok(text(&locals, &plan, as_json) + end)
}

/// A machine about to join.
struct Join {
    session: Session,
    data_dir: PathBuf,
    own: Own,
    state: ClusterState,
    /// The id of this boot.
    boot: String,
}

/// The blocks for each network.
type Plan = Vec<Vec<Piece>>;

impl Join {
    /// Looks at the machine and at the cluster. Fails if the daemon runs, or if the name is taken.
    fn open(matches: &ArgMatches) -> Result<Join> {
        let boot = id_of_boot()?;
        let mut session = Session::open(&value(matches, "config"))?;
        require_configured()?;
        let data_dir = value(matches, "data-dir");
        let own = match node::left_behind(&data_dir)? {
            Some(own) => own,
            None => fresh(),
        };
        let state = session.survey()?;
        let mut join = Join { session, data_dir, own, state, boot };
        join.take_incarnation()?;
        Ok(join)
    }

    fn record(&self) -> Option<(Revision, NodeRecord)> {
        let member: &Member = self.state.nodes.get(&self.session.settings.node)?;
        member.record.as_ref().map(|record| (record.revision, record.value.clone()))
    }

    /// A name that was reclaimed goes on with the incarnation of its fence.
    fn take_incarnation(&mut self) -> Result<()> {
        let Some((_, record)) = self.record() else { return Ok(()) };
        if record.standing == Standing::Live && record.uid != self.own.uid {
            return Err(name_taken(&self.session.settings.node));
        }
        self.own.file.incarnation = self.own.file.incarnation.max(record.incarnation);
        Ok(())
    }

    fn plan(&self) -> Result<(Vec<Local>, Plan)> {
        let locals = networks(&self.data_dir, Deadline::after(PATIENCE))?;
        let plan = pieces(&locals, &Others::of(&self.state, self.own.uid))?;
        Ok((locals, plan))
    }

    /// Claims and writes, under the locks of the claims and of each network: no ADD allocates
    /// meanwhile.
    fn carry_out(&mut self) -> Result<(Vec<Local>, Plan)> {
        let journal = Journal::open(&DAEMON, &node::directory(&self.data_dir))?;
        let _claims = claims::lock(&self.data_dir, Deadline::after(PATIENCE))?;
        let _locks = self.lock_networks()?;
        self.state = self.session.survey()?;
        self.take_incarnation()?;
        let (locals, plan) = self.plan()?;
        // The uid is on the disk before it is in the store: what is claimed stays this machine's.
        node::write(&journal, self.own.uid, self.own.file)?;
        let ground = Ground { node_revision: self.register()?, epoch: self.state.epoch };
        let claimed = self.claim_all((&locals, &plan), ground)?;
        for ((local, pieces), revisions) in locals.iter().zip(&plan).zip(claimed) {
            let blocks = self.blocks(local, pieces, &revisions);
            blocks.write(local.place.dir())?;
        }
        let file = NodeFile { epoch: Some(self.state.epoch), ..self.own.file };
        node::write(&journal, self.own.uid, file)?;
        Ok((locals, plan))
    }

    fn lock_networks(&self) -> Result<Vec<Lock>> {
        let locals = networks(&self.data_dir, Deadline::after(PATIENCE))?;
        locals.iter().map(|local| local.place.lock()).collect()
    }

    /// Writes the node's record, and returns its revision.
    fn register(&mut self) -> Result<Revision> {
        let node = self.session.settings.node.clone();
        let record = NodeRecord {
            uid: self.own.uid,
            incarnation: self.own.file.incarnation,
            standing: Standing::Live,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            reclaim_after: None, // the daemon adds it once the files have their limits
        };
        let (seen, found) = self.record().unzip();
        if let (Some(revision), true) = (seen, found.as_ref() == Some(&record)) {
            return Ok(revision);
        }
        let operation = Operation::Register { node, record, seen: seen.unwrap_or_default() };
        match self.session.write(operation)? {
            Write::Done(revision) => Ok(revision),
            Write::Lost(_) | Write::Unknown => Err(again("the node's record")),
        }
    }

    /// Claims each block; returns the revisions. After a lost one nothing of this command is left.
    fn claim_all(&mut self, of: (&[Local], &Plan), ground: Ground) -> Result<Vec<Vec<Revision>>> {
        let (locals, plan) = of;
        self.release_unplanned(of)?;
        let mut done: Vec<(Name, Seen)> = vec![];
        let mut all = vec![];
        for (local, pieces) in locals.iter().zip(plan) {
            let mut revisions = vec![];
            for piece in pieces {
                match self.claim((local, piece), ground) {
                    Ok(seen) => {
                        revisions.push(seen.revision);
                        done.push((local.blocks.realm.clone(), seen));
                    }
                    Err(error) => return Err(self.undo(done, error)),
                }
            }
            all.push(revisions);
        }
        Ok(all)
    }

    /// The key of a block, once it is this machine's.
    fn claim(&mut self, of: (&Local, &Piece), ground: Ground) -> Result<Seen> {
        let (local, piece) = of;
        let realm = local.blocks.realm.clone();
        let claimed = self.claimed(local, piece);
        if let Some(revision) = key(&self.state, (&realm, piece), &claimed) {
            return Ok(Seen { block: piece.block, claimed, revision });
        }
        let operation = Operation::Claim {
            realm: realm.clone(),
            block: piece.block,
            claimed: claimed.clone(),
            ground,
        };
        match self.session.write(operation)? {
            Write::Done(revision) => Ok(Seen { block: piece.block, claimed, revision }),
            Write::Lost(rival) => Err(lost(piece, &rival)),
            Write::Unknown => {
                let state = self.session.survey()?;
                let revision = key(&state, (&realm, piece), &claimed);
                let revision = revision.ok_or_else(|| again("a claim"))?;
                Ok(Seen { block: piece.block, claimed, revision })
            }
        }
    }

    /// The value of a block's key, as the daemon has it.
    fn claimed(&self, local: &Local, piece: &Piece) -> Claimed {
        let owner = Identity {
            node: self.session.settings.node.clone(),
            uid: self.own.uid,
            incarnation: self.own.file.incarnation,
        };
        let sticky = piece.sticky.as_ref().map(|name| full_name(local.name.as_str(), name));
        Claimed { owner, token: piece.token, sticky, vacant: false }
    }

    /// Deletes the keys that an interrupted command claimed for leases that are gone.
    fn release_unplanned(&mut self, of: (&[Local], &Plan)) -> Result<()> {
        let (locals, plan) = of;
        let mut stale = vec![];
        for (realm, state) in &self.state.realms {
            let planned = locals.iter().zip(plan).filter(|(local, _)| local.blocks.realm == *realm);
            let claims_of = |(local, pieces): (&Local, &Vec<Piece>)| {
                pieces.iter().map(|piece| self.claimed(local, piece)).collect::<Vec<_>>()
            };
            let planned: Vec<Claimed> = planned.flat_map(claims_of).collect();
            for found in &state.blocks {
                let own = found.claimed.as_ref().filter(|is| is.owner.uid == self.own.uid);
                let Some(claimed) = own.filter(|own| !planned.contains(own)) else { continue };
                let (claimed, revision) = (claimed.clone(), found.revision);
                stale.push((realm.clone(), Seen { block: found.block, claimed, revision }));
            }
        }
        for (realm, seen) in stale {
            self.session.write(Operation::Release { realm, seen })?; // the daemon deletes what is left
        }
        Ok(())
    }

    /// Gives back what this command has claimed. What cannot be given back is found by the next run.
    fn undo(&mut self, done: Vec<(Name, Seen)>, error: Error) -> Error {
        for (realm, seen) in done {
            if let Err(failed) = self.session.write(Operation::Release { realm, seen }) {
                return error.with_details(format_args!("give back what was claimed: {failed}"));
            }
        }
        error
    }

    /// The file of a network with what was claimed.
    fn blocks(&self, local: &Local, pieces: &[Piece], revisions: &[Revision]) -> Blocks {
        let held = |(piece, revision): (&Piece, &Revision)| Held {
            block: piece.block,
            token: piece.token,
            mod_revision: *revision,
            state: State::Active,
            since: claims::now(),
            incarnation: self.own.file.incarnation,
            of: None,
            sticky: piece.sticky.clone(),
        };
        let blocks = pieces.iter().zip(revisions).map(held).collect();
        Blocks { blocks, confirmed: self.boot.clone(), ..local.blocks.clone() }
    }
}

fn fresh() -> Own {
    Own { uid: Token::random(&mut Random::new()), file: NodeFile::default() }
}

/// The revision of a block's key, if it has this value.
fn key(state: &ClusterState, of: (&Name, &Piece), claimed: &Claimed) -> Option<Revision> {
    let (realm, piece) = of;
    let mut blocks = state.realms.get(realm)?.blocks.iter();
    let found = blocks.find(|found| found.block == piece.block)?;
    (found.claimed.as_ref() == Some(claimed)).then_some(found.revision)
}

/// Plugins look at one path: without the file there they would go on to claim by themselves.
fn require_configured() -> Result<()> {
    if is_of_cluster() {
        return Ok(());
    }
    let msg = format!("{} does not exist", Path::new(CONFIGURATION).display());
    Err(Error::new(Code::CONFLICT, msg).with_details(
        "plugins would go on to allocate without the cluster: put the configuration there first",
    ))
}

fn name_taken(node: &Name) -> Error {
    let msg = format!("another machine of the cluster has the name {:?}", node.as_str());
    Error::new(Code::CONFLICT, msg)
        .with_details(format_args!("set another node name in {CONFIGURATION}, or reclaim the name"))
}

fn again(what: &str) -> Error {
    let msg = format!("the write of {what} was lost, or its outcome is unknown");
    Error::new(Code::TRY_AGAIN, msg).with_details("run the command again: it goes on from here")
}

fn lost(piece: &Piece, rival: &Rival) -> Error {
    let found = rival.blocks.iter().find(|found| found.block.overlaps(piece.block));
    let Some(found) = found else { return again("a claim") };
    let claimed = found.claimed.as_ref().map_or("", |claimed| claimed.owner.node.as_str());
    let (block, theirs) = (piece.block.prefix(), found.block.prefix());
    let msg = format!("{block}: node {claimed:?} has just claimed {theirs}");
    Error::new(Code::CONFLICT, msg).with_details(
        "what this command had claimed was given back, and no file was changed; run it again for a new look",
    )
}

fn text(locals: &[Local], plan: &Plan, as_json: bool) -> String {
    let rows = locals.iter().zip(plan).flat_map(|(local, pieces)| {
        let row = |piece: &Piece| {
            let mut row = Members::new();
            put_text(&mut row, "network", local.name.as_str());
            put_text(&mut row, "block", &piece.block.prefix().to_string());
            put(&mut row, "held", Value::number(piece.held as u64));
            put_text(&mut row, "realm", local.blocks.realm.as_str());
            put_text(&mut row, "name", piece.sticky.as_deref().unwrap_or_default());
            Value::Object(row)
        };
        pieces.iter().map(row)
    });
    table::of_rows(rows.collect(), &COLUMNS, as_json)
}
