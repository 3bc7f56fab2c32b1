//! Any sequence of time, answers, conflicts and restarts: the client neither panics nor loops, and
//! sends messages that can be parsed.

use std::net::Ipv4Addr;
use std::time::Duration;

use cni_multi::sys::clock::NEVER;
use cni_multi::net::mac::MacAddr;
use cni_multi::net::packet_socket::Claim;
use cni_multi::sys::random::Random;
use cni_multi::plugins::ipam::dhcp::client::{Action, Client as _, Heard, Outgoing, State, Turn};
use cni_multi::plugins::ipam::dhcp::client::dhcpv4::{Client, Setup};
use cni_multi::plugins::ipam::dhcp::v4::{Message, MessageType, Op};

/// How many steps a client may take at one moment.
const AT_ONCE: usize = 4;

struct World {
    client: Client,
    now: Duration,
    random: Random,
    /// The transaction id of the last message.
    xid: u32,
    lost: bool,
}

impl World {
    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(Outgoing::V4 { message, .. }) => {
                    self.xid = message.xid;
                    assert_eq!(Message::decode(&message.encode()), Ok(message));
                }
                Action::Send(outgoing) => panic!("of IPv6: {outgoing:?}"),
                Action::Lost(_) => assert!(!std::mem::replace(&mut self.lost, true), "it was lost already"),
                Action::Regained(_) => assert!(std::mem::take(&mut self.lost), "it was not lost"),
                Action::Bound(_) | Action::Renewed(_) => assert!(!self.lost, "it was lost"),
                Action::GaveUp(_) => assert_eq!(self.client.state(), State::Ended),
                Action::Probe(_) | Action::Intend(_) => (),
            }
        }
    }

    /// Lets the client do what is due by now.
    fn catch_up(&mut self) {
        for _ in 0..AT_ONCE {
            if self.client.deadline() > self.now {
                return;
            }
            assert!(self.client.needs_sockets(self.now));
            let actions = self.client.on_time(Turn::new(self.now, &mut self.random));
            self.take(actions);
        }
        assert!(self.client.deadline() > self.now, "it spins: {:?}", self.client);
    }

    fn hear(&mut self, kind: u8, options: &[u8]) {
        let kinds = [MessageType::Offer, MessageType::Ack, MessageType::Nak, MessageType::Ack];
        let mut message = Message::of_client(kinds[usize::from(kind % 4)], self.xid, &mac());
        (message.op, message.yiaddr) = (Op::Reply, Ipv4Addr::new(10, 0, 0, 5 + (kind >> 2) % 2));
        message.options.set(54, &[10, 0, 0, 1 + (kind >> 3) % 2]);
        message.options.set(1, &[255, 255, 255, 0]);
        let codes = [51, 58, 59, 1, 54, 53, 61];
        for (code, value) in codes.into_iter().zip(options.chunks(4)) {
            message.options.set(code, value);
        }
        self.receive(Heard::V4(message));
    }

    fn receive(&mut self, heard: Heard) {
        let actions = self.client.on_heard(heard, Turn::new(self.now, &mut self.random));
        self.take(actions);
    }
}

fn mac() -> MacAddr {
    MacAddr::new(&[2, 0, 0, 0, 0, 1])
}

fn setup() -> Setup {
    let [timeout, resend_max, resend_timeout] = [10, 62, 208].map(Duration::from_secs);
    Setup {
        mac: mac(),
        client_id: vec![0],
        broadcast: false,
        probe: true,
        provide: vec![],
        request: vec![3, 1],
        timeout,
        resend_max,
        resend_timeout,
    }
}

/// Runs the target on one input.
pub fn run(steps: &[u8]) {
    let (now, mut random) = (Duration::from_secs(1), Random::counting());
    let (client, actions) = Client::acquire(setup(), None, NEVER, Turn::new(now, &mut random));
    let mut world = World { client, now, random, xid: 0, lost: false };
    world.take(actions);
    let mut steps = steps;
    while let [what, argument, rest @ ..] = steps {
        steps = rest;
        match what % 6 {
            0 => world.now += Duration::from_millis(u64::from(*argument) * 20),
            1 => world.now += Duration::from_secs(u64::from(*argument) * 20),
            2 if world.client.deadline() != NEVER => world.now = world.now.max(world.client.deadline()),
            3 => {
                let (options, rest) = steps.split_at(steps.len().min(usize::from(what >> 5) * 4));
                steps = rest;
                world.hear(*argument, options);
            }
            4 => {
                let address = Ipv4Addr::new(10, 0, 0, 5 + argument % 2);
                let mac = MacAddr::new(&[2, 0, 0, 0, 0, argument >> 4]);
                world.receive(Heard::ClaimV4(Claim { address, mac }));
            }
            5 => {
                if let Some(lease) = world.client.lease().cloned().filter(|_| world.client.state() != State::Ended) {
                    world.client = Client::resume(setup(), lease, world.lost, world.now);
                }
            }
            _ => (),
        }
        world.catch_up();
    }
    world.client.release(&mut world.random);
    assert_eq!(world.client.state(), State::Ended);
}
