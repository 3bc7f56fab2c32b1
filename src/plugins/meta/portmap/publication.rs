//! The ports of one attachment, as they are to be published.
//!
//! A process of the host that listens at one of them is warned of: its packets reach the container
//! instead. As with the reference, that is no error.
//!
//! Addresses of services that are the host's own. kube-proxy in IPVS mode, and kube-router, give
//! them to a link of the host, and redirect their packets where the kernel delivers them: later than
//! any rule of nat. The ACCEPT that kube-proxy's rules of nat have for these packets ends its own
//! chain, and not ours (CVE-2019-9946).
//!
//! No expression of nftables tells which link has an address, except the one that a packet arrives
//! by. So where there is such a link, a port at all addresses is open at those of the link that the
//! packet arrives by, and at the others that the host had when the port was published. kube-proxy
//! adds and removes addresses all the time. A port is published like this also where kubelet runs and
//! kube-proxy, which has to come yet, may make such a link.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::conf::Conf;
use super::mapping::{self, Forward, Protocol};
use crate::cni::attachment::Key;
use crate::cni::result::{AddResult, IpConfig};
use crate::cni::valid::Holder;
use crate::error::{Error, Result, warn};
use crate::family::Family;
use crate::net::module;
use crate::net::netlink::Link;
use crate::net::nft::NfFamily;
use crate::net::nft::batch::Table;
use crate::net::sock_diag::{Local, SocketDiag};
use crate::plugin::{Attachment, Context};
use crate::sys::process;

/// What an attachment's ports lead to.
pub struct Publication<'a> {
    /// The attachment.
    pub key: &'a Key,
    /// Its configuration.
    pub conf: &'a Conf,
    /// The mappings, each with its destination.
    pub forwards: Vec<Forward>,
    /// With nftables: the host's own addresses, if others are those of services.
    pub known: Option<Vec<IpNet>>,
}

/// Another attachment or container that has a port, as its rules show it.
pub struct Held {
    /// The words that name it in messages.
    pub words: String,
    /// Its network; empty if unknown.
    pub network: String,
    /// Its container.
    pub holder: Holder,
    /// Where its ports lead to.
    pub addresses: Vec<IpAddr>,
}

impl<'a> Publication<'a> {
    /// Plans the forwards to the container's first address of each family.
    pub fn plan(conf: &'a Conf, result: &AddResult, at: &'a Attachment) -> Result<Publication<'a>> {
        let v4 = first_address(result, at, Family::V4);
        let v6 = first_address(result, at, Family::V6);
        if !conf.mappings.is_empty() && v4.or(v6).is_none() {
            let ifname = at.ifname();
            let problem = format!(
                "interface {ifname:?} has no address, expected one for the ports to lead to"
            );
            return Err(Error::config("prevResult.ips", problem));
        }
        let forwards = mapping::plan(&conf.mappings, v4, v6)?;
        Ok(Publication { key: &at.key, conf, forwards, known: None })
    }

    /// Whether there is nothing to publish.
    pub fn is_empty(&self) -> bool {
        self.forwards.is_empty()
    }

    /// The forwards of one family.
    pub fn of_family(&self, family: Family) -> impl Iterator<Item = &Forward> {
        self.forwards.iter().filter(move |forward| forward.family() == family)
    }

    /// The same publication for each family that it has forwards of, with that family's address of
    /// the container.
    pub fn by_family(&self) -> Vec<(IpAddr, Publication<'a>)> {
        let of_family = |family| {
            let forwards: Vec<Forward> = self.of_family(family).cloned().collect();
            let address = forwards.first()?.to.addr();
            Some((address, Publication { forwards, known: None, ..*self }))
        };
        Family::ALL.into_iter().filter_map(of_family).collect()
    }
}

/// The first port, and how many more there are.
impl fmt::Display for Publication<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.forwards.first() else { return f.write_str("no port") };
        write!(f, "port {first}")?;
        let ports: HashSet<_> = self.forwards.iter().map(Forward::to_string).collect();
        match ports.len() {
            0 | 1 => Ok(()),
            count => write!(f, " and {} more", count - 1),
        }
    }
}

/// Returns the first address of a family that the container's interface has, or that no interface
/// is named for.
fn first_address(result: &AddResult, at: &Attachment, family: Family) -> Option<IpNet> {
    let interface_of = |ip: &IpConfig| result.interfaces.get(usize::try_from(ip.interface?).ok()?);
    let is_in_container = |ip: &&IpConfig| {
        interface_of(ip)
            .is_none_or(|interface| interface.name == at.ifname() && !interface.sandbox.is_empty())
    };
    let mut addresses = result.ips.iter().filter(is_in_container).map(|ip| ip.address);
    addresses.find(|address| Family::of_net(*address) == family)
}

/// The links of kube-proxy and kube-router.
pub const SERVICE_LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// The host's own addresses, if it has some that are those of services, or may get them.
pub fn own_addresses(cx: &Context<'_>) -> Result<Option<Vec<IpNet>>> {
    let may_come = may_come(cx)?; // before the links, which come last
    let links = service_links(cx)?;
    if links.is_empty() && !may_come {
        return Ok(None);
    }
    let mut all = cx.host()?.all_addresses()?;
    all.retain(|address| links.iter().all(|link| link.index != address.link));
    let mut own: Vec<IpNet> = all.into_iter().map(|own| own.net.addr().into()).collect();
    own.sort_unstable();
    own.dedup();
    Ok(Some(own))
}

/// Whether kubelet runs, and no kube-proxy yet. Since Kubernetes 1.24 kubelet makes a chain before it
/// starts a container; kube-proxy makes one, or a table, in each of its modes.
fn may_come(cx: &Context<'_>) -> Result<bool> {
    const PROXY: Table = Table { family: NfFamily::Ip, name: "kube-proxy" };
    let Some(nft) = cx.handles().nft()? else { return Ok(false) };
    let has = |table, chain| nft.chain(NfFamily::Ip, table, chain).map(|found| found.is_some());
    let is_kubelet_there = has("mangle", "KUBE-IPTABLES-HINT")?;
    Ok(is_kubelet_there && !has("nat", "KUBE-SERVICES")? && !nft.has_table(PROXY)?)
}

/// The links of the host that have the addresses of services.
pub fn service_links(cx: &Context<'_>) -> Result<Vec<Link>> {
    let mut found = vec![];
    for name in SERVICE_LINKS {
        found.extend(cx.host()?.find_link(name)?);
    }
    Ok(found)
}

/// The limit of all searches for processes of one ADD. A node with many descriptors exceeds it, and
/// then the warning names no process.
const SEARCH: Duration = Duration::from_millis(100);

/// Warns of each process of the host that listens at one of the ports. A kernel without sock_diag, or
/// an unanswered question, is no warning and no error: ADD does not depend on it.
pub fn warn_of_listeners(ports: &Publication<'_>) {
    let Ok(sockets) = SocketDiag::open() else { return };
    let mut known = vec![];
    let mut left = SEARCH;
    for forward in ports.forwards.iter().filter(|forward| may_ask(forward.protocol)) {
        let Ok(Some(inode)) = sockets.receiver(&local(forward)) else { continue };
        if !known.contains(&inode) {
            known.push(inode); // one socket can serve both families
            let start = Instant::now();
            let who = match process::holder_of_socket(inode, start + left) {
                Some(process::Holder { pid, command }) => format!("process {pid} ({command:?})"),
                None => "a process".to_owned(),
            };
            warn(format_args!(
                "portmap: {who} of the host listens at port {forward}, which leads to the container now"
            ));
            left = left.saturating_sub(start.elapsed());
        }
    }
}

/// Whether the kernel answers for this protocol without starting modprobe in vain at each ADD.
fn may_ask(protocol: Protocol) -> bool {
    let module = match protocol {
        Protocol::Tcp => "tcp_diag",
        Protocol::Udp => "udp_diag",
        Protocol::Sctp => return false,
    };
    ["inet_diag", module].into_iter().all(module::is_there_or_loads)
}

/// Where a process would listen. At the loopback address the kernel finds sockets at all addresses
/// as well.
fn local(forward: &Forward) -> Local {
    let loopback: IpAddr = match forward.family() {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    Local {
        protocol: forward.protocol as u8,
        address: forward.at.unwrap_or(loopback),
        port: forward.host_port,
    }
}
