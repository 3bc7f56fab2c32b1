//! Kills and power losses while the DHCP daemon writes its journal. The journal is in /run; where
//! that is a tmpfs, only a kill preserves it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::disk::Disk;
use super::losses::{Depth, State};
use super::recording::Recording;
use super::{Verdict, depth, require, succeeds, sweep};
use crate::support::attachment::{Attachment, ips, with};
use crate::support::call::{Call, Peer};
use crate::support::dhcp::scripted::{RELEASE, REQUEST, Scripted};
use crate::support::dhcp::{Daemon, JOURNAL, Kind, SOCKET, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::conf;

/// Bind-mounts another boot ID over the kernel's, as after a reboot.
const OTHER_BOOT: &str = "echo 11111111-2222-3333-4444-555555555555 >/run/boot_id && \
    mount --bind /run/boot_id /proc/sys/kernel/random/boot_id";
/// The path of a namespace that was lost in the reboot.
const GONE: &str = "/run/netns/gone";

/// A network with a server.
struct Network {
    lab: Lab,
    server: Scripted,
}

impl Network {
    /// Creates the network and the interfaces of these containers.
    fn new(containers: &[&str]) -> Network {
        let lab = Lab::new(Peer::Ours);
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(&lab, json!({"lease": 3600}));
        for id in containers {
            lab.host.sh(&format!(
                "touch /run/netns/{id} && unshare --net=/run/netns/{id} true && \
                 ip link add link lan name eth0 netns {id} type macvlan"
            ));
        }
        // The daemon would reset the mode.
        DirBuilder::new().mode(0o700).create(lab.path(JOURNAL)).unwrap();
        Network { lab, server }
    }

    /// The dhcp plugin alone; the interface stays.
    fn attach(&self, id: &str) -> Attachment<'_> {
        let conf = with(&conf(), json!({"type": "dhcp", "master": null}));
        let container = format!("/run/netns/{id}");
        let path = if self.lab.path(&container).exists() { &container } else { GONE };
        // Not a container of the lab: its interface would have to be created again for each state.
        self.lab.attach_at(id, path, &conf)
    }

    fn journal(&self) -> PathBuf {
        self.lab.path(JOURNAL)
    }

    fn is_empty(&self, after: &str) -> Verdict {
        let is_kept = |name: &Path| name == Path::new("lock");
        Disk::read(&self.journal()).has_only(&format!(" after {after}"), is_kept)
    }

    fn del(&self, id: &str) -> Verdict {
        succeeds(&format!("DEL of {id}"), &self.attach(id).try_del())
    }
}

/// The writes of a daemon: one lease held to the end, and one acquired, renewed and released.
fn life(network: &Network) -> Recording {
    let call = Call::cni_multi(&network.lab.host.enter, ["dhcp", "daemon"]);
    let server = &network.server;
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| Recording::of(&call, None, JOURNAL, &network.journal()));
        wait_until("the daemon listens", 10, || {
            UnixStream::connect(network.lab.path(SOCKET)).is_ok()
        });
        let daemon = Ended(std::fs::read_to_string(network.journal().join("lock")).unwrap());
        network.attach("a").add();
        server.change(json!({"t1": 2}));
        let address = ips(&network.attach("c").add())[0].clone();
        // Without the address the container would not receive the server's answer.
        network.lab.host.sh(&format!("ip -n c addr add {address}/24 dev eth0"));
        server.change(json!({"t1": null}));
        server.wait_for(REQUEST, 3, 10);
        // The daemon records the answer before it serves the next request.
        wait_until("the renewal is written down", 5, || {
            let leases = network.lab.dhcp(&["leases", "--output", "json"]).json();
            leases.as_array().unwrap().iter().all(|lease| lease["renewSeconds"].as_u64() > Some(60))
        });
        network.attach("c").del();
        server.wait_for(RELEASE, 1, 10);
        drop(daemon);
        recording.join().unwrap()
    })
}

/// The daemon with this process ID, terminated on drop: without it the tracer would wait for ever
/// after a failed case.
struct Ended(String);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0]).status(); // it may have ended already
    }
}

/// `holds` says whether the journal has the lease of A. The container of A exists.
fn try_state(network: &Network, state: &State, holds: bool) -> Verdict {
    state.disk.write(&network.journal());
    let mut daemon = Daemon::start(&network.lab);
    let leases = network.lab.dhcp(&["leases"]).stdout;
    let told = || format!("{holds} that A has a lease, and told are {leases}");
    require(leases.contains("a/net1/eth0") == holds, told)?;
    succeeds("ADD", &network.attach("new").try_add())?;
    network.del("c")?;
    // GC cleans up A. After a power loss A stands for an attachment that never gets its DEL.
    succeeds("GC", &network.attach("a").gc(&[("new", "eth0")]))?;
    network.del("new")?;
    assert_eq!(daemon.end_by("TERM"), 0);
    network.is_empty("DEL and GC with a daemon")?;

    state.disk.write(&network.journal());
    ["a", "c"].iter().try_for_each(|id| network.del(id))?;
    network.is_empty("DELs without a daemon")?;

    state.disk.write(&network.journal());
    succeeds("GC", &network.attach("a").gc(&[]))?;
    network.is_empty("GC without a daemon")
}

#[test]
fn a_journal_of_any_moment_is_understood() {
    let network = Network::new(&["a", "c", "new"]);
    let recording = life(&network);
    let is_bound = |disk: &Disk| {
        let names = disk.files().into_iter();
        let records = names.filter(|name| name.extension().is_some_and(|it| it == "json"));
        let read = |name| serde_json::from_slice::<Value>(disk.file(name).unwrap()).unwrap();
        let is_bound = |it: Value| it["containerID"] == "a" && it["lease"].is_object();
        records.map(read).any(is_bound)
    };
    let rebooted = Network::new(&["new"]);
    rebooted.lab.host.sh(OTHER_BOOT);
    let states = [recording.killed(), recording.without_power(depth(Depth::Together))];
    // The number of renewals depends on the machine, and with it the number of states.
    let (what, places) = (["DHCP journal", "daemon's life"], vec![(network, rebooted)]);
    let _ = sweep(what, &recording, states, places, |networks, state, has_power| match has_power {
        true => try_state(&networks.0, state, is_bound(&state.disk)),
        false => try_state(&networks.1, state, false),
    });
}
