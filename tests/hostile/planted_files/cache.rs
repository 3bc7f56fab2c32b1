//! Planted files among the results that `cni-multi net` caches, which other programs use too.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Field, LinkToDirectory, Plant, plantings};
use crate::support::attachment::for_ours;
use crate::support::call::{Call, binary};
use crate::support::netns::Lab;

const PLACES: [&str; 5] = [
    "/run/cache/results/lab-victim-eth0",
    "/run/cache/results/lab-junk-eth0",
    "/run/cache/results",
    "/run/cache/lock",
    "/run/cache",
];

fn net(lab: &Lab, line: &str) -> Call {
    let args = format!("net {line} --cache-dir /run/cache")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let env = [("NETCONFPATH", "/run/net.d"), ("CNI_PATH", "/run/nothing")];
    let env: BTreeMap<_, _> =
        env.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Call { program: binary(), args, env, stdin: vec![], wrapper: lab.host.enter.clone() }
}

fn try_out(field: &Field<'_>, place: &str, plant: Plant) {
    let lab = field.lab;
    net(lab, "add lab /run/x --container-id victim").run().ok();
    if let Some(cell) = field.plant(place, plant) {
        for line in [
            "ps",
            "inspect lab /run/x --container-id victim",
            "check lab /run/x --container-id victim",
            "add lab /run/y --container-id newcomer",
            "gc lab --dry-run",
            "del lab /run/y --container-id newcomer",
            "del lab /run/x --container-id victim",
        ] {
            let call = net(lab, line);
            // These commands report their reason as text on stderr.
            let outcome = cell.call_of_people(line, call);
            cell.expect(outcome.status == 0 || !outcome.stderr.is_empty(), line, &outcome);
        }
        cell.restore();
        for gone in
            ["del lab /run/y --container-id newcomer", "del lab /run/x --container-id victim"]
        {
            let outcome = net(lab, gone).run();
            cell.expect_done(gone, &outcome);
        }
        let left = lab.host.sh("ls -A /run/cache/results");
        cell.expect(left.trim() == "lab-bystander-eth0", "what is left", &left);
    }
}

#[test]
fn planted_cache_entries_are_not_followed_waited_for_or_lost() {
    for_ours("static", |lab| {
        let field = Field::new(lab);
        let ipam = json!({"type": "static", "addresses": [{"address": "10.10.0.2/24"}]});
        let list = json!({"cniVersion": "1.1.0", "name": "lab", "plugins": [{"type": "static", "ipam": ipam}]});
        lab.host.sh("mkdir /run/net.d");
        std::fs::write(lab.path("/run/net.d/lab.conflist"), list.to_string()).unwrap();
        net(lab, "add lab /run/z --container-id bystander").run().ok();
        let is_foreign = |(place, plant): &(&str, Plant)| !is_the_administrator_s(place, *plant);
        for (place, plant) in plantings(&PLACES).into_iter().filter(is_foreign) {
            try_out(&field, place, plant);
        }
        field.assert_nothing_was_wrong();
    });
}

/// An administrator may move the cache and leave a link.
fn is_the_administrator_s(place: &str, plant: Plant) -> bool {
    plant == LinkToDirectory && ["/run/cache", "/run/cache/results"].contains(&place)
}
