//! What the clients of both families share: their states, what an event gives them, and the actions
//! that they return.

use std::fmt;
use std::net::Ipv4Addr;

use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is looking for servers.
    Selecting,
    /// It has requested an offered address.
    Requesting,
    /// It waits before it looks for servers again: the last request was refused, or the address was
    /// in use by another host.
    Waiting,
    /// It has a lease.
    Bound,
    /// It has a lease and has asked its server to extend it.
    Renewing,
    /// It has a lease and has asked all servers to extend it.
    Rebinding,
    /// Its lease has ended, and it tries to get the same address again.
    Expired,
    /// It has given up, or has released its lease.
    Ended,
}

/// Why an address must leave the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its lease has expired.
    Expired,
    /// A server has refused it, and no server has offered it again.
    Refused,
    /// Its server has refused it and offers only this one, which the running container cannot take
    /// over.
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

/// How many different answers the error of a failed search lists. A server could send a different
/// one each time.
const TROUBLES_MAX: usize = 8;

/// The problems heard in a search without a lease so far, each once, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    heard: Vec<String>,
    left_out: usize,
}

impl Troubles {
    /// Notes a problem.
    pub fn note(&mut self, what: String) {
        if self.heard.contains(&what) {
            return;
        }
        if self.heard.len() < TROUBLES_MAX { self.heard.push(what) } else { self.left_out += 1 }
    }

    /// All problems as text; `silence` if there are none.
    pub fn or(&self, silence: &str) -> String {
        let more = self.more();
        let all: Vec<&str> = self.heard.iter().chain(&more).map(String::as_str).collect();
        if all.is_empty() { silence.to_owned() } else { all.join("; ") }
    }

    fn more(&self) -> Option<String> {
        (self.left_out != 0).then(|| format!("and {} more", self.left_out))
    }
}

/// T1 comes early by up to this fraction of itself, so that containers started together do not
/// renew together.
const T1_SPREAD: u32 = 32;

/// A random moment before the T1 of a lease that runs since `start`.
pub fn early_t1(t1: Moment, start: Moment, random: &mut Random) -> Moment {
    if t1 == NEVER { NEVER } else { t1 - random.below(t1.saturating_sub(start) / T1_SPREAD) }
}

/// One call of a client: the time, random numbers, and the actions to return.
pub struct Turn<'a, A> {
    /// The time of the event.
    pub now: Moment,
    /// The source of transaction ids and of spread.
    pub random: &'a mut Random,
    /// What the caller must do, in this order.
    pub actions: Vec<A>,
}

impl<'a, A> Turn<'a, A> {
    /// Begins a call.
    pub fn new(now: Moment, random: &'a mut Random) -> Turn<'a, A> {
        Turn { now, random, actions: vec![] }
    }
}

/// What the caller must do now, in this order. A client's messages are `S`, its addresses `A`, its
/// intents `I` and its leases `L`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<S, A, I, L> {
    /// Send the message.
    Send(S),
    /// Probe the link for a host that has the address.
    Probe(A),
    /// Journal the intent before the message that follows.
    Intend(I),
    /// The first lease: journal it.
    Bound(L),
    /// The lease was extended, or has another router: journal it.
    Renewed(L),
    /// The address must leave the link. The client tries to get it again.
    Lost(Reason),
    /// The lost address is leased again: put it back and journal the lease.
    Regained(L),
    /// There will be no lease, for this reason. The client has ended.
    GaveUp(String),
}

impl<S, A, I, L> Action<S, A, I, L> {
    /// Converts the contents into those of another client type.
    pub fn convert<T, B, J, M>(self) -> Action<T, B, J, M>
    where
        T: From<S>,
        B: From<A>,
        J: From<I>,
        M: From<L>,
    {
        match self {
            Action::Send(message) => Action::Send(message.into()),
            Action::Probe(address) => Action::Probe(address.into()),
            Action::Intend(intent) => Action::Intend(intent.into()),
            Action::Bound(lease) => Action::Bound(lease.into()),
            Action::Renewed(lease) => Action::Renewed(lease.into()),
            Action::Lost(reason) => Action::Lost(reason),
            Action::Regained(lease) => Action::Regained(lease.into()),
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
