//! Addresses that another machine holds and does not use.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::etcd;
use crate::support::attachment::ips;
use crate::support::node::Node;

/// 61 addresses in blocks of one: each that is free can be given.
fn conf() -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[{"subnet": "10.1.0.0/26"}]]}})
}

fn add(node: &Node, id: &str) -> String {
    let outcome = node.attachment(&conf(), id).try_add();
    assert_eq!(outcome.status, 0, "{outcome:?}\n{}", node.log());
    ips(&outcome.ok()).join(" ")
}

/// Other tests run beside this one, so the best of several counts.
#[test]
fn the_last_free_address_is_reached_within_a_second() {
    let Some(etcd) = etcd() else { return };
    let [rich, poor] = [1, 2].map(|number| Node::join(&etcd, number));
    for number in 0..61 {
        add(&rich, &format!("c{number}"));
    }
    let mut least = Duration::MAX;
    for number in [7, 30, 52] {
        rich.attachment(&conf(), &format!("c{number}")).del();
        let began = Instant::now();
        add(&poor, &format!("p{number}"));
        least = least.min(began.elapsed());
    }
    eprintln!("the last free address is reached after {least:.2?}");
    assert!(least < Duration::from_secs(1), "{least:?}\n{}\n{}", rich.log(), poor.log());
}
