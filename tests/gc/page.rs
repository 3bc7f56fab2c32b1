//! docs/status-and-gc.md: one table, each line of which is tested.

use std::fs;
use std::path::Path;

use super::subjects::SUBJECTS;
use crate::docs::coverage::is_test;
use crate::docs::{Page, code_spans, plugins};

fn rows() -> Vec<Vec<String>> {
    let rows = Page::read("docs/status-and-gc.md").rows(None);
    rows.into_iter().filter(|row| row.len() == 5).collect()
}

#[test]
fn the_page_has_a_row_for_each_plugin_and_each_row_its_tests() {
    let expected: Vec<String> =
        plugins().into_iter().map(|[name, ..]| format!("[{name}]({name}.md)")).collect();
    assert_eq!(rows().iter().map(|row| row[0].clone()).collect::<Vec<_>>(), expected);
    for row in rows() {
        for tests in [code_spans(&row[2]), code_spans(&row[4])] {
            assert!(!tests.is_empty(), "no test: {row:?}");
            tests
                .iter()
                .for_each(|test| assert!(is_test(test), "there is no test {test}: {row:?}"));
        }
    }
}

/// What a row says that STATUS says, one of its tests asserts; `…` is whatever the host makes of
/// it.
#[test]
fn the_texts_of_status_are_asserted() {
    for row in rows() {
        let sources: Vec<String> = code_spans(&row[2]).iter().map(|test| source_of(test)).collect();
        for text in code_spans(&row[1]).iter().filter(|text| text.contains('…')) {
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

/// What a row says that GC removes is what the cases find before GC, and no more after.
#[test]
fn what_gc_removes_is_what_the_cases_look_for() {
    for ([plugin, ..], row) in plugins().iter().zip(rows()) {
        let kept = SUBJECTS
            .iter()
            .filter(|subject| subject.plugin == plugin)
            .flat_map(|subject| subject.removes);
        let mut words: Vec<&str> = vec![];
        kept.for_each(|kept| words.extend((!words.contains(&kept.0)).then_some(kept.0)));
        let expected = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        assert_eq!(row[3].split(';').next().unwrap(), expected, "{plugin}");
    }
}
