//! Matches and targets of x_tables, which iptables' rules consist of.

use super::expressions::{Action, Machine};
use super::matches::Matches;
use super::packet::{LOCAL, Loaded};
use super::state::{DST_NAT, SRC_NAT, Side};
use crate::net::netlink::attr::{Attrs, read_u16, read_u32};
use crate::net::nft::uapi::*;

/// Targets after which the packet goes on as it was.
const NEUTRAL_TARGETS: [&str; 17] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TOS",
    "DSCP",
    "ECN",
    "TTL",
    "HL",
    "TRACE",
    "AUDIT",
    "CLASSIFY",
    "CHECKSUM",
    "SET",
    "TEE",
    "IDLETIMER",
];
// struct xt_conntrack_mtinfo3
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
/// XT_CONNTRACK_STATE.
const BY_STATE: u16 = 1;
// XT_CONNTRACK_STATE_SNAT and _DNAT
const STATE_SNAT: u32 = 1 << 6;
const STATE_DNAT: u32 = 1 << 7;
// struct xt_tcp: ranges of ports in the machine's byte order, an option, flags and inversions
const SOURCE_PORTS: usize = 0;
const DESTINATION_PORTS: usize = 4;
const OPTION: usize = 8;
const FLAG_MASK: usize = 9;
const FLAG_VALUE: usize = 10;
const INVERSIONS: usize = 11;
const INVERTED_FLAGS: u8 = 4;
/// A range of ports that begins and ends this far apart is an eighth of all ports.
const MANY_PORTS: u16 = 0x2000;
// struct xt_multiport_v1
const MULTIPORT_COUNT: usize = 1;
const MULTIPORT_PORTS: usize = 2;
const MULTIPORT_RANGES: usize = 32;
const MULTIPORT_INVERTED: usize = 47;
const MULTIPORT_MAX: usize = 15;
// struct xt_addrtype_info_v1
const ADDRTYPE_FLAGS: usize = 4;
const INVERTED_SOURCE: u32 = 1;
const INVERTED_DESTINATION: u32 = 2;
// struct xt_physdev_info
const PHYSDEV_INVERTED: usize = 64;
const PHYSDEV_ASKED: usize = 65;
const IS_BRIDGED: u8 = 4;
/// XT_CT_NOTRACK.
const NOTRACK: u16 = 1;
/// XT_CONNMARK_RESTORE.
const RESTORE: u8 = 2;
/// The mode in struct xt_connmark_tginfo1.
const CONNMARK_MODE: usize = 12;

impl Machine<'_> {
    /// A match of x_tables.
    pub(super) fn extension(&mut self, of: Attrs<'_>) {
        let info = of.bytes(NFTA_MATCH_INFO).unwrap_or_default();
        let name = of.text(NFTA_MATCH_NAME).unwrap_or_default();
        let condition = match (name.as_str(), of.be32(NFTA_MATCH_REV).unwrap_or_default()) {
            ("comment", _) => Matches::Yes,
            ("conntrack", 3) => self.by_conntrack(info),
            ("state", 0) => read_u32(info, 0).map_or(Matches::Maybe, |mask| self.by_state(mask)),
            ("mark", 1) => self.by_mark(info),
            ("tcp", 0) => self.by_tcp(info),
            ("multiport", 1) => by_multiport(info),
            ("addrtype", 1) => self.by_type(info),
            ("physdev", 0) => self.by_bridge_port(info),
            ("udp" | "icmp" | "icmp6" | "sctp" | "udplite" | "dccp" | "esp" | "ah", _) => {
                Matches::No
            }
            _ => Matches::Maybe,
        };
        self.require(condition);
    }

    /// Whether the connection is in one of these states.
    fn by_state(&self, mask: u32) -> Matches {
        let translated = match self.state.status() {
            Some(status) => [(SRC_NAT, STATE_SNAT), (DST_NAT, STATE_DNAT)]
                .into_iter()
                .map(|(bit, state)| if status & bit != 0 { state } else { 0 })
                .sum(),
            None if mask & (STATE_SNAT | STATE_DNAT) != 0 => return Matches::Maybe,
            None => 0,
        };
        match self.state.connection() {
            Some(state) => Matches::of(mask & (state | translated) != 0),
            None => Matches::Maybe,
        }
    }

    fn by_conntrack(&self, info: &[u8]) -> Matches {
        let field = |at| read_u16(info, at);
        match (field(MATCH_FLAGS), field(INVERT_FLAGS), field(STATE_MASK)) {
            (Some(BY_STATE), Some(inverted), Some(mask)) => {
                self.by_state(mask.into()).inverted_if(inverted & BY_STATE != 0)
            }
            _ => Matches::Maybe,
        }
    }

    /// struct xt_mark_mtinfo1: mark, mask, inversion.
    fn by_mark(&self, info: &[u8]) -> Matches {
        let own = self.mark.as_number();
        match (own, read_u32(info, 0), read_u32(info, 4), info.get(8)) {
            (Some(own), Some(mark), Some(mask), Some(inverted)) => {
                Matches::of(own & mask == mark).inverted_if(*inverted != 0)
            }
            _ => Matches::Maybe,
        }
    }

    fn by_tcp(&self, info: &[u8]) -> Matches {
        let ([Some(option), Some(mask), Some(value), Some(inverted)], Some(ports)) = (
            [OPTION, FLAG_MASK, FLAG_VALUE, INVERSIONS].map(|at| info.get(at).copied()),
            info.get(..OPTION),
        ) else {
            return Matches::Maybe;
        };
        let of_option = if option == 0 { Matches::Yes } else { Matches::Maybe };
        let flags = Matches::of(self.packet.flags() & mask == value);
        [(SOURCE_PORTS, 1), (DESTINATION_PORTS, 2)]
            .iter()
            .map(|(at, bit)| by_range(ports, *at).inverted_if(inverted & bit != 0))
            .fold(of_option, Matches::and)
            .and(flags.inverted_if(inverted & INVERTED_FLAGS != 0))
    }

    /// struct xt_addrtype_info_v1: masks of types (bit RTN_*) of source and destination, and flags.
    fn by_type(&self, info: &[u8]) -> Matches {
        let (Some(source), Some(destination)) = (read_u16(info, 0), read_u16(info, 2)) else {
            return Matches::Maybe;
        };
        let flags = read_u32(info, ADDRTYPE_FLAGS).unwrap_or_default();
        if source != 0 || flags & !(INVERTED_SOURCE | INVERTED_DESTINATION) != 0 {
            return Matches::Maybe;
        }
        let Some(own) = self.type_of_destination() else { return Matches::Maybe };
        Matches::of(destination == 0 || u32::from(destination) & (1 << own) != 0)
            .inverted_if(flags & INVERTED_DESTINATION != 0)
    }

    /// Whether it goes from one port of a bridge to another.
    fn by_bridge_port(&self, info: &[u8]) -> Matches {
        match (info.get(PHYSDEV_ASKED), info.get(PHYSDEV_INVERTED)) {
            (Some(&IS_BRIDGED), Some(inverted)) if !self.packet.is_bridged() => {
                Matches::No.inverted_if(inverted & IS_BRIDGED != 0)
            }
            _ => Matches::Maybe,
        }
    }

    /// A target of x_tables.
    pub(super) fn target(&mut self, of: Attrs<'_>) {
        let info = of.bytes(NFTA_TARGET_INFO).unwrap_or_default();
        let is_first_revision = of.be32(NFTA_TARGET_REV).unwrap_or_default() < 2;
        match of.text(NFTA_TARGET_NAME).unwrap_or_default().as_str() {
            "REJECT" => self.effect.action = Action::Drop { rejects: true },
            "SNAT" | "MASQUERADE" => self.translate(Side::Source),
            "DNAT" | "REDIRECT" => self.translate(Side::Destination),
            "NETMAP" => self.translate(self.hook.side()),
            "MARK" if is_first_revision => self.set_mark(Loaded::Unknown),
            "MARK" => self.set_mark(marked(&self.mark, info)),
            "HMARK" => self.set_mark(Loaded::Unknown),
            "CONNMARK" if info.get(CONNMARK_MODE) == Some(&RESTORE) => {
                self.set_mark(Loaded::Unknown);
            }
            "NOTRACK" => self.effect.may_untrack = true,
            "CT" => {
                let flags = read_u16(info, 0).unwrap_or(NOTRACK);
                self.effect.may_untrack |= flags & NOTRACK != 0;
            }
            "CONNMARK" => (),
            name if NEUTRAL_TARGETS.contains(&name) => (),
            _ => self.effect.action = Action::Unknown,
        }
    }

    fn translate(&mut self, side: Side) {
        self.effect.action = Action::Translate(side, Some(Loaded::Unknown));
    }
}

/// struct xt_mark_tginfo2: the bits to set, and those to clear first.
fn marked(mark: &Loaded, info: &[u8]) -> Loaded {
    match (mark.as_number(), read_u32(info, 0), read_u32(info, 4)) {
        (_, Some(value), Some(u32::MAX)) => Loaded::number(value),
        (Some(own), Some(value), Some(mask)) => Loaded::number(own & !mask ^ value),
        _ => Loaded::Unknown,
    }
}

/// Whether a port that no rule names is in a range of two ports.
fn by_range(info: &[u8], at: usize) -> Matches {
    match (read_u16(info, at), read_u16(info, at + 2)) {
        (Some(0), Some(u16::MAX)) => Matches::Yes,
        (Some(from), Some(to)) if to.saturating_sub(from) < MANY_PORTS => Matches::No,
        _ => Matches::Maybe,
    }
}

/// struct xt_multiport_v1: flags, a count, ports, marks of those that begin a range, inversion.
fn by_multiport(info: &[u8]) -> Matches {
    let Some(count) = info.get(MULTIPORT_COUNT).map(|count| usize::from(*count)) else {
        return Matches::Maybe;
    };
    let begins_range = |at: &usize| info.get(MULTIPORT_RANGES + at).is_some_and(|mark| *mark != 0);
    let mut ranges = (0..count.min(MULTIPORT_MAX)).filter(begins_range);
    let is_narrow = ranges.all(|at| by_range(info, MULTIPORT_PORTS + 2 * at) == Matches::No);
    let condition = if is_narrow { Matches::No } else { Matches::Maybe };
    condition.inverted_if(info.get(MULTIPORT_INVERTED).is_some_and(|inverted| *inverted != 0))
}

impl Machine<'_> {
    /// The type of the destination in the routing table; None if a rule may have translated it.
    pub(super) fn type_of_destination(&self) -> Option<u32> {
        let own = self.packet.type_of_destination();
        let is_known = own == LOCAL || self.state.destination != Loaded::Unknown;
        is_known.then_some(own)
    }
}
