//! `cni-multi install` itself, and that install.sh does the same.

use super::place::{Place, write_script};
use crate::support::call;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The program that performs a step.
#[derive(Clone, Copy, Debug)]
enum By {
    Script,
    Binary,
}

/// A step on a directory that contains plugins of other vendors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Installs another cni-multi with one plugin name fewer and one more.
    Other,
    /// A package overwrites a link with its file.
    Foreign,
    Install,
    Rollback,
    Uninstall,
}
use Step::{Foreign, Install, Other, Rollback, Uninstall};

impl Place {
    /// The output of the last step, with the directory as `DIR`.
    #[track_caller]
    fn take(&self, step: Step, by: By) -> String {
        let binary = if step == Other { self.other("other") } else { call::binary() };
        let (script, command): (Vec<&str>, Vec<&str>) = match step {
            Foreign => {
                fs::remove_file(self.dir.join("bridge")).unwrap();
                write_script(&self.dir.join("bridge"), "echo a package upgrade");
                return String::new();
            }
            Install | Other => (vec!["--binary", binary.to_str().unwrap()], vec![]),
            Rollback => (vec!["--rollback"], vec!["--rollback"]),
            Uninstall => (vec!["--uninstall"], vec!["--uninstall"]),
        };
        let output = match by {
            By::Binary => self.command_of(&binary, &command),
            By::Script => self.run(&script),
        };
        assert!(output.status.success(), "{step:?} {by:?}: {output:?}");
        let text =
            String::from_utf8(output.stdout).unwrap().replace(self.dir.to_str().unwrap(), "DIR");
        text.lines().last().unwrap().to_owned()
    }
}

#[test]
fn binary_and_script_install_alike_and_undo_each_other() {
    let sequences: [&[Step]; 9] = [
        &[Install, Uninstall, Uninstall],
        &[Install, Rollback, Rollback],
        &[Install, Install, Uninstall],
        &[Other, Install, Rollback, Rollback, Uninstall],
        &[Other, Install, Rollback, Install, Rollback],
        &[Other, Install, Uninstall],
        &[Install, Foreign, Uninstall],
        &[Install, Foreign, Install, Uninstall],
        &[Other, Foreign, Install, Rollback],
    ];
    for steps in sequences {
        let ways = [
            [By::Script, By::Script],
            [By::Binary, By::Binary],
            [By::Script, By::Binary],
            [By::Binary, By::Script],
        ];
        let outcomes = ways.map(|way| {
            let place = Place::with_foreign_plugins();
            let by = way.iter().cycle();
            steps
                .iter()
                .zip(by)
                .map(|(step, by)| (place.take(*step, *by), place.snapshot()))
                .collect::<Vec<_>>()
        });
        for (way, outcome) in ways.iter().zip(&outcomes) {
            assert_eq!(outcome, &outcomes[0], "{steps:?} by {way:?}");
        }
    }
}

#[test]
fn taking_back_where_nothing_is_says_so_and_makes_nothing() {
    for arg in ["--rollback", "--uninstall"] {
        let place = Place::new();
        fs::remove_dir(&place.dir).unwrap();
        let (script, binary) = (place.run(&[arg]), place.command(&[arg]));
        assert!(script.status.success() && binary.status.success(), "{script:?} {binary:?}");
        assert_eq!(
            String::from_utf8(binary.stdout).unwrap(),
            String::from_utf8(script.stdout).unwrap()
        );
        assert!(!place.dir.exists());
    }
}

#[test]
fn binary_refuses_what_the_script_refuses_and_changes_nothing() {
    assert_refused(
        |place| fs::create_dir(place.dir.join("vlan")).unwrap(),
        &[],
        "vlan is a directory; nothing was changed",
    );
    assert_refused(
        |place| drop(place.install(&place.build("other"))),
        &["--rollback"],
        "no previous binary and no replaced plugins to go back to; --uninstall removes cni-multi",
    );
    // A previous binary that runs these lines for `list`.
    let previous = [
        ("exit 1", "does not run here; `cni-multi list` failed: exit status: 1"),
        ("echo bridge ; echo ../x", "is not cni-multi: `cni-multi list` printed \"../x\""),
        (
            "echo ../../etc/passwd",
            "is not cni-multi: `cni-multi list` printed \"../../etc/passwd\"",
        ),
        ("echo cni-multi", "is not cni-multi: `cni-multi list` printed \"cni-multi\""),
        ("echo .cni-multi", "is not cni-multi: `cni-multi list` printed \".cni-multi\""),
        (":", "is not cni-multi: `cni-multi list` printed nothing"),
    ];
    for (list, said) in previous {
        let prepare = |place: &Place| {
            place.install(&place.build("other"));
            fs::create_dir(place.dir.join(".cni-multi")).unwrap();
            write_script(&place.dir.join(".cni-multi/previous"), list);
        };
        assert_refused(prepare, &["--rollback"], &format!(".cni-multi/previous {said}"));
    }
}

/// What is behind a link would become a plugin, and plugins would go there.
#[test]
fn a_link_in_the_place_of_the_state_is_refused() {
    for state in [".cni-multi", ".cni-multi/replaced"] {
        let prepare = |place: &Place| {
            let elsewhere = place.root.join("elsewhere");
            fs::create_dir_all(elsewhere.join("replaced")).unwrap();
            write_script(&elsewhere.join("evil"), "echo evil");
            write_script(&elsewhere.join("replaced/evil"), "echo evil");
            let link = place.dir.join(state);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&elsewhere, link).unwrap();
        };
        let expected = format!(
            "{state} is not a directory; nothing was changed; cni-multi install makes it: look at what it is, and remove it"
        );
        for args in [&[][..], &["--uninstall"], &["--dry-run"], &["--rollback"]] {
            assert_refused(prepare, args, &expected);
        }
    }
}

#[test]
fn a_link_at_the_mark_of_a_rollback_is_not_written_through() {
    let place = Place::new();
    place.take(Install, By::Binary);
    fs::create_dir_all(place.dir.join(".cni-multi")).unwrap();
    let victim = place.root.join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, place.dir.join(".cni-multi/rolled-back")).unwrap();
    fs::hard_link(place.dir.join("cni-multi"), place.dir.join(".cni-multi/previous")).unwrap();
    place.take(Rollback, By::Binary);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

/// Both refuse with the same words, in a place that is prepared for it.
#[track_caller]
fn assert_refused(prepare: impl Fn(&Place), args: &[&str], expected: &str) {
    let place = Place::new();
    prepare(&place);
    let before = place.snapshot();
    let binary = call::binary();
    let by_script = place.run(&[args, &["--binary", binary.to_str().unwrap()]].concat());
    assert_eq!(place.snapshot(), before, "install.sh: {expected}");
    let by_binary = place.command(args);
    for output in [by_script, by_binary] {
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, format!("{}: {expected}\n", place.dir.display()));
        assert_eq!(output.status.code(), Some(1), "{expected}");
    }
    assert_eq!(place.snapshot(), before, "{expected}");
}

/// A package's script may run in a root directory without /proc.
#[test]
fn the_binary_finds_itself_without_proc() {
    let place = Place::new();
    let line = "mount -t tmpfs tmpfs /proc && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", line, "sh"])
        .arg(call::binary())
        .args(["install", "--dir"])
        .arg(&place.dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(place.dir.join("cni-multi")).unwrap(), fs::read(call::binary()).unwrap());
}

#[test]
fn no_name_is_missing_while_binary_and_script_take_turns() {
    let place = Place::with_foreign_plugins();
    let other = place.build("other");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for name in ["bridge", "portmap"] {
                    fs::File::open(place.dir.join(name)).unwrap();
                }
            }
        });
        let at_once = scope.spawn(|| {
            for _ in 0..4 {
                place.install(&other);
            }
        });
        for _ in 0..2 {
            for step in [Install, Rollback, Uninstall] {
                let output = place.command(match step {
                    Install => &[],
                    Rollback => &["--rollback"],
                    _ => &["--uninstall"],
                });
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    output.status.success() || said.contains("no previous binary"),
                    "{step:?}: {said}"
                );
            }
        }
        at_once.join().unwrap();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    let files = place.snapshot();
    assert!(!files.keys().any(|name| name.ends_with(".0")), "{files:?}");
}

#[test]
fn the_binary_waits_for_no_fifo_at_a_name_of_its_own() {
    let place = Place::with_foreign_plugins();
    place.take(Install, By::Binary);
    for (args, expected) in [
        (&[][..], "is installed in"),
        (&["--uninstall"], "bridge is not a link to cni-multi and stays"),
    ] {
        for name in ["cni-multi", "bridge"] {
            fs::remove_file(place.dir.join(name)).unwrap();
            assert!(Command::new("mkfifo").arg(place.dir.join(name)).status().unwrap().success());
        }
        let mut command = Command::new("timeout");
        command.arg("10").arg(call::binary()).args(["install", "--dir"]).arg(&place.dir).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(expected), "{args:?}: {output:?}");
    }
}

#[test]
fn installed_plugins_run_for_ordinary_users_with_any_umask() {
    let place = Place::new();
    let dir = place.root.join("opt/cni/bin");
    let line = "umask 077 && exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, "sh"]).arg(call::binary()).args(["install", "--dir"]).arg(&dir);
    assert!(shell.output().unwrap().status.success());
    for path in [place.root.join("opt"), dir.clone(), dir.join("cni-multi")] {
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o755,
            "{}",
            path.display()
        );
    }
}

/// Its addresses are unique in a cluster: another plugin in its place would give them again.
#[test]
fn a_program_that_an_alias_would_replace_stays() {
    let place = Place::new();
    let (first, second) = (place.build("1"), place.build("2"));
    write_script(&place.dir.join("whereabouts"), "echo the original");
    let said = place.install(&first);
    let note = format!("{}/whereabouts is another program and stays", place.dir.display());
    assert!(said.contains(&note), "{said}");
    assert_eq!(place.says("whereabouts"), "the original");
    assert!(!place.dir.join(".cni-multi/replaced").exists());
    place.install(&second);
    place.ok(&["--rollback"]);
    assert_eq!(place.says("whereabouts"), "the original");
    fs::remove_file(place.dir.join("whereabouts")).unwrap();
    assert!(!place.install(&second).contains("stays"));
    assert_eq!(place.link("whereabouts").as_deref(), Some("cni-multi"));
    place.ok(&["--uninstall"]);
    assert_eq!(place.names(), [""; 0]);
}
