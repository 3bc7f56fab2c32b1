//! The test names that `tests/run` leaves to `--all`, and those that `--quick` picks, exist; what `tests/run` started ends
//! with it.

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
        let mut run =
            Command::new("bash").args(["-c", &script]).current_dir(root()).spawn().unwrap();
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
