//! The tables of unsafe code and of executed programs in SECURITY.md match the source.

use std::collections::BTreeSet;

use crate::docs::{Page, code_spans};
use crate::layers::{after, code, root, sources};

/// The first column of a table of SECURITY.md.
fn files_of(chapter: &str) -> BTreeSet<String> {
    let rows = Page::read("SECURITY.md").rows(Some(chapter));
    rows.iter().flat_map(|row| code_spans(&row[0])).collect()
}

/// The files of src where the code outside of tests meets the condition.
fn files_where(is_so: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let without_tests = |text: &str| {
        let at = text
            .find("\n#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod ")
            .or(text.find("\n#[cfg(test)]\nmod "));
        code(&text[..at.unwrap_or(text.len())])
    };
    let found =
        sources(&root().join("src")).into_iter().filter(|(_, text)| is_so(&without_tests(text)));
    found.map(|(path, _)| format!("src/{path}")).collect()
}

fn is_unsafe(code: &str) -> bool {
    after(code, "unsafe").next().is_some()
}

/// clap's `Command` starts no program, and a `Child` alone was started elsewhere.
fn executes(code: &str) -> bool {
    let imports = code.lines().filter(|line| line.starts_with("use std::process::"));
    let is_command = |text: &str| after(text, "Command").next().is_some();
    imports.chain(code.lines().filter(|line| line.contains("process::Command"))).any(is_command)
        || ["execv", "execve", "execvp", "fexecve", "posix_spawn", "fork", "vfork"]
            .iter()
            .any(|word| after(code, word).any(|rest| rest.starts_with('(')))
}

#[test]
fn the_table_has_every_file_with_unsafe_code() {
    assert_eq!(files_of("Unsafe code"), files_where(is_unsafe));
}

#[test]
fn the_table_has_every_place_that_executes_a_program() {
    assert_eq!(files_of("Programs"), files_where(executes));
}

/// A check that cannot fail proves nothing.
#[test]
fn what_is_looked_for_would_be_found() {
    for bad in [
        "use std::process::{Child, Command};",
        "let a = std::process::Command::new(b);",
        "libc::execve(a, b, c)",
    ] {
        assert!(executes(bad), "{bad}");
    }
    for good in [
        "use clap::Command;",
        "use std::process::Child;",
        "Error::system(code, what, errno)",
        "self.fork",
    ] {
        assert!(!executes(good), "{good}");
    }
    assert!(is_unsafe("unsafe { f() }") && !is_unsafe("let unsafe_code = 1;"));
}
