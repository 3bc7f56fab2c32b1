//! Tests that pages rely on: every row of docs/differences.md and docs/security-tests.md has its
//! tests, and every test that a page names exists.

use std::collections::BTreeSet;
use std::fs;

use super::{Page, code_spans, root};

/// The tests of a source file: functions below `#[test]` and those that `peers!` makes tests of.
fn tests_in(source: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        match line.strip_prefix("fn ").filter(|_| is_test) {
            Some(rest) => {
                found.insert(rest.split('(').next().unwrap().to_owned());
                is_test = false;
            }
            None => is_test = line == "#[test]" || is_test && line.starts_with("#["),
        }
    }
    for list in source.split("peers! {").skip(1) {
        let names = list.split('}').next().unwrap().split(',').map(|name| name.trim().to_owned());
        found.extend(names.filter(|name| !name.is_empty()));
    }
    found
}

/// `differences::NAME`, `protocol::args::NAME`: the module's path below `tests`, or below `src`
/// where it begins with that; `packages::NAME` is in the script.
pub fn is_test(path: &str) -> bool {
    let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
    if module == "packages" {
        let script = fs::read_to_string(root().join("tests/packages")).unwrap();
        return script.contains(&format!("\ntest_{name}() "));
    }
    if module == "runtimes" {
        return root().join("tests/runtimes").join(name).exists();
    }
    let module = module.trim_end_matches("::tests");
    let dir = if module.starts_with("src::") { root() } else { root().join("tests") };
    let base = dir.join(module.replace("::", "/"));
    let candidates = [base.with_extension("rs"), base.join("mod.rs"), base.join("tests.rs")];
    candidates
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|source| tests_in(&source).contains(name))
}

#[test]
fn every_difference_has_its_test_and_every_test_its_difference() {
    let page = Page::read("docs/differences.md");
    let mut named = BTreeSet::new();
    for row in page.rows(None) {
        let tests = code_spans(row.last().unwrap());
        assert!(!tests.is_empty(), "no test: {row:?}");
        assert!(
            row.len() == 5 && row.iter().all(|cell| !cell.is_empty()),
            "an empty cell, such as the reason: {row:?}"
        );
        for test in tests {
            assert!(is_test(&test), "there is no test {test}: {row:?}");
            named.insert(test);
        }
    }
    let source = fs::read_to_string(root().join("tests/differences.rs")).unwrap();
    let missing: Vec<String> = tests_in(&source)
        .into_iter()
        .map(|name| format!("differences::{name}"))
        .filter(|path| !named.contains(path))
        .collect();
    assert!(missing.is_empty(), "docs/differences.md has no row for {missing:?}");
}

/// What was tried is in the page, and what is in the page was tried.
#[test]
fn every_attack_of_the_page_has_its_test_and_every_hostile_test_is_in_the_page() {
    let mut named = BTreeSet::new();
    for row in Page::read("docs/security-tests.md").rows(None) {
        let tests = code_spans(row.last().unwrap());
        assert!(!tests.is_empty() && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        for test in tests {
            assert!(is_test(&test), "there is no test {test}: {row:?}");
            named.insert(test);
        }
    }
    let missing: Vec<String> =
        tests_below("hostile").into_iter().filter(|test| !named.contains(test)).collect();
    assert!(missing.is_empty(), "docs/security-tests.md has no row for {missing:?}");
}

/// The tests of a module and of those in it.
fn tests_below(module: &str) -> Vec<String> {
    let dir = root().join("tests").join(module.replace("::", "/"));
    let mut found = vec![];
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        let path = match name.strip_suffix(".rs") {
            None => {
                found.extend(tests_below(&format!("{module}::{name}")));
                continue;
            }
            Some("mod") => module.to_owned(),
            Some(name) => format!("{module}::{name}"),
        };
        let source = fs::read_to_string(entry.path()).unwrap();
        found.extend(tests_in(&source).iter().map(|test| format!("{path}::{test}")));
    }
    found
}

/// Tests that are named elsewhere exist as well.
#[test]
fn tests_that_the_pages_name_exist() {
    let modules = [
        "differences::",
        "gc::",
        "status::",
        "upgrade::",
        "schema::",
        "validate::",
        "runtime::",
        "install::",
        "hostile::",
        "hostile_host::",
        "packages::",
        "parallel::",
        "plugins::",
        "protocol::",
        "security::",
        "traces::",
        "callers::",
        "src::",
    ];
    for page in Page::all() {
        let spans = code_spans(&page.prose());
        for span in spans
            .iter()
            .filter(|span| modules.iter().any(|module| span.starts_with(module) && span != module))
        {
            assert!(is_test(span), "{}: there is no test {span}", page.path);
        }
    }
}
