//! What docs/status-and-gc.md says that GC removes is what the cases look for.

use std::fmt::Write as _;

use super::subjects::SUBJECTS;
use crate::docs::{Page, plugins};

fn link_to(plugin: &str) -> String {
    format!("[{plugin}]({plugin}.md)")
}

#[test]
fn the_table_of_status_names_every_plugin() {
    let rows = Page::read("docs/status-and-gc.md").rows(Some("STATUS"));
    let named: Vec<String> = rows.into_iter().map(|row| row[0].clone()).collect();
    let expected: Vec<String> = plugins().iter().map(|[name, ..]| link_to(name)).collect();
    assert_eq!(named, expected);
}

/// The cases find this before GC and not after.
#[test]
fn what_gc_removes_is_what_the_cases_look_for() {
    let mut table = "| plugin | GC removes |\n|---|---|\n".to_owned();
    for [plugin, ..] in &plugins() {
        let removed = SUBJECTS
            .iter()
            .filter(|subject| subject.plugin == plugin)
            .flat_map(|subject| subject.removes);
        let mut words: Vec<&str> = vec![];
        removed.for_each(|kept| words.extend((!words.contains(&kept.0)).then_some(kept.0)));
        let words = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        writeln!(table, "| {} | {words} |", link_to(plugin)).unwrap();
    }
    Page::read("docs/status-and-gc.md").assert_generated("gc", &table);
}
