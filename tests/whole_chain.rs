//! bridge, portmap, firewall, tuning and bandwidth chained, as container engines configure them.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, skip, with};
use crate::support::call::{Call, Outcome, Peer, binary};
use crate::support::flow::assert_rate;
use crate::support::netns::{Container, Lab, Namespace, OUTSIDE, UPLINK};
use crate::support::networks::bandwidth::{RATE, bandwidth, can_limit};
use crate::support::networks::firewall::{DROPPING, firewall};
use crate::support::networks::flannel;
use crate::support::networks::portmap::{
    at, network, other_network, portmap, web, without_bridge_netfilter,
};
use crate::support::networks::tuning::{sysctl, tuning};
use crate::support::snapshot::Watch;
use crate::support::traffic::{
    TcpServer, assert_masqueraded, assert_no_ping, assert_pings, connect,
};

/// A container, and the plugins of its chain in order.
struct Chain<'a> {
    container: &'a Container,
    plugins: Vec<Attachment<'a>>,
}

impl<'a> Chain<'a> {
    fn new(lab: &'a Lab, container: &'a Container, confs: &[Value]) -> Chain<'a> {
        let of_network = json!({"name": confs[0]["name"], "cniVersion": "1.1.0"});
        let plugins = confs
            .iter()
            .map(|conf| lab.attach(container, &with(conf, of_network.clone())))
            .collect();
        Chain { container, plugins }
    }

    /// Runs ADD of all plugins; `run` makes each call.
    fn add(&self, run: impl Fn(Call) -> Outcome) -> Value {
        let previous = |result: &Value| (!result.is_null()).then(|| result.clone());
        let add = |result: Value, plugin: &Attachment<'_>| {
            run(plugin.call("ADD", previous(&result).as_ref())).ok()
        };
        self.plugins.iter().fold(Value::Null, add)
    }

    fn check(&self, result: &Value, run: impl Fn(Call) -> Outcome) {
        self.plugins.iter().for_each(|plugin| {
            assert_eq!(run(plugin.call("CHECK", Some(result))).ok(), Value::Null)
        });
    }

    fn del(&self, result: &Value, run: impl Fn(Call) -> Outcome) {
        let del = |plugin: &Attachment<'_>| run(plugin.call("DEL", Some(result))).ok();
        self.plugins.iter().rev().for_each(|plugin| assert_eq!(del(plugin), Value::Null));
    }
}

fn confs(portmap_by: Option<&str>, firewall_by: Option<&str>) -> [Value; 3] {
    let main = with(&network(), json!({"ipMasq": true, "ipMasqBackend": portmap_by}));
    [main, portmap(portmap_by, json!([web()])), firewall(firewall_by)]
}

/// The configurations of all five plugins.
fn whole() -> Vec<Value> {
    let burst = RATE / 10;
    let rates = json!({"ingressRate": RATE, "ingressBurst": burst, "egressRate": RATE, "egressBurst": burst});
    let tuned =
        json!({"sysctl": {"net.core.somaxconn": "517"}, "mtu": 1400, "mac": "02:00:00:00:00:17"});
    let mut confs = confs(None, None).to_vec();
    confs.extend([tuning(tuned), bandwidth(rates)]);
    confs
}

/// Runs a call in a root directory with only the binary and /proc, as containers have it. Each call
/// has to be a single process.
fn in_an_empty_root(lab: &Lab, mut call: Call) -> Outcome {
    call.wrapper.extend(
        "strace -f -qq -e trace=execve -o /run/started chroot /mnt".split(' ').map(str::to_owned),
    );
    call.args = vec![call.program.file_name().unwrap().to_str().unwrap().to_owned()];
    call.program = "/cni-multi".into();
    let outcome = call.env("CNI_PATH", "/").run();
    let started = lab.host.sh("cat /run/started; rm /run/started");
    assert_eq!(started.lines().count(), 2, "chroot and the plugin, and nothing else: {started}");
    outcome
}

#[test]
fn chain_runs_in_an_empty_root_with_one_process_per_plugin() {
    let linked = Command::new("ldd").arg(binary()).output().unwrap();
    if String::from_utf8_lossy(&linked.stdout).contains("=>") {
        return skip("a static binary in CNI_MULTI");
    }
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        lab.host.sh(&format!(
            "mount -t tmpfs lab /mnt && mkdir /mnt/proc && mount --rbind /proc /mnt/proc && cp {} /mnt/cni-multi",
            binary().display()
        ));
        let run = |call: Call| in_an_empty_root(lab, call);
        let container = lab.container_of_process();
        let chain = Chain::new(
            lab,
            &container,
            &if can_limit(lab) { whole() } else { confs(None, None).to_vec() },
        );
        chain.del(&chain.add(run), run);
        let before = Watch::start(lab, &[&container]);
        let result = chain.add(run);
        let _server = TcpServer::start(&container, 80);
        for own in UPLINK {
            assert_eq!(connect(&lab.host, &at(own, 8080)).as_deref(), Some(own));
            assert!(
                connect(&container, &at(own, 8080)).is_some(),
                "the container reaches itself by {own}"
            );
        }
        chain.check(&result, run);
        chain.del(&result, run);
        before.assert_unchanged("a chain in an empty root");
        let left = lab.host.sh("ls /mnt");
        assert_eq!(
            left, "cni-multi\nproc\nrun\nvar\n",
            "leases and backups are all that there is besides"
        );
    });
}

/// Runs `net` under strace; returns its outcome, and a function that counts the traced calls with a
/// given text.
fn net_traced(lab: &Lab, line: &str) -> (Outcome, impl Fn(&str) -> usize + use<>) {
    let wrapper =
        "strace -f -qq -e trace=execve,socket,sendto -o /run/trace".split(' ').map(str::to_owned);
    let call = Call {
        program: binary(),
        args: format!(
            "net {line} --conf-dir /run/net.d --plugin-path {}",
            lab.peer.dir().display()
        )
        .split(' ')
        .map(str::to_owned)
        .collect(),
        env: std::collections::BTreeMap::new(),
        stdin: vec![],
        wrapper: lab.host.enter.iter().cloned().chain(wrapper).collect(),
    };
    let outcome = call.run();
    let trace = lab.host.sh("cat /run/trace; rm /run/trace");
    (outcome, move |what: &str| trace.lines().filter(|line| line.contains(what)).count())
}

/// Configures the network `five`: bridge, portmap, firewall, tuning and bandwidth; without the
/// last two if the kernel cannot limit.
fn network_of_five(lab: &Lab) {
    let plugins = if can_limit(lab) { whole() } else { confs(None, None).to_vec() };
    let network = json!({"cniVersion": "1.1.0", "name": "five", "plugins": plugins});
    lab.host
        .sh(&format!("mkdir /run/net.d; cat >/run/net.d/five.conflist <<'END'\n{network}\nEND"));
}

#[test]
fn five_plugins_are_one_process_with_one_socket_per_namespace() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        network_of_five(lab);
        let container = lab.container();
        net_traced(lab, &format!("add five {}", container.netns)).0.ok();
        net_traced(lab, &format!("del five {}", container.netns)).0.ok();
        let before = Watch::start(lab, &[&container]);
        for verb in ["add", "check", "del"] {
            let (outcome, calls) = net_traced(lab, &format!("{verb} five {}", container.netns));
            outcome.ok();
            assert_eq!(calls("execve("), 1, "{verb}: the tool itself");
            assert_eq!(calls("NETLINK_ROUTE"), 2, "{verb}: the host's and the container's");
            let deletions = usize::from(verb == "del");
            assert_eq!(calls("RTM_DELLINK"), deletions, "{verb}: pair and ifb go in one request");
        }
        before.assert_unchanged("a network of five");
    });
}

/// bandwidth postpones the deletion of its ifb to that of the bridge's pair.
#[test]
fn the_ifb_goes_although_the_pair_is_gone_or_the_bridge_fails() {
    for_ours("bandwidth", |lab| {
        if !can_limit(lab) {
            return;
        }
        network_of_five(lab);
        let add = |container: &Container| {
            net_traced(lab, &format!("add five {}", container.netns)).0.ok();
        };
        let del =
            |container: &Container| net_traced(lab, &format!("del five {}", container.netns)).0;
        let first = lab.container();
        add(&first);
        del(&first).ok();
        let before = Watch::start(lab, &[]);
        let vanished = lab.container();
        add(&vanished);
        vanished.vanish();
        del(&vanished).ok();
        before.assert_unchanged("DEL of a container that is gone");
        let failing = lab.container();
        add(&failing);
        let lease = lab.host.sh("ls -d /var/lib/cni/networks/five/10.*");
        let lease = lease.trim();
        lab.host.sh(&format!("mount --bind {lease} {lease}")); // it cannot be removed
        let failed = del(&failing);
        assert!(failed.status != 0 && failed.stderr.contains("bridge"), "{failed:?}");
        assert_eq!(
            lab.host.sh(
                "ip -br link show type ifb; ip -br link show type veth | grep -v uplink || true"
            ),
            ""
        );
        lab.host.sh(&format!("umount {lease}"));
        del(&failing).ok();
        before.assert_unchanged("DEL after one that failed");
    });
}

#[test]
fn the_list_of_k3s_is_one_process() {
    for_ours("flannel", |lab| {
        if !can_limit(lab) {
            return;
        }
        flannel::node(lab);
        let network = flannel::list_of_k3s();
        lab.host.sh(&format!(
            "mkdir /run/net.d; cat >/run/net.d/cbr0.conflist <<'END'\n{network}\nEND"
        ));
        let container = lab.container();
        let options = "-p 8080:80 --bandwidth ingress=20M,egress=20M";
        let line = |verb: &str| format!("{verb} cbr0 {} {options}", container.netns);
        for verb in ["add", "del"] {
            net_traced(lab, &line(verb)).0.ok();
        }
        let before = Watch::start(lab, &[&container]);
        for verb in ["add", "check", "del"] {
            let (outcome, calls) = net_traced(lab, &line(verb));
            outcome.ok();
            assert_eq!(calls("execve("), 1, "{verb}: the tool itself");
        }
        before.assert_unchanged("k3s's list");
    });
}

/// A host that drops forwarded packets, with forwarding already on, because it stays on by
/// contract.
fn for_each_strict_peer(case: impl Fn(&Lab)) {
    for_each_peer("bandwidth", |lab| {
        if can_limit(lab) {
            lab.host.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
            lab.host.sh(DROPPING);
            case(lab);
        }
    });
}

/// As `for_each_strict_peer`, for cases about leftovers; those of the reference are in
/// tests/differences.
fn for_strict_ours(case: impl Fn(&Lab)) {
    for_each_strict_peer(|lab| {
        if lab.peer == Peer::Ours {
            case(lab);
        }
    });
}

fn bare<'a>(plugin: &Attachment<'a>) -> Attachment<'a> {
    plugin.clone().conf(json!({"runtimeConfig": null}))
}

#[test]
fn each_plugin_does_its_part_and_del_leaves_nothing() {
    for_each_strict_peer(|lab| {
        let before = Watch::start(lab, &[]);
        let container = lab.container();
        let chain = Chain::new(lab, &container, &whole());
        let result = chain.add(|call| call.run());
        let ips = ips(&result);
        let _server = TcpServer::start(&container, 80);
        assert!(connect(&lab.host, &at(UPLINK[0], 8080)).is_some());
        ips.iter().for_each(|ip| assert_masqueraded(lab, &container, ip));
        ips.iter().for_each(|ip| assert_no_ping(&lab.outside, ip));
        let link = container.link("eth0").unwrap();
        assert_eq!((&link["mtu"], &link["address"]), (&json!(1400), &json!("02:00:00:00:00:17")));
        assert_eq!(sysctl(&container, "core/somaxconn"), "517");
        assert_rate(&lab.host, &container, &ips[0], RATE);
        assert_rate(&container, &lab.outside, OUTSIDE[0], RATE);
        if lab.peer == Peer::Ours {
            chain.check(&result, |call| call.run());
        }
        chain.del(&result, |call| call.run());
        if lab.peer == Peer::Ours {
            assert_ne!(sysctl(&container, "core/somaxconn"), "517");
            lab.host.sh("ip link del br0"); // it stays by contract
            before.assert_unchanged("the whole chain");
        }
    });
}

/// As after a reboot: no namespace, no results, and none of the values that the runtime passed at
/// ADD.
#[test]
fn del_and_gc_of_each_plugin_need_nothing_but_the_keys() {
    for_strict_ours(|lab| {
        let before = Watch::start(lab, &[]);
        let [kept, gone, collected] = [(); 3].map(|()| lab.container());
        // A port can be published only once.
        let mut without_ports = whole();
        without_ports[1]["runtimeConfig"] = Value::Null;
        let [kept, gone, collected] =
            [(&kept, &without_ports), (&gone, &whole()), (&collected, &without_ports)]
                .map(|(container, confs)| Chain::new(lab, container, confs));
        let result = kept.add(|call| call.run());
        for chain in [&gone, &collected] {
            chain.add(|call| call.run());
            chain.container.vanish();
        }
        gone.plugins.iter().rev().for_each(|plugin| bare(plugin).netns(None).del());
        let valid = [(kept.plugins[0].container_id.as_str(), "eth0")];
        collected
            .plugins
            .iter()
            .for_each(|plugin| assert_eq!(bare(plugin).gc(&valid).ok(), Value::Null));
        kept.check(&result, |call| call.run());
        OUTSIDE.iter().for_each(|outside| assert_pings(kept.container, outside));
        kept.del(&result, |call| call.run());
        lab.host.sh("ip link del br0");
        before.assert_unchanged("DEL and GC");
    });
}

/// After a failed ADD the runtime calls DEL of the whole chain, including plugins that never ran.
#[test]
fn del_undoes_a_chain_wherever_it_failed() {
    let mistakes = [
        json!({"mtu": 100_000}),
        json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080}]}}),
        json!({"backend": "none such"}),
        json!({"mtu": 70_000}),
        json!({"egressBurst": 0}),
    ];
    for_strict_ours(|lab| {
        let before = Watch::start(lab, &[]);
        for (failing, mistake) in mistakes.iter().enumerate() {
            let container = lab.container();
            let mut chain = Chain::new(lab, &container, &whole());
            let never_run = chain.plugins.split_off(failing);
            let result = chain.add(|call| call.run());
            let wrong = never_run[0].clone().conf(mistake.clone());
            wrong.conf(json!({"prevResult": result})).try_add().err();
            never_run.iter().rev().for_each(Attachment::del);
            chain.plugins.iter().rev().for_each(Attachment::del);
            lab.host.try_sh("ip link del br0");
            before.assert_unchanged(&format!("plugin {failing} failed"));
        }
    });
}

/// One line per source: whether it reaches a published container, and with which source address, by
/// the host's port and directly; IPv4, then IPv6. The lab's containers have no loopback, so none
/// reaches itself directly. The firewall plugin does not know neighbour and stranger.
fn matrix(lab: &Lab, chain: &Chain<'_>, addresses: &[String]) -> Vec<String> {
    let (neighbour, stranger) = (lab.container(), lab.container());
    let near = lab.attach(&neighbour, &chain.plugins[0].conf);
    let far = lab.attach(&stranger, &with(&other_network(), json!({"cniVersion": "1.0.0"})));
    let sources: [(&str, &Namespace, Vec<String>); 5] = [
        ("outside", &lab.outside, OUTSIDE.map(str::to_owned).to_vec()),
        ("host", &lab.host, UPLINK.map(str::to_owned).to_vec()),
        ("itself", chain.container, addresses.to_vec()),
        ("neighbour", &neighbour, ips(&near.add())),
        ("stranger", &stranger, ips(&far.add())),
    ];
    let gateway = ["10.10.0.1", "2001:db8:10::1"];
    let server = TcpServer::start(chain.container, 80);
    let seen = |from: &Namespace, to: &str, own: &str, family: usize| match connect(from, to) {
        None => "-",
        Some(source) if source == own => "own",
        Some(source) if source == gateway[family] => "gateway",
        Some(_) => "another",
    };
    let line = |(who, from, own): &(&str, &Namespace, Vec<String>)| {
        let published =
            [0, 1].map(|family| seen(from, &at(UPLINK[family], 8080), &own[family], family));
        let directly =
            [0, 1].map(|family| seen(from, &at(&addresses[family], 80), &own[family], family));
        format!("{who}: published {}, directly {}", published.join(" "), directly.join(" "))
    };
    // In parallel, since each unanswered attempt waits for its timeout.
    let lines = std::thread::scope(|scope| {
        let asking: Vec<_> = sources.iter().map(|source| scope.spawn(|| line(source))).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(server);
    [near, far].iter().for_each(Attachment::del);
    lines
}

/// The backends of portmap (and of bridge's ipMasq), and of firewall.
const BACKENDS: [[Option<&str>; 2]; 3] =
    [[None, None], [Some("iptables"), Some("iptables")], [Some("nftables"), Some("iptables")]];

#[test]
fn reachability_equals_the_reference_with_either_backend() {
    for (host, expected) in [
        (
            "true",
            [
                "outside: published own own, directly own own",
                "host: published own own, directly gateway gateway",
                "itself: published gateway gateway, directly - -",
                "neighbour: published gateway gateway, directly own own",
                "stranger: published own own, directly own own",
            ],
        ),
        (
            DROPPING,
            [
                "outside: published - -, directly - -",
                "host: published own own, directly gateway gateway",
                "itself: published gateway gateway, directly - -",
                "neighbour: published - -, directly own own",
                "stranger: published - -, directly - -",
            ],
        ),
    ] {
        for backends in BACKENDS {
            for_each_peer("firewall", |lab| {
                if lab.peer != Peer::Ours && backends[0] == Some("nftables") {
                    return; // it forgets the neighbours, see tests/differences
                }
                lab.host.sh(host);
                without_bridge_netfilter(lab);
                lab.outside.sh(
                    "ip route add 10.10.0.0/24 via 198.51.100.1; ip route add 2001:db8:10::/64 via 2001:db8:ffff::1",
                );
                let container = lab.container();
                let chain = Chain::new(lab, &container, &confs(backends[0], backends[1]));
                let result = chain.add(|call| call.run());
                assert_eq!(matrix(lab, &chain, &ips(&result)), expected, "{backends:?} on {host}");
                chain.check(&result, |call| call.run());
                chain.del(&result, |call| call.run());
            });
        }
    }
}
