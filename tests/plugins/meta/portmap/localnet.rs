//! portmap and `route_localnet`: no container reads the host's 127.0.0.1, whatever happens to
//! attachments and rules, and no other link is affected.

use super::*;
use crate::plugins::meta::portmap::abandoned::is_batch;

/// A port of the host with a listener that no port of a container leads to.
const SECRET: &str = "127.0.0.1:6443";

fn value(lab: &Lab, link: &str) -> String {
    lab.host.sh(&format!("cat /proc/sys/net/ipv4/conf/{link}/route_localnet")).trim().to_owned()
}

fn set(lab: &Lab, link: &str, value: u32) {
    lab.host.sh(&format!("echo {value} > /proc/sys/net/ipv4/conf/{link}/route_localnet"));
}

/// Makes a namespace send packets for 127.0.0.1 through a gateway.
fn aim(from: &Namespace, gateway: &str, link: &str) {
    from.sh(&format!(
        "ip link set lo up; ip addr flush dev lo; ip route add 127.0.0.1 via {gateway} dev {link}; \
         for f in all {link}; do echo 1 > /proc/sys/net/ipv4/conf/$f/route_localnet; done"
    ));
}

/// A container without a port on `network()` that tries to read the host's 127.0.0.1.
fn spy(lab: &Lab) -> Container {
    let container = lab.container();
    lab.attach(&container, &network()).add();
    aim(&container, "10.10.0.1", "eth0");
    container
}

/// A spy, and the listener that it tries to read.
fn spied(lab: &Lab) -> (Container, TcpServer) {
    (spy(lab), TcpServer::start(&lab.host, 6443))
}

fn one_more<'l>(lab: &'l Lab, backend: Option<&str>, port: u16) -> Chain<'l> {
    let mapping = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let v11 = json!({"cniVersion": "1.1.0"});
    lab.chain_added(&with(&network(), v11), &portmap(backend, mapping))
}

#[test]
fn issue_38_127_0_0_1_stays_closed_after_the_last_port() {
    for_ours_with_each_backend(|lab, backend| {
        let (spy, _secret) = spied(lab);
        set(lab, "br0", 1);
        assert!(connect(&spy, SECRET).is_some(), "the way that the setting opens");
        set(lab, "br0", 0);
        let (first, second) = (one_more(lab, backend, 8080), one_more(lab, backend, 8081));
        let _server = TcpServer::start(&second.container, 80);
        let is_closed = || connect(&spy, SECRET).is_none();
        assert!(is_closed() && connect(&lab.host, "127.0.0.1:8081").is_some(), "{backend:?}");
        first.del();
        assert!(is_closed() && connect(&lab.host, "127.0.0.1:8081").is_some(), "{backend:?}");
        second.check(&second.result).ok();
        second.del();
        assert_eq!(value(lab, "br0"), "0", "{backend:?}");
        assert!(is_closed(), "{backend:?}");
    });
}

/// However the last port goes. DEL with prevResult looks at its links, and without it at all links.
#[test]
fn issue_38_the_end_of_the_last_port_closes_127_0_0_1() {
    let flush = "nft flush ruleset";
    let ends = [("GC", "true"), ("GC", flush), ("DEL", flush), ("DEL without prevResult", flush)];
    for_ours_with_each_backend(|lab, backend| {
        let (spy, _secret) = spied(lab);
        for (end, fault) in ends {
            let lost = one_more(lab, backend, 8080);
            assert_ne!(value(lab, "br0"), "0");
            if end == "GC" {
                lost.main.del();
                lost.container.vanish();
            }
            lab.host.sh(fault);
            let end_it = || match end {
                "GC" => lost.bare().gc(&[]).ok(),
                "DEL" => lost.call("DEL", Some(&lost.result)).run().ok(),
                _ => lost.clone().conf(json!({"prevResult": null})).call("DEL", None).run().ok(),
            };
            end_it();
            assert_eq!(value(lab, "br0"), "0", "{end} after {fault} with {backend:?}");
            assert_eq!(connect(&spy, SECRET), None, "{end} after {fault} with {backend:?}");
            end_it();
            lost.main.del();
        }
    });
}

/// The setting and its guard stay for a container whose ports were published after the flush.
#[test]
fn del_after_a_flush_leaves_a_guarded_link_alone() {
    for_ours_with_each_backend(|lab, backend| {
        let (spy, _secret) = spied(lab);
        let first = one_more(lab, backend, 8080);
        lab.host.sh("nft flush ruleset");
        let second = one_more(lab, backend, 8081);
        let _server = TcpServer::start(&second.container, 80);
        first.del_all();
        assert!(connect(&lab.host, "127.0.0.1:8081").is_some(), "{backend:?}");
        assert_eq!(connect(&spy, SECRET), None, "{backend:?}");
        second.del_all();
        assert_eq!(value(lab, "br0"), "0", "{backend:?}");
    });
}

/// The setting admits sources of 127.0.0.0/8 as well, which programs may trust.
#[test]
fn issue_38_a_container_does_not_send_from_127_0_0_0_8() {
    for_ours_with_each_backend(|lab, backend| {
        lab.host.sh("for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done");
        let spy = spy(lab);
        lab.host.sh("nft -f - <<'END'
table inet ear {
    set heard { type ipv4_addr; flags dynamic; }
    chain input { type filter hook input priority 0; udp dport 7777 add @heard { ip saddr }; }
}
END");
        let _chain = one_more(lab, backend, 8080);
        spy.sh("ip addr add 127.0.0.2/32 dev eth0");
        for source in ["127.0.0.2", ""] {
            let bind = if source.is_empty() { String::new() } else { format!(",bind={source}") };
            spy.sh(&format!("echo x | socat -u - UDP4-SENDTO:10.10.0.1:7777{bind}"));
        }
        let heard = lab.host.sh("nft list set inet ear heard");
        assert!(heard.contains("10.10.0."), "{heard}");
        assert!(!heard.contains("127.0.0.2"), "{backend:?}: {heard}");
    });
}

/// A link on which an administrator needs the setting, such as the one of WSL's mirrored mode.
#[test]
fn issue_38_127_0_0_0_8_of_other_links_passes() {
    for_ours_with_each_backend(|lab, backend| {
        lab.host.sh("echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; echo 0 > /proc/sys/net/ipv4/conf/uplink/rp_filter");
        lab.outside.sh("ip route add 127.0.0.1 via 198.51.100.1 table 7; ip rule add pref 1 to 127.0.0.1 table 7; \
             ip rule del pref 0; ip rule add pref 2 lookup local; echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
        set(lab, "uplink", 1);
        let _service = TcpServer::start(&lab.host, 6443);
        assert!(connect(&lab.outside, SECRET).is_some());
        let chain = one_more(lab, backend, 8080);
        assert!(connect(&lab.outside, SECRET).is_some(), "{backend:?}");
        chain.check_and_del_all(&chain.result);
        assert_eq!(value(lab, "uplink"), "1");
    });
}

/// An administrator's value is neither changed nor guarded: set before the port is published, while it is, or for all
/// links.
#[test]
fn the_value_of_an_administrator_stays() {
    for_ours_with_each_backend(|lab, backend| {
        let (spy, _secret) = spied(lab);
        let chain = lab.chain(&network(), &portmap(backend, json!([web()])));
        let _server = TcpServer::start(&chain.container, 80);
        for (before, while_published) in [("br0", None), ("lo", Some("br0")), ("all", None)] {
            let set_there = while_published.unwrap_or(before);
            set(lab, before, 1);
            chain.add();
            while_published.iter().for_each(|link| set(lab, link, 1));
            assert!(connect(&lab.host, "127.0.0.1:8080").is_some(), "{backend:?}");
            if before == "br0" {
                assert!(connect(&spy, SECRET).is_some(), "{backend:?}");
            }
            chain.check(&chain.result).ok();
            chain.del();
            let expected = if set_there == "all" { ["0", "1"] } else { ["1", "0"] };
            assert_eq!([value(lab, "br0"), value(lab, "all")], expected, "{backend:?}, {before}");
            set(lab, "br0", 0);
        }
    });
}

/// Two at once on one bridge, again and again: the setting follows the ports.
#[test]
fn adds_and_dels_at_once_leave_the_setting_guarded() {
    for_ours_with_each_backend(|lab, backend| {
        let chains: Vec<Chain<'_>> = (0..4)
            .map(|n| {
                let mapping =
                    json!([{"hostPort": 8000 + n, "containerPort": 80, "protocol": "tcp"}]);
                lab.chain(&network(), &portmap(backend, mapping))
            })
            .collect();
        let stays = publish(lab, backend, json!([web()]));
        for round in 0..8 {
            std::thread::scope(|scope| {
                for chain in &chains {
                    scope.spawn(|| {
                        chain.add();
                        chain.del();
                    });
                }
                if round == 4 {
                    stays.del();
                }
            });
            assert_localnet_is_guarded(&lab.host);
            assert_eq!(value(lab, "br0") != "0", round < 4, "{backend:?}, round {round}");
        }
    });
}

fn plugins(main: Value) -> [Value; 2] {
    [main, json!({"type": "portmap", "capabilities": {"portMappings": true}})]
}

/// A stray route to the container's address: neither a repair nor ADD touches the link it leads to.
#[test]
fn issue_38_a_stray_route_opens_no_link_of_others() {
    for main in [network(), point_to_point()] {
        for_ours("portmap", |lab| {
            let synced = attach(lab, &plugins(main.clone()), "-p 8080:80");
            let ip = &synced.ips()[0];
            lab.host.sh(&format!("ip route replace {ip}/32 dev uplink"));
            let check = format!("check pods {}", synced.container.netns);
            for line in ["sync pods --dry-run", "sync pods", &check] {
                let outcome = synced.net(line);
                assert_ne!(outcome.status, 0, "{line}: {outcome:?}");
                let told = outcome.stdout + &outcome.stderr;
                assert!(told.contains("uplink"), "{told}");
                assert!(!told.contains("set sysctl"), "{told}");
                assert_eq!(value(lab, "uplink"), "0", "{line}");
            }
            synced.del();
            assert_localnet_is_guarded(&lab.host);
        });
    }
}

/// The address that the next container will get is routed elsewhere already.
#[test]
fn issue_38_add_beside_a_stray_route_opens_no_link_of_others() {
    for_ours("portmap", |lab| {
        let first = attach(lab, &plugins(network()), "-p 8080:80");
        lab.host.sh("ip route add 10.10.0.3/32 dev uplink");
        let second = attach_another(lab, "-p 8081:80");
        assert_eq!(second.ips()[0], "10.10.0.3");
        assert_eq!(value(lab, "uplink"), "0");
        second.del();
        first.del();
        assert_eq!(value(lab, "br0"), "0");
    });
}

/// The guard is away after a flush, and stands before the repair is done.
#[test]
fn sync_guards_the_setting_again() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &plugins(network()), "-p 8080:80");
        let spy = spy_of_pods(lab);
        let _secret = TcpServer::start(&lab.host, 6443);
        for fault in [
            "nft flush ruleset",
            "nft flush set inet cni_multi_portmap localnet",
            "nft flush chain inet cni_multi_portmap guard",
            "nft delete table inet cni_multi_portmap",
        ] {
            synced.assert_repaired(fault, &["publish port 8080/tcp"]);
            assert_localnet_is_guarded(&lab.host);
            assert_eq!(connect(&spy, SECRET), None, "{fault}");
        }
        synced.del();
        assert_eq!(value(lab, "br0"), "0");
    });
}

/// As [`spy`], on the network `pods`.
fn spy_of_pods(lab: &Lab) -> Container {
    let other = attach_another(lab, "");
    aim(&other.container, "10.10.0.1", "eth0");
    other.container
}

/// Where the kernel lacks what the guard needs, the setting is on without it; but not where that is
/// not known.
#[test]
fn a_guard_that_cannot_be_tried_fails_add() {
    for_ours("portmap", |lab| {
        let chain = lab.chain(&network(), &portmap(Some("iptables"), json!([web()])));
        let mut is_tried = false;
        let added = trace(&chain.call("ADD", None), |stop| {
            if !is_tried && is_batch(stop) {
                is_tried = true;
                return Then::fail(Errno::ENOMEM);
            }
            Then::Go
        });
        let error = added.outcome.err();
        assert!(error.msg.contains("cannot allocate memory"), "{error:?}");
        assert_eq!(value(lab, "br0"), "0");
    });
}
