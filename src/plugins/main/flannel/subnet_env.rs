//! The file that flanneld writes: the node's subnets and what the network is like.

use std::io;
use std::path::Path;

use ipnet::IpNet;

use crate::cni::addr;
use crate::error::{Code, Error, Result};
use crate::net::netlink::Netlink;
use crate::plain_file;

/// The longest file; flanneld's has 200 bytes.
const LIMIT: usize = 64 * 1024;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The networks, IPv4's first, each once.
    pub networks: Vec<IpNet>,
    /// The node's subnets, IPv4's first.
    pub subnets: Vec<IpNet>,
    /// The MTU of containers.
    pub mtu: u32,
    /// Whether flanneld masquerades.
    pub ip_masq: bool,
}

/// The lines, as they are found one by one.
#[derive(Default)]
struct Lines {
    networks: [Option<Vec<IpNet>>; 2],
    subnets: [Option<IpNet>; 2],
    mtu: Option<u32>,
    ip_masq: Option<bool>,
}

/// The lines' names, in the order in which missing ones are reported.
const NETWORKS: [&str; 2] = ["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"];
const SUBNETS: [&str; 2] = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"];
const MTU: &str = "FLANNEL_MTU";
const IPMASQ: &str = "FLANNEL_IPMASQ";

impl SubnetEnv {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<SubnetEnv> {
        let place = path.display();
        match plain_file::read_of_others(path, LIMIT) {
            Ok(text) => SubnetEnv::parse(&String::from_utf8_lossy(&text), path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let reason = format!("open {place}: no such file or directory");
                Err(failed(Code::TRY_AGAIN, &reason).with_details(
                    "flanneld writes the file when it has the node's subnet, and k3s's agent when its own flannel starts",
                ))
            }
            Err(e) => Err(failed(Code::IO, &Error::io(format_args!("open {place}"), &e).msg)),
        }
    }

    /// Reads the file's text.
    pub fn parse(text: &str, path: &Path) -> Result<SubnetEnv> {
        let place = path.display();
        let mut lines = Lines::default();
        for (number, line) in (1..).zip(text.lines()) {
            lines.take(line).map_err(|problem| {
                failed(Code::INVALID_CONFIG, &problem)
                    .with_details(format_args!("line {number} of {place}"))
            })?;
        }
        // flanneld renames the whole file into its place; another writer may be at work.
        lines
            .finish()
            .map_err(|missing| failed(Code::TRY_AGAIN, &format!("{place} is missing {missing}")))
    }
}

impl Lines {
    /// Takes a line; one with another name is passed over.
    fn take(&mut self, line: &str) -> Result<(), String> {
        let Some((name, value)) = line.split_once('=') else {
            // The original panics at one of the names without `=`.
            let mut known = NETWORKS.iter().chain(&SUBNETS).chain([&MTU, &IPMASQ]);
            return match known.find(|name| **name == line) {
                Some(name) => Err(format!("{name} has no value, expected {name}=")),
                None => Ok(()),
            };
        };
        for family in [0, 1] {
            if name == NETWORKS[family] {
                self.networks[family] = Some(networks(value)?);
            }
            if name == SUBNETS[family] {
                self.subnets[family] = Some(net(value)?);
            }
        }
        match name {
            MTU => self.mtu = Some(mtu(value)?),
            IPMASQ => self.ip_masq = Some(value == "true"),
            _ => (), // NETWORKS and SUBNETS are done; another name is passed over
        }
        Ok(())
    }

    /// What the lines say together, or the names of those that are missing.
    fn finish(self) -> Result<SubnetEnv, String> {
        let mut missing = vec![];
        if self.networks.iter().all(Option::is_none) {
            missing.extend(NETWORKS);
        }
        if self.subnets.iter().all(Option::is_none) {
            missing.extend(SUBNETS);
        }
        missing.extend(self.mtu.is_none().then_some(MTU));
        missing.extend(self.ip_masq.is_none().then_some(IPMASQ));
        if !missing.is_empty() {
            return Err(missing.join(", "));
        }
        Ok(SubnetEnv {
            networks: self.networks.into_iter().flatten().flatten().collect(),
            subnets: self.subnets.into_iter().flatten().collect(),
            mtu: self.mtu.unwrap_or_default(),
            ip_masq: self.ip_masq.unwrap_or_default(),
        })
    }
}

fn networks(list: &str) -> Result<Vec<IpNet>, String> {
    let mut found = vec![];
    for text in list.split(',') {
        let net = net(text)?;
        if !found.contains(&net) {
            found.push(net);
        }
    }
    Ok(found)
}

/// A subnet; the host bits of flanneld's SUBNET are the gateway.
fn net(text: &str) -> Result<IpNet, String> {
    Ok(addr::parse_cidr(text)?.trunc())
}

fn mtu(text: &str) -> Result<u32, String> {
    let is_decimal = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let problem = if is_decimal { "value out of range" } else { "invalid syntax" };
    let parsed = text.parse().ok().filter(|_| is_decimal);
    parsed.ok_or_else(|| format!("{MTU}: parsing {text:?}: {problem}"))
}

/// The original's sentence about a file that does not serve.
fn failed(code: Code, reason: &str) -> Error {
    let sentence = format!(
        "failed to load flannel 'subnet.env' file: {reason}. Check the flannel pod log for this node."
    );
    Error::new(code, sentence)
}

/// The links of flanneld's backends: vxlan and geneve with their usual VNI, wireguard, ipip and udp.
/// Each is looked up by its name: a list of all links would take longer with every container.
const LINKS: [&str; 6] =
    ["flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "flannel.ipip", "flannel0"];

/// Fails if a link of flanneld has an address of the network that is in none of the node's subnets.
/// Backends without a link, such as host-gw, show nothing, nor does a link of another name.
pub fn refuse_stale(host: &Netlink, env: &SubnetEnv) -> Result<()> {
    let is_in = |all: &[IpNet], net: IpNet| all.iter().any(|one| one.contains(&net.addr()));
    for name in LINKS {
        let Some(link) = host.find_link(name)? else { continue };
        let mut nets = host.addresses(&link)?.into_iter().map(|address| address.net);
        let is_other = |net: &IpNet| is_in(&env.networks, *net) && !is_in(&env.subnets, *net);
        if let Some(other) = nets.find(is_other) {
            let address = other.addr();
            let msg = format!("subnet.env is stale: link {:?} has address {address}", link.name);
            return Err(Error::new(Code::TRY_AGAIN, msg).with_details(
                "flanneld has another subnet by now, and writes the file when it starts",
            ));
        }
    }
    Ok(())
}
