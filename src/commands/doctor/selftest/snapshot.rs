//! What a host and its containers have, to compare after with before.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use crate::error::{Error, Result};
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::net::nft::Nft;

/// Where plugins and runtimes keep files.
const STATE: [&str; 2] = ["/var/lib/cni", "/run/cni"];
/// Files that stay, and hold no address: locks, the address that was given last, and which boot
/// cluster-local's leases are of.
const STAYING: [&str; 4] = ["lock", "last_reserved_ip", ".lock", "boot"];

/// The table of the rule that the kernel adds with a namespace's first VRF, and keeps: that of the
/// VRF that a packet belongs to (Documentation/networking/vrf.rst).
const L3MDEV: u32 = 0;

/// Lines that say what there is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Looks at these namespaces, each with its name, and at the files.
    pub fn take(namespaces: &[(&str, &Netns)]) -> Result<Snapshot> {
        let mut lines = BTreeSet::new();
        for (name, netns) in namespaces {
            let ruleset =
                netns.enter(|| Nft::open_if_there()?.map_or(Ok(vec![]), |nft| nft.ruleset()))?;
            let seen = links(netns.netlink()?)?.into_iter().chain(ruleset);
            lines.extend(seen.map(|line| format!("{name}: {line}")));
        }
        STATE.iter().for_each(|dir| add_files(&mut lines, Path::new(dir)));
        Ok(Snapshot(lines))
    }

    /// What this one has and the other lacks.
    pub fn beyond<'a>(&'a self, other: &'a Snapshot) -> Vec<&'a str> {
        self.0.difference(&other.0).map(String::as_str).collect()
    }

    /// Fails if the other differs, and says in what.
    pub fn require_same(&self, after: &Snapshot) -> Result<()> {
        let (more, fewer) = (after.beyond(self), self.beyond(after));
        if more.is_empty() && fewer.is_empty() {
            return Ok(());
        }
        let text = format!("left: {}; gone: {}", more.join(", "), fewer.join(", "));
        Err(Error::check(text))
    }
}

/// Links, addresses, routes and rules. Counters and states that change by themselves are left out,
/// and so is what the kernel gives a link that is up: 127.0.0.1, ::1, and link-local addresses,
/// which come when a link has a carrier.
fn links(netlink: &Netlink) -> Result<Vec<String>> {
    let mut lines: Vec<String> = netlink.links()?.iter().map(link_line).collect();
    let addresses = netlink.all_addresses()?;
    let chosen = addresses.iter().map(|address| address.net).filter(is_chosen);
    lines.extend(chosen.map(|net| format!("address {net}")));
    let routes = netlink.routes()?.into_iter().filter(|route| is_chosen(&route.dst));
    lines.extend(routes.map(|route| format!("route {route:?}")));
    let rules = netlink.rules()?.into_iter().filter(|rule| rule.table != L3MDEV);
    lines.extend(rules.map(|rule| format!("rule {rule:?}")));
    Ok(lines)
}

/// Whether an administrator or a plugin may have chosen the address or the destination.
fn is_chosen(net: &IpNet) -> bool {
    let by_kernel = match net.addr() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    !by_kernel
}

fn link_line(link: &Link) -> String {
    let Link { name, alias, mtu, up, master, promisc, .. } = link;
    let kind = link.kind_text();
    format!("link {name} {kind} {alias:?} mtu {mtu} up {up} master {master:?} promisc {promisc}")
}

/// The files below a directory, which may be missing.
fn add_files(lines: &mut BTreeSet<String>, dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let stays =
            STAYING.iter().any(|staying| name.starts_with(staying) || name.ends_with(staying));
        if path.is_dir() {
            add_files(lines, &path);
        } else if !stays {
            lines.insert(format!("file {}", path.display()));
        }
    }
}
