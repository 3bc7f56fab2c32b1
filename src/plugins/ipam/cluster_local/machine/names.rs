//! ADDs that need the address of a name. A name stands on a single address of a set's last eighth: a
//! list finds it, and a want moves it.

use super::super::block::Block;
use super::super::held::State;
use super::super::store::{Answer, Key, Outcome, Selection, Stored, Value};
use super::claim::Candidate;
use super::interface::Reply;
use super::{At, Machine, Purpose, Step, Turn};
use crate::cni::attachment::NetworkName;
use std::time::Duration;

/// How old the knowledge of a name's claim may be.
const FRESH: Duration = Duration::from_secs(3);

/// How many names are listed before those that are known are claimed.
const MOST_LISTED: usize = 4;

/// A network's name in the store.
pub(super) fn full(network: &NetworkName, name: &str) -> String {
    format!("{network}/{name}")
}

/// The answer to an ADD of a name that another node has.
pub(super) fn elsewhere(stored: &Stored) -> Reply {
    match (&stored.record.key, &stored.record.value) {
        (Key::Block(_, block), Value::Claim(claim)) => {
            Reply::Elsewhere { address: block.first(), node: claim.node.clone() }
        }
        _ => Reply::Full,
    }
}

impl Machine {
    /// A block for the ADD of a name: a new one, if no node has the name.
    pub(super) fn claim_name(
        &mut self,
        name: &NetworkName,
        index: usize,
        batch: &mut Vec<Candidate>,
        turn: &mut Turn<'_>,
    ) -> Step {
        let network = &self.networks[name];
        let waiting = network.requests[index].clone();
        let Some(wanted) = waiting.request.name.clone() else { return Step::Rest };
        let pool = network.names.get(waiting.request.pool).cloned();
        let (Some(pool), realm) = (pool, network.realm.clone()) else { return Step::Rest };
        let is_coming = batch.iter().any(|it| it.name.as_ref() == Some(&wanted));
        if is_coming || network.of_name(waiting.request.pool, &wanted).is_some() {
            return Step::Rest;
        }
        let named = waiting.named.as_ref().filter(|(_, at)| *at + FRESH > self.now);
        let Some((holder, at)) = named else {
            if batch.len() >= MOST_LISTED {
                return Step::Rest; // what is known is claimed first
            }
            let key = full(name, &wanted);
            let selection = Selection::Named(realm, key);
            return self.list(Purpose::ListName(name.clone(), wanted), selection);
        };
        self.by(*at + FRESH);
        if holder.is_some() {
            let now = self.now;
            let request = self.networks.get_mut(name).and_then(|it| it.requests.get_mut(index));
            request.map(|waiting| waiting.full.get_or_insert(now));
            return Step::Rest;
        }
        if !self.hints.realms.contains_key(&realm) {
            return self.list_realm(&realm);
        }
        let found = self.candidates(&realm, &pool, 1, batch, turn);
        let Some(block) = found.first().copied() else {
            // The node's own name that was used longest ago gives way first.
            let idle = self.networks[name].idle_names().into_iter();
            let idle = idle.map(|tracked| tracked.held.block).find(|block| pool.meets(*block));
            if let Some(block) = idle {
                let at = At { network: name.clone(), realm, block };
                return self.change(&at, State::Returning, turn);
            }
            let is_it = |waiting: &super::Waiting| waiting.request.name.as_ref() == Some(&wanted);
            return self.note_full(name, &realm, &is_it);
        };
        batch.push(Candidate { network: name.clone(), block, name: Some(wanted) });
        Step::Rest
    }

    /// Claims of a name that an ADD needs were listed.
    pub(super) fn on_name(&mut self, network: &NetworkName, name: &str, outcome: Outcome<Answer>) {
        let Outcome::Done(Answer::Listed(listed)) = outcome else { return };
        let own = self.setup.node.clone();
        let is_other = |stored: &Stored| match &stored.record.value {
            Value::Claim(claim) => claim.node != own,
            _ => false,
        };
        // A claim of this node that no file knows is in the way.
        self.baton.needs_list |= listed.iter().any(|stored| !is_other(stored));
        let mut found = vec![];
        let Some(network) = self.networks.get_mut(network) else { return };
        for (number, pool) in network.names.iter().enumerate() {
            let of_pool = |block: Block| pool.meets(block);
            let other = listed.iter().find(|stored| {
                matches!(&stored.record.key, Key::Block(_, block) if of_pool(*block))
                    && is_other(stored)
            });
            found.push((number, other.cloned()));
        }
        for waiting in &mut network.requests {
            if waiting.request.name.as_deref() == Some(name) {
                let of_pool = found.iter().find(|(number, _)| *number == waiting.request.pool);
                waiting.named = Some((of_pool.and_then(|(_, it)| it.clone()), self.now));
            }
        }
    }

    /// Whether another block has the name of a new one: it gives way then.
    pub(super) fn check_name(&mut self, at: &At) -> Step {
        let Some(tracked) = self.tracked(at) else { return Step::Rest };
        let Some(name) = tracked.held.name.clone() else { return Step::Rest };
        let selection = Selection::Named(at.realm.clone(), full(&at.network, &name));
        self.list(Purpose::CheckName(at.clone()), selection)
    }

    pub(super) fn on_name_checked(&mut self, at: &At, outcome: Outcome<Answer>) {
        let Outcome::Done(Answer::Listed(listed)) = outcome else { return };
        let (order, own) = (self.order, self.setup.node.clone());
        let Some(network) = self.networks.get_mut(&at.network) else { return };
        let pool = network.names.iter().find(|pool| pool.meets(at.block)).cloned();
        let is_beside = |stored: &&Stored| match &stored.record.key {
            Key::Block(_, block) => {
                *block != at.block && pool.as_ref().is_some_and(|pool| pool.meets(*block))
            }
            _ => false,
        };
        let beside: Vec<&Stored> = listed.iter().filter(is_beside).collect();
        let Some(tracked) = network.blocks.get_mut(&at.block) else { return };
        tracked.named = order;
        if beside.is_empty() || tracked.is_on_disk {
            return;
        }
        tracked.held.state = State::Returning;
        let name = tracked.held.name.clone();
        for waiting in network.requests.iter_mut().filter(|it| it.request.name == name) {
            waiting.named = None;
        }
        // A claim of this node that no file knows is in the way.
        self.baton.needs_list |= beside.iter().any(|stored| match &stored.record.value {
            Value::Claim(claim) => claim.node == own,
            _ => false,
        });
    }
}
