//! The daemon's state machine. It has no clock, socket, file or random number of its own: it takes
//! events, and returns what the daemon must do.
//!
//! It is level-triggered. An event only updates what is known: of the contact to the store
//! ([`contact`]), and of each block, which has a state on the disk and a key in the store. Then each
//! part looks at what is known and does what is due. A block waits for at most one write or
//! operation at a time, so a crash at any point leaves a state from which the same rules go on.
//!
//! | topic | file |
//! |---|---|
//! | the store is away, is met again, was restored | [`contact`], [`verify`] |
//! | a block from its claim to its end | [`block_life`] |
//! | an ADD that found nothing free | [`claim`], and [`want`] if the pool is full |
//! | an ADD that needs the address of a name | [`names`] |
//! | blocks that others need | [`giving_back`], [`split`] |
//! | the node was reclaimed | [`fence`] |
//! | the node has sent no heartbeat for most of `reclaimAfter` | [`term`] |
//! | another node has sent no heartbeat for `reclaimAfter` | [`absence`] |
//! | keys that reclaimed nodes have left | [`freeing`] |
//! | other nodes have other ranges for a network | [`pools`] |

pub mod absence;
pub mod block_life;
pub mod claim;
pub mod contact;
pub mod fence;
pub mod freeing;
pub mod giving_back;
pub mod interface;
pub mod names;
pub mod network;
pub mod outcome;
pub mod pools;
pub mod purpose;
pub mod realm;
pub mod split;
pub mod term;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod verify;
pub mod want;

use std::collections::BTreeMap;

use self::absence::Others;
pub use self::contact::Contact;
use self::contact::Relation;
pub use self::interface::{
    Action, Contest, Event, Holder, Line, Mark, NodeFile, Record, Reply, Request, RequestId, Setup,
    Turn, WriteId, Written,
};
use self::network::{Network, Step, Tracked};
use self::purpose::Purpose;
use self::realm::Realm;
use super::block::Block;
use super::engine::{Ground, Identity, Name, Operation, OperationId, Revision};
use super::held::{Blocks, Token};
use crate::sys::clock::{Moment, NEVER};

/// An operation without an outcome yet.
#[derive(Clone, Debug)]
struct Flight {
    purpose: Purpose,
    /// The highest revision that was known when it was sent: a lower one in its outcome is a store
    /// that was restored.
    floor: Revision,
}

/// A write to the disk that has not been confirmed yet.
#[derive(Clone, Debug)]
enum Pending {
    /// The node's file.
    Node(NodeFile),
    /// Blocks of a network.
    Marks(Name, Vec<Mark>),
}

/// The state machine of one node.
#[derive(Clone, Debug)]
pub struct Machine {
    setup: Setup,
    file: NodeFile,
    relation: Relation,
    networks: BTreeMap<Name, Network>,
    realms: BTreeMap<Name, Realm>,
    others: Others,
    flights: BTreeMap<OperationId, Flight>,
    writes: BTreeMap<WriteId, Pending>,
    last_id: u64,
    /// The time of the last event.
    now: Moment,
}

impl Machine {
    /// The machine of a daemon that starts, with what its files have.
    pub fn new(
        setup: Setup,
        file: NodeFile,
        networks: Vec<(Name, Blocks)>,
        now: Moment,
    ) -> Machine {
        let mut machine = Machine {
            setup,
            file,
            relation: Relation::new(now),
            networks: BTreeMap::new(),
            realms: BTreeMap::new(),
            others: Others::default(),
            flights: BTreeMap::new(),
            writes: BTreeMap::new(),
            last_id: 0,
            now,
        };
        for (name, blocks) in networks {
            machine.realms.entry(blocks.realm.clone()).or_default();
            machine.networks.insert(name, Network::new(blocks));
        }
        machine
    }

    /// Takes an event and returns what must be done, in this order.
    pub fn on(&mut self, event: Event, mut turn: Turn<'_>) -> Vec<Action> {
        self.now = turn.now;
        self.take(event, &mut turn);
        self.pursue(&mut turn);
        turn.actions
    }

    fn take(&mut self, event: Event, turn: &mut Turn<'_>) {
        match event {
            Event::Time => (),
            Event::Configured { network, blocks } => self.configure(network, blocks),
            Event::Outcome { id, outcome } => self.on_outcome(id, outcome, turn),
            Event::Changed { realm, change } => self.on_change(&realm, change),
            Event::Written { id, written } => self.on_written(id, written, turn),
            Event::Leases { network, leases } => {
                if let Some(network) = self.networks.get_mut(&network) {
                    network.leases = leases;
                }
            }
            Event::Exhausted(request) => self.on_exhausted(request),
            Event::Withdrawn(id) => self.forget_request(id),
        }
    }

    /// Does what is due.
    fn pursue(&mut self, turn: &mut Turn<'_>) {
        self.keep_contact(turn);
        self.pursue_blocks(turn);
        self.pursue_splits(turn);
        self.bound_terms(turn);
        self.finish_verifying(turn);
        self.confirm_new(turn);
        self.give_back(turn);
        self.serve_requests(turn);
        self.note_use(turn);
        self.keep_wants(turn);
    }

    /// When [`Event::Time`] must be given, if nothing happens before.
    pub fn deadline(&self) -> Moment {
        let now = self.now;
        let networks = self.networks.values().map(|network| network.deadline(now));
        let realms = self.realms.values().map(|realm| realm.deadline());
        let all = networks.chain(realms).chain([self.relation.deadline()]);
        all.filter(|moment| *moment > now).min().unwrap_or(NEVER)
    }

    /// The contact to the store.
    pub fn contact(&self) -> &Contact {
        &self.relation.contact
    }

    /// Why the store refuses writes, if it does.
    pub fn refused(&self) -> Option<&str> {
        self.relation.refused.as_deref()
    }

    /// The node's file as it is on the disk.
    pub fn file(&self) -> &NodeFile {
        &self.file
    }

    /// The uid of this machine.
    pub fn uid(&self) -> Token {
        self.setup.uid
    }

    /// The networks that are known.
    pub fn networks(&self) -> impl Iterator<Item = &Name> {
        self.networks.keys()
    }

    /// Whether another node wants addresses.
    pub fn is_wanted(&self) -> bool {
        self.realms.values().any(|realm| !realm.wants.is_empty())
    }

    /// The blocks of a network as they are on the disk.
    pub fn network(&self, network: &Name) -> Option<&Network> {
        self.networks.get(network)
    }

    /// Whether nothing is left to be done but to wait for requests: for tests.
    pub fn is_at_rest(&self) -> bool {
        let rests = |network: &Network| network.requests.is_empty() && network.is_at_rest();
        self.writes.is_empty()
            && self.networks.values().all(rests)
            && matches!(self.relation.contact, Contact::Together)
    }

    /// Takes over a network's pools; its realm only if it has no blocks yet.
    fn configure(&mut self, name: Name, blocks: Blocks) {
        let before = self.networks.get(&name).map(|network| &network.pools);
        let is_changed = before != Some(&blocks.pools);
        let realm = self.realms.entry(blocks.realm.clone()).or_default();
        if is_changed && realm.listed > 0 {
            realm.recheck = Some(self.now); // its pools are compared with other nodes'
        }
        match self.networks.get_mut(&name) {
            Some(network) => network.configure(blocks),
            None => {
                self.networks.insert(name, Network::new(blocks));
            }
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Sends an operation.
    fn send(&mut self, purpose: Purpose, operation: Operation, turn: &mut Turn<'_>) {
        let id = OperationId(self.next_id());
        self.flights.insert(id, Flight { purpose, floor: self.relation.highest });
        turn.actions.push(Action::Send { id, operation });
    }

    /// Asks the store about a block: the block waits for the outcome.
    fn ask(&mut self, at: &At, operation: Operation, turn: &mut Turn<'_>) {
        if let Some(tracked) = self.tracked_mut(at) {
            tracked.step = Step::Asking;
        }
        self.send(Purpose::Block(at.clone()), operation, turn);
    }

    /// Writes blocks of a network: each of them waits until it is on the disk. The write is refused if a
    /// block of `unleased` has a lease.
    fn mark(
        &mut self,
        network: &Name,
        marks: Vec<Mark>,
        unleased: Vec<Block>,
        turn: &mut Turn<'_>,
    ) {
        let id = WriteId(self.next_id());
        if let Some(network) = self.networks.get_mut(network) {
            network.await_write(&marks);
        }
        self.writes.insert(id, Pending::Marks(network.clone(), marks.clone()));
        let record = Record::Marks { network: network.clone(), marks, unleased };
        turn.actions.push(Action::Write { id, record });
    }

    fn write_node_file(&mut self, file: NodeFile, turn: &mut Turn<'_>) {
        let id = WriteId(self.next_id());
        self.writes.insert(id, Pending::Node(file));
        turn.actions.push(Action::Write { id, record: Record::Node(file) });
    }

    fn is_writing_node_file(&self) -> bool {
        self.writes.values().any(|pending| matches!(pending, Pending::Node(_)))
    }

    fn on_written(&mut self, id: WriteId, written: Written, turn: &mut Turn<'_>) {
        match (self.writes.remove(&id), written) {
            (Some(Pending::Node(file)), Written::Done) => self.file = file,
            (Some(Pending::Marks(name, marks)), Written::Done) => {
                if let Some(network) = self.networks.get_mut(&name) {
                    network.apply(marks);
                }
            }
            (Some(Pending::Marks(name, marks)), refused) => {
                if let Written::Failed(reason) = &refused {
                    turn.log(Line::WriteFailed(reason.clone()));
                }
                if let Some(network) = self.networks.get_mut(&name) {
                    network.keep_as_it_was(&marks, turn.now);
                    network.note_refusal(refused);
                }
            }
            (Some(Pending::Node(_)), Written::Failed(reason)) => {
                turn.log(Line::WriteFailed(reason))
            }
            (Some(Pending::Node(_)), Written::Leased) | (None, _) => (), // no lease concerns it
        }
    }

    fn tracked_mut(&mut self, at: &At) -> Option<&mut Tracked> {
        self.networks.get_mut(&at.network)?.blocks.get_mut(&at.block)
    }

    fn tracked(&self, at: &At) -> Option<&Tracked> {
        self.networks.get(&at.network)?.blocks.get(&at.block)
    }

    fn identity(&self) -> Identity {
        self.identity_of(self.file.incarnation)
    }

    fn identity_of(&self, incarnation: u64) -> Identity {
        Identity { node: self.setup.node.clone(), uid: self.setup.uid, incarnation }
    }

    fn ground(&self) -> Ground {
        Ground { node_revision: self.relation.node_revision, epoch: self.relation.epoch }
    }
}

/// A block of a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The network.
    pub network: Name,
    /// The block.
    pub block: Block,
}

/// A fresh token.
fn token(turn: &mut Turn<'_>) -> Token {
    Token::random(turn.random)
}
