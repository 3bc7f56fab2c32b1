//! The way between daemons and the store, with everything that can happen on it.

use std::time::Duration;

use super::super::engine::{Operation, OperationId, Outcome};
use super::world::{Coming, World};

/// An operation whose outcome is not known by then is given up.
const TIMEOUT: Duration = Duration::from_secs(5);

impl World {
    /// Sends a request: it may be lost, late, done twice, or its answer may be lost.
    pub fn send(&mut self, node: usize, id: OperationId, operation: Operation) {
        let generation = self.nodes[node].generation;
        self.nodes[node].flights.insert(id);
        if self.nodes[node].is_cut {
            let outcome = Outcome::Unreachable { reason: "no route to host".to_owned() };
            let delay = self.millis(2000);
            return self.push(delay, Coming::Outcome(node, generation, id, outcome));
        }
        let delay = self.millis(10);
        if self.faults == 0
            || !self.percent(self.faults)
            || matches!(operation, Operation::Watch { .. })
        {
            return self.push(delay, Coming::Request(node, generation, id, operation));
        }
        let unknown = Outcome::Unknown { reason: "no answer within 5 s".to_owned() };
        let fate = self.below(6);
        self.say(|| format!("  n{node} request {id:?} meets fault {fate}"));
        match fate {
            0 => (),                                                               // lost
            1 => self.push(delay, Coming::Request(node, u64::MAX, id, operation)), // its answer is lost
            2 => self.push(TIMEOUT + delay * 500, Coming::Request(node, u64::MAX, id, operation)), // done late
            3 => {
                self.push(delay, Coming::Request(node, generation, id, operation.clone())); // done twice
                let again = self.millis(3000);
                return self.push(again, Coming::Request(node, u64::MAX, id, operation));
            }
            4 => {
                let outcome = Outcome::Unreachable { reason: "connection refused".to_owned() };
                return self.push(delay, Coming::Outcome(node, generation, id, outcome));
            }
            _ => {
                let slow = self.millis(4000);
                return self.push(slow, Coming::Request(node, generation, id, operation));
            }
        }
        let after = if self.percent(50) { TIMEOUT } else { delay * 2 }; // a 503 comes soon
        self.push(after, Coming::Outcome(node, generation, id, unknown));
    }

    /// A request arrives at the store.
    pub fn apply(&mut self, node: usize, generation: u64, asked: (OperationId, &Operation)) {
        let (id, operation) = asked;
        if let Operation::Watch { from, .. } = operation {
            return self.watch(node, generation, (id, *from));
        }
        if self.now < self.leaderless {
            return self.fail_without_leader(node, generation, (id, operation));
        }
        let outcome = self.store.apply(operation, self.now);
        if let (Operation::Fence { node, .. }, Outcome::Done { .. }) = (operation, &outcome) {
            self.fenced += 1;
            self.abandon(node);
        }
        self.spread_changes();
        let delay = self.millis(10);
        self.push(delay, Coming::Outcome(node, generation, id, outcome));
    }

    /// The members elect a leader: an operation fails and is not done, fails and is done later, or
    /// waits.
    fn fail_without_leader(
        &mut self,
        node: usize,
        generation: u64,
        asked: (OperationId, &Operation),
    ) {
        let (id, operation) = asked;
        let left = self.leaderless - self.now;
        let (late, fate) = (left + self.millis(20), self.below(3));
        if fate > 0 {
            let generation = if fate == 1 { u64::MAX } else { generation };
            self.push(late, Coming::Request(node, generation, id, operation.clone()));
        }
        if fate < 2 || late > TIMEOUT {
            let unknown = Outcome::Unknown { reason: "etcdserver: leader changed".to_owned() };
            let soon = self.millis(50).max(left.min(TIMEOUT) / 2);
            self.push(soon, Coming::Outcome(node, generation, id, unknown));
        }
    }

    /// The model keeps no history: a watch from an earlier revision ends as compacted.
    fn watch(&mut self, node: usize, generation: u64, (id, from): (OperationId, u64)) {
        if !self.is_running(node, generation) {
            return;
        }
        self.nodes[node].watch = Some(id);
        if self.store.revision >= from {
            let ended = Outcome::Compacted { revision: self.store.revision };
            self.push(Duration::from_millis(5), Coming::Outcome(node, generation, id, ended));
        }
    }

    pub fn spread_changes(&mut self) {
        let changes = std::mem::take(&mut self.store.changes);
        for node in 0..self.nodes.len() {
            let Some(watch) = self.nodes[node].watch else { continue };
            let generation = self.nodes[node].generation;
            if self.nodes[node].is_cut || self.faults > 0 && self.percent(3) {
                let ended = Outcome::Compacted { revision: self.store.revision };
                self.push(
                    Duration::from_millis(5),
                    Coming::Outcome(node, generation, watch, ended),
                );
                continue;
            }
            for change in &changes {
                let arrives = (self.now + self.millis(10)).max(self.nodes[node].told);
                self.nodes[node].told = arrives; // a watch delivers changes in order
                self.push(arrives - self.now, Coming::Change(node, generation, change.clone()));
            }
        }
    }
}
