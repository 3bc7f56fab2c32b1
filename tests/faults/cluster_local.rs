//! A daemon of cluster-local under the tracer, beside a real etcd and another node, for the sweeps of
//! kills, errors and losses of power.
//!
//! After a fault at most one block of the node is not in use. Once a daemon runs again, every address of the
//! network can be allocated exactly once. The node keeps its lease, except after a loss of power, which ends its
//! containers.

mod phase;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};

pub use self::phase::During;
use crate::support::attachment::{Attachment, ips};
use crate::support::call::{Call, binary};
use crate::support::dhcp::wait_until;
use crate::support::etcd::{Etcd, Process};
pub use crate::support::node::DATA;
use crate::support::node::{Node, SOCKET, conf};
use crate::support::tracer::{Stop, Then, Traced, trace};

/// The addresses of the network: those of a /29 without the gateway's, each a block.
const SIZE: usize = 5;
/// The indices of the swept node and of its neighbour.
const SWEPT: usize = 0;
const NEIGHBOUR: usize = 1;
/// The confirmation of the blocks in this boot.
const CONFIRMED: &str = "/run/cni-multi/ipam-confirmed.json";

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
    /// The address of each attachment, by node and container id.
    held: Mutex<BTreeMap<(usize, String), String>>,
    /// Whether the swept node has power. Each ADD on this node holds the lock.
    power: Mutex<bool>,
    /// The number of its boots.
    boots: AtomicU64,
}

impl Site {
    /// None if there is no etcd here.
    pub fn new() -> Option<Site> {
        let etcd = Etcd::one()?;
        let [swept, neighbour] = [1, 2].map(|number| Node::configured(&etcd, number, json!({})));
        let (held, power) = (Mutex::default(), Mutex::new(true));
        Some(Site { etcd, swept, neighbour, held, power, boots: AtomicU64::new(0) })
    }

    /// Where this process sees the directory of the swept node.
    pub fn data(&self) -> PathBuf {
        self.swept.lab.path(DATA)
    }

    /// Forgets everything, on the disks and in etcd. The neighbour's daemon runs afterwards.
    fn begin_anew(&mut self) {
        for node in [&mut self.swept, &mut self.neighbour] {
            node.kill();
            node.lab.host.sh(&format!(
                "mkdir -p {DATA}; find {DATA} -mindepth 1 -delete; rm -f {CONFIRMED}"
            ));
        }
        self.etcd.members[0].ctl("del --prefix /cni-multi/");
        self.held.lock().unwrap().clear();
        self.neighbour.start();
    }

    fn attachment(&self, number: usize, id: &str) -> Attachment<'_> {
        let conf = conf("10.1.0.0/29", json!({"spare": 0, "patience": 20}));
        [&self.swept, &self.neighbour][number].attachment(&conf, id)
    }

    /// Makes an attachment; repeats a failed ADD until the node loses power.
    fn add(&self, number: usize, id: &str) {
        wait_until("an address is free", 30, || {
            let power = (number == SWEPT).then(|| self.power.lock().unwrap());
            if power.as_ref().is_some_and(|has_power| !**has_power) {
                return true;
            }
            let outcome = self.attachment(number, id).try_add();
            assert!(outcome.status == 0 || outcome.err().code > 0, "{outcome:?}");
            if outcome.status == 0 {
                let address = ips(&outcome.ok()).join(" ");
                self.held.lock().unwrap().insert((number, id.to_owned()), address);
            }
            outcome.status == 0
        });
    }

    fn del(&self, number: usize, id: &str) {
        self.attachment(number, id).del();
        self.held.lock().unwrap().remove(&(number, id.to_owned()));
    }

    /// The states of the blocks of the node that is swept, with the number of leases in each.
    fn blocks(&self) -> Vec<(String, u64)> {
        let text = self.swept.prints("blocks -o json");
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        let of = |row: &Value| {
            (row["state"].as_str().unwrap().to_owned(), row["held"].as_u64().unwrap())
        };
        let blocks = rows.iter().filter(|row| row.get("problem").is_none()); // no daemon runs at times
        blocks.map(of).collect()
    }

    /// Makes the attachments that the phase needs, before it begins: of all blocks, of which one becomes free.
    fn prepare(&self, during: During) {
        if during == During::Return {
            (0..SIZE).for_each(|n| self.add(SWEPT, &format!("a{n}")));
            self.del(SWEPT, "a0");
        }
    }

    /// Causes the operation of the phase.
    fn act(&self, during: During) {
        match during {
            During::FirstStart | During::Start | During::StartAfterBoot => (),
            During::Claim => self.add(SWEPT, "claiming"),
            // The neighbour needs a block of the node, which has all.
            During::Return => self.add(NEIGHBOUR, "f0"),
        }
    }

    /// Allocates the other addresses of the network. Fails if one of them is allocated twice.
    fn fill(&self) {
        let count = self.held.lock().unwrap().len();
        (count..SIZE).for_each(|number| self.add(NEIGHBOUR, &format!("g{number}")));
        let held = self.held.lock().unwrap();
        let different: BTreeSet<&String> = held.values().collect();
        assert_eq!(different.len(), SIZE, "{held:?}");
    }

    /// One life of the daemon. `decide` chooses the fate of its system calls in the phase.
    pub fn live(&mut self, during: During, decide: impl FnMut(&Stop) -> Then + Send) -> Lived {
        let lived = self.live_until_dead(during, decide, |_| ());
        self.swept.start();
        self.fill();
        lived
    }

    /// The same, but the machine loses power when `decide` kills the daemon, or at the end of the phase:
    /// `leave` makes the directory equal to the disk after the loss. The containers are gone, and their
    /// leases are void.
    pub fn lose_power(
        &mut self,
        during: During,
        decide: impl FnMut(&Stop) -> Then + Send,
        leave: impl FnOnce(&Path),
    ) -> Lived {
        let lived = self.live_until_dead(during, decide, |site| {
            *site.power.lock().unwrap() = false;
            leave(&site.data());
            site.boot();
        });
        *self.power.lock().unwrap() = true;
        self.swept.start();
        lived
    }

    /// The swept machine boots, without its containers.
    fn boot(&self) {
        self.held.lock().unwrap().retain(|(number, _), _| *number != SWEPT);
        self.swept.set_boot(self.boots.fetch_add(1, SeqCst) + 1);
    }

    /// After a loss of power: every address can be allocated, all by the neighbour, or one by the node and the
    /// rest by the neighbour. The first ADD of the node removes its void leases.
    pub fn require_all(&self, is_first_here: bool) {
        if is_first_here && self.held.lock().unwrap().len() < SIZE {
            self.add(SWEPT, "new");
            let address = self.held.lock().unwrap()[&(SWEPT, "new".to_owned())].clone();
            let leases: Vec<String> =
                self.swept.leases("pods").iter().map(ToString::to_string).collect();
            assert_eq!(leases, [address], "the leases after the first ADD of this boot");
        }
        self.fill();
    }

    /// Runs the daemon until it dies in the phase or at its end, then calls `next`, and then starts another
    /// daemon, so that waiting processes can end.
    fn live_until_dead(
        &mut self,
        during: During,
        mut decide: impl FnMut(&Stop) -> Then + Send,
        next: impl FnOnce(&Site),
    ) -> Lived {
        self.begin_anew();
        if matches!(during, During::Start | During::StartAfterBoot) {
            self.swept.start();
            self.add(SWEPT, "kept");
            self.swept.kill();
        }
        if during == During::StartAfterBoot {
            self.boot();
        }
        let armed = AtomicBool::new(during.is_start());
        let [over, done] = [(); 2].map(|()| AtomicBool::new(false));
        let args = ["ipam", "daemon"].map(str::to_owned).to_vec();
        let wrapper = self.swept.lab.host.enter.clone();
        let call = Call { program: binary(), args, env: BTreeMap::new(), stdin: vec![], wrapper };
        let site = &*self;
        std::thread::scope(|scope| {
            let tracer = scope.spawn(|| {
                let traced = trace(&call, |stop| match (over.load(SeqCst), armed.load(SeqCst)) {
                    (true, _) => Then::Kill,
                    (false, true) => decide(stop),
                    (false, false) => Then::Go,
                });
                done.store(true, SeqCst);
                traced
            });
            let is_dead = || done.load(SeqCst);
            wait_until("the daemon listens or is dead", 20, || is_dead() || site.is_connected());
            site.prepare(during);
            armed.store(true, SeqCst);
            let acting = scope.spawn(move || site.act(during));
            wait_until("the phase is over", 60, || is_dead() || acting.is_finished());
            let died = is_dead();
            over.store(true, SeqCst);
            while !is_dead() {
                let _ = UnixStream::connect(site.swept.lab.path(SOCKET)); // a system call of the daemon
                std::thread::sleep(Duration::from_millis(2));
            }
            next(site);
            let unused = site.blocks().iter().filter(|(state, _)| state != "active").count();
            assert!(unused <= 1, "{:?}", site.blocks());
            // A daemon after the one that was killed, for what still waits.
            let mut command = site.swept.lab.host.command(binary().to_str().unwrap());
            command.args(["ipam", "daemon"]).stdout(Stdio::null()).stderr(Stdio::null());
            let again = Process(command.spawn().unwrap());
            acting.join().unwrap();
            drop(again);
            Lived { daemon: tracer.join().unwrap(), died }
        })
    }

    /// Each question is a call of the daemon, so it is asked seldom.
    fn is_connected(&self) -> bool {
        std::thread::sleep(Duration::from_millis(200));
        UnixStream::connect(self.swept.lab.path(SOCKET)).is_ok()
            && self.swept.ipam("metrics").stdout.contains("cni_ipam_connected 1\n")
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
    };
}
pub(super) use test_each_phase;
