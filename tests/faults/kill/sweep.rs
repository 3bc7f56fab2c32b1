//! The kill sweep of one subject: every command, every point, and what is left afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use serde_json::{Value, json};

use crate::faults::life::{Life, OPERATIONS, Runtime, configure};
use crate::faults::table::tell_points;
use crate::support::call::Call;
use crate::support::case;
use crate::support::dhcp::wait_until;
use crate::support::extent::{is_long, one_in};
use crate::support::netns::{Container, Lab};
use crate::support::networks::portmap::assert_localnet_is_guarded;
use crate::support::networks::stacked::hasty_container;
use crate::support::probe::Probe;
use crate::support::snapshot::Watch;
use crate::support::subject::Subject;
use crate::support::tracer::{Then, Traced, trace};

/// The number of kills between two comparisons with a whole `Watch`.
const WATCHED: usize = 100;

/// Fails until the VLAN is free. The kernel deletes the links of a namespace some time after the
/// namespace, and a VLAN ID exists only once per link.
const TAKE_THE_VLAN: &str = "ip link add free link uplink type vlan id 100 && ip link del free";

/// The moment at which a call is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// After this number of successful changing calls.
    AfterChange(usize),
    /// Before the plugin's system call of this number. Calls of programs that it starts are not
    /// counted: they are many, and `AfterChange` covers what they change.
    BeforeCall(usize),
}

/// What the runtime does after the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// DEL, as after any failed ADD or DEL.
    Del,
    /// ADD at once, which may fail, then DEL. A new ADD then works.
    Add,
    /// The namespace is deleted, then DEL.
    DelOfTheGone,
    /// The namespace is deleted, then DEL without CNI_NETNS.
    DelWithoutNetns,
    /// The namespace is deleted, then GC with only the other attachments valid.
    GcOfTheGone,
    /// GC while the namespace still exists; then the namespace is deleted with its links. A link
    /// killed before its owner was recorded is one end of a pair and goes with the other end.
    Gc,
}

impl Way {
    const ALL: [Way; 6] =
        [Way::Del, Way::Add, Way::DelOfTheGone, Way::DelWithoutNetns, Way::GcOfTheGone, Way::Gc];

    fn needs_no_namespace(self) -> bool {
        !matches!(self, Way::Del | Way::Add)
    }
}

/// Which processes of a call are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    All,
    /// Programs that the plugin has started live on and finish their work.
    PluginAlone,
}

/// Runs a call and kills it at the point. Returns a description of the system call there.
fn run_to(call: &Call, point: Point, kill: Kill) -> (Traced, String) {
    let (mut changes, mut own_calls, mut described) = (0, 0, String::new());
    let traced = trace(call, |stop| {
        own_calls += usize::from(stop.is_own && stop.result.is_none());
        changes += usize::from(stop.changes() && stop.result.is_some_and(|result| result >= 0));
        let is_entry = stop.result.is_none();
        let is_there = match point {
            Point::AfterChange(wanted) => !is_entry && changes == wanted,
            Point::BeforeCall(wanted) => stop.is_own && is_entry && own_calls == wanted,
        };
        if !is_there {
            return Then::Go;
        }
        described = stop.describe();
        if kill == Kill::All { Then::Kill } else { Then::KillProgram }
    });
    (traced, described)
}

struct Sweep<'a> {
    lab: &'a Lab,
    subject: &'a Subject,
    runtime: Runtime,
    neighbour: Option<Life<'a>>,
    life: Life<'a>,
    /// Watches host, neighbour and container.
    all: Probe<'a>,
    /// Watches host and neighbour.
    outside: Probe<'a>,
    watch: Watch<'a>,
    points: usize,
    /// Selects the way of the next kill.
    turn: usize,
}

/// Runs the whole sweep of a subject, and tells its rows of the table.
pub fn run(lab: &Lab, subject: &Subject, runtime: Runtime) {
    let [first, neighbours, swept] = [(), (), ()].map(|()| hasty_container(lab));
    // The kernel keeps some state in a namespace: the addresses of `lo` after its first start, and
    // the rule of the first VRF.
    let is_never_as_new = ["loopback", "vrf"].contains(&subject.name);
    let other = beside(subject);
    configure(lab, subject, "/run/net.d");
    other.iter().for_each(|other| configure(lab, other, "/run/other.d"));
    let warm_up = Life::new(lab, runtime, subject, if is_never_as_new { &swept } else { &first });
    warm_up.del(&warm_up.add(warm_up.steps()));
    let before = Watch::start(lab, &[&swept]);
    let neighbour = other
        .as_ref()
        .map(|other| Life::new(lab, runtime, other, &neighbours).configured_in("/run/other.d"));
    let result = neighbour.as_ref().map(|neighbour| neighbour.add(neighbour.steps()));
    let life = Life::new(lab, runtime, subject, &swept).beside(neighbour.as_ref());
    let mut sweep = Sweep {
        lab,
        subject,
        runtime,
        neighbour,
        life,
        all: Probe::start(lab, &[&swept, &neighbours]),
        outside: Probe::start(lab, &[&neighbours]),
        watch: Watch::start(lab, &[&swept, &neighbours]),
        points: 0,
        turn: 0,
    };
    for step in 0..sweep.life.steps() {
        for operation in OPERATIONS {
            sweep.points = 0;
            let calls = sweep.operation(step, operation);
            let operation = &format!("{} {operation}", sweep.life.step_name(step));
            tell_points("kills", [subject.name, operation], [calls, sweep.points, 0]);
            assert!(sweep.points > 0, "{operation} was not killed");
        }
    }
    sweep.watch.assert_unchanged("all kills");
    if let (Some(neighbour), Some(result)) = (&sweep.neighbour, &result) {
        neighbour.check(result);
        neighbour.del(result);
    }
    before.assert_unchanged("the neighbour's end");
}

/// The same network for the neighbour, except for what only one attachment can have: a host port, a
/// device, a VLAN ID, and the address of a macvlan.
fn beside(subject: &Subject) -> Option<Subject> {
    let others = |conf: &Value| {
        let mut conf = conf.clone();
        if conf["mac"].is_string() {
            conf["mac"] = json!("02:00:00:00:00:99");
        }
        if conf["vlanId"].is_u64() {
            conf["vlanId"] = json!(101);
        }
        let mappings = conf.pointer_mut("/runtimeConfig/portMappings");
        for mapping in mappings.and_then(Value::as_array_mut).into_iter().flatten() {
            mapping["hostPort"] = json!(mapping["hostPort"].as_u64().unwrap() + 1000);
        }
        conf
    };
    let plugins = subject.plugins.iter().map(others).collect();
    let has_devices = ["host-device", "bond"].iter().any(|it| subject.plugins[0]["type"] == *it);
    (!has_devices).then_some(Subject { plugins, ..*subject })
}

impl<'a> Sweep<'a> {
    /// Tries all points of one plugin's operation. Returns the number of its system calls without a
    /// kill.
    fn operation(&mut self, step: usize, operation: &'static str) -> usize {
        let mut calls = 0;
        if operation == "CHECK" {
            return self.check(step);
        }
        let is_whole = self.subject.is_swept_whole();
        let ways = if is_whole { Way::ALL.len() } else { 1 };
        let has_programs = self.subject.starts_programs();
        let distance = if is_long() || !has_programs { one_in(3) } else { 4 * one_in(2) };
        let first = 1 + case::turn().unwrap_or_default() % distance;
        for change in (first..).step_by(distance) {
            let mut all_killed = true;
            for _ in 0..ways {
                let traced = self.kill_one(step, operation, Point::AfterChange(change));
                all_killed &= traced.killed;
                calls = traced.calls;
            }
            if !all_killed {
                break;
            }
        }
        // An operation without changes has no other points.
        let has_single_calls = is_whole || self.points == 0;
        for call in (1..).step_by(one_in(4)).take_while(|_| has_single_calls) {
            if !self.kill_one(step, operation, Point::BeforeCall(call)).killed {
                break;
            }
        }
        calls
    }

    /// Makes one kill and continues as the runtime does.
    fn kill_one(&mut self, step: usize, operation: &'static str, point: Point) -> Traced {
        let way = Way::ALL[self.turn % Way::ALL.len()];
        let is_odd = (self.turn + self.turn / Way::ALL.len()) % 2 == 1;
        let kill =
            if self.subject.starts_programs() && is_odd { Kill::PluginAlone } else { Kill::All };
        self.turn += 1;
        let mut traced = None;
        let reach = |life: &Life<'_>, traced: &mut Option<(Traced, String)>| {
            let (call, known) = begin(life, step, operation);
            let ran = run_to(&call, point, kill);
            assert_localnet_is_guarded(&self.lab.host);
            let (Traced { killed, outcome, .. }, _) = &ran;
            assert!(*killed || outcome.status == 0, "{operation} failed: {outcome:?}");
            *traced = Some(ran);
            known
        };
        let tried = catch_unwind(AssertUnwindSafe(|| {
            if way.needs_no_namespace() {
                let container = hasty_container(self.lab);
                let life = Life::new(self.lab, self.runtime, self.subject, &container)
                    .beside(self.neighbour.as_ref());
                let result = reach(&life, &mut traced);
                if way == Way::Gc {
                    life.gc();
                }
                self.vanish(&container);
                go_on(&life, way, &result);
                self.outside.assert_unchanged("the kill");
            } else {
                let result = reach(&self.life, &mut traced);
                go_on(&self.life, way, &result);
                self.all.assert_unchanged("the kill");
            }
            if self.points % WATCHED == WATCHED - 1 {
                self.watch.assert_unchanged("the last kills");
            }
        }));
        if let Err(panic) = tried {
            let name = self.life.step_name(step);
            let call = traced.map_or_else(|| "not yet made".to_owned(), |(_, call)| call);
            let subject = self.subject.name;
            eprintln!("{subject}: {name} {operation}, {point:?} {call}, {kill:?}, then {way:?}");
            resume_unwind(panic);
        }
        let (traced, _) = traced.unwrap();
        self.points += usize::from(traced.killed);
        traced
    }

    /// Deletes the namespace. The tests' device is one end of a pair and goes with it; a physical
    /// device would return to the machine's initial namespace.
    fn vanish(&self, container: &Container) {
        let mut lent = self.lent();
        lent.retain(|(device, _)| self.lab.host.link(device).is_none());
        container.vanish();
        for (_, far) in &lent {
            wait_until("the device is gone", 10, || self.lab.outside.link(far).is_none());
        }
        if !lent.is_empty() {
            self.make_devices_again();
        }
        if self.subject.name == "vlan" {
            let is_free = || self.lab.host.try_sh(TAKE_THE_VLAN).status.success();
            wait_until("the VLAN is free", 10, is_free);
        }
    }

    /// The devices of the host that the subject takes, each with its other end outside.
    fn lent(&self) -> Vec<(&'static str, &'static str)> {
        match self.subject.name {
            "host-device" => vec![("dev0", "peer0")],
            "bond" => vec![("port0", "far0"), ("port1", "far1")],
            _ => vec![],
        }
    }

    /// Makes the devices that went with the container; of several, one may be left.
    fn make_devices_again(&self) {
        if self.subject.name == "bond" {
            self.lab.host.try_sh("ip link del port0; ip link del port1");
            self.lab.outside.sh("ip link del wire");
        }
        assert!((self.subject.prepare)(self.lab));
    }

    /// CHECK changes nothing, killed or not.
    fn check(&mut self, step: usize) -> usize {
        let result = self.life.add(self.life.steps());
        let attached = Probe::start(self.lab, &[self.life.container]);
        let call = self.life.call(step, "CHECK", &result);
        let (whole, _) = run_to(&call, Point::BeforeCall(usize::MAX), Kill::All);
        assert_eq!(whole.outcome.status, 0, "CHECK failed: {:?}", whole.outcome);
        let distance = if self.subject.is_swept_whole() { 1 } else { 25 };
        for number in (1..).step_by(distance) {
            if !run_to(&call, Point::BeforeCall(number), Kill::All).0.killed {
                break;
            }
            self.points += 1;
            attached.assert_unchanged("a CHECK that was killed");
        }
        self.life.del(&result);
        self.all.assert_unchanged("CHECKs that were killed");
        whole.calls
    }
}

/// Brings the attachment to the start of the operation. Returns its call, and the result that the runtime knows
/// afterwards.
fn begin(life: &Life<'_>, step: usize, operation: &str) -> (Call, Value) {
    if operation == "ADD" {
        return (life.call(step, operation, &life.add(step)), Value::Null);
    }
    let result = life.add(life.steps());
    if operation == "DEL" {
        let later = (step + 1..life.steps()).rev();
        later.for_each(|step| drop(life.call(step, "DEL", &result).run().ok()));
    }
    (life.call(step, operation, &result), result)
}

fn go_on(life: &Life<'_>, way: Way, result: &Value) {
    match way {
        // `net gc` reads the attachments from its cache, and this one was still valid at the first
        // GC.
        Way::Gc if life.is_net() => life.gc(),
        Way::Gc => (),
        Way::Del => life.del(result),
        Way::DelOfTheGone => life.del(&Value::Null),
        Way::DelWithoutNetns => life.del_without_netns(),
        Way::GcOfTheGone => life.gc(),
        Way::Add => {
            if let Err(outcome) = life.try_add(life.steps()) {
                let is_panic = [&outcome.stderr, &outcome.stdout].map(|it| it.contains("panicked"));
                assert_eq!((outcome.status, is_panic), (1, [false; 2]), "{outcome:?}");
            }
            life.del(&Value::Null);
            let result = life.add(life.steps());
            life.check(&result);
            life.del(&result);
        }
    }
}
