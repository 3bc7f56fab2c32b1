//! `doctor --explain CODE`: what docs/findings.md says about a code.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::error::{Error, Result};

/// The page, which is the only copy of these texts.
const PAGE: &str = include_str!("../../../docs/findings.md");

/// Heading, cause and fix of the code, followed by those of the codes that its row refers to.
pub fn explain(code: &str) -> Result<String> {
    let code = code.to_ascii_uppercase();
    let Some(row) = row(&code) else {
        let problem = format!("no finding has the code {code:?}");
        let codes = "codes are D and three digits, such as D331; docs/findings.md lists them";
        return Err(Error::config("--explain", problem).with_details(codes));
    };
    let is_code = |word: &&str| word.len() == code.len() && *word != code && word.starts_with('D');
    let words = row.split(|letter: char| !letter.is_ascii_alphanumeric());
    let others: BTreeSet<&str> = words.filter(is_code).filter_map(self::row).collect();
    let mut text = String::new();
    for row in [row].into_iter().chain(others) {
        let cells: Vec<String> = row.trim_matches(['|', ' ']).split(" | ").map(plain).collect();
        let [code, severity, title, cause, fix] = &cells[..] else { continue }; // none: see the test
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = write!(text, "{gap}{code}  {severity}  {title}\ncause: {cause}\nfix: {fix}\n");
    }
    Ok(text)
}

/// The row of the table that begins with the code.
fn row(code: &str) -> Option<&'static str> {
    let start = format!("| `{code}` |");
    PAGE.lines().find(|line| line.starts_with(&start))
}

/// The text without marks of code and targets of links.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    (text + rest).replace(['`', '['], "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::catalogue;

    #[test]
    fn a_row_is_explained_in_plain_text() {
        let text = explain("d221").unwrap();
        let expected = "D221  error  IPv6 forwarding is off\ncause: As D220.\nfix: As D220.\n\n\
            D220  error  IPv4 forwarding is off\n";
        assert!(text.starts_with(expected) && text.lines().count() == 7, "{text}");
        assert!(explain("D401").unwrap().ends_with("Add firewall, or accept the network.\n"));
    }

    #[test]
    fn every_finding_is_explained() {
        for [code, severity, title] in catalogue() {
            let text = explain(code).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("{code}  {severity}  {title}"));
            assert!(lines[1].starts_with("cause: ") && lines[2].starts_with("fix: "), "{text}");
            assert!(!text.contains(['`', '[', ']']), "{text}");
        }
    }
}
