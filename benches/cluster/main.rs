//! Figures of cluster-local on a real etcd: pods on ten machines, with addresses in plenty and with
//! exactly as many as pods; claims per second of forty machines; the time until a starving machine
//! has the last free address; ADD from a held block beside host-local's; the daemon's memory; and, on
//! a clock of their own, up to 1000 nodes: the requests that they send, and the addresses that stay
//! stranded on other nodes.
//!
//! `cargo bench --bench cluster -- [--nodes N] [--pods N] [--seconds N] [CASE...]`, as root or under
//! `unshare -Urnm`, prints the table of docs/evidence/cluster.csv. It needs etcd-server and
//! etcd-client. `CNI_MULTI` names another binary than the one that cargo has built. Machines are
//! namespaces of this one.

#![allow(clippy::print_stdout)] // the user reads stdout
#![allow(clippy::unwrap_used)] // a figure of a run that failed is none

mod cases;
mod simulated;
/// The store of the unit tests' simulation, between the modules that it names.
#[path = "."]
mod model {
    pub use cni_multi::plugins::ipam::cluster_local::{name, store};
    #[path = "."]
    pub mod simulation {
        #[path = "../../src/plugins/ipam/cluster_local/simulation/store.rs"]
        pub mod store;
    }
}
#[allow(unused)] // the tests use more of it
#[path = "../../tests/support/mod.rs"]
mod support;

use cases::{CASES, Size};

fn main() {
    let mut size = Size { nodes: 10, claimers: 40, pods: 1000, seconds: 10 };
    let mut only = vec![];
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok()).unwrap();
        match word.as_str() {
            "--nodes" => size.nodes = number() as u8,
            "--claimers" => size.claimers = number() as u8,
            "--pods" => size.pods = number(),
            "--seconds" => size.seconds = number() as u64,
            "--bench" | "--test" => (), // cargo's own
            _ => only.push(word),
        }
    }
    println!("case,figure,unit,value");
    for (name, case) in CASES {
        if only.is_empty() || only.iter().any(|word| word == name) {
            for (figure, unit, value) in case(&size) {
                println!("{name},{figure},{unit},{value}");
            }
        }
    }
}
