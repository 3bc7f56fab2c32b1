//! The error sweep of one subject: every command, every point, and what is left afterwards.

use std::fmt;

use nix::errno::Errno;
use serde_json::Value;

use super::fault::{Fault, Point, points, run, words};
use crate::faults::life::{Life, OPERATIONS, Runtime, configure};
use crate::faults::table::tell_points;
use crate::support::call::{Call, Outcome};
use crate::support::case;
use crate::support::extent::{Extent, extent, is_emulated, one_in};
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::stacked::hasty_container;
use crate::support::probe::Probe;
use crate::support::snapshot::{Change, lines};
use crate::support::subject::Subject;

struct Sweep<'a> {
    lab: &'a Lab,
    subject: &'a Subject,
    container: &'a Namespace,
    /// The type of the called plugin, or `net`.
    name: &'a str,
    probe: Probe<'a>,
    tried: usize,
    found: Vec<String>,
}

impl Sweep<'_> {
    /// Tries every fault of an operation and writes its row of the table. `before` creates the
    /// starting state and returns the result known so far; `after` cleans up.
    fn over(
        &mut self,
        operation: &'static str,
        before: impl Fn() -> Value,
        call: impl Fn(&Value) -> Call,
        after: impl Fn(),
    ) {
        let sweep = |is_whole| {
            let (points, traced) = points(&call(&before()), is_whole);
            traced.outcome.clone().ok();
            after();
            (points, traced)
        };
        let chosen = sweep(self.subject.is_swept_whole());
        // An operation that changes and keeps nothing has no points in the short form.
        let (points, traced) = if chosen.0.is_empty() { sweep(true) } else { chosen };
        let tried_before = self.tried;
        let distance = one_of(self.subject);
        let first = case::turn().unwrap_or_default() % distance.min(points.len().max(1));
        for point in points.into_iter().skip(first).step_by(distance) {
            self.at(operation, &call(&before()), point, &after);
        }
        let operation = &format!("{} {operation}", self.name);
        let counts = [traced.calls, self.tried - tried_before, self.found.len()];
        tell_points("errors", [self.subject.name, operation], counts);
    }

    /// What the contract allows to be left. tuning, host-device and bond report once what the kernel
    /// permanently refuses to restore, so that they do not fail for ever; GC drops tuning's
    /// backups. sbr, vrf and route-override leave the interface's routes to the DEL of the
    /// interface.
    fn is_by_contract(
        &self,
        operation: &str,
        outcome: &Outcome,
        fault: Fault,
        wrong: &Wrong,
    ) -> bool {
        let is_for_good =
            outcome.status != 0 && matches!(fault.errno(), Errno::EPERM | Errno::EACCES);
        match (wrong, operation, self.name) {
            // An ADD that cannot write its result is undone as by DEL.
            (Wrong::LeftByAdd(changes), _, "sbr" | "vrf" | "route-override") => {
                outcome.stdout.contains("write to stdout") && are_all_of("route", changes)
            }
            // The master counts its promiscuous links.
            (Wrong::LeftAfterDel(changes), "GC", "tuning") => are_all_of("link", changes),
            (Wrong::LeftAfterDel(changes), "DEL", "tuning") => {
                is_for_good && are_all_of("link", changes)
            }
            (Wrong::LeftAfterDel(_), "DEL" | "GC", "host-device" | "bond") => is_for_good,
            _ => false,
        }
    }

    fn at(&mut self, operation: &str, call: &Call, point: Point, after: &impl Fn()) {
        let (outcome, described) = run(call, point);
        let told =
            if self.name == "net" { told_to_people(&outcome) } else { told_to_runtimes(&outcome) };
        let mut wrong = vec![];
        wrong.extend(mistakes(&outcome, point.1, told).map(Wrong::Outcome));
        if operation == "ADD" && outcome.status != 0 {
            wrong.extend(self.changes().map(Wrong::LeftByAdd));
        }
        after();
        wrong.extend(self.changes().map(Wrong::LeftAfterDel));
        if !wrong.is_empty() {
            // Report the same difference only once.
            self.probe = Probe::start(self.lab, &[self.container]);
        }
        self.tried += usize::from(described.is_some());
        let described =
            described.unwrap_or_else(|| "nothing fails, for it goes another way".to_owned());
        wrong.retain(|wrong| !self.is_by_contract(operation, &outcome, point.1, wrong));
        if !wrong.is_empty() {
            let wrong: Vec<String> = wrong.iter().map(Wrong::to_string).collect();
            let about = format!(
                "{}: {} {operation}, call {}: {described}: {}\n{outcome:?}",
                self.subject.name,
                self.name,
                point.0,
                wrong.join("; ")
            );
            eprintln!("{about}");
            self.found.push(about);
        }
    }

    /// What differs from the state before the call, if anything.
    fn changes(&self) -> Option<Vec<Change>> {
        Some(self.probe.changes()).filter(|changes| !changes.is_empty())
    }
}

/// What is wrong with a call in which a system call failed.
enum Wrong {
    /// The way in which the call ended.
    Outcome(String),
    LeftByAdd(Vec<Change>),
    LeftAfterDel(Vec<Change>),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Outcome(what) => f.write_str(what),
            Wrong::LeftByAdd(changes) => write!(f, "left by the failed ADD:\n{}", lines(changes)),
            Wrong::LeftAfterDel(changes) => write!(f, "left after DEL:\n{}", lines(changes)),
        }
    }
}

fn are_all_of(kind: &str, changes: &[Change]) -> bool {
    changes.iter().all(|change| change.kind() == kind)
}

/// The short forms have minutes for all networks: they try fewer points where programs are started
/// or the machine is emulated.
fn one_of(subject: &Subject) -> usize {
    let is_slow = subject.starts_programs() || is_emulated();
    match (extent(), is_slow) {
        (Extent::Long, _) => 1,
        (Extent::Whole, true) => 12 * one_in(2),
        (Extent::Whole, false) => 3 * one_in(2),
        (Extent::Ordinary, _) => 24,
    }
}

/// The routes of a container's interface.
struct Routes([String; 2]);

impl Routes {
    fn of(container: &Namespace) -> Routes {
        Routes(["-4", "-6"].map(|family| container.sh(&format!("ip {family} route"))))
    }

    /// sbr and vrf move the routes to other tables, route-override replaces them; the DEL of the
    /// interface deletes them.
    fn put_back(&self, container: &Namespace) {
        for (family, routes) in ["-4", "-6"].into_iter().zip(&self.0) {
            // Link routes come before the routes that go through them.
            let (through, of_links): (Vec<&str>, Vec<&str>) =
                routes.lines().partition(|route| route.contains(" via "));
            let all = of_links.iter().chain(&through);
            let batch: String = all.map(|route| format!("route replace {route}\n")).collect();
            let flush = ["main", "300"]
                .map(|table| format!("ip {family} route flush table {table} dev eth0 2>/dev/null"))
                .join("; ");
            container.sh(&format!("{flush}; ip {family} -batch - <<'END'\n{batch}END"));
        }
    }
}

/// What is wrong with the outcome of a call in which a system call failed. `told` is the text of
/// its error, or what is wrong with the error.
pub fn mistakes(outcome: &Outcome, fault: Fault, told: Result<String, &str>) -> Option<String> {
    if outcome.status == -1 || outcome.stderr.contains("panicked") {
        return Some("it did not end by itself".to_owned());
    }
    if outcome.status == 0 {
        return None;
    }
    if fault.errno() == Errno::EINTR {
        return Some("an interrupted call is no failure".to_owned());
    }
    match told.map(|text| text.to_lowercase()) {
        Err(problem) => Some(problem.to_owned()),
        Ok(text) if text.contains("panicked") || text.contains("bug") => Some("a panic".to_owned()),
        Ok(text) => {
            (!text.contains(&words(fault.errno()))).then(|| "the error does not say why".to_owned())
        }
    }
}

/// The text of the error object on stdout.
pub fn told_to_runtimes(outcome: &Outcome) -> Result<String, &'static str> {
    let Ok(error) = serde_json::from_str::<Value>(&outcome.stdout) else {
        return Err("it failed without an error object");
    };
    match (error["code"].as_u64(), error["msg"].as_str()) {
        (Some(_), Some(msg)) if !msg.is_empty() => Ok(format!("{msg}: {}", error["details"])),
        _ => Err("the error object is not whole"),
    }
}

/// The text of `cni-multi net` on stderr.
fn told_to_people(outcome: &Outcome) -> Result<String, &'static str> {
    Some(outcome.stderr.clone()).filter(|text| !text.is_empty()).ok_or("it failed without a word")
}

/// Sweeps each plugin of a list after the ones before it have succeeded, or the whole list in one process.
pub fn run_each(lab: &Lab, subject: &Subject, runtime: Runtime) {
    let container = hasty_container(lab);
    configure(lab, subject, "/run/net.d");
    let life = Life::new(lab, runtime, subject, &container);
    life.del(&life.add(life.steps())); // creates what stays by contract
    let mut found = vec![];
    for step in 0..life.steps() {
        let (result, name) = (life.add(step), life.step_name(step));
        let probe = Probe::start(lab, &[&container]);
        let (container, tried) = (&container, 0);
        let mut sweep = Sweep { lab, subject, container, name, probe, tried, found: vec![] };
        let routes = Routes::of(container);
        let detach = || {
            life.call(step, "DEL", &Value::Null).run().ok();
            if ["sbr", "vrf", "route-override"].contains(&name) {
                routes.put_back(container);
            }
        };
        for operation in OPERATIONS {
            let attach = || match operation {
                "ADD" => result.clone(),
                _ => life.call(step, "ADD", &result).run().ok(),
            };
            sweep.over(operation, attach, |known| life.call(step, operation, known), detach);
        }
        (0..step).rev().for_each(|step| drop(life.call(step, "DEL", &Value::Null).run().ok()));
        assert!(sweep.tried > 0, "nothing has failed");
        found.extend(sweep.found);
    }
    assert_none(&found);
}

pub fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "{} faults were not borne:\n{}", found.len(), found.join("\n"));
}
