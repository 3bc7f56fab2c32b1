//! Deliberate differences of host-local from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::ipam::host_local::{ranges, subnet};
use crate::support::attachment::{for_ours, with};
use crate::support::networks::host_local;

/// An empty reservation, as after a crash of the node, has no owner; the reference never allocates
/// its address again.
#[test]
fn an_empty_reservation_is_free() {
    differs("host-local", OK, FAILED, |lab| {
        lab.host.sh(&format!("mkdir -p {0} && : > {0}/10.0.0.2", host_local::STORE));
        lab.attach(&lab.container(), &subnet("10.0.0.0/30")).try_add().status
    });
}

/// The reference has no STATUS.
#[test]
fn status_of_an_unusable_directory_is_an_error() {
    differs("host-local", FAILED, OK, |lab| {
        lab.host.sh("touch /run/file");
        let changes = json!({"cniVersion": "1.1.0", "ipam": {"dataDir": "/run/file"}});
        lab.attach(&lab.container(), &with(&subnet("10.0.0.0/30"), changes)).status().status
    });
}

/// When a second ADD of an attachment fails, the reference releases the addresses of the first,
/// which are in use.
#[test]
fn a_failed_second_add_keeps_the_addresses_of_the_first() {
    let conf = ranges(json!([[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]]));
    differs("host-local", "10.0.0.2 10.1.0.2".to_owned(), String::new(), |lab| {
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        let again =
            attachment.clone().conf(json!({"runtimeConfig": {"ips": ["10.0.0.50"]}})).try_add();
        again.err();
        host_local::leases(lab).join(" ")
    });
}

/// The reference does not compare a requested address with the attachment's own, and then holds
/// two.
#[test]
fn a_requested_address_does_not_make_a_second_one() {
    differs("host-local", FAILED, OK, |lab| {
        let attachment = lab.attach(&lab.container(), &subnet("10.0.0.0/24"));
        attachment.add();
        attachment.clone().conf(json!({"runtimeConfig": {"ips": ["10.0.0.50"]}})).try_add().status
    });
}

/// The reference's DEL decodes ranges that it does not need: with a mistake made in them after ADD,
/// it never releases the address.
#[test]
fn del_does_not_need_the_ranges() {
    differs("host-local", (OK, 0), (FAILED, 1), |lab| {
        let attachment = lab.attach(&lab.container(), &subnet("10.0.0.0/24"));
        attachment.add();
        let mut changed = attachment.clone();
        changed.conf["ipam"]["ranges"] = json!([]);
        let status = changed.try_del().status;
        (status, host_local::leases(lab).len())
    });
}

/// The default end is the address before the broadcast address; the reference does not compare the
/// start with it.
#[test]
fn a_range_that_starts_after_its_end_is_refused() {
    let conf = ranges(json!([[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.255"}]]));
    differs("host-local", FAILED, OK, |lab| lab.attach(&lab.container(), &conf).try_add().status);
}

/// The reference reads the address as IPv4 and the prefix length as IPv6, which do not fit.
#[test]
fn a_mapped_subnet_is_its_ipv4_subnet() {
    let conf = subnet("::ffff:10.0.0.0/104");
    differs("host-local", Some(json!("10.0.0.2/8")), None, |lab| {
        let outcome = lab.attach(&lab.container(), &conf).try_add();
        (outcome.status == OK).then(|| outcome.ok()["ips"][0]["address"].clone())
    });
}

/// Of several addresses requested from one range set the first counts; the reference takes any.
#[test]
fn requested_addresses_count_in_their_order() {
    for_ours("host-local", |lab| {
        for number in 0..8 {
            let wanted = [format!("10.0.0.{}", 100 - number), format!("10.0.1.{}", 100 - number)];
            let conf = ranges(json!([[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]]));
            let conf = with(&conf, json!({"runtimeConfig": {"ips": wanted}}));
            let error = lab.attach(&lab.container(), &conf).try_add().err();
            assert_eq!(error.msg, format!("failed to allocate all requested IPs: {}", wanted[1]));
        }
    });
}

/// The reference's DEL and CHECK create the directory of a network that was never used.
#[test]
fn del_makes_no_directory() {
    differs("host-local", false, true, |lab| {
        lab.attach(&lab.container(), &subnet("10.0.0.0/24")).del();
        lab.path(host_local::STORE).exists()
    });
}

/// Subdirectories do not belong to the network; the reference reads them, and its DEL removes files
/// there.
#[test]
fn files_in_deeper_directories_are_left_alone() {
    differs("host-local", true, false, |lab| {
        let attachment = lab.attach(&lab.container(), &subnet("10.0.0.0/24"));
        attachment.add();
        lab.host.sh(&format!("mkdir {0}/backup && cp {0}/10.0.0.2 {0}/backup/", host_local::STORE));
        attachment.del();
        lab.path(&format!("{}/backup/10.0.0.2", host_local::STORE)).exists()
    });
}

/// The reference's CHECK asks whether the container has any address; ours compares with prevResult.
#[test]
fn check_compares_the_lease_with_the_result() {
    differs("host-local", FAILED, OK, |lab| {
        let attachment = lab.attach(&lab.container(), &subnet("10.0.0.0/24"));
        let mut result = attachment.add();
        result["ips"][0]["address"] = json!("10.0.0.99/24");
        attachment.check(&result).status
    });
}
