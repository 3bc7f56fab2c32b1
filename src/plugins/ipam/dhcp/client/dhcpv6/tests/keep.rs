//! Keeping a lease, and releasing it.

use super::*;

#[test]
fn at_t1_the_server_is_asked_for_more_time_at_t2_any() {
    let mut run = Run::bound();
    assert_eq!(run.deadline(), 31.0);
    assert!(run.client.needs_sockets(seconds(31.0)));
    run.time(31.0);
    assert_eq!((run.sent(), run.client.state()), (vec![Kind::Renew], State::Renewing));
    assert_eq!(run.actions[1], Action::Send(Outgoing::Routers));
    let renew = run.messages()[0].clone();
    assert_eq!(
        (asked(&renew), renew.options.get(options::SERVER_ID)),
        (Some(ip(ADDRESS)), Some(SERVER))
    );
    run.router(31.1, router(1));
    let [Action::Renewed(AnyLease::V6(lease))] = run.reply(31.2, SERVER, &Said::grants(GRANTED))
    else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(lease.times.expires, seconds(151.2));
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
    let [Action::Renewed(AnyLease::V6(lease))] = run.reply(79.3, SECOND, &Said::grants(GRANTED))
    else {
        panic!("{:?}", run.actions)
    };
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
fn a_renewal_does_not_wait_for_routers_and_reports_them_later() {
    let mut run = Run::bound();
    run.time(31.0);
    let [Action::Renewed(AnyLease::V6(lease))] = run.reply(31.1, SERVER, &Said::grants(GRANTED))
    else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((lease.router, lease.net.prefix_len()), (Some(ip("fe80::1")), 64));
    assert!(run.client.needs_sockets(seconds(32.0)));
    assert_eq!(run.router(32.0, Advertisement { lifetime: 0, ..router(1) }), []);
    let [Action::Renewed(AnyLease::V6(lease))] = run.router(33.0, router(2)) else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((lease.router, lease.times.expires), (Some(ip("fe80::2")), seconds(151.1)));
    assert_eq!(run.router(33.0, router(3)), [], "nobody asks any more");
}

#[test]
fn a_server_that_forgot_the_lease_gets_a_new_request() {
    let mut run = Run::bound();
    run.time(31.0);
    run.reply(31.1, SECOND, &Said::refuses(Status::NO_BINDING));
    let [Action::Send(Outgoing::V6(request))] = &run.actions[..] else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((request.kind, asked(request)), (Kind::Request, Some(ip(ADDRESS))));
    assert_eq!(request.options.get(options::SERVER_ID), Some(SECOND));
    assert_eq!(run.client.state(), State::Renewing, "the container has its address");
    assert!(matches!(run.reply(31.2, SECOND, &Said::grants(GRANTED)), [Action::Renewed(_)]));

    // It grants only another address: that one is released, and the container has none.
    let mut run = Run::bound();
    run.time(31.0);
    run.reply(31.1, SERVER, &Said::refuses(Status::NO_BINDING));
    run.reply(31.2, SERVER, &Said::grants(&[(OTHER, 60, 120)]));
    let [Action::Send(Outgoing::V6(release)), Action::Lost(Reason::Refused)] = &run.actions[..]
    else {
        panic!("{:?}", run.actions)
    };
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
fn address_not_renewed_stays_and_lifetime_zero_removes_it() {
    let mut run = Run::bound();
    run.time(31.0);
    for said in
        [Said::NOTHING, Said::grants(&[(OTHER, 60, 120)]), Said::refuses(Status::NO_ADDRESSES)]
    {
        assert_eq!(run.reply(31.1, SERVER, &said), []);
        assert_eq!(run.client.state(), State::Renewing);
    }
    assert_eq!(
        run.reply(31.2, SERVER, &Said::grants(&[(ADDRESS, 0, 0)])),
        [Action::Lost(Reason::Refused)]
    );
    assert_eq!(run.client.state(), State::Expired);
}

#[test]
fn another_server_cannot_take_an_address_away() {
    let mut run = Run::bound();
    run.time(49.0);
    assert_eq!(run.reply(49.1, SECOND, &Said::grants(&[(ADDRESS, 0, 0)])), []);
    assert_eq!(run.client.state(), State::Rebinding);
    run.reply(49.2, SECOND, &Said::refuses(Status::NO_BINDING));
    assert_eq!(run.reply(49.3, SECOND, &Said::refuses(Status::NO_ADDRESSES)), []);
    run.time(50.4);
    assert_eq!((run.sent(), run.client.state()), (vec![Kind::Rebind], State::Rebinding));
}

#[test]
fn an_expired_address_leaves_and_returns_when_offered_again() {
    let mut run = Run::bound();
    for at in [31.0, 49.0, 120.9] {
        run.time(at);
    }
    let [Action::Lost(Reason::Expired), Action::Send(Outgoing::V6(solicit))] = run.time(121.0)
    else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((solicit.kind, asked(solicit)), (Kind::Solicit, Some(ip(ADDRESS))));
    assert_eq!(run.client.state(), State::Expired);
    assert_eq!(run.client.release(&mut Random::counting()), None, "it has nothing to give back");

    let mut run = Run::bound();
    run.time(121.0);
    let at_once = Said::taken_at_once(&[(OTHER, 60, 120)]);
    assert_eq!(run.advertise(121.1, SERVER, &at_once), [], "the container cannot have another");
    run.advertise(121.2, SERVER, &Said { addresses: GRANTED, ..at_once });
    let [Action::Probe(_), Action::Send(_), Action::Send(Outgoing::Routers)] = &run.actions[..]
    else {
        panic!("{:?}", run.actions)
    };
    run.reply(121.3, SERVER, &Said::grants(GRANTED));
    let [Action::Regained(AnyLease::V6(lease))] = run.router(121.4, router(1)) else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((lease.net.prefix_len(), lease.times.expires), (64, seconds(241.3)));
    assert_eq!(run.client.state(), State::Bound);
}

#[test]
fn search_for_a_lost_address_backs_off_with_sockets_closed() {
    let mut run = Run::bound();
    run.time(121.0);
    let mut at = 121.0;
    let mut solicits = 0;
    let mut open = 0.0;
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
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
    run.reply(
        1.0,
        SERVER,
        &Said { times: (0, 0), ..Said::grants(&[(ADDRESS, u32::MAX, u32::MAX)]) },
    );
    assert!(matches!(run.actions[..], [Action::Bound(_)]));
    run.time(10.0);
    assert_eq!(run.client.deadline(), NEVER);
    let mut random = Random::counting();
    let late = Turn::new(START + Duration::from_secs(u32::MAX.into()), &mut random);
    assert_eq!(run.client.on_time(late), []);
}

#[test]
fn what_is_had_or_requested_is_released() {
    let released = |run: &Run| {
        run.client.clone().release(&mut Random::counting()).map(|outgoing| match outgoing {
            Outgoing::V6(message) => (message.kind, asked(&message)),
            other => panic!("{other:?}"),
        })
    };
    let given_back = Some((Kind::Release, Some(ip(ADDRESS))));
    let run = Run::acquire(Mode::Dhcp);
    assert_eq!(released(&run), None, "nothing was asked for");
    let mut run = Run::acquire(Mode::Dhcp);
    run.advertise(0.1, SERVER, &Said::taken_at_once(GRANTED));
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
    let Outgoing::V6(message) = setup(Mode::Dhcp).release(&intent, &mut Random::counting()) else {
        panic!("{intent:?}")
    };
    assert_eq!(
        (message.kind, message.options.get(options::SERVER_ID)),
        (Kind::Release, Some(SERVER))
    );
    assert_eq!(message.options.get(options::OPTION_REQUEST), None);
}
