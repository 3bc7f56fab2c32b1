//! Private namespaces: the machine's own network and CNI state are neither changed nor measured.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::Result;

/// Set in the re-executed process, which runs inside the namespaces.
const INSIDE: &str = "CNI_MULTI_BENCH_INSIDE";

/// The directory of the benchmark's own files, below the private /run.
pub const SCRATCH: &str = "/run/bench";

/// Re-executes this program under unshare(1); returns only inside the namespaces.
pub fn ensure_private() -> Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return hide_machine_state();
    }
    let itself =
        std::env::current_exe().map_err(|e| format!("find the benchmark's own program: {e}"))?;
    // Without root, a user namespace provides it: everything measured here is allowed there.
    let flags = if nix::unistd::geteuid().is_root() { "-nm" } else { "-Urnm" };
    let failure = Command::new("unshare")
        .arg(flags)
        .arg("--")
        .arg(itself)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(format!("run `unshare {flags}`: {failure}"))
}

/// Mounts empty file systems over the directories that plugins and iptables write to.
fn hide_machine_state() -> Result<()> {
    tmpfs("/run")?;
    // Creating /var/lib/cni would leave a directory behind on the machine, so its parent is hidden
    // if it does not exist.
    tmpfs(if Path::new("/var/lib/cni").is_dir() { "/var/lib/cni" } else { "/var/lib" })?;
    std::fs::create_dir_all(SCRATCH).map_err(|e| format!("create {SCRATCH:?}: {e}"))
}

/// Deletes the leases and records that plugins have left in the private /var/lib/cni and /run/cni.
pub fn forget_attachments() {
    let directories = ["/var/lib/cni", "/run/cni"].into_iter().map(std::fs::read_dir);
    for entry in directories.flatten().flatten().flatten() {
        let _ = std::fs::remove_dir_all(entry.path()); // a file is none
    }
}

fn tmpfs(target: &str) -> Result<()> {
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .map_err(|e| format!("mount tmpfs on {target:?}: {e}"))
}

/// A network namespace with the lifetime of this value.
pub struct Netns(OwnedFd);

impl Netns {
    pub fn create() -> Result<Netns> {
        // On a thread of its own: unshare moves the calling thread, and the main thread must not
        // move.
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| format!("unshare a network namespace: {e}"))?;
            File::open("/proc/thread-self/ns/net")
                .map_err(|e| format!("open the new network namespace: {e}"))
        });
        let file = made
            .join()
            .map_err(|_| "the thread that unshares a network namespace panicked".to_owned())??;
        Ok(Netns(file.into()))
    }

    /// A path that other processes can open; no bind mount is needed.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Moves the calling thread, and thus the processes that it starts, into this namespace.
    pub fn enter(&self) -> Result<()> {
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|e| format!("enter {}: {e}", self.path()))
    }

    /// Accepts connections on a TCP port of this namespace until the process ends.
    pub fn serve(&self, port: u16) -> Result<()> {
        self.answer(port, drop)
    }

    /// The same, and reads each connection to its end, one after the other. The answer is one octet.
    pub fn receive(&self, port: u16) -> Result<()> {
        self.answer(port, |mut stream| {
            let mut buffer = vec![0; 128 << 10];
            while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            let _ = stream.write_all(b"."); // a client that only connects is gone
        })
    }

    fn answer(&self, port: u16, each: impl FnMut(TcpStream) + Send + 'static) -> Result<()> {
        // On a thread of its own, as above. The socket stays in the namespace where it was created.
        let listen = || {
            self.enter()?;
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
                .map_err(|e| format!("listen at port {port}: {e}"))
        };
        let listener = std::thread::scope(|scope| scope.spawn(listen).join())
            .map_err(|_| format!("the thread that listens at port {port} panicked"))??;
        std::thread::spawn(move || listener.incoming().flatten().for_each(each));
        Ok(())
    }

    /// A UDP socket of this namespace; port 0 is any.
    pub fn udp_socket(&self, port: u16) -> Result<UdpSocket> {
        // On a thread of its own, as above.
        let open = || {
            self.enter()?;
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))
                .map_err(|e| format!("bind UDP port {port}: {e}"))
        };
        std::thread::scope(|scope| scope.spawn(open).join())
            .map_err(|_| format!("the thread that binds UDP port {port} panicked"))?
    }

    /// Runs ip(8) in the namespace; returns whether it succeeded.
    pub fn ip(&self, arguments: &str) -> Result<bool> {
        self.run(&format!("ip {arguments}"))
    }

    /// Runs a command, whose words are separated by single spaces, in the namespace; returns
    /// whether it succeeded.
    pub fn run(&self, command: &str) -> Result<bool> {
        // On a thread of its own, as above.
        let run = || {
            self.enter()?;
            let mut words = command.split(' ');
            let output = Command::new(words.next().unwrap_or_default()).args(words).output();
            output
                .map(|output| output.status.success())
                .map_err(|e| format!("run `{command}`: {e}"))
        };
        std::thread::scope(|scope| scope.spawn(run).join())
            .map_err(|_| format!("the thread that runs `{command}` panicked"))?
    }
}

/// Container namespaces that are created before the timing starts.
pub struct Pool(Vec<Netns>);

impl Pool {
    /// The most namespaces held at once (open files, kernel memory): later runs reuse one that DEL
    /// has emptied.
    const LARGEST: usize = 100;

    pub fn new(wanted: usize) -> Result<Pool> {
        (0..wanted.clamp(1, Self::LARGEST))
            .map(|_| Netns::create())
            .collect::<Result<Vec<_>>>()
            .map(Pool)
    }

    /// The first namespace, for what is created once.
    pub fn first(&self) -> &Netns {
        &self.0[0]
    }

    /// The namespace of one run.
    pub fn path(&self, run: usize) -> String {
        self.0[run % self.0.len()].path()
    }
}
