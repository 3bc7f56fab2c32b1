//! What rules have changed of a packet, and what is known of its connection, from hook to hook.

use super::packet::{Loaded, Packet};
use super::{Base, Hook};

// NF_CT_STATE_BIT of linux/netfilter/nf_conntrack_common.h
const INVALID: u32 = 1;
const ESTABLISHED: u32 = 2;
const NEW: u32 = 8;
// IPS_SEEN_REPLY, IPS_CONFIRMED, IPS_SRC_NAT and IPS_DST_NAT of the same
const SEEN_REPLY: u32 = 2;
const CONFIRMED: u32 = 8;
pub(super) const SRC_NAT: u32 = 16;
pub(super) const DST_NAT: u32 = 32;
/// NF_IP_PRI_CONNTRACK: chains before it see no connection.
const TRACKING: i32 = -200;
/// NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC: where chains of NAT are, whatever their own priority.
const TRANSLATES_DESTINATION: i32 = -100;
const TRANSLATES_SOURCE: i32 = 100;

/// Which address a rule translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Its mark.
    pub(super) mark: Loaded,
    pub(super) source: Loaded,
    pub(super) destination: Loaded,
    /// Whether rules have translated an address of the connection (IPS_SRC_NAT, IPS_DST_NAT); None
    /// if that is not known.
    nat: Option<u32>,
    is_reply: bool,
    /// None if a rule may have excluded the packet from connection tracking.
    is_tracked: Option<bool>,
    /// Whether a rule may have dropped it.
    pub(super) may_be_gone: bool,
    /// Whether it may have left the way that it was expected to take.
    pub(super) may_be_elsewhere: bool,
}

impl State {
    /// A packet that no rule has seen. The kernel clears the mark of what leaves a namespace.
    pub(super) fn of(packet: &Packet, has_ingress: bool) -> State {
        State {
            mark: if has_ingress { Loaded::Unknown } else { Loaded::number(0) },
            source: packet.source(),
            destination: packet.destination(),
            nat: Some(0),
            is_reply: packet.is_reply,
            is_tracked: Some(false),
            may_be_gone: false,
            may_be_elsewhere: false,
        }
    }

    /// The answer to this packet. Until its destination is translated back, it is the address that
    /// the source was translated to.
    pub(super) fn of_answer(&self, packet: &Packet, has_ingress: bool) -> State {
        let begin = State::of(packet, has_ingress);
        let answer = State { nat: self.nat, may_be_elsewhere: self.may_be_elsewhere, ..begin };
        if !self.is_translated() {
            return answer;
        }
        State { destination: Loaded::Unknown, ..answer }
    }

    /// The packet arrives at a base chain of the hook.
    pub(super) fn arrive(&mut self, packet: &Packet, hook: Hook, base: Base) {
        let priority = base.place(hook);
        let is_after_tracking = !hook.is_first() || priority >= TRACKING;
        if is_after_tracking && self.is_tracked == Some(false) {
            self.is_tracked = Some(true);
        }
        if self.is_reply && (hook != Hook::Prerouting || priority > TRANSLATES_DESTINATION) {
            self.destination = packet.destination();
        }
    }

    /// Whether it passes by a chain of type nat: those see only the first packet of a connection,
    /// until one of them translates the address.
    pub(super) fn passes_by(&self, hook: Hook, base: Base) -> bool {
        let bit = if hook.side() == Side::Source { SRC_NAT } else { DST_NAT };
        base.is_nat && (self.is_reply || self.nat.is_some_and(|nat| nat & bit != 0))
    }

    /// A rule has translated an address; None as the address leaves it as it is.
    pub(super) fn translate(&mut self, side: Side, address: Option<Loaded>) {
        match side {
            Side::Source => {
                self.nat = self.nat.map(|nat| nat | SRC_NAT);
                self.source = address.unwrap_or(self.source.clone());
            }
            // It is routed by the new address, possibly to the host itself.
            Side::Destination => {
                self.nat = self.nat.map(|nat| nat | DST_NAT);
                self.destination = address.unwrap_or(self.destination.clone());
                self.may_be_elsewhere = true;
            }
        }
    }

    /// Whether a rule may have translated an address of the connection.
    pub(super) fn is_translated(&self) -> bool {
        self.nat != Some(0)
    }

    /// A rule that is not decoded decides about it in this chain.
    pub(super) fn lose_track(&mut self, hook: Hook, base: Base) {
        self.may_be_gone = true;
        self.mark = Loaded::Unknown;
        if base.is_nat {
            self.nat = None;
            self.translate(hook.side(), Some(Loaded::Unknown));
        }
    }

    /// A rule has excluded it from connection tracking, if that has not begun.
    pub(super) fn untrack(&mut self) {
        if self.is_tracked == Some(false) {
            self.is_tracked = None;
        }
    }

    /// The state of its connection, as a bit; None if that is not known.
    pub(super) fn connection(&self) -> Option<u32> {
        match self.is_tracked? {
            false => Some(INVALID),
            true if self.is_reply => Some(ESTABLISHED),
            true => Some(NEW),
        }
    }

    /// The status of its connection without bits that no rule names; None if that is not known.
    pub(super) fn status(&self) -> Option<u32> {
        let of_reply = if self.is_reply { SEEN_REPLY | CONFIRMED } else { 0 };
        self.is_tracked?.then_some(self.nat? | of_reply)
    }
}

impl Base {
    /// Where the chain is among those of its hook.
    pub(super) fn place(self, hook: Hook) -> i32 {
        match (self.is_nat, hook.side()) {
            (false, _) => self.priority,
            (true, Side::Source) => TRANSLATES_SOURCE,
            (true, Side::Destination) => TRANSLATES_DESTINATION,
        }
    }
}

impl Hook {
    /// Whether connection tracking begins at this hook.
    fn is_first(self) -> bool {
        matches!(self, Hook::Prerouting | Hook::Output)
    }

    /// The address that chains of type nat translate at this hook.
    pub(super) fn side(self) -> Side {
        match self {
            Hook::Prerouting | Hook::Output => Side::Destination,
            Hook::Input | Hook::Forward | Hook::Postrouting => Side::Source,
        }
    }
}
