//! The daemon: the only process of a node that talks to the cluster's store. It is built on
//! [`service`](crate::service).
//!
//! It joins three parts that know nothing of each other. The [`machine`](super::machine) decides;
//! [`files`] reads and writes what the node has borrowed; [`store`] is the way to etcd. Each event
//! of a part goes to the machine, and each action of the machine to a part.

mod confinement;
mod credentials;
mod files;
mod metrics;
pub mod node;
mod requests;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::PollFlags;

use self::files::Files;
use self::metrics::Metrics;
use self::node::Journal;
use self::store::Store;
use super::claims::now as wall;
use super::engine::Name;
use super::etcd::client::Source;
use super::etcd::settings::{OnFence, Settings};
use super::held::{Blocks, State};
use super::machine::{Action, Contact, Event, Machine, Mark, Record, Turn, WriteId, Written};
use super::wire::DAEMON;
use crate::error::Result;
use crate::service::event_loop::{self, Hub, Place, Service};
use crate::sys::clock::{Moment, NEVER, since_boot};
use crate::sys::random::Random;

/// How old the daemon's knowledge of the leases may be while blocks are held. They are read at the
/// next wake-up, which a heartbeat causes within half a minute: nothing else wakes an idle daemon.
const LEASES_USUAL: Duration = Duration::from_secs(25);
/// The same while another node wants addresses: it waits for those of containers that are gone.
const LEASES_WANTED: Duration = Duration::from_millis(250);

/// What the daemon is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// The parent of the networks' directories.
    pub data_dir: PathBuf,
    /// The configuration of the node.
    pub configuration: PathBuf,
}

/// The state of the daemon.
struct Daemon {
    hub: Hub,
    journal: Journal,
    files: Files,
    store: Store,
    machine: Machine,
    metrics: Metrics,
    random: Random,
    /// The connections of ADDs that wait, each with the name whose address it needs.
    waiting: BTreeMap<u64, Option<String>>,
    /// When the leases were read last.
    looked: Moment,
    /// The data directory, if containers are to be cut off once their blocks are lost.
    cuts_off: Option<PathBuf>,
}

/// Runs the daemon until SIGTERM or SIGINT. Blocks stay held.
pub fn run(options: &Options, variable: impl Fn(&str) -> String) -> Result<()> {
    let settings = Settings::load(&options.configuration)?;
    let mut store = Store::new(&settings, Random::new())?;
    let (events, hub, journal) = start(options, variable)?;
    let own = node::of_this_machine(&journal)?;
    let files = Files::new(&options.data_dir);
    let found = files.networks(&hub.log);
    node::require_joined(&own, &found.networks)?;
    let setup = node::setup(&settings, &own, found.is_complete)?;
    store.begin(since_boot());
    let has_lost = found.networks.iter().any(|(_, blocks)| has_lost(blocks));
    let machine = Machine::new(setup, own.file, found.networks, since_boot());
    let mut daemon = Daemon {
        hub,
        journal,
        files,
        store,
        machine,
        metrics: Metrics::new(wall()),
        random: Random::new(),
        waiting: BTreeMap::new(),
        looked: Moment::ZERO,
        cuts_off: (settings.on_fence == OnFence::Down).then(|| options.data_dir.clone()),
    };
    if has_lost {
        daemon.announce_loss(); // SIGKILL may have come between the loss and its announcement
    }
    events.serve(&mut daemon)
}

/// Takes the lock of the data directory, and opens the socket.
fn start(
    options: &Options,
    variable: impl Fn(&str) -> String,
) -> Result<(event_loop::EventLoop, Hub, Journal)> {
    let journal = node::directory(&options.data_dir);
    let place = Place { socket: &options.socket, journal: Some(&journal), pidfile: Path::new("") };
    event_loop::start(&DAEMON, &confinement::CONFINEMENT, place, variable)
}

impl Daemon {
    /// Gives an event to the machine, and does all that follows from it.
    fn take(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.count(&event);
            let turn = Turn::new(since_boot(), wall(), &mut self.random);
            for action in self.machine.on(event, turn) {
                self.metrics.acts(&action);
                events.extend(self.perform(action));
            }
            self.metrics.meets(self.machine.contact(), wall());
            events.extend(self.store.events());
        }
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Outcome { id, outcome } => self.metrics.ends(*id, outcome),
            Event::Written { written, .. } => self.metrics.writes(written),
            _ => (), // what it leads to is counted
        }
    }

    /// Performs an action; returns the event that it has led to already.
    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Write { id, record } => return Some(self.write(id, record)),
            Action::Send { id, operation } => self.store.submit(id, operation, since_boot()),
            Action::Reply { request, reply } => self.reply_to(request.0, reply),
            Action::Log(line) => self.hub.log.line(line),
        }
        None
    }

    fn write(&mut self, id: WriteId, record: Record) -> Event {
        let done = match record {
            Record::Node(file) => node::write(&self.journal, self.machine.uid(), file),
            Record::Marks { network, marks, unleased } => {
                let loses = marks.iter().any(is_loss);
                let written = self.files.mark(&network, marks, &unleased);
                if loses && written == Written::Done {
                    self.announce_loss();
                }
                return Event::Written { id, written };
            }
        };
        let written = done.map_or_else(|e| Written::Failed(e.to_string()), |()| Written::Done);
        Event::Written { id, written }
    }

    /// Has the containers in lost blocks cut off, if the configuration says so.
    fn announce_loss(&self) {
        let announced = self.cuts_off.as_deref().map_or(Ok(()), node::announce_loss);
        if let Err(error) = announced {
            self.hub.log.line(error);
        }
    }

    /// Gives the machine what the store has said.
    fn hear_store(&mut self) {
        for line in self.store.notes() {
            self.hub.log.line(line);
        }
        for event in self.store.events() {
            self.take(event);
        }
    }

    /// Reads the leases of the networks with blocks.
    fn look(&mut self, now: Moment) {
        let names: Vec<Name> = self.machine.networks().cloned().collect();
        for network in names {
            self.look_at(&network);
        }
        self.looked = now;
    }

    /// Reads the leases of a network. Without them nothing is given back.
    fn look_at(&mut self, network: &Name) {
        match self.files.leases(network) {
            Ok(leases) => self.take(Event::Leases { network: network.clone(), leases }),
            Err(error) => self.hub.log.about("network", network.as_str(), error),
        }
    }
}

fn has_lost(blocks: &Blocks) -> bool {
    blocks.blocks.iter().any(|held| held.state == State::Lost)
}

fn is_loss(mark: &Mark) -> bool {
    matches!(mark, Mark::Put(held) if held.state == State::Lost)
}

impl Service for Daemon {
    type Source = Source;

    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn hub_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }

    fn resume(&mut self) -> Result<()> {
        self.look(since_boot());
        self.take(Event::Time);
        Ok(())
    }

    fn request(&mut self, id: u64, line: &[u8]) {
        self.take_request(id, line);
    }

    fn hung_up(&mut self, id: u64) {
        self.withdraw(id);
    }

    fn next_timer(&self) -> Option<Moment> {
        let machine = Some(self.machine.deadline()).filter(|moment| *moment != NEVER);
        let look = self.is_wanted().then(|| self.next_look());
        [machine, self.store.next_timer(), look].into_iter().flatten().min()
    }

    fn timer(&mut self, now: Moment) {
        self.store.timer(now);
        self.hear_store();
        if self.next_look() <= now {
            self.look(now);
        }
        if self.machine.deadline() <= now {
            self.take(Event::Time);
        }
    }

    fn descriptors(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        self.store.descriptors()
    }

    fn readable(&mut self, source: &Source) {
        self.store.ready(*source, since_boot());
        self.hear_store();
    }
}

impl Daemon {
    /// When the leases are read next: soon, once another node wants addresses.
    fn next_look(&self) -> Moment {
        self.looked + if self.is_wanted() { LEASES_WANTED } else { LEASES_USUAL }
    }

    fn is_wanted(&self) -> bool {
        self.machine.is_wanted() && *self.machine.contact() == Contact::Together
    }
}
