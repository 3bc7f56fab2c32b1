//! GC of a chain with every plugin that is chained after bridge, in libcni's order: DEL of recorded
//! attachments, then GC of each plugin.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::{binary, farm};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bandwidth::{both, can_limit};
use crate::support::snapshot::Watch;
use crate::support::synced;

fn list(lab: &Lab, network: u8, block: u8) -> Value {
    let main = json!({
        "type": "bridge", "bridge": format!("br{network}"), "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
        "ipam": {"type": "host-local", "subnet": format!("10.{block}.{network}.0/24")},
    });
    let mut plugins = vec![
        main,
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        json!({"type": "firewall"}),
        json!({"type": "tuning", "mtu": 1400}),
    ];
    if can_limit(lab) {
        plugins.push(with(&both(), json!({"type": "bandwidth"})));
    }
    json!({"cniVersion": "1.1.0", "name": format!("net{network}"), "plugins": plugins})
}

/// Runs a command line of cnitool.
fn cnitool(lab: &Lab, command: &str, network: u8, container: &Container, port: u16) {
    let ports =
        json!({"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]});
    lab.host.sh(&format!(
        "export CNI_PATH={} NETCONFPATH=/run/net.d CAP_ARGS='{ports}'; {} cnitool {command} net{network} {}",
        farm().display(),
        binary().display(),
        container.netns
    ));
}

/// Makes two attachments to `net1`, both gone, and two to `net2`, one of them gone; then runs
/// `collect` and expects that only those of `net1` are removed. `block` is an address block of the
/// test's own.
fn assert_collects_one_network(block: u8, collect: impl Fn(&Lab, &dyn Fn(&str, u8, &Container))) {
    for_ours("bridge", |lab| {
        for network in [1, 2] {
            lab.configure(&list(lab, network, block));
        }
        let call = |command: &str, network: u8, container: &Container| {
            let port = container.id.trim_start_matches("container-").parse::<u16>().unwrap();
            cnitool(lab, command, network, container, 8000 + port);
        };
        for network in [1, 2] {
            let container = lab.container();
            call("add", network, &container);
            call("del", network, &container);
        }
        let others = [lab.container(), lab.container()];
        others.iter().for_each(|container| call("add", 2, container));
        others[1].vanish();
        let before = Watch::start(lab, &[&others[0]]);
        let gone = [lab.container(), lab.container()];
        for container in &gone {
            call("add", 1, container);
            container.vanish();
        }
        assert!(before.changes_now().lines().count() > 10);
        collect(lab, &call);
        before.assert_unchanged("the attachments that were collected");
        call("check", 2, &others[0]);
    });
}

#[test]
fn our_cnitool_collects_a_chain_and_no_other_network() {
    assert_collects_one_network(221, |lab, call| call("gc", 1, &lab.container()));
}

/// Also removes an attachment without a record, because plugins get the list of valid
/// attachments.
#[test]
fn net_gc_collects_a_chain_and_no_other_network() {
    assert_collects_one_network(222, |lab, _| {
        let record = lab.host.sh("ls /var/lib/cni/results/net1-* | head -n 1");
        lab.host.sh(&format!("rm {record}"));
        let told = synced::net(lab, "gc net1").run().stdout;
        assert!(told.ends_with("detached 1; without a record: removed 1, spared 0\n"), "{told}");
    });
}
