//! tap with `selinuxContext`, without a policy: initial contexts are built into the kernel.

use serde_json::json;

use super::{data, plugin, tap};
use crate::support::attachment::{skip, with};
use crate::support::netns::Lab;
use crate::support::networks::tap::layer_two;
use crate::support::snapshot::Watch;

/// Not `kernel`, which every process has without a policy.
const CONTEXT: &str = "unlabeled";

/// Since Linux 6.8 a program that is executed gets the context `init` as long as there is no policy.
fn changes_contexts(lab: &Lab) -> bool {
    let executed = lab.host.try_sh(&format!(
        "printf {CONTEXT} >/proc/self/attr/exec && exec grep -aw {CONTEXT} /proc/self/attr/current"
    ));
    let changes = executed.status.success();
    if !changes {
        skip("SELinux that changes contexts without a policy, as before Linux 6.8");
    }
    changes
}

/// The command line of a process in that context. The test delays the creation of the tap, so that
/// the process can be observed.
fn seen_in_context(lab: &Lab) -> String {
    lab.host.sh(&format!(
        "for try in $(seq 600); do
            for context in $(grep -lsaw {CONTEXT} /proc/[0-9]*/attr/current); do
                line=$(tr '\\0' ' ' <${{context%/attr/current}}/cmdline) && echo \"$line\" && exit
            done
            sleep 0.05
        done"
    ))
}

#[test]
fn the_tap_is_made_in_the_context_asked_for() {
    plugin().for_each_peer(|lab| {
        if !changes_contexts(lab) {
            return;
        }
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let own =
            json!({"selinuxContext": CONTEXT, "owner": 1000, "group": 1001, "multiQueue": true});
        let attachment = lab.attach(&container, &with(&layer_two(), own));
        let mut call = attachment.call("ADD", None);
        let strace =
            "strace -f -qq -o /dev/null -e trace=ioctl -e inject=ioctl:delay_enter=2000000";
        call.wrapper.extend(strace.split(' ').map(str::to_owned));
        let maker = std::thread::scope(|scope| {
            let adding = scope.spawn(|| call.run().ok());
            let maker = seen_in_context(lab);
            adding.join().unwrap();
            maker
        });
        assert!(maker.contains("tap"), "it makes the tap: {maker:?}");
        let link = tap(&container);
        let has = data(&link);
        assert_eq!((&has["type"], &has["multi_queue"]), (&json!("tap"), &json!(true)), "{has}");
        assert!(
            has.get("user").is_some() && has.get("group").is_some(),
            "what was asked for goes along: {has}"
        );
        attachment.del();
        before.assert_unchanged("ADD");
    });
}
