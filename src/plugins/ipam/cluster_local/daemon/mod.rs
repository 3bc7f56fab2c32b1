//! The daemon: the only process of a node that talks to the cluster's store. It is built on
//! [`service`](crate::service).
//!
//! It joins three parts that know nothing of each other. The [`machine`](super::machine) decides;
//! [`files`] and [`identity`] read and write what the node has on its disk; the [`Worker`] asks the
//! store. Each event of a part goes to the machine, and each action of the machine to a part.

mod files;
pub mod identity;
mod metrics;
mod requests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::libc;
use nix::poll::PollFlags;

use self::identity::Identity;
use self::metrics::Metrics;
use super::confirmed::{self, Confirmation};
use super::machine::{Action, Machine, RequestId, Setup, Standing, Turn, Written};
use super::store::Operation;
use super::store::settings::Settings;
use super::store::worker::{Told, Worker};
use super::wire::DAEMON;
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::service::confinement::Confinement;
use crate::service::event_loop::{self, Hub, Place, Service};
use crate::sys::clock::{Moment, NEVER, since_boot};
use crate::sys::random::Random;

/// How old the daemon's knowledge of the leases may be while blocks are held. They are read at the
/// next wake-up, which a beat causes within half a minute: nothing else wakes an idle daemon.
const LEASES_USUAL: Duration = Duration::from_secs(25);
/// The same while another node wants addresses: it waits for those of containers that are gone.
const LEASES_WANTED: Duration = Duration::from_millis(250);
/// How often an outcome is looked for whose signal may have been lost.
const ANSWER: Duration = Duration::from_secs(1);

/// Sockets to the store, and files of root: no capability is needed for either.
const CONFINEMENT: Confinement = Confinement {
    needed: &[],
    useful: &[],
    families: &[libc::AF_INET, libc::AF_INET6],
    always: &[
        libc::SYS_eventfd2, // of the worker, which begins confined
        libc::SYS_flock,
        libc::SYS_fsync,
        libc::SYS_getpeername,
        libc::SYS_sched_getaffinity, // of each new thread
        libc::SYS_shutdown,
    ],
    some: &[],
};

/// The state of the daemon.
struct Daemon {
    hub: Hub,
    data_dir: PathBuf,
    identity: Identity,
    worker: Worker,
    machine: Machine,
    metrics: Metrics,
    random: Random,
    /// What the worker was asked to do, without an outcome yet.
    asked: Option<Operation>,
    /// When the machine has something to do.
    due: Moment,
    /// The connections of ADDs that wait, each with the name whose address it needs.
    waiting: BTreeMap<u64, Option<String>>,
    /// When the leases were read last.
    looked: Moment,
}

/// The advice for a node that is no part of a cluster.
const NO_PART: &str = "the file has the node's part in a cluster, with mode 0600: \
    {\"cluster\": \"NAME\", \"node\": \"NAME\", \"etcd\": {\"endpoints\": [\"https://ADDRESS:2379\"]}}";

/// Runs the daemon of a data directory, which listens at a socket, until SIGTERM or SIGINT. Blocks stay
/// held.
pub fn run(
    socket: &Path,
    data_dir: &Path,
    configuration: &Path,
    variable: impl Fn(&str) -> String,
) -> Result<()> {
    let settings = Settings::load(configuration).map_err(|e| match e.is_not_found() {
        true => e.with_details(NO_PART),
        false => e,
    })?;
    // Before confinement: it may ask the kernel for links.
    let confirmation = identity::confirmation(settings.node.clone())?;
    let directory = identity::directory(data_dir);
    let place = Place { socket, journal: Some(&directory), pidfile: Path::new("") };
    let (events, hub, journal) = event_loop::start(&DAEMON, &CONFINEMENT, place, variable)?;
    let identity = Identity::new(journal, data_dir, confirmed::path(socket), confirmation)?;
    let worker = Worker::start(|note| settings.open(note))?;
    events.serve(&mut Daemon::new(hub, identity, worker, data_dir, &settings)?)
}

impl Daemon {
    /// Reads what the node has on its disk.
    fn new(
        hub: Hub,
        identity: Identity,
        worker: Worker,
        data_dir: &Path,
        settings: &Settings,
    ) -> Result<Daemon> {
        let file = identity::read(data_dir)?;
        let (networks, is_complete) = files::networks(data_dir, &hub.log);
        let Confirmation { boot, node, machine, .. } = identity.confirmation.clone();
        let setup = Setup {
            node,
            machine,
            boot,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settle: settings.settle,
            trusts_reboot: settings.trusts_reboot,
            is_complete,
            is_replaced: identity.is_replaced,
        };
        let is_confirmed = identity.is_confirmed();
        Ok(Daemon {
            hub,
            data_dir: data_dir.to_owned(),
            identity,
            worker,
            machine: Machine::new(setup, file, networks, is_confirmed, since_boot()),
            metrics: Metrics::new(wall()),
            random: Random::new(),
            asked: None,
            due: Moment::ZERO,
            waiting: BTreeMap::new(),
            looked: Moment::ZERO,
        })
    }

    /// Does what the machine wants done, until it waits.
    fn pursue(&mut self) {
        loop {
            let mut turn = Turn { now: since_boot(), wall: wall(), random: &mut self.random };
            let action = self.machine.next(&mut turn);
            self.metrics.acts(&action);
            let written = match action {
                Action::Node(file) => self.identity.write(&file).map(|()| Written::Done),
                Action::Marks(marks) => files::mark(&self.data_dir, &marks),
                Action::Confirm(allocation) => {
                    self.identity.confirm(allocation).map(|()| Written::Done)
                }
                Action::Send(operation) => {
                    self.asked = Some(operation.clone());
                    self.worker.send(operation);
                    continue;
                }
                Action::Reply(RequestId(id), reply) => {
                    let name = self.waiting.remove(&id).flatten().unwrap_or_default();
                    self.answer(id, &requests::answer(&name, reply));
                    continue;
                }
                Action::Log(line) => {
                    self.hub.log.line(line);
                    continue;
                }
                Action::Wait(moment) => {
                    self.due = moment;
                    break;
                }
            };
            let written = written.unwrap_or_else(|e| Written::Failed(e.to_string()));
            self.metrics.writes(&written);
            self.machine.wrote(written, since_boot());
        }
        self.metrics.stands(&self.machine.standing(), wall());
    }

    /// Reads the leases of the networks with blocks.
    fn look(&mut self, now: Moment) {
        let names: Vec<NetworkName> = self.machine.networks().cloned().collect();
        names.iter().for_each(|network| self.look_at(network));
        self.looked = now;
    }

    /// Reads the leases of a network. Without them nothing is given back.
    fn look_at(&mut self, network: &NetworkName) {
        match files::place(&self.data_dir, network).taken() {
            Ok(leases) => self.machine.leases(network, leases.into_iter().collect()),
            Err(error) => self.hub.log.about("network", network.as_str(), error),
        }
    }

    /// When the leases are read next: soon, once another node wants addresses.
    fn next_look(&self) -> Moment {
        self.looked + if self.is_wanted() { LEASES_WANTED } else { LEASES_USUAL }
    }

    fn is_wanted(&self) -> bool {
        self.machine.is_wanted() && self.machine.standing() == Standing::Connected
    }
}

impl Service for Daemon {
    type Source = ();

    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn hub_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }

    fn resume(&mut self) -> Result<()> {
        self.look(since_boot());
        self.pursue();
        Ok(())
    }

    fn request(&mut self, id: u64, line: &[u8]) {
        self.take_request(id, line);
    }

    fn hung_up(&mut self, id: u64) {
        if self.waiting.remove(&id).is_some() {
            self.machine.withdrawn(RequestId(id));
        }
    }

    fn next_timer(&self) -> Option<Moment> {
        let machine = Some(self.due).filter(|moment| *moment != NEVER);
        let look = self.is_wanted().then(|| self.next_look());
        let answer = self.asked.is_some().then(|| since_boot() + ANSWER);
        [machine, look, answer].into_iter().flatten().min()
    }

    /// The requests and outcomes of this wake-up came before: what follows from all of them is done now.
    fn timer(&mut self, now: Moment) {
        self.readable(&()); // an outcome whose signal was lost
        if self.next_look() <= now {
            self.look(now);
        }
        self.pursue();
    }

    fn descriptors(&self) -> Vec<((), BorrowedFd<'_>, PollFlags)> {
        vec![((), self.worker.as_fd(), PollFlags::POLLIN)]
    }

    fn readable(&mut self, (): &()) {
        for told in self.worker.told() {
            match told {
                Told::Outcome(outcome) => {
                    if let Some(operation) = self.asked.take() {
                        self.metrics.ends(&operation, &outcome);
                    }
                    self.machine.answered(outcome, since_boot());
                }
                Told::Heard(heard) => self.machine.heard(heard, since_boot()),
                Told::Note(line) => self.hub.log.line(line),
            }
        }
    }
}

/// The seconds since 1970.
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, Mutex};

    use nix::poll::{PollFd, PollTimeout, poll};
    use serde_json::Value;

    use super::super::held::Blocks;
    use super::super::store::tests::memory::Memory;
    use super::super::store::{self, Heard, Key, Outcome, Record, Selection, Store, Stored, Token};
    use super::*;
    use crate::scratch::Scratch;
    use crate::service::connection::Connections;
    use crate::service::log::Log;

    /// A store that the daemon's threads share.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Memory>>);

    impl Store for Shared {
        fn get(&mut self, key: &Key) -> Outcome<Option<Stored>> {
            self.0.lock().unwrap().get(key)
        }

        fn list(&mut self, selection: &Selection) -> Outcome<Vec<Stored>> {
            self.0.lock().unwrap().list(selection)
        }

        fn create(&mut self, record: &Record) -> Outcome<Stored> {
            self.0.lock().unwrap().create(record)
        }

        fn update(&mut self, record: &Record, seen: &Stored) -> Outcome<Stored> {
            self.0.lock().unwrap().update(record, seen)
        }

        fn delete(&mut self, seen: &Stored) -> Outcome<()> {
            self.0.lock().unwrap().delete(seen)
        }

        fn watch(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Outcome<()> {
            self.0.lock().unwrap().watch(tell)
        }
    }

    /// The daemon of a data directory, and of a network without a block.
    fn daemon(dir: &Scratch) -> Daemon {
        let pool = r#"{"length":32,"spans":["10.1.0.2-10.1.0.9"]}"#;
        let pools = vec![serde_json::from_str(pool).unwrap()];
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        let blocks = Blocks::new("default".parse().unwrap(), pools, 0);
        blocks.write(&dir.path().join("pods")).unwrap();
        let settings = r#"{"cluster":"c","node":"n1","etcd":{"endpoints":["http://127.0.0.1"]}}"#;
        let journal = identity::Journal::open(&DAEMON, &identity::directory(dir.path())).unwrap();
        let confirmation = Confirmation {
            boot: "boot".to_owned(),
            node: "n1".parse().unwrap(),
            machine: Token(1),
            record: None,
            withdrawn: false,
        };
        let path = confirmed::path(&dir.path().join("ipam.sock"));
        let identity = Identity::new(journal, dir.path(), path, confirmation).unwrap();
        let store = Shared::default();
        let worker = Worker::start(|_| Ok(Box::new(store.clone()) as Box<dyn store::Store + Send>));
        let hub = Hub { log: Log::new(|_| String::new()), connections: Connections::default() };
        let settings = Settings::parse(settings.as_bytes()).unwrap();
        let mut daemon =
            Daemon::new(hub, identity, worker.unwrap(), dir.path(), &settings).unwrap();
        daemon.resume().unwrap();
        daemon
    }

    /// Asks, and serves until the last line of the answer.
    fn ask(daemon: &mut Daemon, request: &str) -> Value {
        let (client, served) = UnixStream::pair().unwrap();
        (&client).write_all(request.as_bytes()).unwrap();
        daemon.hub.connections.add(served, since_boot()).unwrap();
        let (id, ..) = daemon.hub.connections.descriptors().last().unwrap();
        daemon.hub.connections.serve(id, PollFlags::POLLIN);
        daemon.request(id, request.trim_end().as_bytes());
        let end = since_boot() + Duration::from_secs(30);
        while daemon.hub.connections.descriptors().any(|(of, ..)| of == id) {
            assert!(since_boot() < end, "no answer: {:?}", daemon.machine.standing());
            poll(
                &mut [PollFd::new(daemon.worker.as_fd(), PollFlags::POLLIN)],
                PollTimeout::from(10u8),
            )
            .unwrap();
            daemon.readable(&());
            daemon.timer(since_boot());
        }
        serde_json::from_str(&BufReader::new(client).lines().last().unwrap().unwrap()).unwrap()
    }

    #[test]
    fn an_add_gets_an_address_of_a_confirmed_block() {
        let dir = Scratch::new();
        let mut daemon = daemon(&dir);
        let need = |more: &str| {
            format!(r#"{{"protocol":2,"op":"need","network":"pods","set":0,"patience":20{more}}}"#)
        };
        let answer = ask(&mut daemon, &(need(r#","address":"10.1.0.7""#) + "\n"));
        assert_eq!(answer["answer"], "claimed", "{answer}");
        let blocks = Blocks::read(&dir.path().join("pods")).unwrap().unwrap();
        assert!(blocks.has("10.1.0.7".parse().unwrap()), "{blocks:?}");
        let confirmation = Confirmation::read(&dir.path().join(confirmed::FILE)).unwrap().unwrap();
        assert!(confirmation.fits("boot", dir.path()));
        let status = ask(&mut daemon, "{\"protocol\":2,\"op\":\"status\"}\n");
        assert_eq!(status["answer"], "connected", "{status}");
        let metrics = ask(&mut daemon, "{\"protocol\":2,\"op\":\"metrics\"}\n");
        let text = metrics["answer"].as_str().unwrap();
        for value in ["claims_total 1\n", "connected 1\n", "needs_total{answer=\"claimed\"} 1\n"] {
            assert!(text.contains(&format!("\ncni_ipam_{value}")), "{text}");
        }
        let unknown = ask(&mut daemon, &need("").replace("pods", "other"));
        assert_eq!(unknown["error"]["code"], 7, "{unknown}");
    }

    #[test]
    fn a_client_that_hangs_up_is_forgotten() {
        let dir = Scratch::new();
        let mut daemon = daemon(&dir);
        let need = r#"{"protocol":2,"op":"need","network":"pods","set":0,"patience":20}"#;
        daemon.request(7, need.as_bytes());
        let waits = |daemon: &Daemon| {
            let network = daemon.machine.network(&NetworkName::parse("pods").unwrap()).unwrap();
            (network.requests.len(), daemon.waiting.len())
        };
        assert_eq!(waits(&daemon), (1, 1));
        daemon.hung_up(7);
        assert_eq!(waits(&daemon), (0, 0));
    }
}
