//! dhcp leases addresses from a server on the network through a daemon.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::Scripted;
use crate::support::dhcp::servers::{BOTH, Program, Server};
use crate::support::dhcp::{Daemon, Kind, SERVER};
use crate::support::netns::{Container, Lab};
use crate::support::networks::dhcp::conf;
use crate::support::peers::tests;
use crate::support::snapshot::Watch;
use crate::support::traffic::assert_pings;

mod commands;
mod confinement;
mod daemon;
mod del;
pub mod failed_add;
mod gone;
mod many;
mod old_and_new;
mod renewal;
mod v6;
mod wire;

/// Runs the case with each server program on a network, and with a daemon.
fn with_each_server(kind: Kind, case: impl Fn(&Lab, &Server, &mut Daemon)) {
    for program in BOTH {
        if !program.is_there() {
            continue;
        }
        let one = |lab: &Lab| {
            if !kind.is_in(lab) {
                return skip("ipvlan");
            }
            eprintln!("from {program:?}:"); // shown when the case fails
            lab.lan(kind);
            let server = Server::start(lab, program, 50, 59);
            // The reference's first packet is lost on a bridge because its port does not forward
            // yet.
            let flags: &[&str] = if lab.peer == Peer::Ours { &[] } else { &["-timeout", "1s"] };
            case(lab, &server, &mut Daemon::with_flags(lab, flags));
        };
        // The reference never sets the broadcast flag, and a unicast answer does not reach an
        // ipvlan link without an address.
        if kind == Kind::Ipvlan { for_ours("dhcp", one) } else { for_each_peer("dhcp", one) }
    }
}

/// The only lease the server knows.
#[track_caller]
fn only_lease(server: &Server) -> String {
    let leases = server.leases();
    assert_eq!(leases.len(), 1, "{leases:?}");
    leases.into_keys().next().unwrap()
}

/// A network for macvlan, with a server of ours.
fn network(lab: &Lab) -> Scripted {
    lab.lan(Kind::Macvlan);
    Scripted::start(lab, json!({}))
}

/// Runs the case of our plugin on a network for macvlan, with a scripted server and a daemon.
fn on_a_lan(script: Value, case: impl Fn(&Lab, &Scripted, &mut Daemon)) {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, script.clone());
        case(lab, &server, &mut Daemon::start(lab));
    });
}

/// Runs the case of each plugin there.
fn on_each_lan(script: Value, case: impl Fn(&Lab, &Scripted, &mut Daemon)) {
    for_each_peer("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, script.clone());
        case(lab, &server, &mut Daemon::start(lab));
    });
}

/// Leases that are renewed every second.
fn short() -> Value {
    json!({"lease": 8, "t1": 1, "t2": 6})
}

/// The plugin alone, with a link that stays when no main plugin deletes it.
fn plugged<'a>(lab: &'a Lab, container: &Container) -> Attachment<'a> {
    let name = container.netns.rsplit('/').next().unwrap();
    lab.host.sh(&format!("ip link add link lan name eth0 netns {name} type macvlan"));
    lab.attach(container, &with(&conf(), json!({"type": "dhcp", "master": null})))
}

fn add_check_and_del(kind: Kind) {
    with_each_server(kind, |lab, server, _| {
        let container = lab.container();
        let attachment = lab.attach(&container, &kind.conf());
        attachment.add();
        // The first attachment gives the bridge its address. After its DEL nothing of it is left
        // that could hide leftovers of the second one.
        attachment.del();
        let watch = Watch::start(lab, &[&container]);
        let result = attachment.add();
        let address = ips(&result)[0].clone();
        assert_eq!(only_lease(server), address);
        assert_eq!(container.addresses("eth0"), [format!("{address}/24")]);
        assert_eq!(result["ips"][0]["gateway"], SERVER);
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": SERVER}]));
        assert!(container.sh("ip route").contains(&format!("default via {SERVER} dev eth0")));
        assert_pings(&container, SERVER);
        attachment.check(&result).ok();
        attachment.del();
        server.assert_has_no_lease();
        watch.assert_unchanged("since before ADD");
    });
}

#[test]
fn the_page_s_recipe_gives_no_default_route() {
    let page = include_str!("../../../docs/dhcp.md");
    let mut recipes =
        page.lines().filter(|line| line.starts_with('{') && line.contains("\"skipDefault\": true"));
    let ipam: Value = serde_json::from_str(recipes.next().unwrap()).unwrap();
    with_each_server(Kind::Macvlan, |lab, server, _| {
        if matches!(server.program, Program::Kea) {
            return; // it sends its router all the same
        }
        let container = lab.container();
        let result = lab.attach(&container, &with(&conf(), json!({"ipam": ipam}))).add();
        assert_eq!(container.addresses("eth0"), [format!("{}/24", ips(&result)[0])]);
        assert_eq!(container.sh("ip route show default"), "");
        assert_pings(&container, SERVER);
    });
}

tests! {
    bridge_add_check_and_del = add_check_and_del(Kind::Bridge);
    macvlan_add_check_and_del = add_check_and_del(Kind::Macvlan);
    ipvlan_add_check_and_del = add_check_and_del(Kind::Ipvlan);
}

/// The hardware address is shared, the client ID is not.
#[test]
fn two_containers_on_ipvlan_have_addresses_of_their_own() {
    with_each_server(Kind::Ipvlan, |lab, server, _| {
        let containers = [lab.container(), lab.container()];
        let results = containers
            .each_ref()
            .map(|c| ips(&lab.attach(c, &Kind::Ipvlan.conf()).add())[0].clone());
        assert_ne!(results[0], results[1]);
        assert_eq!(server.leases().into_keys().collect::<Vec<_>>().len(), 2);
        assert_pings(&containers[0], &results[1]);
    });
}

/// The specification of IPAM plugins: the result of the plugin alone has no interfaces.
#[test]
fn the_plugin_alone_answers_with_addresses_and_routes() {
    on_each_lan(json!({}), |lab, _, _| {
        let container = lab.container();
        let attachment = plugged(lab, &container);
        let expected = json!({
            "cniVersion": "1.1.0",
            "ips": [{"address": "10.60.0.50/24", "gateway": SERVER}],
            "routes": [{"dst": "0.0.0.0/0", "gw": SERVER}],
        });
        assert_eq!(attachment.add(), expected);
        // The plugin sets a link up, because nothing can be sent through a link that is down.
        assert!(
            container.link("eth0").unwrap()["flags"].as_array().unwrap().contains(&json!("UP"))
        );
        attachment.check(&expected).ok();
        attachment.del();
        for version in ["0.2.0", "0.4.0", "1.0.0"] {
            let attachment = plugged(lab, &lab.container()).conf(json!({"cniVersion": version}));
            let result = attachment.add();
            let ip = if version == "0.2.0" {
                &result["ip4"]["ip"]
            } else {
                &result["ips"][0]["address"]
            };
            assert!(ip.as_str().unwrap().starts_with("10.60.0."), "{version}: {result}");
            attachment.assert_operations_of(version, &result);
            attachment.del();
        }
    });
}

#[test]
fn add_for_a_lease_that_is_there_gives_the_same_address() {
    on_each_lan(json!({}), |lab, server, _| {
        let attachment = plugged(lab, &lab.container());
        let first = attachment.add();
        assert_eq!(attachment.add(), first);
        assert_eq!(
            server.heard_of(crate::support::dhcp::scripted::DISCOVER).len(),
            1,
            "nobody was asked again"
        );
    });
}

/// Each interface of each container is an attachment with a lease of its own.
#[test]
fn each_interface_has_a_lease_of_its_own() {
    with_each_server(Kind::Macvlan, |lab, server, _| {
        let (a, b) = (lab.container(), lab.container());
        let first = lab.attach(&a, &conf());
        let second = lab.attach(&a, &conf()).ifname("eth1");
        let third = lab.attach(&b, &conf());
        let mut addresses: Vec<String> =
            [&first, &second, &third].map(|at| ips(&at.add())[0].clone()).into();
        assert_eq!(
            server.leases().into_keys().collect::<BTreeSet<_>>(),
            addresses.iter().cloned().collect()
        );
        second.del();
        addresses.remove(1);
        if lab.peer == Peer::Ours {
            assert_eq!(
                server.leases().into_keys().collect::<BTreeSet<_>>(),
                addresses.into_iter().collect()
            );
        }
        first.del();
        third.del();
        server.assert_has_no_lease();
    });
}
