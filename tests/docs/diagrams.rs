//! Diagrams of the pages: blocks `mermaid`. Viewers such as GitHub's draw them; what is checked
//! here is what breaks one most often when it is edited by hand.

use std::collections::BTreeSet;
use std::fs;

use super::{Block, Page, root};

/// The types of diagrams that the pages use, as the first word of a block.
const TYPES: [&str; 3] = ["flowchart", "sequenceDiagram", "stateDiagram-v2"];
/// Lines that open a part, and `end` closes the last one.
const OPENERS: [&str; 8] = ["subgraph", "alt", "opt", "loop", "par", "critical", "rect", "box"];

fn diagrams(page: &Page) -> Vec<Block> {
    page.blocks().into_iter().filter(|block| block.info == "mermaid").collect()
}

/// The first mistake of a diagram.
fn mistake(text: &str) -> Option<String> {
    let first = text.split_whitespace().next().unwrap_or_default();
    if !TYPES.contains(&first) {
        return Some(format!("{first:?} is no type of diagram, expected one of {TYPES:?}"));
    }
    let mut open = 0;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let word = line.split_whitespace().next().unwrap_or_default();
        // A note of one line has its text after a colon.
        let opens = OPENERS.contains(&word) || word == "note" && !line.contains(':');
        open += i32::from(opens) - i32::from(word == "end");
        if open < 0 {
            return Some(format!("{line:?} closes nothing"));
        }
        if let Some(reason) = unbalanced(line) {
            return Some(format!("{line:?}: {reason}"));
        }
    }
    (open > 0).then(|| format!("{open} parts have no end"))
}

/// Why brackets and quotes of a line do not match. Text in quotes may have any brackets.
fn unbalanced(line: &str) -> Option<String> {
    let (mut open, mut quoted) = (vec![], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => (),
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(c) => {
                return Some(format!("{c:?} closes nothing"));
            }
            _ => (),
        }
    }
    (quoted || !open.is_empty()).then(|| "a quote or a bracket is not closed".to_owned())
}

#[test]
fn every_diagram_has_a_known_type_and_is_balanced() {
    for page in Page::all() {
        for block in diagrams(&page) {
            if let Some(mistake) = mistake(&block.text) {
                panic!("{}:{}: {mistake}", page.path, block.line);
            }
        }
    }
}

#[test]
fn the_pages_that_need_a_diagram_have_it() {
    for (path, expected) in
        [("docs/architecture.md", 3), ("docs/runtimes.md", 1), ("docs/upgrade.md", 1)]
    {
        assert_eq!(diagrams(&Page::read(path)).len(), expected, "{path}");
    }
}

/// A base chain: table, hook, name and priority.
type Place = (String, String, String, i32);

/// The base chains of our tables in `text`, which has the priority, the family, the table and the
/// chain on a line, below the hook.
fn pictured(text: &str) -> BTreeSet<Place> {
    let (mut hook, mut found) = ("", BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [first, ..] if !line.starts_with(' ') => hook = first.trim_end_matches(','),
            [priority, _, table, chain, ..] if table.starts_with("cni_multi_") => {
                let priority: i32 = priority.parse().unwrap();
                found.insert((table.to_owned(), hook.to_owned(), chain.to_owned(), priority));
            }
            _ => (),
        }
    }
    found
}

/// The hooks and priorities in a source file; the chain has its hook's name, but for portmap's
/// guard.
fn hooked(source: &str) -> BTreeSet<Place> {
    const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
    let (_, named) = source.split_once("name: \"cni_multi_").unwrap();
    let table = format!("cni_multi_{}", named.split('"').next().unwrap());
    let place = |text: &str| {
        let (kind, rest) = text.split_once(", number: ").unwrap();
        let (number, rest) = rest.split_once(", priority: ").unwrap();
        let priority: i32 = rest.split(' ').next().unwrap().parse().unwrap();
        let hook = HOOKS[number.parse::<usize>().unwrap()];
        let is_guard = table.ends_with("portmap") && kind == "\"filter\"";
        let chain = if is_guard { "guard" } else { hook };
        assert!(source.contains(&format!(": &str = \"{chain}\";")), "{table} has no {chain}");
        (table.clone(), hook.to_owned(), chain.to_owned(), priority)
    };
    source.split("Hook { kind: ").skip(1).map(place).collect()
}

#[test]
fn the_way_of_a_packet_has_the_base_chains_of_the_code() {
    let mut expected = BTreeSet::new();
    for file in [
        "plugins/meta/firewall/table.rs",
        "plugins/meta/portmap/nft.rs",
        "steps/fastpath.rs",
        "steps/masquerade/nft.rs",
        "steps/spoofcheck.rs",
    ] {
        expected.extend(hooked(&fs::read_to_string(root().join("src").join(file)).unwrap()));
    }
    let page = Page::read("docs/troubleshooting.md");
    let picture = page.blocks().into_iter().find(|block| block.text.starts_with("ingress\n"));
    let mut found = pictured(&picture.unwrap().text);
    found.retain(|(_, hook, ..)| hook != "ingress"); // a flowtable
    assert_eq!(found, expected);
}

#[test]
fn a_diagram_with_a_mistake_is_found() {
    for (text, expected) in [
        ("pie\n", "is no type of diagram"),
        ("flowchart LR\n subgraph a\n", "1 parts have no end"),
        ("flowchart LR\n end\n", "closes nothing"),
        ("flowchart LR\n a[b --- c\n", "is not closed"),
        ("flowchart LR\n a(b] --- c\n", "closes nothing"),
    ] {
        let found = mistake(text).unwrap_or_default();
        assert!(found.contains(expected), "{text:?}: {found:?}");
    }
    assert_eq!(mistake("flowchart LR\n subgraph a\n b[\"(c\"]\n end\n"), None);
}
