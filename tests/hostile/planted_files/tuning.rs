//! Planted files among tuning's backups.

use serde_json::json;

use super::{Field, Plant, plantings};
use crate::support::attachment::{for_ours, with};
use crate::support::chain::Chain;
use crate::support::networks::bridge;
use crate::support::networks::tuning::tuning;
use crate::support::snapshot::Watch;

/// The paths of the plants as shell words; `$ID` is the victim's container id.
const PLACES: [&str; 4] = [
    "/run/cni/tuning/${ID}_eth0.json",
    "/run/cni/tuning/${ID}_eth0.draft",
    "/run/cni/tuning/other_eth0.json",
    "/run/cni/tuning",
];

fn main() -> serde_json::Value {
    with(&bridge::conf(), json!({"cniVersion": "1.1.0"}))
}

fn mtu(chain: &Chain<'_>) -> u64 {
    chain.container.link("eth0").unwrap()["mtu"].as_u64().unwrap()
}

fn try_out(field: &Field<'_>, bystander: &Chain<'_>, place: &str, plant: Plant) {
    let lab = field.lab;
    let chain = lab.chain(&main(), &tuning(json!({"mtu": 1400})));
    let result = chain.add();
    let path = lab.host.sh(&format!("ID={}; echo {place}", chain.container_id));
    if let Some(cell) = field.plant(path.trim(), plant) {
        cell.call("STATUS", chain.call("STATUS", None));
        cell.call("CHECK", chain.call("CHECK", Some(&result)));
        cell.call("ADD", chain.call("ADD", None));
        let valid = json!([
            {"containerID": bystander.container_id, "ifname": "eth0"}, {"containerID": chain.container_id, "ifname": "eth0"},
        ]);
        cell.call(
            "GC",
            chain.clone().conf(json!({"cni.dev/valid-attachments": valid})).call("GC", None),
        );
        let _ = chain.container.sh("ip link set eth0 mtu 1300");
        cell.call("a second ADD", chain.clone().conf(json!({"mtu": 1200})).call("ADD", None));
        cell.call("DEL", chain.call("DEL", None));
        cell.restore();
        let outcome = bystander.check(&bystander.result);
        cell.expect_done("the bystander's CHECK", &outcome);
        let outcome = chain.try_del();
        cell.expect_done("DEL afterwards", &outcome);
    }
    chain.del_all();
}

#[test]
fn planted_tuning_backups_are_not_followed_waited_for_or_lost() {
    for_ours("tuning", |lab| {
        let field = Field::new(lab);
        let bystander = lab.chain(&main(), &tuning(json!({"mtu": 1400})));
        bystander.add();
        let before = Watch::start(lab, &[&bystander.container]);
        for (place, plant) in plantings(&PLACES) {
            try_out(&field, &bystander, place, plant);
        }
        field.assert_nothing_was_wrong();
        before.assert_unchanged("all that was planted");
        bystander.del();
        assert_eq!(mtu(&bystander), 1500);
    });
}
