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
