//! The daemon's metrics: what it has done since it started, and what the node holds now. Their
//! number is bounded by the node's networks; nothing of a pod or an address is a label.

use std::collections::BTreeMap;

use super::super::engine::{Operation, OperationId, Outcome};
use super::super::held::State;
use super::super::machine::network::Network;
use super::super::machine::{Action, Contact, Line, Machine, Reply, Written};
use crate::service::metrics::Page;

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Claims,
    LostRaces,
    Returns,
    Splits,
    Conflicts,
    Fenced,
    WriteFailures,
}

/// Each counter's name and purpose, in the order of [`Count`].
const COUNTERS: [(&str, &str); 7] = [
    ("claims", "Blocks claimed."),
    ("lost_races", "Claims of what another node had claimed meanwhile."),
    ("returns", "Blocks given back."),
    ("splits", "Blocks of which a part was given back."),
    ("conflicts", "Blocks that another node has, too."),
    ("fenced", "How often the node found itself reclaimed."),
    ("write_failures", "Writes to the disk that failed."),
];

/// The answers to ADDs that found nothing free.
const ANSWERS: [&str; 3] = ["claimed", "full", "refused"];

/// What can be wrong with the store.
const FAILURES: [&str; 4] = ["unreachable", "unauthenticated", "unknown", "refused"];

/// The states of blocks.
const STATES: [State; 6] = [
    State::Claiming,
    State::Settling,
    State::Active,
    State::Returning,
    State::Lost,
    State::Conflict,
];

/// What the daemon has done since it started.
#[derive(Default)]
pub struct Metrics {
    counts: [u64; COUNTERS.len()],
    answers: [u64; ANSWERS.len()],
    failures: [u64; FAILURES.len()],
    last_failure: Option<usize>,
    operations: BTreeMap<&'static str, u64>,
    /// The operations without an outcome yet.
    flights: BTreeMap<OperationId, &'static str>,
    is_together: bool,
    /// When `is_together` changed, in seconds since 1970.
    changed: u64,
}

impl Metrics {
    /// Nothing was done yet.
    pub fn new(wall: u64) -> Metrics {
        Metrics { changed: wall, ..Metrics::default() }
    }

    /// Counts what the machine wants done.
    pub fn acts(&mut self, action: &Action) {
        match action {
            Action::Send { id, operation } => self.sends(*id, operation),
            Action::Reply { reply, .. } => self.answers[answer_of(reply)] += 1,
            Action::Log(Line::Conflict(_)) => self.count(Count::Conflicts),
            Action::Log(Line::Fenced) => self.count(Count::Fenced),
            Action::Log(_) | Action::Write { .. } => (),
        }
    }

    fn sends(&mut self, id: OperationId, operation: &Operation) {
        let kind = kind_of(operation);
        *self.operations.entry(kind).or_default() += 1;
        self.flights.insert(id, kind);
    }

    /// Counts how an operation has ended.
    pub fn ends(&mut self, id: OperationId, outcome: &Outcome) {
        let Some(kind) = self.flights.remove(&id) else { return };
        match (kind, outcome) {
            ("claim", Outcome::Done { .. }) => self.count(Count::Claims),
            ("claim", Outcome::Lost { .. }) => self.count(Count::LostRaces),
            ("release", Outcome::Done { .. }) => self.count(Count::Returns),
            ("replace", Outcome::Done { .. }) => self.count(Count::Splits),
            (_, Outcome::Unreachable { .. }) => self.fails(0),
            (_, Outcome::Unauthenticated { .. }) => self.fails(1),
            (_, Outcome::Unknown { .. }) => self.fails(2),
            (_, Outcome::Refused { .. }) => self.fails(3),
            (_, Outcome::Done { .. } | Outcome::Lost { .. } | Outcome::Compacted { .. }) => (),
        }
    }

    fn fails(&mut self, class: usize) {
        self.failures[class] += 1;
        self.last_failure = Some(class);
    }

    /// Counts a write that failed.
    pub fn writes(&mut self, written: &Written) {
        if let Written::Failed(_) = written {
            self.count(Count::WriteFailures);
        }
    }

    fn count(&mut self, what: Count) {
        self.counts[what as usize] += 1;
    }

    /// Notes the contact as it is at a time.
    pub fn meets(&mut self, contact: &Contact, wall: u64) {
        let is_together = *contact == Contact::Together;
        if is_together != self.is_together {
            self.is_together = is_together;
            self.changed = wall;
        }
    }

    /// All metrics, in the text of OpenMetrics.
    pub fn text(&self, machine: &Machine) -> String {
        let mut page = Page::new("cni_ipam");
        write_blocks(machine, &mut page);
        write_addresses(machine, &mut page);
        self.write_contact(machine.contact(), &mut page);
        self.write_counts(&mut page);
        self.write_operations(&mut page);
        page.finish()
    }

    fn write_contact(&self, contact: &Contact, page: &mut Page) {
        page.family(
            "connected",
            "gauge",
            "Whether the daemon may claim: etcd answers, and every block was compared with it.",
        );
        page.sample("connected", &[], u8::from(self.is_together));
        let since = "connection_changed_timestamp_seconds";
        page.family(since, "gauge", "Since when connected has its value, in seconds since 1970.");
        page.sample(since, &[], self.changed);
        let states = [
            (
                "is_fenced",
                matches!(contact, Contact::Fenced { .. }),
                "Whether the node was reclaimed and has leases of old blocks.",
            ),
            (
                "is_name_taken",
                matches!(contact, Contact::NameTaken { .. }),
                "Whether another machine has the name of the node.",
            ),
        ];
        for (name, is_so, about) in states {
            page.family(name, "gauge", about);
            page.sample(name, &[], u8::from(is_so));
        }
        page.family("last_failure", "gauge", "1 for the class of etcd's last failure.");
        for (class, name) in FAILURES.iter().enumerate() {
            let is_last = self.last_failure == Some(class);
            page.sample("last_failure", &[("class", name)], u8::from(is_last));
        }
    }

    fn write_counts(&self, page: &mut Page) {
        for ((name, about), count) in COUNTERS.iter().zip(self.counts) {
            page.family(name, "counter", about);
            page.sample(&format!("{name}_total"), &[], count);
        }
        page.family("needs", "counter", "ADDs that found nothing free, by the answer.");
        for (answer, count) in ANSWERS.iter().zip(self.answers) {
            page.sample("needs_total", &[("answer", answer)], count);
        }
    }

    fn write_operations(&self, page: &mut Page) {
        page.family("operations", "counter", "Operations that were asked of etcd.");
        for (kind, count) in &self.operations {
            page.sample("operations_total", &[("operation", kind)], *count);
        }
        page.family("operation_failures", "counter", "Operations that failed, by class.");
        for (class, count) in FAILURES.iter().zip(self.failures) {
            page.sample("operation_failures_total", &[("class", class)], count);
        }
    }
}

fn networks(machine: &Machine) -> impl Iterator<Item = ([(&str, &str); 2], &Network)> {
    machine.networks().filter_map(|name| {
        let network = machine.network(name)?;
        Some(([("network", name.as_str()), ("realm", network.realm.as_str())], network))
    })
}

fn write_blocks(machine: &Machine, page: &mut Page) {
    page.family("blocks", "gauge", "Blocks of the node, by state.");
    for (labels, network) in networks(machine) {
        for state in STATES {
            let blocks = network.blocks.values().filter(|tracked| tracked.held.state == state);
            let state = state.to_string();
            let labels = [&labels[..], &[("state", &state)]].concat();
            page.sample("blocks", &labels, blocks.count());
        }
    }
}

fn write_addresses(machine: &Machine, page: &mut Page) {
    page.family("addresses_held", "gauge", "Addresses with leases.");
    for (labels, network) in networks(machine) {
        page.sample("addresses_held", &labels, network.leases.len());
    }
    page.family("addresses_free", "gauge", "Addresses that the node allocates without etcd.");
    for (labels, network) in networks(machine) {
        let pools = 0..network.pools.len();
        let free = pools.map(|pool| network.free_of(pool)).fold(0, u64::saturating_add);
        page.sample("addresses_free", &labels, free);
    }
    page.family("waiting", "gauge", "ADDs that wait for an address.");
    for (labels, network) in networks(machine) {
        page.sample("waiting", &labels, network.requests.len());
    }
}

fn answer_of(reply: &Reply) -> usize {
    match reply {
        Reply::LookAgain => 0,
        Reply::Full => 1,
        Reply::Elsewhere(_)
        | Reply::Contested(_)
        | Reply::Settling
        | Reply::Away(_)
        | Reply::Fenced
        | Reply::NameTaken => 2,
    }
}

/// The word for an operation.
fn kind_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::ReadNode { .. } => "read_node",
        Operation::Register { .. } => "register",
        Operation::Heartbeat { .. } => "heartbeat",
        Operation::List { .. } => "list",
        Operation::ReadBlock { .. } => "read_block",
        Operation::Claim { .. } => "claim",
        Operation::Replace { .. } => "replace",
        Operation::Release { .. } => "release",
        Operation::Hold { .. } => "hold",
        Operation::Want { .. } => "want",
        Operation::NoteConflict { .. } => "note_conflict",
        Operation::NotePool { .. } => "note_pool",
        Operation::Watch { .. } => "watch",
        _ => "other", // those of operators, which the daemon does not send
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn unreachable() -> Outcome {
        Outcome::Unreachable { reason: "away".into() }
    }

    #[test]
    fn outcomes_are_counted_once_and_by_what_was_asked() {
        let mut metrics = Metrics::new(7);
        let id = OperationId(1);
        let operation = Operation::ReadNode { node: "n1".parse().unwrap() };
        metrics.acts(&Action::Send { id, operation });
        metrics.ends(id, &unreachable());
        metrics.ends(id, &unreachable());
        assert_eq!((metrics.failures, metrics.last_failure), ([1, 0, 0, 0], Some(0)));
        assert_eq!(metrics.operations.get("read_node"), Some(&1));
        assert!(metrics.flights.is_empty());
        metrics.writes(&Written::Failed("full".into()));
        metrics.writes(&Written::Leased);
        assert_eq!(metrics.counts[Count::WriteFailures as usize], 1);
    }

    #[test]
    fn the_time_of_the_contact_is_that_of_its_last_change() {
        let mut metrics = Metrics::new(7);
        let away = Contact::Away { retry: std::time::Duration::ZERO, reason: "away".into() };
        metrics.meets(&away, 8);
        assert_eq!((metrics.is_together, metrics.changed), (false, 7));
        metrics.meets(&Contact::Together, 9);
        metrics.meets(&Contact::Together, 10);
        assert_eq!((metrics.is_together, metrics.changed), (true, 9));
    }
}
