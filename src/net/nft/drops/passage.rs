//! The way of one packet from hook to hook.

use super::packet::Packet;
use super::scene::Scene;
use super::state::State;
use super::walk::{self, Fate};
use super::{Culprit, Hook, Ruleset};
use crate::error::Result;
use crate::net::nfnetlink::NfFamily;

/// A packet on its way through the hooks of a ruleset, which it has to pass in the kernel's order:
/// what a rule changes of it, rules at later hooks see.
pub struct Passage<'r> {
    ruleset: &'r Ruleset,
    packet: Packet,
    state: State,
}

/// What becomes of a packet at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Passes,
    /// It certainly does not arrive.
    Dropped(Culprit),
    /// A rule that is not decoded decides.
    Unknown,
}

impl Verdict {
    /// What drops the packet, if anything certainly does.
    pub fn culprit(self) -> Option<Culprit> {
        match self {
            Verdict::Dropped(culprit) => Some(culprit),
            Verdict::Passes | Verdict::Unknown => None,
        }
    }
}

impl<'r> Passage<'r> {
    /// A packet that no rule has seen.
    pub fn of(ruleset: &'r Ruleset, packet: Packet) -> Passage<'r> {
        let state = State::of(&packet, ruleset.has_ingress);
        Passage { ruleset, packet, state }
    }

    /// The answer to this packet, which has passed.
    #[must_use]
    pub fn answer(&self, packet: Packet) -> Passage<'r> {
        let state = self.state.of_answer(&packet, self.ruleset.has_ingress);
        Passage { ruleset: self.ruleset, packet, state }
    }

    /// Whether a rule may have translated an address of it.
    pub fn is_translated(&self) -> bool {
        self.state.is_translated()
    }

    /// It is at other links now.
    pub fn take(&mut self, packet: Packet) {
        self.packet = packet;
    }

    /// It arrives at a hook of IP.
    pub fn at(&mut self, hook: Hook) -> Result<Verdict> {
        let own = NfFamily::from(self.packet.family());
        self.pass(&[NfFamily::Inet, own], hook)
    }

    /// It arrives at a hook of bridges.
    pub fn at_bridge(&mut self, hook: Hook) -> Result<Verdict> {
        self.pass(&[NfFamily::Bridge], hook)
    }

    /// Whether connections of its family are certainly tracked.
    fn is_tracked(&self) -> bool {
        self.ruleset.tracked[self.packet.family() as usize]
    }

    fn pass(&mut self, families: &[NfFamily], hook: Hook) -> Result<Verdict> {
        for (chain, base) in self.ruleset.bases(families, hook) {
            if self.state.may_be_elsewhere {
                return Ok(Verdict::Unknown);
            }
            if self.state.passes_by(hook, base) {
                continue;
            }
            self.state.arrive(&self.packet, hook, base);
            let scene = Scene { ruleset: self.ruleset, packet: &self.packet, hook };
            match walk::fate(scene, &mut self.state, (chain, base))? {
                Fate::Dropped(_) if base.is_nat && !self.is_tracked() => {
                    self.state.may_be_gone = true;
                }
                Fate::Dropped(culprit) => return Ok(Verdict::Dropped(culprit)),
                Fate::Unknown => self.state.lose_track(hook, base),
                Fate::Next | Fate::Accepted => (),
            }
        }
        let is_unknown = self.state.may_be_gone || self.state.may_be_elsewhere;
        Ok(if is_unknown { Verdict::Unknown } else { Verdict::Passes })
    }
}
