//! A network with DHCP servers, and the DHCP daemon of the peer under test.
//!
//! The network is a veth pair named `lan` at both ends: on the pretend host it is a bridge port or
//! a master, in the namespace outside it is the servers' interface. The servers are real ones
//! (`servers`), or one of our own for behaviour that those never show (`scripted`). Their files are
//! outside the lab, so that snapshots do not include them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attachment::with;
use super::call::{Call, Outcome, Peer};
use super::netns::{Lab, Namespace};
use super::scratch::Scratch;
use super::{patience, signals};

pub mod scripted;
pub mod servers;

/// The daemon's default socket, and where ours then keeps its leases.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
pub const JOURNAL: &str = "/run/cni/dhcp.leases";

/// The servers' address.
pub const SERVER: &str = "10.60.0.1";

/// Creates the network. The kernel may take a second to report the carrier of both ends, and until
/// then it sends nothing.
const LAN: &str = r"
ip link add lan type veth peer name lan netns outside
ip -n outside addr add 10.60.0.1/16 dev lan
ip -n outside link set lan up
ip link set lan up
until ip link show lan | grep -q 'state UP' && ip -n outside link show lan | grep -q 'state UP'; do sleep 0.01; done
";

/// How containers are attached to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bridge,
    Macvlan,
    Ipvlan,
}

impl Kind {
    /// A configuration that gets its addresses by DHCP.
    pub fn conf(self) -> Value {
        let base = json!({"cniVersion": "1.1.0", "name": "net1", "ipam": {"type": "dhcp"}});
        with(
            &base,
            match self {
                Kind::Bridge => json!({"type": "bridge", "bridge": "br0"}),
                Kind::Macvlan => json!({"type": "macvlan", "master": "lan"}),
                Kind::Ipvlan => json!({"type": "ipvlan", "master": "lan"}),
            },
        )
    }

    /// Whether this kernel supports the link kind.
    pub fn is_in(self, lab: &Lab) -> bool {
        let probe = "ip link add link uplink name probe type ipvlan && ip link del probe";
        self != Kind::Ipvlan || lab.host.try_sh(probe).status.success()
    }
}

impl Lab {
    /// Connects the pretend host to the servers' namespace, for attachments of this kind.
    pub fn lan(&self, kind: Kind) {
        self.host.sh(&format!("set -e; {LAN}"));
        if kind == Kind::Bridge {
            self.host.sh("ip link add br0 up type bridge; ip link set lan master br0");
        }
    }

    /// `cni-multi dhcp …` on the pretend host.
    pub fn dhcp(&self, args: &[&str]) -> Outcome {
        Call::cni_multi(&self.host.enter, ["dhcp"].iter().chain(args)).run()
    }
}

/// Waits for a condition; panics with `what` on timeout.
#[track_caller]
pub fn wait_until(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience(seconds);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program in a namespace of the lab. It is killed when this is dropped, and by the kernel when
/// the test process ends in any other way.
pub struct Process {
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts the program; its stdout and stderr go to `output`.
    pub fn start(at: &Namespace, line: &[String], stdin: Stdio, output: PathBuf) -> Process {
        let file = File::options().create(true).append(true).open(&output).unwrap();
        let mut command: Command = at.command("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(line).stdin(stdin);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        Process { child: command.spawn().unwrap(), output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }

    /// Sends a signal such as `TERM` and returns the exit status; the process has to end within
    /// seconds.
    #[track_caller]
    pub fn end_by(&mut self, signal: &str) -> i32 {
        signals::send(&self.child, format!("SIG{signal}").parse().unwrap());
        self.wait()
    }

    /// Waits for a process that ends by itself; returns its exit status.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        wait_until("the process ends", 10, || self.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        status.code().unwrap_or_else(|| -status.signal().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.output.display(), self.output()); // shown when the case fails
        }
    }
}

/// The daemon of the lab's peer.
pub struct Daemon<'a> {
    lab: &'a Lab,
    args: Vec<String>,
    process: Process,
    scratch: Scratch,
}

/// Flags for cases without an answering server: the attempt times out within three seconds.
pub const HASTY: [&str; 6] = ["-timeout", "1s", "-resendmax", "2s", "-resendtimeout", "3s"];

impl<'a> Daemon<'a> {
    /// Starts the daemon as the runtime's host would; returns when it listens.
    #[track_caller]
    pub fn start(lab: &'a Lab) -> Daemon<'a> {
        Daemon::with_flags(lab, &[])
    }

    #[track_caller]
    pub fn with_flags(lab: &'a Lab, flags: &[&str]) -> Daemon<'a> {
        let daemon = Daemon::launch(lab, flags, Stdio::null());
        daemon.wait_for_socket();
        daemon
    }

    /// Starts the daemon under another program, such as `setpriv … --`.
    #[track_caller]
    pub fn wrapped(lab: &'a Lab, wrapper: &[&str]) -> Daemon<'a> {
        let daemon = Daemon::run(lab, wrapper, &[], Stdio::null());
        daemon.wait_for_socket();
        daemon
    }

    /// The exit status and the log of a daemon that refuses to start under another program.
    #[track_caller]
    pub fn refused(lab: &'a Lab, wrapper: &[&str]) -> (i32, String) {
        let mut daemon = Daemon::run(lab, wrapper, &[], Stdio::null());
        (daemon.wait(), daemon.log())
    }

    /// Starts the daemon with a listener on its default socket, as systemd does.
    pub fn activated(lab: &'a Lab, listener: std::os::fd::OwnedFd, flags: &[&str]) -> Daemon<'a> {
        let systemd = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&0 </dev/null"#;
        Daemon::run(lab, &["sh", "-c", systemd, "sh"], flags, listener.into())
    }

    /// Starts the daemon without waiting for it.
    pub fn launch(lab: &'a Lab, flags: &[&str], stdin: Stdio) -> Daemon<'a> {
        Daemon::run(lab, &[], flags, stdin)
    }

    fn run(lab: &'a Lab, wrapper: &[&str], flags: &[&str], stdin: Stdio) -> Daemon<'a> {
        let args: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let wrapper = wrapper.iter().map(|word| (*word).to_owned());
        let line: Vec<String> = wrapper.chain(command_line(&lab.peer, &args)).collect();
        let scratch = Scratch::new();
        let process = Process::start(&lab.host, &line, stdin, scratch.join("log"));
        Daemon { lab, args, process, scratch }
    }

    /// The socket path that its flags name.
    fn socket(&self) -> &str {
        let mut args = self.args.iter().map(|arg| arg.trim_start_matches('-'));
        let given =
            args.find_map(|arg| arg.strip_prefix("socketpath")).map(|rest| rest.strip_prefix('='));
        given.map_or(SOCKET, |value| value.unwrap_or_else(|| args.next().unwrap()))
    }

    #[track_caller]
    pub fn wait_for_socket(&self) {
        let socket = self.lab.path(self.socket());
        wait_until("the daemon listens", 10, || UnixStream::connect(&socket).is_ok());
        if self.lab.peer != Peer::Ours {
            // The reference handles signals only once it answers requests.
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            assert_ne!(stream.read(&mut [0; 16]).unwrap(), 0);
        }
    }

    /// Restarts the daemon with the same flags, by `kill -9` if it runs.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process.kill();
        let line = command_line(&self.lab.peer, &self.args);
        self.process =
            Process::start(&self.lab.host, &line, Stdio::null(), self.scratch.join("log"));
        self.wait_for_socket();
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// A numeric field of `/proc/PID/status`, such as `VmHWM` or `voluntary_ctxt_switches`.
    pub fn status(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|value| value.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("{field}: {text}"))
    }

    /// The number of open file descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }
}

fn command_line(peer: &Peer, flags: &[String]) -> Vec<String> {
    let program = peer.dir().join("dhcp").to_str().unwrap().to_owned();
    [&[program, "daemon".to_owned()], flags].concat()
}

impl std::ops::Deref for Daemon<'_> {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl std::ops::DerefMut for Daemon<'_> {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
