//! The command lines of the repository's scripts: `--help`, and words that a script does not know.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::layers::root;

/// Scripts that no person calls, and what calls them.
const CALLED_BY_PROGRAMS: [(&str, &str); 7] = [
    ("packaging/deb/", "dpkg"),
    ("tests/fixtures/", "validate, as plugins"),
    ("tests/reference-suites/prebuilt", "suites, as `go`"),
    ("tests/vm/boot", "tests/vm/init"),
    ("tests/vm/booted.d/", "tests/vm/booted, in the virtual machine"),
    ("tests/vm/init", "the kernel of the virtual machine"),
    ("tests/vm/start", "tests/vm/init"),
];

/// The scripts that people call, by their paths in the repository.
fn scripts() -> Vec<String> {
    let mut found = Vec::new();
    for place in ["install.sh", ".ci", "packaging", "tests", "fuzz/run"] {
        collect(&root().join(place), &mut found);
    }
    found.retain(|script| {
        !CALLED_BY_PROGRAMS.iter().any(|(beginning, _)| script.starts_with(beginning))
    });
    found.sort();
    found
}

fn collect(path: &Path, found: &mut Vec<String>) {
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), found);
        }
    } else if fs::read(path).is_ok_and(|content| is_script(&content)) {
        found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
    }
}

fn is_script(content: &[u8]) -> bool {
    content.starts_with(b"#!/bin/sh\n") || content.starts_with(b"#!/bin/bash\n")
}

/// Calls a script from another directory, as a path.
fn call(script: &str, word: &str) -> Output {
    let path: PathBuf = root().join(script);
    Command::new(path).arg(word).current_dir("/").output().unwrap()
}

/// CI's script is a call of another one.
fn name_of(script: &str) -> &str {
    if script == ".ci/run" { "tests/run" } else { script }
}

#[track_caller]
fn assert_refused(script: &str, word: &str, expected: &str) {
    let output = call(script, word);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, format!("{}: {word} {expected}\n", name_of(script)));
    assert_eq!((output.status.code(), output.stdout), (Some(2), vec![]), "{script} {word}");
}

#[test]
fn every_script_refuses_an_unknown_option() {
    let scripts = scripts();
    assert!(scripts.len() > 20, "{scripts:?}");
    for script in scripts {
        assert_refused(&script, "--hepl", "is not an option; did you mean --help?");
        let name = name_of(&script).to_owned();
        assert_refused(
            &script,
            "--xyzzy",
            &format!("is not an option; {name} --help lists what is"),
        );
    }
}

#[test]
fn help_is_the_comment_that_a_script_begins_with() {
    for script in scripts() {
        let output = call(&script, "--help");
        let (name, said) = (name_of(&script), String::from_utf8(output.stdout).unwrap());
        assert_eq!(output.status.code(), Some(0), "{script}");
        let source = fs::read_to_string(root().join(name)).unwrap();
        let head = source.lines().skip(1).take_while(|line| line.starts_with('#'));
        let head = head.filter(|line| !line.starts_with("# shellcheck"));
        let text = head.map(|line| line.strip_prefix("# ").unwrap_or("").to_owned() + "\n");
        assert_eq!(said, text.collect::<String>(), "{script}");
        assert!(said.starts_with(name) && output.stderr.is_empty(), "{script}: {said}");
    }
}
