//! Network configurations for ovs, and a real Open vSwitch in a lab.

use serde_json::{Value, json};

use super::bridge::dual_stack;
use crate::support::attachment::{has_programs, with};
use crate::support::dhcp::wait_until;
use crate::support::netns::Lab;

/// The directory of the socket and the database, in the lab's own /run.
const DIR: &str = "/run/openvswitch";

/// A network on the bridge `ovs0`, with a minute for the carrier of its ports: links get it from a
/// thread of the kernel, which has waited for more than the plugin's 3 s in an emulated machine.
pub fn conf() -> Value {
    with(
        &json!({"cniVersion": "1.1.0", "name": "net1", "type": "ovs", "bridge": "ovs0"}),
        json!({"ipam": {"type": "host-local", "subnet": "10.10.0.0/24"}, "link_state_check_retries": 100}),
    )
}

/// The same with addresses of both families and every column of a port.
pub fn every_key() -> Value {
    let ipam = dual_stack()["ipam"].clone();
    let keys = json!({"vlan": 7, "vlan_mode": "native-untagged", "trunk": [{"minID": 20, "maxID": 22}],
        "mtu": 1400, "ofport_request": 9, "interface_type": "system"});
    with(&with(&conf(), json!({"ipam": null})), with(&keys, json!({"ipam": ipam})))
}

/// Runs a program until the lab ends.
fn run_in(lab: &Lab, command: &str) {
    let pid = lab.pid();
    let script = format!(
        "( {command} & ours=$!; while kill -0 {pid}; do sleep 1; done; kill $ours ) >/dev/null 2>&1 &"
    );
    lab.host.sh(&script);
}

fn wait_for(lab: &Lab, condition: &str) {
    wait_until(condition, 10, || lab.host.try_sh(condition).status.success());
}

/// Starts the database server; false after a skip if it is not installed.
pub fn database(lab: &Lab) -> bool {
    if !has_programs(&["ovsdb-server"]) {
        return false;
    }
    lab.host.sh(&format!(
        "mkdir -p {DIR} && ovsdb-tool create {DIR}/conf.db /usr/share/openvswitch/vswitch.ovsschema"
    ));
    serve(lab);
    lab.host.sh("ovs-vsctl --no-wait init");
    true
}

/// Starts the server of a database that exists.
pub fn serve(lab: &Lab) {
    let files = format!("--pidfile={DIR}/ovsdb.pid --unixctl={DIR}/ovsdb.ctl");
    run_in(lab, &format!("ovsdb-server {DIR}/conf.db --remote=punix:{DIR}/db.sock {files}"));
    wait_for(lab, "ovs-vsctl --no-wait --timeout=2 show");
}

/// Stops the server of the database.
pub fn stop(lab: &Lab) {
    lab.host.sh(&format!("kill $(cat {DIR}/ovsdb.pid); while [ -e {DIR}/ovsdb.pid ]; do sleep 0.01; done; rm -f {DIR}/db.sock"));
}

/// A database with the bridge `ovs0`, and nobody who makes its ports.
pub fn node(lab: &Lab) -> bool {
    database(lab) && {
        lab.host.sh("ovs-vsctl --no-wait add-br ovs0");
        true
    }
}

/// A node whose vswitchd forwards with this datapath: `netdev` in its own process, or `system` in
/// the kernel.
pub fn switch(lab: &Lab, datapath: &str) -> bool {
    if !has_programs(&["ovs-vswitchd"]) || !database(lab) {
        return false;
    }
    start_vswitchd(lab, datapath);
    lab.host.sh(&format!(
        "ovs-vsctl --timeout=90 add-br ovs0 -- set bridge ovs0 datapath_type={datapath}"
    ));
    true
}

/// Starts vswitchd.
pub fn start_vswitchd(lab: &Lab, datapath: &str) {
    let only = if datapath == "netdev" { "--disable-system" } else { "" };
    let files = ["pidfile", "unixctl", "log-file"].map(|it| format!(" --{it}={DIR}/vswitchd.{it}"));
    run_in(lab, &format!("ovs-vswitchd unix:{DIR}/db.sock {only} {}", files.concat()));
    wait_for(lab, &format!("[ -e {DIR}/vswitchd.pidfile ]"));
}

/// Stops vswitchd.
pub fn stop_vswitchd(lab: &Lab) {
    lab.host.sh(&format!(
        "kill $(cat {DIR}/vswitchd.pidfile); while [ -e {DIR}/vswitchd.pidfile ]; do sleep 0.05; done"
    ));
}

/// A column of a row, as ovs-vsctl prints it.
pub fn column(lab: &Lab, table: &str, (name, column): (&str, &str)) -> String {
    lab.host.sh(&format!("ovs-vsctl --no-wait get {table} {name} {column}")).trim().to_owned()
}

/// The names of the bridge's ports.
pub fn ports(lab: &Lab) -> Vec<String> {
    lab.host.sh("ovs-vsctl --no-wait list-ports ovs0").lines().map(str::to_owned).collect()
}
