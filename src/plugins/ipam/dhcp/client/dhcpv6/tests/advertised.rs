//! Addresses made from a router's prefix.

use super::*;

#[test]
fn an_address_is_made_of_a_routers_prefix() {
    let mut run = Run::acquire(Mode::Slaac);
    assert_eq!(run.actions, [Action::Send(Outgoing::Routers)]);
    for unfit in [
        Prefix { autonomous: false, ..router(1).prefixes[0] },
        Prefix { preferred: 0, ..router(1).prefixes[0] },
        Prefix { net: "2001:db8::/63".parse().unwrap(), ..router(1).prefixes[0] },
    ] {
        assert_eq!(
            run.router(0.5, Advertisement { prefixes: vec![unfit], ..router(1) }),
            [],
            "{unfit:?}"
        );
    }
    let address = ip("2001:db8::858:aff:fe01:203");
    assert_eq!(run.router(1.0, router(1)), [Action::Probe(address.into())]);
    let [Action::Bound(AnyLease::V6(lease))] = run.time(1.05) else { panic!("{:?}", run.actions) };
    assert_eq!(
        (lease.net.to_string(), lease.router),
        (format!("{address}/64"), Some(ip("fe80::1")))
    );
    assert_eq!(run.client.release(&mut Random::counting()), None, "nobody has granted it");
}

#[test]
fn a_prefix_is_renewed_by_asking_the_routers() {
    let mut run = Run::acquire(Mode::Slaac);
    run.router(1.0, router(1));
    run.time(1.05);
    let lease = run.client.lease().unwrap().clone();
    assert_eq!((lease.times.t1, lease.times.expires), (seconds(31.0), seconds(121.0)));
    assert_eq!(run.time(31.0), [Action::Send(Outgoing::Routers)]);
    let foreign = Prefix { net: "2001:db9::/64".parse().unwrap(), ..router(1).prefixes[0] };
    assert_eq!(run.router(31.1, Advertisement { prefixes: vec![foreign], ..router(2) }), []);
    let [Action::Renewed(AnyLease::V6(lease))] = run.router(31.2, router(1)) else {
        panic!("{:?}", run.actions)
    };
    let address = ip("2001:db8::858:aff:fe01:203");
    assert_eq!((lease.times.expires, lease.net.addr()), (seconds(151.2), address));
    run.time(61.2);
    assert_eq!(run.client.state(), State::Renewing);
    run.time(79.2);
    assert_eq!(run.client.state(), State::Rebinding);
    let [Action::Lost(Reason::Expired), Action::Send(Outgoing::Routers)] = run.time(151.2) else {
        panic!("{:?}", run.actions)
    };
    run.router(152.0, router(1));
    assert_eq!(run.actions, [Action::Probe(address.into())]);
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
    assert_eq!(run.client.lease().unwrap().times.expires, seconds(10_000.0 + 7200.0));
    run.time(10_003.0);
    run.router(10_003.0, of(5));
    assert_eq!(
        run.client.lease().unwrap().times.expires,
        seconds(10_000.0 + 7200.0),
        "it is not made longer either"
    );
}

#[test]
fn an_address_in_use_cannot_be_made() {
    let mut run = Run::acquire(Mode::Slaac);
    run.router(1.0, router(1));
    let address = "2001:db8::858:aff:fe01:203";
    assert_eq!(
        run.conflict(1.01, address),
        [Action::GaveUp(format!("{address} is in use by another"))]
    );
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
    let mut asked = 1;
    let mut at = 0.0;
    while run.client.state() != State::Ended {
        at = run.deadline();
        run.time(at);
        asked +=
            run.actions.iter().filter(|action| **action == Action::Send(Outgoing::Routers)).count();
    }
    assert_eq!((asked, at), (7, 208.0));
    let why = "no more tries within 208s: no router has answered";
    assert_eq!(run.actions, [Action::GaveUp(why.into())]);
}
