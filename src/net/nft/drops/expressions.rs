//! What one rule does to the packet: its expressions are run on registers, as the kernel runs them.

use std::collections::HashMap;
use std::rc::Rc;

use super::packet::{Loaded, Packet};
use super::set::{self, Set};
use super::{Chain, Rule, Ruleset};
use crate::error::Result;
use crate::net::netlink::attr::{Attrs, read_u16, read_u32};
use crate::net::nft::meaning::word;
use crate::net::nft::uapi::*;

/// The bytes of a register's word.
const WORD: usize = 4;
/// Expressions that neither match nor decide.
const NEUTRAL: [&str; 6] = ["counter", "log", "last", "notrack", "flow_offload", "ct_helper"];
/// Expressions that load, or match, something that is not decoded.
const UNDECODED: [&str; 15] = [
    "rt",
    "socket",
    "exthdr",
    "numgen",
    "hash",
    "osf",
    "tunnel",
    "byteorder",
    "xfrm",
    "inner",
    "limit",
    "connlimit",
    "quota",
    "dynset",
    "objref",
];
/// Expressions that translate addresses, which ends the chain.
const TRANSLATING: [&str; 3] = ["nat", "masq", "redir"];
/// Targets of x_tables after which the packet goes on.
const NEUTRAL_TARGETS: [&str; 9] =
    ["LOG", "NFLOG", "TCPMSS", "TOS", "DSCP", "CT", "TRACE", "AUDIT", "CLASSIFY"];
const MARKING_TARGETS: [&str; 2] = ["MARK", "CONNMARK"];
// struct xt_conntrack_mtinfo3
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
/// XT_CONNTRACK_STATE.
const BY_STATE: u16 = 1;
/// The ports of struct xt_tcp that match every packet.
const EVERY_PORT: [u8; 8] = [0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff];

/// Whether the rule's conditions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matches {
    Yes,
    No,
    Maybe,
}

/// What a rule does if its conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Continue,
    Accept,
    Drop { rejects: bool },
    Return,
    Jump(String),
    Goto(String),
    Unknown,
}

/// What a rule does to the packet.
pub(super) struct Effect {
    pub(super) matches: Matches,
    pub(super) action: Action,
    /// Whether a condition compares with the packet's address or link.
    pub(super) is_specific: bool,
    /// Whether it may have set the packet's mark.
    pub(super) sets_mark: bool,
}

/// Runs a rule of this chain on a packet with this mark.
pub(super) fn run(
    ruleset: &Ruleset,
    chain: &Chain,
    (packet, mark): (&Packet, &Loaded),
    rule: &Rule,
) -> Result<Effect> {
    let effect = Effect {
        matches: Matches::Yes,
        action: Action::Continue,
        is_specific: false,
        sets_mark: false,
    };
    let mut machine =
        Machine { ruleset, chain, packet, mark: mark.clone(), registers: HashMap::new(), effect };
    for (_, expression) in Attrs::of(&rule.expressions).iter() {
        machine.step(Attrs::of(expression))?;
        if machine.effect.matches == Matches::No {
            break;
        }
    }
    Ok(machine.effect)
}

struct Machine<'r> {
    ruleset: &'r Ruleset,
    chain: &'r Chain,
    packet: &'r Packet,
    mark: Loaded,
    /// What was loaded, by the number of the register's first word; no entry means any value.
    registers: HashMap<u32, Loaded>,
    effect: Effect,
}

impl Machine<'_> {
    fn step(&mut self, expression: Attrs<'_>) -> Result<()> {
        let name = expression.text(NFTA_EXPR_NAME).unwrap_or_default();
        let of = expression.within(NFTA_EXPR_DATA);
        match name.as_str() {
            "payload" => self.payload(of),
            "meta" => self.meta(of),
            "ct" => self.load(of.be32(NFTA_CT_DREG), |packet| {
                of.be32(NFTA_CT_KEY).map_or(Loaded::Unknown, |key| packet.connection(key))
            }),
            "fib" => self.load(of.be32(NFTA_FIB_DREG), |packet| fib(packet, of)),
            "bitwise" => self.bitwise(of),
            "cmp" => self.compare(of),
            "range" => self.range(of),
            "lookup" => self.lookup(of)?,
            "immediate" => self.immediate(of),
            "match" => self.extension(of),
            "target" => self.target(&of.text(NFTA_TARGET_NAME).unwrap_or_default()),
            "reject" => self.effect.action = Action::Drop { rejects: true },
            name if NEUTRAL.contains(&name) => (),
            name if TRANSLATING.contains(&name) => self.effect.action = Action::Accept,
            name if UNDECODED.contains(&name) => self.lose_track(),
            _ => {
                self.lose_track();
                self.effect.action = Action::Unknown;
            }
        }
        Ok(())
    }

    /// After an expression that may match or not, and may load anything.
    fn lose_track(&mut self) {
        self.registers.clear();
        self.require(Matches::Maybe);
    }

    fn require(&mut self, condition: Matches) {
        self.effect.matches = match (self.effect.matches, condition) {
            (Matches::No, _) | (_, Matches::No) => Matches::No,
            (Matches::Maybe, _) | (_, Matches::Maybe) => Matches::Maybe,
            (Matches::Yes, Matches::Yes) => Matches::Yes,
        };
    }

    /// Requires a condition about a register to hold.
    fn require_about(&mut self, loaded: &Loaded, condition: Matches) {
        let is_of_packet = matches!(loaded, Loaded::Known(_, true));
        self.effect.is_specific |= is_of_packet && condition == Matches::Yes;
        self.require(condition);
    }

    /// Loads into a register; an expression without one sets something.
    fn load(&mut self, register: Option<u32>, value: impl FnOnce(&Packet) -> Loaded) {
        if let Some(register) = register {
            self.registers.insert(word(register), value(self.packet));
        }
    }

    fn register(&self, register: Option<u32>) -> Loaded {
        let loaded = register.and_then(|register| self.registers.get(&word(register)));
        loaded.cloned().unwrap_or(Loaded::Unknown)
    }

    fn payload(&mut self, of: Attrs<'_>) {
        self.load(of.be32(NFTA_PAYLOAD_DREG), |packet| {
            let offset = of.be32(NFTA_PAYLOAD_OFFSET).unwrap_or_default() as usize;
            let length = of.be32(NFTA_PAYLOAD_LEN).unwrap_or_default() as usize;
            match of.be32(NFTA_PAYLOAD_BASE) {
                Some(NFT_PAYLOAD_LL_HEADER) => packet.link_header(offset, length),
                Some(NFT_PAYLOAD_NETWORK_HEADER) => packet.network_header(offset, length),
                Some(NFT_PAYLOAD_TRANSPORT_HEADER) => packet.transport_header(offset, length),
                _ => Loaded::Unknown,
            }
        });
    }

    fn meta(&mut self, of: Attrs<'_>) {
        let key = of.be32(NFTA_META_KEY).unwrap_or(u32::MAX);
        let mark = self.mark.clone();
        if of.be32(NFTA_META_SREG).is_some() && key == NFT_META_MARK {
            self.set_mark();
        }
        self.load(of.be32(NFTA_META_DREG), |packet| packet.meta(key, &mark));
    }

    fn set_mark(&mut self) {
        self.effect.sets_mark = true;
        self.mark = Loaded::Unknown;
    }

    fn bitwise(&mut self, of: Attrs<'_>) {
        let op = of.be32(NFTA_BITWISE_OP).unwrap_or(NFT_BITWISE_MASK_XOR);
        let mask = of.value(NFTA_BITWISE_MASK).filter(|_| op == NFT_BITWISE_MASK_XOR);
        let (Some(mask), Some(xor)) = (mask, of.value(NFTA_BITWISE_XOR)) else {
            return self.load(of.be32(NFTA_BITWISE_DREG), |_| Loaded::Unknown);
        };
        let is_zero = mask.iter().all(|byte| *byte == 0);
        let masked = match self.register(of.be32(NFTA_BITWISE_SREG)) {
            Loaded::Known(bytes, is_of_packet) => {
                let bits = bytes.iter().zip(mask).zip(xor);
                let bytes = bits.map(|((byte, mask), xor)| byte & mask ^ xor).collect();
                Loaded::Known(bytes, is_of_packet && !is_zero)
            }
            _ if is_zero => Loaded::Known(xor.to_vec(), false),
            loaded => loaded,
        };
        self.load(of.be32(NFTA_BITWISE_DREG), |_| masked);
    }

    fn compare(&mut self, of: Attrs<'_>) {
        let loaded = self.register(of.be32(NFTA_CMP_SREG));
        let how = of.be32(NFTA_CMP_OP).unwrap_or(u32::MAX);
        let value = of.value(NFTA_CMP_DATA).unwrap_or_default();
        self.require_about(&loaded, compared(&loaded, how, value));
        if how == NFT_CMP_NEQ {
            // Being another address is nothing specific.
            self.effect.is_specific &= !matches!(loaded, Loaded::Known(_, true));
        }
    }

    fn range(&mut self, of: Attrs<'_>) {
        let loaded = self.register(of.be32(NFTA_RANGE_SREG));
        let from = of.value(NFTA_RANGE_FROM_DATA).unwrap_or_default();
        let to = of.value(NFTA_RANGE_TO_DATA).unwrap_or_default();
        let is_within = match &loaded {
            Loaded::Known(bytes, _) if bytes.len() == from.len() => {
                Matches::of(from <= &bytes[..] && &bytes[..] <= to)
            }
            Loaded::Unnamed(_) => Matches::No,
            _ => Matches::Maybe,
        };
        let is_inverted = of.be32(NFTA_RANGE_OP) == Some(NFT_CMP_NEQ);
        self.require_about(&loaded, is_within.inverted_if(is_inverted));
    }

    fn immediate(&mut self, of: Attrs<'_>) {
        let data = of.within(NFTA_IMMEDIATE_DATA);
        match of.be32(NFTA_IMMEDIATE_DREG) {
            Some(NFT_REG_VERDICT) => self.effect.action = action(data.within(NFTA_DATA_VERDICT)),
            register => self.load(register, |_| {
                let value = data.bytes(NFTA_DATA_VALUE).unwrap_or_default();
                Loaded::Known(value.to_vec(), false)
            }),
        }
    }

    fn lookup(&mut self, of: Attrs<'_>) -> Result<()> {
        let name = of.text(NFTA_LOOKUP_SET).unwrap_or_default();
        let into = of.be32(NFTA_LOOKUP_DREG);
        let set = self.set(&name)?;
        let key = set.as_ref().map_or(Loaded::Unknown, |set| {
            self.key(of.be32(NFTA_LOOKUP_SREG).unwrap_or_default(), set.key_length)
        });
        let (found, data) = match set {
            Some(set) => set.find(&key),
            None => (Matches::Maybe, None),
        };
        let is_inverted =
            of.be32(NFTA_LOOKUP_FLAGS).is_some_and(|flags| flags & NFT_LOOKUP_F_INV != 0);
        self.require_about(&key, found.inverted_if(is_inverted));
        let data = data.unwrap_or_default();
        let data = Attrs::of(&data);
        match into {
            Some(NFT_REG_VERDICT) if found == Matches::Yes => {
                self.effect.action = action(data.within(NFTA_DATA_VERDICT));
            }
            Some(NFT_REG_VERDICT) => self.effect.action = Action::Unknown,
            register => self.load(register, |_| match data.bytes(NFTA_DATA_VALUE) {
                Some(value) => Loaded::Known(value.to_vec(), false),
                None => Loaded::Unknown,
            }),
        }
        Ok(())
    }

    /// The set of this name in the chain's table.
    fn set(&self, name: &str) -> Result<Option<Rc<Set>>> {
        let Chain { family, table, .. } = self.chain;
        let place = ((*family as u8, table.clone()), name.to_owned());
        if let Some(known) = self.ruleset.sets.borrow().get(&place) {
            return Ok(Some(Rc::clone(known)));
        }
        let read = set::read(&self.ruleset.nft, (*family, table), name)?.map(Rc::new);
        if let Some(set) = &read {
            self.ruleset.sets.borrow_mut().insert(place, Rc::clone(set));
        }
        Ok(read)
    }

    /// The key that begins in this register: every field of it is in words of its own.
    fn key(&self, register: u32, length: usize) -> Loaded {
        let (mut bytes, mut at) = (vec![], word(register));
        let (mut is_of_packet, mut is_unnamed) = (false, false);
        while bytes.len() < length {
            let width = match self.registers.get(&at) {
                None | Some(Loaded::Unknown) => return Loaded::Unknown,
                Some(Loaded::Unnamed(width)) => {
                    is_unnamed = true;
                    bytes.resize(bytes.len() + width, 0);
                    *width
                }
                Some(Loaded::Known(known, is_its)) => {
                    is_of_packet |= is_its;
                    bytes.extend(known);
                    known.len()
                }
            };
            if bytes.len() >= length {
                break;
            }
            bytes.resize(bytes.len().next_multiple_of(WORD), 0);
            at += width.div_ceil(WORD).max(1) as u32;
        }
        bytes.truncate(length);
        if is_unnamed { Loaded::Unnamed(length) } else { Loaded::Known(bytes, is_of_packet) }
    }

    /// A match of x_tables.
    fn extension(&mut self, of: Attrs<'_>) {
        let info = of.bytes(NFTA_MATCH_INFO).unwrap_or_default();
        let name = of.text(NFTA_MATCH_NAME).unwrap_or_default();
        let condition = match (name.as_str(), of.be32(NFTA_MATCH_REV).unwrap_or_default()) {
            ("comment", _) => Matches::Yes,
            ("conntrack", 3) => self.by_conntrack(info),
            ("state", 0) => read_u32(info, 0)
                .map_or(Matches::Maybe, |mask| Matches::of(mask & self.packet.state() != 0)),
            ("mark", 1) => self.by_mark(info),
            ("tcp", 0) => by_ports(info),
            ("udp" | "icmp" | "icmp6" | "sctp", _) => Matches::No,
            _ => Matches::Maybe,
        };
        self.require(condition);
    }

    fn by_conntrack(&self, info: &[u8]) -> Matches {
        let field = |at| read_u16(info, at);
        match (field(MATCH_FLAGS), field(INVERT_FLAGS), field(STATE_MASK)) {
            (Some(BY_STATE), Some(inverted), Some(mask)) => {
                Matches::of(u32::from(mask) & self.packet.state() != 0)
                    .inverted_if(inverted & BY_STATE != 0)
            }
            _ => Matches::Maybe,
        }
    }

    /// struct xt_mark_mtinfo1: mark, mask, inversion.
    fn by_mark(&self, info: &[u8]) -> Matches {
        match (&self.mark, read_u32(info, 0), read_u32(info, 4), info.get(8)) {
            (Loaded::Known(..), Some(mark), Some(mask), Some(inverted)) => {
                Matches::of(mark & mask == 0).inverted_if(*inverted != 0)
            }
            _ => Matches::Maybe,
        }
    }

    /// A target of x_tables.
    fn target(&mut self, name: &str) {
        match name {
            "REJECT" => self.effect.action = Action::Drop { rejects: true },
            name if NEUTRAL_TARGETS.contains(&name) => (),
            name if MARKING_TARGETS.contains(&name) => self.set_mark(),
            _ => self.effect.action = Action::Unknown,
        }
    }
}

impl Matches {
    fn of(holds: bool) -> Matches {
        if holds { Matches::Yes } else { Matches::No }
    }

    fn inverted_if(self, is_inverted: bool) -> Matches {
        match self {
            Matches::Yes if is_inverted => Matches::No,
            Matches::No if is_inverted => Matches::Yes,
            condition => condition,
        }
    }
}

impl Set {
    /// Whether the set has the key, and the data of its element.
    fn find(&self, key: &Loaded) -> (Matches, Option<Vec<u8>>) {
        match key {
            Loaded::Unnamed(_) => (Matches::No, None),
            Loaded::Known(key, _) => match self.data_of(key) {
                None => (Matches::Maybe, None),
                Some(data) => (Matches::of(data.is_some()), data),
            },
            Loaded::Unknown => (Matches::Maybe, None),
        }
    }
}

fn fib(packet: &Packet, of: Attrs<'_>) -> Loaded {
    let is_type = of.be32(NFTA_FIB_RESULT) == Some(NFT_FIB_RESULT_ADDRTYPE);
    let is_of_destination = of.be32(NFTA_FIB_FLAGS) == Some(NFTA_FIB_F_DADDR);
    if is_type && is_of_destination { packet.type_of_destination() } else { Loaded::Unknown }
}

/// Whether a comparison with a value holds. A shorter value is the beginning of a link's name.
fn compared(loaded: &Loaded, how: u32, value: &[u8]) -> Matches {
    match (loaded, how) {
        (Loaded::Known(bytes, _), _) if bytes.len() < value.len() => Matches::Maybe,
        (Loaded::Known(bytes, _), how) => {
            let bytes = &bytes[..value.len()];
            match how {
                NFT_CMP_EQ => Matches::of(bytes == value),
                NFT_CMP_NEQ => Matches::of(bytes != value),
                NFT_CMP_LT => Matches::of(bytes < value),
                NFT_CMP_LTE => Matches::of(bytes <= value),
                NFT_CMP_GT => Matches::of(bytes > value),
                NFT_CMP_GTE => Matches::of(bytes >= value),
                _ => Matches::Maybe,
            }
        }
        (Loaded::Unnamed(_), NFT_CMP_EQ) => Matches::No,
        (Loaded::Unnamed(_), NFT_CMP_NEQ) => Matches::Yes,
        (Loaded::Unnamed(_) | Loaded::Unknown, _) => Matches::Maybe,
    }
}

/// What a verdict does.
fn action(verdict: Attrs<'_>) -> Action {
    let chain = verdict.text(NFTA_VERDICT_CHAIN).unwrap_or_default();
    match verdict.be32(NFTA_VERDICT_CODE).map(|code| code as i32) {
        Some(NF_ACCEPT) => Action::Accept,
        Some(NF_DROP) => Action::Drop { rejects: false },
        Some(NFT_RETURN) => Action::Return,
        Some(NFT_JUMP) => Action::Jump(chain),
        Some(NFT_GOTO) => Action::Goto(chain),
        Some(NFT_CONTINUE) => Action::Continue,
        _ => Action::Unknown,
    }
}

/// struct xt_tcp: ports in the machine's byte order, options, flags and inversions.
fn by_ports(info: &[u8]) -> Matches {
    match (info.get(..8), info.get(8..12)) {
        (Some(ports), Some([0, 0, 0, 0])) => Matches::of(ports == EVERY_PORT),
        _ => Matches::Maybe,
    }
}
