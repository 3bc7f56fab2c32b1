//! `conditionsV4` and `conditionsV6` for nftables: the supported part of nft(8)'s language. The
//! reference passes them to the program `nft`; here each one is encoded for the kernel.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::attachment::IfName;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::net::nft::expr::{Expressions, Header, Meta};
use crate::net::nft::wire::octets;

/// IFNAMSIZ.
const IFNAME: usize = 16;
/// The maximum number of values that one rule compares. A kernel rule has at most 128 expressions
/// (NFT_RULE_MAXEXPRS), a comparison has up to three, and the redirect takes eight.
const MOST: usize = 40;
/// The supported syntax.
const EXPECTED: &str = "(ip|ip6) (saddr|daddr), iifname or meta mark, then perhaps !=, then a network, a name or a number, or a set of them";

/// A condition that a packet must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What the packet must have, or one of it: the values of a set.
    any_of: Vec<What>,
    /// Whether the packet must differ from all of it.
    negated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Source(IpNet),
    Destination(IpNet),
    CameBy(String),
    Mark(u32),
}

impl Condition {
    /// Parses the words of the field at `path`, which together are one text about packets of one
    /// family.
    pub fn parse(path: &str, words: &[String], family: Family) -> Result<Vec<Condition>> {
        let text = words.join(" ");
        let conditions = Condition::parse_text(path, &text)?;
        let (choices, own): (Vec<_>, Vec<_>) = conditions.iter().partition(|one| one.is_choice());
        let compared = own.iter().map(|one| one.any_of.len()).sum();
        let most = choices.iter().map(|choice| choice.any_of.len()).fold(compared, usize::max);
        if most > MOST {
            let problem = format_args!("{most} values to compare in a rule");
            return Err(Error::config(path, problem).expecting(format_args!("at most {MOST}")));
        }
        if conditions.iter().any(|condition| condition.is_of_other_than(family)) {
            let word = family.word();
            return Err(Error::config(path, format_args!("{text:?} is never true"))
                .expecting(format_args!("{word} saddr and daddr")));
        }
        Ok(conditions)
    }

    fn parse_text(path: &str, text: &str) -> Result<Vec<Condition>> {
        let mut rest = words_of(text).into_iter();
        let mut conditions = vec![];
        while let Some(word) = rest.next() {
            let condition = Condition::parse_one(word, &mut rest);
            conditions.push(condition.ok_or_else(|| not_understood(path, text, word))?);
        }
        Ok(conditions)
    }

    fn is_of_other_than(&self, family: Family) -> bool {
        self.any_of.iter().any(|what| what.family().is_some_and(|of| of != family))
    }

    fn parse_one<'a>(first: &str, rest: &mut impl Iterator<Item = &'a str>) -> Option<Condition> {
        let second = if first == "iifname" { "" } else { rest.next()? };
        let mut value = rest.next()?;
        let negated = value == "!=";
        if negated || value == "==" {
            value = rest.next()?;
        }
        let values = if value == "{" { values_of_set(rest)? } else { vec![value] };
        let what = |value: &&str| What::parse(first, second, value.trim_matches('"'));
        Some(Condition { any_of: values.iter().map(what).collect::<Option<_>>()?, negated })
    }

    /// Whether the packet may have any of several values. All comparisons of a rule have to hold, so
    /// a choice takes a rule of its own.
    pub fn is_choice(&self) -> bool {
        !self.negated && self.any_of.len() > 1
    }

    /// Writes the condition: the rule continues only for packets that meet it.
    pub fn write(&self, rule: &mut Expressions) {
        for what in &self.any_of {
            let value = what.load(rule);
            if self.negated {
                rule.not_equal(1, &value);
            } else {
                rule.equal(1, &value);
            }
        }
    }

    /// Writes the contrary of a choice: the rule continues only for packets without any of the
    /// values.
    pub fn write_none(&self, rule: &mut Expressions) {
        Condition { any_of: self.any_of.clone(), negated: true }.write(rule);
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

impl What {
    fn parse(first: &str, second: &str, value: &str) -> Option<What> {
        match (first, second) {
            ("iifname", _) => link_name(value).map(What::CameBy),
            ("meta", "mark") => number(value).map(What::Mark),
            (_, "saddr") => network(value, family_of(first)?).map(What::Source),
            (_, "daddr") => network(value, family_of(first)?).map(What::Destination),
            _ => None,
        }
    }

    /// Returns the family that it requires.
    fn family(&self) -> Option<Family> {
        match self {
            What::Source(net) | What::Destination(net) => Some(Family::of_net(*net)),
            What::CameBy(_) | What::Mark(_) => None,
        }
    }

    /// Loads what the packet has; returns the value to compare it with.
    fn load(&self, rule: &mut Expressions) -> Vec<u8> {
        match self {
            What::Source(net) => load_address(rule, *net, false),
            What::Destination(net) => load_address(rule, *net, true),
            What::CameBy(name) => load_name(rule, name),
            What::Mark(mark) => load_mark(rule, *mark),
        }
    }
}

fn not_understood(path: &str, text: &str, word: &str) -> Error {
    Error::config(path, format_args!("{text:?} is not understood at {word:?}")).expecting(EXPECTED)
}

fn family_of(word: &str) -> Option<Family> {
    Family::ALL.into_iter().find(|family| family.word() == word)
}

fn network(text: &str, family: Family) -> Option<IpNet> {
    any_network(text).filter(|net| Family::of_net(*net) == family)
}

/// Parses a network or an address, of any family.
fn any_network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().or_else(address)
}

/// The name of one link: not a pattern for several.
fn link_name(text: &str) -> Option<String> {
    IfName::parse(text).ok()?;
    Some(text.to_owned()).filter(|name| !name.ends_with('*'))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Loads the name of the link that a packet came by; returns the value to compare it with.
fn load_name(rule: &mut Expressions, name: &str) -> Vec<u8> {
    rule.meta(Meta::IifName, 1);
    let mut name = name.as_bytes().to_vec();
    name.resize(IFNAME, 0);
    name
}

/// Loads a packet's mark; returns the value to compare it with.
fn load_mark(rule: &mut Expressions, mark: u32) -> Vec<u8> {
    rule.meta(Meta::Mark, 1);
    mark.to_ne_bytes().to_vec()
}

/// Loads the network of a packet's address; returns the value to compare it with.
fn load_address(rule: &mut Expressions, net: IpNet, is_destination: bool) -> Vec<u8> {
    let (source, length) = match Family::of_net(net) {
        Family::V4 => (12, 4),
        Family::V6 => (8, 16),
    };
    let offset = if is_destination { source + length } else { source };
    rule.payload(Header::Network, offset, length, 1).mask(1, &octets(net.netmask()));
    octets(net.network())
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
        let error = parse(&["meta mark 1"; 41]).unwrap_err();
        assert_eq!(error.msg, "conditionsV4: 41 values to compare in a rule, expected at most 40");
        let set = |sign: &str| format!("meta mark {sign} {{ {} }}", ["1"; 41].join(", "));
        assert_eq!(parse(&[&set("")]).unwrap_err().msg, error.msg);
        assert_eq!(parse(&[&set("!=")]).unwrap_err().msg, error.msg);
    }

    #[test]
    fn a_set_is_a_choice_and_its_contrary_a_list() {
        let any = parse(&["iifname", "{", "\"a,b\",eth1 ,", "eth2", "}"]).unwrap();
        let names = ["a,b", "eth1", "eth2"].map(|name| What::CameBy(name.to_owned()));
        assert_eq!(any, [Condition { any_of: names.to_vec(), negated: false }]);
        assert!(any[0].is_choice());
        let none = parse(&["ip daddr != {127.0.0.0/8,192.0.2.1,} meta mark { 7 }"]).unwrap();
        assert_eq!(none.iter().map(|one| one.any_of.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(none.iter().all(|one| !one.is_choice()));
        assert_eq!(none[1], parse(&["meta mark 7"]).unwrap()[0]);
    }

    #[test]
    fn what_is_not_understood_is_shown() {
        for bad in [
            "ip saddr",
            "ip saddr fd00::1",
            "tcp dport 80",
            "iifname a-name-of-16-byte",
            "iifname eth*",
            "iifname \"\"",
            "ip saddr { }",
            "ip saddr { , }",
            "ip saddr { 10.0.0.1",
            "ip saddr { 10.0.0.1 10.0.0.2 }",
            "ip saddr { 10.0.0.1, fd00::1 }",
            "ip saddr != != 10.0.0.1",
            "iifname { eth* }",
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
