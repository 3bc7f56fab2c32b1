//! Planted files among the records that plugins keep below /run/cni.

use serde_json::{Value, json};

use super::{Field, PLANTS, Plant, plantings};
use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::networks::{bridge, host_device, sbr};
use crate::support::traffic::assert_pings;

const PLACES: [&str; 4] =
    ["$FILE", "${FILE%.json}.draft", "$(dirname $FILE)/junk.json", "$(dirname $FILE)"];

/// Runs every command while the plant exists. The file is the attachment's only record.
fn try_out(
    field: &Field<'_>,
    dir: &str,
    attachment: &Attachment<'_>,
    result: &Value,
    place: &str,
    plant: Plant,
) {
    let path = field.lab.host.sh(&format!("FILE=$(ls {dir}/*-*.json | head -n1); echo {place}"));
    if let Some(cell) = field.plant(path.trim(), plant) {
        cell.call("STATUS", attachment.call("STATUS", None));
        cell.call("CHECK", attachment.call("CHECK", Some(result)));
        let valid = json!([{"containerID": attachment.container_id, "ifname": attachment.ifname}]);
        cell.call(
            "GC",
            attachment.clone().conf(json!({"cni.dev/valid-attachments": valid})).call("GC", None),
        );
        cell.call("ADD", attachment.call("ADD", Some(result)));
        cell.call("DEL", attachment.call("DEL", Some(result)));
        cell.call("ADD after DEL", attachment.call("ADD", Some(result)));
        cell.restore();
        let outcome = attachment.try_del();
        cell.expect_done("DEL afterwards", &outcome);
    }
    attachment.del();
}

#[test]
fn nothing_among_sbr_s_records_is_followed_waited_for_or_lost() {
    for_ours("sbr", |lab| {
        let field = Field::new(lab);
        for (place, plant) in plantings(&PLACES) {
            let container = lab.container();
            let chained = sbr::attach(lab, &container, &sbr::second(), "net1")
                .changed(json!({"cniVersion": "1.1.0"}));
            chained.add();
            assert_ne!(sbr::rules(&container).len(), 0);
            try_out(&field, "/run/cni/sbr", &chained, &chained.result, place, plant);
            assert_eq!(sbr::rules(&container), [], "{plant:?} at {place}");
            chained.main.del();
        }
        field.assert_nothing_was_wrong();
    });
}

#[test]
fn planted_host_device_records_are_not_followed_or_waited_for() {
    for_ours("host-device", |lab| {
        let field = Field::new(lab);
        lab.host.sh("ip link add dev0 type veth peer name dev1");
        let container = lab.container();
        let attachment = lab
            .attach(&container, &with(&host_device::layer_two(), json!({"cniVersion": "1.1.0"})));
        for (place, plant) in plantings(&PLACES) {
            let result = attachment.add();
            try_out(&field, "/run/cni/host-device", &attachment, &result, place, plant);
            assert!(
                lab.host.link("dev0").is_some(),
                "{plant:?} at {place}: the device is not back"
            );
        }
        field.assert_nothing_was_wrong();
    });
}

/// bridge keeps only a lock there, and works without it.
#[test]
fn nothing_in_the_place_of_bridge_s_lock_keeps_a_container_away() {
    for_ours("bridge", |lab| {
        let field = Field::new(lab);
        let container = lab.container();
        let attachment =
            lab.attach(&container, &with(&bridge::conf(), json!({"cniVersion": "1.1.0"})));
        let late = json!({"bridge": "br9", "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}});
        attachment.add();
        attachment.del();
        for place in ["/run/cni/bridge/lock", "/run/cni/bridge"] {
            for plant in PLANTS {
                let Some(cell) = field.plant(place, plant) else { continue };
                let failed = cell
                    .call("failing ADD", attachment.clone().conf(late.clone()).call("ADD", None))
                    .err();
                assert!(!failed.details.contains("undo:"), "{plant:?} at {place}: {failed:?}");
                assert!(lab.host.link("br9").is_none(), "{plant:?} at {place}");
                cell.call("ADD", attachment.call("ADD", None)).ok();
                assert_pings(&container, "10.10.0.1");
                cell.call("DEL", attachment.call("DEL", None)).ok();
                cell.restore();
            }
        }
        field.assert_nothing_was_wrong();
    });
}

/// The lock only keeps transactions from being planned again.
#[test]
fn nothing_in_the_place_of_nftables_lock_keeps_a_container_away() {
    for_ours("bridge", |lab| {
        let field = Field::new(lab);
        let container = lab.container();
        let masquerading =
            json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"});
        let attachment = lab.attach(&container, &with(&bridge::conf(), masquerading));
        attachment.add();
        attachment.del();
        for place in ["/run/cni/nftables/lock", "/run/cni/nftables"] {
            for plant in PLANTS {
                let Some(cell) = field.plant(place, plant) else { continue };
                let result = cell.call("ADD", attachment.call("ADD", None)).ok();
                assert_pings(&container, "10.10.0.1");
                cell.call("CHECK", attachment.call("CHECK", Some(&result))).ok();
                cell.call("DEL", attachment.call("DEL", None)).ok();
                cell.restore();
            }
        }
        field.assert_nothing_was_wrong();
    });
}
