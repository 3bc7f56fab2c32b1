//! The cases.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::attachment::ips;
use super::support::call::Outcome;
use super::support::etcd::Etcd;
use super::support::node::Node;

/// How large the cases are.
pub struct Size {
    pub nodes: u8,
    pub claimers: u8,
    pub pods: usize,
    pub seconds: u64,
}

/// What a figure is of, its unit and its value.
pub type Figure = (String, &'static str, String);

/// A case, which returns its figures.
pub type Case = fn(&Size) -> Vec<Figure>;

/// The names of all cases.
pub const CASES: [(&str, Case); 7] = [
    ("plenty", plenty),
    ("exact", exact),
    ("claims", claims),
    ("starving", starving),
    ("add", add),
    ("memory", memory),
    ("simulated", super::simulated::simulated),
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
        let etcd = Etcd::one_with("").expect("root, and etcd");
        let nodes = (1..=nodes).map(|number| Node::join(&etcd, number)).collect();
        Cluster { nodes, _etcd: etcd }
    }
}

fn conf(ranges: Value, size: Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[ranges]], "blockSize": size, "patience": 10}})
}

/// Addresses in plenty: a /16.
fn plenty(size: &Size) -> Vec<Figure> {
    attach_all(size, conf(json!({"subnet": "10.1.0.0/16"}), json!("auto")))
}

/// As many addresses as pods.
fn exact(size: &Size) -> Vec<Figure> {
    let last = u32::from(std::net::Ipv4Addr::new(10, 1, 0, 1)) + size.pods as u32;
    let last = std::net::Ipv4Addr::from(last).to_string();
    let range = json!({"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.2", "rangeEnd": last});
    attach_all(size, conf(range, json!("auto")))
}

/// Attaches pods on all machines at once.
fn attach_all(size: &Size, conf: Value) -> Vec<Figure> {
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
    vec![
        ("pods".to_owned(), "", times.len().to_string()),
        ("nodes".to_owned(), "", cluster.nodes.len().to_string()),
        ("duration".to_owned(), "s", format!("{:.1}", took.as_secs_f64())),
        ("addresses".to_owned(), "", addresses.len().to_string()),
        failed(&failures),
        ("ADD p50".to_owned(), "ms", milliseconds(times[times.len() / 2])),
        ("ADD p99".to_owned(), "ms", milliseconds(times[times.len() * 99 / 100])),
        ("ADD longest".to_owned(), "ms", milliseconds(times[times.len() - 1])),
    ]
}

fn note(outcome: &Outcome, addresses: &Mutex<BTreeSet<String>>, failures: &Mutex<Vec<String>>) {
    if outcome.status == 0 {
        addresses.lock().unwrap().extend(ips(&outcome.ok()));
    } else {
        failures.lock().unwrap().push(outcome.err().text());
    }
}

/// Each ADD claims a block of one address.
fn claims(size: &Size) -> Vec<Figure> {
    let cluster = Cluster::of(size.claimers);
    let conf = conf(json!({"subnet": "10.1.0.0/16"}), json!(1));
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
    let rate = addresses.into_inner().unwrap().len() as f64 / took.as_secs_f64();
    vec![
        ("nodes".to_owned(), "", cluster.nodes.len().to_string()),
        ("claims".to_owned(), "per second", format!("{rate:.0}")),
        failed(&failures.into_inner().unwrap()),
    ]
}

/// How many ADDs failed. The error of the first goes to stderr.
fn failed(failures: &[String]) -> Figure {
    failures.iter().take(1).for_each(|text| eprintln!("the first failure: {text}"));
    ("failures".to_owned(), "", failures.len().to_string())
}

fn milliseconds(took: Duration) -> String {
    format!("{:.0}", took.as_secs_f64() * 1e3)
}

/// The only free address is a block of another machine.
fn starving(_: &Size) -> Vec<Figure> {
    let cluster = Cluster::of(2);
    let [rich, poor] = [&cluster.nodes[0], &cluster.nodes[1]];
    let conf = conf(json!({"subnet": "10.1.0.0/26"}), json!("auto"));
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
    let [half, longest] = [times[7], times[14]].map(milliseconds);
    vec![
        ("reached after p50 of 15".to_owned(), "ms", half),
        ("reached after longest of 15".to_owned(), "ms", longest),
    ]
}

/// ADD from a block that the machine holds, beside that of host-local, in turns.
fn add(_: &Size) -> Vec<Figure> {
    let cluster = Cluster::of(1);
    let node = &cluster.nodes[0];
    let confs = ["cluster-local", "host-local"].map(|plugin| {
        json!({"cniVersion": "1.1.0", "name": plugin, "type": plugin, "ipam": {"type": plugin,
            "ranges": [[{"subnet": "10.1.0.0/16"}]]}})
    });
    node.attachment(&confs[0], "first").add();
    let mut times = [vec![], vec![]];
    for id in 0..200 {
        for (conf, times) in confs.iter().zip(&mut times) {
            let id = format!("c{id}");
            let attachment = node.attachment(conf, &id);
            let began = Instant::now();
            let outcome = attachment.try_add();
            times.push(began.elapsed());
            outcome.ok();
            attachment.del();
        }
    }
    times.iter_mut().for_each(|times| times.sort_unstable());
    let [ours, other] = times.map(|times| times[times.len() / 2]);
    let ratio = ours.as_secs_f64() / other.as_secs_f64();
    let [ours, other] = [ours, other].map(|took| format!("{:.2}", took.as_secs_f64() * 1e3));
    vec![
        ("cluster-local p50 of 200".to_owned(), "ms", ours),
        ("host-local p50 of 200".to_owned(), "ms", other),
        ("ratio".to_owned(), "", format!("{ratio:.2}")),
    ]
}

/// The daemon of a machine with half of the pods.
fn memory(size: &Size) -> Vec<Figure> {
    let cluster = Cluster::of(1);
    let node = &cluster.nodes[0];
    let conf = conf(json!({"subnet": "10.1.0.0/16"}), json!("auto"));
    for pod in 0..size.pods / 2 {
        node.attachment(&conf, &format!("pod-{pod}")).add();
    }
    let megabytes = |name: &str| {
        let status = node.daemon_threads().swap_remove(0);
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kilobytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        format!("{:.1}", kilobytes / 1024.0)
    };
    vec![
        ("VmRSS".to_owned(), "MB", megabytes("VmRSS")),
        ("RssAnon".to_owned(), "MB", megabytes("RssAnon")),
    ]
}
