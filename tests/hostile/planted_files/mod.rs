//! Files planted in a directory of ours in place of the real ones: links, FIFOs, sockets, devices,
//! directories, endless files. Every command ends soon, with success or with a reason; files
//! elsewhere are neither disclosed nor changed, and existing attachments stay. Nothing is lost once
//! the plant is removed.

mod cache;
mod configuration;
mod dhcp;
mod host_local;
mod junk;
mod records;
mod tuning;

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::{bounded, is_answer};
use crate::support::call::{Call, Outcome};
use crate::support::extent::sample;
use crate::support::netns::{Lab, is_root};

/// The content of a foreign file, which must not be disclosed.
const SECRET: &str = "a-secret-of-others";

/// The kinds of file that replace one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    LinkToFile,
    LinkToDirectory,
    DanglingLink,
    LoopOfLinks,
    HardLink,
    Fifo,
    Socket,
    Device,
    Directory,
    Endless,
    Noise,
    Empty,
    Unreadable,
    OfAnother,
}

use Plant::*;

pub const PLANTS: [Plant; 14] = [
    LinkToFile,
    LinkToDirectory,
    DanglingLink,
    LoopOfLinks,
    HardLink,
    Fifo,
    Socket,
    Device,
    Directory,
    Endless,
    Noise,
    Empty,
    Unreadable,
    OfAnother,
];

/// Every plant at each place; in the ordinary run and at each turn a third of them, a different third for each
/// place.
pub fn plantings<'a>(places: &[&'a str]) -> Vec<(&'a str, Plant)> {
    let at = |(turn, place): (usize, &&'a str)| {
        let place = *place;
        sample(PLANTS.to_vec(), 3, turn).into_iter().map(move |plant| (place, plant))
    };
    places.iter().enumerate().flat_map(at).collect()
}

impl Plant {
    /// Creates the plant at `path`, where no file is. False without the rights: only root can make
    /// devices and files of another user.
    fn put(self, lab: &Lab, path: &str) -> bool {
        let script = match self {
            LinkToFile => "ln -s /run/outside/secret $P",
            LinkToDirectory => "ln -s /run/outside/directory $P",
            DanglingLink => "ln -s /run/outside/nothing $P",
            LoopOfLinks => "ln -s $P $P",
            HardLink => "ln /run/outside/secret $P",
            Fifo => "mkfifo $P",
            Socket => return UnixListener::bind(lab.path(path)).map(drop).is_ok(),
            Device if !is_root() => return false,
            Device => "mknod $P c 1 5",
            Directory => "mkdir $P && echo x > $P/x",
            Endless => "truncate -s 1T $P",
            Noise => "head -c 60000 /dev/urandom > $P",
            Empty => ": > $P",
            Unreadable => "echo '{}' > $P && chmod 0 $P",
            OfAnother if !is_root() => return false,
            OfAnother => "echo '{}' > $P && chmod 600 $P && chown 65534 $P",
        };
        lab.host.sh(&format!("P='{path}'; {script}"));
        true
    }
}

/// Makes the foreign files: a file, and a directory with names that a cleanup could take for ours.
fn prepare_outside(lab: &Lab) {
    lab.host.sh(&format!(
        "mkdir -p /run/outside/directory /run/aside; cd /run/outside; echo '{{\"kind\":\"{SECRET}\",\"mtu\":\"{SECRET}\"}}' > secret; \
         cp secret directory/secret; : > directory/10.10.0.77; echo x > directory/x.draft; chmod 600 secret"
    ));
}

/// Names, owners, modes, times and content. The time of a directory shows that a file was created
/// or removed.
fn outside(lab: &Lab) -> String {
    let root = lab.path("/run/outside");
    let directory = root.join("directory");
    let mut paths: Vec<PathBuf> = [&root, &directory]
        .into_iter()
        .flat_map(|dir| dir.read_dir().unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.push(root);
    paths.sort();
    let line = |path: &PathBuf| {
        let found = path.symlink_metadata().unwrap();
        let content =
            if found.is_file() { std::fs::read_to_string(path).unwrap() } else { String::new() };
        let (mode, owner, modified) =
            (found.mode(), found.uid(), (found.mtime(), found.mtime_nsec()));
        format!("{} {mode:o} {owner} {modified:?} {content:?}\n", path.display())
    };
    paths.iter().map(line).collect()
}

/// A lab with foreign files, and the failures so far: a table is reported whole.
struct Field<'a> {
    lab: &'a Lab,
    wrong: RefCell<Vec<String>>,
}

impl<'a> Field<'a> {
    fn new(lab: &'a Lab) -> Field<'a> {
        prepare_outside(lab);
        Field { lab, wrong: RefCell::default() }
    }

    /// Sets the file at `path` aside and plants. None if the plant cannot be made here.
    fn plant(&self, path: &str, plant: Plant) -> Option<Cell<'_>> {
        let aside = format!(
            "rm -rf /run/aside/*; mkdir -p \"$(dirname '{path}')\"; [ ! -e '{path}' ] || mv '{path}' /run/aside/it"
        );
        self.lab.host.sh(&aside);
        let cell = Cell { field: self, path: path.to_owned(), plant };
        let is_there = plant.put(self.lab, path);
        if !is_there {
            cell.restore();
        }
        is_there.then_some(cell)
    }

    #[track_caller]
    fn assert_nothing_was_wrong(&self) {
        let wrong = self.wrong.borrow();
        assert!(wrong.is_empty(), "{} were wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// One plant at one path.
struct Cell<'a> {
    field: &'a Field<'a>,
    path: String,
    plant: Plant,
}

impl Cell<'_> {
    /// Makes a runtime's call, in which a failure must print an error object.
    fn call(&self, what: &str, call: Call) -> Outcome {
        let outcome = self.call_of_people(what, call);
        self.expect(is_answer(&outcome), what, &outcome);
        outcome
    }

    /// The same for a command that reports errors as text.
    fn call_of_people(&self, what: &str, call: Call) -> Outcome {
        let before = outside(self.field.lab);
        let mut call = bounded(call);
        if self.plant == Unreadable {
            // Root may read every file unless these capabilities are dropped.
            let words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"];
            call.wrapper.extend(words.map(str::to_owned));
        }
        let outcome = call.run();
        self.expect(outcome.status == 0 || outcome.status == 1, what, &outcome);
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        self.expect(!said.contains(SECRET), &format!("{what} reads it out"), &outcome);
        self.expect_unchanged(what, &before);
        outcome
    }

    fn expect_unchanged(&self, what: &str, before: &str) {
        let after = outside(self.field.lab);
        let lines = |a: &str, b: &str| {
            a.lines().filter(|line| !b.contains(line)).collect::<Vec<_>>().join("; ")
        };
        let changed = format!("- {} + {}", lines(before, &after), lines(&after, before));
        self.expect(after == before, &format!("{what} changes what is elsewhere"), &changed);
    }

    fn expect(&self, is_so: bool, what: &str, found: &dyn std::fmt::Debug) {
        if !is_so {
            self.field
                .wrong
                .borrow_mut()
                .push(format!("{:?} at {}: {what}: {found:?}", self.plant, self.path));
        }
    }

    fn expect_done(&self, what: &str, outcome: &Outcome) {
        self.expect(outcome.status == 0, what, outcome);
    }

    /// Removes the plant and restores the original file.
    fn restore(&self) {
        let restore =
            format!("rm -rf '{0}'; [ ! -e /run/aside/it ] || mv /run/aside/it '{0}'", self.path);
        self.field.lab.host.sh(&restore);
    }
}

/// A harness that cannot fail proves nothing.
#[test]
fn a_change_elsewhere_and_a_hang_are_found() {
    let lab = &Lab::new(crate::support::call::Peer::Ours);
    let field = Field::new(lab);
    let before = outside(lab);
    for change in [
        "echo x >> /run/outside/secret",
        "chmod 644 /run/outside/secret",
        "touch /run/outside/directory/10.10.0.2",
    ] {
        lab.host.sh(change);
        assert_ne!(outside(lab), before, "{change}");
    }
    let sleep = Call {
        program: "/bin/sleep".into(),
        args: vec!["5".into()],
        wrapper: vec!["timeout".into(), "0.1".into()],
        ..Call::new(&lab.peer, "", "", "")
    };
    assert_eq!(sleep.run().status, 124);
    for plant in
        PLANTS.into_iter().filter(|plant| is_root() || !matches!(plant, Device | OfAnother))
    {
        let cell = field.plant("/run/x/y", plant).expect("it can be planted");
        lab.host.sh("[ -e /run/x/y ] || [ -L /run/x/y ]");
        cell.restore();
        lab.host.sh("[ ! -e /run/x/y ] && [ ! -L /run/x/y ]");
    }
    let cell = field.plant("/run/x/y", LinkToFile).unwrap();
    let bad = Call {
        program: "/bin/sh".into(),
        wrapper: lab.host.enter.clone(),
        ..Call::new(&lab.peer, "", "", "")
    };
    for script in ["cat /run/x/y; exit 1", "echo x >>/run/x/y", "exit 137", "echo '{}'; exit 1"] {
        let before = field.wrong.borrow().len();
        cell.call("", Call { args: ["-c", script].map(str::to_owned).to_vec(), ..bad.clone() });
        assert!(field.wrong.borrow().len() > before, "{script}");
    }
}
