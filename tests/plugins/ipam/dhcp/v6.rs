//! IPv6 addresses from a DHCPv6 server or formed with a router's prefix.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, has_programs, ips, skip, with};
use crate::support::dhcp::scripted::{DISCOVER, Scripted, wait_for_release};
use crate::support::dhcp::servers::{Dnsmasq, Kea, Router, SERVER_V6};
use crate::support::dhcp::{Daemon, HASTY, Kind, wait_until};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::dhcp::journal;
use crate::support::snapshot::Watch;
use crate::support::traffic::assert_pings;

/// A network with these keys in `ipam`.
fn conf(kind: Kind, ipam: Value) -> Value {
    let mut conf = kind.conf();
    conf["ipam"] = with(&conf["ipam"], ipam);
    conf
}

fn only_v6() -> Value {
    conf(Kind::Macvlan, json!({"dhcpv4": false, "dhcpv6": true}))
}

fn slaac() -> Value {
    conf(Kind::Macvlan, json!({"dhcpv4": false, "slaac": true}))
}

/// Runs the case with a daemon on a network; skips it unless these programs are installed.
fn on_network(kind: Kind, programs: &[&str], case: impl Fn(&Lab)) {
    for_ours("dhcp", |lab| {
        if !kind.is_in(lab) {
            skip("ipvlan");
        } else if has_programs(programs) {
            lab.lan(kind);
            lab.lan_v6();
            case(lab);
        }
    });
}

/// The link-local address of a link.
fn link_local(at: &Namespace, link: &str) -> String {
    let links = at.json(&format!("ip -j addr show dev {link}"));
    let addresses = links[0]["addr_info"].as_array().unwrap().iter();
    let mut local =
        addresses.filter_map(|a| a["local"].as_str()).filter(|local| local.starts_with("fe80:"));
    local.next().unwrap().to_owned()
}

/// The router is the interface of the servers.
fn router(lab: &Lab) -> String {
    link_local(&lab.outside, "lan")
}

fn default_route(container: &Container) -> String {
    container.sh("ip -6 route show default").trim().to_owned()
}

#[test]
fn both_families_from_one_server() {
    on_network(Kind::Bridge, &["dnsmasq"], |lab| {
        let server = Dnsmasq::start(lab);
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &conf(Kind::Bridge, json!({"dhcpv6": true})));
        attachment.add();
        // The bridge has its address now.
        attachment.del();
        let watch = Watch::start(lab, &[&container]);
        let result = attachment.add();
        let [v4, v6] = &ips(&result)[..] else { panic!("{result}") };
        assert!(v4.starts_with("10.60.0.5") && v6.starts_with("2001:db8::5"), "{result}");
        assert_eq!(container.addresses("eth0"), [format!("{v4}/24"), format!("{v6}/64")]);
        assert_eq!(result["ips"][1]["gateway"], router(lab));
        assert_eq!(result["routes"][1], json!({"dst": "::/0", "gw": router(lab)}));
        assert!(
            default_route(&container).starts_with(&format!("default via {} dev eth0", router(lab)))
        );
        assert_eq!(result["dns"]["search"], json!(["lan.example"]), "each once");
        assert_pings(&container, SERVER_V6);
        attachment.check(&result).ok();
        wait_until("the server has both leases", 3, || server.leases().len() == 2);
        let key = format!("{}/net1/eth0", container.id);
        let leases = lab.dhcp(&["leases", "-o", "json"]).ok();
        let keys: Vec<&str> =
            leases.as_array().unwrap().iter().map(|lease| lease["key"].as_str().unwrap()).collect();
        assert_eq!(keys, [key.clone(), format!("{key}/6")]);
        attachment.del();
        wait_until("the server has no lease", 3, || server.leases().is_empty());
        watch.assert_unchanged("since before ADD");
    });
}

/// The acceptance criterion of issue 7: no renewal is missed although the daemon is restarted and
/// killed.
#[test]
fn an_address_of_kea_is_renewed_and_released() {
    on_network(Kind::Macvlan, &["kea-dhcp6", "radvd"], |lab| {
        let _router = Router::start(lab);
        let server = Kea::start(lab, 0x50, 0x59);
        let mut daemon = Daemon::start(lab);
        let container = lab.container();
        // Docker and other engines disable IPv6 in new namespaces.
        container.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        let watch = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &only_v6());
        let result = attachment.add();
        let address = ips(&result)[0].clone();
        assert_eq!(container.addresses("eth0"), [format!("{address}/64")]);
        assert_eq!(
            result["dns"],
            json!({"nameservers": ["2001:db8::54"], "search": ["lan.example"]})
        );
        let wait_for_renewal = |what: &str| {
            let before = server.leases()[&address];
            wait_until(&format!("a renewal {what}"), 10, || server.leases()[&address] > before);
        };
        wait_for_renewal("by the first daemon");
        assert_eq!(daemon.end_by("TERM"), 0);
        daemon.start_again();
        wait_for_renewal("after a restart");
        daemon.start_again();
        wait_for_renewal("after a crash");
        attachment.check(&result).ok();
        assert_pings(&container, SERVER_V6);
        attachment.del();
        wait_until("the server has no lease", 3, || server.leases().is_empty());
        assert_eq!(journal(lab), [""; 0]);
        watch.assert_unchanged("since before ADD");
    });
}

/// The hardware address is shared; the kernel's link-local addresses and the DUIDs differ.
#[test]
fn two_containers_on_ipvlan_have_addresses_of_their_own() {
    on_network(Kind::Ipvlan, &["kea-dhcp6", "radvd"], |lab| {
        let _router = Router::with_prefix(lab, 600, 600);
        let server = Kea::start(lab, 0x50, 0x59);
        let _daemon = Daemon::start(lab);
        for ipam in
            [json!({"dhcpv4": false, "dhcpv6": true}), json!({"dhcpv4": false, "slaac": true})]
        {
            let containers = [lab.container(), lab.container()];
            let attachments =
                containers.each_ref().map(|c| lab.attach(c, &conf(Kind::Ipvlan, ipam.clone())));
            let results = attachments.each_ref().map(|attachment| attachment.add());
            let [one, other] = results.each_ref().map(|result| ips(result)[0].clone());
            assert_ne!(one, other);
            assert_pings(&containers[0], SERVER_V6);
            assert_pings(&containers[0], &other);
            attachments
                .iter()
                .zip(&results)
                .for_each(|(attachment, result)| drop(attachment.check(result).ok()));
            attachments.iter().for_each(|attachment| attachment.del());
            wait_until("the server has no lease", 3, || server.leases().is_empty());
        }
    });
}

#[test]
fn another_router_leads_out_after_the_next_renewal() {
    on_network(Kind::Macvlan, &["kea-dhcp6", "radvd"], |lab| {
        let mut advertising = Router::start(lab);
        let _server = Kea::start(lab, 0x50, 0x59);
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &only_v6());
        let result = attachment.add();
        let before = router(lab);
        assert!(default_route(&container).starts_with(&format!("default via {before} ")));
        advertising.stop();
        lab.outside
            .sh(&format!("ip addr add fe80::2/64 dev lan nodad; ip addr del {before}/64 dev lan"));
        advertising.restart();
        wait_until("the other router", 10, || {
            default_route(&container).starts_with("default via fe80::2 ")
        });
        assert_eq!(default_route(&container).lines().count(), 1);
        attachment.check(&result).ok();
        assert_pings(&container, SERVER_V6);
        attachment.del();
    });
}

#[test]
fn an_address_that_answers_is_declined_and_the_next_one_taken() {
    on_network(Kind::Macvlan, &["kea-dhcp6", "radvd"], |lab| {
        let _router = Router::start(lab);
        lab.outside.sh("ip addr add 2001:db8::50/64 dev lan nodad");
        let server = Kea::start(lab, 0x50, 0x51);
        let _daemon = Daemon::start(lab);
        let attachment = lab.attach(&lab.container(), &only_v6());
        assert_eq!(ips(&attachment.add()), ["2001:db8::51"]);
        assert_eq!(server.leases().into_keys().collect::<Vec<_>>(), ["2001:db8::51"]);
        attachment.del();
    });
}

#[test]
fn without_an_ipv6_address_add_fails_in_time_and_releases_ipv4() {
    on_network(Kind::Macvlan, &["kea-dhcp6", "radvd"], |lab| {
        let _router = Router::start(lab);
        let v4 = Scripted::start(lab, json!({}));
        // The only address of the pool is in use, so the client declines it.
        lab.outside.sh("ip addr add 2001:db8::50/64 dev lan nodad");
        let server = Kea::start(lab, 0x50, 0x50);
        let _daemon = Daemon::with_flags(lab, &["-resendtimeout", "5s"]);
        let container = lab.container();
        let both = lab.attach(&container, &conf(Kind::Macvlan, json!({"dhcpv6": true})));
        let watch = Watch::start(lab, &[&container]);
        let error = both.try_add().err().text();
        assert!(error.contains("no more tries") && error.contains("NoAddrsAvail"), "{error}");
        watch.assert_unchanged("since before the ADD that failed");
        wait_for_release(lab, &v4);
        assert!(server.leases().is_empty());
    });
}

/// Without a carrier the link has no link-local address, hence no source address.
#[test]
fn a_cable_that_is_not_plugged_in_is_an_error_in_time() {
    on_network(Kind::Macvlan, &[], |lab| {
        let _daemon = Daemon::with_flags(lab, &HASTY);
        lab.outside.sh("ip link set lan down");
        let container = lab.container();
        let watch = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &only_v6()).try_add().err().text();
        assert!(error.contains("interface \"eth0\" has no link-local address"), "{error}");
        watch.assert_unchanged("since before the ADD that failed");
        assert_eq!(journal(lab), [""; 0]);
    });
}

#[test]
fn del_without_a_daemon_and_gc_give_both_leases_back() {
    on_network(Kind::Bridge, &["dnsmasq"], |lab| {
        let server = Dnsmasq::start(lab);
        let mut daemon = Daemon::start(lab);
        let attachment = lab.attach(&lab.container(), &conf(Kind::Bridge, json!({"dhcpv6": true})));
        for is_gc in [true, false] {
            attachment.add();
            wait_until("the server has both leases", 3, || server.leases().len() == 2);
            if is_gc {
                attachment.gc(&[]).ok();
                wait_until("the server has no lease", 3, || server.leases().is_empty());
            } else {
                daemon.kill();
            }
            attachment.del();
            wait_until("the server has no lease", 3, || server.leases().is_empty());
            assert_eq!(journal(lab), [""; 0]);
        }
    });
}

#[test]
fn an_address_is_made_of_a_routers_prefix_and_renewed() {
    on_network(Kind::Macvlan, &["radvd"], |lab| {
        let _router = Router::with_prefix(lab, 6, 12);
        let mut daemon = Daemon::start(lab);
        let container = lab.container();
        let watch = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &slaac());
        let result = attachment.add();
        let address = ips(&result)[0].clone();
        let own = link_local(&container, "eth0");
        assert_eq!(
            address.strip_prefix("2001:db8::"),
            own.strip_prefix("fe80::"),
            "{address} {own}"
        );
        assert_eq!(
            container.addresses("eth0"),
            [format!("{address}/64")],
            "and none of the kernel's"
        );
        assert_eq!(result["ips"][0]["gateway"], router(lab));
        assert_eq!(
            result["dns"],
            json!({"nameservers": ["2001:db8::53"], "search": ["lan.example"]})
        );
        assert_pings(&container, SERVER_V6);
        let renewals = |daemon: &Daemon| daemon.log().matches("state=bound").count();
        wait_until("a renewal", 8, || renewals(&daemon) >= 2);
        daemon.start_again();
        wait_until("a renewal after a crash", 8, || renewals(&daemon) >= 3);
        attachment.check(&result).ok();
        attachment.del();
        assert_eq!(journal(lab), [""; 0]);
        watch.assert_unchanged("since before ADD");
    });
}

/// The daemon takes the advertisements in the kernel's place.
#[test]
fn accept_ra_of_the_configuration_agrees_with_dhcp() {
    on_network(Kind::Macvlan, &["radvd"], |lab| {
        let _router = Router::with_prefix(lab, 600, 1200);
        let _daemon = Daemon::start(lab);
        for accept in [true, false] {
            let container = lab.container();
            let conf = with(&slaac(), json!({"acceptRA": accept}));
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            attachment.check(&result).ok();
            let setting = container.sh("cat /proc/sys/net/ipv6/conf/eth0/accept_ra");
            assert_eq!(setting, "0\n", "{accept}");
            assert_eq!(container.addresses("eth0"), [format!("{}/64", ips(&result)[0])]);
            attachment.del();
        }
    });
}

#[test]
fn an_address_leaves_with_a_silent_router_and_comes_back() {
    on_network(Kind::Macvlan, &["radvd"], |lab| {
        let mut advertising = Router::with_prefix(lab, 3, 4);
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &slaac());
        let result = attachment.add();
        let address = container.addresses("eth0");
        advertising.stop();
        wait_until("the address has left", 10, || container.addresses("eth0").is_empty());
        let error = attachment.check(&result).err().text();
        assert!(error.contains("/6 is expired"), "{error}");
        advertising.restart();
        wait_until("the address is back", 15, || container.addresses("eth0") == address);
        attachment.check(&result).ok();
        assert_pings(&container, SERVER_V6);
        attachment.del();
    });
}

/// kubelet waits for two minutes, and then for DEL. With the default timeouts, one container has
/// IPv4, two have IPv6 (one of each kind) and one has both families.
#[test]
fn without_a_usable_address_add_ends_within_a_minute() {
    on_network(Kind::Macvlan, &[], |lab| {
        let server = Scripted::start(lab, json!({"address": "127.0.0.9"}));
        let _daemon = Daemon::start(lab);
        let both = conf(Kind::Macvlan, json!({"dhcpv6": true}));
        let offers = [
            "10.60.0.1 offers 127.0.0.9, which no host can have",
            "10.60.0.2 offers 224.0.0.9, which no host can have",
        ];
        let cases = [
            (Kind::Macvlan.conf(), offers.to_vec()),
            (only_v6(), vec!["no answer to Solicit"]),
            (slaac(), vec!["no router has answered"]),
            // The error is that of the family that fails first.
            (both, vec![]),
        ];
        let containers = cases.each_ref().map(|_| lab.container());
        let watch = Watch::start(lab, &containers.each_ref().map(|container| &**container));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.wait_for(DISCOVER, 2, 10);
                // The next DISCOVER is answered by another server.
                server.change(json!({"server": "10.60.0.2", "address": "224.0.0.9"}));
            });
            for ((conf, told), container) in cases.iter().zip(&containers) {
                scope.spawn(move || {
                    let started = Instant::now();
                    let error = lab.attach(container, conf).try_add().err();
                    let waited = started.elapsed();
                    assert!(waited < Duration::from_secs(60), "{conf}: {waited:?}");
                    let text = error.text();
                    assert!(text.contains("no more tries within 50s"), "{text}");
                    assert!(told.iter().all(|what| text.contains(what)), "{told:?} in {text}");
                });
            }
        });
        watch.assert_unchanged("since before the ADDs that failed");
    });
}
