//! `reclaimAfter`: daemons reclaim the nodes without a heartbeat.
//!
//! The shortest time that a daemon accepts is ten minutes. So one test drives the state machine with a clock of
//! its own against a real etcd, and another one changes the limit in the daemon's file.

use std::collections::VecDeque;
use std::time::Duration;

use cni_multi::plugins::ipam::cluster_local::engine::{
    Claimed, ConflictNote, Ground, Identity, NodeRecord, NodeState, Operation, Standing,
};
use cni_multi::plugins::ipam::cluster_local::held::{Blocks, Token};
use cni_multi::plugins::ipam::cluster_local::machine::{
    Action, Event, Machine, NodeFile, Setup, Turn, Written,
};
use cni_multi::sys::random::Random;
use serde_json::{Value, json};

use super::daemon::{WIDE, etcd};
use super::etcd::{block, name, node_state, realm, realm_state, written};
use crate::support::etcd::{Driver, Etcd, ONE};
use crate::support::node::Node;

/// The file of blocks of the network.
const FILE: &str = "/var/lib/cni/cluster-local/pods/blocks.json";

/// A node's state machine, its clock, and its client of etcd.
struct Observer {
    machine: Machine,
    driver: Driver,
    random: Random,
    now: Duration,
    log: Vec<String>,
}

impl Observer {
    fn new(number: u128) -> Observer {
        let setup = Setup {
            node: name(&format!("observer-{number}")),
            uid: Token(number),
            version: "0.1.0".to_owned(),
            boot: "boot".to_owned(),
            settle: Duration::ZERO,
            reclaim_after: Some(Duration::from_secs(600)),
            is_complete: true,
        };
        let now = Duration::from_secs(1);
        let networks = vec![(name("net"), Blocks::new(realm(), vec![], 0))];
        let machine = Machine::new(setup, NodeFile::default(), networks, now);
        let (driver, random) = (Driver::of(&[ONE]), Random::seeded(number as u64));
        Observer { machine, driver, random, now, log: vec![] }
    }

    /// Lets this time pass, and wakes the machine at each of its deadlines.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.machine.deadline() <= end {
            self.now = self.machine.deadline();
            self.give(Event::Time);
        }
        self.now = end;
    }

    fn give(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event, Turn::new(self.now, 0, &mut self.random)) {
                events.extend(self.act(action));
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Write { id, .. } => return Some(Event::Written { id, written: Written::Done }),
            Action::Send { operation: Operation::Watch { .. }, .. } => (), // this test needs no hints
            Action::Send { id, operation } => {
                return Some(Event::Outcome { id, outcome: self.driver.run(operation) });
            }
            Action::Log(line) => self.log.push(line.to_string()),
            Action::Reply { .. } => (),
        }
        None
    }
}

/// A node that has a block, the address of a name and a note in etcd, and sends no heartbeat.
fn leave_a_node(driver: &mut Driver) {
    let record = NodeRecord {
        uid: Token(7),
        incarnation: 0,
        standing: Standing::Live,
        version: "0.1.0".to_owned(),
        reclaim_after: Some(600),
    };
    let register = Operation::Register { node: name("gone"), record, seen: 0 };
    let ground = Ground { node_revision: written(&driver.run(register)), epoch: 0 };
    let owner = Identity { node: name("gone"), uid: Token(7), incarnation: 0 };
    for (at, sticky) in [("4-0a580100-26", None), ("4-0a58ff07-32", Some("net/web"))] {
        let claimed = Claimed {
            owner: owner.clone(),
            token: Token(1),
            sticky: sticky.map(str::to_owned),
            vacant: false,
        };
        let claim = Operation::Claim { realm: realm(), block: block(at), claimed, ground };
        written(&driver.run(claim));
    }
    let note = Some(ConflictNote { by: owner, leases: 1 });
    let note = Operation::NoteConflict { realm: realm(), block: block("4-0a580140-26"), note };
    written(&driver.run(note));
}

fn state_of_gone(driver: &mut Driver) -> NodeState {
    node_state(driver.run(Operation::ReadNode { node: name("gone") }))
}

#[test]
fn two_observers_reclaim_an_absent_node_of_a_real_etcd_once() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        leave_a_node(&mut driver);
        let mut observers = [Observer::new(1), Observer::new(2)];
        let each = |observers: &mut [Observer; 2], seconds| {
            observers.iter_mut().for_each(|one| one.pass(Duration::from_secs(seconds)));
        };
        observers.iter_mut().for_each(|one| one.give(Event::Time));
        each(&mut observers, 590);
        assert_eq!(state_of_gone(&mut driver).record.unwrap().value.standing, Standing::Live);
        each(&mut observers, 100);
        let record = state_of_gone(&mut driver).record.unwrap().value;
        assert_eq!((record.standing, record.incarnation), (Standing::Fenced, 1));
        let (_, left) = realm_state(driver.run(Operation::List { realm: realm() }));
        assert!(left.blocks.is_empty() && left.notes.is_empty(), "{left:?}");
        let said = observers.iter().flat_map(|one| &one.log);
        let said = said.filter(|line| line.starts_with("node \"gone\" has sent no heartbeat"));
        assert_eq!(said.count(), 1, "only one observer has fenced it");
        let name = etcd.members[0].ctl("get --prefix /cni-multi/v1/test/r/default/s/");
        assert_eq!(name.trim(), "");
    });
}

fn file(node: &Node) -> Value {
    serde_json::from_str(&node.lab.host.sh(&format!("cat {FILE}"))).unwrap()
}

/// The seconds since boot.
fn uptime(node: &Node) -> u64 {
    let text = node.lab.host.sh("cut -d. -f1 /proc/uptime");
    text.trim().parse().unwrap()
}

#[test]
fn a_node_past_its_limit_allocates_no_address() {
    let Some(etcd) = etcd() else { return };
    let one = Node::configured(&etcd, 1, &json!({"reclaimAfter": 600}));
    one.start();
    let old = one.add(WIDE, "a");
    let record = etcd.members[0].ctl("get --print-value-only /cni-multi/v1/test/n/n1");
    assert!(record.contains("\"reclaimAfter\":600"), "{record}");
    let (now, until) = (uptime(&one), file(&one)["until"].as_u64().unwrap());
    assert!((now + 270..=now + 450).contains(&until), "{until} at {now}");
    one.kill();
    one.add(WIDE, "b"); // before the limit, ADD needs no daemon
    one.lab.host.sh(&format!("sed -i 's/\"until\":[0-9]*/\"until\":1/' {FILE}"));
    let refused = one.try_add(WIDE, "c").err();
    assert_eq!(refused.code, 11, "{refused:?}");
    assert!(refused.details.contains("no address that it may use now"), "{refused:?}");
    let status = one.status(WIDE).err();
    assert_eq!(status.code, 50, "{status:?}");
    assert_eq!(one.check(WIDE, "a", &old).status, 0, "a running container keeps its address");
    one.del(WIDE, "b");
    one.start();
    one.wait_until(|node| node.try_add(WIDE, "c").status == 0);
    assert!(file(&one)["until"].as_u64().unwrap() > now + 270);
    assert_eq!(one.status(WIDE).status, 0);
}

/// The file gets its limit before the record in etcd lets other nodes reclaim this one.
#[test]
fn the_key_can_be_set_and_removed_on_a_node_in_use() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    assert_eq!(file(&one)["until"], Value::Null);
    for (changes, expected) in [(json!({"reclaimAfter": 600}), true), (json!({}), false)] {
        one.kill();
        one.configure(&changes);
        one.start();
        let record = "get --print-value-only /cni-multi/v1/test/n/n1";
        let is_promised = || etcd.members[0].ctl(record).contains("\"reclaimAfter\":600");
        one.wait_until(|node| {
            is_promised() == expected && file(node)["until"].is_u64() == expected
        });
        one.wait_until(|node| node.try_add(WIDE, &format!("b{expected}")).status == 0);
    }
}
