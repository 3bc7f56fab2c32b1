//! The daemon's state machine. It has no clock, socket, file or random number of its own: it is told
//! what has happened, and [`Machine::next`] says what must be done, one action at a time.
//!
//! It is level-triggered. An event only updates what is known: of the node's record ([`baton`]), of
//! others ([`hints`]), and of each block, which has a state on the disk and a key in the store. Then
//! each part looks at what is known and does what is due. A crash at any point leaves a state from
//! which the same rules go on.
//!
//! | topic | file |
//! |---|---|
//! | which node this is; what a record says that is not as it was written | `identity` |
//! | the node's record and its beats | [`baton`] |
//! | a block from its claim to its end | [`blocks`] |
//! | what the list of the node's records says; orphans | `own` |
//! | leases in a block that is another's | `notes` |
//! | an ADD that found nothing free | [`claim`], and [`want`] if the pool is full |
//! | an ADD that needs the address of a name | [`names`] |
//! | blocks that others need, or nobody | [`give`] |
//! | a node that is gone | [`reclaim`] |

pub mod baton;
pub mod blocks;
pub mod claim;
pub mod give;
pub mod hints;
mod identity;
pub mod interface;
pub mod names;
pub mod network;
mod notes;
mod own;
pub mod reclaim;
pub mod want;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use self::baton::{Baton, Phase};
use self::hints::Hints;
pub use self::interface::{
    Action, Allocation, Line, Mark, Marks, NodeFile, Reply, Request, RequestId, Setup, Standing,
    Turn, Withdrawn, Written,
};
use self::network::{Network, Tracked, Waiting};
use self::want::OwnWant;
use super::block::Block;
use super::held::{Blocks, Held, State};
use super::name::Name;
use super::store::{Answer, Heard, Key, Operation, Outcome, Selection, Stored, Token, Want};
use crate::cni::attachment::NetworkName;
use crate::sys::clock::{Moment, NEVER};

/// The pause after a write to the disk that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The pause after a write that was refused for a lease.
const AFTER_LEASED: Duration = Duration::from_millis(100);
/// The first pause after an operation that failed; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the store must fail before an ADD gets the error.
const PATIENCE: Duration = Duration::from_secs(2);

/// A block of a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The network.
    pub network: NetworkName,
    /// Its realm.
    pub realm: Name,
    /// The block.
    pub block: Block,
}

impl At {
    fn key(&self) -> Key {
        Key::Block(self.realm.clone(), self.block)
    }
}

/// What an operation in flight is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Purpose {
    ReadMeta,
    CreateMeta,
    ReadRecord,
    Register,
    /// The nonce, and the order in which it was sent.
    Beat(Token, u64),
    ListOwn,
    ReadBlock(At),
    /// Blocks of a realm that a beat has confirmed.
    Confirm(Name, Vec<At>),
    CreateBlock(At),
    TakeOver(At),
    DeleteBlock(At),
    ReadDivision(Name, Block),
    Divide(Name, Block),
    DeleteOrphan,
    CreateNote(At),
    ReadNote(At),
    DeleteNote(At),
    ListRealm(Name),
    ListName(NetworkName, String),
    /// The name's claims beside the one of a new block.
    CheckName(At),
    ReadWant,
    WriteWant,
    DeleteWant,
    ReadGift(Block),
    Reserve(At),
    Give(At),
}

/// A write that has not been confirmed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // one exists at a time
enum Writing {
    /// The node's record, and the phase that begins once it is written.
    Node(NodeFile, Option<Phase>),
    Marks(Marks),
    Confirm(Allocation),
}

/// What a part of the machine has found to do.
#[allow(clippy::large_enum_variant)] // one exists at a time
enum Step {
    /// This.
    Do(Action),
    /// Something is known now that was not: look again.
    Again,
    /// Nothing.
    Rest,
}

/// The state machine of one node.
#[derive(Clone, Debug)]
pub struct Machine {
    setup: Setup,
    /// The node's record on the disk; None before the first.
    file: Option<NodeFile>,
    /// What the confirmation in /run says; None before the first word of this daemon, if it was not
    /// confirmed before.
    allocation: Option<Allocation>,
    networks: BTreeMap<NetworkName, Network>,
    baton: Baton,
    hints: Hints,
    /// The sizes of the blocks of chunks, as read since the last doubt; None of a chunk without a record.
    divisions: BTreeMap<(Name, Block), Option<u8>>,
    want: Option<OwnWant>,
    /// Records of the node that no file of it knows, with the order of the list that had them.
    orphans: Vec<(Stored, u64)>,
    flight: Option<Purpose>,
    writing: Option<Writing>,
    lines: VecDeque<Line>,
    stands: Option<Standing>,
    /// Counts what is sent and what is answered.
    order: u64,
    /// Since when the store has failed, and why.
    failing: Option<(Moment, String)>,
    /// The last failure was a refusal: a store that is full refuses writes, and answers reads.
    is_refused: bool,
    /// No operation before, after one that failed.
    retry: Moment,
    pause: Duration,
    now: Moment,
    /// When something is due, as found by the last look.
    wake: Moment,
}

impl Machine {
    /// The machine of a daemon that starts, with what its files have, and whether the confirmation of
    /// this boot stands.
    pub fn new(
        setup: Setup,
        file: Option<NodeFile>,
        networks: Vec<(NetworkName, Blocks)>,
        is_confirmed: bool,
        now: Moment,
    ) -> Machine {
        let networks = networks.into_iter().map(|(name, blocks)| (name, Network::new(blocks)));
        Machine {
            setup,
            file,
            allocation: is_confirmed.then_some(Allocation::Confirmed),
            networks: networks.collect(),
            baton: Baton::default(),
            hints: Hints::default(),
            divisions: BTreeMap::new(),
            want: None,
            orphans: vec![],
            flight: None,
            writing: None,
            lines: VecDeque::new(),
            stands: None,
            order: 1,
            failing: None,
            is_refused: false,
            retry: Moment::ZERO,
            pause: PAUSE,
            now,
            wake: NEVER,
        }
    }

    /// What must be done next. While an operation is in flight it is a reply, a line or a wait; while a
    /// write is not confirmed by [`Machine::wrote`], a wait.
    pub fn next(&mut self, turn: &mut Turn<'_>) -> Action {
        self.now = turn.now;
        self.wake = NEVER;
        if self.writing.is_some() {
            return Action::Wait(NEVER);
        }
        self.note_standing();
        if let Some(line) = self.lines.pop_front() {
            return Action::Log(line);
        }
        if let Some((id, reply)) = self.reply() {
            return Action::Reply(id, reply);
        }
        while self.flight.is_none() {
            match self.pursue(turn) {
                Step::Do(action) => return action,
                Step::Again => (),
                Step::Rest => break,
            }
        }
        self.lines.pop_front().map_or(Action::Wait(self.wake), Action::Log)
    }

    /// Looks again at this moment, if nothing happens before.
    fn by(&mut self, moment: Moment) {
        if moment > self.now {
            self.wake = self.wake.min(moment);
        }
    }

    fn send(&mut self, purpose: Purpose, operation: Operation) -> Step {
        if self.retry > self.now {
            self.by(self.retry);
            return Step::Rest;
        }
        self.order += 1;
        self.flight = Some(purpose);
        Step::Do(Action::Send(operation))
    }

    fn get(&mut self, purpose: Purpose, key: Key) -> Step {
        self.send(purpose, Operation::Get(key))
    }

    fn list(&mut self, purpose: Purpose, selection: Selection) -> Step {
        self.send(purpose, Operation::List(selection))
    }

    fn write_node(&mut self, file: NodeFile, then: Option<Phase>) -> Step {
        if self.retry > self.now {
            self.by(self.retry);
            return Step::Rest;
        }
        self.writing = Some(Writing::Node(file.clone(), then));
        Step::Do(Action::Node(file))
    }

    /// Whether plugins may allocate.
    fn is_confirmed(&self) -> bool {
        self.allocation == Some(Allocation::Confirmed)
    }

    /// Whether plugins are told that they may not.
    fn is_denied(&self) -> bool {
        matches!(self.allocation, Some(Allocation::Refused | Allocation::Withdrawn))
    }

    fn confirm(&mut self, allocation: Allocation) -> Step {
        if self.retry > self.now {
            self.by(self.retry);
            return Step::Rest;
        }
        self.writing = Some(Writing::Confirm(allocation));
        Step::Do(Action::Confirm(allocation))
    }

    fn mark(&mut self, network: &NetworkName, marks: Vec<Mark>, unleased: Vec<Block>) -> Step {
        let Some(of) = self.networks.get(network) else { return Step::Rest };
        let (due, realm) = (of.due, of.realm.clone());
        if due > self.now {
            self.by(due);
            return Step::Rest;
        }
        let marks = Marks { network: network.clone(), realm, marks, unleased };
        self.writing = Some(Writing::Marks(marks.clone()));
        Step::Do(Action::Marks(marks))
    }

    /// The last write has ended.
    pub fn wrote(&mut self, written: Written, now: Moment) {
        self.now = now;
        let failure = match &written {
            Written::Failed(reason) => Some(reason.clone()),
            Written::Done | Written::Leased(_) => None,
        };
        let is_failed = failure.is_some();
        self.lines.extend(failure.map(Line::WriteFailed));
        match self.writing.take() {
            Some(Writing::Node(..) | Writing::Confirm(_)) if is_failed => {
                self.retry = self.now + AFTER_FAILURE;
            }
            Some(Writing::Node(file, then)) => {
                self.file = Some(file);
                if let Some(phase) = then {
                    self.baton.phase = phase;
                }
            }
            Some(Writing::Confirm(allocation)) => self.allocation = Some(allocation),
            Some(Writing::Marks(Marks { network, marks, .. })) => {
                let Some(network) = self.networks.get_mut(&network) else { return };
                match written {
                    Written::Done => network.apply(marks),
                    Written::Leased(leases) => {
                        network.lease(leases);
                        network.due = self.now + AFTER_LEASED;
                    }
                    Written::Failed(_) => network.due = self.now + AFTER_FAILURE,
                }
            }
            None => (),
        }
    }

    /// The operation in flight has ended.
    pub fn answered(&mut self, outcome: Outcome<Answer>, now: Moment) {
        self.now = now;
        self.order += 1;
        let Some(purpose) = self.flight.take() else { return };
        self.note_failure(&outcome);
        match purpose {
            Purpose::ReadMeta
            | Purpose::CreateMeta
            | Purpose::ReadRecord
            | Purpose::Register
            | Purpose::Beat(..) => self.on_baton(purpose, outcome),
            Purpose::ListOwn => self.on_own(outcome),
            Purpose::ReadBlock(at) => {
                if let Outcome::Done(Answer::Found(found)) = outcome {
                    self.on_found(&at, found);
                }
            }
            Purpose::Confirm(realm, asked) => self.on_confirmed(&realm, &asked, outcome),
            Purpose::CreateBlock(at) | Purpose::TakeOver(at) => self.on_block_written(&at, outcome),
            Purpose::DeleteBlock(at) => self.on_block_deleted(&at, &outcome),
            Purpose::ReadDivision(realm, chunk) => self.on_division(realm, chunk, outcome),
            Purpose::Divide(realm, chunk) => self.on_division_written(realm, chunk, outcome),
            Purpose::DeleteOrphan => {
                self.baton.needs_list |= !matches!(outcome, Outcome::Done(_) | Outcome::Lost);
            }
            Purpose::CreateNote(at) | Purpose::ReadNote(at) => self.on_note(&at, false, outcome),
            Purpose::DeleteNote(at) => self.on_note(&at, true, outcome),
            Purpose::ListRealm(realm) => self.on_realm(realm, outcome),
            Purpose::ListName(network, name) => self.on_name(&network, &name, outcome),
            Purpose::CheckName(at) => self.on_name_checked(&at, outcome),
            Purpose::ReadWant | Purpose::WriteWant | Purpose::DeleteWant => {
                self.on_want(&purpose, outcome)
            }
            Purpose::ReadGift(block) => self.on_gift(block, outcome),
            Purpose::Reserve(at) => self.on_reserved(&at, outcome),
            Purpose::Give(at) => self.on_given(&at, &outcome),
        }
    }

    /// Waits longer after each failure. A store that has failed for long may have gone back.
    fn note_failure(&mut self, outcome: &Outcome<Answer>) {
        let is_read = matches!(outcome, Outcome::Done(Answer::Found(_) | Answer::Listed(_)));
        if is_read && self.is_refused {
            return; // only a write ends a refusal
        }
        self.is_refused = matches!(outcome, Outcome::Refused(_));
        let reason = match outcome {
            Outcome::Done(_) | Outcome::Lost => None,
            Outcome::Busy(_) => Some("it asks to wait".to_owned()),
            Outcome::Refused(reason) | Outcome::Unauthenticated(reason) => Some(reason.clone()),
            Outcome::Unreachable(reason) | Outcome::Unknown(reason) => Some(reason.clone()),
        };
        let Some(reason) = reason else {
            self.pause = PAUSE;
            self.retry = Moment::ZERO;
            if self.failing.take().is_some_and(|(since, _)| self.now >= since + baton::DOUBT) {
                self.doubt("the store was away");
            }
            return;
        };
        if let Outcome::Refused(reason) = outcome
            && self.failing.as_ref().is_none_or(|(_, before)| before != reason)
        {
            self.lines.push_back(Line::Refused(reason.clone()));
        }
        let wait =
            if let Outcome::Busy(wait) = outcome { (*wait).max(self.pause) } else { self.pause };
        self.retry = self.now + wait;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let since = self.failing.as_ref().map_or(self.now, |(since, _)| *since);
        self.failing = Some((since, reason));
    }

    /// The watch has seen something.
    pub fn heard(&mut self, heard: Heard, now: Moment) {
        self.now = now;
        self.hints.hear(heard, now);
        self.hear_of_gifts();
    }

    /// The pools of a network, before its first request and when they change; its blocks only matter if
    /// the network is new. Without pools, all its blocks are given back once they are free.
    pub fn configured(&mut self, network: NetworkName, blocks: Blocks) {
        match self.networks.get_mut(&network) {
            Some(known) => {
                known.compare(&blocks.blocks);
                self.baton.needs_list |= known.configure(blocks);
            }
            None => drop(self.networks.insert(network, Network::new(blocks))),
        }
    }

    /// The leases of a network as they are now. They come before each request, at least each half
    /// minute while the network has blocks, and four times a second while another node wants some.
    pub fn leases(&mut self, network: &NetworkName, leases: BTreeSet<IpAddr>) {
        if let Some(network) = self.networks.get_mut(network) {
            network.lease(leases);
        }
    }

    /// An ADD found nothing free. One that asks for a pool that the network no longer has looks again.
    pub fn exhausted(&mut self, request: Request) {
        if let Some(network) = self.networks.get_mut(&request.network) {
            let is_outdated = network.pools.get(request.pool).is_none();
            network.requests.push(Waiting { request, full: None, named: None, is_outdated });
        }
    }

    /// An ADD no longer waits.
    pub fn withdrawn(&mut self, id: RequestId) {
        for network in self.networks.values_mut() {
            network.requests.retain(|waiting| waiting.request.id != id);
        }
    }

    /// What the node is to its cluster.
    pub fn standing(&self) -> Standing {
        let away = self.failing.as_ref().filter(|(since, _)| self.now >= *since + PATIENCE);
        match (&self.baton.phase, away) {
            (Phase::Withdrawn(standing), _) => standing.clone(),
            _ if self.baton.refused.is_some() => {
                self.baton.refused.clone().map_or(Standing::Verifying, |(standing, _)| standing)
            }
            (_, Some((_, reason))) => Standing::Away(reason.clone()),
            (Phase::Run, None) if self.is_confirmed() => Standing::Connected,
            _ => Standing::Verifying,
        }
    }

    fn note_standing(&mut self) {
        let standing = self.standing();
        if self.stands.as_ref() != Some(&standing) {
            self.lines.push_back(Line::Stands(standing.clone()));
            self.stands = Some(standing);
        }
        if let Some((since, _)) = self.failing {
            self.by(since + PATIENCE);
        }
    }

    /// The networks that are known.
    pub fn networks(&self) -> impl Iterator<Item = &NetworkName> {
        self.networks.keys()
    }

    /// A network.
    pub fn network(&self, network: &NetworkName) -> Option<&Network> {
        self.networks.get(network)
    }

    /// The node's record as it is on the disk.
    pub fn file(&self) -> Option<&NodeFile> {
        self.file.as_ref()
    }

    /// Whether another node wants addresses of which this one has blocks.
    pub fn is_wanted(&self) -> bool {
        let mut wants = self.hints.wants_of_others(&self.setup.node, self.now);
        let meets = |want: &Want| self.networks.iter().any(|(name, it)| it.is_wanted(name, want));
        self.baton.phase == Phase::Run && wants.any(|(_, heard)| meets(&heard.want))
    }

    /// Whether nothing is left to be done but to wait for requests: for tests.
    pub fn is_at_rest(&self) -> bool {
        let is_idle = self.writing.is_none() && self.want.is_none() && self.orphans.is_empty();
        let rests = self.networks.values().all(Network::is_at_rest);
        is_idle && rests && self.standing() == Standing::Connected
    }

    /// The answer to an ADD, if there is one now.
    fn reply(&mut self) -> Option<(RequestId, Reply)> {
        let standing = self.standing();
        let (now, is_confirmed) = (self.now, self.is_confirmed());
        let failure = self.failing.as_ref().map(|(_, reason)| reason.clone());
        let mut wake = self.wake;
        let mut found = None;
        for network in self.networks.values_mut() {
            for number in 0..network.requests.len() {
                let waiting = network.requests[number].clone();
                let reply = match &standing {
                    Standing::Connected | Standing::Verifying if waiting.is_outdated => {
                        Reply::LookAgain
                    }
                    _ if is_confirmed && network.has(&waiting.request, now) => Reply::LookAgain,
                    Standing::Connected | Standing::Verifying if waiting.request.until > now => {
                        wake = wake.min(waiting.request.until);
                        continue;
                    }
                    Standing::Connected => network.end_of(&waiting, failure.as_ref()),
                    other => Reply::Unable(other.clone()),
                };
                if reply == Reply::LookAgain
                    && !waiting.is_outdated
                    && waiting.request.address.is_none()
                    && waiting.request.name.is_none()
                {
                    network.promise(waiting.request.pool, now);
                }
                network.requests.remove(number);
                found = Some((waiting.request.id, reply));
                break;
            }
            if found.is_some() {
                break;
            }
        }
        self.wake = wake;
        found
    }

    fn tracked_mut(&mut self, at: &At) -> Option<&mut Tracked> {
        self.networks.get_mut(&at.network)?.blocks.get_mut(&at.block)
    }

    fn tracked(&self, at: &At) -> Option<&Tracked> {
        self.networks.get(&at.network)?.blocks.get(&at.block)
    }

    /// Every block of the node, with what is known of it.
    fn blocks(&self) -> impl Iterator<Item = &Tracked> {
        self.networks.values().flat_map(|network| network.blocks.values())
    }

    fn blocks_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.networks.values_mut().flat_map(|network| network.blocks.values_mut())
    }

    /// Every block of the node.
    fn all(&self) -> Vec<At> {
        let of_network = |(name, network): (&NetworkName, &Network)| {
            let (name, realm) = (name.clone(), network.realm.clone());
            let at =
                |block: &Block| At { network: name.clone(), realm: realm.clone(), block: *block };
            network.blocks.keys().map(at).collect::<Vec<_>>()
        };
        self.networks.iter().flat_map(of_network).collect()
    }

    /// Whether a block of a realm meets one that this node tracks.
    fn meets_own(&self, realm: &Name, block: Block) -> bool {
        let end = Block::at(block.family(), block.end(), u8::MAX);
        let meets = |network: &Network| {
            let around = [block.chunk(), block.eight()];
            around.iter().any(|one| network.blocks.contains_key(one))
                || network.blocks.range(block..=end).next().is_some()
        };
        self.networks.values().any(|network| network.realm == *realm && meets(network))
    }

    /// The block of a realm that this node tracks.
    fn find(&self, realm: &Name, block: Block) -> Option<At> {
        let has =
            |network: &Network| network.realm == *realm && network.blocks.contains_key(&block);
        let found = self.networks.iter().find(|(_, network)| has(network))?;
        Some(At { network: found.0.clone(), realm: realm.clone(), block })
    }
}

/// Whether a write may have been done.
fn is_doubtful<T>(outcome: &Outcome<T>) -> bool {
    matches!(outcome, Outcome::Unknown(_))
}

/// A block in another state.
fn in_state(held: &Held, state: State, wall: u64) -> Held {
    let contested = held.contested && matches!(state, State::Active | State::Settling);
    Held { state, since: wall, contested, ..held.clone() }
}
