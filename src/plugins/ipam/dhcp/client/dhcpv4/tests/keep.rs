//! Keeping a lease, and releasing it.

use super::*;

#[test]
fn a_lease_is_renewed_again_and_again_with_no_socket_between() {
    let mut story = Story::bound();
    for round in 1..=3 {
        let t1 = f64::from(round) * 500.0;
        story.until(t1 - 0.001);
        assert!(!story.client.needs_sockets(story.now));
        story.until(t1);
        story.assert_state(State::Renewing, true);
        story.ack();
        story.assert_state(State::Bound, false);
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
fn a_server_that_forgot_the_lease_grants_it_again_unnoticed() {
    for (at, server) in [(500.0, SERVER), (875.0, SERVER), (875.0, OTHER_SERVER)] {
        let mut story = Story::bound();
        story.until(at);
        story.lines.clear();
        let mut nak = story.reply(MessageType::Nak, Ipv4Addr::UNSPECIFIED);
        nak.options.set(code::SERVER_ID, &server.octets());
        story.hear(&nak);
        assert_eq!(story.client.state(), State::Selecting);
        story.hear(&story.reply(MessageType::Offer, OTHER_ADDRESS)); // another address, and not waited for
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
fn nak_without_server_or_of_another_while_renewing_is_ignored() {
    for (at, server) in [(500.0, Some(OTHER_SERVER)), (500.0, None), (875.0, None)] {
        let mut story = Story::bound();
        story.until(at);
        story.lines.clear();
        let mut nak = story.reply(MessageType::Nak, Ipv4Addr::UNSPECIFIED);
        let state = story.client.state();
        nak.options.remove(code::SERVER_ID); // which every message must have
        server.into_iter().for_each(|server| nak.options.set(code::SERVER_ID, &server.octets()));
        story.hear(&nak);
        assert_eq!(story.client.state(), state);
        story.check(&[]);
    }
}

/// It may be any server: neither its refusal nor its offer takes the address away before the lease
/// expires.
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
fn lease_is_lost_when_its_server_offers_another_address() {
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
    story.check(&[
        "969 Discover 10.0.0.5",
        "987 Discover 10.0.0.5",
        "1000 lost: expired",
        "1000 Discover 10.0.0.5",
    ]);
}

#[test]
fn a_request_that_is_refused_again_is_retried_more_slowly() {
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

/// An offer from before the last refusal is no longer a reason.
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
fn a_lost_address_that_is_not_granted_is_retried_slowly() {
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
fn an_endless_lease_is_never_looked_at_again() {
    let mut story = Story::new(setup());
    story.offer();
    let mut ack = story.reply(MessageType::Ack, ADDRESS);
    ack.options.set(code::LEASE_TIME, &u32::MAX.to_be_bytes());
    story.hear(&ack);
    assert_eq!(
        story.lines.pop().unwrap(),
        "0 bound 10.0.0.5/24 of 10.0.0.1, t1 never, t2 never, end never"
    );
    assert_eq!(
        (story.client.deadline(), story.client.needs_sockets(NEVER - Duration::from_nanos(1))),
        (NEVER, false)
    );
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
    assert_eq!(
        story.lines.pop().unwrap(),
        "600 regained 10.0.0.5/24 of 10.0.0.1, t1 1100, t2 1475, end 1600"
    );
}

#[test]
fn called_too_early_it_does_nothing() {
    let mut story = Story::bound();
    story.now = Duration::from_secs(400);
    let actions = story.client.on_time(Turn::new(story.now, &mut story.random));
    assert_eq!((actions, story.client.state()), (vec![], State::Bound));
}

/// After a suspend, nothing may be done twice, or for what is over.
#[test]
fn called_late_it_does_what_is_due_then() {
    let mut story = Story::bound();
    story.now = Duration::from_secs(900);
    let actions = story.client.on_time(Turn::new(story.now, &mut story.random));
    story.tell(actions);
    story.now = Duration::from_secs(99_999);
    let actions = story.client.on_time(Turn::new(story.now, &mut story.random));
    story.tell(actions);
    story.check(&["900 Request ci 10.0.0.5", "99999 lost: expired", "99999 Discover 10.0.0.5"]);
    let mut story = Story::new(setup());
    story.lines.clear();
    story.now = Duration::from_secs(99_999);
    let actions = story.client.on_time(Turn::new(story.now, &mut story.random));
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
    let outgoing = setup().release(&intent, &mut Random::counting());
    assert_eq!(Some(line(&Action::Send(outgoing))), expected);
}

#[test]
fn leases_that_began_together_are_not_renewed_together() {
    let mut random = Random::new();
    let mut t1 = || {
        let mut story = Story::new(setup());
        story.offer();
        let ack = Heard::V4(story.reply(MessageType::Ack, ADDRESS));
        story.client.on_heard(ack, Turn::new(story.now, &mut random));
        story.client.lease().unwrap().times.t1.as_secs_f64()
    };
    let all: Vec<f64> = std::iter::repeat_with(&mut t1).take(100).collect();
    assert!(all.iter().all(|t1| (484.0..=500.0).contains(t1)), "{all:?}");
    assert!(all.iter().any(|t1| *t1 < 490.0) && all.iter().any(|t1| *t1 > 494.0), "{all:?}");
}
