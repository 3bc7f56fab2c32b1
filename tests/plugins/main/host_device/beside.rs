//! Other plugins in a container that has a device of the host: a link there may be that device.

use serde_json::Value;

use super::{device, layer_two};
use crate::plugins::main::{bridge, stacked, tap};
use crate::support::attachment::for_ours;
use crate::support::call::Call;
use crate::support::netns::{Container, Lab};
use crate::support::tracer::{Then, trace};

/// All links but those that stay.
const OTHERS: &str = "ip -o link | grep -vE ' (lo|eth0|uplink|br0)(@[^ ]*)?: ' || true";

/// Runs the call and kills it before its system call of this number; whether it came that far.
fn kill_before(call: &Call, number: usize) -> bool {
    let mut calls = 0;
    let traced = trace(call, |stop| {
        calls += usize::from(stop.is_own && stop.result.is_none());
        if calls == number { Then::Kill } else { Then::Go }
    });
    traced.killed
}

/// Kills ADD before each of its system calls; DEL leaves nothing of it.
fn assert_killed_adds_leave_nothing(lab: &Lab, container: &Container, conf: &Value) {
    let attachment = lab.attach(container, conf).ifname("eth1");
    let mut kills = 0;
    while kill_before(&attachment.call("ADD", None), kills + 1) {
        kills += 1;
        attachment.del();
        let when = format!("{}: left after kill {kills}", conf["type"]);
        assert_eq!(container.sh(OTHERS), "", "{when}");
        assert_eq!(lab.host.sh(OTHERS), "", "{when}");
    }
    assert!(kills > 50, "{}: {kills} system calls", conf["type"]);
    attachment.del();
}

/// Between its creation and its alias or record nothing but its name and kind say whose a link is.
#[test]
fn killed_adds_beside_a_device_leave_nothing_after_del() {
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let device = lab.attach(&container, &layer_two());
        device.add();
        for conf in [bridge::conf(), stacked::MACVLAN.conf(), tap::conf()] {
            assert_killed_adds_leave_nothing(lab, &container, &conf);
        }
        device.del();
    });
}
