//! Namespaces of this process's own (namespaces(7)): what it does to networks in there does not
//! reach the machine's.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, getegid, geteuid};

use crate::error::{Error, Result};

/// Directories that are new and empty in there: state of plugins and runtimes, sockets of daemons.
const EMPTY: [&str; 2] = ["/run", "/var/lib"];

/// Where `ip netns` and runtimes keep namespaces.
const NETNS_DIR: &str = "/run/netns";

/// What stands in the way of namespaces, with the next step: a file, the text that it then has, and
/// the advice.
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

/// Moves this process, which has one thread, into network and mount namespaces of its own; into a
/// user namespace as well if it lacks CAP_SYS_ADMIN. Its children are in a PID namespace that the
/// first of them ends. [`EMPTY`] directories hide the machine's.
pub fn enter() -> Result<()> {
    unshare_all().and_then(|()| hide_machine()).map_err(|e| explained(&e))
}

fn unshare_all() -> io::Result<()> {
    let wanted = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    match leave(wanted) {
        Err(Errno::EPERM) => become_root_in(wanted),
        left => Ok(left?),
    }
}

#[expect(clippy::disallowed_methods, reason = "the whole process moves, and never returns")]
fn leave(namespaces: CloneFlags) -> nix::Result<()> {
    unshare(namespaces)
}

/// Enters a user namespace, in which this user is root, together with the others.
fn become_root_in(namespaces: CloneFlags) -> io::Result<()> {
    let Ids { uid, gid } = Ids::current();
    leave(namespaces | CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

struct Ids {
    uid: Uid,
    gid: Gid,
}

impl Ids {
    fn current() -> Ids {
        Ids { uid: geteuid(), gid: getegid() }
    }
}

fn hide_machine() -> io::Result<()> {
    let nothing: Option<&str> = None;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    for dir in EMPTY {
        mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    }
    // The links of this namespace. A container runtime may have made it read-only, so that it can
    // be mounted in no other way: then only the addresses of PCI devices are the machine's.
    let _ = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::MS_RDONLY, nothing);
    fs::create_dir(NETNS_DIR)
}

/// Shows the processes of this PID namespace in /proc; called in its first process. A container
/// runtime that hides parts of /proc makes the kernel refuse: then it shows all of the machine's.
pub fn show_own_processes() {
    let (nothing, flags) = (None::<&str>, MsFlags::empty());
    let _ = mount(Some("proc"), "/proc", Some("proc"), flags, nothing);
}

/// The error, with what stands in the way.
fn explained(error: &io::Error) -> Error {
    Error::io("make namespaces", error).with_details(obstacle())
}

fn obstacle() -> &'static str {
    let is_there = |(file, text, _): &&(&str, &str, &str)| {
        fs::read_to_string(file).is_ok_and(|found| found.trim_end() == *text)
    };
    let inside_container = "a container's runtime may forbid it: run it on the host, \
                            or in a container with CAP_SYS_ADMIN and without a seccomp filter";
    OBSTACLES.iter().find(is_there).map_or(inside_container, |(.., advice)| advice)
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
    let made = File::create_new(&path).and_then(|_| keep_new_netns(&path));
    made.map_err(Error::at_path("make the namespace", &path))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Mounts a new namespace, of a thread that then ends, on the file.
fn keep_new_netns(path: &Path) -> io::Result<()> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || {
            leave(CloneFlags::CLONE_NEWNET)?;
            let (own, nothing) = ("/proc/thread-self/ns/net", None::<&str>);
            Ok(mount(Some(own), path, nothing, MsFlags::MS_BIND, nothing)?)
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
