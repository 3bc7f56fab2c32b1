//! Diagrams of the pages: blocks `mermaid`. Viewers such as GitHub's draw them; what is checked
//! here is what breaks one most often when it is edited by hand.

use super::{Block, Page};

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
    for (path, expected) in [("docs/architecture.md", 3), ("docs/upgrade.md", 1)] {
        assert_eq!(diagrams(&Page::read(path)).len(), expected, "{path}");
    }
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
