//! ovs: ports of a real OVSDB, and packets through a real vswitchd.

mod datapath;

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, interface, with};
use crate::support::contract::assert_del_leaves_nothing;
use crate::support::failed_add::{assert_fails, rows};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge::warm_up;
use crate::support::networks::ovs::{column, conf, node, ports, serve, stop};
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::tracer::{Then, trace};

/// Runs a case on a node with a database and the bridge `ovs0`.
fn on_a_node(case: impl Fn(&Lab)) {
    for_ours("ovs", |lab| {
        if node(lab) {
            case(lab);
        }
    });
}

fn without_ipam(keys: Value) -> Value {
    with(&with(&conf(), json!({"ipam": null})), keys)
}

/// Keys, and the mode, the tag and the trunks of the row.
const MODES: &str = r#"
{} | [] [] []
{"vlan": 100} | access 100 []
{"vlan": 0} | access 0 []
{"trunk": [{"id": 30}, {"minID": 20, "maxID": 22}]} | trunk [] [20, 21, 22, 30]
{"trunk": [{"id": 5}]} | trunk [] [5]
{"trunk": [{"id": 30}, {"minID": 20, "maxID": 22}], "vlan": 100} | trunk [] [20, 21, 22, 30]
{"trunk": [{"id": 30}, {"minID": 20, "maxID": 22}], "vlan": 100, "vlan_mode": "native-tagged"} | native-tagged 100 [20, 21, 22, 30]
{"vlan": 100, "vlan_mode": "native-untagged"} | native-untagged 100 []
"#;

/// The original's CHECK crashes on a trunk with one VLAN.
fn each_mode_of_vlans_is_a_row_and_del_removes_it(lab: &Lab) {
    for [keys, columns] in cells(MODES) {
        let (_, ovs, before) = lab.watched(&without_ipam(serde_json::from_str(keys).unwrap()));
        let result = ovs.add();
        let port = interface(&result, 0);
        let found = ["vlan_mode", "tag", "trunks"].map(|name| column(lab, "port", (&port, name)));
        assert_eq!(found.join(" "), columns, "{keys}");
        ovs.check(&result).ok();
        assert_del_leaves_nothing(&ovs, &before);
    }
}

/// The original's `external_ids` lack container and network, and a path of a namespace may be used
/// again.
#[test]
fn the_rows_have_what_the_configuration_says() {
    let keys = json!({"mtu": 1400, "ofport_request": 9, "interface_type": "system",
        "args": {"cni": {"ovnPort": "logical", "mac": "02:00:00:00:00:07"}}});
    on_a_node(|lab| {
        let (container, ovs) = lab.place(&with(&conf(), keys.clone()));
        let result = ovs.args("IgnoreUnknown=1;K8S_POD_UID=u-1").add();
        let port = interface(&result, 0);
        let host = lab.host.link(&port).unwrap();
        let link = container.link("eth0").unwrap();
        let expected = json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": port, "mac": host["address"]},
                {"name": "eth0", "mac": "02:00:00:00:00:07", "sandbox": container.netns},
            ],
            "ips": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1", "interface": 1}],
        });
        assert_eq!(result, expected);
        assert_eq!(link["address"], "02:00:00:00:00:07");
        assert_eq!((&host["mtu"], &link["mtu"]), (&json!(1400), &json!(1400)));
        assert_eq!(host["operstate"], "UP");
        assert_eq!(ports(lab), std::slice::from_ref(&port));
        let ids = format!(
            "{{contId={}, contIface=eth0, contNetns={}, contPodUid=u-1, net=net1, owner=ovs-cni.network.kubevirt.io}}",
            container.id, container.netns
        );
        let found = column(lab, "port", (&port, "external_ids")).replace('"', "");
        assert_eq!(found, ids);
        let of_interface = ["type", "ofport_request", "external_ids"];
        let found = of_interface.map(|name| column(lab, "interface", (&port, name)));
        assert_eq!(found, ["system", "9", "{iface-id=logical}"]);
    });
}

/// The original sends gratuitous ARP instead.
#[test]
fn the_hardware_address_is_that_of_the_ip_address() {
    let v6 = json!({"type": "static", "addresses": [{"address": "2001:db8::1/64"}]});
    on_a_node(|lab| {
        for (ipam, mac) in [
            (&conf()["ipam"], "0a:58:0a:0a:00:02"),
            // the first octets of what `printf 2001:db8::1 | sha256sum` prints
            (&v6, "0a:58:5a:fd:19:e8"),
        ] {
            let (container, ovs, result) = lab.added(&without_ipam(json!({"ipam": ipam})));
            assert_eq!(result["interfaces"][1]["mac"], mac);
            assert_eq!(container.link("eth0").unwrap()["address"], mac);
            ovs.check_and_del(&result);
        }
    });
}

fn a_logical_port_of_ovn_is_on_br_int(lab: &Lab) {
    lab.host.sh("ovs-vsctl --no-wait add-br br-int");
    let (_, ovs) = lab.place(&without_ipam(json!({"bridge": null})));
    let port = interface(&ovs.args("OvnPort=lp1").add(), 0);
    assert_eq!(lab.host.sh("ovs-vsctl --no-wait list-ports br-int").trim(), port);
    assert_eq!(column(lab, "interface", (&port, "external_ids:iface-id")), "lp1");
}

fn del_spares_a_link_of_another_kind(lab: &Lab) {
    let (container, ovs) = lab.place(&conf());
    container.sh("ip link add eth0 type veth peer name other");
    let before = Watch::start(lab, &[&container]);
    ovs.del();
    before.assert_unchanged("DEL");
}

/// The original leaves numbers out of range to the database, passes over half of a range, and
/// leaves the veth pair.
#[test]
fn a_failed_add_leaves_nothing() {
    let cases = rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
subnet full | {"ipam": {"subnet": "10.10.0.0/30"}} | 101: 10.10.0.1-10.10.0.2 | host: mkdir -p /var/lib/cni/networks/net1 && printf 'other\neth0' >/var/lib/cni/networks/net1/10.10.0.2
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
no bridge | {"bridge": null} | 7: failed to get bridge name
bridge missing | {"bridge": "ovs9"} | 11: failed to find bridge ovs9
device | {"deviceID": "0000:03:02.3"} | 7: deviceID
TLS | {"socket_file": "ssl:127.0.0.1:6640"} | 7: has no TLS
internal | {"interface_type": "internal"} | 7: interface_type
reserved | {"vlan": 4095} | 7: expected 0 to 4094
untagged | {"trunk": [{"id": 0}]} | 7: trunk[0].id: 0
no native VLAN | {"vlan_mode": "native-tagged"} | 7: native VLAN
ofport | {"ofport_request": 65280} | 7: expected 0 to 65279
route | {"ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.98.0.1"}]}} | 100: 10.98.0.1
"#,
    );
    on_a_node(|lab| cases.iter().for_each(|case| assert_fails(lab, &conf(), case)));
}

/// A row of another owner may have any name. The original's ADD deletes every port with an error,
/// of any pod. Their ADD may be at work.
fn ports_of_others_are_never_touched(lab: &Lab) {
    let (container, ovs, result) = lab.added(&conf());
    let port = interface(&result, 0);
    ovs.del();
    lab.host.sh(&format!(
        "ovs-vsctl --no-wait add-port ovs0 {port} -- set port {port} external_ids:contId={} external_ids:contIface=eth0 external_ids:net=net1
         ovs-vsctl --no-wait add-port ovs0 theirs -- set port theirs external_ids:owner=ovs-cni.network.kubevirt.io external_ids:contIface=eth0 external_ids:contNetns={}",
        container.id, container.netns
    ));
    let before = Watch::start(lab, &[&container]);
    let error = ovs.try_add().fails(102, &port);
    assert!(error.msg.contains("constraint violation"), "{error:?}");
    before.assert_unchanged("the refused ADD");
    ovs.del();
    ovs.gc(&[]).ok();
    before.assert_unchanged("DEL and GC");
}

/// vswitchd reads the flags of a new port and writes them back with IFF_PROMISC: IFF_UP is lost if
/// ADD sets it in between.
fn the_host_end_is_up_before_its_row_and_set_up_again(lab: &Lab) {
    let (_, ovs) = lab.place(&without_ipam(json!({})));
    let ends = "ip -br link show type veth | grep -v uplink";
    let (mut at_row, mut is_down) = (None, false);
    let traced = trace(&ovs.call("ADD", None), |stop| {
        let sends = [libc::SYS_write, libc::SYS_sendto].contains(&stop.call);
        let sent = || stop.memory(stop.args[1], stop.args[2] as usize);
        if sends && stop.result.is_none() {
            if String::from_utf8_lossy(&sent()).contains("\"insert\"") {
                at_row = Some(lab.host.sh(ends));
            }
        } else if at_row.is_some() && !is_down && sends && stop.is_netlink() {
            is_down = true;
            lab.host.sh(&format!("ip link set $({ends} | cut -d@ -f1) down"));
        }
        Then::Go
    });
    let result = traced.outcome.ok();
    let at_row = at_row.unwrap();
    assert!(at_row.contains(",UP"), "the row is written first: {at_row}");
    assert!(is_down);
    assert_eq!(lab.host.link(&interface(&result, 0)).unwrap()["operstate"], "UP");
    ovs.check_and_del(&result);
}

/// A database outlives a restart of the host, and an ADD may be killed. The original fails, or the
/// rows stay. The database outlives a restart.
fn ports_that_an_earlier_add_has_left_are_replaced(lab: &Lab) {
    let (container, ovs, before) = lab.watched(&without_ipam(json!({"vlan": 5})));
    lab.host.sh(&format!("ip link del {}", interface(&ovs.add(), 0)));
    let again = ovs.clone().conf(json!({"vlan": 6}));
    let result = again.add();
    assert_eq!(ports(lab), [interface(&result, 0)]);
    again.check(&result).ok();
    lab.host.sh(&format!(
        "ovs-vsctl --no-wait add-port ovs0 second -- set port second external_ids:contId={} external_ids:contIface=eth0 \
         external_ids:net=net1 external_ids:owner=ovs-cni.network.kubevirt.io",
        container.id
    ));
    ovs.del();
    before.assert_unchanged("DEL of two ports");
}

/// The original's CHECK needs the file.
fn del_needs_no_kept_file(lab: &Lab) {
    for damage in ["truncate -s 0", "truncate -s 20", "rm"] {
        let (_, ovs, before) = lab.watched(&conf());
        let result = ovs.add();
        lab.host.sh(&format!("{damage} /var/lib/cni/ovs-cni/cache/*"));
        ovs.check(&result).ok();
        ovs.conf(json!({"vlan": "x"})).del();
        before.assert_unchanged(damage);
    }
}

#[test]
fn the_flat_file_gives_what_the_configuration_leaves_out() {
    let keys = json!({"bridge": null, "configuration_path": "/run/ovs.conf", "mtu": 1350});
    on_a_node(|lab| {
        lab.host.sh("echo '{\"bridge\":\"ovs0\",\"vlan\":44,\"mtu\":1300}' >/run/ovs.conf");
        let (container, ovs, before) = lab.watched(&with(&conf(), keys.clone()));
        let result = ovs.add();
        assert_eq!(column(lab, "port", (&interface(&result, 0), "tag")), "44");
        assert_eq!(container.link("eth0").unwrap()["mtu"], 1350);
        ovs.check(&result).ok();
        ovs.status().ok();
        ovs.gc(&[(&container.id, "eth0")]).ok();
        ovs.assert_ends(&result, &before);
        lab.host.sh("echo '{\"bridge\":7}' >/run/ovs.conf");
        ovs.try_add().fails(6, "parse ovs config file /run/ovs.conf: error: ");
    });
}

/// The original's STATUS and GC succeed and do nothing.
fn status_asks_the_database_for_the_bridge(lab: &Lab) {
    let (_, ovs) = lab.place(&conf());
    ovs.status().ok();
    ovs.clone().conf(json!({"bridge": "ovs9"})).status().fails(50, "failed to find bridge ovs9");
    ovs.clone().conf(json!({"ipam": {"type": "x"}})).status().fails(104, "");
    stop(lab);
    ovs.status().fails(50, "ovsdb socket unix:/var/run/openvswitch/db.sock");
    serve(lab);
    ovs.status().ok();
}

// --- the original's state: its ports, and the files that it keeps ---

const CACHE: &str = "/var/lib/cni/ovs-cni/cache";

/// Makes what the original makes: its pair, its rows and its file.
fn attach_as_the_original(lab: &Lab, container: &Container, name: &str) {
    lab.host.sh(&format!(
        "set -e
         ip link add {name} type veth peer name eth0 netns {netns_name}
         ovs-vsctl --no-wait add-port ovs0 {name} -- set port {name} vlan_mode=access tag=3 \
            external_ids:contPodUid='\"\"' external_ids:contIface=eth0 \
            external_ids:contNetns={netns} external_ids:owner=ovs-cni.network.kubevirt.io
         mkdir -p -m 700 {CACHE} && echo '{kept}' >{CACHE}/{id}-eth0",
        netns_name = container.netns.rsplit('/').next().unwrap(),
        netns = container.netns,
        kept = kept(Value::Null),
        id = container.id,
    ));
}

/// The file of an attachment.
fn kept(vlan: Value) -> Value {
    let netconf = with(&conf(), json!({"socket_file": "", "vlan": vlan}));
    json!({"Netconf": netconf, "OrigIfName": "", "UserspaceMode": false, "VdpaType": ""})
}

fn the_kept_file_is_the_original_s(lab: &Lab) {
    let (container, ovs, result) = lab.added(&with(&conf(), json!({"vlan": 3})));
    let path = format!("{CACHE}/{}-eth0", container.id);
    assert_eq!(lab.host.json(&format!("cat {path}")), kept(json!(3)));
    assert_eq!(lab.host.sh(&format!("stat -c '%a' {path} {CACHE}")), "600\n700\n");
    // The original finds the port by these three.
    let ids = column(lab, "port", (&interface(&result, 0), "external_ids"));
    for id in ["contIface=eth0", "owner=ovs-cni.network.kubevirt.io", "contNetns="] {
        assert!(ids.contains(id), "{ids}");
    }
    ovs.del();
    assert_eq!(lab.host.sh(&format!("ls -A {CACHE}")), "");
}

fn del_removes_what_the_original_attached(lab: &Lab) {
    warm_up(lab, &conf());
    let (container, ovs, before) = lab.watched(&conf());
    attach_as_the_original(lab, &container, "vethabcdef01");
    ovs.del();
    before.assert_unchanged("the original's ADD");
    // Its namespace has gone, and left two rows of one path: the original deletes neither.
    attach_as_the_original(lab, &container, "vethabcdef01");
    lab.host.sh(&format!(
        "ovs-vsctl --no-wait add-port ovs0 vethabcdef02 -- set port vethabcdef02 external_ids:contIface=eth0 \
         external_ids:contNetns={} external_ids:owner=ovs-cni.network.kubevirt.io",
        container.netns
    ));
    ovs.del();
    before.assert_unchanged("two rows of the original");
}

/// The path of a namespace may be another container's by now.
fn without_its_file_a_port_of_the_original_stays(lab: &Lab) {
    let container = lab.container();
    attach_as_the_original(lab, &container, "vethabcdef01");
    lab.attach(&container, &conf()).id("another").del();
    assert_eq!(ports(lab), ["vethabcdef01"]);
}

fn gc_removes_files_of_stale_attachments_only(lab: &Lab) {
    let [first, second] = [lab.container(), lab.container()];
    attach_as_the_original(lab, &first, "vethabcdef01");
    attach_as_the_original(lab, &second, "vethabcdef02");
    lab.host.sh(&format!(
        "sed s/net1/net2/ {CACHE}/{0}-eth0 >{CACHE}/other-eth0; echo x >{CACHE}/torn-eth0",
        first.id
    ));
    lab.attach(&first, &conf()).gc(&[(&first.id, "eth0")]).ok();
    let left = format!("{}-eth0\nother-eth0\ntorn-eth0\n", first.id);
    assert_eq!(lab.host.sh(&format!("ls {CACHE}")), left);
}

// --- a database that does not answer: what needs none is done all the same ---

fn del_does_the_rest_and_the_next_del_or_gc_removes_the_port(lab: &Lab) {
    for next in ["DEL", "GC"] {
        let (container, ovs, before) = lab.watched(&conf());
        let port = interface(&ovs.add(), 0);
        stop(lab);
        ovs.try_del().fails(11, "failed to connect to ovsdb socket");
        assert!(lab.host.link(&port).is_none() && container.link("eth0").is_none());
        lab.host.sh("! ls /var/lib/cni/networks/net1 | grep '^10'");
        ovs.gc(&[]).fails(11, "");
        serve(lab);
        assert_eq!(ports(lab), [port]);
        let ended = if next == "DEL" { ovs.try_del() } else { ovs.gc(&[]) };
        ended.ok();
        before.assert_unchanged(next);
    }
}

fn add_is_undone_and_may_be_repeated(lab: &Lab) {
    stop(lab);
    let (_, ovs, before) = lab.watched(&conf());
    ovs.try_add().fails(11, "is ovsdb-server running");
    before.assert_unchanged("the failed ADD");
    serve(lab);
    ovs.add();
}

/// A stopped process holds its socket open.
fn a_server_that_hangs_is_not_waited_for_long(lab: &Lab) {
    let (_, ovs) = lab.place(&conf());
    lab.host.sh("kill -STOP $(cat /run/openvswitch/ovsdb.pid)");
    let begin = Instant::now();
    ovs.try_add().fails(11, "no answer within 5 s");
    assert!(begin.elapsed() < Duration::from_secs(20));
    lab.host.sh("kill -CONT $(cat /run/openvswitch/ovsdb.pid)");
    ovs.add();
}

/// Answers the first client's request in this way, and then closes the connection.
fn answer(listener: UnixListener, answer: &'static str) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(answer.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // What is closed with the request unread is a reset in place of an end.
        io::copy(&mut client, &mut io::sink()).unwrap();
    })
}

#[test]
fn a_server_that_answers_something_else_is_named() {
    let answers = [
        "HTTP/1.1 400 Bad Request",
        r#"{"id":1,"error":null,"result":[{"rows":7},{"rows":[]}]}"#,
        r#"{"id":1,"error":null,"result":[{"rows":[{}]},{"rows":[{"_uuid":["uuid"]}]}]}"#,
        r#"{"id":1,"error":"unknown method","result":null}"#,
        "",
    ];
    on_a_node(|lab| {
        for (index, text) in answers.into_iter().enumerate() {
            let socket = format!("/run/answer-{index}.sock");
            let server = answer(UnixListener::bind(lab.path(&socket)).unwrap(), text);
            let (_, ovs) = lab.place(&with(&conf(), json!({"socket_file": socket})));
            let code = if text.is_empty() { 11 } else { 105 };
            ovs.try_add().fails(code, "");
            server.join().unwrap();
        }
    });
}

fn a_database_behind_tcp_is_used(lab: &Lab) {
    lab.host
        .sh("ovs-appctl -t /run/openvswitch/ovsdb.ctl ovsdb-server/add-remote ptcp:6640:127.0.0.1");
    for socket in ["tcp:127.0.0.1:6640", "tcp:127.0.0.1", "unix:/run/openvswitch/db.sock"] {
        let (_, ovs, result) = lab.added(&with(&conf(), json!({"socket_file": socket})));
        ovs.check(&result).ok();
        // DEL knows the socket by the kept file, whatever the configuration says by now.
        ovs.conf(json!({"socket_file": "/nonexistent"})).del();
        assert_eq!(ports(lab), [""; 0]);
    }
}

each_case! { |case| on_a_node(case);
    each_mode_of_vlans_is_a_row_and_del_removes_it
    a_logical_port_of_ovn_is_on_br_int
    del_spares_a_link_of_another_kind
    ports_of_others_are_never_touched
    the_host_end_is_up_before_its_row_and_set_up_again
    ports_that_an_earlier_add_has_left_are_replaced
    del_needs_no_kept_file
    status_asks_the_database_for_the_bridge
    the_kept_file_is_the_original_s
    del_removes_what_the_original_attached
    without_its_file_a_port_of_the_original_stays
    gc_removes_files_of_stale_attachments_only
    del_does_the_rest_and_the_next_del_or_gc_removes_the_port
    add_is_undone_and_may_be_repeated
    a_server_that_hangs_is_not_waited_for_long
    a_database_behind_tcp_is_used
}
