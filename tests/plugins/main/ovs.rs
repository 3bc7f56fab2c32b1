//! ovs: ports of a real OVSDB, and packets through a real vswitchd.

mod datapath;
mod original;
mod unreachable;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, interface, with};
use crate::support::contract::{assert_del_leaves_nothing, assert_dns_of_network_or_ipam};
use crate::support::failed_add::fail;
use crate::support::failed_add::rows;
use crate::support::netns::Lab;
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::ovs::{column, conf, node, ports, serve, stop};
use crate::support::snapshot::Watch;
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

/// The original's CHECK crashes on a trunk with one VLAN.
#[test]
fn each_mode_of_vlans_is_a_row_and_del_removes_it() {
    let trunk = json!([{"id": 30}, {"minID": 20, "maxID": 22}]);
    let cases = [
        (json!({}), ["[]", "[]", "[]"]),
        (json!({"vlan": 100}), ["access", "100", "[]"]),
        (json!({"vlan": 0}), ["access", "0", "[]"]),
        (json!({"trunk": trunk}), ["trunk", "[]", "[20, 21, 22, 30]"]),
        (json!({"trunk": [{"id": 5}]}), ["trunk", "[]", "[5]"]),
        (json!({"trunk": trunk, "vlan": 100}), ["trunk", "[]", "[20, 21, 22, 30]"]),
        (
            json!({"trunk": trunk, "vlan": 100, "vlan_mode": "native-tagged"}),
            ["native-tagged", "100", "[20, 21, 22, 30]"],
        ),
        (json!({"vlan": 100, "vlan_mode": "native-untagged"}), ["native-untagged", "100", "[]"]),
    ];
    on_a_node(|lab| {
        for (keys, columns) in &cases {
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let ovs = lab.attach(&container, &without_ipam(keys.clone()));
            let result = ovs.add();
            let port = interface(&result, 0);
            let found =
                ["vlan_mode", "tag", "trunks"].map(|name| column(lab, "port", (&port, name)));
            assert_eq!(found, *columns, "{keys}");
            ovs.check(&result).ok();
            assert_del_leaves_nothing(&ovs, &before);
        }
    });
}

/// The original's `external_ids` lack container and network, and a path of a namespace may be used
/// again.
#[test]
fn the_rows_have_what_the_configuration_says() {
    on_a_node(|lab| {
        let container = lab.container();
        let keys = json!({"mtu": 1400, "ofport_request": 9, "interface_type": "system",
            "args": {"cni": {"ovnPort": "logical", "mac": "02:00:00:00:00:07"}}});
        let ovs =
            lab.attach(&container, &with(&conf(), keys)).args("IgnoreUnknown=1;K8S_POD_UID=u-1");
        let result = ovs.add();
        let port = interface(&result, 0);
        let host = lab.host.link(&port).unwrap();
        let link = container.link("eth0").unwrap();
        assert_eq!(
            result,
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [
                    {"name": port, "mac": host["address"]},
                    {"name": "eth0", "mac": "02:00:00:00:00:07", "sandbox": container.netns},
                ],
                "ips": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1", "interface": 1}],
            })
        );
        assert_eq!(link["address"], "02:00:00:00:00:07");
        assert_eq!((&host["mtu"], &link["mtu"]), (&json!(1400), &json!(1400)));
        assert_eq!(host["operstate"], "UP");
        assert_eq!(ports(lab), std::slice::from_ref(&port));
        let ids = format!(
            "{{contId={}, contIface=eth0, contNetns=\"{}\", contPodUid=u-1, net=net1, owner=ovs-cni.network.kubevirt.io}}",
            container.id, container.netns
        );
        let found = column(lab, "port", (&port, "external_ids")).replace('"', "");
        assert_eq!(found, ids.replace('"', ""));
        let of_interface = ["type", "ofport_request", "external_ids"];
        let found = of_interface.map(|name| column(lab, "interface", (&port, name)));
        assert_eq!(found, ["system", "9", "{iface-id=logical}"]);
    });
}

/// The original sends gratuitous ARP instead.
#[test]
fn the_hardware_address_is_that_of_the_ip_address() {
    on_a_node(|lab| {
        let v6 = json!({"type": "static", "addresses": [{"address": "2001:db8::1/64"}]});
        for (ipam, mac) in [
            (conf()["ipam"].clone(), "0a:58:0a:0a:00:02"),
            // the first octets of what `printf 2001:db8::1 | sha256sum` prints
            (v6, "0a:58:5a:fd:19:e8"),
        ] {
            let container = lab.container();
            let ovs = lab.attach(&container, &without_ipam(json!({"ipam": ipam})));
            let result = ovs.add();
            assert_eq!(result["interfaces"][1]["mac"], mac);
            assert_eq!(container.link("eth0").unwrap()["address"], mac);
            ovs.check(&result).ok();
            ovs.del();
        }
    });
}

#[test]
fn a_logical_port_of_ovn_is_on_br_int() {
    on_a_node(|lab| {
        lab.host.sh("ovs-vsctl --no-wait add-br br-int");
        let ovs = lab
            .attach(&lab.container(), &without_ipam(json!({"bridge": null})))
            .args("OvnPort=lp1");
        let port = interface(&ovs.add(), 0);
        assert_eq!(lab.host.sh("ovs-vsctl --no-wait list-ports br-int").trim(), port);
        assert_eq!(column(lab, "interface", (&port, "external_ids:iface-id")), "lp1");
    });
}

/// The original ignores `dns` and the capability `mac`.
#[test]
fn the_parts_that_main_plugins_share_are_as_theirs() {
    on_a_node(|lab| {
        let fixed = static_ipam(&conf(), json!([{"address": "10.10.0.5/24"}]), json!([]));
        assert_dns_of_network_or_ipam(lab, &fixed);
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other");
        let before = Watch::start(lab, &[&container]);
        lab.attach(&container, &conf()).del();
        before.assert_unchanged("DEL beside a link of another kind");
    });
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
    on_a_node(|lab| {
        for case in &cases {
            let (changes, error) = fail(lab, &conf(), case);
            assert_eq!((error.code, changes.as_str()), (case.code, ""), "{}: {error:?}", case.what);
            assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
        }
    });
}

/// A row of another owner may have any name. The original's ADD deletes every port with an error,
/// of any pod. Their ADD may be at work.
#[test]
fn ports_of_others_are_never_touched() {
    on_a_node(|lab| {
        let container = lab.container();
        let ovs = lab.attach(&container, &conf());
        let port = interface(&ovs.add(), 0);
        ovs.del();
        lab.host.sh(&format!(
            "ovs-vsctl --no-wait add-port ovs0 {port} -- set port {port} external_ids:contId={} external_ids:contIface=eth0 external_ids:net=net1
             ovs-vsctl --no-wait add-port ovs0 theirs -- set port theirs external_ids:owner=ovs-cni.network.kubevirt.io external_ids:contIface=eth0 external_ids:contNetns={}",
            container.id, container.netns
        ));
        let before = Watch::start(lab, &[&container]);
        let error = ovs.try_add().err();
        assert_eq!(error.code, 102, "{error:?}");
        assert!(
            error.msg.contains(&port) && error.msg.contains("constraint violation"),
            "{error:?}"
        );
        before.assert_unchanged("the refused ADD");
        ovs.del();
        ovs.gc(&[]).ok();
        before.assert_unchanged("DEL and GC");
    });
}

/// vswitchd reads the flags of a new port and writes them back with IFF_PROMISC: IFF_UP is lost if
/// ADD sets it in between.
#[test]
fn the_host_end_is_up_before_its_row_and_set_up_again() {
    on_a_node(|lab| {
        let container = lab.container();
        let ovs = lab.attach(&container, &without_ipam(json!({})));
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
        ovs.check(&result).ok();
        ovs.del();
    });
}

/// A database outlives a restart of the host, and an ADD may be killed. The original fails, or the
/// rows stay. The database outlives a restart.
#[test]
fn ports_that_an_earlier_add_has_left_are_replaced() {
    on_a_node(|lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let ovs = lab.attach(&container, &without_ipam(json!({"vlan": 5})));
        let port = interface(&ovs.add(), 0);
        lab.host.sh(&format!("ip link del {port}"));
        let again = ovs.clone().conf(json!({"vlan": 6}));
        let result = again.add();
        assert_eq!(ports(lab), [interface(&result, 0)]);
        again.check(&result).ok();
        let ids = format!(
            "contId={} external_ids:contIface=eth0 external_ids:net=net1 external_ids:owner=ovs-cni.network.kubevirt.io",
            container.id
        );
        lab.host.sh(&format!(
            "ovs-vsctl --no-wait add-port ovs0 second -- set port second external_ids:{ids}"
        ));
        ovs.del();
        before.assert_unchanged("DEL of two ports");
    });
}

/// The original's CHECK needs the file.
#[test]
fn del_needs_no_kept_file() {
    on_a_node(|lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for damage in ["truncate -s 0", "truncate -s 20", "rm"] {
            let ovs = lab.attach(&container, &conf());
            let result = ovs.add();
            lab.host.sh(&format!("{damage} /var/lib/cni/ovs-cni/cache/*"));
            ovs.check(&result).ok();
            ovs.conf(json!({"vlan": "x"})).del();
            before.assert_unchanged(damage);
        }
    });
}

#[test]
fn the_flat_file_gives_what_the_configuration_leaves_out() {
    on_a_node(|lab| {
        lab.host.sh("echo '{\"bridge\":\"ovs0\",\"vlan\":44,\"mtu\":1300}' >/run/ovs.conf");
        let keys = json!({"bridge": null, "configuration_path": "/run/ovs.conf", "mtu": 1350});
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let ovs = lab.attach(&container, &with(&conf(), keys));
        let result = ovs.add();
        assert_eq!(column(lab, "port", (&interface(&result, 0), "tag")), "44");
        assert_eq!(container.link("eth0").unwrap()["mtu"], 1350);
        ovs.check(&result).ok();
        ovs.status().ok();
        ovs.gc(&[(&container.id, "eth0")]).ok();
        ovs.check(&result).ok();
        ovs.del();
        before.assert_unchanged("DEL");
        lab.host.sh("echo '{\"bridge\":7}' >/run/ovs.conf");
        let error = ovs.try_add().err();
        assert!(error.msg.starts_with("parse ovs config file /run/ovs.conf: error: "), "{error:?}");
        assert_eq!(error.code, 6);
    });
}

/// The original's STATUS and GC succeed and do nothing.
#[test]
fn status_asks_the_database_for_the_bridge() {
    on_a_node(|lab| {
        let ovs = lab.attach(&lab.container(), &conf());
        ovs.status().ok();
        let error = ovs.clone().conf(json!({"bridge": "ovs9"})).status().err();
        assert_eq!((error.code, error.msg.as_str()), (50, "failed to find bridge ovs9"));
        assert_eq!(ovs.clone().conf(json!({"ipam": {"type": "x"}})).status().err().code, 104);
        stop(lab);
        let error = ovs.status().err();
        assert_eq!(error.code, 50);
        assert!(error.msg.contains("ovsdb socket unix:/var/run/openvswitch/db.sock"), "{error:?}");
        serve(lab);
        ovs.status().ok();
    });
}
