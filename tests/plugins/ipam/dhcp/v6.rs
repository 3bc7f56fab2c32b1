//! IPv6 addresses from a DHCPv6 server or formed with a router's prefix.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::failed_add::assert_fails;
use crate::support::attachment::{for_ours, has_programs, ips, skip, with};
use crate::support::dhcp::scripted::{DISCOVER, Scripted, wait_for_release};
use crate::support::dhcp::servers_v6::{Dnsmasq, Kea, Router, SERVER_V6};
use crate::support::dhcp::{Daemon, HASTY, Kind, wait_until};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::dhcp::journal;
use crate::support::peers::each_case;
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
    let links = at.json(&format!("ip -j addr show dev {link} scope link"));
    let addresses = links[0]["addr_info"].as_array().unwrap().iter();
    let local = addresses.filter_map(|a| a["local"].as_str()).find(|it| it.starts_with("fe80:"));
    local.unwrap().to_owned()
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
        let (container, attachment, _) = lab.added(&conf(Kind::Bridge, json!({"dhcpv6": true})));
        attachment.del(); // the bridge has its address now
        let before = Watch::start(lab, &[&container]);
        let result = attachment.add();
        let [v4, v6] = &ips(&result)[..] else { panic!("{result}") };
        assert!(v4.starts_with("10.60.0.5") && v6.starts_with("2001:db8::5"), "{result}");
        assert_eq!(container.addresses("eth0"), [format!("{v4}/24"), format!("{v6}/64")]);
        let router = router(lab);
        assert_eq!(result["ips"][1]["gateway"], router);
        assert_eq!(result["routes"][1], json!({"dst": "::/0", "gw": router}));
        let default = default_route(&container);
        assert!(default.starts_with(&format!("default via {router} dev eth0")), "{default}");
        assert_eq!(result["dns"]["search"], json!(["lan.example"]), "each once");
        assert_pings(&container, SERVER_V6);
        attachment.check(&result).ok();
        wait_until("the server has both leases", 3, || server.leases().len() == 2);
        let key = format!("{}/net1/eth0", container.id);
        let leases = lab.dhcp(&["leases", "-o", "json"]).ok();
        assert_eq!(
            [&leases[0]["key"], &leases[1]["key"]],
            [&json!(key), &json!(format!("{key}/6"))]
        );
        attachment.del();
        wait_until("the server has no lease", 3, || server.leases().is_empty());
        before.assert_unchanged("ADD");
    });
}

/// The acceptance criterion of issue 7: no renewal is missed although the daemon is restarted and
/// killed.
fn an_address_of_kea_is_renewed_and_released(lab: &Lab) {
    let _router = Router::start(lab);
    let server = Kea::start(lab, 0x50, 0x59);
    let mut daemon = Daemon::start(lab);
    let (container, attachment) = lab.place(&only_v6());
    // Docker and other engines disable IPv6 in new namespaces.
    container.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    let before = Watch::start(lab, &[&container]);
    let result = attachment.add();
    let address = ips(&result)[0].clone();
    assert_eq!(container.addresses("eth0"), [format!("{address}/64")]);
    let dns = json!({"nameservers": ["2001:db8::54"], "search": ["lan.example"]});
    assert_eq!(result["dns"], dns);
    let wait_for_renewal = |what: &str| {
        let before = server.leases()[&address];
        wait_until(&format!("a renewal {what}"), 10, || server.leases()[&address] > before);
    };
    wait_for_renewal("by the first daemon");
    assert_eq!(daemon.end_by("TERM"), 0);
    daemon.start_again();
    wait_for_renewal("after a restart");
    daemon.crash_and_start_again();
    wait_for_renewal("after a crash");
    attachment.check(&result).ok();
    assert_pings(&container, SERVER_V6);
    attachment.del();
    wait_until("the server has no lease", 3, || server.leases().is_empty());
    assert_eq!(journal(lab), [""; 0]);
    before.assert_unchanged("ADD");
}

/// The hardware address is shared; the kernel's link-local addresses and the DUIDs differ.
#[test]
fn two_containers_on_ipvlan_have_addresses_of_their_own() {
    on_network(Kind::Ipvlan, &["kea-dhcp6", "radvd"], |lab| {
        let _router = Router::with_prefix(lab, 600, 600);
        let server = Kea::start(lab, 0x50, 0x59);
        let _daemon = Daemon::start(lab);
        for by in ["dhcpv6", "slaac"] {
            let conf = conf(Kind::Ipvlan, json!({"dhcpv4": false, by: true}));
            let [(a, one, of_one), (_b, other, of_other)] = [(), ()].map(|()| lab.added(&conf));
            assert_ne!(ips(&of_one), ips(&of_other));
            assert_pings(&a, SERVER_V6);
            assert_pings(&a, &ips(&of_other)[0]);
            one.check_and_del(&of_one);
            other.check_and_del(&of_other);
            wait_until("the server has no lease", 3, || server.leases().is_empty());
        }
    });
}

fn another_router_leads_out_after_the_next_renewal(lab: &Lab) {
    let mut advertising = Router::start(lab);
    let _server = Kea::start(lab, 0x50, 0x59);
    let _daemon = Daemon::start(lab);
    let (container, attachment, result) = lab.added(&only_v6());
    let before = router(lab);
    let leads_to =
        |router: &str| default_route(&container).starts_with(&format!("default via {router} "));
    assert!(leads_to(&before));
    advertising.stop();
    lab.outside
        .sh(&format!("ip addr add fe80::2/64 dev lan nodad; ip addr del {before}/64 dev lan"));
    advertising.start_again();
    wait_until("the other router", 10, || leads_to("fe80::2"));
    assert_eq!(default_route(&container).lines().count(), 1);
    attachment.check(&result).ok();
    assert_pings(&container, SERVER_V6);
    attachment.del();
}

fn an_address_that_answers_is_declined_and_the_next_one_taken(lab: &Lab) {
    let _router = Router::start(lab);
    lab.outside.sh("ip addr add 2001:db8::50/64 dev lan nodad");
    let server = Kea::start(lab, 0x50, 0x51);
    let _daemon = Daemon::start(lab);
    let (_, attachment, result) = lab.added(&only_v6());
    assert_eq!(ips(&result), ["2001:db8::51"]);
    assert_eq!(server.leases().into_keys().collect::<Vec<_>>(), ["2001:db8::51"]);
    attachment.del();
}

fn without_an_ipv6_address_add_fails_in_time_and_releases_ipv4(lab: &Lab) {
    let _router = Router::start(lab);
    let v4 = Scripted::start(lab, json!({}));
    // The only address of the pool is in use, so the client declines it.
    lab.outside.sh("ip addr add 2001:db8::50/64 dev lan nodad");
    let server = Kea::start(lab, 0x50, 0x50);
    let _daemon = Daemon::with_flags(lab, &["-resendtimeout", "5s"]);
    let both = conf(Kind::Macvlan, json!({"dhcpv6": true}));
    assert_fails(lab, &both, &["no more tries", "NoAddrsAvail"]);
    wait_for_release(lab, &v4);
    assert!(server.leases().is_empty());
}

/// Without a carrier the link has no link-local address, hence no source address.
#[test]
fn a_cable_that_is_not_plugged_in_is_an_error_in_time() {
    on_network(Kind::Macvlan, &[], |lab| {
        let _daemon = Daemon::with_flags(lab, &HASTY);
        lab.outside.sh("ip link set lan down");
        assert_fails(lab, &only_v6(), &["interface \"eth0\" has no link-local address"]);
        assert_eq!(journal(lab), [""; 0]);
    });
}

#[test]
fn del_without_a_daemon_and_gc_give_both_leases_back() {
    on_network(Kind::Bridge, &["dnsmasq"], |lab| {
        let server = Dnsmasq::start(lab);
        let mut daemon = Daemon::start(lab);
        let (_, attachment) = lab.place(&conf(Kind::Bridge, json!({"dhcpv6": true})));
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

fn an_address_is_made_of_a_routers_prefix_and_renewed(lab: &Lab) {
    let _router = Router::with_prefix(lab, 6, 12);
    let mut daemon = Daemon::start(lab);
    let (container, attachment, before) = lab.watched(&slaac());
    let result = attachment.add();
    let address = ips(&result)[0].clone();
    let own = link_local(&container, "eth0");
    assert_eq!(address.strip_prefix("2001:db8::"), own.strip_prefix("fe80::"));
    // The kernel adds none.
    assert_eq!(container.addresses("eth0"), [format!("{address}/64")]);
    assert_eq!(result["ips"][0]["gateway"], router(lab));
    let dns = json!({"nameservers": ["2001:db8::53"], "search": ["lan.example"]});
    assert_eq!(result["dns"], dns);
    assert_pings(&container, SERVER_V6);
    let renewals = |daemon: &Daemon| daemon.log().matches("state=bound").count();
    wait_until("a renewal", 8, || renewals(&daemon) >= 2);
    daemon.crash_and_start_again();
    wait_until("a renewal after a crash", 8, || renewals(&daemon) >= 3);
    attachment.check_and_del(&result);
    assert_eq!(journal(lab), [""; 0]);
    before.assert_unchanged("ADD");
}

/// The daemon takes the advertisements in the kernel's place.
fn accept_ra_of_the_configuration_agrees_with_dhcp(lab: &Lab) {
    let _router = Router::with_prefix(lab, 600, 1200);
    let _daemon = Daemon::start(lab);
    for accept in [true, false] {
        let (container, attachment, result) =
            lab.added(&with(&slaac(), json!({"acceptRA": accept})));
        let setting = container.sh("cat /proc/sys/net/ipv6/conf/eth0/accept_ra");
        assert_eq!(setting, "0\n", "{accept}");
        assert_eq!(container.addresses("eth0"), [format!("{}/64", ips(&result)[0])]);
        attachment.check_and_del(&result);
    }
}

fn an_address_leaves_with_a_silent_router_and_comes_back(lab: &Lab) {
    let mut advertising = Router::with_prefix(lab, 3, 4);
    let _daemon = Daemon::start(lab);
    let (container, attachment, result) = lab.added(&slaac());
    let address = container.addresses("eth0");
    advertising.stop();
    wait_until("the address has left", 10, || container.addresses("eth0").is_empty());
    let error = attachment.check(&result).err().text();
    assert!(error.contains("/6 is expired"), "{error}");
    advertising.start_again();
    wait_until("the address is back", 15, || container.addresses("eth0") == address);
    attachment.check(&result).ok();
    assert_pings(&container, SERVER_V6);
    attachment.del();
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

each_case! { |case| on_network(Kind::Macvlan, &["kea-dhcp6", "radvd"], case);
    an_address_of_kea_is_renewed_and_released
    another_router_leads_out_after_the_next_renewal
    an_address_that_answers_is_declined_and_the_next_one_taken
    without_an_ipv6_address_add_fails_in_time_and_releases_ipv4
}

each_case! { |case| on_network(Kind::Macvlan, &["radvd"], case);
    an_address_is_made_of_a_routers_prefix_and_renewed
    accept_ra_of_the_configuration_agrees_with_dhcp
    an_address_leaves_with_a_silent_router_and_comes_back
}
