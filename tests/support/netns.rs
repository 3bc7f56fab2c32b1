//! A lab of network namespaces: a pretend host, containers on demand and a peer outside.
//!
//! The machine's own network is never touched. A lab lives as long as its holder process, which
//! waits on a pipe from this test process: when the test process ends, in whatever way, the pipe
//! closes, the holder ends, and the kernel destroys the namespaces. Root gets a network and a mount
//! namespace; an ordinary user gets a user namespace around them.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use super::again::Again;
use super::call::Peer;
use super::entrance;
use super::limit;
use super::programs::{located, need_programs, need_what_a_shell_missed};

/// The addresses of the host's uplink and of the peer behind it. The peer has no route to any
/// container subnet.
pub const UPLINK: [&str; 2] = ["198.51.100.1", "2001:db8:ffff::1"];
pub const OUTSIDE: [&str; 2] = ["198.51.100.2", "2001:db8:ffff::2"];

/// Sets up the pretend host, in namespaces that are already new. `/run` and `/var/lib/cni` are
/// private mounts, so two labs never share locks or state files. DAD is off, so that a test does
/// not wait a second for every address of a bridge.
const HOST: &str = r#"
set -e
mount -t tmpfs lab /run
mkdir /run/netns /run/cni
if [ -d /var/lib/cni ]; then mount -t tmpfs lab /var/lib/cni; else mount -t tmpfs lab /var/lib; mkdir /var/lib/cni; fi
# sysfs shows the links of the namespace it was mounted in; a container that runs the tests may forbid the mount.
mount -t sysfs lab /sys 2>/dev/null || echo "the lab keeps the machine's /sys" >&2
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
: >/run/netns/outside; unshare --net=/run/netns/outside ip link set lo up
ip -batch - <<END
link set lo up
link add uplink type veth peer name uplink netns outside
addr add 198.51.100.1/24 dev uplink
addr add 2001:db8:ffff::1/64 dev uplink nodad
link set uplink up
END
ip -n outside -batch - <<END
addr add 198.51.100.2/24 dev uplink
addr add 2001:db8:ffff::2/64 dev uplink nodad
link set uplink up
END
# The kernel may take a second to notice that both ends are up, and until then nothing is sent.
until case "$(ip link show uplink) $(ip -n outside link show uplink)" in *'state UP'*'state UP'*) ;; *) false ;; esac; do
    sleep 0.01
done
"#;

/// Where a network namespace switches DAD off. The reference waits for DAD in the container, a second or two for
/// each ADD with IPv6; over all cases that adds up to minutes. If only ours runs ADD, a container keeps the kernel's
/// default.
const ACCEPT_DAD: &str = "/proc/sys/net/ipv6/conf/default/accept_dad";

/// The end of a holder's script: report that the namespace is ready, and wait for the pipe to
/// close.
const HOLD: &str = "\necho ready\nexec cat >/dev/null\n";

pub struct Lab {
    /// The peer under test in this lab.
    pub peer: Peer,
    pub host: Namespace,
    pub outside: Namespace,
    /// Whether new containers keep the kernel's DAD.
    dad: bool,
    holder: Again,
    made: AtomicU32,
}

impl Lab {
    #[track_caller]
    pub fn new(peer: Peer) -> Lab {
        need_programs(&["ip", "tc", "bridge", "nft", "iptables", "ip6tables", "ping"]);
        let unshare: &[&str] =
            if is_root() { &["unshare", "-n", "-m"] } else { &["unshare", "-U", "-r", "-n", "-m"] };
        let unshare = unshare.iter().map(|word| (*word).to_owned()).collect();
        let holder = hold(unshare, &format!("{HOST}{HOLD}"));
        let host = Namespace { enter: enter(holder.child.id(), None) };
        let outside = Namespace { enter: enter(holder.child.id(), Some("/run/netns/outside")) };
        let dad = peer == Peer::Ours;
        Lab { peer, dad, host, outside, holder, made: AtomicU32::new(0) }
    }

    /// A container with its namespace bind-mounted at a file, as containerd and podman make them.
    pub fn container(&self) -> Container {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let netns = format!("/run/netns/c{number}");
        // In this thread, which is in the new namespace, or by a shell.
        let prepare = || {
            if !self.dad {
                std::fs::write(ACCEPT_DAD, "0").unwrap();
            }
        };
        if !entrance::make_netns(&self.host.enter, &netns, prepare) {
            self.host
                .sh(&format!(": >{netns} && unshare --net={netns} sh -c '{}'", self.prepare()));
        }
        self.container_at(number, netns, None)
    }

    /// A container with a namespace named by a process, as Docker and nerdctl do it:
    /// `/proc/PID/ns/net`.
    pub fn container_of_process(&self) -> Container {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = self.host.enter.clone();
        line.extend(["unshare".to_owned(), "-n".to_owned()]);
        let holder = hold(line, &format!("{}{HOLD}", self.prepare()));
        let netns = format!("/proc/{}/ns/net", holder.child.id());
        self.container_at(number, netns, Some(holder))
    }

    fn container_at(&self, number: u32, netns: String, holder: Option<Again>) -> Container {
        let namespace = Namespace { enter: enter(self.holder.child.id(), Some(&netns)) };
        let (id, host) = (format!("container-{number}"), self.host.clone());
        Container { id, namespace, netns, host, holder: Mutex::new(holder) }
    }

    /// A lab in which the reference runs ADD too.
    pub fn without_dad(self) -> Lab {
        Lab { dad: false, ..self }
    }

    /// The script that runs first in a new container.
    fn prepare(&self) -> String {
        if self.dad { ":".to_owned() } else { format!("echo 0 > {ACCEPT_DAD}") }
    }

    /// Hides iptables from the pretend host. The reference's DEL, as Debian builds it, fails for
    /// networks masqueraded by nf_tables where iptables 1.8.9 is installed (see tests/differences),
    /// so cases about that backend hide it.
    pub fn hide_iptables(&self) {
        self.host.sh(r#"for name in iptables ip6tables iptables-legacy ip6tables-legacy; do
                file=$(command -v $name) || continue
                mount --bind /dev/null "$(readlink -f "$file")"
            done"#);
    }

    /// Ends what `hide_iptables` did.
    pub fn show_iptables(&self) {
        self.host.sh("grep -o '/[^ ]*/xtables[^ ]*' /proc/mounts | xargs -r umount");
    }

    /// The process that keeps the lab's namespaces alive.
    pub fn pid(&self) -> u32 {
        self.holder.child.id()
    }

    /// The path by which this process can open a file of the pretend host.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.child.id()))
    }

    /// Writes a file of the pretend host, and makes the directories above it.
    pub fn write(&self, path: &str, text: impl ToString) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.to_string()).unwrap();
    }

    /// Writes a network as an operator's file below /run/net.d.
    pub fn configure(&self, list: &Value) {
        self.write(&format!("/run/net.d/{}.conflist", list["name"].as_str().unwrap()), list);
    }
}

/// A network namespace that commands can be run in.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// The command line that enters it, to be put before a program.
    pub enter: Vec<String>,
}

impl Namespace {
    #[track_caller]
    pub fn command(&self, program: &str) -> Command {
        if !program.contains('/') {
            need_programs(&[program]);
        }
        let mut command = Command::new(&self.enter[0]);
        command.args(&self.enter[1..]).arg(program).stdin(Stdio::null());
        command
    }

    /// The path by which this process finds the network namespace.
    pub fn path(&self) -> String {
        let named = self.enter.iter().find_map(|word| word.strip_prefix("--net="));
        let of_holder = || {
            let pid = self.enter.iter().find_map(|word| word.strip_prefix("--target=")).unwrap();
            format!("/proc/{pid}/ns/net")
        };
        named.map_or_else(of_holder, str::to_owned)
    }

    /// Runs a shell script, which fails the test if it takes minutes.
    #[track_caller]
    pub fn try_sh(&self, script: &str) -> Output {
        let line = self.enter.iter().map(String::as_str).chain(["sh", "-c", script]);
        let line: Vec<String> = line.map(str::to_owned).collect();
        let child = entrance::start(&line, |sh| {
            sh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        });
        let output = limit::output_of(child).unwrap_or_else(|| panic!("`{script}` did not end"));
        need_what_a_shell_missed(&output.stderr);
        output
    }

    /// Runs a shell script that has to succeed; returns its stdout.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`{script}` ended with {}: {stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that prints JSON. Empty output becomes an empty array: iproute2 prints
    /// nothing for an empty list.
    #[track_caller]
    pub fn json(&self, command: &str) -> Value {
        let text = self.sh(command);
        if text.trim().is_empty() {
            return Value::Array(vec![]);
        }
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("`{command}` printed {text:?}: {e}"))
    }

    /// The attributes of a link, or None if there is no such link.
    pub fn link(&self, name: &str) -> Option<Value> {
        let output = self.try_sh(&format!("ip -j -d link show dev {name}"));
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| serde_json::from_str::<Value>(&text).unwrap()[0].clone())
    }

    /// Addresses with their prefixes, without link-local ones.
    pub fn addresses(&self, link: &str) -> Vec<String> {
        let links = self.json(&format!("ip -j addr show dev {link}"));
        let infos = links[0]["addr_info"].as_array().unwrap().iter();
        let lasting = infos.filter(|a| a["scope"] != "link");
        lasting.map(|a| format!("{}/{}", a["local"].as_str().unwrap(), a["prefixlen"])).collect()
    }
}

/// The namespace of one container.
pub struct Container {
    /// CNI_CONTAINERID.
    pub id: String,
    /// CNI_NETNS, as the pretend host sees it.
    pub netns: String,
    namespace: Namespace,
    host: Namespace,
    holder: Mutex<Option<Again>>,
}

impl Container {
    /// Destroys the namespace as runtimes do, even if a process has it open. The path no longer
    /// exists.
    pub fn vanish(&self) {
        if let Some(holder) = self.holder.lock().unwrap().take() {
            drop(holder);
        } else {
            self.host.sh(&format!("umount --lazy {0} && rm {0}", self.netns));
        }
    }

    /// Destroys the namespace but leaves a plain file at its path, as a reboot does when the
    /// directory is not a tmpfs.
    pub fn go_stale(&self) {
        assert!(self.holder.lock().unwrap().is_none(), "only a file can go stale");
        self.host.sh(&format!("umount --lazy {}", self.netns));
    }
}

impl std::ops::Deref for Container {
    type Target = Namespace;
    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

/// Starts a process that keeps namespaces alive; dropping it destroys them.
fn hold(mut line: Vec<String>, script: &str) -> Again {
    line.extend(["sh", "-c", script].map(str::to_owned));
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", line.join(" ")));
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(
        said, "ready\n",
        "the namespaces could not be made; see stderr. As an ordinary user this needs user namespaces"
    );
    Again::of(child)
}

/// The command line that enters the namespaces of `pid`; `netns` (a path in its mount namespace)
/// replaces its network namespace.
fn enter(pid: u32, netns: Option<&str>) -> Vec<String> {
    let nsenter = located("nsenter").into_os_string().into_string().unwrap();
    let mut line = vec![nsenter, format!("--target={pid}"), "--mount".to_owned()];
    line.push(match netns {
        None => "--net".to_owned(),
        // nsenter opens the file before it enters any namespace, so the path goes through the root
        // of that process.
        Some(path) if path.starts_with("/proc/") => format!("--net={path}"),
        Some(path) => format!("--net=/proc/{pid}/root{path}"),
    });
    if !is_root() {
        line.extend(["--user".to_owned(), "--preserve-credentials".to_owned()]);
    }
    line.push("--".to_owned());
    line
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
