//! Networks of real plugins in one directory: ours mixed with the reference's, or ours alone.

use serde_json::{Value, json};

use crate::support::attachment::{ips, not_compared, reference_with};
use crate::support::call::{Call, Outcome, Peer, binary};
use crate::support::netns::{Container, Lab, OUTSIDE};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, assert_masqueraded, assert_pings, connect};

const PLUGINS: [&str; 5] = ["bridge", "host-local", "portmap", "firewall", "tuning"];

const CAPABILITY_ARGS: &str =
    r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;

/// The published port as the outside reaches it, on the addresses of netns::UPLINK.
const PUBLISHED: [&str; 2] = ["198.51.100.1:8080", "[2001:db8:ffff::1]:8080"];

fn network(version: &str) -> Value {
    json!({"cniVersion": version, "name": "mixed", "plugins": [
        {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]],
        }},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}},
    ]})
}

/// The host of a lab, with one directory of plugins.
struct Host {
    lab: Lab,
}

impl Host {
    /// `ours` names the plugins that are ours; the others are the peer's.
    fn new(others: &Peer, ours: &[&str], version: &str) -> Host {
        let lab = Lab::new(others.clone());
        lab.host.sh("mkdir /run/bin /run/net.d");
        for plugin in PLUGINS {
            let program = if ours.contains(&plugin) { binary() } else { others.dir().join(plugin) };
            lab.host.sh(&format!("ln -s {} /run/bin/{plugin}", program.display()));
        }
        std::fs::write(lab.path("/run/net.d/mixed.conflist"), network(version).to_string())
            .unwrap();
        Host { lab }
    }

    fn net(&self, command: &str, container: &Container) -> Outcome {
        self.run(&["net", command, "mixed", &container.netns, "--capability-args", CAPABILITY_ARGS])
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let env = [("NETCONFPATH", "/run/net.d"), ("CNI_PATH", "/run/bin")];
        Call {
            program: binary(),
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            env: env.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            stdin: vec![],
            wrapper: self.lab.host.enter.clone(),
        }
        .run()
    }

    /// Watches the host from now on. An ADD and DEL go first, so that the snapshot has what plugins
    /// may leave, such as a bridge.
    fn watch(&self) -> Watch<'_> {
        let warm = self.lab.container();
        self.net("add", &warm).ok();
        self.assert_silent("del", &warm);
        Watch::start(&self.lab, &[])
    }

    /// The container reaches the outside, and the outside reaches the published port, in both
    /// families.
    #[track_caller]
    fn assert_published(&self, container: &Container) {
        let _server = TcpServer::start(container, 80);
        for (at, outside) in PUBLISHED.iter().zip(OUTSIDE) {
            assert_pings(container, outside);
            assert_eq!(connect(&self.lab.outside, at).as_deref(), Some(outside));
            assert!(connect(&self.lab.host, at).is_some(), "{at}");
        }
    }

    #[track_caller]
    fn assert_silent(&self, command: &str, container: &Container) {
        let outcome = self.net(command, container);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{command}: {outcome:?}");
    }
}

fn somaxconn(container: &Container) -> String {
    container.sh("cat /proc/sys/net/core/somaxconn").trim().to_owned()
}

/// ADD, traffic, CHECK and DEL of a network with these plugins of ours.
fn works(ours: &[&str], version: &str) {
    let Some(reference) = reference_with("bridge") else {
        return not_compared("specification 1.1.0");
    };
    let host = Host::new(&reference, ours, version);
    let (lab, before) = (&host.lab, host.watch());

    let container = lab.container();
    let untouched = somaxconn(&container);
    let result = host.net("add", &container).ok();
    assert_eq!(result["cniVersion"], version);
    let addresses = ips(&result);
    assert_eq!(addresses.len(), 2, "{result}");
    for own in &addresses {
        assert_masqueraded(lab, &container, own);
    }
    host.assert_published(&container);
    assert_ne!(untouched, "517");
    assert_eq!(somaxconn(&container), "517");
    host.assert_silent("check", &container);

    host.assert_silent("del", &container);
    assert!(connect(&lab.outside, PUBLISHED[0]).is_none());
    assert_eq!(container.link("eth0"), None);
    drop(container);
    before.assert_unchanged("a mixed chain");
    host.assert_silent("del", &lab.container());
}

#[test]
fn the_reference_makes_the_bridge_and_we_publish() {
    works(&["portmap", "tuning"], "1.0.0");
}

#[test]
fn our_bridge_takes_addresses_of_the_reference_s_host_local() {
    works(&["bridge", "firewall"], "1.1.0");
}

#[test]
fn bridge_of_the_reference_takes_addresses_of_our_host_local() {
    works(&["host-local", "firewall", "tuning"], "0.4.0");
}

/// The plugins are upgraded while a container runs. `upgrade.rs` tests each plugin alone, and the
/// rollback.
#[test]
fn our_chain_checks_and_deletes_what_the_reference_s_made() {
    let Some(reference) = reference_with("bridge") else {
        return not_compared("specification 1.1.0");
    };
    let host = Host::new(&reference, &[], "1.0.0");
    let (lab, before) = (&host.lab, host.watch());
    let container = lab.container();
    host.net("add", &container).ok();
    for plugin in PLUGINS {
        lab.host.sh(&format!("ln -sf {} /run/bin/{plugin}", binary().display()));
    }
    host.assert_silent("check", &container);
    host.assert_silent("del", &container);
    assert_eq!(container.link("eth0"), None);
    drop(container);
    // The reference leaves empty chains behind; they may go with their last user.
    let changes = before.changes();
    assert!(
        changes.lines().all(|line| line.is_empty() || line.starts_with("- nft: ")),
        "something is left:\n{changes}"
    );
}

/// GC with the plugins of this binary removes what has no live owner from the kernel, the leases
/// and the cache, with or without a record.
#[test]
fn gc_leaves_what_living_attachments_own_and_nothing_else() {
    let host = Host::new(&Peer::Ours, &PLUGINS, "1.1.0");
    let (lab, before) = (&host.lab, host.watch());

    let live = lab.container();
    let addresses = ips(&host.net("add", &live).ok());
    let [recorded, lost, old] = [(); 3].map(|()| lab.container());
    for container in [&recorded, &lost, &old] {
        host.run(&["net", "add", "mixed", &container.netns]).ok();
    }
    let file = |container: &Container| {
        lab.path(
            lab.host.sh(&format!("grep -l {}\\\" /var/lib/cni/results/*", container.netns)).trim(),
        )
    };
    let text = std::fs::read_to_string(file(&old)).unwrap();
    let result = serde_json::from_str::<Value>(&text).unwrap()["result"].to_string();
    std::fs::write(file(&old), result).unwrap(); // the format of libcni 0.7
    std::fs::remove_file(file(&lost)).unwrap();
    for container in [&recorded, &lost, &old] {
        container.vanish();
    }

    let outcome = host.run(&["net", "gc", "mixed", "--unrecorded"]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    assert_eq!(lab.host.sh("ls /var/lib/cni/results").lines().count(), 1);
    let leases = lab.host.sh("ls /var/lib/cni/networks/mixed");
    let leases: Vec<&str> =
        leases.lines().filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect();
    assert_eq!(leases, addresses);
    host.assert_silent("check", &live);
    host.assert_published(&live);
    host.assert_silent("del", &live);
    drop(live);
    before.assert_unchanged("GC, and DEL of who lived");
}
