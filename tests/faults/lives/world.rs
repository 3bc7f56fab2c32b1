//! The state shared by all workers: the host, its networks, the attachments, and what was done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::networks::Network;
use crate::support::attachment::ips;
use crate::support::netns::{Container, Lab};
use crate::support::snapshot::Snapshot;

/// One attachment, from before its ADD until its DEL succeeds.
pub struct Life {
    /// Its index in the list of networks.
    pub network: usize,
    pub id: String,
    pub ifname: String,
    pub netns: String,
    /// The runtime's values, by capability.
    pub capabilities: Value,
    /// The result of ADD; None until ADD has succeeded.
    pub result: Option<Value>,
}

/// Once `lo` has been up, it keeps the address that loopback sets.
pub const LO: &str = "ip link set lo up && ip link set lo down";

/// Container ID and interface.
type Member = (String, String);

/// The attachments as a runtime knows them.
#[derive(Default)]
struct Register {
    /// By network: pending, living, and those before a successful DEL.
    members: BTreeMap<usize, BTreeSet<Member>>,
    /// By network: the addresses of living attachments.
    holders: BTreeMap<usize, BTreeMap<String, Member>>,
    /// By network: the number of attachments left to GC.
    abandoned: BTreeMap<usize, usize>,
}

/// The number of times each thing was done.
#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<&'static str, usize>>);

impl Tally {
    pub fn count(&self, what: &'static str) {
        *self.0.lock().unwrap().entry(what).or_default() += 1;
    }

    pub fn of(&self, what: &str) -> usize {
        self.0.lock().unwrap().get(what).copied().unwrap_or_default()
    }

    pub fn lines(&self) -> String {
        self.0.lock().unwrap().iter().fold(String::new(), |mut text, (what, count)| {
            writeln!(text, "{count:>8} {what}").unwrap();
            text
        })
    }
}

pub struct World<'a> {
    pub lab: &'a Lab,
    /// A command for each new container: creates the state that the kernel keeps, so that
    /// comparisons before and after agree.
    prepare: &'static str,
    /// Seconds that asynchronous changes may take.
    pub patience: u64,
    pub networks: Vec<Network>,
    pub tally: Tally,
    /// A namespace that never had an attachment.
    pub pristine: Snapshot,
    /// Whether attachments may be left to GC and GCs run in between. Otherwise no GC helps DEL.
    pub collects: AtomicBool,
    /// The number of containers created so far.
    pub made: AtomicUsize,
    register: Mutex<Register>,
    /// By network: no attachment begins between the reading of a GC's list and the GC's end.
    /// Pending attachments are in the list.
    gates: Vec<RwLock<()>>,
    /// The usual duration of a call, by kind.
    paces: Mutex<BTreeMap<String, f64>>,
    history: Mutex<Vec<String>>,
    start: Instant,
    stopped: AtomicBool,
}

impl<'a> World<'a> {
    pub fn new(lab: &'a Lab, networks: Vec<Network>, prepare: &'static str) -> World<'a> {
        let pristine = lab.container();
        pristine.sh(prepare);
        World {
            lab,
            prepare,
            patience: 5,
            gates: networks.iter().map(|_| RwLock::default()).collect(),
            networks,
            tally: Tally::default(),
            pristine: Snapshot::of(&pristine),
            collects: AtomicBool::new(false),
            made: AtomicUsize::new(0),
            register: Mutex::default(),
            paces: Mutex::default(),
            history: Mutex::default(),
            start: Instant::now(),
            stopped: AtomicBool::new(false),
        }
    }

    fn register(&self) -> MutexGuard<'_, Register> {
        self.register.lock().unwrap()
    }

    pub fn network(&self, life: &Life) -> &Network {
        &self.networks[life.network]
    }

    pub fn collects(&self) -> bool {
        self.collects.load(Ordering::Relaxed)
    }

    pub fn container(&self) -> Container {
        let container = self.lab.container();
        container.sh(self.prepare);
        container
    }

    /// From now on every GC spares it.
    pub fn expect(&self, life: &Life) {
        let _gate = self.gates[life.network].write().unwrap();
        self.register().members.entry(life.network).or_default().insert(member(life));
    }

    /// ADD has ended. Until its DEL begins, no other attachment may have its addresses.
    #[track_caller]
    pub fn live(&self, life: &Life) {
        let result = life.result.as_ref().expect("it has a result");
        let mut register = self.register();
        let holders = register.holders.entry(life.network).or_default();
        for ip in own_ips(result) {
            let other = holders.insert(ip.clone(), member(life));
            let name = &self.networks[life.network].name;
            assert!(
                other.is_none(),
                "DOUBLE ADDRESS: {ip} of {name} is that of {:?} and of {other:?}",
                member(life)
            );
        }
    }

    /// Its DEL is about to begin, or its namespace about to vanish.
    pub fn release(&self, life: &Life) {
        if let Some(holders) = self.register().holders.get_mut(&life.network) {
            holders.retain(|_, holder| *holder != member(life));
        }
    }

    /// GC need not spare it any more.
    pub fn forget(&self, life: &Life) {
        if let Some(members) = self.register().members.get_mut(&life.network) {
            members.remove(&member(life));
        }
    }

    /// Whether the attachment may be left without DEL. The number is limited so that addresses do
    /// not run out.
    pub fn may_abandon(&self, life: &Life) -> bool {
        let mut register = self.register();
        let abandoned = register.abandoned.entry(life.network).or_default();
        let may = self.collects() && *abandoned < 8 && self.network(life).worker.is_none();
        *abandoned += usize::from(may);
        may
    }

    /// The attachments that a GC must spare. None begins in that network while the guard is held.
    pub fn valid(&self, network: usize) -> (Value, RwLockReadGuard<'_, ()>) {
        let gate = self.gates[network].read().unwrap();
        let register = self.register();
        let members = register.members.get(&network).into_iter().flatten();
        (members.map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect(), gate)
    }

    /// A GC has finished.
    pub fn collected(&self, network: usize) {
        self.register().abandoned.remove(&network);
    }

    /// The owners of the addresses of a network.
    pub fn holders(&self, network: usize) -> BTreeMap<String, Member> {
        self.register().holders.get(&network).cloned().unwrap_or_default()
    }

    /// The rough duration of a call of this kind on this machine.
    pub fn pace(&self, kind: &str) -> Duration {
        let seconds = self.paces.lock().unwrap().get(kind).copied();
        Duration::from_secs_f64(seconds.unwrap_or(0.02))
    }

    pub fn took(&self, kind: &str, time: Duration) {
        let mut paces = self.paces.lock().unwrap();
        let pace = paces.entry(kind.to_owned()).or_insert(time.as_secs_f64());
        *pace += (time.as_secs_f64() - *pace) / 8.0;
    }

    /// Adds a line to the history.
    pub fn tell(&self, what: String) {
        let line = format!("{:9.3} {what}", self.start.elapsed().as_secs_f64());
        self.history.lock().unwrap().push(line);
    }

    pub fn history(&self) -> String {
        self.history.lock().unwrap().join("\n")
    }

    /// Stops all workers after a failure.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

fn member(life: &Life) -> Member {
    (life.id.clone(), life.ifname.clone())
}

/// The addresses of a result that must be unique.
pub fn own_ips(result: &Value) -> Vec<String> {
    let all = if result["ips"].is_array() { ips(result) } else { vec![] };
    all.into_iter().filter(|ip| ip != "::1" && !ip.starts_with("127.")).collect()
}
