//! portmap: which packets reach a published port, and which source the server sees. Conflicts,
//! CHECK, DEL, UDP, the rules of the iptables backend, upgrades and failures are in modules of
//! their own.

mod check;
mod coexistence;
mod conflict;
mod del;
pub mod failed_add;
pub mod host;
pub mod iptables;
mod result;
pub mod udp;
mod upgrade;

use serde_json::{Value, json};

use crate::plugins::main::bridge;
use crate::support::attachment::{for_each_peer, for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::chain::Chain;
use crate::support::netns::{Lab, Namespace, OUTSIDE, UPLINK, is_root};
use crate::support::snapshot::Watch;
use crate::support::traffic::{
    SctpServer, TcpServer, UdpServer, ask_by_udp, assert_masqueraded, connect, connect_by_sctp,
};

/// Both backends that can be asked for. Without a word ours takes nftables, the reference what it
/// finds.
pub const BACKENDS: [&str; 2] = ["iptables", "nftables"];

/// The host's addresses in the networks below, which their containers see instead of a client's.
const GATEWAY: [&str; 2] = ["10.10.0.1", "2001:db8:10::1"];

/// A network with both families whose containers reach everything through the host, themselves
/// included.
pub fn network() -> Value {
    with(&bridge::dual_stack(), json!({"isDefaultGateway": true, "hairpinMode": true}))
}

/// Another one, on a bridge of its own.
pub fn other_network() -> Value {
    let ranges = json!([[{"subnet": "10.20.0.0/24"}], [{"subnet": "2001:db8:20::/64"}]]);
    with(&network(), json!({"name": "net2", "bridge": "br2", "ipam": {"ranges": ranges}}))
}

/// The same addresses, each container behind a link of its own.
fn point_to_point() -> Value {
    with(
        &bridge::dual_stack(),
        json!({"type": "ptp", "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
    )
}

/// Without a backend where none is asked for.
pub fn portmap(backend: Option<&str>, mappings: Value) -> Value {
    json!({"type": "portmap", "backend": backend, "runtimeConfig": {"portMappings": mappings}})
}

/// One mapping: the host's port 8080 to the container's 80, of TCP.
pub fn web() -> Value {
    json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
}

/// A new container on `network()` whose ports are published.
#[track_caller]
pub fn publish<'a>(lab: &'a Lab, backend: Option<&str>, mappings: Value) -> Chain<'a> {
    let chain = lab.chain(&network(), &portmap(backend, mappings));
    chain.add();
    chain
}

/// ADD and DEL of a container that is not looked at: what stays by contract (the reference's chains
/// and tables) is there afterwards.
pub fn warm_up(lab: &Lab, main: &Value, chained: &Value) {
    let chain = lab.chain(main, chained);
    chain.add();
    chain.del_all();
}

/// A case for each peer and each backend, in a lab of its own.
pub fn for_each_backend(case: impl Fn(&Lab, Option<&str>)) {
    for backend in BACKENDS {
        for_each_peer("portmap", |lab| with_backend(lab, backend, &case));
    }
}

/// A case that only ours is expected to pass, with each backend.
pub fn for_ours_with_each_backend(case: impl Fn(&Lab, Option<&str>)) {
    for backend in BACKENDS {
        for_ours("portmap", |lab| with_backend(lab, backend, &case));
    }
}

fn with_backend(lab: &Lab, backend: &str, case: &impl Fn(&Lab, Option<&str>)) {
    eprintln!("with {backend}:"); // shown when the case fails
    case(lab, Some(backend));
}

/// The host as `address:port`.
pub fn at(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// Whether the host's port leads to the server from the outside, v4 and v6.
pub fn is_open(lab: &Lab, port: u16) -> [bool; 2] {
    UPLINK.map(|address| connect(&lab.outside, &at(address, port)).is_some())
}

/// Switches off that a bridge's own packets go through the rules, where the kernel can do that at
/// all: then an answer between two ports of one bridge is not seen by the host.
pub fn without_bridge_netfilter(lab: &Lab) {
    lab.host
        .sh("for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done");
}

/// What a server behind port 8080 sees, a line a client: its own address, the gateway's, or
/// nothing. First over IPv4, then over IPv6.
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

/// With `snat`: those who could not get an answer otherwise are hidden. There is no way from ::1 to
/// another machine.
const SNAT: [&str; 7] = [
    "outside: own, own",
    "host: own, own",
    "localhost: gateway, nothing",
    "itself: gateway, gateway",
    "itself by the gateway: gateway, gateway",
    "neighbour: gateway, gateway",
    "stranger: own, own",
];

/// `SNAT` as the reference's nftables backend has it, which forgets the neighbours.
/// tests/differences shows what comes of it.
fn snat_of(peer: &Peer, backend: Option<&str>) -> [&'static str; 7] {
    let forgets = *peer != Peer::Ours && backend == Some("nftables");
    SNAT.map(
        |line| if forgets && line.starts_with("neighbour") { "neighbour: own, own" } else { line },
    )
}

#[test]
fn a_published_port_is_reached_from_everywhere_and_del_leaves_nothing() {
    for_each_backend(|lab, backend| {
        for main in [network(), point_to_point()] {
            let chained = portmap(backend, json!([web()]));
            warm_up(lab, &main, &chained);
            warm_up(lab, &other_network(), &chained);
            let before = Watch::start(lab, &[]);
            let chain = lab.chain(&main, &chained);
            chain.add();
            assert_eq!(
                sources(lab, &chain),
                snat_of(&lab.peer, backend),
                "{} {backend:?}",
                main["type"]
            );
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

/// Most hosts: the kernel's bridge goes its own way, and an answer from port to port would not find
/// back.
#[test]
fn neighbours_and_the_container_itself_get_answers_that_the_host_does_not_see() {
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
fn without_a_backend_a_published_port_is_reached_from_everywhere() {
    for_each_peer("portmap", |lab| {
        let chain = publish(lab, None, json!([web()]));
        assert_eq!(sources(lab, &chain), SNAT);
        chain.check(&chain.result).ok();
        chain.del();
    });
}

/// Nobody is hidden, so those who need it get no answer. The neighbour's gets back where a bridge's
/// packets go through the rules, or on ptp.
#[test]
fn without_snat_every_source_is_the_client_s_own() {
    for_each_backend(|lab, backend| {
        let chain = lab.chain(
            &point_to_point(),
            &with(&portmap(backend, json!([web()])), json!({"snat": false})),
        );
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

/// masqAll is a word for iptables only, says the reference, and its nftables backend does nothing
/// about it.
#[test]
fn masq_all_hides_everybody() {
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
        for backend in [None, Some("iptables")] {
            let chain = lab.chain(
                &network(),
                &with(&portmap(backend, json!([web()])), json!({"masqAll": true})),
            );
            chain.add();
            assert_eq!(sources(lab, &chain), expected, "{backend:?}");
            chain.check(&chain.result).ok();
            chain.del();
        }
    });
    for_ours("portmap", |lab| {
        let chained = with(&portmap(Some("nftables"), json!([web()])), json!({"masqAll": true}));
        let chain = lab.chain(&network(), &chained);
        chain.add();
        assert_eq!(sources(lab, &chain), expected, "with nftables");
        chain.check(&chain.result).ok();
    });
}

/// What masquerades containers must not touch the sources of who comes to them, nor lose what they
/// send.
#[test]
fn published_ports_and_ip_masq_keep_out_of_each_other_s_way() {
    for_each_backend(|lab, backend| {
        for masq in BACKENDS {
            if masq == "nftables" && lab.peer != Peer::Ours {
                if backend == Some("iptables") {
                    continue;
                }
                lab.hide_iptables(); // see there
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

/// Asks by a protocol at port 8080 of each address of the host, from the outside and from the host
/// itself.
fn assert_each_sees_its_own(lab: &Lab, ask: impl Fn(&Namespace, &str) -> Option<String>) {
    for (family, address) in UPLINK.iter().enumerate() {
        let to = at(address, 8080);
        assert_eq!(ask(&lab.outside, &to).as_deref(), Some(OUTSIDE[family]), "outside to {to}");
        assert_eq!(ask(&lab.host, &to).as_deref(), Some(*address), "host to {to}");
    }
}

/// Publishes port 8080 of a protocol; TCP, which has a server at the port too, stays closed.
fn publish_only<'a>(lab: &'a Lab, backend: Option<&str>, protocol: &str) -> Chain<'a> {
    let chain = publish(lab, backend, json!([with(&web(), json!({"protocol": protocol}))]));
    chain.check(&chain.result).ok();
    let _tcp = TcpServer::start(&chain.container, 80);
    assert_eq!(is_open(lab, 8080), [false, false], "{protocol} is not TCP");
    chain
}

#[test]
fn a_port_of_udp_is_of_udp_only() {
    for_each_backend(|lab, backend| {
        let chain = publish_only(lab, backend, "udp");
        let _server = UdpServer::start(&chain.container, 80);
        assert_each_sees_its_own(lab, ask_by_udp);
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

/// To everybody who asks: localhost, the container itself and its neighbour.
#[test]
fn a_port_of_udp_is_reached_by_all_who_reach_one_of_tcp() {
    for_each_backend(|lab, backend| {
        let chain = publish_only(lab, backend, "udp");
        let _server = UdpServer::start(&chain.container, 80);
        let neighbour = lab.container();
        lab.attach(&neighbour, &network()).add();
        assert_eq!(ask_by_udp(&lab.host, "127.0.0.1:8080").as_deref(), Some(GATEWAY[0]));
        for family in [0, 1] {
            let to = at(UPLINK[family], 8080);
            assert_eq!(
                ask_by_udp(&chain.container, &to).as_deref(),
                Some(GATEWAY[family]),
                "itself to {to}"
            );
            assert!(ask_by_udp(&neighbour, &to).is_some(), "neighbour to {to}");
        }
    });
}

/// More ports than one rule of iptables can have, each to its own port of the container.
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

/// Go's JSON reader takes keys in any case, and containerd sends them like this.
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

/// Only the family of the container's addresses is published, and nothing is made for the other
/// one.
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

/// Neither of iptables nor of nft, though both are there to be started. The first line is the
/// plugin itself.
#[test]
fn no_program_is_started() {
    for_ours("portmap", |lab| {
        if !lab.host.try_sh("strace -f -qq -e trace=execve true").status.success() {
            return skip("strace");
        }
        let chain = lab.chain(&network(), &portmap(None, json!([web()])));
        for command in ["ADD", "CHECK", "DEL"] {
            let mut call = chain.call(command, Some(&chain.result));
            let strace = "strace -f -qq -e trace=execve -o /run/started";
            call.wrapper.extend(strace.split(' ').map(str::to_owned));
            call.run().ok();
            let started = lab.host.sh("cat /run/started");
            assert_eq!(started.lines().count(), 1, "{command}: {started}");
        }
        lab.host.sh("rm /run/started");
    });
}

/// All at once want one port: one has it.
#[test]
fn of_eight_who_want_one_port_at_once_one_gets_it() {
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

/// More than the kernel takes from a socket that nobody has made room in.
#[test]
fn two_thousand_ports_are_published_and_closed_again() {
    for_ours("portmap", |lab| {
        let mapping =
            |n: u32| json!({"hostPort": 8000 + n, "containerPort": 9000 + n, "protocol": "tcp"});
        let mappings: Value = (0..2000).map(mapping).collect();
        warm_up(lab, &network(), &portmap(None, json!([web()])));
        let before = Watch::start(lab, &[]);
        let chain = lab.chain(&network(), &portmap(None, mappings));
        let outcome = chain.try_add();
        if !is_root() && outcome.status != 0 && outcome.err().msg.contains("message too long") {
            chain.main.del();
            return skip("root: net.core.wmem_max is the limit of an ordinary user");
        }
        outcome.ok();
        for n in [0, 1999] {
            let server = TcpServer::start(&chain.container, 9000 + n);
            assert_eq!(is_open(lab, 8000 + n), [true, true], "port {n}");
            drop(server);
        }
        chain.check(&chain.result).ok();
        chain.del_all();
        before.assert_unchanged("2000 ports");
    });
}

/// As many containers as tests/parallel.rs has, each with a port, all at once.
#[test]
fn forty_adds_and_dels_at_once_do_not_disturb_each_other() {
    for_each_backend(|lab, backend| {
        // The programs that the reference starts would take minutes.
        let many = if lab.peer == Peer::Ours && backend == Some("nftables") { 40 } else { 8 };
        // Of the iptables backend no more is warmed up than the bridge: what containers share is
        // made by all at once.
        let warm = if backend == Some("iptables") && lab.peer == Peer::Ours {
            json!([])
        } else {
            json!([web()])
        };
        warm_up(lab, &network(), &portmap(backend, warm));
        let before = Watch::start(lab, &[]);
        let chains: Vec<_> = (0..many)
            .map(|n| {
                let port = json!([{"hostPort": 8000 + n, "containerPort": 80, "protocol": "tcp"}]);
                lab.chain(&network(), &portmap(backend, port))
            })
            .collect();
        let chained: Vec<_> = chains.iter().map(|chain| (**chain).clone()).collect();
        crate::parallel::all_at_once(&chained, "ADD").iter().for_each(|outcome| drop(outcome.ok()));
        for (n, chain) in (0..).zip(&chains) {
            chain.check(&chain.result).ok();
            let _server = TcpServer::start(&chain.container, 80);
            assert_eq!(is_open(lab, 8000 + n), [true, true], "{backend:?}: container {n}");
        }
        crate::parallel::all_at_once(&chained, "DEL")
            .iter()
            .for_each(|outcome| assert_eq!(outcome.ok(), Value::Null));
        chains.iter().for_each(|chain| chain.main.del());
        if backend == Some("nftables") || lab.peer != Peer::Ours {
            before.assert_unchanged(&format!("{many} ADDs"));
        } else {
            let jumps = lab.host.sh("iptables-save -t nat");
            assert_eq!(
                jumps.matches("-j CNI-HOSTPORT-DNAT").count(),
                2,
                "what is shared is made once: {jumps}"
            );
        }
    });
}

fn ports(count: u64) -> Value {
    (0..count)
        .map(|n| json!({"hostPort": 1000 + n, "containerPort": 1000 + n, "protocol": "tcp"}))
        .collect()
}

/// Who publishes a whole range has one attachment with all its ports. The time is that of the
/// kernel and of a debug build.
#[test]
fn issue_17_container_with_60000_ports_is_added_checked_and_deleted() {
    for_ours("portmap", |lab| {
        let chain = lab.chain(&network(), &portmap(None, ports(60_000)));
        let cpu = |command: &str| {
            let conf = chain.call(command, Some(&chain.result));
            // Not the time that others have the processor.
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
        let seconds: Vec<f64> =
            ["ADD", "CHECK", "DEL"].iter().map(|command| cpu(command)).collect();
        // A lookup for each port and a comparison with each other took 30 s and more.
        assert!(seconds.iter().all(|seconds| *seconds < 15.0), "{seconds:?}");
        assert!(!lab.host.sh("nft list tables").contains("cni_multi_portmap"));
    });
}

#[test]
fn issue_17_iptables_refuses_more_ports_than_it_takes() {
    for_ours("portmap", |lab| {
        let chain = lab.chain(&network(), &portmap(Some("iptables"), ports(4001)));
        let before = Watch::start(lab, &[&chain.container]);
        let error = chain.try_add().err();
        assert_eq!(error.code, 7, "{error:?}");
        assert!(
            error.text().contains("at most 4000") && error.text().contains("nftables"),
            "{error:?}"
        );
        before.assert_unchanged("the refused ADD");
    });
}
