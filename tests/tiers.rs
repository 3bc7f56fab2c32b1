//! The tests that `tests/run` picks exist; what it started ends with it.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::layers::root;
use crate::support::scratch::Scratch;

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

/// Otherwise the fuzz tier compiles every dependency once more.
#[test]
fn the_fuzz_targets_are_built_with_the_profile_of_the_tests() {
    let profile = |manifest: &str| -> Vec<String> {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let lines = text.lines().skip_while(|line| *line != "[profile.dev]");
        let end = |line: &&str| !line.starts_with('[') || line.starts_with("[profile.dev");
        let settings =
            lines.take_while(end).filter(|line| !line.is_empty() && !line.starts_with('#'));
        settings.map(str::to_owned).collect()
    };
    assert_eq!(profile("fuzz/Cargo.toml"), profile("Cargo.toml"));
    assert_ne!(profile("Cargo.toml"), <Vec<String>>::new());
}

/// A tier has a process group of its own, and what it starts may have another one.
#[test]
fn what_a_tier_started_ends_with_the_script() {
    let scratch = Scratch::new();
    let mark = scratch.join("sleeps");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let script = format!(
            "logs={}; . tests/tiers/report.sh; trap 'end_all 7' HUP INT TERM
            limited 50 tier sh -c 'setsid sleep 40 & echo $! >{}; exec timeout 30 sleep 30'",
            scratch.text(),
            mark.display()
        );
        // No trap gets a signal that was ignored before, as nohup does.
        let bash = ["--default-signal", "bash", "-c", &script];
        let mut run = Command::new("env").args(bash).current_dir(root()).spawn().unwrap();
        let text = || fs::read_to_string(&mark).unwrap_or_default();
        for _ in 0..500 {
            if text().ends_with('\n') {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        let sleeper = Pid::from_raw(text().trim().parse().unwrap());
        kill(Pid::from_raw(run.id() as i32), signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(7));
        assert!(kill(sleeper, None).is_err(), "{signal}: it lives");
        fs::remove_file(&mark).unwrap();
    }
}
