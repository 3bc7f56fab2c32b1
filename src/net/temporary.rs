//! A network namespace without a name, for a command that runs in it. It exists as long as this
//! process, and as long as processes are in it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns};

use super::netns::Netns;
use super::private::{in_new_netns, leave};
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
        let file = in_new_netns(|path| File::open(path))
            .map_err(|e| Error::io("make a network namespace", &e))?;
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
    #[expect(clippy::disallowed_methods, reason = "the whole process moves, and never returns")]
    pub fn enter(&self, resolv_conf: Option<&str>) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|e| Error::kernel("enter the temporary namespace", e))?;
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
}

/// The flags of file systems that hold neither programs nor devices.
const SAFE: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Mounts a file of a tmpfs on /etc/resolv.conf. No directory of the host gets the file: the tmpfs
/// hides /sys until the file is mounted, and then only that mount keeps it.
fn replace_resolv_conf(text: &str) -> Result<()> {
    mount_on(SYS, Some("tmpfs"), SAFE)?;
    let file = format!("{SYS}/resolv.conf");
    let (nothing, bind) = (None::<&str>, MsFlags::MS_BIND);
    let bound = fs::write(&file, text)
        .and_then(|()| Ok(mount(Some(file.as_str()), RESOLV_CONF, nothing, bind, nothing)?));
    umount2(SYS, MntFlags::MNT_DETACH)
        .map_err(|e| Error::kernel(format_args!("unmount {SYS}"), e))?;
    match bound {
        // There is nothing to mount on, and a new file would be the host's: run the command without.
        Err(e) if e.kind() == ErrorKind::NotFound => {
            warn(format_args!(
                "{RESOLV_CONF} does not exist, so the command gets no resolver settings"
            ));
            Ok(())
        }
        bound => bound.map_err(|e| Error::io(format_args!("mount on {RESOLV_CONF}"), &e)),
    }
}

fn mount_on(dir: &str, kind: Option<&str>, flags: MsFlags) -> Result<()> {
    mount(kind, dir, kind, flags, None::<&str>)
        .map_err(|e| Error::kernel(format_args!("mount on {dir}"), e))
}
