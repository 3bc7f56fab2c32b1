//! What one rule does to the packet: its expressions are run on registers, as the kernel runs them.

use std::collections::HashMap;
use std::rc::Rc;

use super::matches::{Matches, compared, is_within};
use super::packet::{Loaded, Packet};
use super::scene::Scene;
use super::set::{self, Set};
use super::state::{Side, State};
use super::{Chain, Hook, Rule, Ruleset};
use crate::error::Result;
use crate::net::netlink::attr::Attrs;
use crate::net::nft::meaning::word;
use crate::net::nft::uapi::*;

/// The bytes of a register's word.
const WORD: usize = 4;
/// Expressions that neither match nor decide.
const NEUTRAL: [&str; 6] = ["counter", "log", "last", "flow_offload", "ct_helper", "dup"];
/// Expressions that load, or match, something that is not decoded.
const UNDECODED: [&str; 14] = [
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
];
// The kinds of stateful objects that neither match nor decide: NFT_OBJECT_COUNTER, _CT_HELPER,
// _CT_TIMEOUT, _SECMARK and _CT_EXPECT
const NEUTRAL_OBJECTS: [u32; 5] = [1, 3, 7, 8, 9];

/// What a rule does if its conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Continue,
    Accept,
    Drop {
        rejects: bool,
    },
    Return,
    Jump(String),
    Goto(String),
    /// An address is translated, and that ends the chain; None leaves the address as it is.
    Translate(Side, Option<Loaded>),
    /// One of several verdicts.
    Undecided,
    /// Anything else; the packet may take another way.
    Unknown,
}

/// What a rule does to the packet.
pub(super) struct Effect {
    pub(super) matches: Matches,
    pub(super) action: Action,
    /// Whether a condition compares with the packet's address or link.
    pub(super) is_specific: bool,
    /// The mark that it has set, or may have set.
    pub(super) mark: Option<Loaded>,
    /// Whether it may have excluded the packet from connection tracking.
    pub(super) may_untrack: bool,
}

/// Runs a rule of this chain on a packet.
pub(super) fn run(scene: Scene<'_>, state: &State, chain: &Chain, rule: &Rule) -> Result<Effect> {
    let effect = Effect {
        matches: Matches::Yes,
        action: Action::Continue,
        is_specific: false,
        mark: None,
        may_untrack: false,
    };
    let Scene { ruleset, packet, hook } = scene;
    let (mark, registers) = (state.mark.clone(), HashMap::new());
    let mut machine = Machine { ruleset, chain, packet, hook, state, mark, registers, effect };
    for (_, expression) in Attrs::of(&rule.expressions).iter() {
        machine.step(Attrs::of(expression))?;
        if machine.effect.matches == Matches::No {
            break;
        }
    }
    Ok(machine.effect)
}

pub(super) struct Machine<'r> {
    ruleset: &'r Ruleset,
    chain: &'r Chain,
    pub(super) packet: &'r Packet,
    pub(super) hook: Hook,
    pub(super) state: &'r State,
    /// The packet's mark, which the rule may have set.
    pub(super) mark: Loaded,
    /// What was loaded, by the number of the register's first word; no entry means any value.
    registers: HashMap<u32, Loaded>,
    pub(super) effect: Effect,
}

impl Machine<'_> {
    fn step(&mut self, expression: Attrs<'_>) -> Result<()> {
        let name = expression.text(NFTA_EXPR_NAME).unwrap_or_default();
        let of = expression.within(NFTA_EXPR_DATA);
        match name.as_str() {
            "payload" => self.payload(of),
            "meta" => self.meta(of),
            "ct" => self.load(of.be32(NFTA_CT_DREG), self.connection(of)),
            "fib" => self.load(of.be32(NFTA_FIB_DREG), self.fib(of)),
            // A packet that IPsec transforms takes another way.
            "rt" if of.be32(NFTA_RT_KEY) == Some(NFT_RT_XFRM) => {
                self.load(of.be32(NFTA_RT_DREG), Loaded::of(&[0]));
            }
            "bitwise" => self.bitwise(of),
            "cmp" => self.compare(of),
            "range" => self.range(of),
            "lookup" => self.lookup(of)?,
            "immediate" => self.immediate(of),
            "match" => self.extension(of),
            "target" => self.target(of),
            "reject" => self.effect.action = Action::Drop { rejects: true },
            "notrack" => self.effect.may_untrack = true,
            "nat" => self.effect.action = self.translation(of),
            "masq" => self.effect.action = Action::Translate(Side::Source, Some(Loaded::Unknown)),
            "redir" => {
                self.effect.action = Action::Translate(Side::Destination, Some(Loaded::Unknown));
            }
            "objref" if is_neutral_object(of) => (),
            "objref" => self.lose_track(),
            name if NEUTRAL.contains(&name) => (),
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

    pub(super) fn require(&mut self, condition: Matches) {
        self.effect.matches = self.effect.matches.and(condition);
    }

    /// Requires a condition about a register to hold.
    fn require_about(&mut self, loaded: &Loaded, condition: Matches) {
        let is_of_packet = matches!(loaded, Loaded::Known(_, true));
        self.effect.is_specific |= is_of_packet && condition == Matches::Yes;
        self.require(condition);
    }

    /// Loads into a register; an expression without one sets something.
    fn load(&mut self, register: Option<u32>, value: Loaded) {
        if let Some(register) = register {
            self.registers.insert(word(register), value);
        }
    }

    fn register(&self, register: Option<u32>) -> Loaded {
        let loaded = register.and_then(|register| self.registers.get(&word(register)));
        loaded.cloned().unwrap_or(Loaded::Unknown)
    }

    fn payload(&mut self, of: Attrs<'_>) {
        let offset = of.be32(NFTA_PAYLOAD_OFFSET).unwrap_or_default() as usize;
        let length = of.be32(NFTA_PAYLOAD_LEN).unwrap_or_default() as usize;
        let packet = self.packet;
        let loaded = match of.be32(NFTA_PAYLOAD_BASE) {
            Some(NFT_PAYLOAD_LL_HEADER) => packet.link_header(offset, length),
            Some(NFT_PAYLOAD_NETWORK_HEADER) => {
                let State { source, destination, .. } = self.state;
                packet.network_header(offset..offset + length, source, destination)
            }
            Some(NFT_PAYLOAD_TRANSPORT_HEADER) => packet.transport_header(offset, length),
            _ => Loaded::Unknown,
        };
        self.load(of.be32(NFTA_PAYLOAD_DREG), loaded);
    }

    fn meta(&mut self, of: Attrs<'_>) {
        let key = of.be32(NFTA_META_KEY).unwrap_or(u32::MAX);
        let from = of.be32(NFTA_META_SREG);
        if from.is_some() && key == NFT_META_MARK {
            self.set_mark(self.register(from));
        }
        self.load(of.be32(NFTA_META_DREG), self.packet.meta(key, &self.mark));
    }

    /// Sets the packet's mark, if the rule's conditions hold.
    pub(super) fn set_mark(&mut self, mark: Loaded) {
        let is_certain = self.effect.matches == Matches::Yes && mark.as_number().is_some();
        let mark = if is_certain { mark } else { Loaded::Unknown };
        self.mark = mark.clone();
        self.effect.mark = Some(mark);
    }

    /// What `ct` loads.
    fn connection(&self, of: Attrs<'_>) -> Loaded {
        let value = match of.be32(NFTA_CT_KEY) {
            Some(NFT_CT_STATE) => self.state.connection(),
            Some(NFT_CT_STATUS) => self.state.status(),
            _ => None,
        };
        value.map_or(Loaded::Unknown, Loaded::number)
    }

    /// What `fib` loads: the type of the destination is known.
    fn fib(&self, of: Attrs<'_>) -> Loaded {
        let is_type = of.be32(NFTA_FIB_RESULT) == Some(NFT_FIB_RESULT_ADDRTYPE);
        let is_of_destination = of.be32(NFTA_FIB_FLAGS) == Some(NFTA_FIB_F_DADDR);
        let known = self.type_of_destination().filter(|_| is_type && is_of_destination);
        known.map_or(Loaded::Unknown, Loaded::number)
    }

    /// What `nat` does. Without an address it translates the port alone.
    fn translation(&self, of: Attrs<'_>) -> Action {
        let is_of_destination = of.be32(NFTA_NAT_TYPE) == Some(NFT_NAT_DNAT);
        let side = if is_of_destination { Side::Destination } else { Side::Source };
        let least = of.be32(NFTA_NAT_REG_ADDR_MIN);
        let most = of.be32(NFTA_NAT_REG_ADDR_MAX).or(least);
        let is_one = self.register(least) == self.register(most);
        let address = least.map(|_| if is_one { self.register(least) } else { Loaded::Unknown });
        Action::Translate(side, address)
    }

    fn bitwise(&mut self, of: Attrs<'_>) {
        let op = of.be32(NFTA_BITWISE_OP).unwrap_or(NFT_BITWISE_MASK_XOR);
        let mask = of.value(NFTA_BITWISE_MASK).filter(|_| op == NFT_BITWISE_MASK_XOR);
        let loaded = match (mask, of.value(NFTA_BITWISE_XOR)) {
            (Some(mask), Some(xor)) => self.register(of.be32(NFTA_BITWISE_SREG)).masked(mask, xor),
            _ => Loaded::Unknown,
        };
        self.load(of.be32(NFTA_BITWISE_DREG), loaded);
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
        let is_within = is_within(&loaded, from, to);
        let is_inverted = of.be32(NFTA_RANGE_OP) == Some(NFT_CMP_NEQ);
        self.require_about(&loaded, is_within.inverted_if(is_inverted));
    }

    fn immediate(&mut self, of: Attrs<'_>) {
        let data = of.within(NFTA_IMMEDIATE_DATA);
        match of.be32(NFTA_IMMEDIATE_DREG) {
            Some(NFT_REG_VERDICT) => self.effect.action = action(data.within(NFTA_DATA_VERDICT)),
            register => {
                self.load(register, Loaded::of(data.bytes(NFTA_DATA_VALUE).unwrap_or_default()));
            }
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
            Some(NFT_REG_VERDICT) => self.effect.action = Action::Undecided,
            register => {
                let value = data.bytes(NFTA_DATA_VALUE);
                self.load(register, value.map_or(Loaded::Unknown, Loaded::of));
            }
        }
        Ok(())
    }

    /// The set of this name in the chain's table.
    fn set(&self, name: &str) -> Result<Option<Rc<Set>>> {
        let Chain { family, table, .. } = self.chain;
        let Some(nft) = &self.ruleset.nft else { return Ok(None) };
        let place = (self.chain.table_name(), name.to_owned());
        if let Some(known) = self.ruleset.sets.borrow().get(&place) {
            return Ok(Some(Rc::clone(known)));
        }
        let read = set::read(nft, (*family, table), name)?.map(Rc::new);
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
}

/// Whether it is a counter, or another object that is named by the rule and does not match.
fn is_neutral_object(of: Attrs<'_>) -> bool {
    of.be32(NFTA_OBJREF_IMM_TYPE).is_some_and(|kind| NEUTRAL_OBJECTS.contains(&kind))
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
