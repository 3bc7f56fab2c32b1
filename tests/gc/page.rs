//! What the tables of docs/status-and-gc.md say of each plugin is what the tests assert.

use std::fs;
use std::path::Path;

use super::subjects::SUBJECTS;
use crate::docs::coverage::Coverage;
use crate::docs::{Page, code_spans, plugins};

fn page() -> Page {
    Page::read("docs/status-and-gc.md")
}

fn link_to(plugin: &str) -> String {
    format!("[{plugin}]({plugin}.md)")
}

#[test]
fn each_table_names_every_plugin_and_each_plugin_has_its_tests() {
    let expected: Vec<String> = plugins().iter().map(|[name, ..]| link_to(name)).collect();
    let coverage = Coverage::of(&page());
    for chapter in ["STATUS", "GC"] {
        let mut named: Vec<String> =
            page().rows(Some(chapter)).into_iter().map(|row| row[0].clone()).collect();
        named.dedup();
        assert_eq!(named, expected, "{chapter}");
        for plugin in named {
            assert!(!coverage.tests(chapter, &plugin).is_empty(), "{chapter} of {plugin}: no test");
        }
    }
}

/// Every STATUS text in a row is asserted by one of the row's tests; `…` stands for a part that
/// depends on the host.
#[test]
fn the_texts_of_status_are_asserted() {
    let coverage = Coverage::of(&page());
    for row in page().rows(Some("STATUS")) {
        let tests = coverage.tests("STATUS", &row[0]);
        let sources: Vec<String> = tests.iter().map(|test| source_of(test)).collect();
        for text in code_spans(&row[2]).iter().filter(|text| text.contains('…')) {
            let is_in = |source: &&String| text.split('…').all(|part| source.contains(part.trim()));
            assert!(
                sources.iter().any(|source| is_in(&source)),
                "no test of {} asserts {text:?}",
                row[0]
            );
        }
    }
}

fn source_of(test: &str) -> String {
    let module = test.rsplit_once("::").unwrap().0.trim_end_matches("::tests");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let base = if module.starts_with("src::") { root.to_owned() } else { root.join("tests") };
    let base = base.join(module.replace("::", "/"));
    let files = [base.with_extension("rs"), base.join("mod.rs"), base.join("tests.rs")];
    let read: String = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    read.replace("\\\"", "\"")
}

/// What the rows list as removed by GC is what the cases find before GC and not after.
#[test]
fn what_gc_removes_is_what_the_cases_look_for() {
    let rows = page().rows(Some("GC"));
    for [plugin, ..] in &plugins() {
        let removed = SUBJECTS
            .iter()
            .filter(|subject| subject.plugin == plugin)
            .flat_map(|subject| subject.removes);
        let mut words: Vec<&str> = vec![];
        removed.for_each(|kept| words.extend((!words.contains(&kept.0)).then_some(kept.0)));
        let expected = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        let row = rows.iter().find(|row| row[0] == link_to(plugin)).unwrap();
        assert_eq!(row[1], expected, "{plugin}");
    }
}
