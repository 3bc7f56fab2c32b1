//! A machine as the scripts see it: a PATH of programs that answer as another machine's would.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::install::place::write_script;
use crate::layers::root;
use crate::support::scratch::Scratch;

/// What the scripts use of any system; everything else is missing unless a test adds it.
const BASE: [&str; 24] = [
    "awk", "bash", "cat", "cut", "dirname", "du", "env", "grep", "head", "ln", "mktemp", "mkdir",
    "paste", "printf", "readlink", "realpath", "rm", "sed", "sh", "sort", "tail", "true", "touch",
    "uname",
];

pub struct Machine {
    scratch: Scratch,
    pub tools: PathBuf,
    pub home: PathBuf,
    pub target: PathBuf,
    /// busybox's shell calls its own `id`, `df` and `rpm` instead of those in PATH.
    suits_busybox: Cell<bool>,
}

impl Machine {
    /// Root's, with everything that a build needs, and that package manager.
    pub fn new(manager: &str) -> Machine {
        let scratch = Scratch::new();
        let (tools, home, target) =
            (scratch.join("tools"), scratch.join("a home"), scratch.join("a target"));
        for dir in [&tools, &home, &scratch.join("tmp")] {
            fs::create_dir(dir).unwrap();
        }
        let machine = Machine { scratch, tools, home, target, suits_busybox: Cell::new(false) };
        BASE.iter().for_each(|name| machine.link(name));
        machine.add_build_tools();
        machine.suits_busybox.set(true);
        if !manager.is_empty() {
            machine.fake(manager, "echo called >&2; exit 1");
        }
        machine
    }

    fn add_build_tools(&self) {
        self.fake("id", "if [ \"$1\" = -un ]; then echo root; else echo 0; fi");
        self.fake("unshare", "");
        self.fake("curl", "");
        self.fake("cc", "");
        self.fake(
            "df",
            "printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\\n'
            printf '/dev/a 9000000 1 8000000 1%% /a b\\n'",
        );
        self.add_cargo(&self.tools);
    }

    /// A cargo that builds a program of one line, and its rustc.
    pub fn add_cargo(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        let target = self.target.display();
        let built = format!("{target}/x86_64-unknown-linux-gnu");
        write_script(
            &dir.join("cargo"),
            &format!(
                "case $1 in
                metadata) echo '{{\"target_directory\":\"{target}\"}}' ;;
                build)
                  case \"$*\" in *'--profile demo'*) dir='{built}/demo' ;; *) dir='{built}/release' ;; esac
                  mkdir -p \"$dir\"
                  printf '#!/bin/sh\\necho bridge\\n' >\"$dir/cni-multi\"
                  chmod 755 \"$dir/cni-multi\" ;;
                esac"
            ),
        );
        write_rustc(dir, "1.95.0");
        self.link("chmod");
    }

    pub fn built(&self) -> PathBuf {
        self.target.join("x86_64-unknown-linux-gnu/release/cni-multi")
    }

    pub fn built_demo(&self) -> PathBuf {
        self.target.join("x86_64-unknown-linux-gnu/demo/cni-multi")
    }

    /// The machine's own program.
    pub fn link(&self, name: &str) {
        let place = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .map(|dir| Path::new(dir).join(name))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{name} is missing here"));
        if !self.tools.join(name).exists() {
            symlink(place, self.tools.join(name)).unwrap();
        }
    }

    pub fn fake(&self, name: &str, body: &str) {
        if ["df", "id", "rpm", "unshare"].contains(&name) {
            self.suits_busybox.set(false);
        }
        let path = self.tools.join(name);
        let _ = fs::remove_file(&path); // it may be the machine's own
        write_script(&path, body);
    }

    pub fn without(self, names: &[&str]) -> Machine {
        names.iter().for_each(|name| fs::remove_file(self.tools.join(name)).unwrap());
        self
    }

    /// An ordinary user's, with sudo.
    pub fn of_user(self) -> Machine {
        self.fake("id", "if [ \"$1\" = -un ]; then echo bob; else echo 1000; fi");
        self.fake("sudo", "echo sudo was called >&2; exit 1");
        self
    }

    /// A command line that finds nothing of the real machine's programs or directories.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", &self.tools).env("HOME", &self.home);
        command.env("CARGO_TARGET_DIR", &self.target).env("TMPDIR", self.scratch.join("tmp"));
        command.current_dir(root());
        command
    }

    pub fn run(&self, shell: &str, line: &[&str]) -> Output {
        let mut words = shell.split(' ');
        let mut command = self.command(words.next().unwrap());
        command.args(words).args(line).output().unwrap()
    }

    /// The script refuses with exactly these words, in every shell, and leaves no file.
    #[track_caller]
    pub fn refuses(&self, line: &[&str], expected: &str) {
        let before = self.files();
        for shell in self.shells(line[0]) {
            let output = self.run(shell, line);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(said, expected, "{shell} {line:?}");
            assert_eq!((output.status.code(), output.stdout), (Some(1), vec![]), "{shell}");
            assert_eq!(self.files(), before, "{shell} {line:?}");
        }
    }

    /// install.sh is for any POSIX shell; other scripts name theirs.
    fn shells(&self, script: &str) -> Vec<&'static str> {
        let is_there = |shell: &&str| Path::new(shell.split(' ').next().unwrap()).exists();
        let all: &[&str] = match script {
            "install.sh" if self.suits_busybox.get() => {
                &["/bin/dash", "/bin/bash", "/bin/busybox sh"]
            }
            "install.sh" => &["/bin/dash", "/bin/bash"],
            _ => &["/bin/bash"],
        };
        all.iter().copied().filter(is_there).collect()
    }

    /// The paths below its directories.
    pub fn files(&self) -> BTreeSet<String> {
        let output = Command::new("find").arg(self.scratch.text()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

pub fn write_rustc(dir: &Path, version: &str) {
    let body = format!(
        "case $1 in
        --version) echo 'rustc {version} (x 2026-01-01)' ;;
        -vV) echo 'host: x86_64-unknown-linux-gnu' ;;
        --print) echo /nonexistent ;;
        esac"
    );
    write_script(&dir.join("rustc"), &body);
}
