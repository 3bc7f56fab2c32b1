//! Where ours behaves otherwise than the reference plugins 1.9.1, on purpose. docs/differences.md
//! has the reasons.
//!
//! Every test here is one difference: it makes the same observation on both, and asserts what each
//! of them does. So this list cannot promise what ours does not keep, and an entry that a newer
//! reference makes untrue is found.

use serde_json::{Value, json};

use crate::plugins::ipam::{dhcp, host_local};
use crate::plugins::main::bridge::failed_add::Case;
use crate::plugins::main::bridge::{self, static_ipam};
use crate::plugins::main::stacked::{self, IPVLAN, MACVLAN, PEER, Stacked, VLAN};
use crate::plugins::main::{dummy, host_device, ptp, tap};
use crate::plugins::meta::bandwidth::{self, bandwidth, can_limit};
use crate::plugins::meta::portmap::{self, is_open, network, publish, web};
use crate::plugins::meta::{firewall, sbr, tuning, vrf};
use crate::support::attachment::{for_ours, for_reference, with};
use crate::support::chain::{Chain, Chained};
use crate::support::dhcp::scripted::{DISCOVER, RELEASE, REQUEST, Scripted, option};
use crate::support::dhcp::{Daemon, Kind, SOCKET, wait_until};
use crate::support::netns::{Container, Lab};
use crate::support::snapshot::Watch;
use crate::support::traffic::{Ear, TcpServer, assert_pings, assert_pings_with, connect};

/// Makes one observation on both.
fn differs<T: PartialEq + std::fmt::Debug>(
    plugin: &str,
    observe: impl Fn(&Lab) -> T,
    ours: T,
    reference: T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    for_ours(plugin, |lab| assert_eq!(observe(lab), ours, "ours"));
    for_reference(plugin, |lab| assert_eq!(observe(lab), reference, "the reference"));
}

const OK: i32 = 0;
const FAILED: i32 = 1;

fn check_after_add(lab: &Lab, conf: &Value) -> i32 {
    let attachment = lab.attach(&lab.container(), conf);
    let result = attachment.add();
    attachment.check(&result).status
}

// --- CHECK ---

/// CHECK of a bridge without IPAM asks an IPAM plugin without a name, and fails.
#[test]
fn check_of_a_layer_two_bridge_succeeds() {
    differs(
        "bridge",
        |lab| check_after_add(lab, &with(&bridge::conf(), json!({"ipam": null}))),
        OK,
        FAILED,
    );
}

/// CHECK looks for a route to the address's network in the main table; the kernel has none for a
/// /32.
#[test]
fn check_of_a_host_address_succeeds() {
    let conf = static_ipam(
        &with(&bridge::conf(), json!({"isGateway": null})),
        json!([{"address": "10.10.0.7/32"}]),
        json!([]),
    );
    differs("bridge", |lab| check_after_add(lab, &conf), OK, FAILED);
}

/// CHECK looks for every route in the main table.
#[test]
fn check_of_a_route_in_another_table_succeeds() {
    let conf =
        with(&bridge::conf(), json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "table": 100}]}}));
    differs("bridge", |lab| check_after_add(lab, &conf), OK, FAILED);
    let conf = with(&conf, json!({"type": "ptp"}));
    differs("ptp", |lab| check_after_add(lab, &conf), OK, FAILED);
}

/// The reference compares the counter that a packet capture raises.
#[test]
fn check_does_not_mind_a_capture_on_the_bridge() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &bridge::conf());
        let result = attachment.add();
        lab.host.sh("ip link set br0 promisc on"); // what a capture does
        attachment.check(&result).status
    };
    differs("bridge", observe, OK, FAILED);
}

// --- links and addresses ---

/// The reference's library asks for a queue of no packets at the host's end, by a field that nobody
/// set.
#[test]
fn the_host_s_end_keeps_the_kernel_s_queue_length() {
    for plugin in ["bridge", "ptp"] {
        let observe = |lab: &Lab| host_end(lab, plugin)["txqlen"].clone();
        differs(plugin, observe, json!(1000), Value::Null); // nothing is printed for none
    }
}

/// The host's end is found by its alias, so DEL needs no namespace; the reference's has none.
#[test]
fn the_host_s_end_says_whose_it_is() {
    for plugin in ["bridge", "ptp"] {
        let observe = |lab: &Lab| {
            let alias = host_end(lab, plugin)["ifalias"].as_str().unwrap_or_default().to_owned();
            alias.ends_with("net: net1, if: eth0, id: container-1")
        };
        differs(plugin, observe, true, false);
    }
}

fn host_end(lab: &Lab, plugin: &str) -> Value {
    let result =
        lab.attach(&lab.container(), &with(&bridge::conf(), json!({"type": plugin}))).add();
    let at = result["interfaces"].as_array().unwrap().len() - 2;
    lab.host.link(&crate::support::attachment::interface(&result, at)).unwrap()
}

/// Nobody else can have the addresses of a link that was just made, so they are usable when ADD is
/// done. The reference lets the kernel look for others first where `accept_dad` says so: on its
/// bridge, and in a container of ptp.
#[test]
fn ipv6_addresses_can_be_used_at_once() {
    let nodad =
        |flags: &Value| flags.as_array().unwrap().iter().any(|address| address["nodad"] == true);
    for (plugin, in_container) in [("bridge", false), ("ptp", true)] {
        let conf = with(&bridge::dual_stack(), json!({"type": plugin}));
        let observe = |lab: &Lab| {
            let container = lab.container();
            lab.attach(&container, &conf).add();
            let links = match in_container {
                true => container.json("ip -j -6 addr show dev eth0 scope global"),
                false => lab.host.json("ip -j -6 addr show dev br0 scope global"),
            };
            nodad(&links[0]["addr_info"])
        };
        differs(plugin, observe, true, false);
    }
}

/// The kernel's route to the whole subnet is not made and removed again, so no packet can take it.
#[test]
fn ptp_never_has_its_subnet_on_the_link() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &ptp::conf()).add();
        container.json("ip -j addr show dev eth0")[0]["addr_info"][0]["noprefixroute"] == true
    };
    differs("ptp", observe, true, false);
}

/// A reused address is announced, as bridge does it.
#[test]
fn ptp_tells_neighbours_of_a_new_container() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &ptp::conf()).add();
        container.sh("cat /proc/sys/net/ipv4/conf/eth0/arp_notify").trim().to_owned()
    };
    differs("ptp", observe, "1".to_owned(), "0".to_owned());
}

/// Two addresses of a subnet share their gateway; the reference adds it twice: "file exists".
#[test]
fn ptp_takes_two_addresses_of_one_subnet() {
    let addresses = json!([{"address": "10.10.0.7/24", "gateway": "10.10.0.1"}, {"address": "10.10.0.8/24", "gateway": "10.10.0.1"}]);
    let conf = static_ipam(&ptp::conf(), addresses, json!([]));
    differs("ptp", |lab| lab.attach(&lab.container(), &conf).try_add().status, OK, FAILED);
}

// --- ADD ---

/// IPAM's own default route has no gateway and isDefaultGateway adds another: "file exists".
#[test]
fn default_gateway_and_a_default_route_of_ipam_go_together() {
    let conf = with(
        &bridge::dual_stack(),
        json!({"isDefaultGateway": true, "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
    );
    let observe = |lab: &Lab| {
        let container = lab.container();
        let outcome = lab.attach(&container, &conf).try_add();
        if outcome.status == OK {
            assert_pings(&container, crate::support::netns::UPLINK[0]);
            assert_pings(&container, crate::support::netns::UPLINK[1]);
            assert_eq!(container.json("ip -j route show default").as_array().unwrap().len(), 1);
            assert_eq!(container.json("ip -j -6 route show default").as_array().unwrap().len(), 1);
        }
        outcome.status
    };
    differs("bridge", observe, OK, FAILED);
}

/// `mtu` and `advmss` of a route are in the result, and not in the kernel.
#[test]
fn metrics_of_a_route_are_in_the_kernel() {
    let conf = with(
        &bridge::conf(),
        json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "mtu": 1300, "advmss": 1200}]}}),
    );
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &conf).add();
        container.json("ip -j -d route show 10.99.0.0/16")[0]["metrics"][0].clone()
    };
    differs("bridge", observe, json!({"mtu": 1300, "advmss": 1200}), Value::Null);
}

/// ptp with a /32: the reference adds IPAM's routes before the one to the gateway, and takes away a
/// subnet route that does not exist.
#[test]
fn ptp_takes_a_host_address() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let alone = static_ipam(
            &ptp::conf(),
            json!([{"address": "10.10.0.7/32", "gateway": "10.10.0.1"}]),
            json!([{"dst": "0.0.0.0/0"}]),
        );
        let attachment = lab.attach(&container, &alone);
        let outcome = attachment.try_add();
        if outcome.status == OK {
            assert_pings(&container, "10.10.0.1");
            assert_pings(&container, crate::support::netns::UPLINK[0]);
            assert_eq!(attachment.check(&outcome.ok()).status, OK);
        }
        outcome.status
    };
    differs("ptp", observe, OK, FAILED);
}

/// A bridge that has lost its last port has a MAC of zeros; the reference reads that before its own
/// port comes, and sets it.
#[test]
fn a_bridge_without_ports_can_be_used() {
    let observe = |lab: &Lab| {
        lab.host
            .sh("ip link add br0 type bridge; ip link add port type veth peer name peer; ip link set port master br0; ip link del port");
        let container = lab.container();
        let outcome = lab.attach(&container, &bridge::conf()).try_add();
        if outcome.status == OK {
            assert_pings(&container, "10.10.0.1");
        }
        outcome.status
    };
    differs("bridge", observe, OK, FAILED);
}

/// A name with a NUL is refused; the reference makes a bridge of what stands before it, and never
/// finds it again by its own name.
#[test]
fn a_name_with_a_nul_is_refused() {
    let conf = with(&bridge::conf(), json!({"bridge": "br\u{0}0"}));
    let observe = |lab: &Lab| {
        let outcome = lab.attach(&lab.container(), &conf).try_add();
        (outcome.status, lab.host.link("br").is_some())
    };
    differs("bridge", observe, (FAILED, false), (OK, true));
}

/// The second gateway is not in the way of the first; the reference refuses it, or replaces the
/// first by it.
#[test]
fn gateways_of_two_subnets_are_on_the_bridge_together() {
    let ranges = json!([[{"subnet": "10.10.0.0/24"}], [{"subnet": "10.20.0.0/24"}]]);
    for (force, of_reference) in [(false, "10.10.0.1/24"), (true, "10.20.0.1/24")] {
        let conf = with(
            &bridge::conf(),
            json!({"forceAddress": force, "ipam": {"subnet": null, "ranges": ranges}}),
        );
        let observe = |lab: &Lab| {
            lab.attach(&lab.container(), &conf).try_add();
            lab.host.addresses("br0").join(" ")
        };
        differs("bridge", observe, "10.10.0.1/24 10.20.0.1/24".to_owned(), of_reference.to_owned());
    }
}

/// What failed ADDs leave: ours nothing; the reference links, addresses and rules, until DEL.
#[test]
fn failed_adds_leave_nothing() {
    let leaves = |cases: Vec<bridge::failed_add::Case>| {
        cases.into_iter().filter(|case| case.reference_leaves_something)
    };
    for case in leaves(bridge::failed_add::cases()) {
        differs(
            "bridge",
            |lab| bridge::failed_add::fail(lab, &bridge::conf(), &case).0.is_empty(),
            true,
            false,
        );
    }
    for case in leaves(ptp::failing()) {
        differs(
            "ptp",
            |lab| bridge::failed_add::fail(lab, &ptp::conf(), &case).0.is_empty(),
            true,
            false,
        );
    }
}

/// A result that has no form in the configuration's version: the reference notices when everything
/// is done, and leaves it.
#[test]
fn a_result_without_addresses_is_refused_for_old_versions_and_nothing_is_left() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let outcome = lab
            .attach(
                &container,
                &with(&bridge::conf(), json!({"cniVersion": "0.2.0", "ipam": null})),
            )
            .try_add();
        assert_eq!(outcome.status, FAILED);
        before.changes().is_empty()
    };
    differs("bridge", observe, true, false);
}

/// The plugin's own namespace as the container: the reference notices after ADD, prints a result
/// and an error, and leaves everything.
#[test]
fn the_host_s_own_namespace_is_refused_before_anything_is_done() {
    let observe = |lab: &Lab| {
        let before = Watch::start(lab, &[]);
        let conf = with(&bridge::conf(), json!({"cniVersion": "1.0.0", "ipam": null}));
        let outcome =
            lab.attach(&lab.container(), &conf).netns(Some("/proc/self/ns/net")).try_add();
        assert_eq!(outcome.status, FAILED);
        let one_document =
            serde_json::from_str::<Value>(&outcome.stdout).is_ok_and(|error| error["code"] == 8);
        (one_document, before.changes().is_empty())
    };
    differs("bridge", observe, (true, true), (false, false));
}

/// A null in vlanTrunk ends the reference with a Go panic instead of an answer.
#[test]
fn a_late_del_leaves_the_container_that_has_the_path_now() {
    let observe = |lab: &Lab| {
        let (one, other) = (lab.container(), lab.container());
        let conf = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
        let first = lab.attach(&one, &conf).ifname("lo");
        first.add();
        one.go_stale();
        lab.host.sh(&format!("mount --bind {} {}", other.netns, one.netns));
        lab.attach(&other, &conf).ifname("lo").netns(Some(&one.netns)).add();
        first.del();
        other.link("lo").unwrap()["operstate"].as_str().unwrap().to_owned()
    };
    differs("loopback", observe, "UNKNOWN".to_owned(), "DOWN".to_owned());
}

#[test]
fn del_removes_the_interface_that_add_made() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &MACVLAN.address("10.10.0.7/24"));
        attachment.add();
        container.sh("ip link set eth0 down; ip link set eth0 name other");
        container
            .sh("ip link add link lo name eth0 type macvlan 2>/dev/null || ip link add eth0 type veth peer name end");
        attachment.del();
        ["other", "eth0"].map(|name| container.link(name).is_some())
    };
    differs("macvlan", observe, [false, true], [true, false]);
}

#[test]
fn a_null_in_a_list_is_no_crash() {
    let observe = |lab: &Lab| {
        let outcome = lab
            .attach(&lab.container(), &with(&bridge::conf(), json!({"vlanTrunk": [null]})))
            .try_add();
        // On a kernel whose bridge filters VLANs the null may also count as an entry that asks for
        // nothing.
        serde_json::from_str::<Value>(&outcome.stdout).is_ok()
    };
    differs("bridge", observe, true, false);
}

/// Every error of the reference is 999, so a runtime cannot tell a full subnet from a typing error.
#[test]
fn error_codes_tell_what_kind_of_error_it_is() {
    let observe = |lab: &Lab| {
        let conf = with(&bridge::conf(), json!({"ipam": {"subnet": "10.10.0.0/30"}}));
        lab.attach(&lab.container(), &conf).add();
        let full = lab.attach(&lab.container(), &conf).try_add().err().code;
        let mistake =
            lab.attach(&lab.container(), &with(&conf, json!({"vlan": 5000}))).try_add().err().code;
        (full, mistake)
    };
    differs("bridge", observe, (101, 7), (999, 999));
}

/// A namespace that cannot be opened is a mistake in CNI_NETNS, and is noticed before an address is
/// taken.
#[test]
fn a_namespace_that_is_not_there_is_an_error_of_the_environment() {
    for plugin in ["bridge", "ptp", "loopback"] {
        let observe = |lab: &Lab| {
            let conf = with(&bridge::conf(), json!({"type": plugin}));
            lab.attach(&lab.container(), &conf)
                .netns(Some("/run/netns/nowhere"))
                .try_add()
                .err()
                .code
        };
        differs(plugin, observe, 4, 999);
    }
}

/// Masquerading or not, an MTU that no veth takes is refused before anything is done; the reference
/// makes the bridge first.
#[test]
fn an_mtu_that_cannot_be_is_a_mistake_of_the_configuration() {
    let observe = |lab: &Lab| {
        lab.attach(&lab.container(), &with(&bridge::conf(), json!({"mtu": 100_000})))
            .try_add()
            .err()
            .code
    };
    differs("bridge", observe, 7, 999);
}

/// A negative MTU is a mistake; the reference takes it for none.
#[test]
fn a_negative_mtu_is_a_mistake_of_the_configuration() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin, "mtu": -1}));
        differs(plugin, |lab| lab.attach(&lab.container(), &conf).try_add().status, FAILED, OK);
    }
}

/// The specification's error object says in which version it is.
#[test]
fn an_error_object_has_the_version_of_the_configuration() {
    let observe = |lab: &Lab| {
        let outcome =
            lab.attach(&lab.container(), &with(&bridge::conf(), json!({"vlan": 5000}))).try_add();
        outcome.json().get("cniVersion").cloned()
    };
    differs("bridge", observe, Some(json!("1.0.0")), None);
}

/// JSON that has no text or no number of ours: half a character of UTF-16, a number beyond a
/// double. The reference puts a replacement in its place, or never looks.
#[test]
fn half_a_character_and_a_number_beyond_a_double_are_refused() {
    for unknown in [r#""\ud800""#, "1e999"] {
        let observe = |lab: &Lab| {
            let conf =
                static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
            let mut call = lab
                .attach(&lab.container(), &with(&conf, json!({"type": "static"})))
                .call("ADD", None);
            let text = String::from_utf8(call.stdin).unwrap();
            call.stdin = text.replacen('{', &format!(r#"{{"unknown":{unknown},"#), 1).into_bytes();
            call.run().status
        };
        differs("static", observe, FAILED, OK);
    }
}

// --- DEL and GC ---

/// With the namespace gone the reference's DEL stops before the rules of masquerade and
/// macspoofchk.
#[test]
fn del_with_a_vanished_namespace_leaves_no_rule() {
    for backend in ["nftables", "iptables"] {
        let observe = |lab: &Lab| {
            let status =
                bridge::del::lose_and_delete(lab, "vanished", &bridge::del::everything(backend));
            let rules = lab.host.sh("nft list ruleset 2>/dev/null");
            (status, rules.contains("macspoofchk-container"), rules.contains("10.10.0.2"))
        };
        differs("bridge", observe, (OK, false, false), (OK, true, true));
    }
    let conf =
        with(&bridge::conf(), json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}));
    let observe = |lab: &Lab| {
        bridge::del::lose_and_delete(lab, "vanished", &conf);
        lab.host.sh("nft list ruleset 2>/dev/null").contains("10.10.0.2")
    };
    differs("ptp", observe, false, true);
}

/// A runtime may call DEL without CNI_NETNS while the namespace still lives; the reference leaves
/// the link there.
#[test]
fn del_without_netns_takes_the_link_of_a_living_namespace() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        let observe = |lab: &Lab| {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            attachment.netns(None).del();
            container.link("eth0").is_some()
        };
        differs(plugin, observe, false, true);
    }
}

/// A file that was the namespace's mount point is left, and DEL fails for ever.
#[test]
fn del_with_a_stale_netns_file_succeeds() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        differs(plugin, |lab| bridge::del::lose_and_delete(lab, "stale file", &conf), OK, FAILED);
    }
}

/// ADD refuses CNI_ARGS it does not know; DEL does too, so what an older or newer runtime added
/// cannot be deleted.
#[test]
fn del_takes_any_cni_args() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &bridge::conf());
        attachment.add();
        let status = attachment.args("COLOUR=red").try_del().status;
        (status, container.link("eth0").is_some())
    };
    differs("bridge", observe, (OK, false), (FAILED, true));
}

/// What was attached must go, also when its configuration has become one that cannot be read.
#[test]
fn del_takes_a_configuration_that_does_not_decode() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &bridge::conf());
        attachment.add();
        let status = attachment.clone().conf(json!({"mtu": "large", "vlan": -1})).try_del().status;
        (status, container.link("eth0").is_some())
    };
    differs("bridge", observe, (OK, false), (FAILED, true));
}

/// A DEL that comes late, when the namespace has another attachment's interface of that name
/// already.
#[test]
fn del_spares_the_interface_of_another_attachment() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        let observe = |lab: &Lab| {
            let container = lab.container();
            lab.attach(&container, &conf).add();
            lab.attach(&container, &conf).id("somebody-else").try_del();
            container.link("eth0").is_some()
        };
        differs(plugin, observe, true, false);
    }
}

/// The iptables chain has the name of the container, not of the interface: DEL of one takes the
/// other's rules along, and then fails.
#[test]
fn del_of_one_attachment_keeps_the_iptables_rules_of_the_other() {
    differs(
        "bridge",
        |lab| {
            bridge::masquerade::second_attachment_survives_del_of_the_first(lab, Some("iptables"))
        },
        true,
        false,
    );
}

#[test]
fn an_add_takes_the_iptables_rules_of_one_that_had_no_del_with_it() {
    differs("bridge", bridge::masquerade::add_takes_the_rules_of_a_lost_one_with_it, true, false);
}

/// The reference's DEL tries iptables too. Of 1.8.9's "Chain … does not exist" (status 2) Debian's
/// build makes an error, so DEL of a network that nf_tables masquerades fails on such a host.
#[test]
fn del_of_an_nftables_network_succeeds_where_iptables_is_installed() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "nftables"}));
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        attachment.try_del().status
    };
    differs("bridge", observe, OK, FAILED);
}

/// No plugin of the reference has GC.
#[test]
fn gc_removes_what_no_runtime_knows_any_more() {
    let conf = with(
        &bridge::conf(),
        json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"}),
    );
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf);
        attachment.add();
        container.vanish();
        attachment.gc(&[]).ok();
        (
            lab.path("/var/lib/cni/networks/net1/10.10.0.2").exists(),
            lab.host.sh("nft list ruleset").contains("10.10.0.2"),
        )
    };
    differs("bridge", observe, (false, false), (true, true));
}

// --- firewall ---

/// Without `ipMasqBackend` ours uses nf_tables, and needs no program for it; the reference uses
/// iptables.
#[test]
fn masquerade_is_done_by_nftables_unless_the_user_says_otherwise() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true}));
    let observe = |lab: &Lab| {
        lab.attach(&lab.container(), &conf).add();
        let chains = lab.host.sh("iptables -t nat -S 2>/dev/null");
        chains.contains("MASQUERADE")
    };
    differs("bridge", observe, false, true);
}

/// One look and one change, where the reference starts a program for each rule.
#[test]
fn iptables_rules_of_an_attachment_take_two_programs() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
    let observe = |lab: &Lab| {
        lab.host.sh(r#"mkdir /run/counted; for name in iptables iptables-restore; do
            printf '#!/bin/sh\necho >>/run/counted/log\nexec %s "$@"\n' "$(command -v $name)" >/run/counted/$name
            chmod +x /run/counted/$name; done"#);
        let mut call = lab.attach(&lab.container(), &conf).call("ADD", None);
        call.wrapper
            .extend(["sh", "-c", r#"PATH=/run/counted:$PATH exec "$0" "$@""#].map(str::to_owned));
        call.run().ok();
        lab.host.sh("wc -l </run/counted/log").trim().parse::<u32>().unwrap() <= 2
    };
    differs("bridge", observe, true, false);
}

/// macspoofchk of the reference runs the nft program.
#[test]
fn macspoofchk_needs_no_nft_program() {
    let observe = |lab: &Lab| {
        let mut call = lab
            .attach(&lab.container(), &with(&bridge::conf(), json!({"macspoofchk": true})))
            .call("ADD", None);
        call.wrapper.extend(["env", "PATH=/nonexistent"].map(str::to_owned));
        call.run().status
    };
    differs("bridge", observe, OK, FAILED);
}

/// Two addresses of one family in two subnets: the reference's iptables chain masquerades what goes
/// to the second subnet.
#[test]
fn neighbours_in_a_second_subnet_see_the_container_s_own_address() {
    let conf = |last: u8| {
        static_ipam(
            &with(
                &bridge::conf(),
                json!({"isGateway": null, "ipMasq": true, "ipMasqBackend": "iptables"}),
            ),
            json!([{"address": format!("10.10.0.{last}/24")}, {"address": format!("10.20.0.{last}/24")}]),
            json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}]),
        )
    };
    // The packet to the second subnet's far end has to pass the host: the host has that address on
    // another link.
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &conf(7)).add();
        lab.host
            .sh("ip addr add 10.10.0.1/24 dev br0; ip addr add 10.20.0.1/24 dev br0; sysctl -qw net.ipv4.ip_forward=1");
        let far = lab.container();
        lab.host.sh(&format!(
            "ip link add far type veth peer name far netns {}",
            far.netns.trim_start_matches("/run/netns/")
        ));
        lab.host.sh("ip link set far up; ip route add 10.20.0.200 dev far; ip addr add 10.30.0.1/24 dev far");
        far.sh(
            "ip link set far up; ip addr add 10.20.0.200/32 dev far; ip route add 10.30.0.1 dev far; ip route add default via 10.30.0.1",
        );
        container.sh("ip route add 10.20.0.200 via 10.20.0.1");
        let ear = Ear::listen(&far);
        assert_pings_with(&container, "10.20.0.200", "-I 10.20.0.7");
        ear.heard()
    };
    differs("bridge", observe, vec!["10.20.0.7".to_owned()], vec!["10.30.0.1".to_owned()]);
}

/// A backend that does not exist is noticed by the reference when everything else is done.
#[test]
fn an_unknown_masquerade_backend_is_refused_before_anything_is_done() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "ebtables"}));
    let observe = |lab: &Lab| {
        lab.attach(&lab.container(), &conf).try_add().err();
        lab.host.link("br0").is_some()
    };
    differs("bridge", observe, false, true);
}

// --- loopback ---

/// The reference prints the form of 1.0.0 under the number of the old version.
#[test]
fn loopback_results_have_the_form_of_their_version() {
    let observe = |lab: &Lab| {
        let conf = |version: &str| json!({"cniVersion": version, "name": "lo", "type": "loopback"});
        let old = lab.attach(&lab.container(), &conf("0.2.0")).ifname("lo").add();
        let middle = lab.attach(&lab.container(), &conf("0.4.0")).ifname("lo").add();
        (old.get("ip4").is_some(), middle["ips"][0].get("version").is_some())
    };
    differs("loopback", observe, (true, true), (false, false));
}

// --- host-local ---

/// A reservation of no bytes (the node crashed) belongs to nobody; the reference never gives the
/// address out again.
#[test]
fn an_empty_reservation_is_free() {
    let observe = |lab: &Lab| {
        lab.host.sh(&format!("mkdir -p {0} && : > {0}/10.0.0.2", host_local::STORE));
        lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/30")).try_add().status
    };
    differs("host-local", observe, OK, FAILED);
}

/// The reference has no STATUS.
#[test]
fn status_of_a_full_range_is_an_error() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(
            &lab.container(),
            &with(&host_local::subnet("10.0.0.0/30"), json!({"cniVersion": "1.1.0"})),
        );
        attachment.add();
        attachment.status().status
    };
    differs("host-local", observe, FAILED, OK);
}

/// A second ADD of the same attachment that fails gives back the addresses of the first one, which
/// are in use.
#[test]
fn a_failed_second_add_keeps_the_addresses_of_the_first() {
    let conf =
        host_local::ranges(json!([[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]]));
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        let again =
            attachment.clone().conf(json!({"runtimeConfig": {"ips": ["10.0.0.50"]}})).try_add();
        again.err();
        host_local::leases(lab).join(" ")
    };
    differs("host-local", observe, "10.0.0.2 10.1.0.2".to_owned(), String::new());
}

/// A requested address is not compared with what the attachment has already; the reference then
/// holds two.
#[test]
fn a_requested_address_does_not_make_a_second_one() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/24"));
        attachment.add();
        attachment.clone().conf(json!({"runtimeConfig": {"ips": ["10.0.0.50"]}})).try_add().status
    };
    differs("host-local", observe, FAILED, OK);
}

/// DEL reads ranges it does not need: with a mistake in them, made after ADD, the reference never
/// releases.
#[test]
fn del_does_not_need_the_ranges() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/24"));
        attachment.add();
        let mut changed = attachment.clone();
        changed.conf["ipam"]["ranges"] = json!([]);
        let status = changed.try_del().status;
        (status, host_local::leases(lab).len())
    };
    differs("host-local", observe, (OK, 0), (FAILED, 1));
}

/// The last address that is given out by default is the one before the broadcast address; the
/// reference compares a start with no end.
#[test]
fn a_range_that_starts_after_its_end_is_refused() {
    let conf = host_local::ranges(json!([[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.255"}]]));
    differs("host-local", |lab| lab.attach(&lab.container(), &conf).try_add().status, FAILED, OK);
}

/// The reference reads the address as IPv4 and the length as IPv6, and then they do not fit.
#[test]
fn a_mapped_subnet_is_its_ipv4_subnet() {
    let conf = host_local::subnet("::ffff:10.0.0.0/104");
    let observe = |lab: &Lab| {
        let outcome = lab.attach(&lab.container(), &conf).try_add();
        (outcome.status == OK).then(|| outcome.ok()["ips"][0]["address"].clone())
    };
    differs("host-local", observe, Some(json!("10.0.0.2/8")), None);
}

/// Of several requested addresses of one range set the first counts; the reference takes any.
#[test]
fn requested_addresses_count_in_their_order() {
    for_ours("host-local", |lab| {
        for number in 0..8 {
            let wanted = [format!("10.0.0.{}", 100 - number), format!("10.0.1.{}", 100 - number)];
            let conf =
                host_local::ranges(json!([[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]]));
            let conf = with(&conf, json!({"runtimeConfig": {"ips": wanted}}));
            let error = lab.attach(&lab.container(), &conf).try_add().err();
            assert_eq!(error.msg, format!("failed to allocate all requested IPs: {}", wanted[1]));
        }
    });
}

/// The reference's DEL and CHECK make the directory of a network that was never used.
#[test]
fn del_makes_no_directory() {
    let observe = |lab: &Lab| {
        lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/24")).del();
        lab.path(host_local::STORE).exists()
    };
    differs("host-local", observe, false, true);
}

/// What lies below the network's directory is not of the network; the reference reads all of it,
/// and DEL removes files there.
#[test]
fn files_in_deeper_directories_are_left_alone() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/24"));
        attachment.add();
        lab.host.sh(&format!("mkdir {0}/backup && cp {0}/10.0.0.2 {0}/backup/", host_local::STORE));
        attachment.del();
        lab.path(&format!("{}/backup/10.0.0.2", host_local::STORE)).exists()
    };
    differs("host-local", observe, true, false);
}

/// CHECK of the reference asks whether the container has any address; ours whether it has those
/// that prevResult tells.
#[test]
fn check_compares_the_lease_with_the_result() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/24"));
        let mut result = attachment.add();
        result["ips"][0]["address"] = json!("10.0.0.99/24");
        attachment.check(&result).status
    };
    differs("host-local", observe, FAILED, OK);
}

// --- static ---

/// An address that prevResult does not have at all passes the reference's CHECK.
#[test]
fn check_misses_a_configured_address() {
    let conf = static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &with(&conf, json!({"type": "static"})));
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.10.0.8/24"}]});
        attachment.check(&result).status
    };
    differs("static", observe, FAILED, OK);
}

/// Two networks with one subnet give one address to two containers: there is one element for it,
/// and it is the last one's.
#[test]
fn an_address_in_two_networks_is_masqueraded_for_the_last() {
    let conf = |network: &str, bridge: &str| {
        let changes =
            json!({"name": network, "bridge": bridge, "ipMasq": true, "ipMasqBackend": "nftables"});
        with(&bridge::conf(), changes)
    };
    let observe = |lab: &Lab| {
        lab.hide_iptables();
        let (first, second) = (lab.container(), lab.container());
        let (first, second) =
            (lab.attach(&first, &conf("net1", "br0")), lab.attach(&second, &conf("net2", "br1")));
        let result = first.add();
        second.add();
        let with_both = first.check(&result).status;
        second.del();
        (with_both, first.check(&result).status)
    };
    differs("bridge", observe, (OK, FAILED), (OK, OK));
}

// --- macvlan, ipvlan, vlan ---

/// As `differs`, where the kernel has such links.
fn stacked_differs<T: PartialEq + std::fmt::Debug>(
    kind: &Stacked,
    observe: impl Fn(&Lab) -> T,
    ours: T,
    reference: T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    kind.for_ours(|lab| assert_eq!(observe(lab), ours, "ours"));
    kind.for_reference(|lab| assert_eq!(observe(lab), reference, "the reference"));
}

/// The reference leaves the link, for its roll back looks at another variable than the one that has
/// the error.
#[test]
fn failed_adds_of_stacked_links_leave_nothing() {
    let late = [(104, "no-such-ipam"), (100, "10.88.0.1")];
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        for case in stacked::failing().iter().filter(|case| late.contains(&(case.code, case.names)))
        {
            let observe =
                |lab: &Lab| bridge::failed_add::fail(lab, &kind.conf(), case).0.is_empty();
            stacked_differs(kind, observe, true, false);
        }
    }
}

/// The reference waits for duplicate address detection only where IPAM tells an IPv6 gateway.
#[test]
fn an_ipv6_address_that_another_machine_has_is_refused() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        let observe = |lab: &Lab| {
            let container = lab.container();
            container.sh("echo 1 > /proc/sys/net/ipv6/conf/default/accept_dad"); // the kernel's default
            lab.attach(&container, &kind.address(&format!("{}/64", PEER[1]))).try_add().status
        };
        stacked_differs(kind, observe, FAILED, OK);
    }
}

#[test]
fn dns_of_ipam_is_in_the_result() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        let conf = with(
            &kind.address("10.10.0.7/24"),
            json!({"ipam": {"dns": {"nameservers": ["192.0.2.53"]}}}),
        );
        let observe = |lab: &Lab| lab.attach(&lab.container(), &conf).add().get("dns").cloned();
        stacked_differs(kind, observe, Some(json!({"nameservers": ["192.0.2.53"]})), None);
    }
}

#[test]
fn vlan_tells_neighbours_of_a_new_container() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &VLAN.conf()).add();
        ["ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"]
            .map(|key| stacked::sysctl(&container, key))
            .concat()
    };
    stacked_differs(&VLAN, observe, "11".to_owned(), "00".to_owned());
}

#[test]
fn a_default_route_of_several_next_hops_tells_the_master() {
    for kind in [&MACVLAN, &IPVLAN] {
        let observe = |lab: &Lab| {
            stacked::second_master(lab);
            lab.host.sh("ip addr add 192.0.2.1/24 dev second");
            lab.host.sh("ip route add default nexthop via 198.51.100.2 nexthop via 192.0.2.2");
            lab.attach(&lab.container(), &with(&kind.conf(), json!({"master": null})))
                .try_add()
                .status
        };
        stacked_differs(kind, observe, OK, FAILED);
    }
}

#[test]
fn ipvlan_takes_no_mtu_that_its_master_has_not() {
    for mtu in [1501, -100] {
        let conf = with(&IPVLAN.conf(), json!({"mtu": mtu}));
        stacked_differs(
            &IPVLAN,
            |lab| lab.attach(&lab.container(), &conf).try_add().status,
            FAILED,
            OK,
        );
    }
}

#[test]
fn del_of_a_vlan_does_not_need_the_master() {
    stacked_differs(&VLAN, |lab| stacked::del_after_the_master(lab, &VLAN), OK, FAILED);
}

#[test]
fn del_of_an_ipvlan_does_not_need_a_default_route() {
    let observe = |lab: &Lab| {
        lab.host.sh("ip route add default via 198.51.100.2");
        let attachment =
            lab.attach(&lab.container(), &with(&IPVLAN.conf(), json!({"master": null})));
        attachment.add();
        lab.host.sh("ip route del default");
        attachment.try_del().status
    };
    stacked_differs(&IPVLAN, observe, OK, FAILED);
}

#[test]
fn del_spares_an_interface_of_another_kind() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        stacked_differs(
            kind,
            |lab| stacked::del_spares_an_interface_of_another_kind(lab, kind),
            true,
            false,
        );
    }
}

#[test]
fn check_of_stacked_links_needs_no_master() {
    for kind in [&MACVLAN, &IPVLAN] {
        let observe = |lab: &Lab| {
            lab.host.sh("ip route add default via 198.51.100.2");
            let attachment =
                lab.attach(&lab.container(), &with(&kind.conf(), json!({"master": null})));
            let result = attachment.add();
            let at_once = attachment.check(&result).status;
            lab.host.sh("ip route del default");
            (at_once, attachment.check(&result).status)
        };
        let of_reference = if kind.plugin == "ipvlan" { FAILED } else { OK };
        stacked_differs(kind, observe, (OK, OK), (of_reference, FAILED));
    }
}

#[test]
fn check_compares_the_master_of_stacked_links() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        stacked_differs(kind, |lab| stacked::check_with_another_master(lab, kind), FAILED, OK);
    }
}

#[test]
fn status_of_stacked_links_asks_for_the_master() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        let conf = with(&kind.conf(), json!({"cniVersion": "1.1.0", "master": "nonesuch"}));
        stacked_differs(
            kind,
            |lab| lab.attach(&lab.container(), &conf).status().status,
            FAILED,
            OK,
        );
    }
}

// --- host-device, dummy, tap ---

/// A device that the reference gives back is down and has no address any more.
#[test]
fn a_device_comes_back_as_it_was() {
    let observe = |lab: &Lab| {
        host_device::device(lab);
        let before = Watch::start(lab, &[]);
        let attachment = lab.attach(&lab.container(), &host_device::conf());
        attachment.add();
        attachment.del();
        (
            before.changes().is_empty(),
            host_device::is_up(&lab.host, "dev0"),
            lab.host.addresses("dev0").len(),
        )
    };
    differs("host-device", observe, (true, true, 3), (false, false, 0));
}

#[test]
fn del_of_another_network_leaves_the_device_in_the_container() {
    let observe = |lab: &Lab| {
        host_device::device(lab);
        let attachment = lab.attach(&lab.container(), &host_device::conf());
        attachment.add();
        let late = attachment.clone().conf(json!({"name": "other"})).call("DEL", None).run();
        let is_back = lab.host.link("dev0").is_some();
        attachment.call("DEL", None).run();
        (late.status, is_back, lab.host.link("dev0").is_some())
    };
    differs("host-device", observe, (OK, false, true), (OK, true, true));
}

/// The reference keeps the device in the container when IPAM or an address fails, and a second ADD
/// does not find it.
#[test]
fn a_failed_add_gives_the_device_back() {
    let refused = with(
        &host_device::conf(),
        json!({"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}}),
    );
    let observe = |lab: &Lab| {
        host_device::device(lab);
        let attachment = lab.attach(&lab.container(), &refused);
        assert_eq!(attachment.try_add().status, FAILED);
        (
            lab.host.link("dev0").is_some(),
            attachment.conf(json!({"ipam": {"routes": null}})).try_add().status,
        )
    };
    differs("host-device", observe, (true, OK), (false, FAILED));
}

/// The interface is looked for, and the namespace, and what has not been found is an error. A
/// runtime repeats DEL until it succeeds.
#[test]
fn del_of_a_device_that_is_back_already_succeeds() {
    let repeated = |lab: &Lab| {
        host_device::device(lab);
        let attachment = lab.attach(&lab.container(), &host_device::conf());
        attachment.add();
        attachment.del();
        attachment.try_del().status
    };
    differs("host-device", repeated, OK, FAILED);
    let without_namespace = |lab: &Lab| {
        host_device::device(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &host_device::leased());
        attachment.add();
        container.vanish();
        (attachment.try_del().status, lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists())
    };
    differs("host-device", without_namespace, (OK, false), (FAILED, true));
}

/// Without CNI_NETNS the reference does nothing at all, and the lease stays.
#[test]
fn del_of_a_device_without_netns_releases_the_address() {
    let observe = |lab: &Lab| {
        host_device::device(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &host_device::leased());
        attachment.add();
        container.vanish();
        attachment.netns(None).del();
        lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists()
    };
    differs("host-device", observe, false, true);
}

/// The reference asks sysfs for the device before it gives it back.
#[test]
fn del_of_a_device_does_not_ask_sysfs() {
    let conf = with(
        &host_device::layer_two(),
        json!({"device": null, "runtimeConfig": {"deviceID": "0000:00:1f.6"}}),
    );
    let observe = |lab: &Lab| {
        host_device::device(lab);
        host_device::found::fake_sysfs(lab, "e1000e", "mkdir -p net/dev0");
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        lab.host.sh("rm -r /sys/bus /sys/devices");
        (attachment.try_del().status, lab.host.link("dev0").is_some())
    };
    differs("host-device", observe, (OK, true), (FAILED, false));
}

/// The reference takes the first of several in an order of its own.
#[test]
fn a_device_is_named_in_one_way_only() {
    let conf = with(&host_device::layer_two(), json!({"hwaddr": "02:00:00:00:00:99"}));
    let observe = |lab: &Lab| {
        host_device::device(lab);
        lab.attach(&lab.container(), &conf).try_add().status
    };
    differs("host-device", observe, FAILED, OK);
}

/// The id is put into a path as it is.
#[test]
fn a_device_s_id_does_not_lead_out_of_its_directory() {
    let conf = with(
        &host_device::layer_two(),
        json!({"device": null, "pciBusID": "../../../../run/elsewhere"}),
    );
    let observe = |lab: &Lab| {
        host_device::device(lab);
        host_device::found::fake_sysfs(
            lab,
            "e1000e",
            "mkdir -p /run/elsewhere/net/dev0 && ln -s /sys/bus/pci/drivers/e1000e /run/elsewhere/driver",
        );
        lab.attach(&lab.container(), &conf).try_add().status
    };
    differs("host-device", observe, FAILED, OK);
}

/// A variable of the reference's own, which its reader fills in.
#[test]
fn dpdk_mode_is_found_out_and_not_configured() {
    let conf = with(&host_device::layer_two(), json!({"dpdkMode": true}));
    let observe = |lab: &Lab| {
        host_device::device(lab);
        let container = lab.container();
        lab.attach(&container, &conf).add();
        container.link("eth0").is_some()
    };
    differs("host-device", observe, true, false);
}

/// The reference's host-device and tap drop what IPAM tells, and host-device without IPAM what is
/// configured.
#[test]
fn dns_is_told_by_whoever_knows_it() {
    let told = json!({"nameservers": ["192.0.2.53"]});
    let of_ipam = with(&host_device::conf(), json!({"ipam": {"dns": told}}));
    let own = with(&host_device::layer_two(), json!({"dns": told}));
    for conf in [of_ipam, own] {
        let observe = |lab: &Lab| {
            host_device::device(lab);
            lab.attach(&lab.container(), &conf).add()["dns"].clone()
        };
        differs("host-device", observe, told.clone(), Value::Null);
    }
    let of_ipam = static_ipam(&tap::conf(), json!([{"address": "10.50.0.7/24"}]), json!([]));
    let of_ipam = with(&of_ipam, json!({"ipam": {"dns": told}}));
    let observe = |lab: &Lab| match tap::makes_taps(lab) {
        true => lab.attach(&lab.container(), &of_ipam).add()["dns"].clone(),
        false => Value::Null,
    };
    if makes(tap::makes_taps) {
        differs("tap", observe, told, Value::Null);
    }
}

/// And its dummy drops what is configured.
#[test]
fn dns_of_the_network_counts_for_a_dummy() {
    let conf = with(&dummy::conf(), json!({"dns": {"nameservers": ["192.0.2.53"]}}));
    let observe = |lab: &Lab| lab.attach(&lab.container(), &conf).add()["dns"].clone();
    if makes(dummy::makes_dummies) {
        differs("dummy", observe, json!({"nameservers": ["192.0.2.53"]}), Value::Null);
    }
}

/// Whether this machine can make what a case is about.
fn makes(what: impl Fn(&Lab) -> bool) -> bool {
    what(&Lab::new(crate::support::call::Peer::Ours))
}

/// Routes of a dummy are not compared by the reference.
#[test]
fn check_of_a_dummy_looks_at_routes() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &dummy::conf());
        let result = attachment.add();
        container.sh("ip route del 10.99.0.0/16");
        attachment.check(&result).status
    };
    if makes(dummy::makes_dummies) {
        differs("dummy", observe, FAILED, OK);
    }
}

/// With owner and group the reference makes a tap in a way of its own, and forgets the rest; its
/// reader gets another header too.
#[test]
fn a_tap_with_owner_and_group_is_one_as_any_other() {
    let conf = with(
        &tap::layer_two(),
        json!({"owner": 0, "group": 0, "mtu": 1400, "mac": "02:00:00:00:00:01"}),
    );
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &conf).add();
        let link = container.link("eth0").unwrap();
        (
            link["mtu"] == 1400,
            link["address"] == "02:00:00:00:00:01",
            link["linkinfo"]["info_data"]["pi"].clone(),
        )
    };
    if makes(tap::makes_taps) {
        differs("tap", observe, (true, true, json!(false)), (false, false, json!(true)));
    }
}

/// The reference does not see that the name was refused: it takes the interface that has it for the
/// new one.
#[test]
fn a_tap_takes_no_interface_over() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other");
        let status = lab.attach(&container, &tap::layer_two()).try_add().status;
        (status, container.sh("ip -d link | grep -c 'tun type tap' || true").trim().to_owned())
    };
    if makes(tap::makes_taps) {
        differs("tap", observe, (FAILED, "0".to_owned()), (OK, "1".to_owned()));
    }
}

/// The reference runs `ip`, unless owner and group are given.
#[test]
fn a_tap_needs_no_ip_program() {
    let observe = |lab: &Lab| {
        let mut call = lab.attach(&lab.container(), &tap::layer_two()).call("ADD", None);
        call.wrapper.extend(["env", "PATH=/nonexistent"].map(str::to_owned));
        call.run().status
    };
    if makes(tap::makes_taps) {
        differs("tap", observe, OK, FAILED);
    }
}

/// Without addresses the reference's CHECK looks at nothing.
#[test]
fn check_of_a_tap_looks_for_it() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &tap::layer_two());
        let result = attachment.add();
        container.sh("ip link del eth0");
        attachment.check(&result).status
    };
    if makes(tap::makes_taps) {
        differs("tap", observe, FAILED, OK);
    }
}

/// The reference asks the IPAM plugin only.
#[test]
fn status_of_tap_tells_that_the_driver_is_missing() {
    let observe = |lab: &Lab| {
        lab.host.sh("mount -t tmpfs empty /dev/net");
        lab.attach(&lab.container(), &with(&tap::layer_two(), json!({"cniVersion": "1.1.0"})))
            .status()
            .status
    };
    differs("tap", observe, FAILED, OK);
}

/// Whatever has the name is deleted by the reference.
#[test]
fn del_of_a_tap_or_dummy_spares_an_interface_of_another_kind() {
    for conf in [tap::layer_two(), dummy::conf()] {
        let observe = |lab: &Lab| {
            let container = lab.container();
            container.sh("ip link add eth0 type veth peer name other");
            lab.attach(&container, &conf).del();
            container.link("eth0").is_some()
        };
        differs(conf["type"].as_str().unwrap(), observe, true, false);
    }
}

/// What the reference's failed ADDs of these plugins leave.
#[test]
fn failed_adds_of_tap_and_host_device_leave_nothing() {
    for case in host_device::failed_add::failing()
        .into_iter()
        .filter(|case| case.reference_leaves_something)
    {
        let observe =
            |lab: &Lab| bridge::failed_add::fail(lab, &host_device::conf(), &case).0.is_empty();
        differs("host-device", observe, true, false);
    }
    if makes(tap::makes_taps) {
        let case = Case::new("no such bridge", json!({"bridge": "br0"}), 7, "br0");
        differs(
            "tap",
            |lab| bridge::failed_add::fail(lab, &tap::layer_two(), &case).0.is_empty(),
            true,
            false,
        );
    }
}

// --- portmap ---

/// The status of an ADD of portmap on `network()` with these changes.
fn add_portmap(lab: &Lab, backend: Option<&str>, changes: Value) -> i32 {
    lab.chain(&network(), &with(&portmap::portmap(backend, json!([web()])), changes))
        .try_add()
        .status
}

/// `add_portmap` with one mapping that is changed.
fn add_mapping(lab: &Lab, backend: &str, changes: Value) -> i32 {
    add_portmap(
        lab,
        Some(backend),
        json!({"runtimeConfig": {"portMappings": [with(&web(), changes)]}}),
    )
}

/// The reference adds a rule that no packet reaches, and says nothing.
#[test]
fn a_host_port_that_is_taken_is_an_error() {
    for backend in portmap::BACKENDS {
        let observe = |lab: &Lab| {
            publish(lab, Some(backend), json!([web()]));
            add_portmap(lab, Some(backend), json!({}))
        };
        differs("portmap", observe, FAILED, OK);
    }
}

/// The reference uses nftables where there is no iptables.
#[test]
fn portmap_uses_nftables_unless_iptables_is_asked_for() {
    let observe = |lab: &Lab| {
        publish(lab, None, json!([web()]));
        portmap::iptables::rules(lab).is_empty()
    };
    differs("portmap", observe, true, false);
}

/// A runtime that calls DEL with what it has in its configuration, as after a restart, leaves the
/// reference's port open.
#[test]
fn del_of_portmap_needs_no_mappings() {
    for backend in portmap::BACKENDS {
        let observe = |lab: &Lab| {
            let chain = publish(lab, Some(backend), json!([web()]));
            let _server = TcpServer::start(&chain.container, 80);
            chain.bare().del();
            is_open(lab, 8080)
        };
        differs("portmap", observe, [false; 2], [true; 2]);
    }
}

/// One of the tables that the reference made for good.
#[test]
fn the_last_del_of_portmap_takes_the_table_away() {
    let observe = |lab: &Lab| {
        let before = lab.host.sh("nft -s list ruleset");
        publish(lab, Some("nftables"), json!([web()])).del();
        lab.host.sh("nft -s list ruleset") == before
    };
    differs("portmap", observe, true, false);
}

/// The reference looks for rules by the container's id, whatever network they are of.
#[test]
fn del_of_portmap_is_for_one_network() {
    let observe = |lab: &Lab| {
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        (*chain).clone().conf(json!({"name": "net2"})).del();
        is_open(lab, 8080)
    };
    differs("portmap", observe, [true; 2], [false; 2]);
}

/// The port is known to be wrong when chains and jumps are there.
#[test]
fn a_failed_add_of_portmap_leaves_no_rule() {
    let observe = |lab: &Lab| {
        let before = Watch::start(lab, &[]);
        let chain = lab.chain(
            &network(),
            &portmap::portmap(Some("iptables"), json!([with(&web(), json!({"hostPort": 70_000}))])),
        );
        chain.try_add().err();
        chain.main.del();
        before.changes_now().contains("CNI-")
    };
    differs("portmap", observe, false, true);
}

/// The jumps, the mark and the masquerading are shared, and the reference's CHECK does not look at
/// them.
#[test]
fn check_of_portmap_looks_at_what_is_shared() {
    for script in ["iptables -t nat -F CNI-HOSTPORT-MASQ", "ip6tables -t nat -F PREROUTING"] {
        let observe = |lab: &Lab| {
            let chain = publish(lab, Some("iptables"), json!([web()]));
            lab.host.sh(script);
            chain.check(&chain.result).status
        };
        differs("portmap", observe, FAILED, OK);
    }
}

/// A packet that the kernel's bridge sends from port to port is not seen by the host, so the answer
/// to a neighbour must come by the gateway.
#[test]
fn a_neighbour_reaches_a_port_where_bridges_go_their_own_way() {
    let observe = |lab: &Lab| {
        portmap::without_bridge_netfilter(lab);
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        let neighbour = lab.container();
        lab.attach(&neighbour, &network()).add();
        connect(&neighbour, "198.51.100.1:8080")
    };
    differs("portmap", observe, Some("10.10.0.1".to_owned()), None);
}

/// Of two tables with one priority the kernel asks the younger first, and that is the reference's.
#[test]
fn a_node_port_of_another_table_goes_first() {
    for service in portmap::host::SERVICES.iter().filter(|service| service.node_port) {
        let observe = |lab: &Lab| portmap::host::answering(lab, service, Some("nftables"), true)[1];
        differs("portmap", observe, "service", "published");
    }
}

#[test]
fn masq_all_is_for_nftables_too() {
    let observe = |lab: &Lab| {
        let chained =
            with(&portmap::portmap(Some("nftables"), json!([web()])), json!({"masqAll": true}));
        let chain = lab.chain(&network(), &chained);
        chain.add();
        let _server = TcpServer::start(&chain.container, 80);
        connect(&lab.outside, "198.51.100.1:8080").unwrap()
    };
    differs("portmap", observe, "10.10.0.1".to_owned(), "198.51.100.2".to_owned());
}

#[test]
fn a_mapping_without_a_protocol_is_of_tcp() {
    for backend in portmap::BACKENDS {
        differs("portmap", |lab| add_mapping(lab, backend, json!({"protocol": null})), OK, FAILED);
    }
}

#[test]
fn a_protocol_may_have_any_case() {
    differs("portmap", |lab| add_mapping(lab, "nftables", json!({"protocol": "TCP"})), OK, FAILED);
}

/// Nothing would be published, or not what was asked for.
#[test]
fn a_mapping_that_cannot_be_made_is_refused() {
    let v4 = with(&network(), json!({"ipam": {"ranges": null, "subnet": "10.10.0.0/24"}}));
    let without =
        with(&network(), json!({"ipam": null, "isGateway": null, "isDefaultGateway": null}));
    let cases = [
        (v4, json!([with(&web(), json!({"hostIP": "2001:db8:ffff::1"}))])),
        (without, json!([web()])),
        (network(), json!([web(), with(&web(), json!({"containerPort": 81}))])),
    ];
    for backend in portmap::BACKENDS {
        for (main, mappings) in &cases {
            let observe = |lab: &Lab| {
                lab.chain(main, &portmap::portmap(Some(backend), mappings.clone())).try_add().status
            };
            differs("portmap", observe, FAILED, OK);
        }
    }
}

/// The reference writes them in front of the jump that all containers share, and the last ADD
/// decides for all: a container that has been there for long is cut off.
#[test]
fn conditions_of_nftables_are_of_one_container() {
    let conditions = json!({"conditionsV4": ["ip", "saddr", "192.0.2.1"]});
    let observe = |lab: &Lab| {
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
        let other = json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]);
        let second = lab.chain(
            &network(),
            &with(&portmap::portmap(Some("nftables"), other), conditions.clone()),
        );
        second.add();
        let _other_server = TcpServer::start(&second.container, 80);
        (is_open(lab, 8080), is_open(lab, 9090))
    };
    differs("portmap", observe, ([true, true], [false, true]), ([false, true], [false, true]));
}

/// A bit of a mark means nothing where no mark is set.
#[test]
fn a_mark_is_not_taken_for_nftables() {
    differs(
        "portmap",
        |lab| add_portmap(lab, Some("nftables"), json!({"markMasqBit": 5})),
        FAILED,
        OK,
    );
}

#[test]
fn a_repeated_add_of_portmap_adds_nothing() {
    let observe = |lab: &Lab| {
        let chain = publish(lab, Some("nftables"), json!([web()]));
        let once = lab.host.sh("nft -s list ruleset");
        chain.add();
        lab.host.sh("nft -s list ruleset") == once
    };
    differs("portmap", observe, true, false);
}

/// The kernel would go on sending a known flow to the container; the reference takes flows away at
/// the next ADD of the port.
#[test]
fn del_of_portmap_ends_the_flows_of_udp() {
    let observe = |lab: &Lab| portmap::udp::flows_after_del(lab);
    differs("portmap", observe, 0, 4);
}

/// The same port of another machine is another flow.
#[test]
fn flows_of_udp_to_other_machines_are_not_ended() {
    let observe = |lab: &Lab| portmap::udp::flows_to_others_after_add(lab);
    differs("portmap", observe, 2, 0);
}

// --- firewall plugin ---

/// Any other word than the two it knows means autodetection.
#[test]
fn an_unknown_firewall_backend_is_refused() {
    let observe = |lab: &Lab| {
        lab.chain(&firewall::network(), &firewall::firewall(Some("ipfw"))).try_add().status
    };
    differs("firewall", observe, FAILED, OK);
}

#[test]
fn a_host_without_iptables_gets_no_tables_of_it() {
    let observe = |lab: &Lab| {
        firewall::admit(lab, &firewall::firewall(None));
        lab.host.sh("nft list tables").contains("table ip filter")
    };
    differs("firewall", observe, false, true);
}

/// The reference knows an address only, and not whose it is now.
#[test]
fn a_late_del_does_not_cut_off_who_has_the_address_now() {
    let observe = |lab: &Lab| {
        lab.host.sh(firewall::DROPPING);
        let first = firewall::admit(lab, &firewall::firewall(None));
        let second = lab.attach(&lab.container(), &first.conf); // the same result: it has got the addresses
        second.add();
        first.del();
        lab.host.sh("iptables -S").contains(&format!("-s {}/32", first.ips()[0]))
    };
    differs("firewall", observe, true, false);
}

#[test]
fn firewall_check_changes_nothing() {
    let observe = |lab: &Lab| {
        lab.host.sh(firewall::DROPPING);
        let chain = firewall::admit(lab, &firewall::firewall(None));
        lab.host.sh("iptables -F; iptables -X");
        assert_eq!(chain.check(&chain.result).status, FAILED);
        lab.host.sh("iptables -S").contains("-N CNI-FORWARD")
    };
    differs("firewall", observe, false, true);
}

// --- tuning ---

fn tuning_chain<'a>(lab: &'a Lab, changes: Value) -> Chain<'a> {
    lab.chain(&bridge::conf(), &tuning::tuning(changes))
}

const ARP_FILTER: &str = "ipv4/conf/eth0/arp_filter";

fn set_arp_filter() -> Value {
    json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})
}

/// Nobody else knows what a sysctl was, and the reference does not write it down.
#[test]
fn tuning_gives_sysctls_back() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        chain.add();
        chain.del();
        tuning::sysctl(&chain.container, ARP_FILTER)
    };
    differs("tuning", observe, "0".to_owned(), "1".to_owned());
}

/// A part of the name is enough for the reference, and CHECK does not ask at all.
#[test]
fn a_pattern_of_the_allowlist_is_for_the_whole_name() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        let result = chain.add();
        tuning::allowlist::write(lab, "arp_filter\n");
        let add = chain.try_add().status;
        tuning::allowlist::write(lab, "nothing\n");
        (add, chain.check(&result).status)
    };
    differs("tuning", observe, (FAILED, FAILED), (OK, OK));
}

#[test]
fn a_pattern_that_is_none_allows_nothing() {
    let observe = |lab: &Lab| {
        tuning::allowlist::write(lab, "net.ipv4.conf.IFNAME.arp_filter\n(\n");
        tuning_chain(lab, set_arp_filter()).try_add().status
    };
    differs("tuning", observe, FAILED, OK);
}

/// Every dot becomes a slash, those of the link's name as well.
#[test]
fn a_sysctl_of_a_link_with_a_dot_is_found() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"sysctl": {"net/ipv4/conf/eth0.5/arp_filter": "1"}}));
        chain.container.sh("ip link add eth0.5 type veth peer name other");
        chain.try_add().status
    };
    differs("tuning", observe, OK, FAILED);
}

/// Where a pod may choose the name of its interface, it must not get at the settings of all of
/// them.
#[test]
fn ifname_is_never_all_links() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        let status = chain.clone().ifname("all").try_add().status;
        (status, tuning::sysctl(&chain.container, "ipv4/conf/all/arp_filter"))
    };
    differs("tuning", observe, (FAILED, "0".to_owned()), (OK, "1".to_owned()));
}

#[test]
fn a_failed_tuning_leaves_nothing() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, with(&set_arp_filter(), json!({"txQLen": 5, "mtu": 70_000})));
        let before = Watch::start(lab, &[&chain.container]);
        chain.try_add().err();
        before.changes_now().is_empty()
    };
    differs("tuning", observe, true, false);
}

#[test]
fn a_repeated_tuning_keeps_the_first_backup() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400}));
        chain.add();
        chain.add();
        chain.del();
        chain.container.link("eth0").unwrap()["mtu"].clone()
    };
    differs("tuning", observe, json!(1500), json!(1400));
}

/// It would be restored for the next container of that id.
#[test]
fn the_backup_goes_with_the_namespace() {
    let observe = |lab: &Lab| {
        let (gone, linkless) =
            (tuning_chain(lab, json!({"mtu": 1400})), tuning_chain(lab, json!({"mtu": 1400})));
        gone.add();
        gone.container.vanish();
        gone.del();
        linkless.add();
        linkless.container.sh("ip link del eth0");
        linkless.del();
        [gone, linkless].map(|chain| tuning::has_backup(lab, &chain))
    };
    differs("tuning", observe, [false, false], [true, true]);
}

/// The file's name does not tell the network.
#[test]
fn del_of_another_network_does_not_restore() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400}));
        chain.add();
        chain.clone().conf(json!({"name": "other"})).del();
        chain.container.link("eth0").unwrap()["mtu"].clone()
    };
    differs("tuning", observe, json!(1400), json!(1500));
}

#[test]
fn what_del_cannot_restore_is_told() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400}));
        chain.add();
        lab.host.sh(&format!("echo '{{\"mtu\": 70000}}' > {}", tuning::backup_of(&chain)));
        (chain.try_del().status, tuning::has_backup(lab, &chain))
    };
    differs("tuning", observe, (FAILED, false), (OK, true));
}

/// The reference writes to a map that it never made.
#[test]
fn sysctls_of_args_need_no_others() {
    let observe =
        |lab: &Lab| tuning_chain(lab, json!({"args": {"cni": set_arp_filter()}})).try_add().status;
    differs("tuning", observe, OK, 2);
}

#[test]
fn two_spellings_of_a_sysctl_are_refused() {
    let twice = json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/conf/IFNAME/arp_filter": "0"}});
    differs("tuning", |lab| tuning_chain(lab, twice.clone()).try_add().status, FAILED, OK);
}

/// ADD with false does nothing, and CHECK looks for false also where nothing was said.
#[test]
fn promisc_false_is_off() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"promisc": false, "mtu": 1400}));
        chain.container.sh("ip link set eth0 promisc on");
        let result = chain.add();
        let switched_off = chain.check(&result).status;
        chain.container.sh("ip link set eth0 promisc on");
        (switched_off, chain.clone().conf(json!({"promisc": null})).check(&result).status)
    };
    differs("tuning", observe, (OK, OK), (FAILED, FAILED));
}

#[test]
fn check_of_a_list_of_numbers_succeeds() {
    let observe = |lab: &Lab| {
        let chain =
            tuning_chain(lab, json!({"sysctl": {"net.ipv4.ip_local_port_range": "20000 30000"}}));
        let result = chain.add();
        chain.check(&result).status
    };
    differs("tuning", observe, OK, FAILED);
}

#[test]
fn check_of_a_mac_in_capitals_succeeds() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"mac": "02-00-00-00-00-AB"}));
        let result = chain.add();
        chain.check(&result).status
    };
    differs("tuning", observe, OK, FAILED);
}

#[test]
fn the_result_of_tuning_tells_the_mtu() {
    let observe =
        |lab: &Lab| tuning_chain(lab, json!({"mtu": 1400})).add()["interfaces"][2]["mtu"].clone();
    differs("tuning", observe, json!(1400), Value::Null);
}

#[test]
fn the_host_s_interface_in_the_result_is_left_alone() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"mac": tuning::MAC}));
        let host = json!({"name": "eth0", "mac": "02:00:00:00:00:01"});
        let previous = json!({"cniVersion": "1.0.0", "interfaces": [host]});
        chain.clone().conf(json!({"prevResult": previous})).add()["interfaces"][0]["mac"].clone()
    };
    differs("tuning", observe, json!("02:00:00:00:00:01"), json!(tuning::MAC));
}

/// Whoever may write beside the file chooses where the reference writes, as root.
#[test]
fn the_backup_is_never_written_through_a_link() {
    let observe = |lab: &Lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400, "dataDir": "/run/new/data"}));
        chain.add();
        let mode = lab.host.sh("stat -c %a /run/new/data").trim().to_owned();
        chain.del();
        let file = format!("/run/new/data/{}_eth0.json", chain.container_id);
        lab.host.sh(&format!("echo precious > /run/victim; ln -s /run/victim {file}"));
        chain.try_add();
        (mode, lab.host.sh("cat /run/victim") == "precious\n")
    };
    differs("tuning", observe, ("700".to_owned(), true), ("600".to_owned(), false));
}

#[test]
fn a_relative_data_dir_is_refused() {
    // Whoever enters a mount namespace is at its root, so this is the lab's own /run.
    let observe = |lab: &Lab| {
        tuning_chain(lab, json!({"mtu": 1400, "dataDir": "run/relative"})).try_add().status
    };
    differs("tuning", observe, FAILED, OK);
}

// --- bandwidth ---

/// An observation of limits; the same on both, and so no difference, where the kernel has none.
fn limits_differ<T: PartialEq + Clone + std::fmt::Debug>(
    observe: impl Fn(&Lab) -> T,
    ours: T,
    reference: T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    let case = |expected: &T, lab: &Lab| {
        if can_limit(lab) {
            assert_eq!(observe(lab), *expected, "{:?}", lab.peer);
        }
    };
    for_ours("bandwidth", |lab| case(&ours, lab));
    for_reference("bandwidth", |lab| case(&reference, lab));
}

/// Runtimes send 2^31-1 and its like where nobody has said a burst; the bucket of the reference is
/// full of it.
#[test]
fn a_burst_that_nobody_said_does_not_suspend_the_limit() {
    let limits = json!({"ingressRate": bandwidth::RATE, "ingressBurst": 2_147_483_647_u64});
    let observe = |lab: &Lab| {
        let chain = lab.chain(
            &bandwidth::network(),
            &bandwidth(json!({"runtimeConfig": {"bandwidth": limits}})),
        );
        chain.add();
        let seconds =
            crate::support::flow::measure(&lab.host, &chain.container, &chain.ips()[0], 1);
        seconds[0] > 3 * bandwidth::RATE
    };
    limits_differ(observe, false, true);
}

/// The kernel drops what does not fit in the bucket.
#[test]
fn a_burst_that_is_shorter_than_a_packet_lets_packets_pass() {
    let observe = |lab: &Lab| {
        let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 80});
        let chain = lab.chain(&bandwidth::network(), &bandwidth(limits));
        assert_pings(&lab.host, &chain.ips()[0]);
        chain.add();
        lab.host.try_sh(&format!("ping -n -q -c3 -i0.2 -W1 {}", chain.ips()[0])).status.success()
    };
    limits_differ(observe, true, false);
}

/// The reference names the ifb by network and container.
#[test]
fn two_interfaces_of_a_container_can_be_limited() {
    let observe = |lab: &Lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        chain.add();
        let address = json!([{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}]);
        let network = static_ipam(&bandwidth::network(), address, json!([]));
        let second = lab.attach(&chain.container, &network).ifname("eth1");
        let prev_result = second.add();
        chain.clone().ifname("eth1").conf(json!({"prevResult": prev_result})).try_add().status
    };
    limits_differ(observe, OK, FAILED);
}

/// Something is in the way of the last thing that ADD makes.
#[test]
fn an_add_of_limits_that_fails_leaves_nothing() {
    let observe = |lab: &Lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        lab.host.sh(&format!("tc qdisc add dev {} ingress", bandwidth::host_end(&chain)));
        let before = Watch::start(lab, &[]);
        assert_eq!(chain.try_add().status, FAILED);
        before.changes_now().is_empty()
    };
    limits_differ(observe, true, false);
}

/// The queues of the host's end go with it, if it goes.
#[test]
fn del_takes_the_limits_off_the_host_s_end() {
    let observe = |lab: &Lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        let before = Watch::start(lab, &[]);
        chain.add();
        chain.del();
        before.changes().is_empty()
    };
    limits_differ(observe, true, false);
}

/// Without limits and without prevResult: a nil pointer, and Go's status 2.
#[test]
fn no_prev_result_is_no_crash_of_bandwidth() {
    let observe = |lab: &Lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth(json!({})));
        chain.clone().conf(json!({"prevResult": null})).try_add().status
    };
    limits_differ(observe, FAILED, 2);
}

/// The kernel knows the host's end, whatever prevResult tells.
#[test]
fn limits_need_no_interfaces_in_prev_result() {
    let observe = |lab: &Lab| {
        let old = lab.chain(
            &with(&bandwidth::network(), json!({"cniVersion": "0.2.0"})),
            &bandwidth::both(),
        );
        let new = lab.chain(&bandwidth::network(), &bandwidth::both());
        (
            old.try_add().status,
            new.clone().conf(json!({"prevResult": {"interfaces": null}})).try_add().status,
        )
    };
    limits_differ(observe, (OK, OK), (FAILED, FAILED));
}

/// Releases 1.5 of the reference had the keys; now it limits everything.
#[test]
fn some_subnets_alone_can_be_limited() {
    let observe = |lab: &Lab| {
        let chain = lab.chain(
            &bandwidth::network(),
            &with(&bandwidth::both(), json!({"shapedSubnets": ["10.99.0.0/16"]})),
        );
        if !bandwidth::is_able(lab, "htb") {
            crate::support::attachment::skip("htb");
            return lab.peer != crate::support::call::Peer::Ours;
        }
        chain.add();
        let seconds =
            crate::support::flow::measure(&lab.host, &chain.container, &chain.ips()[0], 2);
        seconds[1] < 3 * bandwidth::RATE
    };
    limits_differ(observe, false, true);
}

// --- sbr ---

/// The reference opens the namespace's path as a file that it may make.
#[test]
fn del_of_sbr_does_not_need_the_namespace() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.vanish();
        (sbr.try_del().status, lab.path(&container.netns).exists())
    };
    differs("sbr", observe, (OK, false), (FAILED, true));
}

/// The reference looks at rules only.
#[test]
fn a_table_that_has_routes_is_in_use() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        container.sh("ip route add 192.0.2.0/24 dev eth0 table 100");
        sbr.add();
        sbr::rules(&container)[0].1.clone()
    };
    differs("sbr", observe, "101".to_owned(), "100".to_owned());
}

/// With a configured table the reference's second ADD makes the same rules again.
#[test]
fn a_second_add_of_sbr_is_refused() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({"table": 5000}));
        sbr.add();
        (sbr.try_add().status, sbr::rules(&container).len())
    };
    differs("sbr", observe, (FAILED, 2), (OK, 4));
}

#[test]
fn sbr_leaves_link_local_routes_in_main() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        sbr::routes(&container, 6, "main", "net1")
    };
    differs("sbr", observe, vec!["fe80::/64".to_owned()], vec![]);
}

/// The table of an IPv4 address gets IPv6 routes as well from the reference.
#[test]
fn a_table_of_sbr_has_routes_of_its_address_s_family() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        sbr::routes(&container, 6, "100", "net1").is_empty()
    };
    differs("sbr", observe, true, false);
}

/// A gateway that is in no address's subnet: the reference removes the route from main and puts it
/// nowhere.
#[test]
fn sbr_loses_no_route() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        container.sh("ip route add 192.0.2.1 dev net1 scope link src 10.10.0.2; ip route add 192.0.2.128/25 via 192.0.2.1 dev net1");
        sbr.add();
        let found = sbr::routes(&container, 4, "all", "net1");
        ["192.0.2.1", "192.0.2.128/25"].map(|dst| found.iter().any(|found| found == dst))
    };
    differs("sbr", observe, [true, true], [false, false]);
}

#[test]
fn check_of_sbr_looks_at_rules_and_routes() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.sh("ip route flush table 100; ip rule del from 10.20.0.2");
        sbr.check(&sbr.result).status
    };
    differs("sbr", observe, FAILED, OK);
}

/// A rule to the main table does nothing.
#[test]
fn sbr_refuses_the_kernel_s_tables() {
    let observe = |lab: &Lab| sbr::two_uplinks(lab, json!({"table": 254})).1.try_add().status;
    differs("sbr", observe, FAILED, OK);
}

/// The reference leaves the tables' routes, which go with the interface.
#[test]
fn del_of_sbr_removes_the_tables_routes() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        sbr.del();
        sbr::routes(&container, 4, "100", "net1").len()
    };
    differs("sbr", observe, 0, 3);
}

/// The reference removes every rule about an address of the interface, whatever else it is about.
#[test]
fn del_of_sbr_leaves_rules_of_others() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.sh("ip rule add from 10.20.0.2 fwmark 1 lookup 77");
        sbr.del();
        sbr::rules(&container).len()
    };
    differs("sbr", observe, 1, 0);
}

/// The reference asks the interface for its addresses.
#[test]
fn del_of_sbr_finds_the_rules_of_an_interface_that_is_gone() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.sh("ip link del net1");
        sbr.del();
        sbr::rules(&container).len()
    };
    differs("sbr", observe, 0, 2);
}

/// Other plugins of the reference take such a prevResult for one of the configuration's version.
#[test]
fn sbr_takes_a_previous_result_without_a_version() {
    let observe = |lab: &Lab| {
        let (_container, sbr) = sbr::two_uplinks(lab, json!({"prevResult": {"cniVersion": null}}));
        sbr.try_add().status
    };
    differs("sbr", observe, OK, FAILED);
}

// --- vrf ---

/// Makes one observation on both, where the kernel has VRFs. The interface is to join the VRF
/// `blue`.
fn differs_in_vrf<T: PartialEq + std::fmt::Debug>(
    changes: Value,
    observe: impl Fn(&Container, &Chained<'_>) -> T,
    ours: T,
    reference: T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    let observe = |lab: &Lab| {
        let container = vrf::container(lab)?;
        let changes = with(&json!({"vrfname": "blue"}), changes.clone());
        let member = vrf::attach(lab, &container, &vrf::network(1, 2), "net1", changes);
        Some(observe(&container, &member))
    };
    let is = |seen: Option<T>, expected: &T, whose: &str| {
        if let Some(seen) = seen {
            assert_eq!(&seen, expected, "{whose}");
        }
    };
    for_ours("vrf", |lab| is(observe(lab), &ours, "ours"));
    for_reference("vrf", |lab| is(observe(lab), &reference, "the reference"));
}

#[test]
fn a_vrf_of_others_stays_after_del() {
    let observe = |container: &Container, member: &Chained<'_>| {
        container.sh("ip link add blue up type vrf table 20");
        member.add();
        member.del();
        container.link("blue").is_some()
    };
    differs_in_vrf(json!({}), observe, true, false);
}

#[test]
fn del_of_vrf_takes_an_interface_that_is_gone_as_done() {
    let observe = |container: &Container, member: &Chained<'_>| {
        member.add();
        container.sh("ip link del net1");
        (member.try_del().status, container.link("blue").is_some())
    };
    differs_in_vrf(json!({}), observe, (OK, false), (FAILED, true));
}

/// The reference takes it out of whatever master it has.
#[test]
fn del_of_vrf_leaves_an_interface_of_another_vrf() {
    let observe = |container: &Container, member: &Chained<'_>| {
        member.add();
        container.sh("ip link add red type vrf table 20; ip link set net1 master red");
        member.del();
        vrf::master(container, "net1")
    };
    differs_in_vrf(json!({}), observe, json!("red"), Value::Null);
}

/// The reference looks at VRFs only.
#[test]
fn a_table_that_a_rule_leads_to_is_no_vrf_s() {
    let observe = |container: &Container, member: &Chained<'_>| {
        container.sh("ip rule add from 192.0.2.1 lookup 1");
        member.add();
        vrf::table(container, "blue")
    };
    differs_in_vrf(json!({}), observe, 2, 1);
}

/// The reference puts back global addresses, and routes of main.
#[test]
fn vrf_loses_no_address_and_no_route() {
    let observe = |container: &Container, member: &Chained<'_>| {
        container.sh(
            "ip addr add fe80::7/64 dev net1 nodad; ip route add 10.82.0.0/16 dev net1 table 77; \
            ip route add 10.80.0.0/16 dev net1 scope link metric 9",
        );
        member.add();
        let address = container.sh("ip -o addr show dev net1").contains("fe80::7/64");
        let routes = ["77", "all"]
            .map(|table| container.sh(&format!("ip route show table {table} dev net1 || true")));
        [address, routes[0].contains("10.82.0.0/16"), routes[1].contains("10.80.0.0/16")]
    };
    differs_in_vrf(json!({}), observe, [true; 3], [false; 3]);
}

#[test]
fn check_of_vrf_looks_at_routes() {
    let observe = |container: &Container, member: &Chained<'_>| {
        member.add();
        container.sh("ip route del 10.77.0.0/16 vrf blue");
        member.check(&member.result).status
    };
    differs_in_vrf(json!({}), observe, FAILED, OK);
}

/// A path of /proc is soon that of another process.
#[test]
fn tuning_is_restored_in_its_own_namespace_only() {
    let observe = |lab: &Lab| {
        let [old, new] = [(); 2].map(|()| tuning_chain(lab, json!({"mtu": 1400})));
        old.add();
        new.container.sh("ip link set eth0 mtu 1450");
        old.clone().netns(Some(&new.container.netns)).del();
        new.container.link("eth0").unwrap()["mtu"].clone()
    };
    differs("tuning", observe, json!(1450), json!(1500));
}

/// The backup of `a_b` with `c` is called as that of `a` with `b_c`.
#[test]
fn a_backup_of_the_same_name_is_not_overwritten() {
    let observe = |lab: &Lab| {
        let [first, second] = [("a_b", "c"), ("a", "b_c")].map(|(id, ifname)| {
            let container = lab.container();
            container.sh(&format!("ip link add {ifname} type veth peer name other"));
            let conf = json!({"name": "n", "cniVersion": "1.0.0", "mtu": 1400, "prevResult": {"cniVersion": "1.0.0"}});
            let attachment = lab.attach(&container, &tuning::tuning(conf)).id(id).ifname(ifname);
            (container, attachment)
        });
        first.1.add();
        second.1.try_add().status
    };
    differs("tuning", observe, FAILED, OK);
}

// --- dhcp ---

/// One observation on a network with a scripted server and a daemon.
fn differs_in_dhcp<T: PartialEq + std::fmt::Debug>(
    script: Value,
    observe: impl Fn(&Lab, &Scripted, &mut Daemon) -> T,
    ours: T,
    reference: T,
) {
    let on_the_lan = |lab: &Lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, script.clone());
        observe(lab, &server, &mut Daemon::start(lab))
    };
    differs("dhcp", on_the_lan, ours, reference);
}

/// Leases of eight seconds that are renewed after one.
fn renewed_soon() -> Value {
    json!({"lease": 8, "t1": 1, "t2": 6})
}

/// What has to be seen not to happen.
fn for_a_while() {
    std::thread::sleep(std::time::Duration::from_millis(2500));
}

#[test]
fn leases_outlive_the_daemon() {
    let observe = |lab: &Lab, server: &Scripted, daemon: &mut Daemon| {
        lab.attach(&lab.container(), &dhcp::conf()).add();
        daemon.end_by("TERM");
        daemon.start_again();
        let before = server.heard_of(REQUEST).len();
        for_a_while();
        server.heard_of(REQUEST).len() > before
    };
    differs_in_dhcp(renewed_soon(), observe, true, false);
}

#[test]
fn del_of_a_lease_needs_no_daemon() {
    let observe = |lab: &Lab, _: &Scripted, daemon: &mut Daemon| {
        let attachment = lab.attach(&lab.container(), &dhcp::conf());
        attachment.add();
        daemon.kill();
        attachment.try_del().status
    };
    differs_in_dhcp(json!({}), observe, OK, FAILED);
}

/// The reference's RELEASE comes from 0.0.0.0, and kernels have no such sender.
#[test]
fn the_server_hears_that_a_lease_is_given_back() {
    let observe = |lab: &Lab, server: &Scripted, _: &mut Daemon| {
        let attachment = lab.attach(&lab.container(), &dhcp::conf());
        attachment.add();
        attachment.del();
        for_a_while();
        server.heard_of(RELEASE).len()
    };
    differs_in_dhcp(json!({}), observe, 1, 0);
}

#[test]
fn check_of_a_lease_asks_no_server() {
    let observe = |lab: &Lab, server: &Scripted, daemon: &mut Daemon| {
        let attachment = lab.attach(&lab.container(), &dhcp::conf());
        let result = attachment.add();
        daemon.end_by("TERM");
        lab.host.sh("rm -rf /run/cni/dhcp.*"); // it knows nothing of the lease
        daemon.start_again();
        let status = attachment.check(&result).status;
        (status, server.heard_of(DISCOVER).len())
    };
    differs_in_dhcp(json!({}), observe, (FAILED, 1), (OK, 2));
}

#[test]
fn status_asks_for_the_dhcp_daemon() {
    let observe = |lab: &Lab, _: &Scripted, daemon: &mut Daemon| {
        daemon.end_by("TERM");
        lab.attach(&lab.container(), &with(&dhcp::conf(), json!({"type": "dhcp", "master": null})))
            .status()
            .status
    };
    differs_in_dhcp(json!({}), observe, FAILED, OK);
}

/// A bridge port goes when the namespace of its other end does.
#[test]
fn the_dhcp_daemon_keeps_no_namespace_alive() {
    let observe = |lab: &Lab| {
        lab.lan(Kind::Bridge);
        let _server = Scripted::start(lab, json!({}));
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        lab.attach(&container, &Kind::Bridge.conf()).add();
        container.vanish();
        for_a_while();
        lab.host.json("ip -j link show master br0").as_array().unwrap().len()
    };
    differs("dhcp", observe, 1, 2);
}

/// An address that nobody has leased any more is another's soon; the container's other addresses
/// are its own.
#[test]
fn an_expired_lease_takes_the_address_and_not_the_link() {
    let observe = |lab: &Lab, server: &Scripted, _: &mut Daemon| {
        let container = lab.container();
        lab.attach(&container, &dhcp::conf()).add();
        server.change(json!({"discover": "silence", "renew": "silence", "rebind": "silence", "request": "silence"}));
        let is_up = || container.sh("ip link show eth0").contains(",UP");
        let is_over = || container.addresses("eth0").is_empty() || !is_up();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(6);
        while !is_over() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        (container.addresses("eth0").is_empty(), is_up())
    };
    // The reference tries each thing for more than a minute, and then sets the link down.
    differs_in_dhcp(json!({"lease": 3, "t1": 1, "t2": 2}), observe, (true, true), (false, true));
}

#[test]
fn a_renewal_is_unicast() {
    let observe = |lab: &Lab, server: &Scripted, _: &mut Daemon| {
        lab.attach(&lab.container(), &dhcp::conf()).add();
        server.wait_for(REQUEST, 2, 10)[1]["to"].clone()
    };
    differs_in_dhcp(renewed_soon(), observe, json!("unicast"), json!("broadcast"));
}

#[test]
fn a_socket_of_a_dead_daemon_is_replaced() {
    let observe = |lab: &Lab, _: &Scripted, daemon: &mut Daemon| {
        daemon.kill();
        let mut second = Daemon::launch(lab, &[], std::process::Stdio::null());
        wait_until("the second one listens or ends", 5, || {
            second.has_ended() || std::os::unix::net::UnixStream::connect(lab.path(SOCKET)).is_ok()
        });
        second.has_ended()
    };
    differs_in_dhcp(json!({}), observe, false, true);
}

#[test]
fn the_dhcp_socket_is_root_s_only() {
    let observe =
        |lab: &Lab, _: &Scripted, _: &mut Daemon| lab.host.sh(&format!("stat -c %a {SOCKET}"));
    differs_in_dhcp(json!({}), observe, "600\n".to_owned(), "755\n".to_owned());
}

#[test]
fn the_flag_broadcast_has_an_effect() {
    let observe = |lab: &Lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, json!({}));
        let _daemon = Daemon::with_flags(lab, &["-broadcast"]);
        lab.attach(&lab.container(), &dhcp::conf()).add();
        server.heard_of(DISCOVER)[0]["flags"].clone()
    };
    differs("dhcp", observe, json!(0x8000), json!(0));
}

/// RFC 2132 has classes of addresses and says nothing of their host bits, which the kernel refuses.
#[test]
fn a_static_route_of_option_33_has_no_host_bits() {
    let observe = |lab: &Lab, _: &Scripted, _: &mut Daemon| {
        lab.attach(&lab.container(), &dhcp::conf()).try_add().status
    };
    differs_in_dhcp(json!({"options": {"33": "0a0100000a3c0007"}}), observe, OK, FAILED);
}

#[test]
fn name_servers_and_mtu_of_the_dhcp_server_are_in_the_result() {
    let observe = |lab: &Lab, _: &Scripted, _: &mut Daemon| {
        let result = lab.attach(&lab.container(), &dhcp::conf()).add();
        (result["dns"]["nameservers"][0].clone(), result["routes"][0]["mtu"].clone())
    };
    let script = json!({"options": {"6": "0a3c0035", "26": "0578"}});
    differs_in_dhcp(
        script,
        observe,
        (json!("10.60.0.53"), json!(1400)),
        (Value::Null, Value::Null),
    );
}

#[test]
fn an_address_that_another_machine_has_is_declined() {
    let observe = |lab: &Lab, _: &Scripted, _: &mut Daemon| {
        lab.outside.sh("ip addr add 10.60.0.50/24 dev lan");
        lab.attach(&lab.container(), &dhcp::conf()).add()["ips"][0]["address"].clone()
    };
    differs_in_dhcp(json!({}), observe, json!("10.60.0.51/24"), json!("10.60.0.50/24"));
}

/// The interface would have to change its address, and nobody would tell the runtime.
#[test]
fn a_lease_of_another_address_is_none() {
    let observe = |lab: &Lab, server: &Scripted, _: &mut Daemon| {
        let container = lab.container();
        lab.attach(&container, &dhcp::conf()).add();
        server.change(json!({"renew": "nak", "rebind": "nak", "address": "10.60.0.99"}));
        for_a_while();
        for_a_while();
        container.addresses("eth0").len()
    };
    differs_in_dhcp(json!({"lease": 8, "t1": 1, "t2": 2}), observe, 0, 1);
}

#[test]
fn options_of_routes_and_names_have_names() {
    let observe = |lab: &Lab, server: &Scripted, _: &mut Daemon| {
        let conf = with(&dhcp::conf(), json!({"ipam": {"request": [{"option": "domain-search"}]}}));
        let status = lab.attach(&lab.container(), &conf).try_add().status;
        (status, server.heard_of(DISCOVER).first().and_then(|packet| option(packet, 55)))
    };
    differs_in_dhcp(json!({}), observe, (OK, Some("770301".to_owned())), (FAILED, None));
}

/// A Go panic.
#[test]
fn dhcp_without_ipam_is_a_mistake_of_the_configuration() {
    let observe = |lab: &Lab, _: &Scripted, _: &mut Daemon| {
        let conf = with(&dhcp::conf(), json!({"type": "dhcp", "master": null, "ipam": null}));
        lab.attach(&lab.container(), &conf).try_add().status
    };
    differs_in_dhcp(json!({}), observe, FAILED, 2);
}
