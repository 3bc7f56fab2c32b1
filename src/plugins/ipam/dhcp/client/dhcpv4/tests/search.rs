//! Acquiring a lease.

use super::*;
use crate::plugins::ipam::dhcp::client::jittered;

#[test]
fn an_address_is_discovered_offered_requested_and_acknowledged() {
    let mut story = Story::new(setup());
    story.assert_state(State::Selecting, true);
    story.offer();
    story.assert_state(State::Requesting, true);
    story.ack();
    story.assert_state(State::Bound, false);
    story.check(&[
        "0 Discover",
        "0 intend 10.0.0.5 of 10.0.0.1",
        "0 Request 10.0.0.5 of 10.0.0.1",
        "0 bound 10.0.0.5/24 of 10.0.0.1, t1 500, t2 875, end 1000",
    ]);
}

#[test]
fn messages_have_what_the_rfc_and_the_reference_have() {
    let codes =
        |message: &Message| message.options.iter().map(|(code, _)| code).collect::<Vec<_>>();
    let mut story = Story::wanting(setup(), Some(ADDRESS), NEVER);
    assert_eq!(codes(&story.last), [50, 53, 55, 57, 61]);
    assert_eq!(story.last.options.get(55), Some([3, 1].as_slice()));
    assert_eq!(story.last.options.short(57), Some(1500));
    assert_eq!(story.last.options.get(61), Some(b"\0container/net/eth0".as_slice()));
    let xid = story.last.xid;
    story.until(9.0);
    assert_eq!((story.last.secs, story.last.xid), (9, xid));
    story.offer();
    assert_eq!(
        (codes(&story.last), story.last.secs, story.last.xid),
        (vec![50, 53, 54, 55, 57, 61], 9, xid)
    );
    story.ack();
    story.until(600.0);
    assert_eq!(
        (codes(&story.last), story.last.ciaddr, story.last.secs),
        (vec![53, 55, 57, 61], ADDRESS, 0)
    );
    story.until(700.0);
    assert_eq!(
        (story.last.secs, story.last.ciaddr),
        (187, ADDRESS),
        "since the first try to renew"
    );
    assert_ne!(story.last.xid, xid);
    let release = story.release();
    assert_eq!((codes(&release), release.ciaddr), (vec![53, 54, 61], ADDRESS));
    assert_eq!(story.client.state(), State::Ended);
    assert_eq!(story.client.release(&mut story.random), None);
    assert!(!story.client.needs_sockets(NEVER - Duration::from_secs(1)));
}

#[test]
fn provided_options_are_sent_and_keep_the_message_type() {
    let provide = [
        (12, "host"),
        (50, "wish"),
        (52, "x"),
        (53, "x"),
        (54, "serv"),
        (57, "??"),
        (60, "class"),
        (61, "id"),
    ];
    let provide = provide.map(|(code, value)| Provided(code, value.into())).to_vec();
    let mut story = Story::new(Setup { provide, request: vec![], broadcast: true, ..setup() });
    let texts = |message: &Message| {
        let options = message.options.iter().filter(|(code, _)| *code != code::MESSAGE_TYPE);
        options
            .map(|(code, value)| format!("{code} {}", value.escape_ascii()))
            .collect::<Vec<_>>()
            .join(", ")
    };
    assert_eq!(texts(&story.last), "12 host, 50 wish, 57 ??, 60 class, 61 id");
    assert!(story.last.broadcast);
    story.offer();
    assert_eq!(
        texts(&story.last),
        r"12 host, 50 \n\x00\x00\x05, 54 \n\x00\x00\x01, 57 ??, 60 class, 61 id"
    );
    assert!(story.last.broadcast);
    story.ack();
    story.until(500.0);
    assert_eq!(texts(&story.last), "12 host, 57 ??, 60 class, 61 id");
    assert!(!story.last.broadcast, "it has an address now");
    let release = story.release();
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
fn a_search_that_began_late_ends_in_time() {
    let mut story = Story::wanting(setup(), None, Duration::from_secs(30));
    story.until(20.0);
    story.lines.clear();
    story.offer();
    story.until(1000.0);
    story.check(&[
        "20 intend 10.0.0.5 of 10.0.0.1",
        "20 Request 10.0.0.5 of 10.0.0.1",
        "29 Request 10.0.0.5 of 10.0.0.1",
        "30 Release ci 10.0.0.5 of 10.0.0.1 [10.0.0.5 > 10.0.0.1]",
        "30 gave up: no more tries within 208s: no answer to DHCPDISCOVER",
    ]);
}

#[test]
fn a_lost_message_of_any_kind_is_made_good() {
    let mut story = Story::new(setup());
    story.until(9.0);
    story.offer();
    story.until(20.0);
    story.ack(); // answers the second request; the lease's time runs from the first
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
    assert_eq!(
        last,
        r"208 gave up: no more tries within 208s: 10.0.0.1 has refused DHCPREQUEST: no\nway"
    );
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

/// The addresses are the network's and the broadcast address.
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
    story.take(Heard::Malformed(SERVER.into()));
    story.until(208.0);
    assert!(
        story.lines.pop().unwrap().ends_with("208s: what 10.0.0.1 sends is not a DHCP message")
    );
    for address in [[0, 0, 0, 9], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
        let mut story = Story::new(setup());
        story.hear(&story.reply(MessageType::Offer, address.into()));
        story.until(208.0);
        let told =
            format!("208s: 10.0.0.1 offers {}, which no host can have", Ipv4Addr::from(address));
        assert!(story.lines.pop().unwrap().ends_with(&told));
    }
    let mut story = Story::new(setup());
    story.hear(&story.reply(MessageType::Offer, [127, 0, 0, 1].into()));
    story.take(Heard::Malformed(OTHER_SERVER.into()));
    let mut unnamed = story.reply(MessageType::Offer, ADDRESS);
    unnamed.options.remove(code::SERVER_ID);
    story.hear(&unnamed);
    story.until(208.0);
    let told = "208s: 10.0.0.1 offers 127.0.0.1, which no host can have; what 10.0.0.2 sends is not a DHCP message; \
                an offer of 10.0.0.5 does not say by which server";
    assert!(story.lines.pop().unwrap().ends_with(told));
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
    let renewals: [(&str, Change); 2] = [
        ("another address", |m| m.yiaddr = OTHER_ADDRESS),
        ("an offer", |m| m.options.set(code::MESSAGE_TYPE, &[2])),
    ];
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
fn an_address_is_probed_and_bound_when_nobody_answers() {
    let mut story = Story::new(probing());
    story.offer();
    story.ack();
    story.assert_state(State::Requesting, true);
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
    story.ack(); // a later acknowledgement is not waited for
    assert_eq!(story.client.state(), State::Bound);
}

#[test]
fn an_address_that_somebody_has_is_declined() {
    for is_granted in [false, true] {
        let mut story = Story::wanting(probing(), Some(ADDRESS), NEVER);
        story.offer();
        if is_granted {
            story.ack();
        }
        story.lines.clear();
        story.until(0.04);
        story.conflict(mac(1)); // our own address
        story.check(&[]);
        story.conflict(mac(7));
        story.assert_state(State::Waiting, false);
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
    assert_eq!(
        last,
        "208 gave up: no more tries within 208s: 10.0.0.5, which 10.0.0.1 offers, is in use by 02:00:00:00:00:07"
    );
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
    story.conflict(mac(7)); // no probe was sent
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
fn waits_are_a_tenth_more_or_less() {
    let mut random = Random::new();
    let mut seen = vec![];
    for _ in 0..1000 {
        let wait = jittered(Duration::from_secs(10), &mut random).as_secs_f64();
        assert!((9.0..11.0).contains(&wait), "{wait}");
        seen.push(wait);
    }
    let least = seen.iter().copied().fold(f64::MAX, f64::min);
    let most = seen.iter().copied().fold(0.0, f64::max);
    assert!(least < 9.2 && most > 10.8, "{least} {most}");
}

/// Neither a timeout of 0 nor a longest wait below the timeout may cause a loop.
#[test]
fn a_strange_patience_ends_as_well() {
    for (timeout, resend_max) in [(0, 0), (10, 0), (0, 62)] {
        let [timeout, resend_max, resend_timeout] =
            [timeout, resend_max, 20].map(Duration::from_secs);
        let mut story = Story::new(Setup { timeout, resend_max, resend_timeout, ..setup() });
        story.until(30.0);
        assert!(story.lines.pop().unwrap().starts_with("20 gave up: "));
        assert!(story.lines.len() <= 230, "{}", story.lines.len());
    }
}
