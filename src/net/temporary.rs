//! A network namespace without a name, for a command that runs in it. It exists as long as this
//! process, and as long as processes are in it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns};

use super::netns::Netns;
use super::private::leave;
use crate::error::{Error, Result, warn};

/// LOOPBACK_IFINDEX of the kernel.
const LO_INDEX: u32 = 1;
/// The file that resolvers read.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where sysfs shows the links of the namespace that it was mounted in.
const SYS: &str = "/sys";

/// A network namespace of its own.
pub struct Temporary {
    file: File,
}

impl Temporary {
    /// Makes the namespace, with `lo` up: without it a command cannot even reach its own address.
    pub fn create() -> Result<Temporary> {
        let file = new_netns().map_err(|e| Error::io("make a network namespace", &e))?;
        let namespace = Temporary { file };
        let netns = Netns::open(&namespace.path())?;
        let netlink = netns.netlink()?;
        if let Some(lo) = netlink.find_link_by_index(LO_INDEX)? {
            netlink.set_up(&lo)?;
        }
        Ok(namespace)
    }

    /// Where other processes find it. The path is of an open file, and not `/proc/PID/ns/net`:
    /// another process that gets this number later has a namespace as well, but not this file.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Moves this single-threaded process into the namespace and into a mount namespace of its own,
    /// as `ip netns exec` does: /sys shows the links in there, and /etc/resolv.conf has this text,
    /// unless the host has no such file: it may be a dangling link.
    pub fn enter(&self, resolv_conf: Option<&str>) -> Result<()> {
        self.enter_netns().map_err(|e| Error::kernel("enter the temporary namespace", e))?;
        leave(CloneFlags::CLONE_NEWNS).map_err(|e| Error::kernel("make a mount namespace", e))?;
        // Mounts of the host still arrive, and none of these leaves.
        mount_on("/", None, MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
        if let Some(text) = resolv_conf {
            replace_resolv_conf(text)?;
        }
        // In a container with a read-only /sys the kernel refuses; /sys then shows
        // the links of the host.
        let _ = mount_on(SYS, Some("sysfs"), SAFE);
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "the whole process moves, and never returns")]
    fn enter_netns(&self) -> nix::Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
    }
}

/// The flags of file systems that hold neither programs nor devices.
const SAFE: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Opens a new namespace, of a thread that then ends.
fn new_netns() -> io::Result<File> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || {
            leave(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Mounts a file of a tmpfs on /etc/resolv.conf. No directory of the host gets the file: the tmpfs
/// hides /sys until the file is mounted, and then only that mount keeps it.
fn replace_resolv_conf(text: &str) -> Result<()> {
    mount_on(SYS, Some("tmpfs"), SAFE)?;
    let file = format!("{SYS}/resolv.conf");
    let bound = fs::write(&file, text).and_then(|()| Ok(bind_if_there(&file, RESOLV_CONF)?));
    let bound = bound.map_err(|e| Error::io(format_args!("mount on {RESOLV_CONF}"), &e));
    umount2(SYS, MntFlags::MNT_DETACH)
        .map_err(|e| Error::kernel(format_args!("unmount {SYS}"), e))?;
    bound
}

/// Mounts a file on another. Where that does not exist there is nothing to mount on, and a new file
/// would be the host's: warn, and let the command run without.
fn bind_if_there(from: &str, to: &str) -> Result<(), Errno> {
    match mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>) {
        Err(Errno::ENOENT) => {
            warn(format_args!("{to} does not exist, so the command gets no resolver settings"));
            Ok(())
        }
        bound => bound,
    }
}

fn mount_on(dir: &str, kind: Option<&str>, flags: MsFlags) -> Result<()> {
    mount(kind, dir, kind, flags, None::<&str>)
        .map_err(|e| Error::kernel(format_args!("mount on {dir}"), e))
}
