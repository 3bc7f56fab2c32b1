//! Real etcd servers in a lab: one on the pretend host, or three members in namespaces of their own
//! behind a bridge, and the engine under test.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cni_multi::net::netns::Netns;
use cni_multi::plugins::ipam::cluster_local::store::etcd::Etcd as Engine;
use cni_multi::plugins::ipam::cluster_local::store::http::endpoint::Endpoint;
use cni_multi::plugins::ipam::cluster_local::store::settings::Access;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::attachment::{has_programs, skip};
use super::call::Peer;
use super::netns::{Container, Lab, Namespace, is_root};
use super::patience;
use super::scratch::Scratch;
use super::signals;

/// The URL of the one server.
pub const ONE: &str = "http://127.0.0.1:2379";
/// The URLs of the three members.
pub const THREE: [&str; 3] =
    ["http://10.77.0.1:2379", "http://10.77.0.2:2379", "http://10.77.0.3:2379"];

/// etcdctl of the three members.
const CTL: &str = "ETCDCTL_API=3 etcdctl --command-timeout 2s --endpoints 10.77.0.1:2379,10.77.0.2:2379,10.77.0.3:2379";

/// Servers with their lab.
pub struct Etcd {
    pub lab: Lab,
    pub scratch: Scratch,
    pub members: Vec<Member>,
}

/// A running server.
pub struct Member {
    name: String,
    words: Vec<String>,
    process: Process,
    namespace: Namespace,
    /// Keeps the member's namespace alive.
    _container: Option<Container>,
}

/// A process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

impl Member {
    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) {
        signals::send(&self.process.0, signal);
    }

    /// Runs etcdctl beside the server.
    pub fn ctl(&self, words: &str) -> String {
        self.sh(&format!("ETCDCTL_API=3 etcdctl --endpoints 127.0.0.1:2379 {words}"))
    }

    /// Runs a shell script beside the server.
    pub fn sh(&self, script: &str) -> String {
        self.namespace.sh(script)
    }
}

/// Whether the test can run here; reports a skip if not.
fn is_possible() -> bool {
    if !is_root() {
        skip("root, or unshare -Urnm");
        return false;
    }
    has_programs(&["etcd", "etcdctl"])
}

impl Etcd {
    /// A lab without a server; None if there is no etcd here.
    pub fn none() -> Option<Etcd> {
        is_possible().then(|| Etcd {
            lab: Lab::new(Peer::Ours),
            scratch: Scratch::new(),
            members: vec![],
        })
    }

    /// One server on the pretend host.
    pub fn one() -> Option<Etcd> {
        Etcd::one_with(&[])
    }

    /// One server with further options.
    pub fn one_with(options: &[&str]) -> Option<Etcd> {
        let mut etcd = Etcd::none()?;
        etcd.start_one(options);
        Some(etcd)
    }

    /// Starts a server on the pretend host.
    pub fn start_one(&mut self, options: &[&str]) {
        let is_given = options.iter().any(|option| option.starts_with("--listen-client-urls"));
        let urls = ["--listen-client-urls", ONE, "--advertise-client-urls", ONE];
        let mut words: Vec<&str> = if is_given { vec![] } else { urls.to_vec() };
        words.extend(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        words.extend(options);
        let namespace = self.lab.host.clone();
        let name = format!("one{}", self.members.len());
        let member = self.start(&name, namespace, &words);
        self.members.push(member);
        self.wait_until_ready(&name);
    }

    /// Three members, each in a namespace of its own, and the client on the bridge between them.
    pub fn three() -> Option<Etcd> {
        let mut etcd = Etcd::none()?;
        etcd.lab.host.sh(
            "ip link add etcd address 0a:4e:00:00:00:ff type bridge && ip addr add 10.77.0.9/24 dev etcd && ip link set etcd up
             echo 1 >/proc/sys/net/ipv4/ip_forward",
        );
        for number in 1..=3 {
            let member = etcd.start_member(number);
            etcd.members.push(member);
        }
        (1..=3).for_each(|number| etcd.wait_until_ready(&format!("m{number}")));
        Some(etcd)
    }

    fn start_member(&self, number: usize) -> Member {
        let container = self.lab.container();
        let netns = container.netns.trim_start_matches("/run/netns/").to_owned();
        self.lab.host.sh(&format!(
            "ip link add p{number} type veth peer name eth0 netns {netns}
             ip link set p{number} master etcd up"
        ));
        container.sh(&format!(
            "ip link set lo up; ip addr add 10.77.0.{number}/24 dev eth0; ip link set eth0 up
             ip route add 10.78.0.0/24 via 10.77.0.9"
        ));
        let (client, peer) =
            (format!("http://10.77.0.{number}:2379"), format!("http://10.77.0.{number}:2380"));
        let listen = format!("{client},{ONE}");
        let all = "m1=http://10.77.0.1:2380,m2=http://10.77.0.2:2380,m3=http://10.77.0.3:2380";
        let words = [
            "--listen-client-urls",
            &listen,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            all,
            "--initial-cluster-state",
            "new",
        ];
        let member = self.start(&format!("m{number}"), (*container).clone(), &words);
        Member { _container: Some(container), ..member }
    }

    fn start(&self, name: &str, namespace: Namespace, words: &[&str]) -> Member {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let process = self.spawn(name, &namespace, &words);
        Member { name: name.to_owned(), words, process, namespace, _container: None }
    }

    fn spawn(&self, name: &str, namespace: &Namespace, words: &[String]) -> Process {
        let log = std::fs::File::create(self.log_path(name)).unwrap();
        let mut command = namespace.command("etcd");
        command.args(["--name", name, "--data-dir", self.scratch.join(name).to_str().unwrap()]);
        command.args(["--logger=zap", "--log-level=info"]).args(words);
        Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// Starts a member again that was killed, or kills it first. It has its data.
    pub fn restart(&mut self, number: usize) {
        let member = &mut self.members[number - 1];
        member.signal(Signal::SIGKILL);
        member.process.0.wait().unwrap();
        let Member { name, words, namespace, .. } = &self.members[number - 1];
        let process = self.spawn(name, namespace, words);
        self.members[number - 1].process = process;
    }

    fn log_path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.join(&format!("{name}.log"))
    }

    /// Until a member that was started serves its clients.
    pub fn wait_until_ready(&self, name: &str) {
        let until = Instant::now() + patience(10);
        let log = || std::fs::read_to_string(self.log_path(name)).unwrap_or_default();
        while !log().contains("serving client traffic") {
            assert!(Instant::now() < until, "etcd {name} does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a test where the pretend host's network is.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(&self.lab, work)
    }

    /// Cuts a member off from the others and from the client.
    pub fn cut(&self, number: usize) {
        self.lab.host.sh(&format!("ip link set p{number} nomaster"));
    }

    /// Undoes it.
    pub fn connect(&self, number: usize) {
        self.lab.host.sh(&format!("ip link set p{number} master etcd"));
    }

    /// The blocks that have keys in the realm `default`, each with its node.
    pub fn block_keys(&self) -> BTreeSet<String> {
        let realm = "/cni-multi/v2/test/b/default/";
        let text = self.members[0].ctl(&format!("get --prefix {realm}"));
        let lines: Vec<&str> = text.lines().collect();
        let shown = |pair: &[&str]| {
            let value: Value = serde_json::from_str(pair[1]).unwrap();
            let node = value["node"].as_str().unwrap_or("?");
            format!("{} {node}", pair[0].strip_prefix(realm).unwrap())
        };
        lines.chunks(2).map(shown).collect()
    }

    /// The number of the member that leads.
    pub fn leader(&self) -> usize {
        self.find_leader().unwrap()
    }

    /// The same, while none may lead, or members do not answer.
    pub fn find_leader(&self) -> Option<usize> {
        let status = self.lab.host.try_sh(&format!("{CTL} endpoint status"));
        let status = String::from_utf8(status.stdout).unwrap();
        let line = status.lines().find(|line| line.contains(", true,"))?;
        line["10.77.0.".len()..][..1].parse().ok()
    }

    /// Makes another member lead, if this one is not the leader. None may lead at the moment.
    pub fn move_leader(&self, number: usize) {
        let status = self.lab.host.sh(&format!("{CTL} endpoint status || true"));
        let of_member = |line: &&str| line.starts_with(&format!("10.77.0.{number}:"));
        let id = status.lines().find(of_member).and_then(|line| line.split(", ").nth(1));
        if let Some(id) = id {
            self.lab.host.sh(&format!("{CTL} move-leader {id} || true"));
        }
    }
}

/// Runs a test where the pretend host's network is.
pub fn within<T: Send>(lab: &Lab, work: impl FnOnce() -> T + Send) -> T {
    let host = Netns::open(&lab.host.path()).unwrap();
    // The thread that enters has a small stack; this one inherits its namespace.
    let done = host.enter(|| Ok(std::thread::scope(|scope| scope.spawn(work).join())));
    done.unwrap().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The engine on these members, without certificates.
pub fn engine(urls: &[&str]) -> Engine {
    engine_with(urls, Access::default())
}

/// The engine on these members, with a way to reach them. Its notes are lost.
pub fn engine_with(urls: &[&str], access: Access) -> Engine {
    let endpoints = urls.iter().map(|url| Endpoint::parse(url).unwrap()).collect();
    let access = Access { endpoints, ..access };
    Engine::open(&"test".parse().unwrap(), access, Box::new(|_| ())).unwrap()
}
