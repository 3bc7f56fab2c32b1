//! Each transition of RFC 8415, sections 15 and 18, and of RFC 4862, with a clock that the tests
//! set.

mod advertised;
mod keep;
mod search;

use super::IAID;
use super::*;
use crate::plugins::ipam::dhcp::client::{Client as _, Lease as AnyLease};
use crate::plugins::ipam::dhcp::reader::Reader;
use crate::plugins::ipam::dhcp::v6::options::{self, Options};
use crate::plugins::ipam::dhcp::v6::router::{Advertisement, Prefix};
use crate::plugins::ipam::dhcp::v6::{Message, Status};

const ADDRESS: &str = "2001:db8::10";
const OTHER: &str = "2001:db8::11";
const SERVER: &[u8] = &[0, 3, 0, 1, 1];
const SECOND: &[u8] = &[0, 3, 0, 1, 2];
const START: Moment = Duration::from_secs(1000);

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn seconds(seconds: f64) -> Moment {
    START + Duration::from_secs_f64(seconds)
}

fn setup(mode: Mode) -> Setup {
    Setup { mode, duid: duid("id/net/eth0"), within: Duration::from_secs(208) }
}

/// A server's message: addresses with their preferred and valid lifetimes, and a status inside the
/// association.
struct Said<'a> {
    addresses: &'a [(&'a str, u32, u32)],
    times: (u32, u32),
    status: u16,
    more: &'a [(u16, &'a [u8])],
}

impl Said<'_> {
    const NOTHING: Said<'static> = Said { addresses: &[], times: (30, 48), status: 0, more: &[] };

    fn grants<'a>(addresses: &'a [(&'a str, u32, u32)]) -> Said<'a> {
        Said { addresses, ..Said::NOTHING }
    }

    /// An offer with the highest preference, which the client takes without waiting for others.
    fn taken_at_once<'a>(addresses: &'a [(&'a str, u32, u32)]) -> Said<'a> {
        const HIGHEST: &[(u16, &[u8])] = &[(options::PREFERENCE, &[255])];
        Said { more: HIGHEST, ..Said::grants(addresses) }
    }

    fn refuses(status: Status) -> Said<'static> {
        Said { status: status.0, ..Said::NOTHING }
    }

    fn by(&self, server: &[u8], kind: Kind, transaction: u32) -> Message {
        let mut within = Options::default();
        for (address, preferred, valid) in self.addresses {
            let value = [&ip(address).octets()[..], &preferred.to_be_bytes(), &valid.to_be_bytes()]
                .concat();
            within.push(options::IA_ADDRESS, value);
        }
        if self.status != 0 {
            within.push(options::STATUS_CODE, self.status.to_be_bytes().to_vec());
        }
        let mut association =
            [IAID.to_be_bytes(), self.times.0.to_be_bytes(), self.times.1.to_be_bytes()].concat();
        within.encode(&mut association);
        let mut options = Options::default();
        options.push(options::CLIENT_ID, duid("id/net/eth0"));
        options.push(options::SERVER_ID, server.to_vec());
        options.push(options::IA_NA, association);
        self.more.iter().for_each(|(code, value)| options.push(*code, value.to_vec()));
        Message { kind, transaction, options }
    }
}

const GRANTED: &[(&str, u32, u32)] = &[(ADDRESS, 60, 120)];

/// A client and its actions; random numbers are 1, 2, 3 and each pause is its shortest.
struct Run {
    client: Client,
    random: Random,
    actions: Vec<Action>,
}

impl Run {
    fn acquire(mode: Mode) -> Run {
        Run::acquire_until(mode, NEVER)
    }

    fn acquire_until(mode: Mode, latest: Moment) -> Run {
        let mut random = Random::counting();
        let turn = Turn::new(START, &mut random);
        let (client, actions) = Client::acquire(setup(mode), None, latest, turn);
        Run { client, random, actions }
    }

    fn resume(lease: Lease, lost: bool, now: Moment) -> Run {
        let client = Client::resume(setup(Mode::Dhcp), lease, lost, now);
        Run { client, random: Random::counting(), actions: vec![] }
    }

    /// With a lease from `START + 1 s` on, T1 30 s, T2 48 s and 120 s after that, and a router.
    fn bound() -> Run {
        let mut run = Run::acquire(Mode::Dhcp);
        run.router(0.1, router(1));
        run.advertise(0.2, SERVER, &Said::taken_at_once(GRANTED));
        run.reply(1.0, SERVER, &Said::grants(GRANTED));
        assert!(matches!(run.actions[..], [Action::Bound(_)]), "{:?}", run.actions);
        run
    }

    fn time(&mut self, at: f64) -> &[Action] {
        self.actions = self.client.on_time(Turn::new(seconds(at), &mut self.random));
        &self.actions
    }

    fn hear(&mut self, at: f64, heard: Heard) -> &[Action] {
        let turn = Turn::new(seconds(at), &mut self.random);
        self.actions = self.client.on_heard(heard, turn);
        &self.actions
    }

    fn message(&mut self, at: f64, message: &Message) -> &[Action] {
        self.hear(at, Heard::V6(message.clone()))
    }

    fn advertise(&mut self, at: f64, server: &[u8], said: &Said<'_>) -> &[Action] {
        let message = said.by(server, Kind::Advertise, self.transaction());
        self.message(at, &message)
    }

    fn reply(&mut self, at: f64, server: &[u8], said: &Said<'_>) -> &[Action] {
        let message = said.by(server, Kind::Reply, self.transaction());
        self.message(at, &message)
    }

    fn router(&mut self, at: f64, told: Advertisement) -> &[Action] {
        self.hear(at, Heard::Router(told, ip("fe80::858:aff:fe01:203")))
    }

    fn conflict(&mut self, at: f64, address: &str) -> &[Action] {
        self.hear(at, Heard::ClaimV6(ip(address)))
    }

    fn transaction(&self) -> u32 {
        self.client.timer.as_ref().unwrap().transaction
    }

    fn deadline(&self) -> f64 {
        (self.client.deadline() - START).as_secs_f64()
    }

    /// The types of the messages sent last.
    fn sent(&self) -> Vec<Kind> {
        self.messages().iter().map(|message| message.kind).collect()
    }

    fn messages(&self) -> Vec<&Message> {
        self.actions
            .iter()
            .filter_map(|a| {
                if let Action::Send(Outgoing::V6(message)) = a { Some(message) } else { None }
            })
            .collect()
    }
}

fn router(last: u16) -> Advertisement {
    let prefix = Prefix {
        net: "2001:db8::/64".parse().unwrap(),
        on_link: true,
        autonomous: true,
        preferred: 60,
        valid: 120,
    };
    Advertisement {
        router: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last),
        lifetime: 1800,
        preference: 0,
        mtu: None,
        prefixes: vec![prefix],
        routes: vec![],
        name_servers: vec![],
        domains: vec![],
    }
}

/// The address that a message requests.
fn asked(message: &Message) -> Option<Ipv6Addr> {
    let value = message.options.get(options::IA_NA).unwrap();
    Some(
        Reader::new(Options::decode(&value[12..]).unwrap().get(options::IA_ADDRESS)?)
            .ipv6()
            .unwrap(),
    )
}
