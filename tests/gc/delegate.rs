//! GC with a foreign IPAM plugin that fails: the error is reported and the rest of the stale state
//! is removed.

use serde_json::json;

use super::subjects::SUBJECTS;
use crate::support::attachment::{for_ours, with};
use crate::support::snapshot::Watch;

/// Assigns an address at ADD and fails at GC with an error object of its own.
const FAILING: &str = r#"#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.1.0","ips":[{"address":"10.10.0.'${CNI_CONTAINERID#container-}'/24","gateway":"10.10.0.1"}]}';;
GC) echo '{"cniVersion":"1.1.0","code":117,"msg":"the pool is shut"}'; exit 1;;
esac
"#;

/// Covers the plugins that keep more state on the host than their IPAM plugin does.
#[test]
fn failed_ipam_gc_is_reported_and_other_stale_state_goes() {
    for plugin in ["bridge", "ptp", "host-device"] {
        for subject in SUBJECTS.iter().filter(|subject| subject.plugin == plugin) {
            for_ours(plugin, |lab| {
                let Some(_kept) = subject.prepare(lab) else { return };
                lab.write("/run/bin/failing", FAILING);
                lab.host.sh("chmod +x /run/bin/failing");
                let path = lab.path("/run/bin").display().to_string();
                let conf =
                    |nth| with(&subject.chain(1, nth)[0], json!({"ipam": {"type": "failing"}}));
                let call = |command: &str, nth, container| {
                    let none = json!({"cni.dev/valid-attachments": []});
                    let attachment = lab.attach(container, &conf(nth)).conf(none);
                    attachment.call(command, None).env("CNI_PATH", &path).run()
                };
                let warm = lab.container();
                call("ADD", 0, &warm).ok();
                call("DEL", 0, &warm).ok();
                let before = Watch::start(lab, &[]);
                let stale = lab.container();
                call("ADD", 1, &stale).ok();
                assert_ne!(before.changes_now(), "", "something is to be removed");
                call("GC", 1, &stale).fails(117, "the pool is shut");
                before.assert_unchanged("the ADD that was forgotten");
            });
        }
    }
}
