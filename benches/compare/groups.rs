//! The groups of cases, and what a machine must have for each.

use crate::Result;
use crate::cases::{self, Bench};
use crate::connections;
use crate::crowds;
use crate::density;
use crate::leaks;
use crate::memory;
use crate::namespaces::Netns;
use crate::netavark;
use crate::packets;
use crate::ports;
use crate::process::find_program;
use crate::schedule::Lane;

/// A group of lanes that `--only` selects by name.
pub struct Group {
    pub name: &'static str,
    pub lanes: fn(&Bench) -> Result<Vec<Lane>>,
    /// What the machine must provide for it.
    pub needs: &'static [Need],
}

/// A requirement that a machine may lack.
#[derive(Clone, Copy)]
pub enum Need {
    /// A program that the reference needs to run it.
    Program(&'static str),
    /// podman's own program for networks.
    Netavark,
    /// A kind of link that the kernel must support, with the arguments that creating one requires.
    Link(&'static str, &'static str),
    /// The kernel must have flowtables.
    Flowtables,
}

pub static GROUPS: &[Group] = &[
    Group { name: "version", lanes: cases::version, needs: &[] },
    Group { name: "about", lanes: cases::about, needs: &[] },
    Group { name: "loopback", lanes: cases::loopback, needs: &[] },
    Group { name: "bridge", lanes: cases::bridges, needs: &[] },
    Group {
        name: "bridge-nftables",
        lanes: cases::bridge_nftables,
        needs: &[Need::Program("nft")],
    },
    Group {
        name: "bridge-iptables",
        lanes: cases::bridge_iptables,
        needs: &[Need::Program("iptables")],
    },
    Group { name: "ptp", lanes: cases::ptp, needs: &[] },
    Group { name: "macvlan", lanes: cases::macvlan, needs: &[Need::Link("macvlan", "")] },
    Group { name: "ipvlan", lanes: cases::ipvlan, needs: &[Need::Link("ipvlan", "")] },
    Group { name: "vlan", lanes: cases::vlan, needs: &[Need::Link("vlan", "id 1")] },
    Group { name: "check", lanes: cases::check, needs: &[] },
    Group { name: "tuning", lanes: cases::tuning, needs: &[] },
    Group { name: "bandwidth", lanes: cases::bandwidth, needs: &[Need::Link("ifb", "")] },
    Group { name: "sbr", lanes: cases::sbr, needs: &[] },
    Group { name: "vrf", lanes: cases::vrf, needs: &[Need::Link("vrf", "table 9")] },
    Group { name: "chain", lanes: cases::chain, needs: &[Need::Program("iptables")] },
    Group { name: "cnitool", lanes: cases::cnitool, needs: &[Need::Program("iptables")] },
    Group { name: "host-local", lanes: cases::host_local, needs: &[] },
    Group { name: "portmap", lanes: ports::lanes, needs: &[Need::Program("iptables")] },
    Group { name: "connections", lanes: connections::lanes, needs: &[Need::Program("iptables")] },
    Group { name: "packets", lanes: packets::lanes, needs: &[Need::Program("iptables")] },
    Group {
        name: "packets-nftables",
        lanes: packets::lanes_of_nftables,
        needs: &[Need::Program("nft")],
    },
    Group {
        name: "packets-netavark",
        lanes: packets::lanes_of_netavark,
        needs: &[Need::Program("nft"), Need::Netavark],
    },
    Group {
        name: "packets-fast-path",
        lanes: packets::lanes_of_fast_path,
        needs: &[Need::Program("nft"), Need::Flowtables],
    },
    Group {
        name: "leaks-after-kill",
        lanes: leaks::lanes,
        needs: &[Need::Program("iptables"), Need::Program("nft"), Need::Link("ifb", "")],
    },
    Group { name: "crowd", lanes: crowds::lanes, needs: &[Need::Program("iptables")] },
    Group {
        name: "crowd-of-chains",
        lanes: crowds::lanes_of_chains,
        needs: &[Need::Program("iptables"), Need::Link("ifb", "")],
    },
    Group { name: "density", lanes: density::lanes, needs: &[Need::Link("ifb", "")] },
    Group {
        name: "memory",
        lanes: memory::lanes,
        needs: &[Need::Program("iptables"), Need::Link("ifb", "")],
    },
    Group {
        name: "crowd-of-ports",
        lanes: crowds::lanes_of_ports,
        needs: &[Need::Program("iptables")],
    },
];

/// What the group needs and the machine lacks, if anything.
pub fn lacks(group: &Group) -> Result<Option<String>> {
    for need in group.needs {
        match need {
            Need::Program(name) if find_program(name).is_none() => {
                return Ok(Some(format!("no {name} for the reference")));
            }
            Need::Netavark if netavark::find().is_none() => {
                return Ok(Some("no netavark".to_owned()));
            }
            Need::Link(kind, options) if !makes_links(kind, options)? => {
                return Ok(Some(format!("this kernel makes no link of type {kind}")));
            }
            Need::Flowtables if !has_flowtables()? => {
                return Ok(Some("this kernel has no flowtables".to_owned()));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn has_flowtables() -> Result<bool> {
    let probe = Netns::create()?;
    Ok(probe.run("nft add table inet probe")?
        && probe.run("nft add flowtable inet probe f { hook ingress priority 0 ; }")?)
}

fn makes_links(kind: &str, options: &str) -> Result<bool> {
    let probe = Netns::create()?;
    probe.ip("link add lower0 type veth peer name lower1")?;
    probe.ip(format!("link add probe0 link lower0 type {kind} {options}").trim_end())
}
