//! What the clients of both families have in common: when they look at the clock, where they are,
//! and what they say has to be done.

use std::fmt;
use std::net::Ipv4Addr;

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It looks for servers.
    Selecting,
    /// It has asked for what was offered.
    Requesting,
    /// It waits before it looks for servers again: the last time it was refused, or the address was
    /// somebody else's.
    Waiting,
    /// It has a lease.
    Bound,
    /// It has a lease and has asked its server for more time.
    Renewing,
    /// It has a lease and has asked all servers for more time.
    Rebinding,
    /// It has lost its lease and tries to get the same address again.
    Expired,
    /// It has given up, or given its lease back.
    Ended,
}

/// Why an address must leave the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its time was over.
    Expired,
    /// A server has refused it, and none has offered it again.
    Refused,
    /// Its server has refused it and offers this one only, which the container cannot be given.
    OtherAddress(Ipv4Addr),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Expired => f.write_str("expired"),
            Reason::Refused => f.write_str("refused"),
            Reason::OtherAddress(other) => write!(f, "refused, {other} offered"),
        }
    }
}

/// How many different answers the error of a failed search lists. A server can send another one
/// each time.
const TROUBLES_MAX: usize = 8;

/// What was heard in a search that has found no lease yet: each thing once, in the order in which
/// it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    heard: Vec<String>,
    left_out: usize,
}

impl Troubles {
    /// Takes note of one.
    pub fn note(&mut self, what: String) {
        if self.heard.contains(&what) {
            return;
        }
        if self.heard.len() < TROUBLES_MAX { self.heard.push(what) } else { self.left_out += 1 }
    }

    /// All of them in words; `silence` where nothing was heard.
    pub fn or(&self, silence: &str) -> String {
        let more = (self.left_out != 0).then(|| format!("and {} more", self.left_out));
        let all: Vec<&str> = self.heard.iter().chain(&more).map(String::as_str).collect();
        if all.is_empty() { silence.to_owned() } else { all.join("; ") }
    }
}

/// What has to be done now, in this order: of a client with messages `S`, addresses `A`, intents
/// `I` and leases `L`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<S, A, I, L> {
    /// Send it.
    Send(S),
    /// Ask who has the address.
    Probe(A),
    /// Journal it before the message that follows.
    Intend(I),
    /// There is a lease where there was none: journal it.
    Bound(L),
    /// The lease has more time, or another router: journal it.
    Renewed(L),
    /// The address must leave the link. The client tries to get it again.
    Lost(Reason),
    /// The address that was lost is ours again: put it back, and journal the lease.
    Regained(L),
    /// There will be no lease, and why. The client has ended.
    GaveUp(String),
}

impl<S, A, I, L> Action<S, A, I, L> {
    /// The same of another client, into whose terms these are put.
    pub fn map<T, B, J, M>(
        self,
        send: fn(S) -> T,
        address: fn(A) -> B,
        intent: fn(I) -> J,
        lease: fn(L) -> M,
    ) -> Action<T, B, J, M> {
        match self {
            Action::Send(message) => Action::Send(send(message)),
            Action::Probe(probed) => Action::Probe(address(probed)),
            Action::Intend(intended) => Action::Intend(intent(intended)),
            Action::Bound(bound) => Action::Bound(lease(bound)),
            Action::Renewed(renewed) => Action::Renewed(lease(renewed)),
            Action::Lost(reason) => Action::Lost(reason),
            Action::Regained(regained) => Action::Regained(lease(regained)),
            Action::GaveUp(why) => Action::GaveUp(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_told_once_in_order_and_not_without_end() {
        let mut troubles = Troubles::default();
        assert_eq!(troubles.or("silence"), "silence");
        ["a", "b", "a"].into_iter().for_each(|what| troubles.note(what.into()));
        assert_eq!(troubles.or("silence"), "a; b");
        (0..100).for_each(|number| troubles.note(number.to_string()));
        assert_eq!(troubles.or("silence"), "a; b; 0; 1; 2; 3; 4; 5; and 94 more");
    }
}
