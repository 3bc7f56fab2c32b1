//! The tables of codes in docs/findings.md and docs/validate.md come from the code: `CNI_WRITE_PAGES=1`
//! writes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use cni_multi::commands::doctor::FAULTS;
use cni_multi::commands::fault::Fault;
use cni_multi::commands::validate;

/// Compares the body of the table below each heading that begins with this text.
fn assert_table(page: &str, heading: &str, rows: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap();
    let section = text.find(heading).unwrap_or_else(|| panic!("{page} has no {heading:?}"));
    let ruler = text[section..].find("\n|--").unwrap() + section + 1;
    let start = ruler + text[ruler..].find('\n').unwrap() + 1;
    let end = start + text[start..].find("\n\n").unwrap() + 1;
    if env::var_os("CNI_WRITE_PAGES").is_some() {
        let written = format!("{}{}{}", &text[..start], rows.concat(), &text[end..]);
        return fs::write(&path, written).unwrap();
    }
    assert_eq!(text[start..end], rows.concat(), "{page}: CNI_WRITE_PAGES=1 writes it");
}

#[test]
fn the_tables_of_codes_are_those_of_the_code() {
    for hundred in '1'..='6' {
        let of_hundred = |it: &&Fault| it.code.as_bytes()[1] == hundred as u8;
        let row = |it: &Fault| {
            let [code, severity, title] = [it.code, it.severity.word(), it.title];
            format!("| `{code}` | {severity} | {title} | {} | {} |\n", it.cause, it.fix)
        };
        let rows: Vec<String> = FAULTS.iter().filter(of_hundred).map(row).collect();
        assert_table("docs/findings.md", &format!("## D{hundred}xx"), &rows);
    }
    let row = |it: &Fault| format!("| `{}` | {} | {} |\n", it.code, it.severity.word(), it.title);
    let rows: Vec<String> = validate::FAULTS.iter().map(row).collect();
    assert_table("docs/validate.md", "## Findings", &rows);
}

#[test]
fn each_code_has_one_meaning_and_an_explanation() {
    let codes: Vec<&str> = FAULTS.iter().chain(&validate::FAULTS).map(|it| it.code).collect();
    assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), codes.len());
    assert!(
        FAULTS.is_sorted_by_key(|it| it.code) && validate::FAULTS.is_sorted_by_key(|it| it.code)
    );
    assert!(FAULTS.iter().all(|it| !it.cause.is_empty() && !it.fix.is_empty()));
}
