//! Where ours behaves otherwise than the reference plugins 1.9.1, on purpose. docs/differences.md has the reasons.
//!
//! Every test here is one difference: it makes the same observation on both, and asserts what each of them does. So this list cannot
//! promise what ours does not keep, and an entry that a newer reference makes untrue is found.

use serde_json::{Value, json};

use crate::plugins::ipam::host_local;
use crate::plugins::main::bridge::{self, static_ipam};
use crate::plugins::main::ptp;
use crate::plugins::meta::{sbr, vrf};
use crate::support::attachment::{for_ours, for_reference, with};
use crate::support::netns::{Container, Lab};
use crate::support::snapshot::Watch;
use crate::support::traffic::{Ear, assert_pings, assert_pings_with};

/// Makes one observation on both.
fn differs<T: PartialEq + std::fmt::Debug>(plugin: &str, observe: impl Fn(&Lab) -> T, ours: T, reference: T) {
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
    differs("bridge", |lab| check_after_add(lab, &with(&bridge::conf(), json!({"ipam": null}))), OK, FAILED);
}

/// CHECK looks for a route to the address's network in the main table; the kernel has none for a /32.
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
    let conf = with(&bridge::conf(), json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "table": 100}]}}));
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

/// The reference's library asks for a queue of no packets at the host's end, by a field that nobody set.
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
    let result = lab.attach(&lab.container(), &with(&bridge::conf(), json!({"type": plugin}))).add();
    let at = result["interfaces"].as_array().unwrap().len() - 2;
    lab.host.link(&crate::support::attachment::interface(&result, at)).unwrap()
}

/// Nobody else can have the addresses of a link that was just made, so they are usable when ADD is done. The reference lets the
/// kernel look for others first where `accept_dad` says so: on its bridge, and in a container of ptp.
#[test]
fn ipv6_addresses_can_be_used_at_once() {
    let nodad = |flags: &Value| flags.as_array().unwrap().iter().any(|address| address["nodad"] == true);
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
    let conf =
        with(&bridge::conf(), json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "mtu": 1300, "advmss": 1200}]}}));
    let observe = |lab: &Lab| {
        let container = lab.container();
        lab.attach(&container, &conf).add();
        container.json("ip -j -d route show 10.99.0.0/16")[0]["metrics"][0].clone()
    };
    differs("bridge", observe, json!({"mtu": 1300, "advmss": 1200}), Value::Null);
}

/// ptp with a /32: the reference adds IPAM's routes before the one to the gateway, and takes away a subnet route that does not exist.
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

/// A bridge that has lost its last port has a MAC of zeros; the reference reads that before its own port comes, and sets it.
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

/// A name with a NUL is refused; the reference makes a bridge of what stands before it, and never finds it again by its own name.
#[test]
fn a_name_with_a_nul_is_refused() {
    let conf = with(&bridge::conf(), json!({"bridge": "br\u{0}0"}));
    let observe = |lab: &Lab| {
        let outcome = lab.attach(&lab.container(), &conf).try_add();
        (outcome.status, lab.host.link("br").is_some())
    };
    differs("bridge", observe, (FAILED, false), (OK, true));
}

/// The second gateway is not in the way of the first; the reference refuses it, or replaces the first by it.
#[test]
fn gateways_of_two_subnets_are_on_the_bridge_together() {
    let ranges = json!([[{"subnet": "10.10.0.0/24"}], [{"subnet": "10.20.0.0/24"}]]);
    for (force, of_reference) in [(false, "10.10.0.1/24"), (true, "10.20.0.1/24")] {
        let conf = with(&bridge::conf(), json!({"forceAddress": force, "ipam": {"subnet": null, "ranges": ranges}}));
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
    let leaves =
        |cases: Vec<bridge::failed_add::Case>| cases.into_iter().filter(|case| case.reference_leaves_something);
    for case in leaves(bridge::failed_add::cases()) {
        differs("bridge", |lab| bridge::failed_add::fail(lab, &bridge::conf(), &case).0.is_empty(), true, false);
    }
    for case in leaves(ptp::failing()) {
        differs("ptp", |lab| bridge::failed_add::fail(lab, &ptp::conf(), &case).0.is_empty(), true, false);
    }
}

/// A result that has no form in the configuration's version: the reference notices when everything is done, and leaves it.
#[test]
fn a_result_without_addresses_is_refused_for_old_versions_and_nothing_is_left() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let outcome =
            lab.attach(&container, &with(&bridge::conf(), json!({"cniVersion": "0.2.0", "ipam": null}))).try_add();
        assert_eq!(outcome.status, FAILED);
        before.changes().is_empty()
    };
    differs("bridge", observe, true, false);
}

/// The plugin's own namespace as the container: the reference notices after ADD, prints a result and an error, and leaves everything.
#[test]
fn the_host_s_own_namespace_is_refused_before_anything_is_done() {
    let observe = |lab: &Lab| {
        let before = Watch::start(lab, &[]);
        let conf = with(&bridge::conf(), json!({"cniVersion": "1.0.0", "ipam": null}));
        let outcome = lab.attach(&lab.container(), &conf).netns(Some("/proc/self/ns/net")).try_add();
        assert_eq!(outcome.status, FAILED);
        let one_document = serde_json::from_str::<Value>(&outcome.stdout).is_ok_and(|error| error["code"] == 8);
        (one_document, before.changes().is_empty())
    };
    differs("bridge", observe, (true, true), (false, false));
}

/// A null in vlanTrunk ends the reference with a Go panic instead of an answer.
#[test]
fn a_null_in_a_list_is_no_crash() {
    let observe = |lab: &Lab| {
        let outcome = lab.attach(&lab.container(), &with(&bridge::conf(), json!({"vlanTrunk": [null]}))).try_add();
        // On a kernel whose bridge filters VLANs the null may also count as an entry that asks for nothing.
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
        let mistake = lab.attach(&lab.container(), &with(&conf, json!({"vlan": 5000}))).try_add().err().code;
        (full, mistake)
    };
    differs("bridge", observe, (101, 7), (999, 999));
}

/// A namespace that cannot be opened is a mistake in CNI_NETNS, and is noticed before an address is taken.
#[test]
fn a_namespace_that_is_not_there_is_an_error_of_the_environment() {
    for plugin in ["bridge", "ptp", "loopback"] {
        let observe = |lab: &Lab| {
            let conf = with(&bridge::conf(), json!({"type": plugin}));
            lab.attach(&lab.container(), &conf).netns(Some("/run/netns/nowhere")).try_add().err().code
        };
        differs(plugin, observe, 4, 999);
    }
}

/// Masquerading or not, an MTU that no veth takes is refused before anything is done; the reference makes the bridge first.
#[test]
fn an_mtu_that_cannot_be_is_a_mistake_of_the_configuration() {
    let observe =
        |lab: &Lab| lab.attach(&lab.container(), &with(&bridge::conf(), json!({"mtu": 100_000}))).try_add().err().code;
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
        let outcome = lab.attach(&lab.container(), &with(&bridge::conf(), json!({"vlan": 5000}))).try_add();
        outcome.json().get("cniVersion").cloned()
    };
    differs("bridge", observe, Some(json!("1.0.0")), None);
}

/// JSON that has no text or no number of ours: half a character of UTF-16, a number beyond a double. The reference puts a
/// replacement in its place, or never looks.
#[test]
fn half_a_character_and_a_number_beyond_a_double_are_refused() {
    for unknown in [r#""\ud800""#, "1e999"] {
        let observe = |lab: &Lab| {
            let conf = static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
            let mut call = lab.attach(&lab.container(), &with(&conf, json!({"type": "static"}))).call("ADD", None);
            let text = String::from_utf8(call.stdin).unwrap();
            call.stdin = text.replacen('{', &format!(r#"{{"unknown":{unknown},"#), 1).into_bytes();
            call.run().status
        };
        differs("static", observe, FAILED, OK);
    }
}

// --- DEL and GC ---

/// With the namespace gone the reference's DEL stops before the rules of masquerade and macspoofchk.
#[test]
fn del_with_a_vanished_namespace_leaves_no_rule() {
    for backend in ["nftables", "iptables"] {
        let observe = |lab: &Lab| {
            let status = bridge::del::lose_and_delete(lab, "vanished", &bridge::del::everything(backend));
            let rules = lab.host.sh("nft list ruleset 2>/dev/null");
            (status, rules.contains("macspoofchk-container"), rules.contains("10.10.0.2"))
        };
        differs("bridge", observe, (OK, false, false), (OK, true, true));
    }
    let conf = with(&bridge::conf(), json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}));
    let observe = |lab: &Lab| {
        bridge::del::lose_and_delete(lab, "vanished", &conf);
        lab.host.sh("nft list ruleset 2>/dev/null").contains("10.10.0.2")
    };
    differs("ptp", observe, false, true);
}

/// A runtime may call DEL without CNI_NETNS while the namespace still lives; the reference leaves the link there.
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

/// ADD refuses CNI_ARGS it does not know; DEL does too, so what an older or newer runtime added cannot be deleted.
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

/// A DEL that comes late, when the namespace has another attachment's interface of that name already.
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

/// The iptables chain has the name of the container, not of the interface: DEL of one takes the other's rules along, and then fails.
#[test]
fn del_of_one_attachment_keeps_the_iptables_rules_of_the_other() {
    differs(
        "bridge",
        |lab| bridge::masquerade::second_attachment_survives_del_of_the_first(lab, Some("iptables")),
        true,
        false,
    );
}

/// The reference's DEL tries iptables too. Of 1.8.9's "Chain … does not exist" (status 2) Debian's build makes an error, so DEL of a
/// network that nf_tables masquerades fails on such a host.
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
    let conf = with(&bridge::conf(), json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"}));
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

/// Without `ipMasqBackend` ours uses nf_tables, and needs no program for it; the reference uses iptables.
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
        call.wrapper.extend(["sh", "-c", r#"PATH=/run/counted:$PATH exec "$0" "$@""#].map(str::to_owned));
        call.run().ok();
        lab.host.sh("wc -l </run/counted/log").trim().parse::<u32>().unwrap() <= 2
    };
    differs("bridge", observe, true, false);
}

/// macspoofchk of the reference runs the nft program.
#[test]
fn macspoofchk_needs_no_nft_program() {
    let observe = |lab: &Lab| {
        let mut call =
            lab.attach(&lab.container(), &with(&bridge::conf(), json!({"macspoofchk": true}))).call("ADD", None);
        call.wrapper.extend(["env", "PATH=/nonexistent"].map(str::to_owned));
        call.run().status
    };
    differs("bridge", observe, OK, FAILED);
}

/// Two addresses of one family in two subnets: the reference's iptables chain masquerades what goes to the second subnet.
#[test]
fn neighbours_in_a_second_subnet_see_the_container_s_own_address() {
    let conf = |last: u8| {
        static_ipam(
            &with(&bridge::conf(), json!({"isGateway": null, "ipMasq": true, "ipMasqBackend": "iptables"})),
            json!([{"address": format!("10.10.0.{last}/24")}, {"address": format!("10.20.0.{last}/24")}]),
            json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}]),
        )
    };
    // The packet to the second subnet's far end has to pass the host: the host has that address on another link.
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

/// A reservation of no bytes (the node crashed) belongs to nobody; the reference never gives the address out again.
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
        let attachment =
            lab.attach(&lab.container(), &with(&host_local::subnet("10.0.0.0/30"), json!({"cniVersion": "1.1.0"})));
        attachment.add();
        attachment.status().status
    };
    differs("host-local", observe, FAILED, OK);
}

/// A second ADD of the same attachment that fails gives back the addresses of the first one, which are in use.
#[test]
fn a_failed_second_add_keeps_the_addresses_of_the_first() {
    let conf = host_local::ranges(json!([[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]]));
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        let again = attachment.clone().conf(json!({"runtimeConfig": {"ips": ["10.0.0.50"]}})).try_add();
        again.err();
        host_local::leases(lab).join(" ")
    };
    differs("host-local", observe, "10.0.0.2 10.1.0.2".to_owned(), String::new());
}

/// A requested address is not compared with what the attachment has already; the reference then holds two.
#[test]
fn a_requested_address_does_not_make_a_second_one() {
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &host_local::subnet("10.0.0.0/24"));
        attachment.add();
        attachment.clone().conf(json!({"runtimeConfig": {"ips": ["10.0.0.50"]}})).try_add().status
    };
    differs("host-local", observe, FAILED, OK);
}

/// DEL reads ranges it does not need: with a mistake in them, made after ADD, the reference never releases.
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

/// The last address that is given out by default is the one before the broadcast address; the reference compares a start with no end.
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
            let conf = host_local::ranges(json!([[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]]));
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

/// What lies below the network's directory is not of the network; the reference reads all of it, and DEL removes files there.
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

/// CHECK of the reference asks whether the container has any address; ours whether it has those that prevResult tells.
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

/// Two networks with one subnet give one address to two containers: there is one element for it, and it is the last one's.
#[test]
fn an_address_in_two_networks_is_masqueraded_for_the_last() {
    let conf = |network: &str, bridge: &str| {
        let changes = json!({"name": network, "bridge": bridge, "ipMasq": true, "ipMasqBackend": "nftables"});
        with(&bridge::conf(), changes)
    };
    let observe = |lab: &Lab| {
        lab.hide_iptables();
        let (first, second) = (lab.container(), lab.container());
        let (first, second) = (lab.attach(&first, &conf("net1", "br0")), lab.attach(&second, &conf("net2", "br1")));
        let result = first.add();
        second.add();
        let with_both = first.check(&result).status;
        second.del();
        (with_both, first.check(&result).status)
    };
    differs("bridge", observe, (OK, FAILED), (OK, OK));
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

/// A gateway that is in no address's subnet: the reference removes the route from main and puts it nowhere.
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

/// Makes one observation on both, where the kernel has VRFs. The interface is to join the VRF `blue`.
fn differs_in_vrf<T: PartialEq + std::fmt::Debug>(
    changes: Value,
    observe: impl Fn(&Container, &vrf::Member<'_>) -> T,
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
    let observe = |container: &Container, member: &vrf::Member<'_>| {
        container.sh("ip link add blue up type vrf table 20");
        member.add();
        member.del();
        container.link("blue").is_some()
    };
    differs_in_vrf(json!({}), observe, true, false);
}

#[test]
fn del_of_vrf_takes_an_interface_that_is_gone_as_done() {
    let observe = |container: &Container, member: &vrf::Member<'_>| {
        member.add();
        container.sh("ip link del net1");
        (member.try_del().status, container.link("blue").is_some())
    };
    differs_in_vrf(json!({}), observe, (OK, false), (FAILED, true));
}

/// The reference takes it out of whatever master it has.
#[test]
fn del_of_vrf_leaves_an_interface_of_another_vrf() {
    let observe = |container: &Container, member: &vrf::Member<'_>| {
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
    let observe = |container: &Container, member: &vrf::Member<'_>| {
        container.sh("ip rule add from 192.0.2.1 lookup 1");
        member.add();
        vrf::table(container, "blue")
    };
    differs_in_vrf(json!({}), observe, 2, 1);
}

/// The reference puts back global addresses, and routes of main.
#[test]
fn vrf_loses_no_address_and_no_route() {
    let observe = |container: &Container, member: &vrf::Member<'_>| {
        container.sh("ip addr add fe80::7/64 dev net1 nodad; ip route add 10.82.0.0/16 dev net1 table 77; \
            ip route add 10.80.0.0/16 dev net1 scope link metric 9");
        member.add();
        let address = container.sh("ip -o addr show dev net1").contains("fe80::7/64");
        let routes = ["77", "all"].map(|table| container.sh(&format!("ip route show table {table} dev net1 || true")));
        [address, routes[0].contains("10.82.0.0/16"), routes[1].contains("10.80.0.0/16")]
    };
    differs_in_vrf(json!({}), observe, [true; 3], [false; 3]);
}

#[test]
fn check_of_vrf_looks_at_routes() {
    let observe = |container: &Container, member: &vrf::Member<'_>| {
        member.add();
        container.sh("ip route del 10.77.0.0/16 vrf blue");
        member.check(&member.result).status
    };
    differs_in_vrf(json!({}), observe, FAILED, OK);
}
