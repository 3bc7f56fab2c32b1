//! Which packets a published port takes: those to an address of the host, and only those to
//! `hostIP` if it is set.

use super::*;

/// The ways in: from the outside to the uplink; from the host to the uplink, the bridge and
/// localhost. v4, then v6.
const WAYS: [(&str, &str); 8] = [
    ("outside", UPLINK[0]),
    ("host", UPLINK[0]),
    ("host", "10.10.0.1"),
    ("host", "127.0.0.1"),
    ("outside", UPLINK[1]),
    ("host", UPLINK[1]),
    ("host", "2001:db8:10::1"),
    ("host", "::1"),
];

/// `x` for an open way, `.` for a closed one.
fn open_ways(lab: &Lab) -> String {
    let from = |who: &str| if who == "host" { &lab.host } else { &lab.outside };
    WAYS.iter()
        .map(|(who, to)| if connect(from(who), &at(to, 8080)).is_some() { 'x' } else { '.' })
        .collect()
}

#[test]
fn host_ip_is_the_address_that_leads_to_the_port() {
    let cases = [
        (Value::Null, "xxxxxxx."),
        (json!(""), "xxxxxxx."),
        (json!("0.0.0.0"), "xxxx...."),
        (json!("::"), "....xxx."),
        (json!(UPLINK[0]), "xx......"),
        (json!(UPLINK[1]), "....xx.."),
        (json!("10.10.0.1"), "..x....."),
        (json!("127.0.0.1"), "...x...."),
        (json!("127.0.0.2"), "........"),
        (json!("192.0.2.99"), "........"),
    ];
    for_each_backend(|lab, backend| {
        for (host_ip, expected) in &cases {
            let chain = publish(lab, backend, json!([with(&web(), json!({"hostIP": host_ip}))]));
            let _server = TcpServer::start(&chain.container, 80);
            assert_eq!(open_ways(lab), *expected, "{host_ip} with {backend:?}");
            chain.check_and_del_all(&chain.result);
        }
    });
}

/// Conditions in nft's syntax with sets, as in public configurations.
#[test]
fn conditions_with_sets_select_the_packets_of_the_port() {
    let many: Vec<String> =
        (0..60).map(|n| format!("192.0.2.{n}")).chain([OUTSIDE[0].into()]).collect();
    let many = many.join(", ");
    // As many as one rule takes, of those that need the most room in it.
    let most: Vec<String> = (0..28).map(|n| format!("2001:db9:{n:x}::/48")).collect();
    let most = format!("{}, 2001:db8:ffff::2/127, 2001:db8:ffff::4/126", most.join(", "));
    let long = [
        (json!({"conditionsV6": [format!("ip6 saddr {{ {most} }}")]}), "xxxxx..."),
        (json!({"conditionsV4": [format!("ip saddr {{ {many} }} iifname \"up*\"")]}), "x...xxx."),
        (json!({"conditionsV4": [format!("ip saddr != {{ {many} }}")]}), ".xxxxxx."),
    ];
    let short = r#"
{"conditionsV4": ["ip", "daddr", "!=", "{ 127.0.0.0/8, 198.51.100.7 }"]} | xxx.xxx.
{"conditionsV4": ["ip saddr { 198.51.100.2, 10.10.0.1 }"]} | x.x.xxx.
{"conditionsV4": ["iifname", "{", "\"uplink\",", "\"br0\"", "}"]} | x...xxx.
{"conditionsV4": ["iifname != { br0, lo }", "ip saddr { 198.51.100.0/24 }"]} | xx..xxx.
{"conditionsV4": ["ip saddr { 198.51.100.0/24, 127.0.0.1 }", "ip daddr { 198.51.100.1, 192.0.2.1 }"]} | xx..xxx.
{"conditionsV6": ["ip6 daddr != { ::1, 2001:db8:10::1 }"]} | xxxxxx..
{"conditionsV4": ["meta mark { 1, 2 }"], "conditionsV6": ["meta mark != { 1, 2 }"]} | ....xxx.
{"conditionsV4": ["ip saddr 198.51.100.2-198.51.100.9"]} | x...xxx.
{"conditionsV4": ["ip saddr != { 198.51.100.2-198.51.100.9, 127.0.0.1 }"]} | .xx.xxx.
{"conditionsV4": ["ip", "saddr", "{ 198.51.100.0 - 198.51.100.1, 10.10.0.1 }"]} | .xx.xxx.
{"conditionsV6": ["ip6 saddr 2001:db8:ffff::2-2001:db8:ffff::9"]} | xxxxx...
{"conditionsV4": ["iifname \"up*\""]} | x...xxx.
{"conditionsV4": ["iifname != { \"up*\", eth0 }"]} | .xxxxxx.
{"conditionsV4": ["meta mark 1-9"], "conditionsV6": ["meta mark { 0-9, 12 }"]} | ....xxx.
{"conditionsV4": ["meta mark 0x0-0x9"], "conditionsV6": ["meta mark != 0-9"]} | xxxx....
"#;
    let short = cells(short).into_iter();
    let short = short.map(|[conditions, ways]| (serde_json::from_str(conditions).unwrap(), ways));
    let cases: Vec<(Value, &str)> = long.into_iter().chain(short).collect();
    for_each_peer("portmap", |lab| {
        warm_up(lab, &network(), &portmap(Some("nftables"), json!([web()])));
        for (conditions, expected) in case::in_turn(&cases, 3) {
            let before = Watch::start(lab, &[]);
            let chained = with(&portmap(Some("nftables"), json!([web()])), conditions.clone());
            let chain = lab.chain_added(&network(), &chained);
            let _server = TcpServer::start(&chain.container, 80);
            assert_eq!(open_ways(lab), *expected, "{conditions}");
            chain.check(&chain.result).ok();
            lab.host.sh("nft list ruleset > /run/rules; nft flush ruleset; nft -f /run/rules; rm /run/rules");
            assert_eq!(open_ways(lab), *expected, "{conditions}, as nft lists them");
            chain.check_and_del_all(&chain.result);
            if lab.peer == Peer::Ours {
                before.assert_unchanged(&conditions.to_string());
            }
        }
    });
}

/// Any host on the link can send packets for 127.0.0.1; a port published there is for the host
/// itself only.
#[test]
fn a_port_at_127_0_0_1_is_not_for_the_neighbours_of_the_host() {
    for_ours("portmap", |lab| {
        lab.outside.sh("ip route add 127.0.0.1 via 198.51.100.1 table 7; ip rule add pref 1 to 127.0.0.1 table 7; \
             ip rule del pref 0; ip rule add pref 2 lookup local; echo 1 > /proc/sys/net/ipv4/conf/uplink/route_localnet");
        for host_ip in [json!("127.0.0.1"), Value::Null] {
            let chain = publish(lab, None, json!([with(&web(), json!({"hostIP": host_ip}))]));
            let _server = TcpServer::start(&chain.container, 80);
            assert!(connect(&lab.host, "127.0.0.1:8080").is_some());
            assert_eq!(connect(&lab.outside, "127.0.0.1:8080"), None, "{host_ip}");
            chain.del_all();
        }
    });
}

/// One port on two addresses of the host leads to two containers.
#[test]
fn one_port_on_two_addresses_leads_to_two_containers() {
    for_each_backend(|lab, backend| {
        lab.host.sh("ip addr add 198.51.100.7/24 dev uplink; ip addr add 2001:db8:ffff::7/64 dev uplink nodad");
        let on = |v4: &str, v6: &str| {
            let mappings = [v4, v6].map(|ip| with(&web(), json!({"hostIP": ip})));
            publish(lab, backend, json!(mappings))
        };
        let first = on(UPLINK[0], UPLINK[1]);
        let second = on("198.51.100.7", "2001:db8:ffff::7");
        let open = || {
            [UPLINK[0], UPLINK[1], "198.51.100.7", "2001:db8:ffff::7"]
                .map(|address| connect(&lab.outside, &at(address, 8080)).is_some())
        };
        let server = TcpServer::start(&first.container, 80);
        assert_eq!(open(), [true, true, false, false]);
        drop(server);
        let _server = TcpServer::start(&second.container, 80);
        assert_eq!(open(), [false, false, true, true]);
        first.check(&first.result).ok();
        second.check(&second.result).ok();
        first.del();
        assert_eq!(open(), [false, false, true, true]);
    });
}

/// Packets on the way to another machine: the mapping must not affect them. Every destination
/// except the published container serves the port.
#[test]
fn cve_2025_67499_traffic_to_other_machines_is_left_alone() {
    for_each_backend(|lab, backend| {
        lab.outside.sh("ip route add 10.10.0.0/24 via 198.51.100.1; ip route add 2001:db8:10::/64 via 2001:db8:ffff::1");
        for (host_ip, shown) in [
            (None, UPLINK[0]),
            (Some("0.0.0.0"), UPLINK[0]),
            (Some("::"), UPLINK[1]),
            (Some(UPLINK[0]), UPLINK[0]),
            (Some(UPLINK[1]), UPLINK[1]),
        ] {
            let chain = publish(lab, backend, json!([with(&web(), json!({"hostIP": host_ip}))]));
            let neighbour = lab.container();
            let near = ips(&lab.attach(&neighbour, &network()).add());
            let near = [near[0].as_str(), near[1].as_str()];
            let server = TcpServer::start(&chain.container, 80);
            let is_mapped = connect(&lab.outside, &at(shown, 8080)).is_some();
            assert!(is_mapped, "the mapping works: {host_ip:?}");
            drop(server);
            let _servers = [&lab.outside, &*neighbour].map(|at| TcpServer::start(at, 8080));
            let ways: [(&str, &Namespace, [&str; 2]); 4] = [
                ("host to the outside", &lab.host, OUTSIDE),
                ("container to the outside", &chain.container, OUTSIDE),
                ("outside to another container", &lab.outside, near),
                ("host to another container", &lab.host, near),
            ];
            for (way, from, both) in ways {
                for to in both {
                    let answers = connect(from, &at(to, 8080)).is_some();
                    assert!(answers, "{way} ({to}), hostIP {host_ip:?}, {backend:?}");
                }
            }
            chain.del_all();
        }
    });
}

/// A service of a cluster: its address is not the host's, and its rule is in a foreign table. The address
/// 203.0.113.10:8080 leads to port 80 of 10.10.0.3, or the host's port 8080 does.
#[derive(Debug)]
pub struct Service {
    by_iptables: bool,
    pub node_port: bool,
}

pub const SERVICES: [Service; 4] = [
    Service { by_iptables: true, node_port: false },
    Service { by_iptables: true, node_port: true },
    Service { by_iptables: false, node_port: false },
    Service { by_iptables: false, node_port: true },
];

impl Service {
    fn script(&self) -> String {
        if self.by_iptables {
            let at =
                if self.node_port { "-m addrtype --dst-type LOCAL" } else { "-d 203.0.113.10" };
            return format!(
                "iptables -t nat -N KUBE-SERVICES; for c in PREROUTING OUTPUT; do iptables -t nat -A $c -j KUBE-SERVICES; done; \
                 iptables -t nat -A KUBE-SERVICES {at} -p tcp --dport 8080 -j DNAT --to-destination 10.10.0.3:80"
            );
        }
        let at = if self.node_port { "fib daddr type local" } else { "ip daddr 203.0.113.10" };
        format!(
            "nft 'add table ip kube-proxy; add chain ip kube-proxy services; \
             add rule ip kube-proxy services {at} tcp dport 8080 dnat to 10.10.0.3:80'
             for hook in prerouting output; do
                 nft \"add chain ip kube-proxy nat-$hook {{ type nat hook $hook priority -100; }}\"
                 nft add rule ip kube-proxy nat-$hook jump services
             done"
        )
    }
}

/// Which container answers at the service's address and at the host's port: the service's or the
/// published one.
pub fn answering(
    lab: &Lab,
    service: &Service,
    backend: Option<&str>,
    service_first: bool,
) -> [&'static str; 2] {
    lab.host.sh("ip route add 203.0.113.10 via 198.51.100.2"); // the route's target does not matter
    lab.outside.sh("ip route add 203.0.113.10 via 198.51.100.1");
    let published = lab.chain(&network(), &portmap(backend, json!([web()])));
    let serving = lab.container();
    assert_eq!(ips(&lab.attach(&serving, &network()).add())[0], "10.10.0.3");
    if service_first {
        lab.host.sh(&service.script());
        published.add();
    } else {
        published.add();
        lab.host.sh(&service.script());
    }
    let who_serves = |to: &str| {
        let answers = |container: &Namespace| {
            let _server = TcpServer::start(container, 80);
            connect(&lab.outside, &at(to, 8080)).is_some()
        };
        match (answers(&serving), answers(&published.container)) {
            (true, false) => "service",
            (false, true) => "published",
            (false, false) => "nobody",
            (true, true) => "both",
        }
    };
    [who_serves("203.0.113.10"), who_serves(UPLINK[0])]
}

/// A service's cluster address is not an address of the host, so services keep theirs in either
/// order. A node port in use is not shadowed: within one chain the earlier rule applies first; of base chains with equal
/// priority the kernel runs the newest first, so ours has a priority behind all others, see tests/differences.
#[test]
fn cve_2019_9946_services_keep_their_addresses_and_ports() {
    let assert_kept = |lab: &Lab, service: &Service, backend: Option<&str>, service_first: bool| {
        let lab = Lab::new(lab.peer.clone());
        let expected =
            if service.node_port { ["nobody", "service"] } else { ["service", "published"] };
        let seen = answering(&lab, service, backend, service_first);
        assert_eq!(seen, expected, "{service:?}, {backend:?}, first: {service_first}");
    };
    for_each_backend(|lab, backend| {
        for service in SERVICES.iter().filter(|service| !service.node_port) {
            [true, false].iter().for_each(|first| assert_kept(lab, service, backend, *first));
        }
    });
    for_each_peer("portmap", |lab| assert_kept(lab, &SERVICES[1], Some("iptables"), true));
    for_ours("portmap", |lab| {
        for service in SERVICES.iter().filter(|service| service.node_port) {
            let nftables = Some("nftables");
            [true, false].iter().for_each(|first| assert_kept(lab, service, nftables, *first));
        }
    });
}
