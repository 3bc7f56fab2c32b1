//! What the host, the container and the disk have at one time of a rehearsal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipnet::IpNet;

use crate::error::Result;
use crate::net::netlink::{Handle, Link, Netlink};
use crate::net::netns::Netns;
use crate::net::nft::Nft;
use crate::net::replica::Replica;
use crate::net::sysctl;

/// Files that hold nothing: locks.
const LOCK: &str = "lock";

/// Everything.
pub struct Facts {
    /// The host's network.
    pub host: Network,
    /// The container's.
    pub container: Network,
    /// Files, with the time of their last change.
    pub files: BTreeMap<PathBuf, Option<SystemTime>>,
}

/// What a namespace has.
#[derive(Default)]
pub struct Network {
    /// Its links, by ifindex.
    pub links: BTreeMap<u32, Link>,
    /// Addresses, routes, rules and qdiscs, in words.
    pub objects: BTreeSet<String>,
    /// Sysctls with their values.
    pub sysctls: BTreeMap<String, String>,
    /// The ruleset of nf_tables.
    pub rules: Vec<String>,
}

impl Facts {
    /// Looks at the replica, and at the files below these directories.
    pub fn take(replica: &Replica, dirs: &[PathBuf]) -> Result<Facts> {
        let container = match replica.container_path() {
            Some(path) => Network::of(&Netns::open(&path)?)?,
            None => Network::default(),
        };
        let mut files = BTreeMap::new();
        dirs.iter().for_each(|dir| add_files(&mut files, dir));
        Ok(Facts { host: Network::of(&replica.host)?, container, files })
    }
}

impl Network {
    fn of(netns: &Netns) -> Result<Network> {
        let netlink = netns.netlink()?;
        let links: BTreeMap<u32, Link> =
            netlink.links()?.into_iter().map(|link| (link.index, link)).collect();
        let objects = objects(netlink, &links)?;
        netns.enter(|| {
            let rules = Nft::open_if_there()?.map_or(Ok(vec![]), |nft| nft.ruleset())?;
            Ok(Network { links, objects, sysctls: sysctl::all(), rules })
        })
    }

    /// The name of a link.
    pub fn name(&self, index: u32) -> &str {
        self.links.get(&index).map_or("", |link| &link.name)
    }
}

fn objects(netlink: &Netlink, links: &BTreeMap<u32, Link>) -> Result<BTreeSet<String>> {
    let name = |index: u32| links.get(&index).map_or("", |link| link.name.as_str());
    let mut objects = BTreeSet::new();
    for address in netlink.all_addresses()?.iter().filter(|address| is_chosen(&address.net)) {
        objects.insert(format!("address {} to {:?}", address.net, name(address.link)));
    }
    for route in netlink.routes()?.iter().filter(|route| is_chosen(&route.dst)) {
        let via: String = route.gateways.iter().map(|gateway| format!(" via {gateway}")).collect();
        let link = route.link.map(|index| format!(" dev {:?}", name(index))).unwrap_or_default();
        let table =
            if route.table == MAIN { String::new() } else { format!(" table {}", route.table) };
        objects.insert(format!("route {}{via}{link}{table}", route.dst));
    }
    for rule in netlink.rules()? {
        if let Some(source) = rule.source {
            objects.insert(format!("rule from {source} lookup {}", rule.table));
        }
    }
    for link in links.values() {
        for place in [Handle::ROOT, Handle::INGRESS] {
            if let Ok(Some(qdisc)) = netlink.qdisc_at(link, place) {
                objects.insert(format!("qdisc {} to {:?}", qdisc.kind.name(), link.name));
            }
        }
    }
    Ok(objects)
}

/// The routing table that is looked up by default (RT_TABLE_MAIN).
const MAIN: u32 = 254;

/// Whether an administrator or a plugin may have chosen the address or the destination. The kernel
/// adds the others to links that are up.
fn is_chosen(net: &IpNet) -> bool {
    let by_kernel = match net.addr() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast(),
    };
    !by_kernel
}

/// The files below a directory, which may be missing.
fn add_files(files: &mut BTreeMap<PathBuf, Option<SystemTime>>, dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.is_dir() {
            add_files(files, &path);
        } else if found.is_file() && !is_lock(&path) {
            files.insert(path, found.modified().ok());
        }
    }
}

fn is_lock(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(LOCK))
}
