//! Namespaces of this process's own (namespaces(7)): what it does to networks in there does not
//! reach the machine's.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use crate::error::{Error, Result};

/// Directories that are new and empty in there: state of plugins and runtimes, sockets of daemons.
const EMPTY: [&str; 2] = ["/run", "/var/lib"];

/// Where `ip netns` and runtimes keep namespaces.
pub const NETNS_DIR: &str = "/run/netns";

/// Settings that forbid user namespaces: the file, its text in that case, and the advice.
const OBSTACLES: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "user namespaces are switched off: sysctl user.max_user_namespaces=15000, or run it as root",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are for root only: sysctl kernel.unprivileged_userns_clone=1, or run it as root",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, \
         or run it as root",
    ),
];

/// Moves this single-threaded process into new network and mount namespaces, and without
/// CAP_SYS_ADMIN into a new user namespace. Its children get a new PID namespace, which ends with the
/// first child. [`EMPTY`] directories hide the machine's.
pub fn enter() -> Result<()> {
    let wanted = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    let left = match leave(wanted) {
        Err(Errno::EPERM) => become_root_in(wanted),
        left => left.map_err(io::Error::from),
    };
    left.map_err(|e| explained(&e))?;
    let nothing: Option<&str> = None;
    let all = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let refused = |dir, e: Errno| explained(&e.into()).context(format_args!("mount on {dir}"));
    mount(nothing, "/", nothing, all, nothing).map_err(|e| refused("/", e))?;
    for dir in EMPTY {
        let mounted = mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755"));
        mounted.map_err(|e| refused(dir, e))?;
    }
    // The links of this namespace. Where the kernel refuses, as in a container whose runtime has
    // made it read-only, the addresses of PCI devices are the machine's.
    let _ = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::MS_RDONLY, nothing);
    let netns_dir = Path::new(NETNS_DIR);
    fs::create_dir(netns_dir).map_err(Error::at_path("create", netns_dir))
}

/// Moves this process, or this thread if it then ends, into new namespaces.
#[expect(clippy::disallowed_methods, reason = "the whole process moves, and never returns")]
pub(super) fn leave(namespaces: CloneFlags) -> nix::Result<()> {
    unshare(namespaces)
}

/// Enters a user namespace, in which this user is root, together with the others.
fn become_root_in(namespaces: CloneFlags) -> io::Result<()> {
    let uid = geteuid();
    let gid = getegid();
    leave(namespaces | CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Shows the processes of this PID namespace in /proc; called in its first process. Whether it does:
/// the kernel refuses in a container whose runtime hides parts of /proc.
pub fn show_own_processes() -> bool {
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>).is_ok()
}

/// The error, with what stands in the way.
fn explained(error: &io::Error) -> Error {
    let wrapped = Error::io("make namespaces", error);
    let is_there = |(file, text, _): &&(&str, &str, &str)| {
        fs::read_to_string(file).is_ok_and(|found| found.trim_end() == *text)
    };
    let inside_container = "a container's runtime may forbid it: run it on the host, \
                            or in a container with CAP_SYS_ADMIN and without a seccomp filter";
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM | Errno::EACCES | Errno::ENOSPC) => wrapped.with_details(
            OBSTACLES.iter().find(is_there).map_or(inside_container, |(.., advice)| advice),
        ),
        Some(Errno::EINVAL) => wrapped.with_details(
            "in a chroot, or on a kernel without user namespaces: run it as root on the host",
        ),
        _ => wrapped,
    }
}

/// Deletes the file that keeps a namespace, as `ip netns delete NAME` does. The namespace goes when
/// nothing else keeps it.
pub fn delete_netns(name: &str) -> Result<()> {
    let path = Path::new(NETNS_DIR).join(name);
    let deleted = umount2(&path, MntFlags::MNT_DETACH).map_err(io::Error::from);
    let deleted = deleted.and_then(|()| fs::remove_file(&path));
    deleted.map_err(Error::at_path("delete the namespace", &path))
}

/// Makes a network namespace that `/run/netns/NAME` keeps, as `ip netns add NAME` does; returns its
/// path.
pub fn create_netns(name: &str) -> Result<String> {
    let path = Path::new(NETNS_DIR).join(name);
    let mount_on_file =
        |own: &str| Ok(mount(Some(own), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?);
    let made = File::create_new(&path).and_then(|_| in_new_netns(mount_on_file));
    made.map_err(Error::at_path("make the namespace", &path))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Runs `keep` with the path of a new namespace, on a thread of it that then ends.
pub(super) fn in_new_netns<T: Send>(
    keep: impl FnOnce(&str) -> io::Result<T> + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || {
            leave(CloneFlags::CLONE_NEWNET)?;
            keep("/proc/thread-self/ns/net")
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
