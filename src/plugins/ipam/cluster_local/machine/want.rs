//! What this node wants of others, once nothing is left to claim: a record that owners of free blocks
//! hear of. One of them gives a block: it reserves it in the want, and then writes this node into the
//! block's key.

use std::time::Duration;

use super::super::block::Block;
use super::super::held::{Held, State};
use super::super::name::Name;
use super::super::pool::{Pool, Span};
use super::super::store::{Answer, Key, Operation, Outcome, Record, Stored, Token, Value, Want};
use super::network::{Known, Network, Tracked, Waiting};
use super::{Machine, Purpose, Step, Turn};
use crate::cni::attachment::NetworkName;
use crate::sys::clock::Moment;

/// How often a want is renewed.
const RENEWAL: Duration = Duration::from_secs(20);
/// The pause before a reserved block is read again.
const POLL: Duration = Duration::from_millis(20);
/// The longest one.
const LONGEST_POLL: Duration = Duration::from_secs(1);

/// What ADDs lack that only other nodes can give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    network: NetworkName,
    realm: Name,
    spans: Vec<Span>,
    name: Option<String>,
}

/// The want of this node.
#[derive(Clone, Debug)]
pub struct OwnWant {
    /// What it asks for; None of one that only has to be deleted.
    lack: Option<Lack>,
    /// The token of gifts.
    pub nonce: Token,
    /// Its record; None if it was not read since an unknown outcome.
    stored: Option<Stored>,
    renewal: u64,
    renew: Moment,
    /// The blocks that owners have reserved.
    gifts: Vec<Block>,
    poll: Moment,
    /// The pause until then, which grows.
    pause: Duration,
}

impl Machine {
    fn key_of_want(&self) -> Key {
        Key::Want(self.setup.node.clone())
    }

    /// What ADDs lack for which nothing was found to claim.
    fn lacks(&self) -> Vec<Lack> {
        let mut all = vec![];
        for lack in self.networks.iter().flat_map(|(name, network)| network.lacks(name)) {
            if !all.contains(&lack) {
                all.push(lack);
            }
        }
        all
    }

    /// Writes, renews or deletes the want, and takes what was given.
    pub(super) fn keep_want(&mut self, turn: &mut Turn<'_>) -> Step {
        let lacks = self.lacks();
        let Some(want) = self.want.clone() else {
            return match lacks.into_iter().next() {
                Some(lack) => self.begin_want(lack, turn),
                None => self.drop_left_want(turn),
            };
        };
        for block in want.gifts.iter().copied() {
            let Some(realm) = want.lack.as_ref().map(|lack| lack.realm.clone()) else { break };
            if self.meets_own(&realm, block) {
                continue;
            }
            if want.poll <= self.now {
                return self.get(Purpose::ReadGift(block), Key::Block(realm, block));
            }
            self.by(want.poll);
        }
        let Some(stored) = want.stored else {
            return self.get(Purpose::ReadWant, self.key_of_want());
        };
        if lacks.is_empty() {
            self.baton.needs_list = true; // a gift may have come meanwhile
            return self.send(Purpose::DeleteWant, Operation::Delete(stored));
        }
        let place = lacks.iter().position(|lack| Some(lack) == want.lack.as_ref());
        if place.is_some() && want.renew > self.now {
            self.by(want.renew);
            return Step::Rest;
        }
        // Each renewal is for the next lack, so that none waits for ever behind another.
        let next = place.map_or(0, |place| (place + 1) % lacks.len());
        if let Some(want) = &mut self.want
            && place != Some(next)
        {
            // What comes late for the lack before is an orphan.
            (want.lack, want.nonce) = (lacks.into_iter().nth(next), turn.token());
            want.gifts.clear();
        }
        match self.want_record() {
            Some(record) => self.send(Purpose::WriteWant, Operation::Update(record, stored)),
            None => Step::Rest,
        }
    }

    fn begin_want(&mut self, lack: Lack, turn: &mut Turn<'_>) -> Step {
        let want = OwnWant::new(Some(lack), turn.token(), self.now + RENEWAL);
        let before = self.want.replace(want);
        let Some(record) = self.want_record() else { return Step::Rest };
        let step = self.send(Purpose::WriteWant, Operation::Create(record));
        if matches!(step, Step::Rest) {
            self.want = before;
        }
        step
    }

    /// Takes over the want of an earlier session, to delete it.
    fn drop_left_want(&mut self, turn: &mut Turn<'_>) -> Step {
        if !self.hints.wants.contains_key(&self.setup.node) {
            return Step::Rest;
        }
        self.want = Some(OwnWant::new(None, turn.token(), self.now));
        Step::Again
    }

    /// The record of the next renewal, in which nothing is reserved.
    fn want_record(&self) -> Option<Record> {
        let want = self.want.as_ref()?;
        let Lack { realm, spans, name, .. } = want.lack.clone()?;
        let (uid, nonce, renewal) = (self.file.as_ref()?.uid, want.nonce, want.renewal + 1);
        let value = Value::Want(Want { uid, nonce, realm, spans, name, renewal, gifts: vec![] });
        Some(Record { key: self.key_of_want(), value })
    }

    pub(super) fn on_want(&mut self, purpose: &Purpose, outcome: Outcome<Answer>) {
        let now = self.now;
        let Some(want) = self.want.as_mut() else { return };
        match (purpose, outcome) {
            (Purpose::DeleteWant, Outcome::Done(_)) => {
                self.want = None;
                self.hints.wants.remove(&self.setup.node);
            }
            (Purpose::ReadWant, Outcome::Done(Answer::Found(None))) => {
                self.want = None;
                self.hints.wants.remove(&self.setup.node);
            }
            (Purpose::ReadWant, Outcome::Done(Answer::Found(Some(stored)))) => {
                want.read(stored, now)
            }
            (Purpose::WriteWant, Outcome::Done(Answer::Written(stored))) => {
                want.stored = Some(stored);
                want.renewal += 1;
                want.renew = now + RENEWAL;
                want.gifts.clear();
                want.pause = POLL;
            }
            (_, Outcome::Lost | Outcome::Unknown(_)) => want.stored = None,
            // Nothing was written: a want that was not there before is not there.
            (Purpose::WriteWant, _) if want.stored.is_none() => self.want = None,
            _ => (),
        }
    }

    /// Looks for blocks that owners have reserved for this node's want.
    pub(super) fn hear_of_gifts(&mut self) {
        let heard = self.hints.wants.get(&self.setup.node);
        let (Some(want), Some(heard)) = (self.want.as_mut(), heard) else { return };
        if want.nonce == heard.want.nonce && want.renewal == heard.want.renewal {
            want.gifts.clone_from(&heard.want.gifts);
        }
    }

    /// A block that the list of the node's claims has was given for the want.
    pub(super) fn note_gift(&mut self, block: Block) {
        if let Some(want) = self.want.as_mut().filter(|want| !want.gifts.contains(&block)) {
            want.gifts.push(block);
        }
    }

    /// A reserved block was read: once its key is this node's, it is claimed.
    pub(super) fn on_gift(&mut self, block: Block, outcome: Outcome<Answer>) {
        let Some(uid) = self.file.as_ref().map(|file| file.uid) else { return };
        let now = self.now;
        let Some(want) = self.want.as_mut() else { return };
        want.poll = now + want.pause;
        want.pause = (want.pause * 2).min(LONGEST_POLL);
        let (nonce, lack) = (want.nonce, want.lack.clone());
        let (Outcome::Done(Answer::Found(Some(stored))), Some(lack)) = (outcome, lack) else {
            return;
        };
        let Value::Claim(claim) = stored.record.value.clone() else { return };
        let is_given = claim.node == self.setup.node && claim.uid == uid && claim.token == nonce;
        if !is_given || self.meets_own(&lack.realm, block) {
            return;
        }
        let whose = |network: &Network| network.realm == lack.realm && network.meets(block);
        let own = self.networks.get_key_value(&lack.network).filter(|(_, network)| whose(network));
        let network = own.or_else(|| self.networks.iter().find(|(_, network)| whose(network)));
        let Some(network) = network.map(|(name, _)| name.clone()) else { return };
        let name = claim.name.and_then(|full| Some(full.split_once('/')?.1.to_owned()));
        let (state, token) = (State::Claiming, claim.token);
        let held = Held { block, token, state, since: 0, contested: false, name };
        if let Some(want) = &mut self.want {
            want.renew = now; // for another one
        }
        let order = self.order;
        if let Some(network) = self.networks.get_mut(&network) {
            let tracked =
                Tracked { key: Known::Own(stored), known: order, ..Tracked::new(held, false) };
            network.blocks.insert(block, tracked);
        }
        self.baton.session = None; // a batch of its own
    }
}

impl OwnWant {
    fn new(lack: Option<Lack>, nonce: Token, renew: Moment) -> OwnWant {
        let (poll, pause) = (Moment::ZERO, POLL);
        OwnWant { lack, nonce, stored: None, renewal: 0, renew, gifts: vec![], poll, pause }
    }

    /// What it asks for, if not for this network.
    pub(super) fn of_other_network(&self, network: &NetworkName) -> Option<Want> {
        let Lack { realm, spans, name, .. } =
            self.lack.clone().filter(|lack| lack.network != *network)?;
        let (uid, nonce) = (Token(0), self.nonce);
        Some(Want { uid, nonce, realm, spans, name, renewal: 0, gifts: vec![] })
    }

    /// Its record was read.
    fn read(&mut self, stored: Stored, now: Moment) {
        let is_own = match &stored.record.value {
            Value::Want(want) if want.nonce == self.nonce => {
                (self.gifts, self.renewal) = (want.gifts.clone(), want.renewal);
                true
            }
            _ => false,
        };
        if !is_own {
            self.renew = now; // it is another session's: written over
        }
        self.stored = Some(stored);
    }
}

impl Network {
    /// Whether an address of a block is in one of its pools.
    pub(super) fn meets(&self, block: Block) -> bool {
        self.pools.iter().chain(&self.names).any(|pool| pool.meets(block))
    }

    fn lacks(&self, network: &NetworkName) -> Vec<Lack> {
        let full = self.requests.iter().filter(|waiting| waiting.full.is_some());
        full.filter_map(|waiting| self.lack(network, waiting)).collect()
    }

    fn lack(&self, network: &NetworkName, waiting: &Waiting) -> Option<Lack> {
        let request = &waiting.request;
        let name = request.name.as_ref().map(|name| super::names::full(network, name));
        let spans_of = |pool: Option<&Pool>| pool.map(|pool| pool.spans().to_vec());
        let spans = match (request.address, &waiting.named) {
            (Some(ip), _) => Span::new(ip, ip).into_iter().collect(),
            (None, Some((Some(_), _))) => vec![],
            (None, _) if name.is_some() => spans_of(self.names.get(request.pool))?,
            (None, _) => spans_of(self.pools.get(request.pool))?,
        };
        let (network, realm) = (network.clone(), self.realm.clone());
        Some(Lack { network, realm, spans, name })
    }
}
