//! The daemon's metrics: what it has done since it started, and what the node holds now. Their
//! number is bounded by the node's networks; nothing of a pod or an address is a label.

use std::collections::BTreeMap;

use super::super::held::{Held, State};
use super::super::machine::network::Network;
use super::super::machine::{Action, Line, Machine, Reply, Standing, Written};
use super::super::store::{Answer, Key, Operation, Outcome, Record, Stored, Value};
use crate::service::metrics::Page;

/// Each counter's name and purpose.
const COUNTERS: [(&str, &str); 7] = [
    ("claims", "Blocks claimed."),
    ("lost_races", "Claims of what another node had claimed meanwhile."),
    ("returns", "Blocks given back."),
    ("lost_beats", "Beats that the store did not acknowledge."),
    ("doubts", "How often every block was verified, as the store had lost something or was away."),
    ("conflicts", "Blocks in which another node has leases, too."),
    ("write_failures", "Writes to the disk that failed."),
];

/// The answers to ADDs that found nothing free.
const ANSWERS: [&str; 3] = ["claimed", "full", "refused"];

/// What is asked of the store.
const VERBS: [&str; 5] = ["get", "list", "create", "update", "delete"];

/// How it ends; what comes after the first two is a failure of the store.
const OUTCOMES: [&str; 7] =
    ["done", "lost", "refused", "unauthenticated", "busy", "unreachable", "unknown"];

/// The states of blocks, and that of an active one in which another node has leases.
const STATES: [&str; 6] = ["claiming", "settling", "active", "returning", "lost", "contested"];

/// A value of each network: its name, its purpose, and how to get it.
type Gauge = (&'static str, &'static str, fn(&Network) -> u64);

const GAUGES: [Gauge; 3] = [
    ("addresses_held", "Addresses with leases.", |network| network.leases.len() as u64),
    ("addresses_free", "Addresses that the node allocates without the store.", free_of),
    ("waiting", "ADDs that wait for an address.", |network| network.requests.len() as u64),
];

/// What the daemon has done since it started.
#[derive(Default)]
pub struct Metrics {
    /// Of [`COUNTERS`]; of [`ANSWERS`] with an empty name; of each verb and outcome.
    counts: BTreeMap<[&'static str; 2], u64>,
    last_failure: &'static str,
    is_connected: bool,
    /// When `is_connected` changed, in seconds since 1970.
    changed: u64,
}

impl Metrics {
    /// Nothing was done yet.
    pub fn new(wall: u64) -> Metrics {
        Metrics { changed: wall, ..Metrics::default() }
    }

    fn count(&mut self, what: [&'static str; 2]) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn counted(&self, what: [&'static str; 2]) -> u64 {
        self.counts.get(&what).copied().unwrap_or_default()
    }

    /// Counts what the machine wants done.
    pub fn acts(&mut self, action: &Action) {
        self.count(match action {
            Action::Reply(_, Reply::LookAgain) => ["", "claimed"],
            Action::Reply(_, Reply::Full) => ["", "full"],
            Action::Reply(..) => ["", "refused"],
            Action::Log(Line::Lost(_) | Line::Contested(_)) => ["conflicts", ""],
            Action::Log(Line::Doubt(_)) => ["doubts", ""],
            _ => return, // an operation is counted once it has ended
        });
    }

    /// Counts how an operation has ended.
    pub fn ends(&mut self, operation: &Operation, outcome: &Outcome<Answer>) {
        let end = match outcome {
            Outcome::Done(_) => "done",
            Outcome::Lost => "lost",
            Outcome::Refused(_) => "refused",
            Outcome::Unauthenticated(_) => "unauthenticated",
            Outcome::Busy(_) => "busy",
            Outcome::Unreachable(_) => "unreachable",
            Outcome::Unknown(_) => "unknown",
        };
        let verb = match operation {
            Operation::Get(_) => "get",
            Operation::List(_) => "list",
            Operation::Create(_) => "create",
            Operation::Update(..) => "update",
            Operation::Delete(_) => "delete",
        };
        self.count([verb, end]);
        if OUTCOMES[2..].contains(&end) {
            self.last_failure = end;
        }
        let is_claim = |record: &Record| matches!(record.value, Value::Claim(_));
        let counter = match (operation, end) {
            (Operation::Create(record), "done") if is_claim(record) => "claims",
            (Operation::Create(record), "lost") if is_claim(record) => "lost_races",
            (Operation::Update(record, seen), "done") if is_gift(record, seen) => "returns",
            (Operation::Delete(seen), "done") if is_claim(&seen.record) => "returns",
            (Operation::Update(Record { key: Key::Node(_), .. }, _), _) if end != "done" => {
                "lost_beats"
            }
            _ => return,
        };
        self.count([counter, ""]);
    }

    /// Counts a write that failed.
    pub fn writes(&mut self, written: &Written) {
        if let Written::Failed(_) = written {
            self.count(["write_failures", ""]);
        }
    }

    /// Notes the standing as it is at a time.
    pub fn stands(&mut self, standing: &Standing, wall: u64) {
        let is_connected = *standing == Standing::Connected;
        if is_connected != self.is_connected {
            (self.is_connected, self.changed) = (is_connected, wall);
        }
    }

    /// All metrics, in the text of OpenMetrics.
    pub fn text(&self, machine: &Machine) -> String {
        let mut page = Page::new("cni_ipam");
        write_networks(machine, &mut page);
        let about =
            "Whether the daemon may claim: every block was compared with the store, which answers.";
        page.family("connected", "gauge", about);
        page.sample("connected", &[], u8::from(self.is_connected));
        let since = "connection_changed_timestamp_seconds";
        page.family(since, "gauge", "Since when connected has its value, in seconds since 1970.");
        page.sample(since, &[], self.changed);
        page.family("standing", "gauge", "1 for what the node is to its cluster.");
        page.sample("standing", &[("standing", word_for(&machine.standing()))], 1);
        page.family("last_failure", "gauge", "1 for the class of the store's last failure.");
        for class in &OUTCOMES[2..] {
            let is_last = self.last_failure == *class;
            page.sample("last_failure", &[("class", class)], u8::from(is_last));
        }
        for (name, about) in COUNTERS {
            page.family(name, "counter", about);
            page.sample(&format!("{name}_total"), &[], self.counted([name, ""]));
        }
        page.family("needs", "counter", "ADDs that found nothing free, by the answer.");
        for answer in ANSWERS {
            page.sample("needs_total", &[("answer", answer)], self.counted(["", answer]));
        }
        page.family("requests", "counter", "Requests to the store, by verb and outcome.");
        for verb in VERBS {
            for outcome in OUTCOMES {
                let labels = [("verb", verb), ("outcome", outcome)];
                page.sample("requests_total", &labels, self.counted([verb, outcome]));
            }
        }
        page.finish()
    }
}

fn write_networks(machine: &Machine, page: &mut Page) {
    let named = || machine.networks().filter_map(|name| Some((name, machine.network(name)?)));
    page.family("blocks", "gauge", "Blocks of the node, by state.");
    for (name, network) in named() {
        for state in STATES {
            let blocks = network.blocks.values().filter(|block| state_of(&block.held) == state);
            let realm = network.realm.as_str();
            let labels = [("network", name.as_str()), ("realm", realm), ("state", state)];
            page.sample("blocks", &labels, blocks.count());
        }
    }
    for (metric, about, value) in GAUGES {
        page.family(metric, "gauge", about);
        for (name, network) in named() {
            let labels = [("network", name.as_str()), ("realm", network.realm.as_str())];
            page.sample(metric, &labels, value(network));
        }
    }
}

/// The state of a block, and `contested` if it is usable but for another node's leases.
fn state_of(held: &Held) -> String {
    match held.state {
        State::Active if held.contested => "contested".to_owned(),
        state => state.to_string(),
    }
}

/// The addresses of usable blocks without leases.
fn free_of(network: &Network) -> u64 {
    let usable = || network.blocks.values().filter(|block| block.held.is_usable());
    let free = |pool| usable().map(move |block| network.free_in(pool, &block.held));
    (0..network.pools.len()).flat_map(free).fold(0, u64::saturating_add)
}

/// Whether the update makes a block another node's.
fn is_gift(record: &Record, seen: &Stored) -> bool {
    match (&record.value, &seen.record.value) {
        (Value::Claim(new), Value::Claim(old)) => new.node != old.node,
        _ => false,
    }
}

fn word_for(standing: &Standing) -> &'static str {
    match standing {
        Standing::Connected => "connected",
        Standing::Verifying => "verifying",
        Standing::Away(_) => "away",
        Standing::NameTaken => "name_taken",
        Standing::Restored => "restored",
        Standing::Replaced => "replaced",
        Standing::Copied => "copied",
        Standing::OtherStore => "other_store",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::store::{Claim, Token, Version};
    use super::*;

    fn stored(key: &Key, value: Value) -> Stored {
        Stored { record: Record { key: key.clone(), value }, version: Version("1".into()) }
    }

    fn claim(node: &str) -> Value {
        let (node, uid, token) = (node.parse().unwrap(), Token(1), Token(2));
        Value::Claim(Claim { node, uid, token, taken: None, name: None })
    }

    #[test]
    fn operations_are_counted_by_verb_outcome_and_purpose() {
        let node = stored(&Key::Node("n1".parse().unwrap()), Value::Unreadable);
        let key = Key::Block("default".parse().unwrap(), "4-0a580140-26".parse().unwrap());
        let (own, other) = (stored(&key, claim("n1")), stored(&key, claim("n2")));
        let get = Operation::Get(Key::Meta);
        let create = Operation::Create(own.record.clone());
        let divide = Operation::Create(stored(&key, Value::Divided(8)).record);
        let renew = Operation::Update(own.record.clone(), own.clone());
        let give = Operation::Update(other.record, own.clone());
        let delete = Operation::Delete(own);
        let beat = Operation::Update(node.record.clone(), node);
        let (done, away) = (Outcome::Done(Answer::Deleted), Outcome::Unreachable("away".into()));
        let unknown = Outcome::Unknown("late".into());
        let mut metrics = Metrics::new(7);
        for (operation, outcome, request, counter) in [
            (&get, &away, ["get", "unreachable"], ""),
            (&create, &done, ["create", "done"], "claims"),
            (&create, &Outcome::Lost, ["create", "lost"], "lost_races"),
            (&divide, &done, ["create", "done"], ""),
            (&renew, &done, ["update", "done"], ""),
            (&give, &done, ["update", "done"], "returns"),
            (&delete, &done, ["delete", "done"], "returns"),
            (&delete, &Outcome::Lost, ["delete", "lost"], ""),
            (&beat, &done, ["update", "done"], ""),
            (&beat, &Outcome::Lost, ["update", "lost"], "lost_beats"),
            (&beat, &unknown, ["update", "unknown"], "lost_beats"),
        ] {
            assert!(VERBS.contains(&request[0]) && OUTCOMES.contains(&request[1]));
            assert!(counter.is_empty() || COUNTERS.iter().any(|(name, _)| *name == counter));
            let mut counts = metrics.counts.clone();
            *counts.entry(request).or_default() += 1;
            if !counter.is_empty() {
                *counts.entry([counter, ""]).or_default() += 1;
            }
            metrics.ends(operation, outcome);
            assert_eq!(metrics.counts, counts, "{operation:?}");
        }
        assert_eq!(metrics.last_failure, "unknown");
        metrics.writes(&Written::Failed("full".into()));
        metrics.writes(&Written::Done);
        assert_eq!(metrics.counted(["write_failures", ""]), 1);
    }

    #[test]
    fn the_time_of_the_connection_is_that_of_its_last_change() {
        let mut metrics = Metrics::new(7);
        metrics.stands(&Standing::Away("away".into()), 8);
        assert_eq!((metrics.is_connected, metrics.changed), (false, 7));
        metrics.stands(&Standing::Connected, 9);
        metrics.stands(&Standing::Connected, 10);
        assert_eq!((metrics.is_connected, metrics.changed), (true, 9));
    }
}
