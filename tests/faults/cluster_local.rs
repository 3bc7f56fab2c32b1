//! A daemon of cluster-local under the tracer, beside a real etcd and another node, for the kill and
//! error sweeps.
//!
//! After a fault at most one block of the node is not in use. Once a daemon runs again every address
//! of the network can be allocated, each once, and the node's own lease stays.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::attachment::ips;
use crate::support::call::{Call, Outcome, binary};
use crate::support::dhcp::wait_until;
use crate::support::etcd::Etcd;
use crate::support::netns::Container;
use crate::support::node::{LISTENING, Node, SOCKET};
use crate::support::tracer::{Stop, Then, Traced, trace};

/// The addresses of the network: those of a /29 without the gateway's, in two blocks.
const SIZE: usize = 5;

/// The phase of the daemon in which the fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    Start,
    Claim,
    Return,
    Split,
}

impl During {
    pub fn words(self) -> &'static str {
        match self {
            During::Start => "start",
            During::Claim => "claim",
            During::Return => "return",
            During::Split => "split",
        }
    }
}

/// The outcome of a life of the daemon.
pub struct Lived {
    pub daemon: Traced,
    /// Whether it died before its work was done.
    pub died: bool,
}

/// Two nodes, of which the daemon of the first has the faults.
pub struct Site {
    etcd: Etcd,
    swept: Node,
    neighbour: Node,
    containers: [Container; 2],
}

fn conf() -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[{"subnet": "10.1.0.0/29"}]], "blockSize": "/30",
        "spare": 0, "patience": 20}})
}

impl Site {
    /// None if there is no etcd here.
    pub fn new() -> Option<Site> {
        let etcd = Etcd::one_with(&LISTENING)?;
        let [swept, neighbour] =
            [1, 2].map(|number| Node::named(&etcd, number, &format!("n{number}")));
        let containers = [swept.lab.container(), neighbour.lab.container()];
        Some(Site { etcd, swept, neighbour, containers })
    }

    /// Forgets everything, on the disks and in etcd. The neighbour's daemon runs afterwards.
    fn begin_anew(&mut self) {
        for node in [&mut self.swept, &mut self.neighbour] {
            node.kill();
            node.lab.host.sh("mkdir -p /var/lib/cni/cluster-local; find /var/lib/cni/cluster-local -mindepth 1 -delete");
        }
        self.etcd.members[0].ctl("del --prefix /cni-multi/");
        self.neighbour.start();
    }

    fn try_add(&self, number: usize, id: &str) -> Outcome {
        let node = [&self.swept, &self.neighbour][number];
        node.lab.attach(&self.containers[number], &conf()).id(id).try_add()
    }

    /// The address of a new attachment, whose ADD may have to be repeated.
    fn add(&self, number: usize, id: &str) -> String {
        let mut found = None;
        wait_until("an address is free", 30, || {
            let outcome = self.try_add(number, id);
            assert!(outcome.status == 0 || outcome.err().code > 0, "{outcome:?}");
            found = (outcome.status == 0).then(|| ips(&outcome.ok()).join(" "));
            found.is_some()
        });
        found.unwrap()
    }

    fn del(&self, number: usize, id: &str) {
        let node = [&self.swept, &self.neighbour][number];
        node.lab.attach(&self.containers[number], &conf()).id(id).del();
    }

    /// The states of the blocks of the node that is swept, with the number of leases in each.
    fn blocks(&self) -> Vec<(String, u64)> {
        let text = self.swept.ipam_text("blocks -o json");
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        let of = |row: &Value| {
            (row["state"].as_str().unwrap().to_owned(), row["held"].as_u64().unwrap())
        };
        let blocks = rows.iter().filter(|row| row.get("problem").is_none()); // no daemon runs at times
        blocks.map(of).collect()
    }

    /// What is there before the daemon comes into the phase; the addresses that stay.
    fn prepare(&self, during: During) -> Vec<String> {
        match during {
            During::Start | During::Claim => vec![],
            During::Split => vec![self.add(0, "kept")],
            During::Return => {
                // Both blocks, of which one is free again.
                let all: Vec<(String, String)> =
                    (0..SIZE).map(|n| format!("a{n}")).map(|id| (self.add(0, &id), id)).collect();
                let is_first = |address: &str| ["10.1.0.2", "10.1.0.3"].contains(&address);
                all.iter().filter(|(ip, _)| is_first(ip)).for_each(|(_, id)| self.del(0, id));
                all.into_iter().map(|(ip, _)| ip).filter(|ip| !is_first(ip)).collect()
            }
        }
    }

    /// Makes the daemon do what the phase is about; the addresses that this leads to.
    fn act(&self, during: During) -> Vec<String> {
        match during {
            During::Start => vec![],
            During::Claim => vec![self.add(0, "claiming")],
            // The neighbour needs a block of the node, which has both.
            During::Return => vec![self.add(1, "f0")],
            // It takes its own block, and then needs the rest of the node's.
            During::Split => (0..SIZE - 1).map(|n| self.add(1, &format!("f{n}"))).collect(),
        }
    }

    /// Allocates the other addresses of the network: each is there, and none twice.
    fn fill(&self, mut all: Vec<String>) {
        for number in all.len()..SIZE {
            all.push(self.add(1, &format!("g{number}")));
        }
        let different: BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), SIZE, "{all:?}");
    }

    /// One life of the daemon. `decide` chooses the fate of its system calls in the phase.
    pub fn live(&mut self, during: During, decide: impl FnMut(&Stop) -> Then + Send) -> Lived {
        self.begin_anew();
        let mut all = vec![];
        if during == During::Start {
            self.swept.start();
            all.push(self.add(0, "kept"));
            self.swept.kill();
        }
        let armed = AtomicBool::new(during == During::Start);
        let [over, done] = [(); 2].map(|()| AtomicBool::new(false));
        let call = daemon(&self.swept);
        let lived = std::thread::scope(|scope| {
            let tracer = scope.spawn(|| {
                let traced = follow(&call, [&armed, &over], decide);
                done.store(true, SeqCst);
                traced
            });
            let is_dead = || done.load(SeqCst);
            wait_until("the daemon listens or is dead", 20, || is_dead() || self.is_connected());
            all.extend(self.prepare(during));
            armed.store(true, SeqCst);
            let site = &*self;
            let acting = scope.spawn(move || site.act(during));
            wait_until("the phase is over", 60, || is_dead() || acting.is_finished());
            let died = is_dead();
            over.store(true, SeqCst);
            while !is_dead() {
                let _ = UnixStream::connect(self.swept.lab.path(SOCKET)); // a system call of the daemon
                std::thread::sleep(Duration::from_millis(2));
            }
            let unused = self.blocks().iter().filter(|(state, _)| state != "active").count();
            assert!(unused <= 1, "{:?}", self.blocks());
            let again = Again::start(&self.swept);
            all.extend(acting.join().unwrap());
            drop(again);
            Lived { daemon: tracer.join().unwrap(), died }
        });
        self.swept.start();
        self.fill(all);
        lived
    }

    /// Each question is a call of the daemon, so it is asked seldom.
    fn is_connected(&self) -> bool {
        std::thread::sleep(Duration::from_millis(200));
        UnixStream::connect(self.swept.lab.path(SOCKET)).is_ok()
            && self.swept.ipam_text("metrics 2>&1 || true").contains("cni_ipam_connected 1\n")
    }
}

/// The daemon as a call for the tracer.
fn daemon(node: &Node) -> Call {
    let args = ["ipam", "daemon"].map(str::to_owned).to_vec();
    let wrapper = node.lab.host.enter.clone();
    Call { program: binary(), args, env: BTreeMap::new(), stdin: vec![], wrapper }
}

fn follow(
    call: &Call,
    [armed, over]: [&AtomicBool; 2],
    mut decide: impl FnMut(&Stop) -> Then + Send,
) -> Traced {
    trace(call, |stop| match (over.load(SeqCst), armed.load(SeqCst)) {
        (true, _) => Then::Kill,
        (false, true) => decide(stop),
        (false, false) => Then::Go,
    })
}

/// A daemon after the one that was killed, for what still waits. It is killed, too.
struct Again(std::process::Child);

impl Again {
    fn start(node: &Node) -> Again {
        let mut command = node.lab.host.command(binary().to_str().unwrap());
        let quiet = std::process::Stdio::null;
        command.args(["ipam", "daemon"]).stdout(quiet()).stderr(quiet());
        Again(command.spawn().unwrap())
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

/// Defines a test for each phase.
macro_rules! test_each_phase {
    ($sweep:path) => {
        #[test]
        fn an_ipam_daemon_that_starts_loses_no_block() {
            $sweep($crate::faults::cluster_local::During::Start);
        }

        #[test]
        fn an_ipam_daemon_that_claims_gives_nothing_twice() {
            $sweep($crate::faults::cluster_local::During::Claim);
        }

        #[test]
        fn an_ipam_daemon_that_returns_gives_nothing_twice() {
            $sweep($crate::faults::cluster_local::During::Return);
        }

        #[test]
        fn an_ipam_daemon_that_splits_gives_nothing_twice() {
            $sweep($crate::faults::cluster_local::During::Split);
        }
    };
}
pub(super) use test_each_phase;
