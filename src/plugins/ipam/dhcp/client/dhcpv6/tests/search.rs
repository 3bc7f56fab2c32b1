//! Acquiring a lease.

use super::*;

#[test]
fn a_lease_combines_the_answers_of_servers_and_routers() {
    let mut run = Run::acquire(Mode::Dhcp);
    assert_eq!(run.client.state(), State::Selecting);
    let [Action::Send(Outgoing::V6(solicit)), Action::Send(Outgoing::Routers)] = &run.actions[..]
    else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((solicit.kind, asked(solicit)), (Kind::Solicit, None));
    assert_eq!(solicit.options.get(options::ELAPSED_TIME), Some(&[0, 0][..]));
    assert_eq!(solicit.options.get(options::OPTION_REQUEST), Some(&[0, 23, 0, 24, 0, 82][..]));
    assert_eq!(solicit.options.get(options::SERVER_ID), None);

    assert_eq!(
        run.advertise(0.3, SERVER, &Said::grants(GRANTED)),
        [],
        "other servers have their second"
    );
    assert_eq!(run.deadline(), 1.0);
    run.time(1.0);
    let [
        Action::Intend(client::Intent::V6(intent)),
        Action::Probe(probed),
        Action::Send(Outgoing::V6(request)),
    ] = &run.actions[..]
    else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((intent.address, &intent.server[..]), (ip(ADDRESS), SERVER));
    assert_eq!(
        (*probed, request.kind, asked(request)),
        (ip(ADDRESS).into(), Kind::Request, Some(ip(ADDRESS)))
    );
    assert_eq!(request.options.get(options::SERVER_ID), Some(SERVER));
    assert_eq!(run.client.state(), State::Requesting);

    let dns = [&ip("2001:db8::53").octets()[..]].concat();
    let more: &[(u16, &[u8])] =
        &[(options::DNS_SERVERS, &dns), (options::DOMAIN_LIST, b"\x03lan\0")];
    assert_eq!(
        run.reply(1.01, SERVER, &Said { more, ..Said::grants(GRANTED) }),
        [],
        "the owner may answer the probe"
    );
    assert!(run.client.needs_sockets(seconds(1.02)));
    assert_eq!(run.router(1.02, router(1)), []);
    assert_eq!(run.deadline(), 1.05);
    let [Action::Bound(AnyLease::V6(lease))] = run.time(1.05) else { panic!("{:?}", run.actions) };
    let result = lease.result(0);
    assert_eq!(result.ips[0].address.to_string(), "2001:db8::10/64");
    assert_eq!(result.routes[0].gw, Some("fe80::1".parse().unwrap()));
    assert_eq!(
        (result.dns.nameservers, result.dns.search),
        (vec!["2001:db8::53".into()], vec!["lan".into()])
    );
    assert_eq!(run.client.state(), State::Bound);
    assert!(!run.client.needs_sockets(seconds(2.0)));
    assert_eq!(run.deadline(), 31.01);
}

#[test]
fn server_of_highest_preference_is_taken_and_255_at_once() {
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
    let good = Said::taken_at_once(GRANTED);
    let good = good.by(SERVER, Kind::Advertise, run.transaction());
    let without = |code: u16| {
        let mut options = Options::default();
        for other in [options::CLIENT_ID, options::SERVER_ID, options::IA_NA]
            .into_iter()
            .filter(|other| *other != code)
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
    // with the shortest pauses: the first is IRT, each further one 0.9 of twice the last, up to 0.9
    // of MRT
    let mut run = Run::acquire(Mode::Dhcp);
    let mut solicits = vec![];
    while run.deadline() < 60.0 {
        let at = run.deadline();
        run.time(at);
        solicits.extend(run.sent().iter().map(|_| (at * 100.0).round() / 100.0));
    }
    assert_eq!(solicits, [1.0, 2.8, 6.04, 11.87, 22.37, 41.27]);

    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
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
    let mut timer = Timer::of_kind(Kind::Solicit, Duration::from_secs(100), START);
    let mut last = START;
    for _ in 0..20 {
        timer.sends(last, &mut random);
        let wait = timer.due - last;
        assert!(wait <= Duration::from_secs(110), "{wait:?}");
        assert!(
            timer.sent > 1
                || (Duration::from_secs(1)..=Duration::from_millis(1100)).contains(&wait),
            "{wait:?}"
        );
        last = timer.due;
    }
    assert!(timer.due - last <= Duration::from_secs(110));
}

#[test]
fn servers_set_the_longest_pause_between_solicits() {
    for (value, longest) in [(60, 60), (86_400, 86_400), (59, 3600), (86_401, 3600)] {
        let mut run = Run::acquire(Mode::Dhcp);
        let value = u32::to_be_bytes(value);
        run.advertise(
            0.1,
            SERVER,
            &Said { more: &[(options::SOL_MAX_RT, &value)], ..Said::NOTHING },
        );
        assert_eq!(run.client.sol_max_rt, Duration::from_secs(longest));
    }
}

#[test]
fn without_an_answer_it_gives_up_in_time_and_says_why() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.time(207.9);
    assert_eq!(
        run.time(208.0),
        [Action::GaveUp("no more tries within 208s: no answer to Solicit".into())]
    );
    assert_eq!((run.client.state(), run.client.deadline()), (State::Ended, NEVER));
    assert!(!run.client.needs_sockets(seconds(300.0)));

    let mut run = Run::acquire(Mode::Dhcp);
    assert_eq!(run.advertise(0.1, SERVER, &Said::refuses(Status::NO_ADDRESSES)), []);
    run.time(208.0);
    let why = "no more tries within 208s: server 0003000101 has no address left (NoAddrsAvail)";
    assert_eq!(run.actions, [Action::GaveUp(why.into())]);

    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said::grants(&[("ff02::1", 60, 60)]));
    run.advertise(0.2, SECOND, &Said::grants(&[(ADDRESS, 0, 0)]));
    run.time(208.0);
    let why = "no more tries within 208s: server 0003000101 offers ff02::1, which is not usable; \
               server 0003000102 offers 2001:db8::10, which is not usable";
    assert_eq!(run.actions, [Action::GaveUp(why.into())]);

    let mut run = Run::acquire_until(Mode::Dhcp, seconds(30.0));
    assert_eq!(
        run.time(30.0),
        [Action::GaveUp("no more tries within 208s: no answer to Solicit".into())]
    );

    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(200.0, SERVER, &Said::taken_at_once(GRANTED));
    run.time(208.0);
    assert_eq!(run.sent(), [Kind::Release], "the server may have granted it");
    assert_eq!(asked(run.messages()[0]), Some(ip(ADDRESS)));
}

#[test]
fn a_refused_request_starts_a_new_search_after_a_delay() {
    for status in [Status::NO_ADDRESSES, Status::NOT_ON_LINK, Status::NO_BINDING] {
        let mut run = Run::acquire(Mode::Dhcp);
        run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
        assert_eq!(run.reply(0.2, SERVER, &Said::refuses(status)), []);
        assert_eq!((run.client.state(), run.deadline()), (State::Selecting, 1.2));
        run.time(1.2);
        assert_eq!(run.sent(), [Kind::Solicit]);
    }
    // A status for the whole message, without an association.
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    let mut options = Options::default();
    options.push(options::CLIENT_ID, duid("id/net/eth0"));
    options.push(options::SERVER_ID, SERVER.to_vec());
    options.push(options::STATUS_CODE, vec![0, 4]);
    run.message(0.2, &Message { kind: Kind::Reply, transaction: run.transaction(), options });
    assert_eq!(run.client.state(), State::Selecting);
    // UnspecFail and UseMulticast are not a refusal: the client retries when that is due.
    for status in [1_u16, 5] {
        let mut run = Run::acquire(Mode::Dhcp);
        run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
        let status = status.to_be_bytes();
        assert_eq!(
            run.reply(
                0.2,
                SERVER,
                &Said { more: &[(options::STATUS_CODE, &status)], ..Said::NOTHING }
            ),
            []
        );
        assert_eq!((run.client.state(), run.deadline()), (State::Requesting, 1.1));
    }
}

#[test]
fn a_network_without_routers_gives_an_address_after_a_while() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    assert_eq!(run.reply(0.2, SERVER, &Said::grants(GRANTED)), []);
    assert_eq!(run.deadline(), 4.0);
    assert_eq!(run.time(4.0), [Action::Send(Outgoing::Routers)]);
    let [Action::Bound(AnyLease::V6(lease))] = run.time(5.0) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.net.to_string().as_str(), lease.router), ("2001:db8::10/128", None));
    assert!(!run.client.needs_sockets(seconds(9.0)));
}

#[test]
fn router_of_lifetime_zero_gives_prefixes_without_being_awaited() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    run.router(0.2, Advertisement { lifetime: 0, ..router(1) });
    run.reply(0.3, SERVER, &Said::grants(GRANTED));
    run.time(4.0);
    let [Action::Bound(AnyLease::V6(lease))] = run.time(5.0) else { panic!("{:?}", run.actions) };
    assert_eq!((lease.net.to_string().as_str(), lease.router), ("2001:db8::10/64", None));
}

#[test]
fn an_address_in_use_is_declined_and_another_asked_for() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    run.conflict(0.11, OTHER);
    run.conflict(0.12, ADDRESS);
    assert_eq!(run.actions, [], "nothing was granted yet");
    run.reply(0.13, SERVER, &Said::grants(GRANTED));
    assert_eq!(run.sent(), [Kind::Decline]);
    let decline = run.messages()[0].clone();
    assert_eq!(
        (asked(&decline), decline.options.get(options::SERVER_ID)),
        (Some(ip(ADDRESS)), Some(SERVER))
    );
    assert_eq!(run.client.release(&mut Random::counting()), None, "it has nothing to give back");

    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
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
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    run.reply(0.11, SERVER, &Said::grants(GRANTED));
    run.conflict(0.12, ADDRESS);
    run.reply(0.2, SERVER, &Said::NOTHING);
    run.time(1.2);
    assert_eq!(run.sent(), [Kind::Solicit]);
    run.advertise(1.3, SERVER, &Said::taken_at_once(&[(OTHER, 60, 120)]));
    assert_eq!(run.actions[1], Action::Probe(ip(OTHER).into()));
    run.reply(1.31, SERVER, &Said::grants(&[(OTHER, 60, 120)]));
    assert!(matches!(run.time(1.35), [Action::Bound(_)]));
}

#[test]
fn an_address_not_advertised_is_probed_once_granted() {
    let mut run = Run::acquire(Mode::Dhcp);
    run.router(0.0, router(1));
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    assert_eq!(
        run.reply(1.0, SERVER, &Said::grants(&[(OTHER, 60, 120)])),
        [Action::Probe(ip(OTHER).into())]
    );
    let [Action::Bound(AnyLease::V6(lease))] = run.time(1.05) else { panic!("{:?}", run.actions) };
    assert_eq!(lease.net.addr(), ip(OTHER));
}

#[test]
fn a_duid_is_of_its_key_and_a_uuid() {
    let one = duid("id/net/eth0");
    assert_eq!(one, duid("id/net/eth0"));
    assert_ne!(one, duid("id/net/eth1"));
    assert_eq!((one.len(), &one[..2], one[8] >> 4, one[10] >> 6), (18, &[0, 4][..], 8, 2));
}
