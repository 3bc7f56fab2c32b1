//! Finds the network namespaces of the machine, for callers that must know which addresses are in
//! use.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::netns::Netns;
use crate::error::{Error, Result};

/// Where runtimes and `ip netns` keep namespaces that have no process.
const NAMED: [&str; 2] = ["/run/netns", "/run/docker/netns"];

/// Returns every address on a link of a network namespace other than this thread's: of those that a
/// thread is in, and of those that a file keeps. The addresses of a thread with more rights than
/// this one are read from its /proc/net. The kernel has no list of namespaces; one that only an
/// open file descriptor keeps is not found.
///
/// Fails if a namespace that exists may have been overlooked.
pub fn addresses_elsewhere() -> Result<HashSet<IpAddr>> {
    let mut seen = HashSet::from([Netns::current()?.identity()?]);
    let mut found = HashSet::new();
    let Threads { mut paths, unreadable, .. } = threads()?;
    for net in unreadable {
        found.extend(addresses_in(&net)?);
    }
    paths.extend(kept()?);
    for path in paths {
        let Some(netns) = Netns::open_if_there(&path.to_string_lossy())? else { continue };
        if seen.insert(netns.identity()?) {
            let addresses = netns.netlink()?.all_addresses()?;
            found.extend(addresses.iter().map(|address| address.net.addr()));
        }
    }
    Ok(found)
}

/// The namespaces that a file keeps, possibly with duplicates.
fn kept() -> Result<Vec<PathBuf>> {
    let mut paths = vec![];
    for dir in NAMED {
        match paths_in(Path::new(dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => (),
            found => paths.extend(found.map_err(|e| Error::io(format_args!("open {dir}"), &e))?),
        }
    }
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(|e| Error::io("read /proc/thread-self/mountinfo", &e))?;
    paths.extend(mounts.lines().filter_map(mounted));
    Ok(paths)
}

/// One thread of each namespace that has any.
#[derive(Default)]
struct Threads {
    /// Namespaces that can be entered.
    paths: Vec<PathBuf>,
    /// The `net` of threads with more rights than this one, whose namespaces it may not enter.
    unreadable: Vec<PathBuf>,
    /// The namespaces among `paths`, as their links name them.
    links: HashSet<PathBuf>,
    /// The inodes of the namespaces among `unreadable`, and of this thread's.
    nets: HashSet<Option<u64>>,
}

/// Finds a thread of each namespace.
fn threads() -> Result<Threads> {
    let mut found = Threads::default();
    found.nets.insert(inode(Path::new("/proc/thread-self/net")));
    for process in numbered(Path::new("/proc")).map_err(|e| Error::io("open /proc", &e))? {
        for thread in numbered(&process.join("task")).unwrap_or_default() {
            let path = thread.join("ns/net");
            match fs::read_link(&path) {
                Ok(link) => found.paths.extend(found.links.insert(link).then_some(path)),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    let net = thread.join("net");
                    let is_new = found.nets.insert(inode(&net));
                    found.unreadable.extend(is_new.then_some(net));
                }
                Err(_) => (), // it has exited
            }
        }
    }
    Ok(found)
}

/// The inode of a file that each namespace has exactly one of.
fn inode(net: &Path) -> Option<u64> {
    fs::metadata(net.join("dev")).ok().map(|file| file.ino())
}

/// Reads the addresses that a namespace's /proc/net lists, which needs no rights: those of links
/// that are up.
fn addresses_in(net: &Path) -> Result<HashSet<IpAddr>> {
    let trie = read_if_there(&net.join("fib_trie"))?;
    let inet6 = read_if_there(&net.join("if_inet6"))?;
    Ok(local_in(&trie).into_iter().chain(inet6.lines().filter_map(address_of)).collect())
}

/// Reads a file of a /proc/net; empty if it does not exist.
fn read_if_there(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        // The kernel lacks the family.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        // The thread has exited.
        Err(e) if e.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(String::new()),
        text => text.map_err(|e| Error::io(format_args!("read {}", path.display()), &e)),
    }
}

/// Parses the addresses in fib_trie: `|-- 10.1.0.2`, and on the next line `/32 host LOCAL`.
fn local_in(trie: &str) -> Vec<IpAddr> {
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    let is_local = |pair: &&[&str]| pair[1].ends_with("host LOCAL");
    let locals = lines.windows(2).filter(is_local);
    locals.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse().ok()).collect()
}

/// The address that a line of if_inet6 begins with, in hex.
fn address_of(line: &str) -> Option<IpAddr> {
    let hex = line.split(' ').next()?;
    u128::from_str_radix(hex, 16).ok().map(|bits| IpAddr::V6(bits.into()))
}

fn paths_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// The paths in a directory with a number as their name: processes, or threads.
fn numbered(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = paths_in(dir)?;
    paths.retain(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
    });
    Ok(paths)
}

/// Where a line of mountinfo mounts a network namespace: `36 35 0:4 net:[4026532281] /run/netns/x
/// rw - nsfs nsfs rw`.
fn mounted(line: &str) -> Option<PathBuf> {
    let mut words = line.split(' ').skip(3);
    let is_namespace = words.next()?.starts_with("net:[");
    is_namespace.then_some(words.next()?).map(|path| PathBuf::from(path.replace("\\040", " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_proc_net() {
        let trie = "Main:\n  +-- 10.1.0.0/24 2 0 2\n     |-- 10.1.0.0\n        /24 link UNICAST\n     |-- 10.1.0.2\n        /32 host LOCAL\n";
        assert_eq!(local_in(trie), ["10.1.0.2".parse::<IpAddr>().unwrap()]);
        let line = "fd000000000000000000000000000007 02 40 00 80     eth0";
        assert_eq!(address_of(line), Some("fd00::7".parse().unwrap()));
        let own = addresses_in(Path::new("/proc/self/net")).unwrap();
        assert!(own.is_empty() || own.iter().any(IpAddr::is_loopback), "{own:?}");
    }

    #[test]
    fn namespaces_that_are_mounted_are_found_in_mountinfo() {
        let line = "36 35 0:4 net:[4026532281] /run/netns/a\\040b rw shared:9 - nsfs nsfs rw";
        assert_eq!(mounted(line), Some(PathBuf::from("/run/netns/a b")));
        assert_eq!(mounted("22 1 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(mounted(""), None);
    }
}
