//! Which nameservers the programs of a container use.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::file_reader::{FileReader, is_none};
use crate::error::{Error, Result};
use crate::net::netns::FileId;
use crate::plain_file;

/// The file of a container.
const FILE: &str = "etc/resolv.conf";
/// More than a resolv.conf needs.
const LARGEST: usize = 64 * 1024;

/// How many name servers are used (resolv.conf(5)).
const MAXNS: usize = 3;

/// Where a resolv.conf is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the mount namespace of a process of the container.
    Process,
    /// Below /etc/netns.
    Named,
}

/// A resolv.conf.
pub struct Resolver {
    /// Where it is.
    pub source: Source,
    /// Its path.
    pub file: PathBuf,
    /// Its nameservers.
    pub servers: Vec<IpAddr>,
}

/// The resolvers of containers.
pub struct Resolvers {
    /// The root directories of processes with a file system of their own, by their network
    /// namespace.
    roots: HashMap<FileId, PathBuf>,
    reader: FileReader,
}

impl Default for Resolvers {
    fn default() -> Resolvers {
        Resolvers { roots: HashMap::new(), reader: FileReader::new(FILE, LARGEST) }
    }
}

impl Resolvers {
    /// Looks for the processes.
    pub fn look() -> Result<Resolvers> {
        let proc = Path::new("/proc");
        let own = id(&proc.join("thread-self/ns/mnt"));
        let mut found = Resolvers::default();
        for entry in fs::read_dir(proc).map_err(Error::at_path("open", proc))? {
            let path = entry.map_err(Error::at_path("read", proc))?.path();
            let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
            if !path.file_name().and_then(|name| name.to_str()).is_some_and(is_number) {
                continue;
            }
            // A process may exit while it is examined.
            let Some(netns) = id(&path.join("ns/net")) else { continue };
            if !found.roots.contains_key(&netns) && id(&path.join("ns/mnt")) != own {
                found.roots.insert(netns, path.join("root"));
            }
        }
        Ok(found)
    }

    /// The resolver of the programs in this namespace, which `ip netns` may have a name for; None
    /// if there is no such file.
    pub fn of(&mut self, netns: FileId, name: Option<&str>) -> Result<Option<Resolver>> {
        if let Some(name) = name
            && let Some(resolver) = named(name)?
        {
            return Ok(Some(resolver));
        }
        let Some(root) = self.roots.get(&netns) else { return Ok(None) };
        let text = self.reader.read(root)?;
        Ok(text.map(|text| resolver(Source::Process, root.join(FILE), &text)))
    }
}

/// Device and inode of a namespace's file.
fn id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The file that `ip netns exec` shows as /etc/resolv.conf (ip-netns(8)).
pub fn named_file(name: &str) -> PathBuf {
    Path::new("/etc/netns").join(name).join("resolv.conf")
}

fn named(name: &str) -> Result<Option<Resolver>> {
    let file = named_file(name);
    match plain_file::read_configuration(&file) {
        Ok(text) => Ok(Some(resolver(Source::Named, file, &text))),
        Err(e) if is_none(&e) => Ok(None),
        Err(e) => Err(Error::at_path("read", &file)(e)),
    }
}

fn resolver(source: Source, file: PathBuf, text: &[u8]) -> Resolver {
    let text = String::from_utf8_lossy(text);
    Resolver { source, file, servers: text.lines().filter_map(server).take(MAXNS).collect() }
}

/// The address of a `nameserver` line (resolv.conf(5)).
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    let is_server = words.next() == Some("nameserver");
    let address = words.next().filter(|_| is_server)?;
    address.split('%').next()?.parse().ok()
}

/// Whether a socket of this thread's namespace receives datagrams for the address.
pub fn is_served(server: IpAddr, port: u16) -> Result<bool> {
    for name in ["udp", "udp6"] {
        let file = PathBuf::from("/proc/thread-self/net").join(name);
        let table = match fs::read_to_string(&file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // no IPv6
            table => table.map_err(Error::at_path("read", &file))?,
        };
        let mut sockets = table.lines().skip(1).filter_map(local_address);
        let is_its = |(ip, at): (IpAddr, u16)| at == port && (ip == server || ip.is_unspecified());
        if sockets.any(is_its) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The local address of a line of /proc/net/udp: words of the host's byte order, in hex.
fn local_address(line: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = line.split_whitespace().nth(1)?.split_once(':')?;
    let word = |index: usize| u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok();
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        _ => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].map(u32::to_ne_bytes);
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_those_of_their_lines() {
        let text = b"# nameserver 1.1.1.1\nsearch a\nnameserver 10.0.0.1\nnameserver\tfe80::1%eth0\nnameserver x\n";
        let servers = resolver(Source::Named, PathBuf::new(), text).servers;
        let expected: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(servers, expected);
    }

    #[test]
    fn a_socket_serves_its_address_and_no_other() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(is_served("127.0.0.1".parse().unwrap(), port).unwrap());
        assert!(!is_served("127.0.0.53".parse().unwrap(), port).unwrap());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn local_addresses_are_read_from_the_kernel_s_table() {
        let v4 = "  512: 3500007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000 101 0 1 2 0";
        assert_eq!(local_address(v4), Some(("127.0.0.53".parse().unwrap(), 53)));
        let v6 =
            "  1: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07";
        assert_eq!(local_address(v6), Some(("::1".parse().unwrap(), 53)));
        assert_eq!(local_address("  sl  local_address"), None);
    }
}
