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

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde_json::Value;

use super::{bounded, is_answer};
use crate::support::attachment::{Attachment, for_ours};
use crate::support::call::{Call, Outcome};
use crate::support::extent::sample;
use crate::support::netns::{Lab, is_root};
use crate::support::table::cells;

/// The content of a foreign file, which must not be disclosed.
const SECRET: &str = "a-secret-of-others";

/// The kinds of file that replace one of ours, and the scripts that make one at `$P`.
const PLANTS: &str = r"
link to a file | ln -s /run/outside/secret $P
link to a directory | ln -s /run/outside/directory $P
dangling link | ln -s /run/outside/nothing $P
loop of links | ln -s $P $P
hard link | ln /run/outside/secret $P
fifo | mkfifo $P
socket
device | mknod $P c 1 5
directory | mkdir $P && echo x > $P/x
endless | truncate -s 1T $P
noise | head -c 60000 /dev/urandom > $P
empty | : > $P
unreadable | echo '{}' > $P && chmod 0 $P
of another | echo '{}' > $P && chmod 600 $P && chown 65534 $P
";

/// A kind of file, and its script.
type Plant = [&'static str; 2];

/// An administrator may put a link to a directory in the place of one of ours.
const LINK_TO_DIRECTORY: &str = "link to a directory";

/// Every plant at each place; in the ordinary run and at each turn a third of them, a different third for each
/// place.
fn plantings<'a>(places: &[&'a str]) -> Vec<(&'a str, Plant)> {
    let at = |(turn, place): (usize, &&'a str)| {
        let place = *place;
        sample(cells(PLANTS), 3, turn).into_iter().map(move |plant| (place, plant))
    };
    places.iter().enumerate().flat_map(at).collect()
}

/// Whether it can be made here: only root can make devices and files of another user.
fn can_be_made([kind, _]: Plant) -> bool {
    is_root() || !["device", "of another"].contains(&kind)
}

/// Creates the plant at `path`, where no file is. False if it cannot be made here.
fn put(lab: &Lab, path: &str, plant: Plant) -> bool {
    match plant {
        ["socket", _] => UnixListener::bind(lab.path(path)).is_ok(),
        [_, script] if can_be_made(plant) => {
            lab.host.sh(&format!("P='{path}'; {script}"));
            true
        }
        _ => false,
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
    let entries = [&root, &directory].into_iter().flat_map(|dir| dir.read_dir().unwrap());
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
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

/// Runs a case of our plugin on a field. Nothing may be wrong in the end.
fn on_a_field(plugin: &str, case: impl Fn(&Lab, &Field<'_>)) {
    for_ours(plugin, |lab| {
        let field = Field::new(lab);
        case(lab, &field);
        let wrong = field.wrong.borrow();
        assert!(wrong.is_empty(), "{} were wrong:\n{}", wrong.len(), wrong.join("\n"));
    });
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
        let is_there = put(self.lab, path, plant);
        if !is_there {
            cell.restore();
        }
        is_there.then_some(cell)
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

    /// Makes such a call of an attachment with each of these commands.
    fn calls(&self, attachment: &Attachment<'_>, commands: &str, result: &Value) {
        for command in commands.split(' ') {
            self.call(command, attachment.call(command, Some(result)));
        }
    }

    /// The same for a command that reports errors as text.
    fn call_of_people(&self, what: &str, call: Call) -> Outcome {
        let before = outside(self.field.lab);
        let mut call = bounded(call);
        if self.plant[0] == "unreadable" {
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
            let wrong = format!("{} at {}: {what}: {found:?}", self.plant[0], self.path);
            self.field.wrong.borrow_mut().push(wrong);
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
    for plant in cells(PLANTS).into_iter().filter(|plant| can_be_made(*plant)) {
        let cell = field.plant("/run/x/y", plant).expect("it can be planted");
        lab.host.sh("[ -e /run/x/y ] || [ -L /run/x/y ]");
        cell.restore();
        lab.host.sh("[ ! -e /run/x/y ] && [ ! -L /run/x/y ]");
    }
    let cell = field.plant("/run/x/y", cells(PLANTS)[0]).unwrap();
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
