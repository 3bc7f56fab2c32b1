//! `cni-multi install --watch`: keeps links that other programs overwrite, and no others.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::place::{Place, write_script};
use crate::support::dhcp::wait_until;

/// A running watch over the directory of a place.
pub struct Watch<'a> {
    place: &'a Place,
    child: Child,
}

impl<'a> Watch<'a> {
    /// Installs the build and watches with it. Returns once the watch has begun.
    pub fn of(place: &'a Place, build: &Path) -> Watch<'a> {
        assert!(place.command_of(build, &[]).status.success());
        let mut command = Command::new(build);
        command.arg0("cni-multi");
        Watch::start(place, command)
    }

    fn start(place: &'a Place, mut command: Command) -> Watch<'a> {
        let log = File::create(place.root.join("log")).unwrap();
        command.args(["install", "--watch", "--dir"]).arg(&place.dir);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let watch = Watch { place, child };
        watch.wait_for("keeping the links");
        watch
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.root.join("log")).unwrap()
    }

    pub fn wait_for(&self, words: &str) {
        wait_until(words, 10, || self.log().contains(words));
    }

    /// Waits for our link before it runs anything: a shell that began with the other program's
    /// script would read ours if the watch replaced it meanwhile.
    pub fn wait_until_says(&self, name: &str, word: &str) {
        wait_until(name, 10, || self.place.link(name).as_deref() == Some("cni-multi"));
        wait_until(word, 10, || self.place.says(name) == word);
    }

    /// How often the process has waited until now.
    fn waits(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().to_owned()
    }

    /// Whether it has not waited again for a while: pages that are read from disk count, too.
    fn waits_as_before(&self) -> bool {
        let before = self.waits();
        std::thread::sleep(Duration::from_millis(100));
        self.waits() == before
    }

    fn repairs(&self) -> usize {
        self.log().matches("linked again").count()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        self.child.wait().unwrap();
        if std::thread::panicking() {
            eprintln!("--- the watch:\n{}", self.log()); // shown when the case fails
        }
    }
}

/// As dpkg replaces a file: by a rename.
fn overwrite(place: &Place, name: &str) {
    let new = place.root.join("unpacked");
    write_script(&new, "echo a package upgrade");
    fs::rename(new, place.dir.join(name)).unwrap();
}

fn signal(pid: &str) {
    assert!(Command::new("kill").args(["-TERM", pid]).status().unwrap().success());
}

#[test]
fn what_another_program_overwrites_is_linked_again() {
    let place = Place::with_foreign_plugins();
    let watch = Watch::of(&place, &place.build("new"));
    overwrite(&place, "bridge");
    fs::remove_file(place.dir.join("portmap")).unwrap();
    watch.wait_until_says("bridge", "new");
    watch.wait_until_says("portmap", "new");
    assert_eq!(watch.repairs(), 1, "both at once");
    let replaced = &place.snapshot()[".cni-multi/replaced/bridge"];
    assert!(replaced.contains("reference bridge"), "the first one is kept: {replaced}");
    // A copy into the link goes through it, into the binary: all plugins are broken.
    fs::write(place.dir.join("vlan"), "#!/bin/sh\necho a copied vlan\n").unwrap();
    watch.wait_for("has written into");
    watch.wait_until_says("vlan", "new");
    assert_eq!(place.snapshot()["calico"], "100644 another vendor's");
}

#[test]
fn a_rollback_stands_and_its_links_are_left_alone() {
    let place = Place::new();
    assert!(place.command_of(&place.build("old"), &[]).status.success());
    let new = place.build("new");
    let watch = Watch::of(&place, &new);
    assert!(place.command_of(&new, &["--rollback"]).status.success());
    watch.wait_for("is not this build: the directory is left alone");
    assert_eq!(place.says("bridge"), "old");
    overwrite(&place, "bridge");
    std::thread::sleep(Duration::from_millis(1500)); // longer than the pause before a repair
    assert_eq!(place.says("bridge"), "a package upgrade");
    // The build comes back, and with it the watch.
    assert!(place.command_of(&new, &[]).status.success());
    wait_until("it keeps again", 10, || watch.log().matches("keeping the links").count() == 2);
    overwrite(&place, "bridge");
    watch.wait_until_says("bridge", "new");
}

#[test]
fn an_uninstall_stands() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let new = place.build("new");
    let watch = Watch::of(&place, &new);
    assert!(place.command_of(&new, &["--uninstall"]).status.success());
    watch.wait_for("is not this build: the directory is left alone");
    assert_eq!(place.snapshot(), before);
}

#[test]
fn a_dispute_with_another_installer_slows_down() {
    let place = Place::new();
    let watch = Watch::of(&place, &place.build("new"));
    let begin = Instant::now();
    // Pauses of 1, 2 and 4 seconds: two repairs, and no third one before the seventh second.
    while begin.elapsed() < Duration::from_secs(5) {
        if place.link("bridge").is_some() {
            overwrite(&place, "bridge");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((1..=2).contains(&watch.repairs()), "{}", watch.log());
}

#[test]
fn the_watch_sleeps_when_idle_and_ends_at_once_by_sigterm() {
    let place = Place::new();
    let mut watch = Watch::of(&place, &place.build("new"));
    let is_asleep = |watch: &Watch<'_>| {
        let status = fs::read_to_string(format!("/proc/{}/stat", watch.child.id())).unwrap();
        status.contains(") S ")
    };
    wait_until("it sleeps", 10, || is_asleep(&watch) && watch.waits_as_before());
    let before = watch.waits();
    fs::read(place.dir.join("bridge")).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(watch.waits(), before);
    // Also in the pause before a repair.
    overwrite(&place, "bridge");
    signal(&watch.child.id().to_string());
    assert!(watch.child.wait().unwrap().success());
    assert_eq!(place.says("bridge"), "a package upgrade");
}

/// The process's own working directory keeps the directory alive, and its name may be another's.
#[test]
fn the_watch_ends_when_its_directory_goes() {
    for command in ["rm -rf bin", "mv bin old && mkdir bin"] {
        let place = Place::new();
        let mut watch = Watch::of(&place, &place.build("new"));
        let command = command.replace("bin", place.dir.to_str().unwrap());
        let command = command.replace("old", &format!("{}.old", place.dir.display()));
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
        assert_eq!(watch.child.wait().unwrap().code(), Some(1), "{command}: {}", watch.log());
        assert!(watch.log().contains("it was removed or renamed"), "{}", watch.log());
    }
}

/// The kernel discards signals to process 1 of a container that has no handler for them.
#[test]
fn the_watch_is_a_container_s_first_process() {
    let place = Place::new();
    let build = place.build("new");
    assert!(place.command_of(&build, &[]).status.success());
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).arg(&build);
    let mut watch = Watch::start(&place, unshare);
    let unshare = watch.child.id();
    let children = PathBuf::from(format!("/proc/{unshare}/task/{unshare}/children"));
    signal(fs::read_to_string(children).unwrap().trim());
    let begin = Instant::now();
    assert!(watch.child.wait().unwrap().success());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn what_cannot_be_watched_is_named() {
    let place = Place::new();
    let file = place.root.join("file");
    fs::write(&file, "").unwrap();
    for dir in [place.root.join("missing"), file] {
        let mut command = Command::new(crate::support::call::binary());
        command.arg0("cni-multi").args(["install", "--watch", "--dir"]).arg(&dir);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(&format!("{}: watch the directory: ", dir.display())), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    let output = place.command(&["--watch", "--uninstall"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A directory in place of a plugin cannot be linked; the watch says so and tries again.
#[test]
fn a_failed_repair_is_reported_and_retried() {
    let place = Place::new();
    let watch = Watch::of(&place, &place.build("new"));
    fs::remove_file(place.dir.join("bridge")).unwrap();
    fs::create_dir(place.dir.join("bridge")).unwrap();
    watch.wait_for("bridge is a directory; nothing was changed; retry in ");
    fs::remove_dir(place.dir.join("bridge")).unwrap();
    watch.wait_until_says("bridge", "new");
}
