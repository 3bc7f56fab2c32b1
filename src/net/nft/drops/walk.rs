//! The way of a packet through a base chain and the chains that it jumps to.

use super::expressions::{self, Action};
use super::matches::Matches;
use super::packet::Loaded;
use super::scene::Scene;
use super::state::State;
use super::{Base, Chain, Culprit, Rule};
use crate::error::Result;

/// NFT_JUMP_STACK_SIZE: how deep the kernel lets chains jump.
const DEPTH: usize = 16;

/// What becomes of the packet.
pub(super) enum Fate {
    /// It reaches the end of the chain.
    Next,
    /// It is accepted.
    Accepted,
    /// It is dropped.
    Dropped(Culprit),
    /// A rule that cannot be decoded decides.
    Unknown,
}

/// What becomes of the packet in this base chain.
pub(super) fn fate(
    scene: Scene<'_>,
    state: &mut State,
    (chain, base): (&Chain, Base),
) -> Result<Fate> {
    let mut walk = Walk { scene, base: chain, state };
    let way = Way { chain, depth: 0, is_specific: false };
    Ok(match walk.pass(way)? {
        Fate::Next if base.drops => Fate::Dropped(walk.culprit(way, None, false)),
        fate => fate,
    })
}

struct Walk<'w> {
    scene: Scene<'w>,
    base: &'w Chain,
    state: &'w mut State,
}

/// How the packet came to a chain.
#[derive(Clone, Copy)]
struct Way<'w> {
    chain: &'w Chain,
    depth: usize,
    is_specific: bool,
}

impl<'w> Walk<'w> {
    /// Walks one chain.
    fn pass(&mut self, way: Way<'w>) -> Result<Fate> {
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
    fn apply(&mut self, rule: &Rule, way: Way<'w>) -> Result<Option<Fate>> {
        let effect = expressions::run(self.scene, self.state, way.chain, rule)?;
        if effect.may_untrack {
            self.state.untrack();
        }
        if let Some(mark) = effect.mark {
            self.state.mark = mark;
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
            Action::Drop { .. } if !is_certain => {
                self.state.may_be_gone = true;
                None
            }
            Action::Unknown => {
                self.state.may_be_elsewhere = true;
                Some(Fate::Unknown)
            }
            Action::Undecided => Some(Fate::Unknown),
            _ if !is_certain => Some(Fate::Unknown),
            Action::Accept => Some(Fate::Accepted),
            Action::Translate(side, address) => {
                self.state.translate(side, address);
                Some(Fate::Accepted)
            }
            Action::Return => Some(Fate::Next),
            Action::Drop { rejects } => {
                let way = Way { is_specific, ..way };
                Some(Fate::Dropped(self.culprit(way, Some(rule.handle), rejects)))
            }
        })
    }

    /// Walks another chain; None if the packet returns from it.
    fn jump(&mut self, name: &str, way: Way<'w>, is_certain: bool) -> Result<Option<Fate>> {
        let Some(chain) = self.scene.ruleset.sibling(way.chain, name) else {
            return Ok(Some(Fate::Unknown));
        };
        let mark = self.state.mark.clone();
        let fate = self.pass(Way { chain, ..way })?;
        if is_certain {
            return Ok(if matches!(fate, Fate::Next) { None } else { Some(fate) });
        }
        if self.state.mark != mark {
            self.state.mark = Loaded::Unknown;
        }
        Ok(match fate {
            Fate::Next => None,
            Fate::Dropped(_) => {
                self.state.may_be_gone = true;
                None
            }
            Fate::Accepted | Fate::Unknown => Some(Fate::Unknown),
        })
    }

    fn culprit(&self, way: Way<'_>, handle: Option<u64>, rejects: bool) -> Culprit {
        Culprit {
            family: self.base.family,
            is_legacy: self.base.is_legacy,
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
