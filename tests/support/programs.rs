//! The programs that tests start: their paths, and what a test does where one is missing, or a feature of the kernel.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The path of a program of PATH. If a name has no directory and the child gets a PATH, std::process uses fork
/// instead of `posix_spawn`. A fork copies the page tables of this process, which takes longer than most calls
/// of a plugin.
pub fn located(name: &str) -> PathBuf {
    if name.contains('/') {
        return name.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| Path::new(name).to_owned())
}

/// Reports that a test, or one of its cases, did not run, with the reason: to stderr, and to the file `CNI_SKIP_LOG`,
/// which tests/run reads.
pub fn skip(needs: &str) {
    let line = format!("SKIP {}: needs {needs}{}\n", super::case::test(), super::case::current());
    let mut stderr = std::io::stderr();
    stderr.write_all(line.as_bytes()).unwrap(); // eprintln! output is shown for failed tests only
    if let Some(log) = std::env::var_os("CNI_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        file.write_all(line.as_bytes()).unwrap(); // one call: other tests skip at the same time
    }
}

/// Whether programs are installed; if one is not, the test skips. The virtual machine has the same
/// programs as this one, so `tests/tiers/vm.sh` does not try there.
pub fn has_programs(names: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    match names.iter().find(|name| !is_there(name)) {
        Some(missing) => skip(&format!("program {missing}")),
        None => return true,
    }
    false
}

/// Ends the test where a program is missing. It fails, and `tests/run` counts it as one that skipped.
#[track_caller]
pub fn need_programs(names: &[&str]) {
    assert!(has_programs(names), "one of {names:?} is not in PATH");
}

/// The same for a program that a shell did not find, in the words of dash or bash. One that is there the test hides.
#[track_caller]
pub fn need_what_a_shell_missed(stderr: &[u8]) {
    for line in String::from_utf8_lossy(stderr).lines() {
        let said = line.strip_suffix(": command not found").or(line.strip_suffix(": not found"));
        let Some(said) = said else { continue };
        need_programs(&[said.rsplit(": ").next().unwrap()]);
    }
}
