//! Each transition of RFC 2131 as a transcript: what the clock and the servers do, and what the
//! client does then.
//!
//! The random numbers always give the shortest wait: nine tenths of the configured one.

mod keep;
mod search;

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::client::{Client as _, Lease as AnyLease};
use crate::plugins::ipam::dhcp::v4::options::Options;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const OTHER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 6);

fn mac(last: u8) -> MacAddr {
    MacAddr::new(&[2, 0, 0, 0, 0, last])
}

fn setup() -> Setup {
    Setup {
        mac: mac(1),
        client_id: b"\0container/net/eth0".to_vec(),
        broadcast: false,
        probe: false,
        provide: vec![],
        request: vec![code::ROUTERS, code::SUBNET_MASK],
        timeout: Duration::from_secs(10),
        resend_max: Duration::from_secs(62),
        resend_timeout: Duration::from_secs(208),
    }
}

fn probing() -> Setup {
    Setup { probe: true, ..setup() }
}

/// Seconds, with decimals only if needed.
fn seconds_of(moment: Moment) -> String {
    format!("{}", moment.as_millis() as f64 / 1000.0)
}

fn line_of(message: &Message) -> String {
    let options = &message.options;
    let requested =
        options.address(code::REQUESTED_ADDRESS).map(|a| format!(" {a}")).unwrap_or_default();
    let server = options.address(code::SERVER_ID).map(|s| format!(" of {s}")).unwrap_or_default();
    let ciaddr = if message.ciaddr.is_unspecified() {
        String::new()
    } else {
        format!(" ci {}", message.ciaddr)
    };
    format!("{:?}{ciaddr}{requested}{server}", message.kind().unwrap())
}

fn line_of_lease(lease: &AnyLease) -> String {
    let times = lease.times();
    let [t1, t2, end] = [times.t1, times.t2, times.expires]
        .map(|m| if m == NEVER { "never".to_owned() } else { seconds_of(m) });
    format!("{} of {}, t1 {t1}, t2 {t2}, end {end}", lease.net(), lease.server())
}

fn line(action: &Action) -> String {
    match action {
        Action::Send(Outgoing::V4 { message, server: None }) => line_of(message),
        Action::Send(Outgoing::V4 { message, server: Some(server) }) => {
            format!("{} [{} > {server}]", line_of(message), message.ciaddr)
        }
        Action::Probe(address) => format!("probe {address}"),
        Action::Intend(client::Intent::V4(intent)) => {
            format!("intend {} of {}", intent.address, intent.server)
        }
        Action::Bound(lease) => format!("bound {}", line_of_lease(lease)),
        Action::Renewed(lease) => format!("renewed {}", line_of_lease(lease)),
        Action::Lost(reason) => format!("lost: {reason}"),
        Action::Regained(lease) => format!("regained {}", line_of_lease(lease)),
        Action::GaveUp(why) => format!("gave up: {why}"),
        Action::Send(_) | Action::Intend(_) => panic!("of IPv6: {action:?}"),
    }
}

/// A client and its transcript.
struct Story {
    client: Client,
    now: Moment,
    random: Random,
    /// The last message sent.
    last: Message,
    lines: Vec<String>,
}

impl Story {
    fn new(setup: Setup) -> Story {
        Story::wanting(setup, None, NEVER)
    }

    fn wanting(setup: Setup, wanted: Option<Ipv4Addr>, latest: Moment) -> Story {
        let now = Duration::ZERO;
        let mut random = Random::counting();
        let turn = Turn::new(now, &mut random);
        let (client, actions) = Client::acquire(setup, wanted, latest, turn);
        let last = Message::of_client(MessageType::Discover, 0, &mac(9));
        let mut story = Story { client, now, random, last, lines: vec![] };
        story.tell(actions);
        story
    }

    /// A client that a daemon resumes at `now`.
    fn resumed(lease: Lease, lost: bool, now: u64) -> Story {
        let now = Duration::from_secs(now);
        let client = Client::resume(setup(), lease, lost, now);
        let last = Message::of_client(MessageType::Discover, 0, &mac(9));
        Story { client, now, random: Random::counting(), last, lines: vec![] }
    }

    fn bound() -> Story {
        let mut story = Story::new(setup());
        story.offer();
        story.ack();
        assert_eq!(story.client.state(), State::Bound);
        story.lines.clear();
        story
    }

    fn tell(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Action::Send(Outgoing::V4 { message, .. }) = &action {
                self.last = message.clone();
            }
            self.lines.push(format!("{} {}", seconds_of(self.now), line(&action)));
        }
    }

    /// A server's answer to the last message, with a lease of 1000 seconds.
    fn reply(&self, kind: MessageType, address: Ipv4Addr) -> Message {
        let mut reply = Message::of_client(kind, self.last.xid, &self.last.chaddr);
        (reply.op, reply.yiaddr) = (Op::Reply, address);
        reply.options.set(code::SERVER_ID, &SERVER.octets());
        if kind != MessageType::Nak {
            reply.options.set(code::SUBNET_MASK, &[255, 255, 255, 0]);
            reply.options.set(code::LEASE_TIME, &1000_u32.to_be_bytes());
        }
        reply
    }

    fn hear(&mut self, message: &Message) {
        self.take(Heard::V4(message.clone()));
    }

    fn take(&mut self, heard: Heard) {
        let actions = self.client.on_heard(heard, Turn::new(self.now, &mut self.random));
        self.tell(actions);
    }

    /// The message that releases what the client has.
    fn release(&mut self) -> Message {
        match self.client.release(&mut self.random) {
            Some(Outgoing::V4 { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }

    fn offer(&mut self) {
        self.hear(&self.reply(MessageType::Offer, ADDRESS));
    }

    fn ack(&mut self) {
        self.hear(&self.reply(MessageType::Ack, ADDRESS));
    }

    fn nak(&mut self) {
        self.hear(&self.reply(MessageType::Nak, Ipv4Addr::UNSPECIFIED));
    }

    fn conflict(&mut self, mac: MacAddr) {
        self.take(Heard::ClaimV4(Claim { address: ADDRESS, mac }));
    }

    /// Advances the clock to `seconds`, calling the client when it is due.
    fn until(&mut self, seconds: f64) {
        let end = Duration::from_secs_f64(seconds);
        for _ in 0..10_000 {
            if self.client.deadline() > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(self.client.deadline());
            assert!(self.client.needs_sockets(self.now), "nothing is due at {:?}", self.now);
            let actions = self.client.on_time(Turn::new(self.now, &mut self.random));
            self.tell(actions);
        }
        panic!("a busy loop at {:?}: {}", self.now, self.lines[self.lines.len() - 20..].join("\n"));
    }

    #[track_caller]
    fn assert_state(&self, state: State, needs_sockets: bool) {
        let found = (self.client.state(), self.client.needs_sockets(self.now));
        assert_eq!(found, (state, needs_sockets));
    }

    #[track_caller]
    fn check(&mut self, expected: &[&str]) {
        let found = std::mem::take(&mut self.lines);
        assert_eq!(found.join("\n"), expected.join("\n"));
    }
}
