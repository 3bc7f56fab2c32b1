//! The way to the store. Nothing is sent before it is known that the store is not the etcd of a
//! Kubernetes control plane, whose every secret the node's credentials could read.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::os::fd::BorrowedFd;
use std::time::SystemTime;

use nix::poll::PollFlags;

use super::super::engine::{Name, Operation, OperationId, Outcome};
use super::super::etcd::client::{self, Client, Inspection, Source};
use super::super::etcd::event::CONTROL_PLANE;
use super::super::etcd::settings::Settings;
use super::super::machine::Event;
use super::credentials::Credentials;
use crate::error::Result;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// The files were read again.
const RENEWED: &str = "certificates and password were read again, as a file has changed";
/// They could not be.
const KEPT: &str = "what was read before stays in use";

/// What is known of the store.
enum Gate {
    /// It is acceptable.
    Open,
    /// It is being inspected: these operations wait.
    Inspecting(Vec<(OperationId, Operation)>),
    /// It was not inspected yet, or is not acceptable: the next operation begins an inspection.
    Closed,
}

/// The store.
pub struct Store {
    client: Client,
    credentials: Credentials,
    gate: Gate,
    /// The realm of each watch.
    watches: BTreeMap<OperationId, Name>,
    events: VecDeque<Event>,
    /// Lines for the log.
    notes: Vec<String>,
}

impl Store {
    /// The store of these settings.
    pub fn new(settings: &Settings, random: Random) -> Result<Store> {
        let credentials = Credentials::new(settings);
        let store = settings.store(SystemTime::now())?;
        let gate = if settings.accept_control_plane { Gate::Open } else { Gate::Closed };
        let client = Client::new(store, random);
        Ok(Store {
            client,
            credentials,
            gate,
            watches: BTreeMap::new(),
            events: VecDeque::new(),
            notes: vec![],
        })
    }

    /// Begins to inspect the store.
    pub fn begin(&mut self, now: Moment) {
        if matches!(self.gate, Gate::Closed) {
            self.renew();
            self.gate = Gate::Inspecting(vec![]);
            self.client.inspect(now);
        }
    }

    /// Sends an operation, once the store may be used.
    pub fn submit(&mut self, id: OperationId, operation: Operation, now: Moment) {
        self.begin(now);
        match &mut self.gate {
            Gate::Inspecting(waiting) => waiting.push((id, operation)),
            Gate::Open | Gate::Closed => self.send(id, operation, now),
        }
        self.hear(now);
    }

    fn send(&mut self, id: OperationId, operation: Operation, now: Moment) {
        let has_own_connection = matches!(operation, Operation::Watch { .. });
        if has_own_connection || !self.client.is_connected() {
            self.renew();
        }
        if let Operation::Watch { realm, .. } = &operation {
            self.watches.insert(id, realm.clone());
        }
        self.client.submit(id, operation, now);
    }

    /// Reads certificates and password again if they were replaced, before a new connection or a new
    /// token. What cannot be used is reported once; what was read before stays in use.
    fn renew(&mut self) {
        match self.credentials.renewed() {
            None => (),
            Some(Ok(store)) => {
                self.client.set_credentials(store.tls, store.login);
                self.notes.push(RENEWED.to_owned());
            }
            Some(Err(error)) => self.notes.push(format!("{error}; {KEPT}")),
        }
    }

    /// The lines for the log since the last call.
    pub fn notes(&mut self) -> Vec<String> {
        mem::take(&mut self.notes)
    }

    /// What has happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        mem::take(&mut self.events).into()
    }

    /// The descriptors of its connections.
    pub fn descriptors(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        self.client.descriptors()
    }

    /// Handles a ready descriptor.
    pub fn ready(&mut self, source: Source, now: Moment) {
        self.client.ready(source, now);
        self.hear(now);
    }

    /// When something is due.
    pub fn next_timer(&self) -> Option<Moment> {
        self.client.next_timer()
    }

    /// Handles what is due.
    pub fn timer(&mut self, now: Moment) {
        self.client.timer(now);
        self.hear(now);
    }

    fn hear(&mut self, now: Moment) {
        while let Some(event) = self.client.next_event() {
            match event {
                client::Event::Outcome(id, outcome) => self.end(id, outcome),
                client::Event::Change(id, change) => {
                    let realm = self.watches.get(&id).cloned();
                    self.events.extend(realm.map(|realm| Event::Changed { realm, change }));
                }
                client::Event::Inspected(inspection) => self.inspected(inspection, now),
            }
        }
    }

    fn end(&mut self, id: OperationId, outcome: Outcome) {
        self.watches.remove(&id);
        self.events.push_back(Event::Outcome { id, outcome });
    }

    fn inspected(&mut self, inspection: Inspection, now: Moment) {
        let Gate::Inspecting(waiting) = mem::replace(&mut self.gate, Gate::Closed) else { return };
        let outcome = match inspection {
            Inspection::Separate => {
                self.gate = Gate::Open;
                return waiting
                    .into_iter()
                    .for_each(|(id, operation)| self.send(id, operation, now));
            }
            Inspection::ControlPlane => Outcome::Unreachable { reason: CONTROL_PLANE.to_owned() },
            Inspection::Failed(Outcome::Refused { reason }) => Outcome::Unreachable { reason },
            Inspection::Failed(outcome) => outcome,
        };
        for (id, _) in waiting {
            self.end(id, outcome.clone());
        }
    }
}
