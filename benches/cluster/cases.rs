//! The cases.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::attachment::ips;
use super::support::call::{Call, Outcome, Peer};
use super::support::etcd::Etcd;
use super::support::node::{LISTENING, Node};
use super::support::scratch::Scratch;

/// How large the cases are.
pub struct Size {
    pub nodes: u8,
    pub claimers: u8,
    pub pods: usize,
    pub seconds: u64,
}

/// A case, which returns its figure.
pub type Case = fn(&Size) -> String;

/// The names of all cases.
pub const CASES: [(&str, Case); 5] = [
    ("plenty", plenty),
    ("exact", exact),
    ("claims", claims),
    ("starving", starving),
    ("add", add),
];

/// How many ADDs a machine makes at a time.
const AT_A_TIME: usize = 4;

/// etcd of one member, with machines around it.
struct Cluster {
    nodes: Vec<Node>,
    _etcd: Etcd,
}

impl Cluster {
    fn of(nodes: u8) -> Cluster {
        let etcd = Etcd::one_with(&LISTENING).expect("root, and etcd");
        let nodes = (1..=nodes).map(|number| Node::join(&etcd, number)).collect();
        Cluster { nodes, _etcd: etcd }
    }
}

fn conf(ranges: Value, size: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[ranges]], "blockSize": size, "patience": 10}})
}

/// Addresses in plenty: a /16.
fn plenty(size: &Size) -> String {
    attach_all(size, conf(json!({"subnet": "10.1.0.0/16"}), "auto"))
}

/// As many addresses as pods.
fn exact(size: &Size) -> String {
    let last = u32::from(std::net::Ipv4Addr::new(10, 1, 0, 1)) + size.pods as u32;
    let last = std::net::Ipv4Addr::from(last).to_string();
    let range = json!({"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.2", "rangeEnd": last});
    attach_all(size, conf(range, "auto"))
}

/// Attaches pods on all machines at once.
fn attach_all(size: &Size, conf: Value) -> String {
    let cluster = Cluster::of(size.nodes);
    let each = size.pods / cluster.nodes.len();
    let (addresses, failures) = (Mutex::new(BTreeSet::new()), Mutex::new(vec![]));
    let times = Mutex::new(vec![]);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for node in &cluster.nodes {
            let next = std::sync::Arc::new(AtomicUsize::new(0));
            for _ in 0..AT_A_TIME {
                let (conf, next) = (&conf, next.clone());
                let (addresses, failures, times) = (&addresses, &failures, &times);
                scope.spawn(move || {
                    while let Some(pod) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|pod| *pod < each)
                    {
                        let began = Instant::now();
                        let outcome = node.attachment(conf, &format!("pod-{pod}")).try_add();
                        times.lock().unwrap().push(began.elapsed());
                        note(&outcome, addresses, failures);
                    }
                });
            }
        }
    });
    let took = began.elapsed();
    let (addresses, failures) = (addresses.into_inner().unwrap(), failures.into_inner().unwrap());
    let mut times = times.into_inner().unwrap();
    times.sort_unstable();
    format!(
        "{} pods on {} nodes in {took:.1?}: {} addresses, {}; ADD p50 {:.1?}, p99 {:.0?}, longest {:.0?}",
        times.len(),
        cluster.nodes.len(),
        addresses.len(),
        failed(&failures),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1],
    )
}

fn note(outcome: &Outcome, addresses: &Mutex<BTreeSet<String>>, failures: &Mutex<Vec<String>>) {
    if outcome.status == 0 {
        addresses.lock().unwrap().extend(ips(&outcome.ok()));
    } else {
        failures.lock().unwrap().push(outcome.err().text());
    }
}

/// Each ADD claims a block of one address.
fn claims(size: &Size) -> String {
    let cluster = Cluster::of(size.claimers);
    let conf = conf(json!({"subnet": "10.1.0.0/16"}), "/32");
    let (addresses, failures) = (Mutex::new(BTreeSet::new()), Mutex::new(vec![]));
    let began = Instant::now();
    let end = began + Duration::from_secs(size.seconds);
    std::thread::scope(|scope| {
        for node in &cluster.nodes {
            let (conf, addresses, failures) = (&conf, &addresses, &failures);
            scope.spawn(move || {
                for pod in (0..).take_while(|_| Instant::now() < end) {
                    let outcome = node.attachment(conf, &format!("pod-{pod}")).try_add();
                    note(&outcome, addresses, failures);
                }
            });
        }
    });
    let took = began.elapsed();
    format!(
        "{:.0} claims per second by {} nodes, {}",
        addresses.into_inner().unwrap().len() as f64 / took.as_secs_f64(),
        cluster.nodes.len(),
        failed(&failures.into_inner().unwrap())
    )
}

/// How many ADDs failed, and the error of the first.
fn failed(failures: &[String]) -> String {
    let first = failures.first().map(|text| format!("; the first: {text}")).unwrap_or_default();
    format!("{} failures{first}", failures.len())
}

/// The only free address is in a block of another machine.
fn starving(_: &Size) -> String {
    let cluster = Cluster::of(2);
    let [rich, poor] = [&cluster.nodes[0], &cluster.nodes[1]];
    let conf = conf(json!({"subnet": "10.1.0.0/26"}), "/29");
    for number in 0..61 {
        rich.attachment(&conf, &format!("c{number}")).add();
    }
    let mut times: Vec<Duration> = (0..15)
        .map(|number| {
            rich.attachment(&conf, &format!("c{}", number * 4)).del();
            let began = Instant::now();
            poor.attachment(&conf, &format!("p{number}")).add();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    format!("reached after {:.0?} (p50), {:.0?} at the longest of 15", times[7], times[14])
}

/// ADD of a machine without a cluster, beside that of host-local, in turns.
fn add(_: &Size) -> String {
    let scratch = Scratch::new();
    let call = |plugin: &str, id: usize| {
        let ipam = json!({"type": plugin, "dataDir": scratch.join(plugin),
            "ranges": [[{"subnet": "10.1.0.0/16"}]]});
        let conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam});
        Call::new(&Peer::Ours, plugin, "ADD", conf.to_string())
            .env("CNI_CONTAINERID", format!("c{id}"))
    };
    let mut times = [vec![], vec![]];
    for id in 0..200 {
        for (plugin, times) in ["cluster-local", "host-local"].into_iter().zip(&mut times) {
            let call = call(plugin, id);
            let began = Instant::now();
            call.run().ok();
            times.push(began.elapsed());
        }
    }
    times.iter_mut().for_each(|times| times.sort_unstable());
    let [ours, other] = times.map(|times| times[times.len() / 2]);
    let ratio = ours.as_secs_f64() / other.as_secs_f64();
    format!("{ours:.2?}, {ratio:.2} × host-local's {other:.2?} (p50 of 200)")
}
