//! A machine of a cluster: a lab with the daemon, connected to the machine that etcd runs on.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attachment::{ips, with};
use super::call::{Outcome, Peer, binary};
use super::etcd::Etcd;
use super::netns::{Container, Lab};
use super::patience;

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

/// A machine.
pub struct Node {
    pub lab: Lab,
    container: Container,
    daemon: Option<Child>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Node {
    /// The machine with this number, whose daemon runs. etcd listens at 10.78.0.254.
    pub fn join(etcd: &Etcd, number: u8) -> Node {
        let mut node = Node::named(etcd, number, &format!("n{number}"));
        node.start();
        node
    }

    /// The same with another name, and no daemon yet.
    pub fn named(etcd: &Etcd, number: u8, name: &str) -> Node {
        Node::with_store(etcd, number, name, &usual_store())
    }

    /// The same with another way to etcd.
    pub fn with_store(etcd: &Etcd, number: u8, name: &str, store: &Value) -> Node {
        let node = Node::alone(etcd, number);
        node.configure_with(name, store);
        node
    }

    /// A machine beside etcd that is no part of a cluster.
    pub fn alone(etcd: &Etcd, number: u8) -> Node {
        let lab = Lab::new(Peer::Ours);
        connect(etcd, &lab, number);
        lab.host.sh("mount -t tmpfs lab /etc && mkdir -p /etc/cni-multi /run/cni-multi");
        let container = lab.container();
        Node { lab, container, daemon: None }
    }

    /// Makes the machine a part of the cluster, under a name.
    pub fn configure(&self, name: &str) {
        self.configure_with(name, &usual_store());
    }

    fn configure_with(&self, name: &str, store: &Value) {
        let conf = json!({"cluster": "test", "node": name, "settle": 0, "etcd": store});
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
    pub fn start(&mut self) {
        self.start_by(&[]);
    }

    /// Starts the daemon by a command that executes it.
    pub fn start_by(&mut self, wrapper: &[&str]) {
        let log = std::fs::File::create(self.lab.path(LOG)).unwrap();
        let program = binary();
        let words = [wrapper, &[program.to_str().unwrap(), "ipam", "daemon"]].concat();
        let mut command = self.lab.host.command(words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(log);
        self.daemon = Some(command.spawn().unwrap());
        self.wait_until(|node| node.lab.path(SOCKET).exists());
    }

    /// The daemon's process id.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
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

    /// Kills the daemon with SIGKILL, if it runs.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill(); // it may have ended by itself
            let _ = daemon.wait();
        }
    }

    /// The log of the daemon.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.lab.path(LOG)).unwrap_or_default()
    }

    /// Waits until something is true of the machine.
    #[track_caller]
    pub fn wait_until(&self, is_true: impl Fn(&Node) -> bool) {
        let until = Instant::now() + patience(20);
        while !is_true(self) {
            assert!(Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// ADD of a container to a network of these ranges.
    pub fn try_add(&self, subnet: &str, id: &str) -> Outcome {
        self.lab.attach(&self.container, &conf(subnet)).id(id).try_add()
    }

    /// ADD of a container with a name to a network that keeps addresses of names.
    pub fn try_add_named(&self, subnet: &str, id: &str, name: &str) -> Outcome {
        let conf = with(&conf(subnet), json!({"ipam": {"sticky": "arg:VM", "patience": 3}}));
        self.lab.attach(&self.container, &conf).id(id).args(&format!("VM={name}")).try_add()
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
        self.lab.attach(&self.container, &conf(subnet)).id(id).del();
    }

    /// CHECK of an attachment, whose result is as it was.
    pub fn check(&self, subnet: &str, id: &str, address: &str) -> Outcome {
        let length = subnet.split('/').nth(1).unwrap();
        let result = json!({"cniVersion": "1.1.0",
            "ips": [{"address": format!("{address}/{length}")}]});
        self.lab.attach(&self.container, &conf(subnet)).id(id).check(&result)
    }

    /// STATUS of a network of these ranges.
    pub fn status(&self, subnet: &str) -> Outcome {
        self.lab.attach(&self.container, &conf(subnet)).status()
    }
}

/// etcd on the machine beside.
fn usual_store() -> Value {
    json!({"endpoints": ["http://10.78.0.254:2379"]})
}

fn conf(subnet: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[{"subnet": subnet}]], "patience": 10}})
}

/// A link between the two machines.
fn connect(etcd: &Etcd, lab: &Lab, number: u8) {
    let pid = lab.pid();
    etcd.lab.host.sh(&format!(
        "ip link show nodes >/dev/null 2>&1 || {{
            ip link add nodes type bridge && ip addr add 10.78.0.254/24 dev nodes && ip link set nodes up; }}
         ip link add n{number} type veth peer name up0 netns {pid}
         ip link set n{number} master nodes up"
    ));
    lab.host.sh(&format!("ip addr add 10.78.0.{number}/24 dev up0 && ip link set up0 up"));
}
