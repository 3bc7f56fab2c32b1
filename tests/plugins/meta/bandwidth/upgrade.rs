//! bandwidth: what one has limited the other checks and removes.

use serde_json::{Value, json};

use super::{BURST, RATE, bandwidth, can_limit, directions, network};
use crate::support::attachment::{interface, not_compared, reference_with};
use crate::support::call::Peer;
use crate::support::chain::Chain;
use crate::support::flow::assert_rate;
use crate::support::netns::Lab;
use crate::support::snapshot::Watch;

/// Limits that both make alike.
fn limits() -> [Value; 3] {
    let keys = |rate: u64, burst: u64| {
        bandwidth(json!({"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst}))
    };
    [keys(RATE, BURST), keys(3_333_333, 777_777), keys(100_000_000_000, 1_000_000_000)]
}

/// The main plugin by one, the limits too; what the other does is up to the case.
fn handed_over(from: &Peer, to: &Peer, case: impl Fn(&Lab, &Chain<'_>, &Value)) {
    let lab = Lab::new(from.clone()).without_dad();
    if !can_limit(&lab) {
        return;
    }
    for limits in limits() {
        let warm = lab.chain(&network(), &limits);
        warm.main.del();
        let before = Watch::start(&lab, &[]);
        let chain = lab.chain(&network(), &limits);
        let result = chain.add();
        let by_other = chain.clone().by(to);
        by_other.check(&result).ok();
        case(&lab, &chain, &result);
        by_other.del();
        assert!(lab.host.link(&interface(&result, 2)).is_none(), "the ifb is gone");
        by_other.del();
        chain.main.del();
        before.assert_unchanged("ADD by one and DEL by the other");
    }
}

fn with_reference(case: impl Fn(&Peer)) {
    match reference_with("bandwidth") {
        Some(reference) => case(&reference),
        None => not_compared("bandwidth"),
    }
}

#[test]
fn ours_checks_and_removes_what_the_reference_made() {
    with_reference(|reference| handed_over(reference, &Peer::Ours, |_, _, _| ()));
}

#[test]
fn ours_removes_what_the_reference_made_when_the_namespace_is_gone() {
    with_reference(|reference| handed_over(reference, &Peer::Ours, |_, chain, _| chain.container.vanish()));
}

#[test]
fn the_reference_checks_and_removes_what_ours_made() {
    with_reference(|reference| handed_over(&Peer::Ours, reference, |_, _, _| ()));
}

/// The bursts that runtimes send for none: the reference's own numbers pass our CHECK, so an upgrade raises no alarm.
#[test]
fn ours_checks_the_numbers_that_the_reference_made_of_no_burst() {
    with_reference(|reference| {
        let lab = Lab::new(reference.clone());
        if !can_limit(&lab) {
            return;
        }
        for burst in [80, 2_147_483_647_u64, 4_294_967_295, 34_359_738_352] {
            let keys =
                json!({"ingressRate": 1_000_000, "ingressBurst": burst, "egressRate": 8_000_000, "egressBurst": burst});
            let chain = lab.chain(&network(), &bandwidth(keys));
            let result = chain.add();
            let outcome = chain.clone().by(&Peer::Ours).check(&result);
            assert_eq!(outcome.ok(), Value::Null, "{burst}");
            chain.del_all();
        }
    });
}

#[test]
fn limits_of_the_reference_hold_after_the_upgrade() {
    with_reference(|reference| {
        let lab = Lab::new(reference.clone());
        if !can_limit(&lab) {
            return;
        }
        let chain = lab.chain(&network(), &limits()[0]);
        chain.clone().add();
        for (_, from, to, address) in directions(&lab, &chain).into_iter().take(2) {
            assert_rate(from, to, &address, RATE);
        }
        // The second ADD of a runtime that has lost the first one's result.
        let error = chain.clone().by(&Peer::Ours).try_add().err();
        assert_eq!(error.code, 102, "{error:?}");
    });
}
