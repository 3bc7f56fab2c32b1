//! Tests that are named elsewhere exist: those that `tests/run` picks, and those of the pages.

use std::process::Command;

use crate::docs::{Page, code_spans};
use crate::layers::root;

/// The lines that a shell function of tests/tiers/cargo.sh prints.
fn lines_of(function: &str) -> Vec<String> {
    let script = format!(". tests/tiers/cargo.sh; {function}");
    let output = Command::new("bash").args(["-c", &script]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The names of all integration tests.
fn all_tests() -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn each_name_that_tests_run_picks_is_part_of_one() {
    let tests = all_tests();
    let names = lines_of("ordinary_tests");
    assert!(names.len() > 30, "{names:?}");
    for name in names.iter().filter(|name| *name != "--skip") {
        assert!(tests.iter().any(|test| test.contains(name)), "{name} is part of none");
    }
}

/// In code spans, and in what a block `sh run by MODULE::NAME` says.
#[test]
fn each_test_that_a_page_names_exists() {
    let tests = all_tests();
    let is_module = |word: &str| tests.iter().any(|test| test.split("::").next() == Some(word));
    let mut found = 0;
    for page in Page::all() {
        let runs = page.blocks().into_iter();
        let runs = runs.filter_map(|it| it.info.strip_prefix("sh run by ").map(str::to_owned));
        for name in code_spans(&page.prose()).into_iter().chain(runs) {
            if name.split_once("::").is_some_and(|(module, _)| is_module(module)) {
                assert!(tests.iter().any(|test| test.contains(&name)), "{}: no {name}", page.path);
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found} names");
}
