//! An ADD that fails: its error says what to do, and the kernel is left as before.

use serde_json::{Map, Value};

use super::attachment::{Attachment, for_each_peer};
use super::call::{ErrorObject, Peer};
use super::netns::{Container, Lab};
use super::snapshot::Watch;

pub struct Case {
    pub what: &'static str,
    /// Prepares the host.
    pub host: &'static str,
    /// Prepares the container.
    pub container: &'static str,
    /// Changes to the configuration that the plugin's cases start from.
    pub changes: Value,
    /// The code of our error; `names` is text that the error has to contain.
    pub code: u64,
    pub names: &'static str,
    pub reference_leaves_something: bool,
}

/// The cases of a table, a line each: what fails; the changes to the configuration; the code and the text of our error;
/// then `host: ` or `in: ` with a script that prepares the host or the container, and `both` where the reference leaves
/// nothing either.
pub fn rows(table: &'static str) -> Vec<Case> {
    let case = |line: &'static str| {
        let mut cells = line.split(" | ");
        let [what, changes, error] =
            [(); 3].map(|()| cells.next().unwrap_or_else(|| panic!("{line} has a cell too few")));
        let changes = serde_json::from_str(changes).unwrap_or_else(|e| panic!("{line}: {e}"));
        let (code, names) = error.split_once(": ").unwrap();
        let case = Case::new(what, changes, code.parse().unwrap(), names);
        cells.fold(case, |case, cell| match cell.split_once(": ") {
            Some(("host", script)) => case.host(script),
            Some(("in", script)) => case.container(script),
            _ => {
                assert_eq!(cell, "both", "{line}");
                case.reference_leaves_nothing()
            }
        })
    };
    table.lines().filter(|line| !line.is_empty()).map(case).collect()
}

impl Case {
    pub fn new(what: &'static str, changes: Value, code: u64, names: &'static str) -> Case {
        Case {
            what,
            host: "true",
            container: "true",
            changes,
            code,
            names,
            reference_leaves_something: true,
        }
    }

    pub fn host(self, host: &'static str) -> Case {
        Case { host, ..self }
    }

    pub fn container(self, container: &'static str) -> Case {
        Case { container, ..self }
    }

    pub fn reference_leaves_nothing(self) -> Case {
        Case { reference_leaves_something: false, ..self }
    }
}

/// Runs the case in a lab; returns what has changed afterwards, and the error.
pub fn fail(lab: &Lab, conf: &Value, case: &Case) -> (String, ErrorObject) {
    let container = lab.container();
    fail_at(lab, &container, &lab.attach(&container, conf), case)
}

pub fn fail_at(
    lab: &Lab,
    container: &Container,
    at: &Attachment<'_>,
    case: &Case,
) -> (String, ErrorObject) {
    lab.host.sh(case.host);
    container.sh(case.container);
    let before = Watch::start(lab, &[container]);
    let error = at.clone().conf(case.changes.clone()).try_add().err();
    // For ours, wait until the kernel has finished its asynchronous teardown.
    let changes = if lab.peer == Peer::Ours { before.changes() } else { before.changes_now() };
    eprintln!("after {:?}: {changes}", case.what); // shown when the test fails
    (changes, error)
}

/// Both peers fail, ours with an error that says what to do. tests/differences records what the
/// reference leaves behind.
#[track_caller]
pub fn assert_fails(lab: &Lab, conf: &Value, case: &Case) {
    let container = lab.container();
    assert_fails_at(lab, &container, &lab.attach(&container, conf), case);
}

/// As `assert_fails`, for a network without a table.
#[track_caller]
pub fn assert_refused(lab: &Lab, conf: &Value, code: u64, names: &'static str) {
    assert_fails(lab, conf, &Case::new("the refused ADD", Value::Object(Map::new()), code, names));
}

/// As `assert_fails`, for an attachment, which may belong to a chained plugin.
#[track_caller]
pub fn assert_fails_at(lab: &Lab, container: &Container, at: &Attachment<'_>, case: &Case) {
    let (changes, error) = fail_at(lab, container, at, case);
    let ours = lab.peer == Peer::Ours;
    if ours || !case.reference_leaves_something {
        assert_eq!(changes, "", "left after \"{}\"", case.what);
    }
    if ours {
        assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
        assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
        assert!(!error.details.contains("undo:"), "{}: {error:?}", case.what);
    }
}

/// Runs the cases against each peer, each in a lab of its own.
pub fn assert_all_fail(plugin: &str, conf: &Value, cases: &[Case]) {
    cases.iter().for_each(|case| for_each_peer(plugin, |lab| assert_fails(lab, conf, case)));
}
