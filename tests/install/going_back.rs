//! Rollback to binaries that cannot do their part: older ones without `install`, and broken ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::place::{Place, RUSTC, listed_by, write_script};
use crate::support::call;

impl Place {
    /// A place with an older cni-multi installed, which supports `list` only.
    fn with_older() -> Place {
        let place = Place::with_foreign_plugins();
        let lines = "if [ \"$1\" = list ]; then echo bridge; else echo older; exit 1; fi";
        write_script(&place.dir.join("cni-multi"), lines);
        fs::remove_file(place.dir.join("bridge")).unwrap();
        symlink("cni-multi", place.dir.join("bridge")).unwrap();
        place
    }

    /// A PATH directory with the programs that install.sh calls, except cargo; tests add others.
    fn tools(&self) -> PathBuf {
        let tools = self.root.join("tools");
        fs::create_dir_all(&tools).unwrap();
        for tool in [
            "sh", "dirname", "mktemp", "ln", "realpath", "rm", "grep", "sed", "cat", "paste",
            "cut", "df", "du", "head", "id", "sort", "true", "uname",
        ] {
            let line = format!("command -v {tool}");
            let found = Command::new("sh").args(["-c", &line]).output().unwrap();
            let found = String::from_utf8(found.stdout).unwrap();
            let _ = symlink(found.trim(), tools.join(tool)); // it may be there already
        }
        tools
    }

    fn without_cargo(&self, args: &[&str]) -> Output {
        let mut script = self.script(args);
        script.env("PATH", self.tools()).env("HOME", "/nonexistent").env_remove("CARGO_HOME");
        script.env("CARGO_TARGET_DIR", self.root.join("target"));
        script.output().unwrap()
    }

    /// Adds a cargo that pretends to have built the binary under test.
    fn add_cargo(&self) {
        let (tools, target) = (self.tools(), self.root.join("target"));
        let built = target.join("x86_64-unknown-linux-gnu/release/cni-multi");
        fs::create_dir_all(built.parent().unwrap()).unwrap();
        symlink(call::binary(), built).unwrap();
        write_script(&tools.join("rustc"), RUSTC);
        write_script(&tools.join("cc"), "true");
        let metadata = format!("echo '{{\"target_directory\":\"{}\"}}'", target.display());
        write_script(
            &tools.join("cargo"),
            &format!("if [ \"$1\" = metadata ]; then {metadata}; fi"),
        );
        symlink("/usr/bin/env", tools.join("env")).unwrap();
    }

    #[track_caller]
    fn says_older(&self) -> bool {
        let output = Command::new(self.dir.join("bridge")).output().unwrap();
        output.stdout == b"older\n"
    }
}

#[test]
fn rollback_to_binary_without_install_brings_it_back() {
    for by_script in [true, false] {
        let place = Place::with_older();
        let before = place.snapshot();
        place.install(&call::binary());
        assert_eq!(
            place.names().iter().filter(|name| !name.starts_with('.')).count(),
            listed_by(&call::binary()).len() + 2
        );
        let output =
            if by_script { place.run(&["--rollback"]) } else { place.command(&["--rollback"]) };
        assert!(output.status.success() && place.says_older(), "{output:?}");
        let mut after = place.snapshot();
        after.retain(|name, _| !name.starts_with(".cni-multi"));
        assert_eq!(after, before);
    }
}

#[test]
fn script_names_the_way_out_when_the_old_binary_cannot_install() {
    let place = Place::with_older();
    place.install(&call::binary());
    place.ok(&["--rollback"]);
    let before = place.snapshot();
    for action in ["rollback", "uninstall"] {
        let output = place.without_cargo(&[&format!("--{action}")]);
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = format!(
            "install.sh: no binary in {} runs and knows `install --{action}`, and cargo is not in PATH to \
             build one: name a newer cni-multi with ./install.sh --{action} --binary FILE\n",
            place.dir.display()
        );
        assert_eq!((output.status.code(), said), (Some(1), expected));
        assert_eq!(place.snapshot(), before);
    }
    let binary = call::binary();
    let binary = ["--binary", binary.to_str().unwrap()];
    let output = place.without_cargo(&[&["--rollback"], &binary[..]].concat());
    assert!(String::from_utf8(output.stdout).unwrap().contains("was rolled back already"));
    assert_eq!(place.snapshot(), before);
    let output = place.without_cargo(&[&["--uninstall"], &binary[..]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.names(), ["calico", "portmap"]);
}

#[test]
fn script_after_rollback_to_binary_without_install_builds_one() {
    let place = Place::with_older();
    place.install(&call::binary());
    place.ok(&["--rollback"]);
    place.add_cargo();
    let output = place.without_cargo(&["--uninstall"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.names(), ["calico", "portmap"]);
}

#[test]
fn rollback_of_broken_binary_is_done_by_the_one_before() {
    let place = Place::with_foreign_plugins();
    place.install(&place.build("old"));
    let before = place.snapshot();
    place.install(&place.build("new"));
    write_script(&place.dir.join("cni-multi"), "kill -SEGV $$");
    let output = place.without_cargo(&["--rollback"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.says("bridge"), "old");
    let mut after = place.snapshot();
    assert!(after.remove(".cni-multi/rolled-back").is_some());
    assert_eq!(after, before);
}

/// A link may contain the binary's absolute path, however the directory is named on the command
/// line.
#[test]
fn uninstall_of_relative_directory_removes_absolute_links() {
    for dir in ["bin", "./bin/", "../bin//"] {
        let place = Place::new();
        place.install(&call::binary());
        fs::remove_file(place.dir.join("bridge")).unwrap();
        let work = place.root.join("work");
        fs::create_dir(&work).unwrap();
        let from = if dir.starts_with("..") { &work } else { &place.root };
        let path = if dir.starts_with("..") { work.join("../bin") } else { place.dir.clone() };
        symlink(path.join("cni-multi"), place.dir.join("bridge")).unwrap();
        let mut command = Command::new(call::binary());
        command.args(["install", "--uninstall", "--dir", dir]).current_dir(from);
        assert!(command.output().unwrap().status.success());
        assert_eq!(place.names(), [""; 0], "{dir}");
    }
}
