//! What is certain: who had which address from when to when.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Intervals, and how often each thing happened.
pub struct History {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    tally: BTreeMap<String, u64>,
}

/// One attachment with an address.
#[derive(Clone, Debug)]
struct Hold {
    address: String,
    machine: u8,
    id: String,
    /// The return of ADD.
    from: Duration,
    /// The call of DEL, or the end of the machine; None if there was none.
    to: Option<Duration>,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hold { address, machine, id, from, to } = self;
        write!(f, "{address} of {id} on n{machine} from {from:.3?} to {to:.3?}")
    }
}

impl History {
    pub fn new() -> History {
        History { began: Instant::now(), state: Mutex::default() }
    }

    /// An ADD has returned an address.
    pub fn begin(&self, machine: u8, id: &str, address: &str) {
        let (address, id) = (address.to_owned(), id.to_owned());
        let mut state = self.state.lock().unwrap();
        let from = self.began.elapsed();
        state.holds.push(Hold { address, machine, id, from, to: None });
    }

    /// A DEL is about to be called, or a machine is off: none of its containers lives.
    pub fn end(&self, machine: u8, id: Option<&str>) {
        let mut state = self.state.lock().unwrap();
        let now = self.began.elapsed();
        let is_it = |hold: &Hold| hold.machine == machine && id.is_none_or(|id| hold.id == id);
        let open = state.holds.iter_mut().filter(|hold| hold.to.is_none() && is_it(hold));
        open.for_each(|hold| hold.to = Some(now));
    }

    /// Counts something that has happened.
    pub fn count(&self, what: impl Into<String>) {
        *self.state.lock().unwrap().tally.entry(what.into()).or_default() += 1;
    }

    pub fn summary(&self) -> String {
        let state = self.state.lock().unwrap();
        let counts: Vec<String> =
            state.tally.iter().map(|(what, count)| format!("{what} {count}")).collect();
        format!("{:.0?}: {}", self.began.elapsed(), counts.join(", "))
    }

    /// No two intervals of an address overlap.
    #[track_caller]
    pub fn assert_no_overlap(&self) {
        let overlaps = overlaps(&self.state.lock().unwrap().holds);
        assert!(overlaps.is_empty(), "held twice:\n{}", overlaps.join("\n"));
    }
}

fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut of_address: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        of_address.entry(&hold.address).or_default().push(hold);
    }
    let mut found = vec![];
    for holds in of_address.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        for pair in holds.windows(2).filter(|pair| pair[0].to.is_none_or(|to| to > pair[1].from)) {
            found.push(format!("{}\n  and {}", pair[0], pair[1]));
        }
    }
    found
}

#[test]
fn the_oracle_sees_an_address_that_two_hold() {
    let hold = |address: &str, from, to: Option<u64>| Hold {
        address: address.to_owned(),
        machine: 1,
        id: format!("c{from}"),
        from: Duration::from_secs(from),
        to: to.map(Duration::from_secs),
    };
    let one = hold("10.1.0.2", 1, Some(5));
    let apart = [hold("10.1.0.2", 5, None), hold("10.1.0.3", 2, None), one.clone()];
    assert_eq!(overlaps(&apart), [""; 0]);
    for second in [hold("10.1.0.2", 4, Some(6)), hold("10.1.0.2", 0, None)] {
        assert_eq!(overlaps(&[one.clone(), second.clone()]).len(), 1, "{second}");
    }
}
