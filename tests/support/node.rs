//! A machine of a cluster: a lab with the daemon, connected to the machine that etcd runs on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::attachment::{Attachment, ips, with};
use super::call::{Outcome, Peer, binary};
use super::etcd::{Etcd, Process, THREE};
pub use super::held::DATA;
use super::netns::{Container, Lab};
use super::{patience, signals};

/// The socket of the daemon.
pub const SOCKET: &str = "/run/cni-multi/ipam.sock";
/// The log of the daemon.
const LOG: &str = "/run/cni-multi/log";
/// The way to etcd's members.
const ROUTE: &str = "ip route add 10.77.0.0/24 via 10.78.0.254";

/// Thirteen addresses in blocks of one: those of a /28 without the gateway's.
pub const SMALL: &str = "10.1.0.0/28";
/// 8189 addresses in blocks of eight.
pub const WIDE: &str = "10.1.0.0/19";

/// A machine.
pub struct Node {
    pub lab: Lab,
    pub number: u8,
    /// Where etcd listens.
    urls: Vec<String>,
    container: Container,
    daemon: Mutex<Option<Process>>,
}

/// The configuration of a network, with changes of its IPAM.
pub fn conf(subnet: &str, changes: Value) -> Value {
    let ipam = json!({"type": "cluster-local", "ranges": [[{"subnet": subnet}]], "patience": 10});
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local",
        "ipam": with(&ipam, changes)})
}

impl Node {
    /// An etcd, and machines of its cluster. None if there is no etcd here.
    pub fn cluster<const N: usize>() -> Option<(Etcd, [Node; N])> {
        Node::cluster_with("")
    }

    /// The same with further options of etcd.
    pub fn cluster_with<const N: usize>(options: &str) -> Option<(Etcd, [Node; N])> {
        let etcd = Etcd::one_with(options)?;
        let nodes = Node::all(&etcd);
        Some((etcd, nodes))
    }

    /// The first machines, whose daemons run.
    pub fn all<const N: usize>(etcd: &Etcd) -> [Node; N] {
        std::array::from_fn(|at| Node::join(etcd, at as u8 + 1))
    }

    /// The machine with this number, whose daemon runs.
    pub fn join(etcd: &Etcd, number: u8) -> Node {
        let node = Node::configured(etcd, number, json!({}));
        node.start();
        node
    }

    /// The same with changes of its ipam.json, and no daemon yet.
    pub fn configured(etcd: &Etcd, number: u8, changes: Value) -> Node {
        let node = Node::alone(etcd, number);
        node.configure(changes);
        node
    }

    /// A machine beside etcd that is no part of a cluster. Of three members it tries another one first than
    /// its neighbours.
    pub fn alone(etcd: &Etcd, number: u8) -> Node {
        let mut urls = match etcd.members.len() {
            3 => THREE.map(str::to_owned).to_vec(),
            _ => vec!["http://10.78.0.254:2379".to_owned()],
        };
        let first = usize::from(number) % urls.len();
        urls.rotate_left(first);
        let lab = Lab::new(Peer::Ours);
        connect(etcd, &lab, number);
        lab.host.sh(&format!(
            "mount -t tmpfs lab /etc && mkdir -p /etc/cni-multi /run/cni-multi && printf '%032x\\n' {number} >/etc/machine-id"
        ));
        let container = lab.container();
        Node { lab, number, urls, container, daemon: Mutex::new(None) }
    }

    /// Makes the machine a part of the cluster, by a usual ipam.json with changes.
    pub fn configure(&self, changes: Value) {
        let conf = json!({"cluster": "test", "node": format!("n{}", self.number), "settle": 0,
            "etcd": {"endpoints": self.urls}});
        let conf = with(&conf, changes);
        self.lab.host.sh(&format!(
            "echo '{conf}' >/etc/cni-multi/ipam.json && chmod 600 /etc/cni-multi/ipam.json"
        ));
    }

    /// Runs `cni-multi ipam LINE`, which ends: a reclaim takes 100 s.
    pub fn ipam(&self, line: &str) -> Outcome {
        let mut command = self.lab.host.command("timeout");
        command.args(["300", binary().to_str().unwrap(), "ipam"]).args(line.split(' '));
        Outcome::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// What it prints; it succeeds.
    #[track_caller]
    pub fn prints(&self, line: &str) -> String {
        let outcome = self.ipam(line);
        assert_eq!(outcome.status, 0, "{outcome:?}\n{}", self.log());
        outcome.stdout
    }

    /// Runs the commands that a page has for a test of cluster-local.
    pub fn run_commands(&self, page: &str, test: &str) -> String {
        let commands =
            commands(page, test)[0].replace("cni-multi ", &format!("{} ", binary().display()));
        self.lab.host.sh(&format!("set -e\n{commands}"))
    }

    /// Starts the daemon.
    pub fn start(&self) {
        self.start_by(&[]);
    }

    /// Starts the daemon by a command that executes it.
    pub fn start_by(&self, wrapper: &[&str]) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.lab.path(LOG));
        let program = binary();
        let words = [wrapper, &[program.to_str().unwrap(), "ipam", "daemon"]].concat();
        let mut command = self.lab.host.command(words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(log.unwrap());
        *self.daemon.lock().unwrap() = Some(Process(command.spawn().unwrap()));
        self.wait_until(Node::listens);
    }

    /// Whether a daemon listens. The file of the socket may be of one that was killed.
    fn listens(&self) -> bool {
        const ACCEPTS: &str = " 00010000 "; // __SO_ACCEPTCON in the column of flags
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/unix", self.lab.pid()));
        let is_it = |line: &str| line.ends_with(SOCKET) && line.contains(ACCEPTS);
        sockets.unwrap().lines().any(is_it)
    }

    /// The text of each thread's status of the daemon, the event loop's first.
    pub fn daemon_threads(&self) -> Vec<String> {
        let pid = self.daemon.lock().unwrap().as_ref().unwrap().0.id();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut paths: Vec<_> = threads.map(|thread| thread.unwrap().path()).collect();
        paths.sort_by_key(|path| {
            path.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()
        });
        paths.iter().map(|path| std::fs::read_to_string(path.join("status")).unwrap()).collect()
    }

    /// Sends a signal to the daemon, which runs.
    pub fn signal(&self, signal: Signal) {
        signals::send(&self.daemon.lock().unwrap().as_ref().unwrap().0, signal);
    }

    /// Kills the daemon with SIGKILL, if it runs.
    pub fn kill(&self) {
        drop(self.daemon.lock().unwrap().take());
    }

    /// Sets the machine's link to etcd up or down.
    pub fn set_link(&self, state: &str) {
        self.lab.host.sh(&format!("ip link set up0 {state}"));
        if state == "up" {
            self.lab.host.sh(ROUTE); // it went with the link
        }
    }

    /// Makes the machine one that has booted: with another number, another boot.
    pub fn set_boot(&self, number: u64) {
        self.lab.host.sh(&format!(
            "f=/run/boot_id; test -e $f || {{ touch $f && mount --bind $f /proc/sys/kernel/random/boot_id; }}
             printf '00000000-0000-4000-8000-%012d\n' {number} >$f"
        ));
    }

    /// The log of the daemon.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.lab.path(LOG)).unwrap_or_default()
    }

    /// Waits until something is true of the machine.
    #[track_caller]
    pub fn wait_until(&self, is_true: impl Fn(&Node) -> bool) {
        let until = Instant::now() + patience(45); // the next heartbeat is at most 30 s away
        while !is_true(self) {
            assert!(Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An attachment of a network.
    pub fn attachment(&self, conf: &Value, id: &str) -> Attachment<'_> {
        self.lab.attach(&self.container, conf).id(id)
    }

    /// The addresses with a lease of a network.
    pub fn leases(&self, network: &str) -> BTreeSet<IpAddr> {
        let files = std::fs::read_dir(self.lab.path(&format!("{DATA}/{network}")));
        let names = files.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).collect()
    }

    /// The container that has an address of the network `pods`.
    pub fn lease_of(&self, address: &str) -> String {
        let lease = self.lab.path(&format!("{DATA}/pods/{address}"));
        std::fs::read_to_string(lease).unwrap().lines().next().unwrap().trim().to_owned()
    }

    /// The blocks of a network with their states; an active block in which another node has leases is
    /// contested.
    pub fn blocks(&self, network: &str) -> Vec<(String, String)> {
        let path = self.lab.path(&format!("{DATA}/{network}/blocks.json"));
        let Ok(text) = std::fs::read_to_string(path) else { return vec![] };
        let file: Value = serde_json::from_str(&text).unwrap();
        let text = |held: &Value, key: &str| held[key].as_str().unwrap().to_owned();
        let blocks = file["blocks"].as_array().unwrap().iter();
        let state = |held: &Value| match held["contested"] == true {
            true => "contested".to_owned(),
            false => text(held, "state"),
        };
        blocks.map(|held| (text(held, "block"), state(held))).collect()
    }

    /// Whether the network `pods` has blocks, all in this state.
    pub fn has_only(&self, state: &str) -> bool {
        let blocks = self.blocks("pods");
        !blocks.is_empty() && blocks.iter().all(|(_, of_block)| of_block == state)
    }

    /// ADD of a container to a network of these ranges.
    pub fn try_add(&self, subnet: &str, id: &str) -> Outcome {
        self.attachment(&conf(subnet, json!({})), id).try_add()
    }

    /// ADD of a container with a name to a network that keeps addresses of names.
    pub fn try_add_named(&self, subnet: &str, id: &str, name: &str) -> Outcome {
        let conf = conf(subnet, json!({"sticky": "arg:VM", "patience": 3}));
        self.attachment(&conf, id).args(&format!("VM={name}")).try_add()
    }

    /// The address of a new attachment.
    #[track_caller]
    pub fn add(&self, subnet: &str, id: &str) -> String {
        let outcome = self.try_add(subnet, id);
        assert!(outcome.status == 0, "{}\n{}", outcome.stdout, self.log());
        ips(&outcome.ok()).join(" ")
    }

    /// The addresses of several, whose ids are separated by spaces.
    #[track_caller]
    pub fn add_all(&self, subnet: &str, ids: &str) -> BTreeSet<String> {
        ids.split(' ').map(|id| self.add(subnet, id)).collect()
    }

    /// DEL.
    pub fn del(&self, subnet: &str, id: &str) {
        self.attachment(&conf(subnet, json!({})), id).del();
    }

    /// CHECK of an attachment, whose result is as it was.
    pub fn check(&self, subnet: &str, id: &str, address: &str) -> Outcome {
        let length = subnet.split('/').nth(1).unwrap();
        let result = json!({"cniVersion": "1.1.0",
            "ips": [{"address": format!("{address}/{length}")}]});
        self.attachment(&conf(subnet, json!({})), id).check(&result)
    }

    /// STATUS of a network of these ranges.
    pub fn status(&self, subnet: &str) -> Outcome {
        self.attachment(&conf(subnet, json!({})), "x").status()
    }
}

/// The blocks of commands that a page has for a test of cluster-local.
pub fn commands<'a>(page: &'a str, test: &str) -> Vec<&'a str> {
    let fence = format!("```sh run by plugins::ipam::cluster_local::{test}\n");
    page.split(&fence).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// A link between the two machines. The bridge has a hardware address of its own: else it takes the
/// lowest of its ports', and a machine that joins cuts off those that know an earlier one.
fn connect(etcd: &Etcd, lab: &Lab, number: u8) {
    let pid = lab.pid();
    etcd.lab.host.sh(&format!(
        "ip link show nodes >/dev/null 2>&1 || {{
            ip link add nodes address 0a:4e:00:00:00:fe type bridge && ip addr add 10.78.0.254/24 dev nodes && ip link set nodes up; }}
         ip link add n{number} type veth peer name up0 netns {pid}
         ip link set n{number} master nodes up"
    ));
    lab.host
        .sh(&format!("ip addr add 10.78.0.{number}/24 dev up0 && ip link set up0 up && {ROUTE}"));
}
