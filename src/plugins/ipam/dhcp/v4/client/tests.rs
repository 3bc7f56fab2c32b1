//! Each transition of RFC 2131 as a transcript: what the clock and servers do, and what the client does then.
//!
//! Chance gives the shortest waits here: nine tenths of what is set.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::search::jittered;
use super::*;
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
        patience: Patience {
            timeout: Duration::from_secs(10),
            resend_max: Duration::from_secs(62),
            resend_timeout: Duration::from_secs(208),
        },
    }
}

fn probing() -> Setup {
    Setup { probe: true, ..setup() }
}

/// Seconds, with a digit where one is needed.
fn seconds_of(moment: Moment) -> String {
    format!("{}", moment.as_millis() as f64 / 1000.0)
}

fn line_of(message: &Message) -> String {
    let options = &message.options;
    let requested = options.address(code::REQUESTED_ADDRESS).map(|a| format!(" {a}")).unwrap_or_default();
    let server = options.address(code::SERVER_ID).map(|s| format!(" of {s}")).unwrap_or_default();
    let ciaddr = if message.ciaddr.is_unspecified() { String::new() } else { format!(" ci {}", message.ciaddr) };
    format!("{:?}{ciaddr}{requested}{server}", message.kind().unwrap())
}

fn line(action: &Action) -> String {
    let times = |lease: &Lease| {
        let [t1, t2, end] =
            [lease.t1, lease.t2, lease.expires].map(|m| if m == NEVER { "never".to_owned() } else { seconds_of(m) });
        format!("{} of {}, t1 {t1}, t2 {t2}, end {end}", lease.net(), lease.server)
    };
    match action {
        Action::Send(outgoing) => match outgoing.to {
            Destination::Broadcast => line_of(&outgoing.message),
            Destination::Server { from, to } => format!("{} [{from} > {to}]", line_of(&outgoing.message)),
        },
        Action::Probe(address) => format!("probe {address}"),
        Action::Intend(intent) => format!("intend {} of {}", intent.address, intent.server),
        Action::Bound(lease) => format!("bound {}", times(lease)),
        Action::Renewed(lease) => format!("renewed {}", times(lease)),
        Action::Lost(reason) => format!("lost: {reason}"),
        Action::Regained(lease) => format!("regained {}", times(lease)),
        Action::GaveUp(why) => format!("gave up: {why}"),
    }
}

/// A client and what has happened.
struct Story {
    client: Client,
    now: Moment,
    random: Random,
    /// The message that was sent last.
    last: Message,
    lines: Vec<String>,
}

impl Story {
    fn new(setup: Setup) -> Story {
        Story::wanting(setup, None)
    }

    fn wanting(setup: Setup, wanted: Option<Ipv4Addr>) -> Story {
        let (now, mut random) = (Duration::ZERO, Random::counting());
        let (client, actions) = Client::acquire(setup, wanted, now, &mut random);
        let last = Message::of_client(MessageType::Discover, 0, &mac(9));
        let mut story = Story { client, now, random, last, lines: vec![] };
        story.tell(actions);
        story
    }

    /// A daemon starts anew at `now`.
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
            if let Action::Send(outgoing) = &action {
                self.last = outgoing.message.clone();
            }
            self.lines.push(format!("{} {}", seconds_of(self.now), line(&action)));
        }
    }

    /// What a server says to the last message, with a lease of 1000 seconds.
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
        let actions = self.client.on_message(message, self.now, &mut self.random);
        self.tell(actions);
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

    fn conflict(&mut self, holder: MacAddr) {
        let actions = self.client.on_conflict(ADDRESS, holder, self.now, &mut self.random);
        self.tell(actions);
    }

    /// Lets time pass until `seconds`, with the client called when it says.
    fn until(&mut self, seconds: f64) {
        let end = Duration::from_secs_f64(seconds);
        for _ in 0..10_000 {
            if self.client.deadline() > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(self.client.deadline());
            assert!(self.client.needs_sockets(self.now), "nothing is due at {:?}", self.now);
            let actions = self.client.on_time(self.now, &mut self.random);
            self.tell(actions);
        }
        panic!("a busy loop at {:?}: {}", self.now, self.lines[self.lines.len() - 20..].join("\n"));
    }

    #[track_caller]
    fn check(&mut self, expected: &[&str]) {
        let found = std::mem::take(&mut self.lines);
        assert_eq!(found.join("\n"), expected.join("\n"));
    }
}

#[test]
fn an_address_is_discovered_offered_requested_and_acknowledged() {
    let mut story = Story::new(setup());
    assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Selecting, true));
    story.offer();
    assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Requesting, true));
    story.ack();
    assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Bound, false));
    story.check(&[
        "0 Discover",
        "0 intend 10.0.0.5 of 10.0.0.1",
        "0 Request 10.0.0.5 of 10.0.0.1",
        "0 bound 10.0.0.5/24 of 10.0.0.1, t1 500, t2 875, end 1000",
    ]);
}

#[test]
fn messages_have_what_the_rfc_and_the_reference_have() {
    let codes = |message: &Message| message.options.iter().map(|(code, _)| code).collect::<Vec<_>>();
    let mut story = Story::wanting(setup(), Some(ADDRESS));
    assert_eq!(codes(&story.last), [50, 53, 55, 57, 61]);
    assert_eq!(story.last.options.get(55), Some([3, 1].as_slice()));
    assert_eq!(story.last.options.short(57), Some(1500));
    assert_eq!(story.last.options.get(61), Some(b"\0container/net/eth0".as_slice()));
    let xid = story.last.xid;
    story.until(9.0);
    assert_eq!((story.last.secs, story.last.xid), (9, xid));
    story.offer();
    assert_eq!((codes(&story.last), story.last.secs, story.last.xid), (vec![50, 53, 54, 55, 57, 61], 9, xid));
    story.ack();
    story.until(600.0);
    assert_eq!((codes(&story.last), story.last.ciaddr, story.last.secs), (vec![53, 55, 57, 61], ADDRESS, 0));
    story.until(700.0);
    assert_eq!((story.last.secs, story.last.ciaddr), (187, ADDRESS), "since the first try to renew");
    assert_ne!(story.last.xid, xid);
    let release = story.client.release(&mut story.random).unwrap().message;
    assert_eq!((codes(&release), release.ciaddr), (vec![53, 54, 61], ADDRESS));
    assert_eq!(story.client.state(), State::Ended);
    assert_eq!(story.client.release(&mut story.random), None);
    assert!(!story.client.needs_sockets(NEVER - Duration::from_secs(1)));
}

#[test]
fn what_is_provided_is_sent_and_does_not_change_what_a_message_is() {
    let provide =
        [(12, "host"), (50, "wish"), (52, "x"), (53, "x"), (54, "serv"), (57, "??"), (60, "class"), (61, "id")];
    let provide = provide.map(|(code, value)| (code, value.as_bytes().to_vec())).to_vec();
    let mut story = Story::new(Setup { provide, request: vec![], broadcast: true, ..setup() });
    let texts = |message: &Message| {
        let options = message.options.iter().filter(|(code, _)| *code != code::MESSAGE_TYPE);
        options.map(|(code, value)| format!("{code} {}", value.escape_ascii())).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(texts(&story.last), "12 host, 50 wish, 57 ??, 60 class, 61 id");
    assert!(story.last.broadcast);
    story.offer();
    assert_eq!(texts(&story.last), r"12 host, 50 \n\x00\x00\x05, 54 \n\x00\x00\x01, 57 ??, 60 class, 61 id");
    assert!(story.last.broadcast);
    story.ack();
    story.until(500.0);
    assert_eq!(texts(&story.last), "12 host, 57 ??, 60 class, 61 id");
    assert!(!story.last.broadcast, "it has an address now");
    let release = story.client.release(&mut story.random).unwrap().message;
    assert_eq!(texts(&release), r"54 \n\x00\x00\x01, 61 id");
}

#[test]
fn nobody_answers() {
    let mut story = Story::new(setup());
    story.until(1000.0);
    story.check(&[
        "0 Discover",
        "9 Discover",
        "27 Discover",
        "63 Discover",
        "118.8 Discover",
        "174.6 Discover",
        "208 gave up: no more tries within 208s: no answer to DHCPDISCOVER",
    ]);
    assert_eq!(story.client.state(), State::Ended);
}

#[test]
fn a_server_that_offers_and_no_more() {
    let mut story = Story::new(setup());
    story.offer();
    story.until(100.0);
    story.offer();
    story.until(1000.0);
    story.check(&[
        "0 Discover",
        "0 intend 10.0.0.5 of 10.0.0.1",
        "0 Request 10.0.0.5 of 10.0.0.1",
        "9 Request 10.0.0.5 of 10.0.0.1",
        "27 Request 10.0.0.5 of 10.0.0.1",
        "63 Discover",
        "72 Discover",
        "90 Discover",
        "100 intend 10.0.0.5 of 10.0.0.1",
        "100 Request 10.0.0.5 of 10.0.0.1",
        "109 Request 10.0.0.5 of 10.0.0.1",
        "127 Request 10.0.0.5 of 10.0.0.1",
        "163 Discover",
        "172 Discover",
        "190 Discover",
        "208 gave up: no more tries within 208s: no answer of 10.0.0.1 to DHCPREQUEST",
    ]);
}

#[test]
fn what_was_requested_is_released_at_the_end() {
    let mut story = Story::new(setup());
    story.until(190.0);
    story.lines.clear();
    story.offer();
    story.until(300.0);
    story.check(&[
        "190 intend 10.0.0.5 of 10.0.0.1",
        "190 Request 10.0.0.5 of 10.0.0.1",
        "199 Request 10.0.0.5 of 10.0.0.1",
        "208 Release ci 10.0.0.5 of 10.0.0.1 [10.0.0.5 > 10.0.0.1]",
        "208 gave up: no more tries within 208s: no answer to DHCPDISCOVER",
    ]);
}

#[test]
fn a_lost_message_of_any_kind_is_made_good() {
    let mut story = Story::new(setup());
    story.until(9.0);
    story.offer();
    story.until(20.0);
    story.ack(); // to the second request; the time runs from the first
    story.check(&[
        "0 Discover",
        "9 Discover",
        "9 intend 10.0.0.5 of 10.0.0.1",
        "9 Request 10.0.0.5 of 10.0.0.1",
        "18 Request 10.0.0.5 of 10.0.0.1",
        "20 bound 10.0.0.5/24 of 10.0.0.1, t1 509, t2 884, end 1009",
    ]);
}

#[test]
fn a_refused_request_begins_anew_ever_more_slowly() {
    let mut story = Story::new(setup());
    for _ in 0..4 {
        story.offer();
        let mut nak = story.reply(MessageType::Nak, Ipv4Addr::UNSPECIFIED);
        nak.options.set(code::MESSAGE, b"no\nway");
        story.hear(&nak);
        story.until(story.now.as_secs_f64().max(1.0) * 2.0);
    }
    story.check(&[
        "0 Discover",
        "0 intend 10.0.0.5 of 10.0.0.1",
        "0 Request 10.0.0.5 of 10.0.0.1",
        "0 Discover",
        "2 intend 10.0.0.5 of 10.0.0.1",
        "2 Request 10.0.0.5 of 10.0.0.1",
        "3 Discover",
        "4 intend 10.0.0.5 of 10.0.0.1",
        "4 Request 10.0.0.5 of 10.0.0.1",
        "6 Discover",
        "8 intend 10.0.0.5 of 10.0.0.1",
        "8 Request 10.0.0.5 of 10.0.0.1",
        "12 Discover",
    ]);
    story.until(208.0);
    let last = story.lines.pop().unwrap();
    assert_eq!(last, r"208 gave up: no more tries within 208s: 10.0.0.1 has refused DHCPREQUEST: no\nway");
}

#[test]
fn an_acknowledgement_without_a_mask_is_given_back() {
    for mask in [None, Some([255, 0, 255, 0]), Some([0; 4])] {
        let mut story = Story::new(setup());
        story.offer();
        story.lines.clear();
        let mut ack = story.reply(MessageType::Ack, ADDRESS);
        ack.options.remove(code::SUBNET_MASK);
        mask.into_iter().for_each(|mask: [u8; 4]| ack.options.set(code::SUBNET_MASK, &mask));
        story.hear(&ack);
        story.until(1000.0);
        story.check(&[
            "0 Release ci 10.0.0.5 of 10.0.0.1 [10.0.0.5 > 10.0.0.1]",
            "0 gave up: DHCP option Subnet Mask not found in DHCPACK",
        ]);
    }
}

/// One thing is wrong with each.
#[test]
fn an_address_of_the_whole_subnet_is_given_back() {
    for last in [0, 255] {
        let mut story = Story::new(setup());
        story.hear(&story.reply(MessageType::Offer, [10, 0, 0, last].into()));
        story.lines.clear();
        story.hear(&story.reply(MessageType::Ack, [10, 0, 0, last].into()));
        story.check(&[
            &format!("0 Release ci 10.0.0.{last} of 10.0.0.1 [10.0.0.{last} > 10.0.0.1]"),
            &format!("0 gave up: 10.0.0.1 gives 10.0.0.{last}/24, which no host can have"),
        ]);
    }
}

#[test]
fn who_waits_in_vain_is_told_what_has_come() {
    let mut story = Story::new(setup());
    story.client.on_malformed(SERVER);
    story.until(208.0);
    assert!(story.lines.pop().unwrap().ends_with("208s: what 10.0.0.1 sends is no DHCP message"));
    for address in [[0, 0, 0, 9], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
        let mut story = Story::new(setup());
        story.hear(&story.reply(MessageType::Offer, address.into()));
        story.until(208.0);
        let told = format!("208s: 10.0.0.1 offers {}, which no host can have", Ipv4Addr::from(address));
        assert!(story.lines.pop().unwrap().ends_with(&told));
    }
}

#[test]
fn what_is_not_for_us_is_nothing() {
    type Change = fn(&mut Message);
    let everywhere: [(&str, Change); 6] = [
        ("of a client", |m| m.op = Op::Request),
        ("another exchange", |m| m.xid ^= 1),
        ("another link", |m| m.chaddr = mac(2)),
        ("a longer address", |m| m.chaddr = MacAddr::new(&[2, 0, 0, 0, 0, 1, 0])),
        ("another client id", |m| m.options.set(code::CLIENT_ID, b"\0other")),
        ("BOOTP", |m| m.options.remove(code::MESSAGE_TYPE)),
    ];
    let unbound: [(&str, Change); 3] = [
        ("no server", |m| m.options.remove(code::SERVER_ID)),
        ("server 0.0.0.0", |m| m.options.set(code::SERVER_ID, &[0; 4])),
        ("a torn server", |m| m.options.set(code::SERVER_ID, &[10, 0, 0])),
    ];
    let offers: [(&str, Change); 5] = [
        ("no address", |m| m.yiaddr = Ipv4Addr::UNSPECIFIED),
        ("everybody's address", |m| m.yiaddr = Ipv4Addr::BROADCAST),
        ("a group's address", |m| m.yiaddr = Ipv4Addr::new(224, 0, 0, 1)),
        ("a loopback address", |m| m.yiaddr = Ipv4Addr::LOCALHOST),
        ("no offer", |m| m.options.set(code::MESSAGE_TYPE, &[5])),
    ];
    let grants: [(&str, Change); 3] = [
        ("another server", |m| m.options.set(code::SERVER_ID, &OTHER_SERVER.octets())),
        ("another address", |m| m.yiaddr = OTHER_ADDRESS),
        ("an offer again", |m| m.options.set(code::MESSAGE_TYPE, &[2])),
    ];
    let renewals: [(&str, Change); 2] =
        [("another address", |m| m.yiaddr = OTHER_ADDRESS), ("an offer", |m| m.options.set(code::MESSAGE_TYPE, &[2]))];
    let mut story = Story::new(setup());
    let refuse = |story: &mut Story, kind, changes: &[&[(&str, Change)]]| {
        story.lines.clear();
        for (what, change) in changes.iter().copied().flatten() {
            let mut message = story.reply(kind, ADDRESS);
            change(&mut message);
            story.hear(&message);
            assert_eq!(story.lines, [""; 0], "{what} in answer to {}", line_of(&story.last));
        }
    };
    refuse(&mut story, MessageType::Offer, &[&everywhere, &unbound, &offers]);
    story.offer();
    refuse(&mut story, MessageType::Ack, &[&everywhere, &unbound, &grants]);
    refuse(&mut story, MessageType::Nak, &[&everywhere, &unbound, &grants[..1]]);
    story.ack();
    assert_eq!(story.client.state(), State::Bound);
    refuse(&mut story, MessageType::Ack, &[&[("what comes late", |_| ())]]);
    refuse(&mut story, MessageType::Nak, &[&[("what comes late", |_| ())]]);
    for seconds in [500.0, 875.0] {
        story.until(seconds);
        refuse(&mut story, MessageType::Ack, &[&everywhere, &renewals]);
        refuse(&mut story, MessageType::Nak, &[&everywhere]);
    }
}

#[test]
fn an_echoed_client_id_of_our_own_is_taken() {
    let mut story = Story::new(setup());
    let mut offer = story.reply(MessageType::Offer, ADDRESS);
    offer.options.set(code::CLIENT_ID, b"\0container/net/eth0");
    story.hear(&offer);
    assert_eq!(story.client.state(), State::Requesting);
}

#[test]
fn a_lease_is_renewed_again_and_again_with_no_socket_between() {
    let mut story = Story::bound();
    for round in 1..=3 {
        let t1 = f64::from(round) * 500.0;
        story.until(t1 - 0.001);
        assert!(!story.client.needs_sockets(story.now));
        story.until(t1);
        assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Renewing, true));
        story.ack();
        assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Bound, false));
    }
    story.check(&[
        "500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "500 renewed 10.0.0.5/24 of 10.0.0.1, t1 1000, t2 1375, end 1500",
        "1000 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "1000 renewed 10.0.0.5/24 of 10.0.0.1, t1 1500, t2 1875, end 2000",
        "1500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "1500 renewed 10.0.0.5/24 of 10.0.0.1, t1 2000, t2 2375, end 2500",
    ]);
}

#[test]
fn an_unanswered_lease_is_renewed_rebound_lost_and_regained() {
    let mut story = Story::bound();
    story.until(1130.0);
    assert_eq!(story.client.state(), State::Expired);
    story.check(&[
        "500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "687.5 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "781.25 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "841.25 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "875 Request ci 10.0.0.5",
        "937.5 Request ci 10.0.0.5",
        "997.5 Request ci 10.0.0.5",
        "1000 lost: expired",
        "1000 Discover 10.0.0.5",
        "1055.8 Discover 10.0.0.5",
        "1111.6 Discover 10.0.0.5",
    ]);
    story.until(1200.0);
    story.lines.clear();
    story.offer();
    story.ack();
    assert_eq!(story.client.state(), State::Bound);
    story.check(&[
        "1200 Request 10.0.0.5 of 10.0.0.1",
        "1200 regained 10.0.0.5/24 of 10.0.0.1, t1 1700, t2 2075, end 2200",
    ]);
}

#[test]
fn nothing_is_open_between_two_tries() {
    let mut story = Story::bound();
    for (from, to) in [(500.0, 687.5), (875.0, 937.5), (1000.0, 1055.8)] {
        story.until(from + 9.99);
        assert!(story.client.needs_sockets(story.now), "{from}");
        story.until(from + 10.0);
        assert!(!story.client.needs_sockets(story.now), "{from}");
        story.until(to - 0.01);
        assert!(!story.client.needs_sockets(story.now), "{from}");
    }
}

#[test]
fn another_server_may_rebind() {
    let mut story = Story::bound();
    story.until(880.0);
    story.lines.clear();
    let mut ack = story.reply(MessageType::Ack, ADDRESS);
    ack.options.set(code::SERVER_ID, &OTHER_SERVER.octets());
    ack.options.set(code::SUBNET_MASK, &[255, 255, 0, 0]);
    story.hear(&ack);
    story.until(1375.0);
    story.check(&[
        "880 renewed 10.0.0.5/24 of 10.0.0.2, t1 1375, t2 1750, end 1875",
        "1375 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.2]",
    ]);
}

#[test]
fn a_renewal_needs_no_mask_and_no_server() {
    let mut story = Story::bound();
    story.until(500.0);
    let mut ack = story.reply(MessageType::Ack, ADDRESS);
    ack.options = Options::default();
    ack.options.set(code::MESSAGE_TYPE, &[MessageType::Ack as u8]);
    story.hear(&ack);
    story.check(&[
        "500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "500 renewed 10.0.0.5/24 of 10.0.0.1, t1 2300, t2 3650, end 4100",
    ]);
}

#[test]
fn a_server_that_forgot_the_lease_gives_it_again_and_nobody_notices() {
    for (at, server) in [(500.0, SERVER), (875.0, SERVER), (875.0, OTHER_SERVER)] {
        let mut story = Story::bound();
        story.until(at);
        story.lines.clear();
        let mut nak = story.reply(MessageType::Nak, Ipv4Addr::UNSPECIFIED);
        nak.options.set(code::SERVER_ID, &server.octets());
        story.hear(&nak);
        assert_eq!(story.client.state(), State::Selecting);
        story.hear(&story.reply(MessageType::Offer, OTHER_ADDRESS)); // somebody else's, and is not waited for
        story.offer();
        story.until(at + 5.0);
        story.ack();
        assert_eq!(story.client.state(), State::Bound);
        let times = format!("t1 {}, t2 {}, end {}", at + 500.0, at + 875.0, at + 1000.0);
        story.check(&[
            &format!("{at} Discover 10.0.0.5"),
            &format!("{at} Request 10.0.0.5 of 10.0.0.1"),
            &format!("{} renewed 10.0.0.5/24 of 10.0.0.1, {times}", at + 5.0),
        ]);
    }
}

#[test]
fn a_refusal_by_nobody_or_while_renewing_by_another_server_than_ours_is_nothing() {
    for (at, server) in [(500.0, Some(OTHER_SERVER)), (500.0, None), (875.0, None)] {
        let mut story = Story::bound();
        story.until(at);
        story.lines.clear();
        let (mut nak, state) = (story.reply(MessageType::Nak, Ipv4Addr::UNSPECIFIED), story.client.state());
        nak.options.remove(code::SERVER_ID); // which each one must have
        server.into_iter().for_each(|server| nak.options.set(code::SERVER_ID, &server.octets()));
        story.hear(&nak);
        assert_eq!(story.client.state(), state);
        story.check(&[]);
    }
}

/// It may be anybody's: what it refuses and what it offers takes nothing away before the lease is over.
#[test]
fn another_server_cannot_take_an_address_away() {
    let mut story = Story::bound();
    story.until(875.0);
    story.lines.clear();
    for kind in [MessageType::Nak, MessageType::Offer] {
        let mut message = story.reply(kind, OTHER_ADDRESS);
        message.options.set(code::SERVER_ID, &OTHER_SERVER.octets());
        story.hear(&message);
    }
    story.until(1000.0);
    story.check(&[
        "875 Discover 10.0.0.5",
        "884 Discover 10.0.0.5",
        "902 Discover 10.0.0.5",
        "938 Discover 10.0.0.5",
        "993.8 Discover 10.0.0.5",
        "1000 lost: expired",
        "1000 Discover 10.0.0.5",
    ]);
}

#[test]
fn when_its_server_offers_only_another_address_ours_is_lost_and_asked_for_slowly() {
    let mut story = Story::bound();
    story.until(500.0);
    story.nak();
    story.hear(&story.reply(MessageType::Offer, OTHER_ADDRESS));
    story.until(600.0);
    story.hear(&story.reply(MessageType::Offer, OTHER_ADDRESS));
    story.until(625.0);
    story.check(&[
        "500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "500 Discover 10.0.0.5",
        "501 lost: refused, 10.0.0.6 offered",
        "501 Discover 10.0.0.5",
        "556.8 Discover 10.0.0.5",
        "612.6 Discover 10.0.0.5",
    ]);
    story.offer();
    story.ack();
    story.check(&[
        "625 Request 10.0.0.5 of 10.0.0.1",
        "625 regained 10.0.0.5/24 of 10.0.0.1, t1 1125, t2 1500, end 1625",
    ]);
}

#[test]
fn a_refused_address_that_nobody_offers_is_lost_by_its_end() {
    let mut story = Story::bound();
    story.until(500.0);
    story.nak();
    story.until(509.0);
    assert!(story.client.needs_sockets(story.now));
    story.until(560.0);
    assert!(!story.client.needs_sockets(story.now), "it goes on for long");
    story.until(720.0);
    story.check(&[
        "500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]",
        "500 Discover 10.0.0.5",
        "509 Discover 10.0.0.5",
        "527 Discover 10.0.0.5",
        "563 Discover 10.0.0.5",
        "618.8 Discover 10.0.0.5",
        "674.6 Discover 10.0.0.5",
    ]);
    let mut story = Story::bound();
    story.until(960.0);
    story.nak();
    story.lines.clear();
    story.until(1001.0);
    story.check(&["969 Discover 10.0.0.5", "987 Discover 10.0.0.5", "1000 lost: expired", "1000 Discover 10.0.0.5"]);
}

#[test]
fn refused_while_it_is_asked_for_again_it_is_asked_for_more_slowly() {
    let mut story = Story::bound();
    story.until(500.0);
    story.lines.clear();
    story.nak();
    story.offer();
    story.nak();
    assert_eq!(story.client.state(), State::Waiting);
    story.until(501.0);
    story.offer();
    story.nak();
    story.until(503.0);
    story.check(&[
        "500 Discover 10.0.0.5",
        "500 Request 10.0.0.5 of 10.0.0.1",
        "501 Discover 10.0.0.5",
        "501 Request 10.0.0.5 of 10.0.0.1",
        "503 Discover 10.0.0.5",
    ]);
}

/// What was offered before the last refusal is no reason any more.
#[test]
fn the_reason_of_a_loss_is_the_last_one() {
    let mut story = Story::bound();
    story.until(500.0);
    story.nak();
    story.hear(&story.reply(MessageType::Offer, OTHER_ADDRESS));
    story.offer();
    story.nak();
    story.until(1000.0);
    assert!(story.lines.contains(&"1000 lost: expired".to_owned()), "{:?}", story.lines);
}

#[test]
fn a_lost_address_that_is_refused_or_not_granted_is_asked_for_slowly() {
    let mut story = Story::bound();
    story.until(1000.0);
    story.lines.clear();
    story.offer();
    story.nak();
    story.until(1062.0);
    story.offer();
    story.until(1188.0);
    story.check(&[
        "1000 Request 10.0.0.5 of 10.0.0.1",
        "1062 Discover 10.0.0.5",
        "1062 Request 10.0.0.5 of 10.0.0.1",
        "1071 Request 10.0.0.5 of 10.0.0.1",
        "1089 Request 10.0.0.5 of 10.0.0.1",
        "1187 Discover 10.0.0.5",
    ]);
}

#[test]
fn an_address_is_probed_and_bound_when_nobody_answers() {
    let mut story = Story::new(probing());
    story.offer();
    story.ack();
    assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Requesting, true));
    story.ack(); // a second one changes nothing
    story.until(0.05);
    story.check(&[
        "0 Discover",
        "0 probe 10.0.0.5",
        "0 intend 10.0.0.5 of 10.0.0.1",
        "0 Request 10.0.0.5 of 10.0.0.1",
        "0.05 bound 10.0.0.5/24 of 10.0.0.1, t1 500, t2 875, end 1000",
    ]);
    let mut story = Story::new(probing());
    story.offer();
    story.until(0.06);
    story.ack(); // who acknowledges later is not waited for
    assert_eq!(story.client.state(), State::Bound);
}

#[test]
fn an_address_that_somebody_has_is_declined() {
    for is_granted in [false, true] {
        let mut story = Story::wanting(probing(), Some(ADDRESS));
        story.offer();
        if is_granted {
            story.ack();
        }
        story.lines.clear();
        story.until(0.04);
        story.conflict(mac(1)); // our own
        story.check(&[]);
        story.conflict(mac(7));
        assert_eq!((story.client.state(), story.client.needs_sockets(story.now)), (State::Waiting, false));
        story.ack();
        story.until(11.0);
        story.hear(&story.reply(MessageType::Offer, OTHER_ADDRESS));
        story.conflict(mac(7)); // an old answer
        story.check(&[
            "0.04 Decline 10.0.0.5 of 10.0.0.1",
            "10.04 Discover",
            "11 probe 10.0.0.6",
            "11 intend 10.0.0.6 of 10.0.0.1",
            "11 Request 10.0.0.6 of 10.0.0.1",
        ]);
    }
    let mut story = Story::new(probing());
    story.offer();
    story.conflict(mac(7));
    story.until(300.0);
    let last = story.lines.pop().unwrap();
    assert_eq!(last, "208 gave up: no more tries within 208s: 10.0.0.5 is in use by 02:00:00:00:00:07");
}

#[test]
fn what_the_link_has_is_not_probed_and_what_it_lost_is() {
    let mut story = Story::new(probing());
    story.offer();
    story.ack();
    story.until(500.0);
    story.nak();
    story.lines.clear();
    story.offer();
    story.conflict(mac(7)); // nobody has asked
    story.check(&["500 Request 10.0.0.5 of 10.0.0.1"]);
    story.until(1000.0);
    story.lines.clear();
    story.offer();
    story.conflict(mac(7));
    story.until(1062.0);
    story.check(&[
        "1000 probe 10.0.0.5",
        "1000 Request 10.0.0.5 of 10.0.0.1",
        "1000 Decline 10.0.0.5 of 10.0.0.1",
        "1062 Discover 10.0.0.5",
    ]);
}

#[test]
fn an_endless_lease_is_never_looked_at_again() {
    let mut story = Story::new(setup());
    story.offer();
    let mut ack = story.reply(MessageType::Ack, ADDRESS);
    ack.options.set(code::LEASE_TIME, &u32::MAX.to_be_bytes());
    story.hear(&ack);
    assert_eq!(story.lines.pop().unwrap(), "0 bound 10.0.0.5/24 of 10.0.0.1, t1 never, t2 never, end never");
    assert_eq!((story.client.deadline(), story.client.needs_sockets(NEVER - Duration::from_nanos(1))), (NEVER, false));
    let lease = story.client.lease().unwrap().clone();
    assert_eq!(Client::resume(setup(), lease, false, story.now).deadline(), NEVER);
}

#[test]
fn short_leases_are_renewed_in_time_and_not_in_a_loop() {
    for seconds in [1_u32, 2, 3, 10, 60, 120] {
        let mut story = Story::new(setup());
        story.offer();
        let mut ack = story.reply(MessageType::Ack, ADDRESS);
        ack.options.set(code::LEASE_TIME, &seconds.to_be_bytes());
        story.hear(&ack);
        story.lines.clear();
        story.until(f64::from(seconds));
        let tries = story.lines.iter().filter(|line| line.contains("Request")).count();
        assert!((2..=10).contains(&tries), "a lease of {seconds} s: {:?}", story.lines);
        assert!(story.lines.iter().any(|line| line.contains("lost: expired")), "{:?}", story.lines);
    }
}

#[test]
fn a_daemon_that_starts_again_does_what_is_due() {
    let lease = Story::bound().client.lease().unwrap().clone();
    let cases: [(bool, u64, State, &[&str]); 7] = [
        (false, 0, State::Bound, &[]),
        (false, 499, State::Bound, &[]),
        (false, 500, State::Renewing, &["500 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]"]),
        (false, 874, State::Renewing, &["874 Request ci 10.0.0.5 [10.0.0.5 > 10.0.0.1]"]),
        (false, 875, State::Rebinding, &["875 Request ci 10.0.0.5"]),
        (false, 5000, State::Expired, &["5000 lost: expired", "5000 Discover 10.0.0.5"]),
        (true, 600, State::Expired, &["600 Discover 10.0.0.5"]),
    ];
    for (lost, now, state, lines) in cases {
        let mut story = Story::resumed(lease.clone(), lost, now);
        story.until(now as f64);
        assert_eq!(story.client.state(), state, "{lost} {now}");
        story.check(lines);
    }
    let mut story = Story::resumed(lease, true, 600);
    story.until(600.0);
    story.offer();
    story.ack();
    assert_eq!(story.lines.pop().unwrap(), "600 regained 10.0.0.5/24 of 10.0.0.1, t1 1100, t2 1475, end 1600");
}

#[test]
fn called_too_early_it_does_nothing() {
    let mut story = Story::bound();
    story.now = Duration::from_secs(400);
    let actions = story.client.on_time(story.now, &mut story.random);
    assert_eq!((actions, story.client.state()), (vec![], State::Bound));
}

/// The machine slept; nothing may be done twice or for what is over.
#[test]
fn called_late_it_does_what_is_due_then() {
    let mut story = Story::bound();
    story.now = Duration::from_secs(900);
    let actions = story.client.on_time(story.now, &mut story.random);
    story.tell(actions);
    story.now = Duration::from_secs(99_999);
    let actions = story.client.on_time(story.now, &mut story.random);
    story.tell(actions);
    story.check(&["900 Request ci 10.0.0.5", "99999 lost: expired", "99999 Discover 10.0.0.5"]);
    let mut story = Story::new(setup());
    story.lines.clear();
    story.now = Duration::from_secs(99_999);
    let actions = story.client.on_time(story.now, &mut story.random);
    story.tell(actions);
    story.check(&["99999 gave up: no more tries within 208s: no answer to DHCPDISCOVER"]);
}

#[test]
fn what_is_released_depends_on_what_was_asked_for() {
    let release = |story: &mut Story| {
        let outgoing = story.client.release(&mut story.random);
        assert_eq!((story.client.state(), story.client.deadline()), (State::Ended, NEVER));
        outgoing.map(|outgoing| line(&Action::Send(outgoing)))
    };
    let expected = Some("Release ci 10.0.0.5 of 10.0.0.1 [10.0.0.5 > 10.0.0.1]".to_owned());
    let mut story = Story::new(setup());
    assert_eq!(release(&mut story), None, "nothing was asked for");
    let mut story = Story::new(setup());
    story.offer();
    assert_eq!(release(&mut story), expected, "it may be granted by now");
    for seconds in [1.0, 500.0, 875.0] {
        let mut story = Story::bound();
        story.until(seconds);
        assert_eq!(release(&mut story), expected, "{seconds}");
    }
    let mut story = Story::bound();
    story.until(500.0);
    story.nak();
    assert_eq!(release(&mut story), None, "it was refused");
    let mut story = Story::bound();
    story.until(1000.0);
    assert_eq!(release(&mut story), None, "it was lost");
    let intent = Intent { address: ADDRESS, server: SERVER, xid: 7 };
    let outgoing = release_of(&intent, &setup(), &mut Random::counting());
    assert_eq!(Some(line(&Action::Send(outgoing))), expected);
}

#[test]
fn waits_are_a_tenth_more_or_less_and_never_nothing() {
    let mut random = Random::new();
    let mut seen = vec![];
    for _ in 0..1000 {
        let wait = jittered(Duration::from_secs(10), &mut random).as_secs_f64();
        assert!((9.0..11.0).contains(&wait), "{wait}");
        seen.push(wait);
    }
    let (least, most) = (seen.iter().copied().fold(f64::MAX, f64::min), seen.iter().copied().fold(0.0, f64::max));
    assert!(least < 9.2 && most > 10.8, "{least} {most}");
    assert!(jittered(Duration::ZERO, &mut random) >= SHORTEST_WAIT * 9 / 10);
}

/// A timeout of nothing, a longest wait below it: neither is a loop.
#[test]
fn a_strange_patience_ends_as_well() {
    for (timeout, resend_max) in [(0, 0), (10, 0), (0, 62)] {
        let patience = Patience {
            timeout: Duration::from_secs(timeout),
            resend_max: Duration::from_secs(resend_max),
            resend_timeout: Duration::from_secs(20),
        };
        let mut story = Story::new(Setup { patience, ..setup() });
        story.until(30.0);
        assert!(story.lines.pop().unwrap().starts_with("20 gave up: "));
        assert!(story.lines.len() <= 230, "{}", story.lines.len());
    }
}

#[test]
fn leases_that_began_together_are_not_renewed_together() {
    let mut random = Random::new();
    let mut t1 = || {
        let mut story = Story::new(setup());
        story.offer();
        let ack = story.reply(MessageType::Ack, ADDRESS);
        story.client.on_message(&ack, story.now, &mut random);
        story.client.lease().unwrap().t1.as_secs_f64()
    };
    let all: Vec<f64> = std::iter::repeat_with(&mut t1).take(100).collect();
    assert!(all.iter().all(|t1| (484.0..=500.0).contains(t1)), "{all:?}");
    assert!(all.iter().any(|t1| *t1 < 490.0) && all.iter().any(|t1| *t1 > 494.0), "{all:?}");
}
