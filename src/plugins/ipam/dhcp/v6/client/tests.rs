//! Each transition of RFC 8415, sections 15 and 18, and of RFC 4862, by a clock that the tests turn.

use super::setup::IAID;
use super::*;
use crate::plugins::ipam::dhcp::v6::message::Status;
use crate::plugins::ipam::dhcp::v6::options::{self, Options};
use crate::plugins::ipam::dhcp::v6::router::Prefix;

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

/// What a server says: addresses with their preferred and valid lifetimes, and a status inside the association.
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

    fn refuses(status: Status) -> Said<'static> {
        Said { status: status.0, ..Said::NOTHING }
    }

    fn by(&self, server: &[u8], kind: Kind, transaction: u32) -> Message {
        let mut within = Options::default();
        for (address, preferred, valid) in self.addresses {
            let value = [&ip(address).octets()[..], &preferred.to_be_bytes(), &valid.to_be_bytes()].concat();
            within.push(options::IA_ADDRESS, value);
        }
        if self.status != 0 {
            within.push(options::STATUS_CODE, self.status.to_be_bytes().to_vec());
        }
        let mut association = [IAID.to_be_bytes(), self.times.0.to_be_bytes(), self.times.1.to_be_bytes()].concat();
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

/// A client and what it does; random numbers are 1, 2, 3 and each pause is its shortest.
struct Run {
    client: Client,
    random: Random,
    actions: Vec<Action>,
}

impl Run {
    fn acquire(mode: Mode) -> Run {
        let mut random = Random::counting();
        let (client, actions) = Client::acquire(setup(mode), None, START, &mut random);
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
        run.advertise(0.2, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
        run.reply(1.0, SERVER, &Said::grants(GRANTED));
        assert!(matches!(run.actions[..], [Action::Bound(_)]), "{:?}", run.actions);
        run
    }

    fn time(&mut self, at: f64) -> &[Action] {
        self.actions = self.client.on_time(seconds(at), &mut self.random);
        &self.actions
    }

    fn message(&mut self, at: f64, message: &Message) -> &[Action] {
        self.actions = self.client.on_message(message, seconds(at), &mut self.random);
        &self.actions
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
        self.actions = self.client.on_router(told, ip("fe80::858:aff:fe01:203"), seconds(at), &mut self.random);
        &self.actions
    }

    fn conflict(&mut self, at: f64, address: &str) -> &[Action] {
        self.actions = self.client.on_conflict(ip(address), seconds(at), &mut self.random);
        &self.actions
    }

    fn transaction(&self) -> u32 {
        self.client.exchange.as_ref().unwrap().transaction
    }

    fn deadline(&self) -> f64 {
        (self.client.deadline() - START).as_secs_f64()
    }

    /// The kinds of what was sent last.
    fn sent(&self) -> Vec<Kind> {
        self.messages().iter().map(|message| message.kind).collect()
    }

    fn messages(&self) -> Vec<&Message> {
        self.actions.iter().filter_map(|a| if let Action::Send(message) = a { Some(message) } else { None }).collect()
    }
}

fn router(last: u16) -> Advertisement {
    let prefix =
        Prefix { net: "2001:db8::/64".parse().unwrap(), on_link: true, autonomous: true, preferred: 60, valid: 120 };
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

/// The address that a message asks for.
fn asked(message: &Message) -> Option<Ipv6Addr> {
    let value = message.options.get(options::IA_NA).unwrap();
    Some(options::read_address(Options::decode(&value[12..]).unwrap().get(options::IA_ADDRESS)?, 0).unwrap())
}

#[test]
fn servers_and_routers_are_asked_and_a_lease_is_made_of_both_answers() {
    let mut run = Run::acquire(Mode::Dhcp);
    assert_eq!(run.client.state(), State::Selecting);
    let [Action::Send(solicit), Action::AskRouters] = &run.actions[..] else { panic!("{:?}", run.actions) };
    assert_eq!((solicit.kind, asked(solicit)), (Kind::Solicit, None));
    assert_eq!(solicit.options.get(options::ELAPSED_TIME), Some(&[0, 0][..]));
    assert_eq!(solicit.options.get(options::OPTION_REQUEST), Some(&[0, 23, 0, 24, 0, 82][..]));
    assert_eq!(solicit.options.get(options::SERVER_ID), None);

    assert_eq!(run.advertise(0.3, SERVER, &Said::grants(GRANTED)), [], "other servers have their second");
    assert_eq!(run.deadline(), 1.0);
    run.time(1.0);
    let [Action::Intend(intent), Action::Probe(probed), Action::Send(request)] = &run.actions[..] else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((intent.address, &intent.server[..]), (ip(ADDRESS), SERVER));
    assert_eq!((*probed, request.kind, asked(request)), (ip(ADDRESS), Kind::Request, Some(ip(ADDRESS))));
    assert_eq!(request.options.get(options::SERVER_ID), Some(SERVER));
    assert_eq!(run.client.state(), State::Requesting);

    let dns = [&ip("2001:db8::53").octets()[..]].concat();
    let more: &[(u16, &[u8])] = &[(options::DNS_SERVERS, &dns), (options::DOMAIN_LIST, b"\x03lan\0")];
    assert_eq!(run.reply(1.01, SERVER, &Said { more, ..Said::grants(GRANTED) }), [], "the owner may answer the probe");
    assert!(run.client.needs_sockets(seconds(1.02)));
    assert_eq!(run.router(1.02, router(1)), []);
    assert_eq!(run.deadline(), 1.05);
    let [Action::Bound(lease)] = run.time(1.05) else { panic!("{:?}", run.actions) };
    let result = lease.result(0);
    assert_eq!(result.ips[0].address.to_string(), "2001:db8::10/64");
    assert_eq!(result.routes[0].gw, Some("fe80::1".parse().unwrap()));
    assert_eq!((result.dns.nameservers, result.dns.search), (vec!["2001:db8::53".into()], vec!["lan".into()]));
    assert_eq!(run.client.state(), State::Bound);
    assert!(!run.client.needs_sockets(seconds(2.0)));
    assert_eq!(run.deadline(), 31.01);
}

#[test]
fn the_server_of_the_highest_preference_is_taken_and_255_at_once() {
    let preferring = |more| Said { more, ..Said::grants(GRANTED) };
    let mut run = Run::acquire(Mode::Dhcp);
    assert_eq!(run.advertise(0.1, SERVER, &preferring(&[(options::PREFERENCE, &[1])])), []);
    assert_eq!(run.advertise(0.2, SECOND, &preferring(&[(options::PREFERENCE, &[2])])), []);
    assert_eq!(run.advertise(0.3, SERVER, &preferring(&[(options::PREFERENCE, &[2])])), []);
    run.time(1.0);
    assert_eq!(run.messages()[0].options.get(options::SERVER_ID), Some(SECOND));
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &preferring(&[(options::PREFERENCE, &[255])]));
    assert_eq!(run.sent(), [Kind::Request]);
}

#[test]
fn after_the_first_second_any_server_is_taken_at_once() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.time(1.0);
    assert_eq!(run.sent(), [Kind::Solicit]);
    assert_eq!(run.messages()[0].options.get(options::ELAPSED_TIME), Some(&[0, 100][..]));
    run.advertise(1.5, SERVER, &Said::grants(GRANTED));
    assert_eq!(run.sent(), [Kind::Request]);
}

#[test]
fn a_message_that_is_not_for_us_or_not_awaited_is_nothing() {
    let mut run = Run::acquire(Mode::Dhcp);
    let good = Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) };
    let good = good.by(SERVER, Kind::Advertise, run.transaction());
    let without = |code: u16| {
        let mut options = Options::default();
        for other in [options::CLIENT_ID, options::SERVER_ID, options::IA_NA].into_iter().filter(|other| *other != code)
        {
            options.push(other, good.options.get(other).unwrap().to_vec());
        }
        Message { options, ..good.clone() }
    };
    let mut of_another = without(options::CLIENT_ID);
    of_another.options.push(options::CLIENT_ID, duid("other"));
    let wrong = [
        Message { transaction: good.transaction + 1, ..good.clone() },
        Message { kind: Kind::Reply, ..good.clone() },
        Message { kind: Kind::Request, ..good.clone() },
        without(options::CLIENT_ID),
        without(options::SERVER_ID),
        without(options::IA_NA),
        of_another,
    ];
    for message in wrong {
        assert_eq!(run.message(0.5, &message), [], "{message:?}");
    }
    run.message(0.5, &good);
    assert_eq!(run.sent(), [Kind::Request]);
    let mut run = Run::bound();
    assert_eq!(run.message(2.0, &good), []);
    assert_eq!(run.router(2.0, router(2)), []);
}

#[test]
fn each_kind_is_repeated_as_the_rfc_has_it() {
    // by the shortest pauses: the first is IRT, each one 0.9 of twice the last, up to 0.9 of MRT
    let mut run = Run::acquire(Mode::Dhcp);
    let mut solicits = vec![];
    while run.deadline() < 60.0 {
        let at = run.deadline();
        run.time(at);
        solicits.extend(run.sent().iter().map(|_| (at * 100.0).round() / 100.0));
    }
    assert_eq!(solicits, [1.0, 2.8, 6.04, 11.87, 22.37, 41.27]);

    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    let mut requests = vec![Kind::Request];
    while *requests.last().unwrap() == Kind::Request {
        let at = run.deadline();
        run.time(at);
        requests.extend(run.sent());
    }
    assert_eq!(requests.len(), 11, "REQ_MAX_RC is 10");
    assert_eq!(requests.last(), Some(&Kind::Solicit));
    assert_eq!(run.client.state(), State::Selecting);

    let mut random = Random::new();
    let mut timer = Timer::new(Timing::of_kind(Kind::Solicit, Duration::from_secs(100)), START);
    let mut last = START;
    for _ in 0..20 {
        timer.sends(last, &mut random);
        let wait = timer.due - last;
        assert!(wait <= Duration::from_secs(110), "{wait:?}");
        assert!(timer.sent > 1 || (Duration::from_secs(1)..=Duration::from_millis(1100)).contains(&wait), "{wait:?}");
        last = timer.due;
    }
    assert!(timer.due - last <= Duration::from_secs(110));
}

#[test]
fn servers_set_the_longest_pause_between_solicits() {
    for (value, longest) in [(60, 60), (86_400, 86_400), (59, 3600), (86_401, 3600)] {
        let mut run = Run::acquire(Mode::Dhcp);
        let value = u32::to_be_bytes(value);
        run.advertise(0.1, SERVER, &Said { more: &[(options::SOL_MAX_RT, &value)], ..Said::NOTHING });
        assert_eq!(run.client.sol_max_rt, Duration::from_secs(longest));
    }
}

#[test]
fn without_an_answer_it_gives_up_in_time_and_says_why() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.time(207.9);
    assert_eq!(run.time(208.0), [Action::GaveUp("no more tries within 208s: no answer to Solicit".into())]);
    assert_eq!((run.client.state(), run.client.deadline()), (State::Ended, NEVER));
    assert!(!run.client.needs_sockets(seconds(300.0)));

    let mut run = Run::acquire(Mode::Dhcp);
    assert_eq!(run.advertise(0.1, SERVER, &Said::refuses(Status::NO_ADDRESSES)), []);
    run.time(208.0);
    let why = "no more tries within 208s: the server has no address left (NoAddrsAvail)";
    assert_eq!(run.actions, [Action::GaveUp(why.into())]);

    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(200.0, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    run.time(208.0);
    assert_eq!(run.sent(), [Kind::Release], "the server may have granted it");
    assert_eq!(asked(run.messages()[0]), Some(ip(ADDRESS)));
}

#[test]
fn a_refused_request_is_followed_by_a_new_search_and_not_at_once() {
    for status in [Status::NO_ADDRESSES, Status::NOT_ON_LINK, Status::NO_BINDING] {
        let mut run = Run::acquire(Mode::Dhcp);
        run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
        assert_eq!(run.reply(0.2, SERVER, &Said::refuses(status)), []);
        assert_eq!((run.client.state(), run.deadline()), (State::Selecting, 1.2));
        run.time(1.2);
        assert_eq!(run.sent(), [Kind::Solicit]);
    }
    // A status of the whole message, without any association.
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    let mut options = Options::default();
    options.push(options::CLIENT_ID, duid("id/net/eth0"));
    options.push(options::SERVER_ID, SERVER.to_vec());
    options.push(options::STATUS_CODE, vec![0, 4]);
    run.message(0.2, &Message { kind: Kind::Reply, transaction: run.transaction(), options });
    assert_eq!(run.client.state(), State::Selecting);
    // UnspecFail and UseMulticast are no refusal: it asks again when that is due.
    for status in [1_u16, 5] {
        let mut run = Run::acquire(Mode::Dhcp);
        run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
        let status = status.to_be_bytes();
        assert_eq!(run.reply(0.2, SERVER, &Said { more: &[(options::STATUS_CODE, &status)], ..Said::NOTHING }), []);
        assert_eq!((run.client.state(), run.deadline()), (State::Requesting, 1.1));
    }
}

#[test]
fn a_network_without_routers_gives_an_address_after_a_while() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    assert_eq!(run.reply(0.2, SERVER, &Said::grants(GRANTED)), []);
    assert_eq!(run.deadline(), 4.0);
    assert_eq!(run.time(4.0), [Action::AskRouters]);
    let [Action::Bound(lease)] = run.time(5.0) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.net().to_string().as_str(), lease.router), ("2001:db8::10/128", None));
    assert!(!run.client.needs_sockets(seconds(9.0)));
}

#[test]
fn a_router_that_is_none_by_default_tells_its_prefix_and_is_not_waited_for_alone() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    run.router(0.2, Advertisement { lifetime: 0, ..router(1) });
    run.reply(0.3, SERVER, &Said::grants(GRANTED));
    run.time(4.0);
    let [Action::Bound(lease)] = run.time(5.0) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.net().to_string().as_str(), lease.router), ("2001:db8::10/64", None));
}

#[test]
fn an_address_in_use_is_declined_and_another_asked_for() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    run.conflict(0.11, OTHER);
    run.conflict(0.12, ADDRESS);
    assert_eq!(run.actions, [], "nothing was granted yet");
    run.reply(0.13, SERVER, &Said::grants(GRANTED));
    assert_eq!(run.sent(), [Kind::Decline]);
    let decline = run.messages()[0].clone();
    assert_eq!((asked(&decline), decline.options.get(options::SERVER_ID)), (Some(ip(ADDRESS)), Some(SERVER)));
    assert_eq!(run.client.release(&mut Random::counting()), None, "it has nothing to give back");

    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    run.reply(0.11, SERVER, &Said::grants(GRANTED));
    run.conflict(0.12, ADDRESS);
    let mut declines = run.sent();
    while *declines.last().unwrap() == Kind::Decline {
        let at = run.deadline();
        run.time(at);
        declines.extend(run.sent());
    }
    use Kind::{Decline, Solicit};
    assert_eq!(declines, [Decline, Decline, Decline, Decline, Solicit], "DEC_MAX_RC is 4");

    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    run.reply(0.11, SERVER, &Said::grants(GRANTED));
    run.conflict(0.12, ADDRESS);
    run.reply(0.2, SERVER, &Said::NOTHING);
    run.time(1.2);
    assert_eq!(run.sent(), [Kind::Solicit]);
    run.advertise(1.3, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(&[(OTHER, 60, 120)]) });
    assert_eq!(run.actions[1], Action::Probe(ip(OTHER)));
    run.reply(1.31, SERVER, &Said::grants(&[(OTHER, 60, 120)]));
    assert!(matches!(run.time(1.35), [Action::Bound(_)]));
}

#[test]
fn an_address_that_was_not_advertised_is_probed_when_it_is_granted() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    assert_eq!(run.reply(1.0, SERVER, &Said::grants(&[(OTHER, 60, 120)])), [Action::Probe(ip(OTHER))]);
    let [Action::Bound(lease)] = run.time(1.05) else { panic!("{:?}", run.actions) };
    assert_eq!(lease.address, ip(OTHER));
}

#[test]
fn at_t1_the_server_is_asked_for_more_time_at_t2_any() {
    let mut run = Run::bound();
    assert_eq!(run.deadline(), 31.0);
    assert!(run.client.needs_sockets(seconds(31.0)));
    run.time(31.0);
    assert_eq!((run.sent(), run.client.state()), (vec![Kind::Renew], State::Renewing));
    assert_eq!(run.actions[1], Action::AskRouters);
    let renew = run.messages()[0].clone();
    assert_eq!((asked(&renew), renew.options.get(options::SERVER_ID)), (Some(ip(ADDRESS)), Some(SERVER)));
    run.router(31.1, router(1));
    let [Action::Renewed(lease)] = run.reply(31.2, SERVER, &Said::grants(GRANTED)) else { panic!("{:?}", run.actions) };
    assert_eq!(lease.expires, seconds(151.2));
    assert_eq!((run.client.state(), run.deadline()), (State::Bound, 61.2));
    assert!(!run.client.needs_sockets(seconds(32.0)));

    run.time(61.2);
    assert_eq!(run.sent(), [Kind::Renew]);
    run.time(71.2);
    assert_eq!(run.sent(), [Kind::Renew], "REN_TIMEOUT is 10 s");
    run.time(79.2);
    assert_eq!((run.sent(), run.client.state()), (vec![Kind::Rebind], State::Rebinding));
    let rebind = run.messages()[0].clone();
    assert_eq!((asked(&rebind), rebind.options.get(options::SERVER_ID)), (Some(ip(ADDRESS)), None));
    let [Action::Renewed(lease)] = run.reply(79.3, SECOND, &Said::grants(GRANTED)) else { panic!("{:?}", run.actions) };
    assert_eq!(lease.server, SECOND, "renewals go to it from now on");
}

#[test]
fn nothing_is_open_while_an_answer_is_no_longer_awaited() {
    let mut run = Run::bound();
    run.time(31.0);
    run.router(31.0, router(1));
    assert!(run.client.needs_sockets(seconds(35.9)));
    run.time(36.0);
    assert!(!run.client.needs_sockets(seconds(36.0)));
    assert_eq!(run.deadline(), 41.0);
    assert!(run.client.needs_sockets(seconds(41.0)));
}

#[test]
fn a_renewal_does_not_wait_for_routers_and_another_one_is_told_later() {
    let mut run = Run::bound();
    run.time(31.0);
    let [Action::Renewed(lease)] = run.reply(31.1, SERVER, &Said::grants(GRANTED)) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.router, lease.prefix_len), (Some(ip("fe80::1")), 64));
    assert!(run.client.needs_sockets(seconds(32.0)));
    assert_eq!(run.router(32.0, Advertisement { lifetime: 0, ..router(1) }), []);
    let [Action::Renewed(lease)] = run.router(33.0, router(2)) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.router, lease.expires), (Some(ip("fe80::2")), seconds(151.1)));
    assert_eq!(run.router(33.0, router(3)), [], "nobody asks any more");
}

#[test]
fn a_server_that_has_forgotten_the_lease_is_asked_to_give_it_anew() {
    let mut run = Run::bound();
    run.time(31.0);
    run.reply(31.1, SECOND, &Said::refuses(Status::NO_BINDING));
    let [Action::Send(request)] = &run.actions[..] else { panic!("{:?}", run.actions) };
    assert_eq!((request.kind, asked(request)), (Kind::Request, Some(ip(ADDRESS))));
    assert_eq!(request.options.get(options::SERVER_ID), Some(SECOND));
    assert_eq!(run.client.state(), State::Renewing, "the container has its address");
    assert!(matches!(run.reply(31.2, SECOND, &Said::grants(GRANTED)), [Action::Renewed(_)]));

    // It gives another one only: that goes back, and the container has none.
    let mut run = Run::bound();
    run.time(31.0);
    run.reply(31.1, SERVER, &Said::refuses(Status::NO_BINDING));
    run.reply(31.2, SERVER, &Said::grants(&[(OTHER, 60, 120)]));
    let [Action::Send(release), Action::Lost(Reason::Refused)] = &run.actions[..] else { panic!("{:?}", run.actions) };
    assert_eq!((release.kind, asked(release)), (Kind::Release, Some(ip(OTHER))));
    assert_eq!(run.client.state(), State::Expired);

    // It does not answer: Renew goes on, and at T2 Rebind.
    let mut run = Run::bound();
    run.time(31.0);
    run.reply(31.1, SERVER, &Said::refuses(Status::NO_BINDING));
    run.time(49.0);
    assert_eq!((run.sent(), run.client.state()), (vec![Kind::Rebind], State::Rebinding));
}

#[test]
fn an_address_that_is_not_renewed_stays_and_one_whose_time_is_set_to_nothing_goes() {
    let mut run = Run::bound();
    run.time(31.0);
    for said in [Said::NOTHING, Said::grants(&[(OTHER, 60, 120)]), Said::refuses(Status::NO_ADDRESSES)] {
        assert_eq!(run.reply(31.1, SERVER, &said), []);
        assert_eq!(run.client.state(), State::Renewing);
    }
    assert_eq!(run.reply(31.2, SERVER, &Said::grants(&[(ADDRESS, 0, 0)])), [Action::Lost(Reason::Refused)]);
    assert_eq!(run.client.state(), State::Expired);
}

#[test]
fn an_expired_address_leaves_and_is_regained_if_it_is_offered_again() {
    let mut run = Run::bound();
    for at in [31.0, 49.0, 120.9] {
        run.time(at);
    }
    let [Action::Lost(Reason::Expired), Action::Send(solicit)] = run.time(121.0) else { panic!("{:?}", run.actions) };
    assert_eq!((solicit.kind, asked(solicit)), (Kind::Solicit, Some(ip(ADDRESS))));
    assert_eq!(run.client.state(), State::Expired);
    assert_eq!(run.client.release(&mut Random::counting()), None, "it has nothing to give back");

    let mut run = Run::bound();
    run.time(121.0);
    let at_once = Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(&[(OTHER, 60, 120)]) };
    assert_eq!(run.advertise(121.1, SERVER, &at_once), [], "the container cannot have another");
    run.advertise(121.2, SERVER, &Said { addresses: GRANTED, ..at_once });
    let [Action::Probe(_), Action::Send(_), Action::AskRouters] = &run.actions[..] else { panic!("{:?}", run.actions) };
    run.reply(121.3, SERVER, &Said::grants(GRANTED));
    let [Action::Regained(lease)] = run.router(121.4, router(1)) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.prefix_len, lease.expires), (64, seconds(241.3)));
    assert_eq!(run.client.state(), State::Bound);
}

#[test]
fn a_lost_address_is_looked_for_ever_more_rarely_and_nothing_is_open_in_between() {
    let mut run = Run::bound();
    run.time(121.0);
    let (mut at, mut solicits, mut open) = (121.0, 0, 0.0);
    while at < 121.0 + 86_400.0 {
        let next = run.deadline();
        if run.client.needs_sockets(seconds(at)) {
            open += next - at;
        }
        at = next;
        run.time(at);
        solicits += run.sent().len();
    }
    assert!((20..50).contains(&solicits), "{solicits} in a day");
    assert!(open < 300.0, "open for {open} s of a day");
}

#[test]
fn a_daemon_that_starts_again_goes_on_where_the_clock_says() {
    let lease = Run::bound().client.lease().unwrap().clone();
    for (at, sent, state) in [
        (10.0, vec![], State::Bound),
        (31.0, vec![Kind::Renew], State::Renewing),
        (49.0, vec![Kind::Rebind], State::Rebinding),
        (121.0, vec![Kind::Solicit], State::Expired),
    ] {
        let mut run = Run::resume(lease.clone(), false, seconds(at));
        assert_eq!(run.deadline(), 31.0);
        run.time(at);
        assert_eq!((run.sent(), run.client.state()), (sent, state), "{at}");
    }
    let mut run = Run::resume(lease, true, seconds(500.0));
    assert_eq!((run.client.state(), run.deadline()), (State::Expired, 500.0));
    run.time(500.0);
    assert_eq!(run.sent(), [Kind::Solicit]);
}

#[test]
fn a_lease_without_end_is_never_renewed() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    run.reply(1.0, SERVER, &Said { times: (0, 0), ..Said::grants(&[(ADDRESS, u32::MAX, u32::MAX)]) });
    assert!(matches!(run.actions[..], [Action::Bound(_)]));
    run.time(10.0);
    assert_eq!(run.client.deadline(), NEVER);
    assert_eq!(run.client.on_time(START + Duration::from_secs(u32::MAX.into()), &mut Random::counting()), []);
}

#[test]
fn what_is_had_or_requested_is_released() {
    let released =
        |run: &Run| run.client.clone().release(&mut Random::counting()).map(|message| (message.kind, asked(&message)));
    let given_back = Some((Kind::Release, Some(ip(ADDRESS))));
    let run = Run::acquire(Mode::Dhcp);
    assert_eq!(released(&run), None, "nothing was asked for");
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said { more: &[(options::PREFERENCE, &[255])], ..Said::grants(GRANTED) });
    assert_eq!(released(&run), given_back);
    run.reply(0.2, SERVER, &Said::grants(GRANTED));
    assert_eq!(released(&run), given_back);
    let mut run = Run::bound();
    assert_eq!(released(&run), given_back);
    run.time(31.0);
    assert_eq!(released(&run), given_back);
    run.client.release(&mut Random::counting());
    assert_eq!((run.client.state(), released(&run)), (State::Ended, None));
    let intent = Intent { address: ip(ADDRESS), server: SERVER.to_vec() };
    let message = release_of(&intent, &setup(Mode::Dhcp), &mut Random::counting());
    assert_eq!((message.kind, message.options.get(options::SERVER_ID)), (Kind::Release, Some(SERVER)));
    assert_eq!(message.options.get(options::OPTION_REQUEST), None);
}

#[test]
fn a_duid_is_of_its_key_and_a_uuid() {
    let one = duid("id/net/eth0");
    assert_eq!(one, duid("id/net/eth0"));
    assert_ne!(one, duid("id/net/eth1"));
    assert_eq!((one.len(), &one[..2], one[8] >> 4, one[10] >> 6), (18, &[0, 4][..], 8, 2));
}

#[test]
fn an_address_is_made_of_a_routers_prefix() {
    let mut run = Run::acquire(Mode::Slaac);
    assert_eq!(run.actions, [Action::AskRouters]);
    for unfit in [
        Prefix { autonomous: false, ..router(1).prefixes[0] },
        Prefix { preferred: 0, ..router(1).prefixes[0] },
        Prefix { net: "2001:db8::/63".parse().unwrap(), ..router(1).prefixes[0] },
    ] {
        assert_eq!(run.router(0.5, Advertisement { prefixes: vec![unfit], ..router(1) }), [], "{unfit:?}");
    }
    let address = ip("2001:db8::858:aff:fe01:203");
    assert_eq!(run.router(1.0, router(1)), [Action::Probe(address)]);
    let [Action::Bound(lease)] = run.time(1.05) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.net().to_string(), lease.router), (format!("{address}/64"), Some(ip("fe80::1"))));
    assert_eq!(run.client.release(&mut Random::counting()), None, "nobody has granted it");
}

#[test]
fn a_prefix_is_renewed_by_asking_the_routers() {
    let mut run = Run::acquire(Mode::Slaac);
    run.router(1.0, router(1));
    run.time(1.05);
    let lease = run.client.lease().unwrap().clone();
    assert_eq!((lease.t1, lease.expires), (seconds(31.0), seconds(121.0)));
    assert_eq!(run.time(31.0), [Action::AskRouters]);
    let foreign = Prefix { net: "2001:db9::/64".parse().unwrap(), ..router(1).prefixes[0] };
    assert_eq!(run.router(31.1, Advertisement { prefixes: vec![foreign], ..router(2) }), []);
    let [Action::Renewed(lease)] = run.router(31.2, router(1)) else { panic!("{:?}", run.actions) };
    let address = ip("2001:db8::858:aff:fe01:203");
    assert_eq!((lease.expires, lease.address), (seconds(151.2), address));
    run.time(61.2);
    assert_eq!(run.client.state(), State::Renewing);
    run.time(79.2);
    assert_eq!(run.client.state(), State::Rebinding);
    let [Action::Lost(Reason::Expired), Action::AskRouters] = run.time(151.2) else { panic!("{:?}", run.actions) };
    run.router(152.0, router(1));
    assert_eq!(run.actions, [Action::Probe(address)]);
    assert!(matches!(run.time(152.05), [Action::Regained(_)]));
}

#[test]
fn nobody_on_the_link_ends_a_prefix_within_two_hours() {
    let of = |valid| {
        let prefix = Prefix { preferred: valid, valid, ..router(1).prefixes[0] };
        Advertisement { prefixes: vec![prefix], ..router(1) }
    };
    let mut run = Run::acquire(Mode::Slaac);
    run.router(0.0, of(20_000));
    run.time(0.05);
    run.time(10_000.0);
    run.router(10_000.0, of(5));
    assert_eq!(run.client.lease().unwrap().expires, seconds(10_000.0 + 7200.0));
    run.time(10_003.0);
    run.router(10_003.0, of(5));
    assert_eq!(run.client.lease().unwrap().expires, seconds(10_000.0 + 7200.0), "it is not made longer either");
}

#[test]
fn an_address_in_use_cannot_be_made() {
    let mut run = Run::acquire(Mode::Slaac);
    run.router(1.0, router(1));
    let address = "2001:db8::858:aff:fe01:203";
    assert_eq!(run.conflict(1.01, address), [Action::GaveUp("the address is in use by another".into())]);
    assert_eq!(run.client.state(), State::Ended);

    let mut run = Run::acquire(Mode::Slaac);
    run.router(1.0, router(1));
    run.time(1.05);
    run.time(121.0);
    run.router(121.1, router(1));
    assert_eq!(run.conflict(121.11, address), []);
    assert_eq!((run.client.state(), run.deadline()), (State::Expired, 126.0));
    run.time(126.0);
    assert_eq!(run.deadline(), 181.11, "and not at once again");
}

#[test]
fn without_a_prefix_it_gives_up() {
    let mut run = Run::acquire(Mode::Slaac);
    let (mut asked, mut at) = (1, 0.0);
    while run.client.state() != State::Ended {
        at = run.deadline();
        run.time(at);
        asked += run.actions.iter().filter(|action| **action == Action::AskRouters).count();
    }
    assert_eq!((asked, at), (7, 208.0));
    let why = "no more tries within 208s: no router has advertised a prefix that addresses are made of";
    assert_eq!(run.actions, [Action::GaveUp(why.into())]);
}
