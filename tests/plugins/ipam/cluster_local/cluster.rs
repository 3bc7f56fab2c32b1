//! The plugin with scope `cluster`: what the node holds, and the daemon's socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::usual_path::calls_outside;
use crate::support::attachment::{Attachment, for_ours, ips, with};
use crate::support::call::Outcome;
use crate::support::held::DATA;
use crate::support::netns::{Container, Lab};

/// What an ADD says that needs the daemon.
pub const WAYS_OUT: &str =
    "addresses are unique per cluster: run the IPAM daemon, or set \"scope\": \"machine\"";

/// The first block with eight allocatable addresses.
const BLOCK: &str = "4-0a010008-29";

/// A node with a network of 65 533 addresses, so that blocks have eight.
pub struct Held<'a> {
    lab: &'a Lab,
    container: Container,
    pub conf: Value,
}

impl<'a> Held<'a> {
    /// The plugin has written what is configured.
    pub fn new(lab: &'a Lab, ipam: Value) -> Held<'a> {
        let usual = json!({"type": "cluster-local", "subnet": "10.1.0.0/16", "patience": 0});
        let conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local",
            "ipam": with(&usual, ipam)});
        let held = Held::of(lab, conf);
        held.try_add("first").fails(11, WAYS_OUT);
        held
    }

    /// A node with a network "pods" of this configuration.
    pub fn of(lab: &'a Lab, conf: Value) -> Held<'a> {
        Held { lab, container: lab.container(), conf }
    }

    pub fn attachment(&self, id: &str) -> Attachment<'_> {
        self.lab.attach(&self.container, &self.conf).id(id)
    }

    pub fn try_add(&self, id: &str) -> Outcome {
        self.attachment(id).try_add()
    }

    #[track_caller]
    pub fn add(&self, id: &str) -> String {
        ips(&self.try_add(id).ok()).join(" ")
    }

    /// Gives the node blocks as a daemon writes them, with changes of each.
    pub fn hold(&self, blocks: &[(&str, Value)]) {
        self.lab.hold("pods", blocks);
    }
}

/// Runs a case on a node with a block that is confirmed.
fn with_block(case: impl Fn(&Held<'_>)) {
    for_ours("cluster-local", |lab| {
        let held = Held::new(lab, json!({}));
        held.hold(&[(BLOCK, json!({}))]);
        lab.confirm();
        case(&held);
    });
}

#[test]
fn without_a_daemon_the_ways_out_are_named() {
    for_ours("cluster-local", |lab| {
        let held = Held::new(lab, json!({}));
        let status = held.attachment("a").status().fails(50, WAYS_OUT);
        assert!(status.details.contains("/etc/cni-multi/ipam.json"), "{status:?}");
        held.attachment("a").del();
        held.attachment("a").gc(&[]).ok();
    });
}

#[test]
fn confirmed_blocks_give_addresses_and_the_fullest_first() {
    for_ours("cluster-local", |lab| {
        let held = Held::new(lab, json!({}));
        held.hold(&[("4-0a010008-29", json!({})), ("4-0a010010-29", json!({}))]);
        held.try_add("a").fails(11, "connect to the IPAM daemon");
        lab.confirm();
        let given: Vec<String> = (0..10).map(|id| held.add(&format!("c{id}"))).collect();
        let expected = [8, 9, 10, 11, 12, 13, 14, 15, 16, 17].map(|n| format!("10.1.0.{n}"));
        assert_eq!(given, expected);
        for id in [1, 3, 8] {
            held.attachment(&format!("c{id}")).del();
        }
        assert_eq!(held.attachment("a").status().stderr, "");
        let given = ["d", "e", "f"].map(|id| held.add(id));
        assert_eq!(given, ["10.1.0.9", "10.1.0.11", "10.1.0.16"], "six leases come before one");
        for id in 0..6 {
            held.add(&format!("g{id}"));
        }
        held.try_add("full").fails(11, WAYS_OUT);
        held.attachment("a").status().fails(50, WAYS_OUT);
        held.attachment("x").gc(&[("c0", "eth0")]).ok();
        let blocks = held.lab.host.sh(&format!("cat {DATA}/pods/blocks.json"));
        assert!(blocks.contains("4-0a010010-29"), "the daemon gives it back: {blocks}");
        assert_eq!(held.add("h"), "10.1.0.9");
    });
}

#[test]
fn held_blocks_need_no_socket_no_program_and_no_sync() {
    with_block(|held| {
        for (command, id) in [("ADD", "a"), ("ADD", "b"), ("DEL", "a"), ("ADD", "c"), ("GC", "c")] {
            let call = held.attachment(id).call(command, None);
            assert_eq!(calls_outside(&call), [""; 0], "{command} {id}");
        }
    });
}

#[test]
fn a_directory_that_was_replaced_is_not_allocated_from() {
    with_block(|held| {
        held.add("a");
        held.lab.host.sh(&format!("cp -a {DATA} /run/copy && rm -r {DATA} && mv /run/copy {DATA}"));
        held.try_add("b").fails(11, WAYS_OUT);
        held.lab.confirm();
        assert_eq!(held.add("b"), "10.1.0.9");
        held.lab.host.sh("sed -i s/-/_/ /run/cni-multi/ipam-confirmed.json"); // another boot
        held.try_add("c").fails(11, WAYS_OUT);
    });
}

#[test]
fn a_file_of_blocks_that_cannot_be_read_stops_add_alone() {
    with_block(|held| {
        held.add("a");
        let file = format!("{DATA}/pods/blocks.json");
        held.lab.host.sh(&format!("cp {file} /run/good"));
        for (damage, reason) in [
            ("head -c 99 /run/good", "EOF while parsing"),
            (r#"sed 's/"version":2/"version":1/' /run/good"#, "it is not of version 2"),
        ] {
            held.lab.host.sh(&format!("{damage} >{file}"));
            let error = held.try_add("b").fails(6, &format!("read {file}: "));
            assert!(error.msg.contains(reason), "{error:?}");
            assert!(error.details.starts_with("nothing is allocated without it"), "{error:?}");
        }
        held.attachment("a").gc(&[("a", "eth0")]).ok();
        held.attachment("a").del();
        held.lab.host.sh(&format!("mv /run/good {file}"));
        assert_eq!(held.add("b"), "10.1.0.9", "the round robin goes on");
    });
}

#[test]
fn check_fails_in_blocks_that_another_node_may_have() {
    with_block(|held| {
        let result = held.attachment("a").add();
        for (changes, reason) in [
            (json!({"state": "lost"}), Some("which another node has")),
            (json!({"contested": true}), Some("which another node has leases in")),
            (json!({"state": "settling"}), None),
            (json!({"state": "returning"}), None),
            (json!({}), None),
        ] {
            held.hold(&[(BLOCK, changes.clone())]);
            let check = held.attachment("a").check(&result);
            match reason {
                Some(reason) => {
                    let said = format!("10.1.0.8 is in block 10.1.0.8/29, {reason}");
                    drop(check.fails(103, &said));
                }
                None => drop(check.ok()),
            }
            if changes != json!({}) {
                held.try_add("b").fails(11, WAYS_OUT);
            }
        }
    });
}

#[test]
fn a_name_gets_its_own_block_and_no_other() {
    for_ours("cluster-local", |lab| {
        let held = Held::new(lab, json!({"sticky": "none", "subnet": "10.1.0.0/24"}));
        let named = Held::of(lab, with(&held.conf, json!({"ipam": {"sticky": "arg:VM"}})));
        let add = |id: &str, name: &str| named.attachment(id).args(&format!("VM={name}")).try_add();
        add("a", "one").fails(11, WAYS_OUT);
        let one = json!({"name": "one/eth0"});
        named.hold(&[("4-0a0100f0-32", one), ("4-0a010005-32", json!({}))]);
        lab.confirm();
        assert_eq!(ips(&add("a", "one").ok()), ["10.1.0.240"]);
        add("b", "one").fails(11, "is held by container a");
        add("c", "two").fails(11, WAYS_OUT);
        named.attachment("a").del();
        assert_eq!(ips(&add("b", "one").ok()), ["10.1.0.240"]);
    });
}

/// The next connection. A test that has failed makes none.
fn accept(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(e) => assert!(Instant::now() < end, "no plugin connects: {e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Works beside a daemon that gives these answers, each after a step, and returns what it was asked.
pub fn beside_daemon(
    lab: &Lab,
    answers: &[(&str, &(dyn Fn() + Sync))],
    work: impl FnOnce(),
) -> Vec<Value> {
    lab.host.sh("mkdir -p /run/cni-multi");
    let listener = UnixListener::bind(lab.path("/run/cni-multi/ipam.sock")).unwrap();
    let answer = |(answer, first): &(&str, &(dyn Fn() + Sync))| {
        let mut stream = accept(&listener);
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        first();
        writeln!(stream, "{answer}").unwrap();
        serde_json::from_str(&line).unwrap()
    };
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| answers.iter().map(answer).collect());
        work();
        daemon.join().unwrap()
    })
}

#[test]
fn the_daemon_claims_and_confirms_what_an_add_needs() {
    for_ours("cluster-local", |lab| {
        let held = Held::new(lab, json!({"patience": 3}));
        let claim = || held.hold(&[("4-0a010010-32", json!({}))]);
        let claim_another = || {
            held.hold(&[("4-0a010010-32", json!({})), ("4-0a010099-32", json!({}))]);
            lab.confirm();
        };
        let claimed = r#"{"protocol":2,"answer":"claimed"}"#;
        let verifying = r#"{"protocol":2,"answer":"verifying"}"#;
        let away = r#"{"protocol":2,"error":{"code":11,"msg":"the store cannot be used"}}"#;
        let answers: [(&str, &(dyn Fn() + Sync)); 6] = [
            // The address is there, and not confirmed yet.
            (claimed, &claim),
            (verifying, &|| ()),
            (verifying, &|| lab.confirm()),
            (r#"{"protocol":2,"answer":"none"}"#, &|| ()),
            (away, &|| ()),
            (claimed, &claim_another),
        ];
        let asked = beside_daemon(lab, &answers, || {
            assert_eq!(held.add("a"), "10.1.0.16");
            let none = held.try_add("b").err();
            assert_eq!((none.code, &*none.msg), (101, "no address of network \"pods\" is free"));
            held.try_add("b").fails(11, "the store cannot be used");
            assert_eq!(held.add("b"), "10.1.0.153");
        });
        let need = json!({"protocol": 2, "op": "need", "network": "pods", "set": 0, "patience": 4});
        let status = json!({"protocol": 2, "op": "status"});
        assert_eq!(asked, [&need, &status, &status, &need, &need, &need].map(Value::clone));
    });
}
