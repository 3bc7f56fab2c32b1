//! A plugin directory private to one test, and builds of cni-multi to install into it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::support::call;
use crate::support::scratch::Scratch;

/// The plugin that [`Place::other`] lacks, and the one that it has in its place.
pub const MISSING: &str = "portmap";
pub const ANOTHER: &str = "another";

/// Answers of rustc that install.sh reads.
pub const RUSTC: &str = "case $1 in
    -vV) echo 'host: x86_64-unknown-linux-gnu' ;;
    --version) echo 'rustc 1.99.0' ;;
    esac";

/// A plugin directory below a private directory, which is removed when this is dropped.
pub struct Place {
    _scratch: Scratch,
    pub root: PathBuf,
    pub dir: PathBuf,
}

impl Place {
    pub fn new() -> Place {
        let scratch = Scratch::new();
        let root = PathBuf::from(scratch.text());
        let dir = scratch.join("bin");
        fs::create_dir_all(&dir).unwrap();
        Place { _scratch: scratch, root, dir }
    }

    /// A directory as the reference leaves it, with two plugins, one of them a symlink, and a file
    /// of another vendor.
    pub fn with_foreign_plugins() -> Place {
        let place = Place::new();
        write_script(&place.dir.join("bridge"), "echo reference bridge");
        symlink("/bin/true", place.dir.join("portmap")).unwrap();
        fs::write(place.dir.join("calico"), "another vendor's").unwrap();
        place
    }

    /// A build of the binary under test: the same program with `word` appended.
    pub fn build(&self, word: &str) -> PathBuf {
        self.write_build(word, own_content())
    }

    /// A build with another set of plugins, as another version has: one plugin has another name.
    pub fn other(&self, word: &str) -> PathBuf {
        self.write_build(word, other_content())
    }

    fn write_build(&self, word: &str, content: &[u8]) -> PathBuf {
        let path = self.root.join(format!("cni-multi-{word}"));
        if path.exists() {
            return path;
        }
        let draft = path.with_extension("draft");
        fs::write(&draft, [content, b"\nbuild ", word.as_bytes(), b"\n"].concat()).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
        // A child process of another test may inherit a descriptor of this process for a moment,
        // and a file open for writing cannot be executed. cp opens the file in a process of its
        // own.
        let copied = Command::new("cp").args([&draft, &path]).status().unwrap();
        assert!(copied.success());
        fs::remove_file(draft).unwrap();
        path
    }

    /// A call of install.sh for this directory.
    pub fn script(&self, args: &[&str]) -> Command {
        let mut command = Command::new(script());
        command.arg("--dir").arg(&self.dir).args(args).current_dir(&self.root);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.script(args).output().unwrap()
    }

    /// Runs `cni-multi install` of the binary under test for this directory.
    pub fn command(&self, args: &[&str]) -> Output {
        self.command_of(&call::binary(), args)
    }

    pub fn command_of(&self, binary: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(binary);
        command.arg0("cni-multi").arg("install").arg("--dir").arg(&self.dir).args(args);
        command.output().unwrap()
    }

    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "install.sh {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    pub fn err(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "install.sh {args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    #[track_caller]
    pub fn install(&self, binary: &Path) -> String {
        self.ok(&["--binary", binary.to_str().unwrap()])
    }

    /// The output of the plugin of this name: that of another vendor prints its own text; for a
    /// build of ours, the build's word after it has run.
    #[track_caller]
    pub fn says(&self, name: &str) -> String {
        let program = self.dir.join(name);
        // First, since a watch may put ours in its place meanwhile.
        let content = fs::read(&program).unwrap();
        let output =
            Command::new(&program).env_clear().env("CNI_COMMAND", "VERSION").output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        if !content.starts_with(b"\x7fELF") {
            return String::from_utf8(output.stdout).unwrap().trim().to_owned();
        }
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("supportedVersions"),
            "{output:?}"
        );
        let end = String::from_utf8_lossy(&content[content.len() - 40..]).into_owned();
        end.rsplit_once("\nbuild ").map_or("unmarked", |(_, word)| word.trim_end()).to_owned()
    }

    pub fn link(&self, name: &str) -> Option<String> {
        fs::read_link(self.dir.join(name)).ok().map(|target| target.to_str().unwrap().to_owned())
    }

    pub fn snapshot(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        collect(&self.dir, "", &mut files);
        files
    }

    pub fn names(&self) -> Vec<String> {
        self.snapshot().into_keys().collect()
    }
}

fn own_content() -> &'static [u8] {
    static OWN: OnceLock<Vec<u8>> = OnceLock::new();
    OWN.get_or_init(|| fs::read(call::binary()).unwrap())
}

fn other_content() -> &'static [u8] {
    static OTHER: OnceLock<Vec<u8>> = OnceLock::new();
    OTHER.get_or_init(|| renamed(own_content()))
}

/// The same program with the plugin renamed everywhere.
fn renamed(content: &[u8]) -> Vec<u8> {
    assert_eq!(MISSING.len(), ANOTHER.len());
    let mut content = content.to_vec();
    let mut found = 0;
    for at in 0..=content.len() - MISSING.len() {
        if content[at] == MISSING.as_bytes()[0] && content[at..].starts_with(MISSING.as_bytes()) {
            content[at..at + ANOTHER.len()].copy_from_slice(ANOTHER.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "the binary has no text {MISSING}");
    content
}

/// The names that a binary lists, in its order.
pub fn listed_by(binary: &Path) -> Vec<String> {
    let listed = Command::new(binary).arg0("cni-multi").arg("list").output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Every path below `dir` with its kind, mode and content; for a program, its build.
fn collect(dir: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if metadata.is_dir() {
            collect(&path, &format!("{name}/"), files);
            "directory".to_owned()
        } else {
            let text = String::from_utf8(fs::read(&path).unwrap());
            let text = text.unwrap_or_else(|binary| describe(binary.as_bytes()));
            format!("{:o} {text}", metadata.permissions().mode())
        };
        files.insert(name, content);
    }
}

/// The name of a build.
fn describe(content: &[u8]) -> String {
    for (name, program) in [("ours", own_content()), ("the other", other_content())] {
        if let Some(end) = content.strip_prefix(program) {
            return format!("{name}{}", String::from_utf8_lossy(end));
        }
    }
    format!("{} bytes", content.len())
}

pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh")
}

pub fn write_script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
