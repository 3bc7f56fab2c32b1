//! Planted files among the results that `cni-multi net` caches, which other programs use too.

use serde_json::json;

use super::{Field, LINK_TO_DIRECTORY, Plant, on_a_field, plantings};
use crate::support::call::Call;
use crate::support::netns::Lab;

const PLACES: [&str; 5] = [
    "/run/cache/results/lab-victim-eth0",
    "/run/cache/results/lab-junk-eth0",
    "/run/cache/results",
    "/run/cache/lock",
    "/run/cache",
];

fn net(lab: &Lab, line: &str) -> Call {
    let line = format!("net {line} --cache-dir /run/cache");
    Call::cni_multi(&lab.host.enter, line.split(' '))
        .env("NETCONFPATH", "/run/net.d")
        .env("CNI_PATH", "/run/nothing")
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
        for (path, id) in [("/run/y", "newcomer"), ("/run/x", "victim")] {
            let outcome = net(lab, &format!("del lab {path} --container-id {id}")).run();
            cell.expect_done("del", &outcome);
        }
        let left = lab.host.sh("ls -A /run/cache/results");
        cell.expect(left.trim() == "lab-bystander-eth0", "what is left", &left);
    }
}

#[test]
fn planted_cache_entries_are_not_followed_waited_for_or_lost() {
    on_a_field("static", |lab, field| {
        let ipam = json!({"type": "static", "addresses": [{"address": "10.10.0.2/24"}]});
        lab.configure(&json!({"cniVersion": "1.1.0", "name": "lab", "plugins": [{"type": "static", "ipam": ipam}]}));
        net(lab, "add lab /run/z --container-id bystander").run().ok();
        for (place, plant) in plantings(&PLACES) {
            // An administrator may move the cache and leave a link.
            let is_moved = ["/run/cache", "/run/cache/results"].contains(&place);
            if !(is_moved && plant[0] == LINK_TO_DIRECTORY) {
                try_out(field, place, plant);
            }
        }
    });
}
