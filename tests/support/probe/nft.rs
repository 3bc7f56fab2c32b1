//! Facts of nftables: tables, chains, rules, sets and their elements, without handles, counters and
//! timers.

use super::Detail;
use super::dump::{Socket, attribute, attributes, show, show_without};

const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const GET_SET: u16 = SUBSYSTEM | 10;
const GET_ELEMENT: u16 = SUBSYSTEM | 13;
const GET_OBJECT: u16 = SUBSYSTEM | 19;
const GET_FLOWTABLE: u16 = SUBSYSTEM | 23;

/// The size of nfgenmsg, which precedes the attributes.
const HEADER: usize = 4;

pub fn facts(socket: &Socket, detail: Detail) -> Vec<String> {
    let all = |kind, what, without: &[u16]| -> Vec<String> {
        let show = |message: &Vec<u8>| {
            format!(
                "nft {what} {}{}",
                message[0],
                show_without(&attributes(message, HEADER), without)
            )
        };
        socket.dump(kind, &[0; HEADER]).iter().map(show).collect()
    };
    let mut facts = all(GET_TABLE, "table", &[3, 4]);
    facts.extend(all(GET_CHAIN, "chain", &[2, 6, 8]));
    facts.extend(all(
        GET_OBJECT,
        "object",
        if detail == Detail::States { &[5, 6] } else { &[4, 5, 6] },
    ));
    facts.extend(all(GET_FLOWTABLE, "flowtable", &[4, 5]));
    facts.extend(socket.dump(GET_RULE, &[0; HEADER]).iter().map(|rule| rule_fact(rule, detail)));
    for set in socket.dump(GET_SET, &[0; HEADER]) {
        facts.push(format!(
            "nft set {}{}",
            set[0],
            show_without(&attributes(&set, HEADER), &[10, 16, 20])
        ));
        facts.extend(element_facts(socket, &set, detail));
    }
    facts
}

/// A rule's table and chain, and its expressions.
fn rule_fact(rule: &[u8], detail: Detail) -> String {
    const HANDLE: u16 = 3;
    const EXPRESSIONS: u16 = 4;
    const POSITION: u16 = 6;
    let attributes = attributes(rule, HEADER);
    let mut fact = format!(
        "nft rule {}{}",
        rule[0],
        show_without(&attributes, &[HANDLE, EXPRESSIONS, POSITION])
    );
    let expressions = attributes.iter().filter(|(kind, _)| *kind == EXPRESSIONS);
    expressions.for_each(|(_, value)| fact += &show_expressions(value, detail));
    fact
}

/// An expression that counts or keeps state is shown by its name only; `Detail::States` shows all but the counts of
/// packets.
fn show_expressions(list: &[u8], detail: Detail) -> String {
    const COUNTS: [&str; 2] = ["counter", "last"];
    const KEEPS: [&str; 3] = ["quota", "limit", "connlimit"];
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let mut text = String::new();
    for (_, expression) in attributes(list, 0) {
        let name = attribute(expression, 0, NAME).map(show).unwrap_or_default();
        let keeps = detail == Detail::Lasting && KEEPS.contains(&name.as_str());
        let counts = COUNTS.contains(&name.as_str()) || keeps;
        let data = attribute(expression, 0, DATA).filter(|_| !counts).map(show).unwrap_or_default();
        text += &format!(" {name}({data})");
    }
    text
}

fn element_facts(socket: &Socket, set: &[u8], detail: Detail) -> Vec<String> {
    const TABLE: u16 = 1;
    const NAME: u16 = 2;
    const ELEMENTS: u16 = 3;
    // Expiry, counters, and padding.
    let passing: &[u16] = if detail == Detail::States { &[5, 8] } else { &[5, 7, 8, 11] };
    let of = |kind| attribute(set, HEADER, kind).unwrap_or_default();
    let mut request = vec![set[0], 0, 0, 0];
    for (kind, value) in [(TABLE, of(TABLE)), (NAME, of(NAME))] {
        request.extend((value.len() as u16 + 4).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(value);
        request.resize(request.len().next_multiple_of(4), 0);
    }
    let title = format!("nft element {} {} {}", set[0], show(of(TABLE)), show(of(NAME)));
    let mut facts = vec![];
    for message in socket.dump(GET_ELEMENT, &request) {
        for (_, element) in attributes(attribute(&message, HEADER, ELEMENTS).unwrap_or_default(), 0)
        {
            facts.push(format!("{title}{}", show_without(&attributes(element, 0), passing)));
        }
    }
    facts
}
