//! `--trace` reports each call of a plugin, and changes nothing else.

use serde_json::{Value, json};

use crate::support::attachment::for_ours;
use crate::support::networks::portmap::network;
use crate::support::synced::{attach, net};

/// The first lines of the reports.
fn calls(stderr: &str) -> Vec<&str> {
    let is_call = |line: &&str| line.starts_with(|first: char| first.is_ascii_uppercase());
    stderr.lines().filter(is_call).collect()
}

#[test]
fn each_call_is_reported_with_input_answer_and_time() {
    for_ours("bridge", |lab| {
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        attach(lab, &[network(), portmap], "");
        let container = lab.container();
        let traced =
            |verb: &str| net(lab, &format!("{verb} pods {} --trace", container.netns)).run();
        let add = traced("add");
        let result = add.ok();
        assert_eq!(calls(&add.stderr), ["ADD bridge (compiled in)", "ADD portmap (compiled in)"]);
        assert_eq!(add.stderr.matches("\ntime: ").count(), 2, "{add:?}");
        let (_, rest) = add.stderr.split_once("stdin: ").unwrap();
        let (stdin, rest) = rest.split_once("\nresult: ").unwrap();
        let stdin: Value = serde_json::from_str(stdin).unwrap();
        assert_eq!((&stdin["name"], &stdin["type"]), (&json!("pods"), &json!("bridge")));
        let answer: Value = serde_json::from_str(rest.split("\ntime: ").next().unwrap()).unwrap();
        assert_eq!(answer["ips"], result["ips"], "{add:?}");
        let del = traced("del");
        assert_eq!((del.status, del.stdout.as_str()), (0, ""), "{del:?}");
        assert_eq!(calls(&del.stderr), ["DEL portmap (compiled in)", "DEL bridge (compiled in)"]);
        assert_eq!(del.stderr.matches("\nsuccess\n").count(), 2, "{del:?}");
        let plain = net(lab, &format!("add pods {}", container.netns)).run();
        assert_eq!(plain.stderr, "");
        assert_eq!(
            plain.ok()["ips"].as_array().map(Vec::len),
            result["ips"].as_array().map(Vec::len)
        );
    });
}
