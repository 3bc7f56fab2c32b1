//! The way of a packet through a base chain and the chains that it jumps to.

use super::expressions::{self, Action, Matches};
use super::packet::{Loaded, Packet};
use super::{Base, Chain, Culprit, Rule, Ruleset};
use crate::error::Result;

/// NFT_JUMP_STACK_SIZE: how deep the kernel lets chains jump.
const DEPTH: usize = 16;

/// What becomes of the packet.
enum Fate {
    /// It reaches the end of the chain.
    Next,
    /// It is accepted.
    Accepted,
    /// It is dropped.
    Dropped(Culprit),
    /// A rule that cannot be decoded decides.
    Unknown,
}

/// What drops the packet in this base chain, if anything certainly does.
pub(super) fn culprit(
    ruleset: &Ruleset,
    packet: &Packet,
    chain: &Chain,
    base: Base,
) -> Result<Option<Culprit>> {
    let mark = Loaded::Known(0_u32.to_ne_bytes().to_vec(), false);
    let mut walk = Walk { ruleset, packet, base: chain, mark };
    let way = Way { chain, depth: 0, is_specific: false };
    Ok(match walk.pass(way)? {
        Fate::Dropped(culprit) => Some(culprit),
        Fate::Next if base.drops => Some(walk.culprit(way, None, false)),
        Fate::Next | Fate::Accepted | Fate::Unknown => None,
    })
}

struct Walk<'r> {
    ruleset: &'r Ruleset,
    packet: &'r Packet,
    base: &'r Chain,
    /// The packet's mark, which rules may set.
    mark: Loaded,
}

/// How the packet came to a chain.
#[derive(Clone, Copy)]
struct Way<'r> {
    chain: &'r Chain,
    depth: usize,
    is_specific: bool,
}

impl<'r> Walk<'r> {
    /// Walks one chain.
    fn pass(&mut self, way: Way<'r>) -> Result<Fate> {
        if way.depth > DEPTH {
            return Ok(Fate::Unknown);
        }
        for rule in &way.chain.rules {
            if let Some(fate) = self.apply(rule, way)? {
                return Ok(fate);
            }
        }
        Ok(Fate::Next)
    }

    /// Applies a rule; None if the packet goes on to the next one.
    fn apply(&mut self, rule: &Rule, way: Way<'r>) -> Result<Option<Fate>> {
        let effect = expressions::run(self.ruleset, way.chain, (self.packet, &self.mark), rule)?;
        if effect.sets_mark {
            self.mark = Loaded::Unknown;
        }
        let is_certain = effect.matches == Matches::Yes;
        let is_specific = way.is_specific || effect.is_specific;
        if effect.matches == Matches::No {
            return Ok(None);
        }
        Ok(match effect.action {
            Action::Continue => None,
            Action::Jump(name) => self.jump(&name, way.next(is_specific), is_certain)?,
            Action::Goto(name) => {
                let fate = self.jump(&name, way.next(is_specific), is_certain)?;
                Some(fate.unwrap_or(if is_certain { Fate::Next } else { Fate::Unknown }))
            }
            _ if !is_certain => Some(Fate::Unknown),
            Action::Accept => Some(Fate::Accepted),
            Action::Return => Some(Fate::Next),
            Action::Unknown => Some(Fate::Unknown),
            Action::Drop { rejects } => {
                let way = Way { is_specific, ..way };
                Some(Fate::Dropped(self.culprit(way, Some(rule.handle), rejects)))
            }
        })
    }

    /// Walks another chain; None if the packet returns from it.
    fn jump(&mut self, name: &str, way: Way<'r>, is_certain: bool) -> Result<Option<Fate>> {
        let Some(chain) = self.ruleset.sibling(way.chain, name) else {
            return Ok(Some(Fate::Unknown));
        };
        Ok(match self.pass(Way { chain, ..way })? {
            Fate::Next => None,
            fate if is_certain => Some(fate),
            _ => Some(Fate::Unknown),
        })
    }

    fn culprit(&self, way: Way<'_>, handle: Option<u64>, rejects: bool) -> Culprit {
        Culprit {
            family: self.base.family,
            table: self.base.table.clone(),
            base: self.base.name.clone(),
            chain: way.chain.name.clone(),
            handle,
            rejects,
            is_specific: way.is_specific,
        }
    }
}

impl Way<'_> {
    fn next(self, is_specific: bool) -> Self {
        Way { depth: self.depth + 1, is_specific, ..self }
    }
}
