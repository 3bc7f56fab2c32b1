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

use nix::errno::Errno;
use nix::libc;

use super::*;
use crate::support::attachment::not_compared;
use crate::support::call::Call;
use crate::support::case;
use crate::support::extent::is_emulated;
use crate::support::networks::portmap::{
    BACKENDS, assert_localnet_is_guarded, at, is_open, network, other_network, portmap, publish,
    warm_up, web, without_bridge_netfilter,
};
use crate::support::synced::{attach, attach_another};
use crate::support::tracer::{Then, trace};
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
        eprintln!("with {backend}:"); // shown when the case fails
        for_each_peer("portmap", |lab| case(lab, Some(backend)));
    }
}

/// Runs a case that only ours is expected to pass, with each backend.
pub fn for_ours_with_each_backend(case: impl Fn(&Lab, Option<&str>)) {
    for backend in BACKENDS {
        eprintln!("with {backend}:"); // shown when the case fails
        for_ours("portmap", |lab| case(lab, Some(backend)));
    }
}

/// The source that a server behind port 8080 sees, for each client: its own address (`o`), the gateway's (`g`), or
/// none (`-`); by IPv4, then by IPv6.
fn sources(lab: &Lab, published: &Chain<'_>) -> String {
    let (neighbour, stranger) = (lab.container(), lab.container());
    let (near, far) =
        (lab.attach(&neighbour, &published.main.conf), lab.attach(&stranger, &other_network()));
    let (near_ips, far_ips) = (ips(&near.add()), ips(&far.add()));
    let _server = TcpServer::start(&published.container, 80);
    let fixed = |both: [&str; 2]| both.map(str::to_owned).to_vec();
    let local = ["127.0.0.1", "::1"];
    let clients: [(&str, &Namespace, [&str; 2], Vec<String>); 7] = [
        ("outside", &lab.outside, UPLINK, fixed(OUTSIDE)),
        ("host", &lab.host, UPLINK, fixed(UPLINK)),
        ("localhost", &lab.host, local, fixed(local)),
        ("itself", &published.container, UPLINK, published.ips()),
        ("by the gateway", &published.container, GATEWAY, published.ips()),
        ("neighbour", &neighbour, UPLINK, near_ips),
        ("stranger", &stranger, UPLINK, far_ips),
    ];
    let seen = clients.map(|(who, from, to, own)| {
        let [v4, v6] = [0, 1].map(|family| match connect(from, &at(to[family], 8080)) {
            None => "-".to_owned(),
            Some(seen) if seen == own[family] => "o".to_owned(),
            Some(seen) if seen == GATEWAY[family] => "g".to_owned(),
            Some(seen) => seen,
        });
        format!("{who} {v4}{v6}")
    });
    near.del();
    far.del();
    seen.join(", ")
}

/// With `snat`, only clients that could not receive an answer otherwise are masqueraded. A packet
/// from ::1 cannot leave the host.
const SNAT: &str =
    "outside oo, host oo, localhost g-, itself gg, by the gateway gg, neighbour gg, stranger oo";

/// `SNAT` as the reference's nftables backend has it, which does not masquerade neighbours.
/// tests/differences shows the consequence.
fn snat_of(peer: &Peer, backend: Option<&str>) -> String {
    let forgets = *peer != Peer::Ours && backend == Some("nftables");
    SNAT.replace("neighbour gg", if forgets { "neighbour oo" } else { "neighbour gg" })
}

#[test]
fn a_published_port_is_reachable_and_del_leaves_nothing() {
    for_each_backend(|lab, backend| {
        for main in [network(), point_to_point()] {
            let chained = portmap(backend, json!([web()]));
            warm_up(lab, &main, &chained);
            warm_up(lab, &other_network(), &chained);
            let before = Watch::start(lab, &[]);
            let chain = lab.chain_added(&main, &chained);
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

/// Without a backend; without `snat`, where clients that depend on it get no answer, but for a neighbour's, which comes
/// back with ptp; with masqAll; and on a bridge without hairpin mode, as on most hosts, which have no br_netfilter:
/// there packets between its ports bypass the rules, so an answer from port to port would not be translated back.
#[test]
fn hairpin_answers_reach_neighbours_and_the_container_itself() {
    let without = "outside oo, host oo, localhost --, itself --, by the gateway --, neighbour oo, stranger oo";
    let all = "outside gg, host gg, localhost g-, itself gg, by the gateway gg, neighbour gg, stranger gg";
    let plain = with(&network(), json!({"hairpinMode": false}));
    let cases = [
        (network(), json!({"type": "portmap"}), SNAT),
        (point_to_point(), json!({"snat": false}), without),
        (network(), json!({"masqAll": true}), all),
        (plain, json!({"snat": true}), SNAT),
    ];
    for_each_peer("portmap", |lab| {
        for (main, keys, expected) in &cases {
            for backend in [None, Some("iptables"), Some("nftables")] {
                let differs = lab.peer != Peer::Ours && backend == Some("nftables");
                if differs && *expected != without {
                    continue; // See tests/differences.
                }
                if main["hairpinMode"] == false {
                    without_bridge_netfilter(lab);
                }
                let chain =
                    lab.chain_added(main, &with(&portmap(backend, json!([web()])), keys.clone()));
                assert_eq!(sources(lab, &chain), *expected, "{keys} with {backend:?}");
                chain.check_and_del_all(&chain.result);
                lab.host.sh("ip link del br0 2>/dev/null; true"); // the next network has its addresses
            }
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
            let chain = lab.chain_added(&main, &portmap(backend, json!([web()])));
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
        chain.check_and_del_all(&chain.result);
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
            chain.check_and_del_all(&chain.result);
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
