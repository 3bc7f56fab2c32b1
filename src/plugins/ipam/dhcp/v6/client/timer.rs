//! Retransmission (RFC 8415, section 15; RFC 7559 for routers).

use std::time::Duration;

use crate::plugins::ipam::dhcp::v6::message::Kind;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// The retransmission parameters of one kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// IRT: the wait for the first answer.
    first: Duration,
    /// MRT: the longest wait.
    longest: Duration,
    /// MRC: how often the message is sent; 0 means no limit.
    count: u32,
}

impl Timing {
    /// The timing of Router Solicitation.
    pub const ROUTERS: Timing = Timing::of(4, 3600, 0);

    const fn of(first: u64, longest: u64, count: u32) -> Timing {
        Timing { first: Duration::from_secs(first), longest: Duration::from_secs(longest), count }
    }

    /// The timing of a DHCPv6 message (RFC 8415, section 7.6). For Solicit, servers set the longest
    /// wait.
    pub fn of_kind(kind: Kind, sol_max_rt: Duration) -> Timing {
        match kind {
            Kind::Solicit => Timing { longest: sol_max_rt, ..Timing::of(1, 0, 0) },
            Kind::Renew | Kind::Rebind => Timing::of(10, 600, 0),
            Kind::Request => Timing::of(1, 30, 10),
            Kind::Decline | Kind::Release => Timing::of(1, 0, 4),
            Kind::Advertise | Kind::Reply => Timing::of(0, 0, 1), // only servers send these
        }
    }
}

/// The retransmission timer of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    timing: Timing,
    /// When the message was first sent.
    pub began: Moment,
    /// The last wait; zero before the message was sent.
    wait: Duration,
    /// When to send it next.
    pub due: Moment,
    /// How often it was sent.
    pub sent: u32,
}

impl Timer {
    /// Creates a timer for a message that is first sent at `start`.
    pub fn new(timing: Timing, start: Moment) -> Timer {
        Timer { timing, began: start, wait: Duration::ZERO, due: start, sent: 0 }
    }

    /// Whether the message was sent as often as allowed.
    pub fn is_exhausted(&self) -> bool {
        self.timing.count != 0 && self.sent >= self.timing.count
    }

    /// Notes that the message is sent now.
    pub fn sends(&mut self, now: Moment, random: &mut Random) {
        if self.sent == 0 {
            self.began = now;
        }
        self.wait = self.next_wait(random);
        self.sent += 1;
        self.due = now + self.wait;
    }

    /// The doubled wait, at most the longest.
    fn next_wait(&self, random: &mut Random) -> Duration {
        let longest = self.timing.longest;
        let wait = self.doubled_wait(random);
        if longest.is_zero() || wait <= longest { wait } else { around(longest, random) }
    }

    /// Each wait doubles, plus or minus a random tenth; the first is never shortened, so that all
    /// servers have their second to answer.
    fn doubled_wait(&self, random: &mut Random) -> Duration {
        let first = self.timing.first;
        if self.wait.is_zero() {
            first + random.below(first / 10)
        } else {
            around(self.wait * 2, random)
        }
    }
}

fn around(wait: Duration, random: &mut Random) -> Duration {
    wait - wait / 10 + random.below(wait / 5)
}
