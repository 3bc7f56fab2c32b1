//! The ruleset, for comparisons: what `nft list ruleset` prints, in the kernel's form.

use super::objects::links_in;
use super::socket::{Nft, Query};
use super::uapi::*;
use super::wire::Attributes;
use crate::error::Result;
use crate::hex;
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::NfFamily;

/// The families that a plugin may have rules in.
const FAMILIES: [NfFamily; 4] = [NfFamily::Inet, NfFamily::Ip, NfFamily::Ip6, NfFamily::Bridge];

/// A kind of object: the request that lists it, and the attributes that tell one from another,
/// without handles and counts of uses.
struct Kind {
    name: &'static str,
    request: u16,
    attributes: &'static [u16],
}

const KINDS: [Kind; 4] = [
    Kind { name: "table", request: NFT_MSG_GETTABLE, attributes: &[NFTA_TABLE_NAME] },
    Kind {
        name: "chain",
        request: NFT_MSG_GETCHAIN,
        attributes: &[NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY],
    },
    Kind {
        name: "rule",
        request: NFT_MSG_GETRULE,
        attributes: &[NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_USERDATA],
    },
    Kind {
        name: "set",
        request: NFT_MSG_GETSET,
        attributes: &[
            NFTA_SET_TABLE,
            NFTA_SET_NAME,
            NFTA_SET_FLAGS,
            NFTA_SET_KEY_TYPE,
            NFTA_SET_DATA_TYPE,
        ],
    },
];

impl Nft {
    /// Tables, chains, rules, sets, elements and links of flowtables, of the families inet, ip, ip6
    /// and bridge: a line each, sorted. Stateful objects are not listed.
    pub fn ruleset(&self) -> Result<Vec<String>> {
        let mut lines = vec![];
        for family in FAMILIES {
            for kind in &KINDS {
                let what = format_args!("list the ruleset");
                let query = Query::new(kind.request, family, what, |_| ());
                lines.extend(
                    self.dump(&query, |attrs, lines| lines.push(line(family, kind, attrs)))?,
                );
            }
            let query = Query::new(NFT_MSG_GETSET, family, format_args!("list sets"), |_| ());
            let sets: Vec<(String, String)> = self.dump(&query, |attrs, sets| {
                sets.extend(attrs.text(NFTA_SET_TABLE).zip(attrs.text(NFTA_SET_NAME)));
            })?;
            for (table, name) in sets {
                let names = |body: &mut Attributes| {
                    body.text(NFTA_SET_ELEM_LIST_TABLE, &table).text(NFTA_SET_ELEM_LIST_SET, &name);
                };
                let what = format_args!("list the elements of {name:?}");
                let query = Query::new(NFT_MSG_GETSETELEM, family, what, names);
                lines.extend(self.dump(&query, |attrs, lines| {
                    for (_, element) in attrs.within(NFTA_SET_ELEM_LIST_ELEMENTS).iter() {
                        let element = hex::encode(element);
                        lines.push(format!("{family} element {table} {name} {element}"));
                    }
                })?);
            }
            let what = format_args!("list the flowtables");
            let query = Query::new(NFT_MSG_GETFLOWTABLE, family, what, |_| ());
            lines.extend(self.dump(&query, |attrs, links| {
                let table = attrs.text(NFTA_FLOWTABLE_TABLE).unwrap_or_default();
                let name = attrs.text(NFTA_FLOWTABLE_NAME).unwrap_or_default();
                let line = |link| format!("{family} link {table} {name} {link}");
                links.extend(links_in(attrs).map(line));
            })?);
        }
        lines.sort();
        Ok(lines)
    }
}

/// The line of an object: names as text, everything else in hex.
fn line(family: NfFamily, kind: &Kind, attrs: Attrs<'_>) -> String {
    let mut line = format!("{family} {}", kind.name);
    for attribute in kind.attributes {
        line.push(' ');
        if (kind.request, *attribute) == (NFT_MSG_GETRULE, NFTA_RULE_EXPRESSIONS) {
            let expressions = attrs.within(NFTA_RULE_EXPRESSIONS);
            for (_, bytes) in expressions.iter() {
                // What a counter has counted changes by itself.
                match Attrs::of(bytes).is_expression("counter") {
                    true => line.push_str("counter"),
                    false => line.push_str(&hex::encode(bytes)),
                }
            }
        } else {
            line.push_str(&readable(attrs.bytes(*attribute).unwrap_or_default()));
        }
    }
    line
}

/// A name that the kernel ends with a NUL as text, other bytes as hex.
fn readable(value: &[u8]) -> String {
    match value.split_last() {
        Some((0, name)) if !name.is_empty() && name.iter().all(u8::is_ascii_graphic) => {
            String::from_utf8_lossy(name).into_owned()
        }
        _ => hex::encode(value),
    }
}
