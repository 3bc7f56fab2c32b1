//! The sweep of one subject.

use nix::errno::Errno;
use serde_json::{Value, json};

use super::fault::{CONF_DIR, Fault, Point, points, run, words};
use crate::faults::life::{Life, Runtime, configure};
use crate::faults::subject::{Subject, is_emulated, is_long, place_of};
use crate::faults::tell;
use crate::plugins::main::stacked::hasty_container;
use crate::support::attachment::Attachment;
use crate::support::call::{Call, Outcome};
use crate::support::netns::{Lab, Namespace};
use crate::support::probe::Probe;

/// What a runtime calls, and what it does when that has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Add,
    Del,
    Gc,
    Check,
}

struct Sweep<'a> {
    lab: &'a Lab,
    subject: &'a Subject,
    container: &'a Namespace,
    /// Who is called: the type of a plugin, or `net`.
    name: &'a str,
    /// How the order of its lines in the table begins.
    place: usize,
    probe: Probe<'a>,
    tried: usize,
    found: Vec<String>,
}

impl<'a> Sweep<'a> {
    fn new(
        lab: &'a Lab,
        subject: &'a Subject,
        container: &'a Namespace,
        name: &'a str,
        place: usize,
    ) -> Sweep<'a> {
        let probe = Probe::start(lab, &[container]);
        Sweep { lab, subject, container, name, place, probe, tried: 0, found: vec![] }
    }

    /// Every fault of an operation, and its line in the table. `before` makes what it is about and
    /// says what there is then, `after` ends it.
    fn over(
        &mut self,
        operation: Operation,
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
        // What changes nothing and keeps nothing has no other points.
        let (points, traced) = if chosen.0.is_empty() { sweep(true) } else { chosen };
        let tried_before = self.tried;
        for point in points.into_iter().step_by(one_of(self.subject)) {
            self.at(operation, &call(&before()), point, &after);
        }
        let (order, of) =
            (self.place + operation as usize, format!("{operation:?}").to_uppercase());
        let (tried, borne) =
            (self.tried - tried_before, if self.found.is_empty() { "0" } else { "some" });
        tell(&format!(
            "{order:05} | {} | {} {of} | {} | {tried} | {borne} |",
            self.subject.name, self.name, traced.calls
        ));
    }

    /// What tuning and host-device are refused for good when they give back what an interface had
    /// they say once, and do not fail for ever; GC forgets what tuning would give back. The
    /// master counts who listens to everything. sbr and vrf leave the interface's routes to the
    /// DEL of the interface.
    fn is_by_contract(
        &self,
        operation: Operation,
        outcome: &Outcome,
        fault: Fault,
        what: &str,
    ) -> bool {
        let is_for_good =
            outcome.status != 0 && matches!(fault.errno(), Errno::EPERM | Errno::EACCES);
        let of_links =
            || what.lines().skip(1).all(|line| line.is_empty() || line.get(1..6) == Some(" link"));
        // An ADD whose result nobody gets is undone by DEL.
        let is_untold =
            outcome.stdout.contains("write to stdout") && ["sbr", "vrf"].contains(&self.name);
        if operation == Operation::Add && is_untold && what.starts_with("left by the failed ADD:\n")
        {
            return what
                .lines()
                .skip(1)
                .all(|line| line.is_empty() || line.get(1..7) == Some(" route"));
        }
        let is_del = matches!(operation, Operation::Del | Operation::Gc);
        is_del
            && what.starts_with("left after DEL:\n")
            && match self.name {
                "tuning" => of_links() && (is_for_good || operation == Operation::Gc),
                "host-device" => is_for_good,
                _ => false,
            }
    }

    fn at(&mut self, operation: Operation, call: &Call, point: Point, after: &impl Fn()) {
        let (outcome, described) = run(call, point);
        let told =
            if self.name == "net" { told_to_people(&outcome) } else { told_to_runtimes(&outcome) };
        let mut wrong: Vec<String> = mistakes(&outcome, point.1, told).into_iter().collect();
        let mut compare = |when: &str| {
            let changes = self.probe.changes();
            if !changes.is_empty() {
                wrong.push(format!("{when}:\n{changes}"));
            }
        };
        if operation == Operation::Add && outcome.status != 0 {
            compare("left by the failed ADD");
        }
        after();
        compare("left after DEL");
        if !wrong.is_empty() {
            self.probe = Probe::start(self.lab, &[self.container]); // once is enough
        }
        self.tried += usize::from(described.is_some());
        let described =
            described.unwrap_or_else(|| "nothing fails, for it goes another way".to_owned());
        wrong.retain(|what| !self.is_by_contract(operation, &outcome, point.1, what));
        if !wrong.is_empty() {
            let about = format!(
                "{}: {} {operation:?}, call {}: {described}: {}\n{outcome:?}",
                self.subject.name,
                self.name,
                point.0,
                wrong.join("; ")
            );
            eprintln!("{about}");
            self.found.push(about);
        }
    }
}

/// The short form has minutes for all networks: fewer points where programs are started, and where
/// the machine is emulated.
fn one_of(subject: &Subject) -> usize {
    match (is_long(), subject.starts_programs() || is_emulated()) {
        (true, _) => 1,
        (false, true) => 8,
        (false, false) => 2,
    }
}

/// The routes of a container's interface.
struct Routes([String; 2]);

impl Routes {
    fn of(container: &Namespace) -> Routes {
        Routes(["-4", "-6"].map(|family| container.sh(&format!("ip {family} route"))))
    }

    /// sbr and vrf move them to other tables, and leave it to the DEL of the interface to end them.
    fn put_back(&self, container: &Namespace) {
        for (family, routes) in ["-4", "-6"].into_iter().zip(&self.0) {
            // Those of the links come before those that go through them.
            let (through, of_links): (Vec<&str>, Vec<&str>) =
                routes.lines().partition(|route| route.contains(" via "));
            let batch: String = of_links
                .iter()
                .chain(&through)
                .map(|route| format!("route replace {route}\n"))
                .collect();
            container.sh(&format!("ip {family} -batch - <<'END'\n{batch}END"));
        }
    }
}

/// What is wrong with the outcome of a call in which something failed. `told` are the words of its
/// error, or what is wrong with them.
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

/// The error object on stdout.
pub fn told_to_runtimes(outcome: &Outcome) -> Result<String, &'static str> {
    let Ok(error) = serde_json::from_str::<Value>(&outcome.stdout) else {
        return Err("it failed without an error object");
    };
    match (error["code"].as_u64(), error["msg"].as_str()) {
        (Some(_), Some(msg)) if !msg.is_empty() => Ok(format!("{msg}: {}", error["details"])),
        _ => Err("the error object is not whole"),
    }
}

/// The words of `cni-multi net` on stderr.
fn told_to_people(outcome: &Outcome) -> Result<String, &'static str> {
    Some(outcome.stderr.clone()).filter(|text| !text.is_empty()).ok_or("it failed without a word")
}

/// The plugins one by one, as libcni runs them: each has its errors after those before it have had
/// none.
pub fn plugins_each_alone(lab: &Lab, subject: &Subject) {
    let container = hasty_container(lab);
    let plugins = subject.attach(lab, &container);
    let all = |plugins: &[Attachment<'_>]| {
        plugins.iter().fold(Value::Null, |result, plugin| {
            plugin.call("ADD", (!result.is_null()).then_some(&result)).run().ok()
        })
    };
    all(&plugins);
    plugins.iter().rev().for_each(Attachment::del);
    let mut found = vec![];
    for (at, plugin) in plugins.iter().enumerate() {
        let result = all(&plugins[..at]);
        let name = plugin.conf["type"].as_str().unwrap();
        let mut sweep =
            Sweep::new(lab, subject, &container, name, place_of(subject) * 1000 + at * 10);
        let previous = (!result.is_null()).then_some(&result);
        let attach = || plugin.call("ADD", previous).run().ok();
        let none = plugin.clone().conf(json!({"cni.dev/valid-attachments": []}));
        let routes = Routes::of(&container);
        let detach = || {
            plugin.del();
            if ["sbr", "vrf"].contains(&name) {
                routes.put_back(&container);
            }
        };
        sweep.over(Operation::Add, || Value::Null, |_| plugin.call("ADD", previous), detach);
        sweep.over(Operation::Del, attach, |attached| plugin.call("DEL", Some(attached)), detach);
        sweep.over(Operation::Gc, attach, |_| none.call("GC", None), detach);
        sweep.over(
            Operation::Check,
            attach,
            |attached| plugin.call("CHECK", Some(attached)),
            detach,
        );
        plugins[..at].iter().rev().for_each(Attachment::del);
        assert!(sweep.tried > 0, "nothing has failed");
        found.extend(sweep.found);
    }
    assert_none(&found);
}

/// The whole list in one process, with the result in the cache.
pub fn by_net(lab: &Lab, subject: &Subject) {
    let container = hasty_container(lab);
    configure(lab, subject, CONF_DIR);
    let life = Life::new(lab, Runtime::Net, subject, &container);
    let attach = || life.add(1);
    let detach = || life.del(&Value::Null);
    attach();
    detach();
    let mut sweep = Sweep::new(lab, subject, &container, "net", 91_000 + place_of(subject) * 10);
    sweep.over(Operation::Add, || Value::Null, |_| life.call(0, "ADD", &Value::Null), detach);
    sweep.over(Operation::Del, attach, |_| life.call(0, "DEL", &Value::Null), detach);
    sweep.over(Operation::Gc, attach, |_| life.call(0, "GC", &Value::Null), detach);
    sweep.over(Operation::Check, attach, |_| life.call(0, "CHECK", &Value::Null), detach);
    assert_none(&sweep.found);
    assert!(sweep.tried > 0, "nothing has failed");
}

pub fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "{} faults were not borne:\n{}", found.len(), found.join("\n"));
}
