//! `conditionsV4` and `conditionsV6` for nftables: the supported part of nft(8)'s language. The
//! reference passes them to the program `nft`; here each one is encoded for the kernel.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::attachment::IfName;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::net::nft::expr::{Expressions, Meta};
use crate::net::nft::wire::{link_name, octets};

/// The maximum number of values that one rule compares. The kernel takes at most 128 expressions
/// (NFT_RULE_MAXEXPRS) and 4 KiB of its own in a rule, of which an IPv6 network needs 128 bytes.
const MOST: usize = 30;
/// The supported syntax.
const EXPECTED: &str = "(ip|ip6) (saddr|daddr), iifname or meta mark, then perhaps !=, then a network, a name or a number, or a set of them";

/// A condition that a packet must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    field: Field,
    /// What the packet must have, or one of it: the values of a set.
    any_of: Vec<What>,
    /// Whether the packet must differ from all of it.
    negated: bool,
}

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Source(Family),
    Destination(Family),
    /// The name of the link that the packet came by.
    CameBy,
    Mark,
}

/// Values of a field, as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// The field, or its beginning.
    Value(Vec<u8>),
    /// The bits of the field that a mask leaves.
    Masked { mask: Vec<u8>, value: Vec<u8> },
    /// From one value to another, in network byte order.
    Range([Vec<u8>; 2]),
}

/// A word that is not understood, and what was expected.
type Misread<'a> = (&'a str, &'static str);

impl Condition {
    /// Parses the words of the field at `path`, which together are one text about packets of one
    /// family.
    pub fn parse(path: &str, words: &[String], family: Family) -> Result<Vec<Condition>> {
        let text = words.join(" ");
        // nft(8) allows spaces in a range
        let joined = text.replace(" - ", "-");
        let mut rest = words_of(&joined).into_iter();
        let mut conditions = vec![];
        while let Some(word) = rest.next() {
            conditions.push(Condition::parse_one(word, &mut rest).map_err(
                |(word, expected)| {
                    Error::config(path, format_args!("{text:?} is not understood at {word:?}"))
                        .expecting(expected)
                },
            )?);
        }
        let long = conditions.iter().filter(|condition| condition.is_long()).count();
        if long > 1 {
            let problem = format_args!("{long} sets of more than {MOST} values");
            return Err(Error::config(path, problem).expecting("at most one without !="));
        }
        let is_of_another = |condition: &Condition| {
            condition.field.family().is_some_and(|required| required != family)
        };
        if conditions.iter().any(is_of_another) {
            let word = family.word();
            return Err(Error::config(path, format_args!("{text:?} is never true"))
                .expecting(format_args!("{word} saddr and daddr")));
        }
        Ok(conditions)
    }

    fn parse_one<'a>(
        first: &'a str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<Condition, Misread<'a>> {
        let unfinished = (first, EXPECTED);
        let second = match first {
            "ip" | "ip6" | "meta" => rest.next().ok_or(unfinished)?,
            _ => "",
        };
        let field = Field::parse(first, second).ok_or(unfinished)?;
        let mut value = rest.next().ok_or(unfinished)?;
        let negated = value == "!=";
        if negated || value == "==" {
            value = rest.next().ok_or(unfinished)?;
        }
        let values =
            if value == "{" { values_of_set(rest).ok_or(unfinished)? } else { vec![value] };
        let what = |value: &&'a str| {
            field.parse_value(value.trim_matches('"')).ok_or((*value, field.expected()))
        };
        Ok(Condition { field, any_of: values.iter().map(what).collect::<Result<_, _>>()?, negated })
    }

    /// Whether it has so many values, of which the packet must have one, that one rule cannot
    /// compare them.
    pub fn is_long(&self) -> bool {
        !self.negated && self.any_of.len() > MOST
    }

    /// Rules that begin like this, and go on for packets that do not meet the condition.
    pub fn unmet(&self, begin: &Expressions) -> Vec<Expressions> {
        if self.negated {
            return self.of_each(begin);
        }
        let mut none = begin.clone();
        self.any_of.iter().for_each(|what| what.write(self.field, &mut none, true));
        vec![none]
    }

    /// Rules that begin like this, and go on for packets with one of the values each.
    pub fn of_each(&self, begin: &Expressions) -> Vec<Expressions> {
        let rule = |what: &What| {
            let mut rule = begin.clone();
            what.write(self.field, &mut rule, false);
            rule
        };
        self.any_of.iter().map(rule).collect()
    }
}

/// The words of a text, among which are the signs of a set. What is in quotes is one word.
fn words_of(text: &str) -> Vec<&str> {
    let mut words = vec![];
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '{' | '}' | ',' => Some(1),
            '"' => rest[1..].find('"').map(|end| end + 2),
            _ => rest.find(|c: char| c.is_whitespace() || "{},\"".contains(c)),
        };
        let (word, after) = rest.split_at(length.unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// The values up to the end of a set, with a comma after each but perhaps the last.
fn values_of_set<'a>(rest: &mut impl Iterator<Item = &'a str>) -> Option<Vec<&'a str>> {
    let mut values = vec![];
    loop {
        match rest.next()? {
            "}" => return Some(values).filter(|values| !values.is_empty()),
            value => values.push(value),
        }
        match rest.next()? {
            "}" => return Some(values),
            "," => (),
            _ => return None,
        }
    }
}

impl Field {
    fn parse(first: &str, second: &str) -> Option<Field> {
        let family = Family::ALL.into_iter().find(|family| family.word() == first);
        match (family, first, second) {
            (Some(family), _, "saddr") => Some(Field::Source(family)),
            (Some(family), _, "daddr") => Some(Field::Destination(family)),
            (_, "iifname", "") | (_, "meta", "iifname") => Some(Field::CameBy),
            (_, "mark", "") | (_, "meta", "mark") => Some(Field::Mark),
            _ => None,
        }
    }

    /// Returns the family that it requires.
    fn family(self) -> Option<Family> {
        match self {
            Field::Source(family) | Field::Destination(family) => Some(family),
            Field::CameBy | Field::Mark => None,
        }
    }

    fn expected(self) -> &'static str {
        match self.family() {
            Some(Family::V4) => "an IPv4 address, a network, or a range as in 10.0.0.1-10.0.0.9",
            Some(Family::V6) => "an IPv6 address, a network, or a range as in fd00::1-fd00::9",
            None if self == Field::Mark => "a number of 32 bits, or a range as in 1-9",
            None => "the name of a link, or its beginning and *",
        }
    }

    fn parse_value(self, text: &str) -> Option<What> {
        match (self.family(), self) {
            (Some(family), _) => addresses(text, family),
            (None, Field::Mark) => marks(text),
            (None, _) => link_names(text),
        }
    }

    fn load(self, rule: &mut Expressions) {
        match self {
            Field::Source(family) => rule.source(family),
            Field::Destination(family) => rule.destination(family),
            Field::CameBy => rule.meta(Meta::IifName, 1),
            Field::Mark => rule.meta(Meta::Mark, 1),
        };
    }
}

impl What {
    /// The rule continues only for packets with one of these values; if `negated`, with none.
    fn write(&self, field: Field, rule: &mut Expressions, negated: bool) {
        field.load(rule);
        let value = match self {
            What::Range([from, to]) => {
                if field == Field::Mark {
                    rule.network_order(1, 4);
                }
                match negated {
                    true => rule.outside(1, from, to),
                    false => rule.at_least(1, from).at_most(1, to), // as nft(8) writes it
                };
                return;
            }
            What::Masked { mask, value } => {
                rule.mask(1, mask);
                value
            }
            What::Value(value) => value,
        };
        if negated {
            rule.not_equal(1, value)
        } else {
            rule.equal(1, value)
        };
    }
}

/// Parses a range, each end by itself; None if its end is not after its begin, which older versions of nft(8) do not read.
fn range<T: PartialOrd>(text: &str, end: impl Fn(&str) -> Option<T>) -> Option<[T; 2]> {
    let (from, to) = text.split_once('-')?;
    let (from, to) = (end(from)?, end(to)?);
    (from < to).then_some([from, to])
}

fn addresses(text: &str, family: Family) -> Option<What> {
    let address = |text: &str| text.parse().ok().filter(|ip| Family::of(*ip) == family);
    if let Some(ends) = range::<IpAddr>(text, address) {
        return Some(What::Range(ends.map(octets)));
    }
    let net: IpNet = text.parse().ok().or_else(|| address(text).map(IpNet::from))?;
    (Family::of_net(net) == family)
        .then(|| What::Masked { mask: octets(net.netmask()), value: octets(net.network()) })
}

/// Parses the name of a link, or a pattern for several.
fn link_names(text: &str) -> Option<What> {
    let escaped = text.strip_suffix("\\*").map(|name| format!("{name}*"));
    let beginning = text.strip_suffix('*').filter(|_| escaped.is_none());
    let name = escaped.as_deref().or(beginning).unwrap_or(text);
    IfName::parse(name).ok()?;
    Some(What::Value(match beginning {
        Some(_) => name.as_bytes().to_vec(),
        None => link_name(name),
    }))
}

fn marks(text: &str) -> Option<What> {
    match range(text, number) {
        Some(ends) => Some(What::Range(ends.map(|mark| mark.to_be_bytes().to_vec()))),
        None => number(text).map(|mark| What::Value(mark.to_ne_bytes().to_vec())),
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Vec<Condition>> {
        Condition::parse(
            "conditionsV4",
            &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(),
            Family::V4,
        )
    }

    #[test]
    fn words_may_stand_together_or_alone() {
        let apart = parse(&["ip", "saddr", "!=", "10.0.0.0/8", "iifname", "\"eth0\""]).unwrap();
        assert_eq!(apart, parse(&["ip saddr != 10.0.0.0/8 iifname eth0"]).unwrap());
        assert!(apart[0].negated && !apart[1].negated);
        assert_eq!(
            parse(&["meta mark 0x10"]).unwrap(),
            parse(&["meta", "mark", "==", "16"]).unwrap()
        );
        assert_eq!(parse(&[]).unwrap(), []);
    }

    #[test]
    fn what_can_never_be_is_refused() {
        let error = parse(&["ip6 saddr fd00::/64"]).unwrap_err();
        assert_eq!(
            error.msg,
            "conditionsV4: \"ip6 saddr fd00::/64\" is never true, expected ip saddr and daddr"
        );
        let set = |sign: &str| format!("meta mark {sign} {{ {} }}", ["1"; 41].join(", "));
        assert!(parse(&[&set(""), &set("!="), &set("!=")]).is_ok());
        let error = parse(&[&set(""), &set("!="), &set("==")]).unwrap_err();
        assert_eq!(
            error.msg,
            "conditionsV4: 2 sets of more than 30 values, expected at most one without !="
        );
    }

    #[test]
    fn ranges_and_patterns_are_values() {
        let one = |text: &str| parse(&[text]).unwrap()[0].any_of[0].clone();
        let range = What::Range([vec![10, 0, 0, 0], vec![10, 0, 0, 9]]);
        for text in ["ip saddr 10.0.0.0-10.0.0.9", "ip daddr != { 10.0.0.0 - 10.0.0.9 }"] {
            assert_eq!(one(text), range);
        }
        assert_eq!(one("mark 1-0x100"), What::Range([vec![0, 0, 0, 1], vec![0, 0, 1, 0]]));
        assert_eq!(one("meta iifname { \"eth*\", lo }"), What::Value(b"eth".to_vec()));
        assert_eq!(
            one("iifname \"eth\\*\""),
            What::Value(b"eth*\0\0\0\0\0\0\0\0\0\0\0\0".to_vec())
        );
    }

    #[test]
    fn a_value_that_is_not_understood_is_named() {
        for (text, at, expected) in [
            ("ip saddr 10.0.0.9-10.0.0.0", "10.0.0.9-10.0.0.0", "a range as in 10.0.0.1-10.0.0.9"),
            ("ip saddr { 10.0.0.1, fd00::1 }", "fd00::1", "an IPv4 address"),
            ("iifname lo meta mark 0x1ffffffff", "0x1ffffffff", "a number of 32 bits"),
            ("iifname { eth0, \"*\" }", "\"*\"", "the name of a link, or its beginning and *"),
            ("ip saddr 10.0.0.1 tcp sport 1024-65535", "tcp", "iifname or meta mark"),
        ] {
            let error = parse(&[text]).unwrap_err().msg.clone();
            let begin = format!("conditionsV4: {text:?} is not understood at {at:?}, expected ");
            assert!(error.starts_with(&begin) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_set_is_a_choice_and_its_contrary_a_list() {
        let any = parse(&["iifname", "{", "\"a,b\",eth1 ,", "eth2", "}"]).unwrap();
        let names = ["a,b", "eth1", "eth2"].map(|name| link_names(name).unwrap());
        let any_of = names.to_vec();
        assert_eq!(any, [Condition { field: Field::CameBy, any_of, negated: false }]);
        let none = parse(&["ip daddr != {127.0.0.0/8,192.0.2.1,} meta mark { 7 }"]).unwrap();
        assert_eq!(none.iter().map(|one| one.any_of.len()).collect::<Vec<_>>(), [2, 1]);
        let begin = Expressions::default();
        let rules = [&any[0], &none[0], &none[1]].map(|one| one.unmet(&begin).len());
        assert_eq!(rules, [1, 2, 1]);
        assert_eq!(none[1], parse(&["meta mark 7"]).unwrap()[0]);
    }

    #[test]
    fn what_is_not_understood_is_shown() {
        for bad in [
            "ip saddr",
            "ip saddr fd00::1",
            "tcp dport 80",
            "iifname a-name-of-16-byte",
            "iifname *",
            "iifname \"\"",
            "meta mark 5-1",
            "ip saddr { }",
            "ip saddr { , }",
            "ip saddr { 10.0.0.1",
            "ip saddr { 10.0.0.1 10.0.0.2 }",
            "ip saddr { 10.0.0.1, fd00::1 }",
            "ip saddr != != 10.0.0.1",
            "} ip saddr 10.0.0.1",
            "; drop",
        ] {
            let error = parse(&[bad]).unwrap_err();
            assert!(
                error.msg.starts_with(&format!("conditionsV4: {bad:?} is not understood at ")),
                "{error:?}"
            );
        }
    }
}
