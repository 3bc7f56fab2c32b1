//! docs/findings.md has every finding, and no other.

use cni_multi::commands::doctor::catalogue;

use crate::docs::Page;

#[test]
fn the_page_has_every_finding() {
    let page = Page::read("docs/findings.md");
    let rows = page.rows(None);
    let said: Vec<[&str; 3]> = rows
        .iter()
        .map(|row| [row[0].trim_matches('`'), row[1].as_str(), row[2].as_str()])
        .collect();
    let mut known = catalogue();
    known.sort_unstable();
    assert_eq!(said, known);
    assert!(known.windows(2).all(|two| two[0][0] != two[1][0]), "a code has two meanings");
    assert!(rows.iter().all(|row| row.len() == 5 && !row[3].is_empty() && !row[4].is_empty()));
}
