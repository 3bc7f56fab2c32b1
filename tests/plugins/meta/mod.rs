//! Tests of the chained plugins, which follow a main plugin.

pub mod bandwidth;
pub mod firewall;
pub mod portmap;
mod route_override;
pub mod sbr;
pub mod tuning;
pub mod vrf;

use serde_json::{Value, json};

use crate::support::attachment::{
    Attachment, for_each_peer, for_ours, for_reference, ips, reference_with, skip, with,
};
use crate::support::broken;
use crate::support::broken::assert_check_finds;
use crate::support::call::Peer;
use crate::support::chain::{Chain, Chained};
use crate::support::failed_add::{Case, assert_fails_at, rows};
use crate::support::netns::{Container, Lab, Namespace, OUTSIDE, UPLINK};
use crate::support::networks;
use crate::support::networks::bandwidth::{both, network};
use crate::support::networks::bridge;
use crate::support::networks::sbr::two_uplinks;
use crate::support::networks::vrf::for_ours_in_blue;
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::{assert_no_ping, assert_pings, assert_pings_with};

/// The attachment of a chained plugin alone, as STATUS finds it: without a result.
fn in_network<'a>(lab: &'a Lab, conf: &Value) -> Attachment<'a> {
    let of_network = json!({"name": "net1", "cniVersion": "1.1.0"});
    lab.attach(&lab.container(), &with(conf, of_network))
}

/// The reference's second ADD leaves a rule of sbr, and fails halfway with bandwidth, whose DEL removes the first ADD's
/// ifb.
#[test]
fn a_second_add_is_refused_and_leaves_the_first() {
    let assert_refused = |lab: &Lab, container: &Namespace, chained: &Attachment<'_>| {
        let result = chained.add();
        let before = Watch::start(lab, &[container]);
        chained.try_add().fails(102, "");
        before.assert_unchanged("the second ADD");
        chained.check(&result).ok();
        chained.del();
    };
    for keys in [json!({}), json!({"table": 5000})] {
        for_ours("sbr", |lab| {
            let (container, sbr) = two_uplinks(lab, keys.clone());
            assert_refused(lab, &container, &sbr);
        });
    }
    for_ours_in_blue(|lab, container, member| assert_refused(lab, container, member));
    for keys in [json!({}), json!({"ingressRate": null, "ingressBurst": null})] {
        bandwidth::for_able_ours(|lab| {
            let chain = lab.chain(&network(), &with(&both(), keys.clone()));
            assert_refused(lab, &chain.container, &chain);
        });
    }
}

/// It fails after it has changed something; DEL then takes what the first has made.
#[test]
fn a_failed_second_add_leaves_the_first_as_it_was() {
    let assert_left =
        |lab: &Lab, container: &Namespace, first: &Attachment<'_>, bad: Value, code| {
            let untouched = Watch::start(lab, &[container]);
            first.add();
            let before = Watch::start(lab, &[container]);
            first.clone().conf(bad).try_add().fails(code, "");
            before.assert_unchanged("the failed ADD");
            first.clone().conf(json!({"table": null})).del();
            untouched.assert_unchanged("all");
        };
    let nowhere = json!([{"address": "10.30.0.5/24", "gateway": "10.99.0.1"}]);
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({"table": 5000}));
        let bad = json!({"table": null, "prevResult": {"ips": nowhere}});
        assert_left(lab, &container, &sbr, bad, 100);
    });
    for_ours("tuning", |lab| {
        let chain = networks::tuning::chain(lab, tuning::failed_add::after(json!({})));
        let sysctls = json!({"net.core.somaxconn": "7", "net.ipv4.ip_forward": "x"});
        let bad = json!({"mtu": 1300, "txQLen": 5, "sysctl": sysctls});
        assert_left(lab, &chain.container, &chain, bad, 7);
    });
}
