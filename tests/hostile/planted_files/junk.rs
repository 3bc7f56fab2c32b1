//! Thousands of unrelated files, some with names that resemble ours.

use std::time::Instant;

use serde_json::json;

use super::super::{bounded, is_answer};
use crate::support::attachment::{for_ours, ips, with};
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::networks::tuning::tuning;
use crate::support::patience;

fn litter(lab: &Lab, dir: &str) {
    lab.host.sh(&format!(
        "mkdir -p {dir} && cd {dir} && seq -f 'junk-%g' 3000 | xargs touch && seq -f '%g.json' 2000 | xargs touch && \
         touch -- '10.10.0.200 ' 10.10.0.200~ .10.10.0.200 010.010.000.200 ::ffff:10.10.0.200 10.10.0 10.10.0.0x2 last_reserved_ip.x \
         \"$(printf 'a\\nb')\" \"$(printf '\\200')\" '%s%n' -rf"
    ));
}

#[test]
fn thousands_of_junk_files_block_no_operation() {
    for_ours("bridge", |lab| {
        for dir in [
            "/var/lib/cni/networks/net1",
            "/var/lib/cni/networks/.cni-multi/net1",
            "/run/cni/tuning",
        ] {
            litter(lab, dir);
        }
        let main = with(&bridge::conf(), json!({"cniVersion": "1.1.0"}));
        let bystander = lab.chain(&main, &tuning(json!({"mtu": 1400})));
        bystander.add();
        let chain = lab.chain(&main, &tuning(json!({"mtu": 1400})));
        let started = Instant::now();
        for (attachment, result) in [(&**chain, &chain.result), (&chain.main, &chain.result)] {
            for command in ["STATUS", "ADD", "CHECK"] {
                if command != "ADD" || attachment.conf["type"] == "tuning" {
                    let outcome = bounded(attachment.call(command, Some(result))).run();
                    assert_eq!(outcome.status, 0, "{command}: {outcome:?}");
                }
            }
        }
        let valid = [(bystander.container_id.as_str(), "eth0")];
        for attachment in [&**chain, &chain.main] {
            attachment.gc(&valid).ok();
            let outcome = bounded(attachment.call("DEL", None)).run();
            assert!(is_answer(&outcome) && outcome.status == 0, "{outcome:?}");
        }
        assert!(started.elapsed() < patience(20), "{:?}", started.elapsed());
        bystander.main.check(&bystander.result).ok();
        let leases = lab.host.sh(
            "cd /var/lib/cni/networks/net1 && for f in *; do [ ! -s \"$f\" ] || echo \"$f\"; done",
        );
        assert_eq!(leases, format!("{}\nlast_reserved_ip.0\n", ips(&bystander.result)[0]));
    });
}
