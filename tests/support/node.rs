//! A machine of a cluster: a lab with the daemon, connected to the machine that etcd runs on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::attachment::{Attachment, ips, with};
use super::call::{Outcome, Peer, binary};
use super::etcd::{Etcd, THREE};
use super::held::DATA;
use super::netns::{Container, Lab};
use super::{patience, signals};

/// Options of an etcd that listens for machines in other namespaces.
pub const LISTENING: [&str; 4] = [
    "--listen-client-urls",
    "http://0.0.0.0:2379",
    "--advertise-client-urls",
    "http://127.0.0.1:2379",
];
/// The socket of the daemon.
pub const SOCKET: &str = "/run/cni-multi/ipam.sock";
/// The log of the daemon.
const LOG: &str = "/run/cni-multi/log";
/// The way to etcd's members.
const ROUTE: &str = "ip route add 10.77.0.0/24 via 10.78.0.254";

/// A machine.
pub struct Node {
    pub lab: Lab,
    pub number: u8,
    container: Container,
    daemon: Mutex<Option<Child>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Node {
    /// The machine with this number, whose daemon runs. etcd listens at 10.78.0.254.
    pub fn join(etcd: &Etcd, number: u8) -> Node {
        let node = Node::named(etcd, number, &format!("n{number}"));
        node.start();
        node
    }

    /// The same with another name, and no daemon yet.
    pub fn named(etcd: &Etcd, number: u8, name: &str) -> Node {
        Node::configured(etcd, number, &json!({"node": name}))
    }

    /// A machine of three members, whose daemon runs. It tries another member first than its
    /// neighbours.
    pub fn join_three(etcd: &Etcd, number: u8) -> Node {
        let mut urls = THREE;
        urls.rotate_left(usize::from(number) % THREE.len());
        let node = Node::configured(etcd, number, &json!({"etcd": {"endpoints": urls}}));
        node.start();
        node
    }

    /// The same with changes of its ipam.json, and no daemon yet.
    pub fn configured(etcd: &Etcd, number: u8, changes: &Value) -> Node {
        let node = Node::alone(etcd, number);
        node.configure(changes);
        node
    }

    /// A machine beside etcd that is no part of a cluster.
    pub fn alone(etcd: &Etcd, number: u8) -> Node {
        let lab = Lab::new(Peer::Ours);
        connect(etcd, &lab, number);
        lab.host.sh(&format!(
            "mount -t tmpfs lab /etc && mkdir -p /etc/cni-multi /run/cni-multi && printf '%032x\\n' {number} >/etc/machine-id"
        ));
        let container = lab.container();
        Node { lab, number, container, daemon: Mutex::new(None) }
    }

    /// Makes the machine a part of the cluster, by a usual ipam.json with changes.
    pub fn configure(&self, changes: &Value) {
        let conf = json!({"cluster": "test", "node": format!("n{}", self.number), "settle": 0,
            "etcd": {"endpoints": ["http://10.78.0.254:2379"]}});
        let conf = with(&conf, changes.clone());
        self.lab.host.sh(&format!(
            "echo '{conf}' >/etc/cni-multi/ipam.json && chmod 600 /etc/cni-multi/ipam.json"
        ));
    }

    /// Runs `cni-multi ipam LINE`.
    pub fn ipam(&self, line: &str) -> Outcome {
        let mut command = self.lab.host.command(binary().to_str().unwrap());
        command.arg("ipam").args(line.split(' '));
        Outcome::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Runs the commands of a page.
    pub fn run_commands(&self, commands: &str) -> String {
        let commands = commands.replace("cni-multi ", &format!("{} ", binary().display()));
        self.lab.host.sh(&format!("set -e\n{commands}"))
    }

    /// Starts the daemon.
    pub fn start(&self) {
        self.start_by(&[]);
    }

    /// Starts the daemon by a command that executes it.
    pub fn start_by(&self, wrapper: &[&str]) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.lab.path(LOG));
        let log = log.unwrap();
        let program = binary();
        let words = [wrapper, &[program.to_str().unwrap(), "ipam", "daemon"]].concat();
        let mut command = self.lab.host.command(words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(log);
        *self.daemon.lock().unwrap() = Some(command.spawn().unwrap());
        self.wait_until(Node::listens);
    }

    /// Whether a daemon listens. The file of the socket may be of one that was killed.
    fn listens(&self) -> bool {
        const ACCEPTS: &str = " 00010000 "; // __SO_ACCEPTCON in the column of flags
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/unix", self.lab.pid()));
        let is_it = |line: &str| line.ends_with(SOCKET) && line.contains(ACCEPTS);
        sockets.unwrap().lines().any(is_it)
    }

    /// The daemon's process id.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.lock().unwrap().as_ref().unwrap().id()
    }

    /// What `cni-multi ipam WORDS` prints; it succeeds.
    #[track_caller]
    pub fn ipam_text(&self, words: &str) -> String {
        self.lab.host.sh(&format!("{} ipam {words}", binary().display()))
    }

    /// A line of the daemon's /proc/PID/status.
    pub fn daemon_status(&self, name: &str) -> String {
        let path = format!("/proc/{}/status", self.daemon_pid());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    }

    /// Sends a signal to the daemon, which runs.
    pub fn signal(&self, signal: Signal) {
        signals::send(self.daemon.lock().unwrap().as_ref().unwrap(), signal);
    }

    /// Kills the daemon with SIGKILL, if it runs.
    pub fn kill(&self) {
        if let Some(mut daemon) = self.daemon.lock().unwrap().take() {
            let _ = daemon.kill(); // it may have ended by itself
            let _ = daemon.wait();
        }
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

    /// Reclaims another machine, which is off: it takes 100 s. Returns whether that succeeded: the
    /// store may be away.
    pub fn reclaim(&self, number: u8) -> bool {
        self.ipam(&format!("reclaim n{number}")).status == 0
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

    /// The container that has an address of a network.
    pub fn lease_of(&self, network: &str, address: &str) -> String {
        let lease = self.lab.path(&format!("{DATA}/{network}/{address}"));
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

    /// ADD of a container to a network of these ranges.
    pub fn try_add(&self, subnet: &str, id: &str) -> Outcome {
        self.attachment(&conf(subnet), id).try_add()
    }

    /// ADD of a container with a name to a network that keeps addresses of names.
    pub fn try_add_named(&self, subnet: &str, id: &str, name: &str) -> Outcome {
        let conf = with(&conf(subnet), json!({"ipam": {"sticky": "arg:VM", "patience": 3}}));
        self.attachment(&conf, id).args(&format!("VM={name}")).try_add()
    }

    /// The address of a new attachment.
    #[track_caller]
    pub fn add(&self, subnet: &str, id: &str) -> String {
        let outcome = self.try_add(subnet, id);
        assert!(outcome.status == 0, "{}\n{}", outcome.stdout, self.log());
        ips(&outcome.ok()).join(" ")
    }

    /// DEL.
    pub fn del(&self, subnet: &str, id: &str) {
        self.attachment(&conf(subnet), id).del();
    }

    /// CHECK of an attachment, whose result is as it was.
    pub fn check(&self, subnet: &str, id: &str, address: &str) -> Outcome {
        let ip = format!("{address}/{}", subnet.split('/').nth(1).unwrap());
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": ip}]});
        self.attachment(&conf(subnet), id).check(&result)
    }

    /// STATUS of a network of these ranges.
    pub fn status(&self, subnet: &str) -> Outcome {
        self.lab.attach(&self.container, &conf(subnet)).status()
    }
}

fn conf(subnet: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[{"subnet": subnet}]], "patience": 10}})
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
