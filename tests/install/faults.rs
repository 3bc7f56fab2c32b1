//! Faults during an installation: full disks, kills, signals, failing system calls.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::place::{ANOTHER, MISSING, Place, write_script};
use crate::support::call::{self, Call, Peer};
use crate::support::netns::is_root;
use crate::support::peers::tests;
use crate::support::tracer::{Stop, Then, trace};

/// The fault that a run meets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Kill,
    Fail,
}

/// The run that meets the fault. It starts from an installation that replaced plugins of another
/// vendor and, unless the run is the upgrade itself, has been upgraded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    Upgrade,
    Rollback,
    Uninstall,
}

impl Run {
    fn args(self) -> &'static [&'static str] {
        match self {
            Run::Upgrade => &[],
            Run::Rollback => &["--rollback"],
            Run::Uninstall => &["--uninstall"],
        }
    }

    fn prepare(self, place: &Place) {
        place.install(&place.build("old"));
        place.other("new");
        if self != Run::Upgrade {
            let new = place.root.join("cni-multi-new");
            place.ok(&["--binary", new.to_str().unwrap(), "--path", &path(place)]);
        }
    }

    /// The run of the newer build, which is outside the plugin directory.
    fn call(self, place: &Place) -> Call {
        let mut call = Call::new(&Peer::Ours, "", "", "").without("CNI_COMMAND");
        call.program = place.root.join("cni-multi-new");
        let args = ["install", "--dir", place.dir.to_str().unwrap()];
        call.args = args.iter().chain(self.args()).map(|arg| (*arg).to_owned()).collect();
        if self == Run::Upgrade {
            call.args.extend(["--path".to_owned(), path(place)]);
        }
        call
    }
}

/// The directory of PATH: below the plugin directory, so that it is copied and compared with it.
fn path(place: &Place) -> String {
    place.dir.join("path").to_str().unwrap().to_owned()
}

/// Copies by hard links, which is enough: an installation renames files and never writes into an
/// existing one.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to); // the first time there is none
    assert!(Command::new("cp").arg("-al").args([from, to]).status().unwrap().success());
}

/// Injects the fault at each system call that changes something, one run per call. After each,
/// every name has a file, and a second run ends in the same state as a run without a fault.
fn sweep(run: Run, fault: Fault) {
    let place = Place::with_foreign_plugins();
    run.prepare(&place);
    let template = place.root.join("template");
    copy(&place.dir, &template);
    let undisturbed = run.call(&place).run();
    assert_eq!(undisturbed.status, 0, "{undisturbed:?}");
    let expected = place.snapshot();
    let mut disturbed = 0;
    for point in 1.. {
        copy(&template, &place.dir);
        let (mut seen, mut at) = (0, String::new());
        let traced = trace(&run.call(&place), |stop: &Stop| {
            if stop.result.is_some() || !stop.changes() {
                return Then::Go;
            }
            seen += 1;
            if seen != point {
                return Then::Go;
            }
            at = stop.describe();
            if fault == Fault::Kill { Then::Kill } else { Then::fail(Errno::ENOSPC) }
        });
        if seen < point {
            break;
        }
        disturbed += 1;
        let what = format!("{run:?}, {fault:?} at {at}: {:?}", traced.outcome);
        for name in ["bridge", "calico", "host-local"] {
            let is_removed = run == Run::Uninstall && name == "host-local";
            assert!(is_removed || fs::File::open(place.dir.join(name)).is_ok(), "{name}: {what}");
        }
        let one_of_both = [MISSING, ANOTHER].iter().any(|name| place.dir.join(name).exists());
        assert!(one_of_both, "{what}");
        if fault == Fault::Fail && traced.outcome.status != 0 {
            let dir = format!("{}: ", place.dir.display());
            assert!(traced.outcome.stderr.starts_with(&dir), "{what}");
        }
        let second = run.call(&place).run();
        assert_eq!(second.status, 0, "{what}, and then {second:?}");
        assert_eq!(place.snapshot(), expected, "{what}, and then {second:?}");
    }
    assert!(disturbed >= 10, "{run:?}: disturbed only {disturbed} times");
}

tests! {
    upgrade_killed_anywhere_is_completed_by_the_next = sweep(Run::Upgrade, Fault::Kill);
    rollback_killed_anywhere_is_completed_by_the_next = sweep(Run::Rollback, Fault::Kill);
    uninstall_killed_anywhere_is_completed_by_the_next = sweep(Run::Uninstall, Fault::Kill);
    upgrade_failed_anywhere_is_completed_by_the_next = sweep(Run::Upgrade, Fault::Fail);
    rollback_failed_anywhere_is_completed_by_the_next = sweep(Run::Rollback, Fault::Fail);
    uninstall_failed_anywhere_is_completed_by_the_next = sweep(Run::Uninstall, Fault::Fail);
}

/// Runs a shell script in a mount namespace of its own, in the place's root.
#[track_caller]
fn mounted(place: &Place, lines: &str) -> String {
    let user: &[&str] = if is_root() { &[] } else { &["-r", "-U"] };
    let mut command = Command::new("unshare");
    command.args(user).args(["-m", "sh", "-euc", lines, "sh"]).arg(call::binary());
    let output = command.current_dir(&place.root).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Shell functions: `look` lists the mounted directory, `fails` runs a command that has to fail and
/// prints its stderr.
const LOOK: &str = "look() { (cd bin; find . -type f -exec sha256sum {} +; find . -printf '%P %y %m %l\\n') | sort; }
fails() { if \"$@\" 2>said; then echo 'it succeeded'; exit 1; else [ $? = 1 ]; cat said; fi; }
";

#[test]
fn full_disk_changes_nothing_and_is_named() {
    let place = Place::new();
    let size = fs::metadata(call::binary()).unwrap().len();
    place.build("new");
    let said = mounted(
        &place,
        &format!(
            "{LOOK}
mount -t tmpfs -o size={} tmpfs bin
\"$1\" install --dir bin >/dev/null
look >before
fails ./cni-multi-new install --dir bin
look | diff before -
fails ./cni-multi-new install --dir \"$PWD/bin/new/dir\"
look | diff before -",
            size * 3 / 2
        ),
    );
    let dir = place.dir.display();
    let full = "write .cni-multi/new.0: no space left on device";
    assert_eq!(said, format!("{dir}: {full}\n{dir}/new/dir: {full}\n"));
}

#[test]
fn disk_without_inodes_is_named_and_next_run_completes() {
    let place = Place::new();
    let said = mounted(
        &place,
        &format!(
            "{LOOK}
mount -t tmpfs -o nr_inodes=10 tmpfs bin
fails \"$1\" install --dir bin
mount -o remount,nr_inodes=100 bin
\"$1\" install --dir bin >/dev/null
for name in $(\"$1\" list); do [ \"$(readlink bin/$name)\" = cni-multi ]; done"
        ),
    );
    let lines: Vec<&str> = said.lines().collect();
    let (dir, next) = (place.dir.display(), "run it again to complete what it has begun");
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].starts_with(&format!("{dir}: link ")), "{said}");
    assert!(lines[0].ends_with(&format!(": no space left on device; {next}")), "{said}");
}

#[test]
fn directory_without_execution_changes_nothing_and_is_named() {
    let place = Place::new();
    let said = mounted(
        &place,
        &format!(
            "{LOOK}
mount -t tmpfs -o noexec tmpfs bin
echo reference >bin/bridge
look >before
fails \"$1\" install --dir bin
look | diff before -"
        ),
    );
    let expected = "the copy of this binary does not run here: permission denied";
    assert_eq!(said, format!("{}: {expected}\n", place.dir.display()));
}

/// SIGTERM arrives while the previous binary lists its names: the rollback completes before the
/// signal takes effect.
#[test]
fn sigterm_takes_effect_after_the_last_step() {
    let place = Place::with_foreign_plugins();
    place.install(&place.build("new"));
    fs::create_dir_all(place.dir.join(".cni-multi")).unwrap();
    let asked = place.root.join("asked");
    let line = format!(
        "if [ \"$1\" = list ]; then touch {}; sleep 1; echo bridge; else echo older; fi",
        asked.display()
    );
    write_script(&place.dir.join(".cni-multi/previous"), &line);
    let mut command = Command::new(call::binary());
    command.args(["install", "--rollback", "--dir"]).arg(&place.dir).stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while !asked.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "it was not asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), None, "SIGTERM has ended it");
    assert!(said.contains("The previous cni-multi is back"), "{said}");
    assert_eq!(place.says("bridge"), "older");
    let drafts = [".cni-multi/lock", ".cni-multi/link.0", ".cni-multi/new.0"];
    assert!(drafts.iter().all(|name| !place.dir.join(name).exists()), "{:?}", place.names());
}

#[test]
fn closed_output_does_not_stop_an_installation() {
    let place = Place::with_foreign_plugins();
    let line = "\"$@\" >/dev/full";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, "sh"]).arg(call::binary()).args(["install", "--dir"]).arg(&place.dir);
    assert_eq!(shell.status().unwrap().code(), Some(1), "the report is lost");
    assert_eq!(place.link("vrf").as_deref(), Some("cni-multi"));
    assert!(!place.dir.join(".cni-multi/lock").exists());
}

#[test]
fn wait_for_another_installer_is_announced() {
    let place = Place::new();
    let state = place.dir.join(".cni-multi");
    fs::create_dir(&state).unwrap();
    let mut holder = Command::new("flock")
        .arg(state.join("lock"))
        .args(["sh", "-c", "echo held; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();
    let mut command = Command::new(call::binary());
    command.args(["install", "--dir"]).arg(&place.dir).stdout(Stdio::piped());
    let mut waiting = command.spawn().unwrap();
    let expected =
        format!("another install is at work in {}, waiting for it\n", place.dir.display());
    let mut said = vec![0; expected.len()];
    std::io::Read::read_exact(waiting.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(String::from_utf8(said).unwrap(), expected);
    assert!(!place.dir.join("cni-multi").exists());
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(waiting.wait().unwrap().success());
    assert!(place.dir.join("bridge").exists());
}
