//! Test names have the form `subject_condition_expectation` and fit on one line of a report.

use super::{root, sources};

const LONGEST: usize = 60;

/// The names of the functions marked `#[test]`.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let marked = text.split("#[test]\n").skip(1);
    marked.filter_map(|rest| rest.split_once("fn ")?.1.split('(').next())
}

fn long_names(text: &str) -> Vec<&str> {
    tests(text).filter(|name| name.len() > LONGEST).collect()
}

#[test]
fn test_names_have_at_most_60_characters() {
    let mut long = vec![];
    for folder in ["src", "tests", "fuzz/src"] {
        for (path, text) in sources(&root().join(folder)) {
            long.extend(
                long_names(&text).into_iter().map(|name| format!("{folder}/{path}: {name}")),
            );
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Proves that the rule can fail.
#[test]
fn a_name_of_61_characters_is_found() {
    let [longest, longer] = [LONGEST, LONGEST + 1].map(|length| "x".repeat(length));
    let text = format!(
        "    #[test]\n    fn {longest}() {{}}\n#[test]\n#[ignore = \"slow\"]\nfn {longer}() {{}}\n\
         fn no_test_{longer}() {{}}\n"
    );
    assert_eq!(long_names(&text), [longer]);
}
