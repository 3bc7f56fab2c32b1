//! Compares what the expressions of rules do, in whatever form they are written.
//!
//! nft(8) does not load a listing in the form that the kernel had the rules in: it loads a prefix
//! that ends on a byte boundary as a shorter field without a mask, and checks the packet's family
//! as late as possible. Registers have two numberings, and the kernel adds attributes of its own.

use super::expr::Verdict;
use super::uapi::*;
use crate::net::filter_rule::{self, Field, PacketRule};
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::NfFamily;

/// Whether the found expressions do the same as the given ones.
pub(super) fn is_same(given: Attrs<'_>, found: Attrs<'_>) -> bool {
    are_same(&steps(&list(given)), &steps(&list(found)))
}

/// Whether the found expressions are what nft(8) loads from its listing of the given ones. It has
/// no syntax for a lookup in a map whose value is unused, and omits such a lookup with its loads.
pub(super) fn is_same_as_listed(given: Attrs<'_>, found: Attrs<'_>) -> bool {
    let mut given = list(given);
    let is_unused_lookup = |list: &[Attrs<'_>], at: usize| {
        let lookup = list[at].expression("lookup");
        let into = lookup.and_then(|lookup| lookup.be32(NFTA_LOOKUP_DREG));
        let is_used = list.get(at + 1).is_some_and(|next| next.is_expression("nat"));
        into.is_some_and(|into| into != NFT_REG_VERDICT) && !is_used
    };
    while let Some(at) = (0..given.len()).find(|at| is_unused_lookup(&given, *at)) {
        let loads = given[..at].iter().rev().take_while(|expression| is_load(expression)).count();
        given.drain(at - loads..=at);
    }
    are_same(&steps(&given), &steps(&list(found)))
}

/// What a rule of a table of this family (ip or ip6) does, and for which addresses and links.
pub(super) fn packet_rule(family: NfFamily, expressions: Attrs<'_>) -> PacketRule {
    let steps = steps(&list(expressions));
    let conditions = steps.iter().filter(|step| !step.is_unconditional());
    PacketRule {
        conditions: conditions.map(|step| step.of_packet(family)).collect(),
        verdict: steps.iter().find_map(Step::verdict),
    }
}

/// The destination register of `payload`, `meta`, `ct`, `fib` and `rt`: the attribute has the same
/// number in each.
const LOAD_DREG: u16 = NFTA_PAYLOAD_DREG;
/// Words in one of the registers from NFT_REG_1 to NFT_REG_4.
const WORDS: u32 = 4;

/// One step of a rule.
#[derive(Debug)]
enum Step<'a> {
    /// The rule continues only if a condition about the packet holds.
    Condition(Condition<'a>),
    /// Any other expression.
    Other(Attrs<'a>),
}

/// A load, possibly a mask, and a comparison.
#[derive(Debug)]
struct Condition<'a> {
    register: u32,
    load: Load<'a>,
    /// As long as the compared value; all ones if every bit counts.
    mask: Vec<u8>,
    how: u32,
    value: Vec<u8>,
}

#[derive(Debug)]
enum Load<'a> {
    /// From the packet itself: the header and the offset. The length is that of the value.
    Payload(u32, u32),
    /// From anything else: the expression.
    Other(Attrs<'a>),
}

fn list(expressions: Attrs<'_>) -> Vec<Attrs<'_>> {
    expressions.iter().map(|(_, expression)| Attrs::of(expression)).collect()
}

fn is_load(expression: &Attrs<'_>) -> bool {
    ["payload", "meta", "ct", "fib", "rt"].iter().any(|name| expression.is_expression(name))
}

/// Compares two lists of steps; adjacent conditions may be in any order.
fn are_same(given: &[Step<'_>], found: &[Step<'_>]) -> bool {
    let mut left: Vec<&Step<'_>> = found.iter().collect();
    let take_from_left = |given: &Step<'_>| {
        let conditions = left.iter().take_while(|step| step.is_condition()).count();
        let reach = if given.is_condition() { conditions.max(1) } else { 1 };
        let at = left.iter().take(reach).position(|found| given.is(found));
        at.map(|at| left.remove(at)).is_some()
    };
    given.iter().all(take_from_left) && left.is_empty()
}

fn steps<'a>(expressions: &[Attrs<'a>]) -> Vec<Step<'a>> {
    let mut steps = vec![];
    let mut rest = expressions;
    while let Some(first) = rest.first() {
        let (step, taken) = match Condition::read(rest) {
            Some((condition, taken)) => (Step::Condition(condition), taken),
            None => (Step::Other(*first), 1),
        };
        steps.push(step);
        rest = &rest[taken..];
    }
    steps
}

impl Step<'_> {
    fn is_condition(&self) -> bool {
        matches!(self, Step::Condition(_))
    }

    /// Whether it continues for every packet, or ends the rule.
    fn is_unconditional(&self) -> bool {
        let Step::Other(expression) = self else { return false };
        let comment = expression.expression("match");
        comment.is_some_and(|extension| extension.is_text(NFTA_MATCH_NAME, "comment"))
            || ["counter", "log"].iter().any(|name| expression.is_expression(name))
            || self.verdict().is_some()
    }

    fn verdict(&self) -> Option<Verdict> {
        let Step::Other(expression) = self else { return None };
        let target = expression.expression("target");
        let is_reject = target.is_some_and(|target| target.is_text(NFTA_TARGET_NAME, "REJECT"));
        if is_reject || expression.is_expression("reject") {
            return Some(Verdict::Drop);
        }
        let data = expression.expression("immediate")?.nested(NFTA_IMMEDIATE_DATA)?;
        let verdict = data.nested(NFTA_DATA_VERDICT)?;
        let chain = || verdict.text(NFTA_VERDICT_CHAIN);
        match verdict.be32(NFTA_VERDICT_CODE)? as i32 {
            NF_ACCEPT => Some(Verdict::Accept),
            NF_DROP => Some(Verdict::Drop),
            NFT_RETURN => Some(Verdict::Return),
            NFT_JUMP => chain().map(Verdict::Jump),
            NFT_GOTO => chain().map(Verdict::Goto),
            _ => None,
        }
    }

    /// The condition, if it is one about addresses or links.
    fn of_packet(&self, family: NfFamily) -> Option<filter_rule::Condition> {
        let Step::Condition(Condition { load, mask, how, value, .. }) = self else { return None };
        Some(filter_rule::Condition {
            field: load.field(family, value.len())?,
            value: value.clone(),
            mask: mask.clone(),
            is_inverted: match *how {
                NFT_CMP_EQ => false,
                NFT_CMP_NEQ => true,
                _ => return None,
            },
        })
    }

    fn is(&self, found: &Step<'_>) -> bool {
        match (self, found) {
            (Step::Condition(given), Step::Condition(found)) => given.is(found),
            (Step::Other(given), Step::Other(found)) => given.is_within(*found, is_same_register),
            _ => false,
        }
    }
}

impl<'a> Load<'a> {
    fn read(expression: Attrs<'a>) -> Option<Load<'a>> {
        match payload_length(expression) {
            Some(_) => {
                let payload = expression.nested(NFTA_EXPR_DATA)?;
                let header = payload.be32(NFTA_PAYLOAD_BASE)?;
                Some(Load::Payload(header, payload.be32(NFTA_PAYLOAD_OFFSET)?))
            }
            None => Some(Load::Other(expression)),
        }
    }

    /// The field of a packet of this family that so many bytes are loaded from.
    fn field(&self, family: NfFamily, length: usize) -> Option<Field> {
        match self {
            Load::Payload(NFT_PAYLOAD_NETWORK_HEADER, offset) => {
                let addresses = if family == NfFamily::Ip6 { 8..40 } else { 12..20 };
                let offset = *offset as usize;
                let is_within = addresses.start <= offset && offset + length <= addresses.end;
                is_within.then(|| Field::Addresses(offset - addresses.start))
            }
            Load::Payload(..) => None,
            Load::Other(expression) => match expression.expression("meta")?.be32(NFTA_META_KEY)? {
                NFT_META_IIF => Some(Field::Iif),
                NFT_META_OIF => Some(Field::Oif),
                NFT_META_IIFNAME => Some(Field::IifName),
                NFT_META_OIFNAME => Some(Field::OifName),
                _ => None,
            },
        }
    }

    fn is(&self, found: &Load<'_>) -> bool {
        match (self, found) {
            (Load::Payload(header, offset), Load::Payload(of, at)) => (header, offset) == (of, at),
            (Load::Other(given), Load::Other(found)) => given.is_within(*found, is_same_register),
            _ => false,
        }
    }
}

/// The number of bytes that a `payload` loads; None for other expressions.
fn payload_length(expression: Attrs<'_>) -> Option<u32> {
    expression.expression("payload")?.be32(NFTA_PAYLOAD_LEN)
}

impl<'a> Condition<'a> {
    /// Reads a load, an optional `bitwise`, and a `cmp` at the beginning of a list, and returns the
    /// condition with its number of expressions.
    fn read(expressions: &[Attrs<'a>]) -> Option<(Condition<'a>, usize)> {
        let first = *expressions.first().filter(|first| is_load(first))?;
        let register = word(first.nested(NFTA_EXPR_DATA)?.be32(LOAD_DREG)?);
        let bitwise = expressions.get(1).and_then(|second| second.expression("bitwise"));
        let mask = bitwise.and_then(|bitwise| read_mask(bitwise, register));
        let taken = if mask.is_some() { 3 } else { 2 };
        let compared = expressions.get(taken - 1)?.expression("cmp")?;
        let mut value = compared.value(NFTA_CMP_DATA)?.to_vec();
        let mut mask = mask.unwrap_or_else(|| vec![0xff; value.len()]);
        let how = compared.be32(NFTA_CMP_OP)?;
        let load = Load::read(first)?;
        let is_as_long = |loaded| loaded as usize == value.len();
        if word(compared.be32(NFTA_CMP_SREG)?) != register
            || mask.len() != value.len()
            || !payload_length(first).is_none_or(is_as_long)
        {
            return None;
        }
        // Without the bytes at the end of a field that the mask ignores.
        let is_field = matches!(load, Load::Payload(..));
        while is_field && mask.len() > 1 && mask.last() == Some(&0) && value.last() == Some(&0) {
            mask.pop();
            value.pop();
        }
        Some((Condition { register, load, mask, how, value }, taken))
    }

    fn is(&self, found: &Condition<'_>) -> bool {
        self.load.is(&found.load)
            && (self.register, &self.mask, self.how, &self.value)
                == (found.register, &found.mask, found.how, &found.value)
    }
}

/// The mask of a `bitwise` that only masks the register in place.
fn read_mask(bitwise: Attrs<'_>, register: u32) -> Option<Vec<u8>> {
    let is_register = |kind| bitwise.be32(kind).map(word) == Some(register);
    let op = bitwise.be32(NFTA_BITWISE_OP).unwrap_or(NFT_BITWISE_MASK_XOR);
    let xor = bitwise.value(NFTA_BITWISE_XOR)?;
    let mask = bitwise.value(NFTA_BITWISE_MASK)?.to_vec();
    let is_in_place = is_register(NFTA_BITWISE_SREG) && is_register(NFTA_BITWISE_DREG);
    let is_mask = op == NFT_BITWISE_MASK_XOR && xor.iter().all(|byte| *byte == 0);
    (is_in_place && is_mask).then_some(mask)
}

/// The number of a register's first word.
fn word(register: u32) -> u32 {
    match register {
        NFT_REG_1..=NFT_REG_4 => NFT_REG32_00 + (register - NFT_REG_1) * WORDS,
        other => other,
    }
}

/// Whether two attributes that are not equal name the same register: one by its number, the other
/// by that of its first word.
fn is_same_register(given: &[u8], found: &[u8]) -> bool {
    let (Ok(given), Ok(found)) = (given.try_into(), found.try_into()) else { return false };
    let (given, found) = (u32::from_be_bytes(given), u32::from_be_bytes(found));
    given >= NFT_REG32_00
        && given % WORDS == 0
        && found == (given - NFT_REG32_00) / WORDS + NFT_REG_1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::nft::expr::{Expressions, Header, Meta};

    fn field(length: u32, mask: Option<&[u8]>, value: &[u8]) -> Expressions {
        let mut rule = Expressions::default();
        rule.payload(Header::Network, 24, length, 1);
        if let Some(mask) = mask {
            rule.mask(1, mask);
        }
        rule.equal(1, value).verdict(&Verdict::Return);
        rule
    }

    #[test]
    fn prefix_on_a_byte_boundary_is_the_same_as_a_shorter_field() {
        let multicast = field(4, Some(&[0xff, 0, 0, 0]), &[0xff, 0, 0, 0]);
        for same in [field(1, None, &[0xff]), field(1, Some(&[0xff]), &[0xff]), multicast.clone()] {
            assert!(
                is_same(multicast.attrs(), same.attrs())
                    && is_same(same.attrs(), multicast.attrs()),
                "{same:?}"
            );
        }
        let wide = field(4, Some(&[0xff, 0xf0, 0, 0]), &[10, 16, 0, 0]);
        assert!(is_same(wide.attrs(), field(2, Some(&[0xff, 0xf0]), &[10, 16]).attrs()));
    }

    #[test]
    fn other_prefix_length_value_or_verdict_is_another_rule() {
        let multicast = field(4, Some(&[0xff, 0, 0, 0]), &[0xff, 0, 0, 0]);
        let mut accepted = Expressions::default();
        accepted.payload(Header::Network, 24, 1, 1).equal(1, &[0xff]).verdict(&Verdict::Accept);
        for other in [
            field(2, None, &[0xff, 0]),
            field(1, None, &[0xfe]),
            field(1, Some(&[0xf0]), &[0xf0]),
            field(4, Some(&[0xff, 0, 0, 0]), &[0xff, 0, 0, 1]),
            accepted,
        ] {
            assert!(!is_same(multicast.attrs(), other.attrs()), "{other:?}");
        }
    }

    fn condition(
        field: Field,
        value: &[u8],
        mask: &[u8],
        is_inverted: bool,
    ) -> filter_rule::Condition {
        filter_rule::Condition { field, value: value.to_vec(), mask: mask.to_vec(), is_inverted }
    }

    #[test]
    fn conditions_about_addresses_and_links_are_read() {
        let read = |fill: &dyn Fn(&mut Expressions)| {
            let mut rule = Expressions::default();
            fill(&mut rule);
            rule.counter().verdict(&Verdict::Drop);
            let PacketRule { conditions, verdict } = packet_rule(NfFamily::Ip, rule.attrs());
            assert_eq!(verdict, Some(Verdict::Drop));
            conditions
        };
        let of = |header, offset, length| {
            read(&|rule| {
                rule.payload(header, offset, length, 1).equal(1, &vec![10; length as usize]);
            })
        };
        let source = condition(Field::Addresses(0), &[10], &[0xff], false);
        assert_eq!(of(Header::Network, 12, 1), Some(vec![source]));
        let destination = condition(Field::Addresses(4), &[10; 4], &[0xff; 4], false);
        assert_eq!(of(Header::Network, 16, 4), Some(vec![destination]));
        for other in [(Header::Network, 9, 1), (Header::Network, 16, 8), (Header::Transport, 12, 1)]
        {
            assert_eq!(of(other.0, other.1, other.2), None, "{other:?}");
        }
        let links = read(&|rule| {
            rule.xtables_match("comment", 0, b"it\0").meta(Meta::IifName, 1).equal(1, b"eth");
            rule.meta(Meta::OifName, 1).not_equal(1, b"br0\0");
        });
        let iif = condition(Field::IifName, b"eth", &[0xff; 3], false);
        let oif = condition(Field::OifName, b"br0\0", &[0xff; 4], true);
        assert_eq!(links, Some(vec![iif, oif]));
        assert_eq!(read(&|_| ()), Some(vec![]));
        let others: [fn(&mut Expressions) -> &mut Expressions; 4] = [
            |rule| rule.meta(Meta::Mark, 1).equal(1, &[0; 4]),
            |rule| rule.meta(Meta::IifName, 1).in_set("links", 1, false),
            |rule| rule.payload(Header::Network, 12, 4, 1).at_least(1, &[10; 4]),
            |rule| rule.xtables_match("mark", 1, &[0; 12]),
        ];
        assert!(others.iter().all(|other| read(&|rule| _ = other(rule)).is_none()));
    }
}
