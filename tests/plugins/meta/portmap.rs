//! portmap: which packets reach a published port, and which source the server sees. Conflicts,
//! CHECK, DEL, UDP, the rules of the iptables backend, upgrades and failures have modules of their
//! own.

pub mod abandoned;
mod check;
mod coexistence;
mod conflict;
mod del;
pub mod failed_add;
pub mod host;
pub mod iptables;
mod listener;
mod localnet;
mod repair;
mod result;
pub mod services;
pub mod udp;
mod upgrade;

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::chain::Chain;
use crate::support::extent::is_emulated;
use crate::support::netns::{Lab, Namespace, OUTSIDE, UPLINK};
use crate::support::networks::bridge;
use crate::support::networks::portmap::{
    BACKENDS, at, is_open, network, other_network, portmap, publish, warm_up, web,
    without_bridge_netfilter,
};
use crate::support::snapshot::Watch;
use crate::support::traffic::{
    SctpServer, TcpServer, UdpServer, ask_by_udp, assert_masqueraded, connect, connect_by_sctp,
};

/// The host's addresses in the networks below. A container sees them in place of a masqueraded
/// client's.
const GATEWAY: [&str; 2] = ["10.10.0.1", "2001:db8:10::1"];

/// The same addresses, with each container on a link of its own.
fn point_to_point() -> Value {
    with(
        &bridge::dual_stack(),
        json!({"type": "ptp", "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
    )
}

/// Runs a case for each peer and each backend, in a new lab each time.
pub fn for_each_backend(case: impl Fn(&Lab, Option<&str>)) {
    for backend in BACKENDS {
        for_each_peer("portmap", |lab| with_backend(lab, backend, &case));
    }
}

/// Runs a case that only ours is expected to pass, with each backend.
pub fn for_ours_with_each_backend(case: impl Fn(&Lab, Option<&str>)) {
    for backend in BACKENDS {
        for_ours("portmap", |lab| with_backend(lab, backend, &case));
    }
}

fn with_backend(lab: &Lab, backend: &str, case: &impl Fn(&Lab, Option<&str>)) {
    eprintln!("with {backend}:"); // shown when the case fails
    case(lab, Some(backend));
}

/// The source that a server behind port 8080 sees, a line for each client: the client's own
/// address, the gateway's, or nothing. IPv4 first, then IPv6.
fn sources(lab: &Lab, published: &Chain<'_>) -> Vec<String> {
    let (neighbour, stranger) = (lab.container(), lab.container());
    let (near, far) =
        (lab.attach(&neighbour, &published.main.conf), lab.attach(&stranger, &other_network()));
    let (near_ips, far_ips) = (ips(&near.add()), ips(&far.add()));
    let _server = TcpServer::start(&published.container, 80);
    let own = |addresses: &[String]| [addresses[0].clone(), addresses[1].clone()];
    let clients: [(&str, &Namespace, [&str; 2], [String; 2]); 7] = [
        ("outside", &lab.outside, UPLINK, OUTSIDE.map(str::to_owned)),
        ("host", &lab.host, UPLINK, UPLINK.map(str::to_owned)),
        ("localhost", &lab.host, ["127.0.0.1", "::1"], ["127.0.0.1", "::1"].map(str::to_owned)),
        ("itself", &published.container, UPLINK, own(&published.ips())),
        ("itself by the gateway", &published.container, GATEWAY, own(&published.ips())),
        ("neighbour", &neighbour, UPLINK, own(&near_ips)),
        ("stranger", &stranger, UPLINK, own(&far_ips)),
    ];
    let word = |seen: Option<String>, own: &str, gateway: &str| match seen {
        None => "nothing".to_owned(),
        Some(seen) if seen == own => "own".to_owned(),
        Some(seen) if seen == gateway => "gateway".to_owned(),
        Some(seen) => seen,
    };
    let line = |(who, from, to, own): &(&str, &Namespace, [&str; 2], [String; 2])| {
        let [v4, v6] = [0, 1].map(|family| {
            word(connect(from, &at(to[family], 8080)), &own[family], GATEWAY[family])
        });
        format!("{who}: {v4}, {v6}")
    };
    let lines = clients.iter().map(line).collect();
    near.del();
    far.del();
    lines
}

/// With `snat`, only clients that could not receive an answer otherwise are masqueraded. A packet
/// from ::1 cannot leave the host.
const SNAT: [&str; 7] = [
    "outside: own, own",
    "host: own, own",
    "localhost: gateway, nothing",
    "itself: gateway, gateway",
    "itself by the gateway: gateway, gateway",
    "neighbour: gateway, gateway",
    "stranger: own, own",
];

/// `SNAT` as the reference's nftables backend has it, which does not masquerade neighbours.
/// tests/differences shows the consequence.
fn snat_of(peer: &Peer, backend: Option<&str>) -> [&'static str; 7] {
    let forgets = *peer != Peer::Ours && backend == Some("nftables");
    SNAT.map(
        |line| if forgets && line.starts_with("neighbour") { "neighbour: own, own" } else { line },
    )
}

#[test]
fn a_published_port_is_reachable_and_del_leaves_nothing() {
    for_each_backend(|lab, backend| {
        for main in [network(), point_to_point()] {
            let chained = portmap(backend, json!([web()]));
            warm_up(lab, &main, &chained);
            warm_up(lab, &other_network(), &chained);
            let before = Watch::start(lab, &[]);
            let chain = lab.chain(&main, &chained);
            chain.add();
            let expected = snat_of(&lab.peer, backend);
            assert_eq!(sources(lab, &chain), expected, "{} {backend:?}", main["type"]);
            chain.check(&chain.result).ok();
            chain.del();
            let _server = TcpServer::start(&chain.container, 80);
            assert_eq!(is_open(lab, 8080), [false, false]);
            chain.main.del();
            before.assert_unchanged(&format!("ADD with {backend:?}"));
            lab.host.sh("ip link del br0 2>/dev/null; true"); // the next network has its addresses
        }
    });
}

/// Most hosts have no br_netfilter: packets between bridge ports bypass the rules, so an answer
/// from port to port would not be translated back.
#[test]
fn hairpin_answers_reach_neighbours_and_the_container_itself() {
    for_each_backend(|lab, backend| {
        without_bridge_netfilter(lab);
        if lab.peer != Peer::Ours && backend == Some("nftables") {
            return; // See tests/differences.
        }
        let plain = with(&network(), json!({"hairpinMode": false}));
        let chain = lab.chain(&plain, &portmap(backend, json!([web()])));
        chain.add();
        assert_eq!(sources(lab, &chain), SNAT);
    });
}

#[test]
fn without_a_backend_a_published_port_is_reachable() {
    for_each_peer("portmap", |lab| {
        let chain = publish(lab, None, json!([web()]));
        assert_eq!(sources(lab, &chain), SNAT);
        chain.check(&chain.result).ok();
        chain.del();
    });
}

/// Without masquerading, clients that depend on it get no answer. A neighbour's answer comes back
/// where packets within a bridge pass the rules, or with ptp.
#[test]
fn without_snat_every_source_is_the_client_s_own() {
    for_each_backend(|lab, backend| {
        let chained = with(&portmap(backend, json!([web()])), json!({"snat": false}));
        let chain = lab.chain(&point_to_point(), &chained);
        chain.add();
        let expected = [
            "outside: own, own",
            "host: own, own",
            "localhost: nothing, nothing",
            "itself: nothing, nothing",
            "itself by the gateway: nothing, nothing",
            "neighbour: own, own",
            "stranger: own, own",
        ];
        assert_eq!(sources(lab, &chain), expected, "{backend:?}");
        chain.check(&chain.result).ok();
    });
}

/// The reference documents masqAll for iptables only, and its nftables backend ignores it.
#[test]
fn masq_all_hides_every_client() {
    let expected = [
        "outside: gateway, gateway",
        "host: gateway, gateway",
        "localhost: gateway, nothing",
        "itself: gateway, gateway",
        "itself by the gateway: gateway, gateway",
        "neighbour: gateway, gateway",
        "stranger: gateway, gateway",
    ];
    for_each_peer("portmap", |lab| {
        for backend in [None, Some("iptables"), Some("nftables")] {
            if backend == Some("nftables") && lab.peer != Peer::Ours {
                continue;
            }
            let chained = with(&portmap(backend, json!([web()])), json!({"masqAll": true}));
            let chain = lab.chain(&network(), &chained);
            chain.add();
            assert_eq!(sources(lab, &chain), expected, "{backend:?}");
            chain.check(&chain.result).ok();
            chain.del();
        }
    });
}

/// ipMasq must neither change the sources of clients that connect to a container nor lose the
/// packets that the container sends.
#[test]
fn published_ports_and_ip_masq_keep_out_of_each_other_s_way() {
    for_each_backend(|lab, backend| {
        for masq in BACKENDS {
            if masq == "nftables" && lab.peer != Peer::Ours {
                if backend == Some("iptables") {
                    continue;
                }
                lab.hide_iptables(); // see its documentation
            }
            let main = with(&network(), json!({"ipMasq": true, "ipMasqBackend": masq}));
            let chain = lab.chain(&main, &portmap(backend, json!([web()])));
            chain.add();
            let what = format!("ipMasq with {masq}, portmap with {backend:?}");
            assert_eq!(sources(lab, &chain), snat_of(&lab.peer, backend), "{what}");
            chain.ips().iter().for_each(|ip| assert_masqueraded(lab, &chain.container, ip));
            chain.del();
        }
    });
}

/// Asks port 8080 of each address of the host over one protocol, from the outside and from the host
/// itself.
fn assert_each_sees_its_own(lab: &Lab, ask: impl Fn(&Namespace, &str) -> Option<String>) {
    for (family, address) in UPLINK.iter().enumerate() {
        let to = at(address, 8080);
        assert_eq!(ask(&lab.outside, &to).as_deref(), Some(OUTSIDE[family]), "outside to {to}");
        assert_eq!(ask(&lab.host, &to).as_deref(), Some(*address), "host to {to}");
    }
}

/// Publishes port 8080 of a protocol. TCP stays closed, although it has a server at the port as
/// well.
fn publish_only<'a>(lab: &'a Lab, backend: Option<&str>, protocol: &str) -> Chain<'a> {
    let chain = publish(lab, backend, json!([with(&web(), json!({"protocol": protocol}))]));
    chain.check(&chain.result).ok();
    let _tcp = TcpServer::start(&chain.container, 80);
    assert_eq!(is_open(lab, 8080), [false, false], "{protocol} is not TCP");
    chain
}

/// The clients are also localhost, the container itself and its neighbour, as of a TCP port.
#[test]
fn a_port_of_udp_is_of_udp_only() {
    for_each_backend(|lab, backend| {
        let chain = publish_only(lab, backend, "udp");
        let _server = UdpServer::start(&chain.container, 80);
        assert_each_sees_its_own(lab, ask_by_udp);
        let neighbour = lab.container();
        lab.attach(&neighbour, &network()).add();
        assert_eq!(ask_by_udp(&lab.host, "127.0.0.1:8080").as_deref(), Some(GATEWAY[0]));
        for family in [0, 1] {
            let to = at(UPLINK[family], 8080);
            let seen = ask_by_udp(&chain.container, &to);
            assert_eq!(seen.as_deref(), Some(GATEWAY[family]), "itself to {to}");
            assert!(ask_by_udp(&neighbour, &to).is_some(), "neighbour to {to}");
        }
    });
}

#[test]
fn a_port_of_sctp_is_of_sctp_only() {
    for_each_backend(|lab, backend| {
        let chain = publish_only(lab, backend, "sctp");
        let Some(_server) = SctpServer::start(&chain.container, 80) else { return skip("sctp") };
        assert_each_sees_its_own(lab, connect_by_sctp);
        chain.del_all();
    });
}

/// More ports than one iptables rule takes, each to a container port of its own.
#[test]
fn forty_ports_in_a_row_lead_each_to_its_own() {
    for_each_backend(|lab, backend| {
        let mappings: Value = (0..40)
            .map(|n| json!({"hostPort": 8000 + n, "containerPort": 9000 + n, "protocol": "tcp"}))
            .collect();
        warm_up(lab, &network(), &portmap(backend, mappings.clone()));
        let before = Watch::start(lab, &[]);
        let chain = publish(lab, backend, mappings);
        for n in [0, 14, 15, 39] {
            let server = TcpServer::start(&chain.container, 9000 + n);
            assert_eq!(is_open(lab, 8000 + n), [true, true], "{backend:?}: port {n}");
            drop(server);
        }
        let _server = TcpServer::start(&chain.container, 9001);
        assert_eq!(is_open(lab, 8000), [false, false], "{backend:?}: not the next one's");
        assert_eq!(is_open(lab, 8001), [true, true], "{backend:?}");
        chain.check(&chain.result).ok();
        chain.del_all();
        before.assert_unchanged(&format!("40 ports with {backend:?}"));
    });
}

/// Go's JSON decoder accepts keys in any case, and containerd writes them like this.
#[test]
fn keys_may_have_any_case() {
    for_each_backend(|lab, backend| {
        let entry =
            json!({"HostPort": 8080, "CONTAINERPORT": 80, "protocol": "tcp", "hostip": UPLINK[0]});
        let chained = json!({"type": "portmap", "Backend": backend, "RuntimeConfig": {"PortMappings": [entry]}});
        let chain = lab.chain(&network(), &chained);
        let _server = TcpServer::start(&chain.container, 80);
        chain.add();
        assert_eq!(is_open(lab, 8080), [true, false]);
        assert_eq!(connect(&lab.host, "10.10.0.1:8080"), None, "the hostIP was read");
        chain.check(&chain.result).ok();
    });
}

/// Only the family of the container's addresses is published; no rules are made for the other one.
#[test]
fn a_container_with_one_family_is_published_in_that_family() {
    for_each_backend(|lab, backend| {
        for (ipam, expected) in
            [("10.10.0.0/24", [true, false]), ("2001:db8:10::/64", [false, true])]
        {
            let main = with(&network(), json!({"ipam": {"ranges": null, "subnet": ipam}}));
            let chain = lab.chain(&main, &portmap(backend, json!([web()])));
            let _server = TcpServer::start(&chain.container, 80);
            chain.add();
            assert_eq!(is_open(lab, 8080), expected, "{backend:?}");
            chain.check(&chain.result).ok();
            chain.del_all();
        }
    });
}

/// Concurrent ADDs for one port: exactly one gets it. In the reference both of two ADDs succeed
/// with iptables, and one port is reached.
#[test]
fn one_of_eight_simultaneous_adds_gets_the_port() {
    for_ours_with_each_backend(|lab, backend| {
        warm_up(lab, &network(), &portmap(backend, json!([])));
        let chains: Vec<_> =
            (0..8).map(|_| lab.chain(&network(), &portmap(backend, json!([web()])))).collect();
        let chained: Vec<_> = chains.iter().map(|chain| (**chain).clone()).collect();
        let outcomes = crate::parallel::all_at_once(&chained, "ADD");
        let losers: Vec<u64> =
            outcomes.iter().filter(|outcome| outcome.status != 0).map(|o| o.err().code).collect();
        assert_eq!(losers, [102; 7], "{backend:?}");
        let winner = outcomes.iter().position(|outcome| outcome.status == 0).unwrap();
        crate::parallel::all_at_once(&chained[..winner], "DEL").iter().for_each(|o| drop(o.ok()));
        let _server = TcpServer::start(&chains[winner].container, 80);
        assert_eq!(is_open(lab, 8080), [true, true], "{backend:?}: the port is the winner's");
        chains[winner].check(&chains[winner].result).ok();
    });
}

fn ports(count: u64) -> Value {
    (0..count)
        .map(|n| json!({"hostPort": 1000 + n, "containerPort": 1000 + n, "protocol": "tcp"}))
        .collect()
}

/// A published port range is one attachment with all its ports. The limit allows for the kernel's
/// time and a debug build.
#[test]
fn issue_17_60000_ports_are_added_checked_and_deleted() {
    for_ours("portmap", |lab| {
        warm_up(lab, &network(), &portmap(None, json!([web()])));
        let chain = lab.chain(&network(), &portmap(None, ports(60_000)));
        let before = Watch::start(lab, &[]);
        let cpu = |command: &str| {
            let conf = chain.call(command, Some(&chain.result));
            // Measures CPU time, which does not include the time other processes run.
            let mut timed = conf.clone();
            timed.wrapper.extend(
                ["sh", "-c", "\"$@\"; status=$?; times >&2; exit $status", "sh"].map(str::to_owned),
            );
            let outcome = timed.run();
            assert_eq!(outcome.status, 0, "{command}: {outcome:?}");
            let of_children = outcome.stderr.lines().last().unwrap_or_default().to_owned();
            let seconds = |word: &str| {
                let (minutes, seconds) = word.trim_end_matches('s').split_once('m').unwrap();
                minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
            };
            of_children.split_whitespace().map(seconds).sum::<f64>()
        };
        let mut seconds = vec![cpu("ADD")];
        for port in [1000, 60_999] {
            let _server = TcpServer::start(&chain.container, port);
            assert_eq!(is_open(lab, port), [true, true], "port {port}");
        }
        seconds.extend(["CHECK", "DEL"].map(cpu));
        // A lookup per port and a comparison of all pairs took 30 s and more.
        let limit = if is_emulated() { 150.0 } else { 15.0 };
        assert!(seconds.iter().all(|seconds| *seconds < limit), "{seconds:?}");
        before.assert_unchanged("60000 ports");
    });
}

#[test]
fn issue_17_iptables_refuses_more_ports_than_it_takes() {
    for_ours("portmap", |lab| {
        let chain = lab.chain(&network(), &portmap(Some("iptables"), ports(4001)));
        let before = Watch::start(lab, &[&chain.container]);
        let error = chain.try_add().fails(7, "at most 4000");
        assert!(error.text().contains("nftables"), "{error:?}");
        before.assert_unchanged("the refused ADD");
    });
}
