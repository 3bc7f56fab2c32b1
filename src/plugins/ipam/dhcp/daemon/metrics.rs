//! Counters of the daemon, in Prometheus' text format.

use std::fmt::Write as _;

use super::table::Table;
use crate::plugins::ipam::dhcp::client::State;

/// What is counted, with what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Messages that were sent.
    Sent,
    /// Messages that could not be sent.
    Unsent,
    /// Messages that came.
    Received,
    /// Packets that were no messages.
    Malformed,
    /// ADDs that got no lease.
    AcquireFailures,
    /// Leases that were given back.
    Released,
    /// Leases whose namespace or interface was gone.
    Gone,
    /// Records that could not be written.
    JournalFailures,
}

/// Each counter's name and purpose, in the order of [`Count`].
const COUNTERS: [(&str, &str); 8] = [
    ("packets_sent", "Messages sent to servers."),
    ("send_failures", "Messages that could not be sent."),
    ("packets_received", "Messages received."),
    ("packets_malformed", "Packets received that are no DHCP messages."),
    ("acquire_failures", "ADDs that got no lease."),
    ("releases", "Leases given back."),
    ("gone", "Leases whose namespace or interface was gone."),
    ("journal_failures", "Records that could not be written."),
];

/// The states that a lease is told to be in, and what they are called.
pub const STATES: [(State, &str); 7] = [
    (State::Selecting, "selecting"),
    (State::Requesting, "requesting"),
    (State::Waiting, "waiting"),
    (State::Bound, "bound"),
    (State::Renewing, "renewing"),
    (State::Rebinding, "rebinding"),
    (State::Expired, "expired"),
];

/// What a lease is called that waits for its turn.
pub const QUEUED: &str = "queued";

/// What a state is called.
pub fn state_text(state: Option<State>) -> &'static str {
    let known = STATES.iter().find(|(known, _)| Some(*known) == state);
    known.map_or(if state.is_none() { QUEUED } else { "ended" }, |(_, text)| text)
}

/// The counters.
#[derive(Default)]
pub struct Metrics {
    counts: [u64; COUNTERS.len()],
    transitions: [u64; STATES.len()],
}

impl Metrics {
    /// Counts one.
    pub fn count(&mut self, what: Count) {
        self.counts[what as usize] += 1;
    }

    /// Counts a lease that has come to this state.
    pub fn transition(&mut self, state: State) {
        if let Some(index) = STATES.iter().position(|(known, _)| *known == state) {
            self.transitions[index] += 1;
        }
    }

    /// All of them.
    pub fn text(&self, table: &Table) -> String {
        let mut text = head("leases", "Leases by state.", "gauge");
        let states = STATES.iter().map(|(_, name)| *name).chain([QUEUED]);
        for state in states {
            let count = table.iter().filter(|(_, entry)| state_text(entry.state) == state).count();
            let _ = writeln!(text, "cni_dhcp_leases{{state=\"{state}\"}} {count}"); // a String takes everything
        }
        text.push_str(&head(
            "exchanges",
            "Conversations with servers that are under way.",
            "gauge",
        ));
        let _ = writeln!(text, "cni_dhcp_exchanges {}", table.exchanges());
        text.push_str(&head(
            "transitions_total",
            "Changes of leases by the state that they came to.",
            "counter",
        ));
        for ((_, state), count) in STATES.iter().zip(self.transitions) {
            let _ = writeln!(text, "cni_dhcp_transitions_total{{to=\"{state}\"}} {count}");
        }
        for ((name, about), count) in COUNTERS.iter().zip(self.counts) {
            text.push_str(&head(&format!("{name}_total"), about, "counter"));
            let _ = writeln!(text, "cni_dhcp_{name}_total {count}");
        }
        text
    }
}

fn head(name: &str, about: &str, kind: &str) -> String {
    format!("# HELP cni_dhcp_{name} {about}\n# TYPE cni_dhcp_{name} {kind}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_its_name() {
        let mut metrics = Metrics::default();
        for (count, times) in
            (1..).zip([Count::Sent, Count::Unsent, Count::Received, Count::Malformed])
        {
            (0..count).for_each(|_| metrics.count(times));
        }
        metrics.count(Count::JournalFailures);
        metrics.transition(State::Rebinding);
        let text = metrics.text(&Table::default());
        for line in [
            "cni_dhcp_packets_sent_total 1",
            "cni_dhcp_send_failures_total 2",
            "cni_dhcp_packets_received_total 3",
            "cni_dhcp_packets_malformed_total 4",
            "cni_dhcp_acquire_failures_total 0",
            "cni_dhcp_journal_failures_total 1",
            "cni_dhcp_transitions_total{to=\"rebinding\"} 1",
            "cni_dhcp_leases{state=\"queued\"} 0",
            "# TYPE cni_dhcp_leases gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
