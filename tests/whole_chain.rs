//! bridge, portmap and firewall one after the other, as engines configure them.

use std::process::Command;

use serde_json::{Value, json};

use crate::plugins::meta::firewall::{DROPPING, firewall};
use crate::plugins::meta::portmap::{at, network, other_network, portmap, web, without_bridge_netfilter};
use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, skip, with};
use crate::support::call::{Call, Outcome, Peer, binary};
use crate::support::netns::{Container, Lab, Namespace, OUTSIDE, UPLINK};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, connect};

/// A container that the plugins are called for in turn.
struct Chain<'a> {
    container: &'a Container,
    plugins: Vec<Attachment<'a>>,
}

impl<'a> Chain<'a> {
    fn new(lab: &'a Lab, container: &'a Container, confs: &[Value]) -> Chain<'a> {
        let of_network = json!({"name": confs[0]["name"], "cniVersion": "1.0.0"});
        let plugins = confs.iter().map(|conf| lab.attach(container, &with(conf, of_network.clone()))).collect();
        Chain { container, plugins }
    }

    /// ADD of all; `run` makes each call.
    fn add(&self, run: impl Fn(Call) -> Outcome) -> Value {
        let previous = |result: &Value| (!result.is_null()).then(|| result.clone());
        let add = |result: Value, plugin: &Attachment<'_>| run(plugin.call("ADD", previous(&result).as_ref())).ok();
        self.plugins.iter().fold(Value::Null, add)
    }

    fn check(&self, result: &Value, run: impl Fn(Call) -> Outcome) {
        self.plugins.iter().for_each(|plugin| assert_eq!(run(plugin.call("CHECK", Some(result))).ok(), Value::Null));
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

/// A root directory with the binary, and /proc as every container has it. Each call has to be one process.
fn in_an_empty_root(lab: &Lab, mut call: Call) -> Outcome {
    call.wrapper.extend("strace -f -qq -e trace=execve -o /run/started chroot /mnt".split(' ').map(str::to_owned));
    call.args = vec![call.program.file_name().unwrap().to_str().unwrap().to_owned()];
    call.program = "/cni-multi".into();
    let outcome = call.env("CNI_PATH", "/").run();
    let started = lab.host.sh("cat /run/started; rm /run/started");
    assert_eq!(started.lines().count(), 2, "chroot and the plugin, and nothing else: {started}");
    outcome
}

#[test]
fn the_chain_runs_in_an_empty_root_and_each_plugin_is_one_process() {
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
        let chain = Chain::new(lab, &container, &confs(None, None));
        chain.del(&chain.add(run), run);
        let before = Watch::start(lab, &[&container]);
        let result = chain.add(run);
        let _server = TcpServer::start(&container, 80);
        for own in UPLINK {
            assert_eq!(connect(&lab.host, &at(own, 8080)).as_deref(), Some(own));
            assert!(connect(&container, &at(own, 8080)).is_some(), "the container reaches itself by {own}");
        }
        chain.check(&result, run);
        chain.del(&result, run);
        before.assert_unchanged("a chain in an empty root");
        let left = lab.host.sh("ls /mnt");
        assert_eq!(left, "cni-multi\nproc\nvar\n", "host-local's leases are all that there is besides");
    });
}

/// Who reaches a published container, and with which source: by the host's port and directly; v4, then v6.
/// The lab's containers have no loopback, so none reaches itself directly; neighbour and stranger are not told to the firewall.
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
        let published = [0, 1].map(|family| seen(from, &at(UPLINK[family], 8080), &own[family], family));
        let directly = [0, 1].map(|family| seen(from, &at(&addresses[family], 80), &own[family], family));
        format!("{who}: published {}, directly {}", published.join(" "), directly.join(" "))
    };
    // All at once: not being answered takes its time.
    let lines = std::thread::scope(|scope| {
        let asking: Vec<_> = sources.iter().map(|source| scope.spawn(|| line(source))).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(server);
    [near, far].iter().for_each(Attachment::del);
    lines
}

/// The backends of portmap (and of bridge's ipMasq) and of firewall.
const BACKENDS: [[Option<&str>; 2]; 3] =
    [[None, None], [Some("iptables"), Some("iptables")], [Some("nftables"), Some("iptables")]];

#[test]
fn the_same_reach_the_same_as_with_the_reference_whatever_the_backend() {
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
                    return; // it forgets the neighbours, see differences.rs
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
