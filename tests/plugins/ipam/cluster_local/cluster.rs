//! A machine that is configured as a part of a cluster: only the daemon claims.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, ips};
use crate::support::netns::Lab;

const BLOCKS: &str = "/var/lib/cni/cluster-local/net1/blocks.json";

fn conf() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net1", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[{"subnet": "10.1.0.0/24"}]], "patience": 3}})
}

/// Makes the host a node of a cluster, in the lab's own mount namespace.
fn join_cluster(lab: &Lab) {
    lab.host.sh("mount -t tmpfs lab /etc && mkdir -p /etc/cni-multi /run/cni-multi && echo '{}' >/etc/cni-multi/ipam.json");
}

/// Gives the network a block, as the daemon does.
fn give(lab: &Lab, block: &str) {
    let path = lab.path(BLOCKS);
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let held = json!({"block": block, "token": format!("{:032x}", 7), "mod_revision": 5, "state": "active", "since": 1, "incarnation": 1});
    file["blocks"].as_array_mut().unwrap().push(held);
    std::fs::write(&path, file.to_string()).unwrap();
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
            Err(e) => assert!(Instant::now() < end, "nobody asks: {e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Answers requests with these lines, and returns the requests.
fn daemon(lab: &Lab, answers: &[(&str, Option<&str>)]) -> Vec<Value> {
    let listener = UnixListener::bind(lab.path("/run/cni-multi/ipam.sock")).unwrap();
    let mut asked = vec![];
    for (answer, block) in answers {
        let mut stream = accept(&listener);
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        asked.push(serde_json::from_str(&line).unwrap());
        if let Some(block) = block {
            give(lab, block);
        }
        writeln!(stream, "{answer}").unwrap();
    }
    asked
}

#[test]
fn held_blocks_serve_and_then_the_error_names_the_daemon() {
    for_ours("cluster-local", |lab| {
        join_cluster(lab);
        let container = lab.container();
        let add = |id: &str| lab.attach(&container, &conf()).id(id).try_add();
        let error = add("a").err();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(
            error.msg.starts_with("connect to the IPAM daemon at \"/run/cni-multi/ipam.sock\""),
            "{error:?}"
        );
        assert!(
            error.details.contains("start cni-multi-ipam.socket or cni-multi-ipam.service"),
            "{error:?}"
        );
        assert!(
            error.details.contains("by /etc/cni-multi/ipam.json only the daemon may claim"),
            "{error:?}"
        );
        let status = lab.attach(&container, &conf()).status();
        assert_eq!(status.err().code, 50);
        give(lab, "4-0a010008-31");
        assert_eq!(ips(&add("a").ok()), ["10.1.0.8"]);
        assert_eq!(lab.attach(&container, &conf()).status().ok(), Value::Null);
        assert_eq!(ips(&add("b").ok()), ["10.1.0.9"]);
        assert_eq!(add("c").err().code, 11);
        lab.attach(&container, &conf()).id("a").del();
        assert_eq!(ips(&add("c").ok()), ["10.1.0.8"]);
    });
}

#[test]
fn the_daemon_claims_what_an_add_needs() {
    for_ours("cluster-local", |lab| {
        join_cluster(lab);
        let container = lab.container();
        let claimed = r#"{"protocol":1,"answer":"claimed"}"#;
        let answers = [
            (claimed, Some("4-0a010010-32")),
            (r#"{"protocol":1,"answer":"none"}"#, None),
            (
                r#"{"protocol":1,"error":{"code":11,"msg":"no contact with the cluster","details":"all endpoints time out"}}"#,
                None,
            ),
        ];
        let asked = std::thread::scope(|scope| {
            let daemon = scope.spawn(|| daemon(lab, &answers));
            while !lab.path("/run/cni-multi/ipam.sock").exists() {
                std::thread::yield_now();
            }
            let add = |id: &str| lab.attach(&container, &conf()).id(id).try_add();
            assert_eq!(ips(&add("a").ok()), ["10.1.0.16"]);
            let none = add("b").err();
            assert_eq!(
                (none.code, none.msg.as_str()),
                (101, "no address of network \"net1\" is free")
            );
            let lost = add("b").err();
            assert_eq!((lost.code, lost.msg.as_str()), (11, "no contact with the cluster"));
            daemon.join().unwrap()
        });
        let need = json!({"protocol": 1, "op": "need", "network": "net1", "set": 0, "patience": 4});
        assert_eq!(asked, [need.clone(), need.clone(), need]);
    });
}

#[test]
fn blocks_of_an_earlier_boot_wait_for_the_daemon() {
    for_ours("cluster-local", |lab| {
        join_cluster(lab);
        let container = lab.container();
        let add = |id: &str| lab.attach(&container, &conf()).id(id).try_add();
        add("a").err();
        give(lab, "4-0a010010-30");
        let path = lab.path(BLOCKS);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            text.replace(r#""confirmed":"""#, r#""confirmed":"an earlier boot""#),
        )
        .unwrap();
        assert_eq!(add("a").err().code, 11, "the node may have been reclaimed");
        std::fs::write(&path, text).unwrap();
        add("a").ok();
    });
}
