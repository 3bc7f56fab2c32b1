//! Planted files among the records that plugins keep below /run/cni.

use serde_json::{Value, json};

use super::{Field, PLANTS, Plant, on_a_field, plantings};
use crate::support::attachment::{Attachment, with};
use crate::support::chain::Chain;
use crate::support::netns::Lab;
use crate::support::networks::tuning::tuning;
use crate::support::networks::{bridge, host_device, sbr};
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::assert_pings;

const PLACES: [&str; 4] =
    ["$FILE", "${FILE%.json}.draft", "$(dirname $FILE)/junk.json", "$(dirname $FILE)"];

/// With these attachments as the valid ones of GC.
fn sparing<'a>(attachment: &Attachment<'a>, ids: &[&str]) -> Attachment<'a> {
    let valid = |id| json!({"containerID": id, "ifname": attachment.ifname});
    let valid: Value = ids.iter().map(valid).collect();
    attachment.clone().conf(json!({"cni.dev/valid-attachments": valid}))
}

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
        let sparing = sparing(attachment, &[&attachment.container_id]);
        cell.calls(&sparing, "STATUS CHECK GC ADD DEL ADD", result);
        cell.restore();
        let outcome = attachment.try_del();
        cell.expect_done("DEL afterwards", &outcome);
    }
    attachment.del();
}

#[test]
fn nothing_among_sbr_s_records_is_followed_waited_for_or_lost() {
    on_a_field("sbr", |lab, field| {
        for (place, plant) in plantings(&PLACES) {
            let container = lab.container();
            let chained = sbr::attach(lab, &container, &sbr::second(), "net1")
                .changed(json!({"cniVersion": "1.1.0"}));
            chained.add();
            assert_ne!(sbr::rules(&container).len(), 0);
            try_out(field, "/run/cni/sbr", &chained, &chained.result, place, plant);
            assert_eq!(sbr::rules(&container), [], "{plant:?} at {place}");
            chained.main.del();
        }
    });
}

#[test]
fn planted_host_device_records_are_not_followed_or_waited_for() {
    on_a_field("host-device", |lab, field| {
        lab.host.sh("ip link add dev0 type veth peer name dev1");
        let container = lab.container();
        let attachment = lab
            .attach(&container, &with(&host_device::layer_two(), json!({"cniVersion": "1.1.0"})));
        for (place, plant) in plantings(&PLACES) {
            let result = attachment.add();
            try_out(field, "/run/cni/host-device", &attachment, &result, place, plant);
            assert!(
                lab.host.link("dev0").is_some(),
                "{plant:?} at {place}: the device is not back"
            );
        }
    });
}

/// bridge keeps only locks there, and works without them: one that keeps transactions from being planned again, and one
/// for its bridge.
#[test]
fn nothing_in_the_place_of_bridge_s_locks_keeps_a_container_away() {
    on_a_field("bridge", |lab, field| {
        let container = lab.container();
        let keys = json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"});
        let attachment = lab.attach(&container, &with(&bridge::conf(), keys));
        let late = json!({"bridge": "br9", "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}});
        attachment.add();
        attachment.del();
        for name in ["bridge/lock", "bridge", "nftables/lock", "nftables"] {
            for plant in cells(PLANTS) {
                let Some(cell) = field.plant(&format!("/run/cni/{name}"), plant) else { continue };
                let failing = attachment.clone().conf(late.clone()).call("ADD", None);
                let failed = cell.call("failing ADD", failing).err();
                assert!(!failed.details.contains("undo:"), "{plant:?} at {name}: {failed:?}");
                assert!(lab.host.link("br9").is_none(), "{plant:?} at {name}");
                let result = cell.call("ADD", attachment.call("ADD", None)).ok();
                assert_pings(&container, "10.10.0.1");
                cell.call("CHECK", attachment.call("CHECK", Some(&result))).ok();
                cell.call("DEL", attachment.call("DEL", None)).ok();
                cell.restore();
            }
        }
    });
}

/// The paths of the plants among tuning's backups as shell words; `$ID` is the victim's container id.
const BACKUPS: [&str; 4] = [
    "/run/cni/tuning/${ID}_eth0.json",
    "/run/cni/tuning/${ID}_eth0.draft",
    "/run/cni/tuning/other_eth0.json",
    "/run/cni/tuning",
];

fn tuned(lab: &Lab) -> Chain<'_> {
    let main = with(&bridge::conf(), json!({"cniVersion": "1.1.0"}));
    lab.chain(&main, &tuning(json!({"mtu": 1400})))
}

fn try_out_tuning(field: &Field<'_>, bystander: &Chain<'_>, place: &str, plant: Plant) {
    let lab = field.lab;
    let chain = tuned(lab);
    let result = chain.add();
    let path = lab.host.sh(&format!("ID={}; echo {place}", chain.container_id));
    if let Some(cell) = field.plant(path.trim(), plant) {
        let sparing = sparing(&chain, &[&bystander.container_id, &chain.container_id]);
        cell.calls(&sparing, "STATUS CHECK ADD GC", &result);
        chain.container.sh("ip link set eth0 mtu 1300");
        cell.call("a second ADD", chain.clone().conf(json!({"mtu": 1200})).call("ADD", None));
        cell.call("DEL", chain.call("DEL", None));
        cell.restore();
        cell.expect_done("the bystander's CHECK", &bystander.check(&bystander.result));
        cell.expect_done("DEL afterwards", &chain.try_del());
    }
    chain.del_all();
}

#[test]
fn planted_tuning_backups_are_not_followed_waited_for_or_lost() {
    on_a_field("tuning", |lab, field| {
        let bystander = tuned(lab);
        bystander.add();
        let before = Watch::start(lab, &[&bystander.container]);
        for (place, plant) in plantings(&BACKUPS) {
            try_out_tuning(field, &bystander, place, plant);
        }
        before.assert_unchanged("all that was planted");
        bystander.del();
        assert_eq!(bystander.container.link("eth0").unwrap()["mtu"], 1500);
    });
}
