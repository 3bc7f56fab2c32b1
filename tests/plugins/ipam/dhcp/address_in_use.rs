//! An offered address that another host uses is declined, and another address is taken.

use serde_json::json;

use crate::support::attachment::{for_ours, skip};
use crate::support::dhcp::scripted::{DECLINE, Scripted, option};
use crate::support::dhcp::{Daemon, HASTY, Kind};
use crate::support::networks::dhcp::conf;
use crate::support::snapshot::Watch;

#[test]
fn an_address_that_answers_is_declined_and_the_next_one_taken() {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        lab.outside.sh("ip addr add 10.60.0.50/24 dev lan");
        let server = Scripted::start(lab, json!({}));
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        let result = lab.attach(&container, &conf()).add();
        assert_eq!(result["ips"][0]["address"], "10.60.0.51/24");
        let declined = server.heard_of(DECLINE);
        assert_eq!(declined.len(), 1, "{declined:?}");
        assert_eq!(option(&declined[0], 50).as_deref(), Some("0a3c0032"));
        assert_eq!(option(&declined[0], 54).as_deref(), Some("0a3c0001"));
        assert_eq!(declined[0]["ciaddr"], "0.0.0.0");
    });
}

/// The ten-second pause after a DECLINE (RFC 2131) is longer than the timeout set by these flags.
#[test]
fn an_address_in_use_and_no_time_for_another_is_an_error() {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        lab.outside.sh("ip addr add 10.60.0.50/24 dev lan");
        let _server = Scripted::start(lab, json!({"addresses": ["10.60.0.50"]}));
        let _daemon = Daemon::with_flags(lab, &HASTY);
        let container = lab.container();
        let watch = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &conf()).try_add().err().text();
        assert!(error.contains("10.60.0.50"), "which address: {error}");
        watch.assert_unchanged("since before the ADD that failed");
    });
}

/// All links of a master answer with its hardware address, so a probe could not identify another
/// owner.
#[test]
fn no_probe_is_sent_on_ipvlan() {
    for_ours("dhcp", |lab| {
        if !Kind::Ipvlan.is_in(lab) {
            return skip("ipvlan");
        }
        lab.lan(Kind::Ipvlan);
        lab.outside.sh("ip addr add 10.60.0.50/24 dev lan");
        let server = Scripted::start(lab, json!({}));
        let _daemon = Daemon::start(lab);
        let result = lab.attach(&lab.container(), &Kind::Ipvlan.conf()).add();
        assert_eq!(result["ips"][0]["address"], "10.60.0.50/24");
        assert!(server.heard_of(DECLINE).is_empty());
    });
}
