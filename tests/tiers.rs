//! The test names that `tests/run` leaves to `--all`, and those that `--quick` picks, exist.

use std::process::Command;

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
fn each_name_in_a_list_of_tests_begins_one() {
    let tests = all_tests();
    for list in ["long_tests", "quick_tests"] {
        let names = lines_of(list);
        assert!(names.len() > 3, "{list}: {names:?}");
        for name in names {
            assert!(tests.iter().any(|test| test.starts_with(&name)), "{list}: {name} begins none");
        }
    }
}

/// libtest's `--skip` matches anywhere in a name.
#[test]
fn a_name_that_is_skipped_is_in_no_other_test() {
    for name in lines_of("long_tests") {
        let others = all_tests().into_iter().filter(|test| !test.starts_with(&name));
        let hit: Vec<String> = others.filter(|test| test.contains(&name)).collect();
        assert_eq!(hit, [""; 0], "{name}");
    }
}
