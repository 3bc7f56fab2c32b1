//! Real etcd servers in a lab: one on the pretend host, or three members in namespaces of their own
//! behind a bridge, and the engine under test.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
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
    words: Vec<String>,
    log: PathBuf,
    process: Process,
    namespace: Namespace,
    /// Keeps the member's namespace alive.
    _container: Option<Container>,
}

/// A process that is killed with its owner.
pub struct Process(pub Child);

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

    /// The server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The number of the store's last write.
    pub fn revision(&self) -> u64 {
        let reply: Value = serde_json::from_str(&self.ctl("get /nothing -w json")).unwrap();
        reply["header"]["revision"].as_u64().unwrap()
    }
}

fn spawn(namespace: &Namespace, words: &[String], log: &Path) -> Process {
    let mut command = namespace.command("etcd");
    command.args(words).stdout(Stdio::null()).stderr(File::create(log).unwrap());
    Process(command.spawn().unwrap())
}

impl Etcd {
    /// A lab without a server; None if there is no etcd here, which is reported as a skip.
    pub fn none() -> Option<Etcd> {
        if !is_root() {
            skip("root, or unshare -Urnm");
            return None;
        }
        has_programs(&["etcd", "etcdctl"]).then(|| Etcd {
            lab: Lab::new(Peer::Ours),
            scratch: Scratch::new(),
            members: vec![],
        })
    }

    /// One server on the pretend host, which machines in other namespaces reach.
    pub fn one() -> Option<Etcd> {
        Etcd::one_with("")
    }

    /// One server with further options.
    pub fn one_with(options: &str) -> Option<Etcd> {
        let mut etcd = Etcd::none()?;
        etcd.start_one(options);
        Some(etcd)
    }

    /// Starts a server on the pretend host. Of an option that is given twice the last one counts.
    pub fn start_one(&mut self, options: &str) {
        let words = format!(
            "--name one{} --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls {ONE} \
             --heartbeat-interval 50 --election-timeout 500 {options}",
            self.members.len()
        );
        self.start(self.lab.host.clone(), &words, None);
        self.wait_until_ready(self.members.len());
    }

    /// Three members, each in a namespace of its own, and the client on the bridge between them.
    pub fn three() -> Option<Etcd> {
        let mut etcd = Etcd::none()?;
        etcd.lab.host.sh(
            "ip link add etcd address 0a:4e:00:00:00:ff type bridge && ip addr add 10.77.0.9/24 dev etcd && ip link set etcd up
             echo 1 >/proc/sys/net/ipv4/ip_forward",
        );
        for number in 1..=3 {
            let container = etcd.lab.container();
            let netns = container.netns.trim_start_matches("/run/netns/");
            etcd.lab.host.sh(&format!(
                "ip link add p{number} type veth peer name eth0 netns {netns}
                 ip link set p{number} master etcd up"
            ));
            container.sh(&format!(
                "ip link set lo up; ip addr add 10.77.0.{number}/24 dev eth0; ip link set eth0 up
                 ip route add 10.78.0.0/24 via 10.77.0.9"
            ));
            let words = format!(
                "--name m{number} --listen-client-urls http://10.77.0.{number}:2379,{ONE} \
                 --advertise-client-urls http://10.77.0.{number}:2379 \
                 --listen-peer-urls http://10.77.0.{number}:2380 \
                 --initial-advertise-peer-urls http://10.77.0.{number}:2380 \
                 --initial-cluster m1=http://10.77.0.1:2380,m2=http://10.77.0.2:2380,m3=http://10.77.0.3:2380"
            );
            etcd.start((*container).clone(), &words, Some(container));
        }
        (1..=3).for_each(|number| etcd.wait_until_ready(number));
        Some(etcd)
    }

    fn start(&mut self, namespace: Namespace, words: &str, container: Option<Container>) {
        let number = self.members.len() + 1;
        let log = self.scratch.join(&format!("{number}.log"));
        let data = self.data(number);
        let words = format!("--data-dir {} --logger=zap --log-level=info {words}", data.display());
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let process = spawn(&namespace, &words, &log);
        self.members.push(Member { words, log, process, namespace, _container: container });
    }

    /// The directory of a member.
    pub fn data(&self, number: usize) -> PathBuf {
        self.scratch.join(&number.to_string())
    }

    /// Starts a member again that was killed, or kills it first. It has its data.
    pub fn restart(&mut self, number: usize) {
        let member = &mut self.members[number - 1];
        member.signal(Signal::SIGKILL);
        member.process.0.wait().unwrap();
        member.process = spawn(&member.namespace, &member.words, &member.log);
    }

    /// Until a member that was started serves its clients.
    pub fn wait_until_ready(&self, number: usize) {
        let until = Instant::now() + patience(10);
        let log = || self.members[number - 1].log();
        while !log().contains("serving client traffic") {
            assert!(Instant::now() < until, "etcd {number} does not start: {}", log());
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

    /// The number of the member that leads. None may lead, or members may not answer.
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
