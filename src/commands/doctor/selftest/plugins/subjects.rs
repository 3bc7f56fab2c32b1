//! A plugin, its network, and the packets that show that it works.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::traffic::{self, End};
use super::super::world::{
    Attached, Container, HOST, IFNAME, ON_LINK, OUTSIDE, Running, World, set_up,
};
use super::{dhcp, ovs};
use crate::commands::doctor::need::Need;
use crate::error::{Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{LinkKind, LinkSpec, Netlink, PeerSpec, VethSpec};
use crate::net::nft::batch::{Batch, Hook, Table};
use crate::net::nft::expr::Verdict;
use crate::net::nft::{NfFamily, Nft};
use crate::net::sysctl::Sysctl;
use crate::net::tuntap;

/// How a plugin is tried.
pub struct Subject {
    /// The plugin.
    pub plugin: &'static str,
    /// What the kernel must have.
    pub needs: &'static [Need],
    /// The plugins of the network, as JSON.
    pub network: &'static str,
    /// The capability arguments, as JSON.
    pub capabilities: &'static str,
    /// Makes the container.
    pub container: fn(&'static str) -> Result<Container>,
    /// Makes what the network is on.
    pub prepare: fn(&World<'_>) -> Result<Running>,
    /// Sends the packets.
    pub probe: fn(&Attached<'_>) -> Result<()>,
    /// Removes what was prepared, and what outlives the attachment by design.
    pub clean_up: fn(&World<'_>) -> Result<()>,
}

const VETH: Need = Need::Link("veth");

/// Most of them: nothing to prepare, the host answers an echo request.
const USUAL: Subject = Subject {
    plugin: "",
    needs: &[VETH],
    network: "",
    capabilities: "{}",
    container: Container::make,
    prepare: |_| Ok(vec![]),
    probe: host_answers,
    clean_up: |_| Ok(()),
};

/// ptp with an address that the test knows.
macro_rules! ptp_and {
    ($meta:literal) => {
        concat!(
            r#"[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.89.0.0/24","#,
            r#""routes":[{"dst":"0.0.0.0/0"}]}},"#,
            $meta,
            "]"
        )
    };
}

/// All plugins, in the order of `cni-multi list`.
pub const SUBJECTS: [Subject; 24] = [
    Subject {
        plugin: "bridge",
        needs: &[VETH, Need::Link("bridge")],
        network: r#"[{"type":"bridge","bridge":"selftest0","isGateway":true,
            "ipam":{"type":"host-local","subnet":"10.89.0.0/24"}}]"#,
        clean_up: |world| delete_link(world.host.netlink()?, "selftest0"),
        ..USUAL
    },
    Subject { plugin: "ptp", network: ptp_and!(r#"{"type":"tuning"}"#), ..USUAL },
    Subject {
        plugin: "macvlan",
        needs: &[Need::Link("macvlan")],
        network: r#"[{"type":"macvlan","master":"uplink",
            "ipam":{"type":"static","addresses":[{"address":"192.0.2.21/24"}]}}]"#,
        probe: outside_answers,
        ..USUAL
    },
    Subject {
        plugin: "ipvlan",
        needs: &[Need::Link("ipvlan")],
        network: r#"[{"type":"ipvlan","master":"uplink",
            "ipam":{"type":"static","addresses":[{"address":"192.0.2.22/24"}]}}]"#,
        probe: outside_answers,
        ..USUAL
    },
    Subject {
        plugin: "vlan",
        needs: &[Need::Link("vlan")],
        network: r#"[{"type":"vlan","master":"uplink","vlanId":7,
            "ipam":{"type":"static","addresses":[{"address":"198.51.100.2/24"}]}}]"#,
        prepare: add_vlan_outside,
        probe: |at| pings(at, "198.51.100.9"),
        clean_up: |world| delete_link(world.outside.netns.netlink()?, "eth0.7"),
        ..USUAL
    },
    Subject {
        plugin: "host-device",
        network: r#"[{"type":"host-device","device":"lent0",
            "ipam":{"type":"static","addresses":[{"address":"203.0.113.2/24"}]}}]"#,
        prepare: make_device,
        probe: |at| pings(at, "203.0.113.9"),
        clean_up: |world| delete_link(world.host.netlink()?, "lent0"),
        ..USUAL
    },
    Subject {
        plugin: "dummy",
        needs: &[Need::Link("dummy")],
        network: r#"[{"type":"dummy",
            "ipam":{"type":"static","addresses":[{"address":"10.89.0.2/24"}]}}]"#,
        probe: |at| traffic::ping(&at.container.netns, at.address()?).map(drop),
        ..USUAL
    },
    Subject {
        plugin: "tap",
        needs: &[Need::Tun],
        network: r#"[{"type":"tap",
            "ipam":{"type":"static","addresses":[{"address":"10.89.0.2/24"}]}}]"#,
        probe: frames_can_be_read,
        ..USUAL
    },
    Subject {
        plugin: "loopback",
        needs: &[],
        network: r#"[{"type":"loopback"}]"#,
        container: Container::make_bare,
        probe: |at| pings(at, "127.0.0.1"),
        ..USUAL
    },
    Subject {
        plugin: "flannel",
        needs: &[VETH, Need::Link("bridge")],
        network: r#"[{"type":"flannel","subnetFile":"/run/selftest-subnet.env",
            "delegate":{"bridge":"selftest0"}}]"#,
        prepare: write_subnet_env,
        clean_up: |world| {
            let _ = std::fs::remove_file(SUBNET_ENV); // it is in a file system of the selftest's own
            delete_link(world.host.netlink()?, "selftest0")
        },
        ..USUAL
    },
    Subject {
        plugin: "bond",
        needs: &[VETH, Need::Link("bond")],
        network: r#"[{"type":"bond","mode":"active-backup","primary":"lent0",
            "links":[{"name":"lent0"},{"name":"lent2"}],
            "ipam":{"type":"static","addresses":[{"address":"203.0.113.2/24"}]}}]"#,
        prepare: make_devices,
        probe: |at| pings(at, "203.0.113.9"),
        clean_up: |world| {
            delete_link(world.host.netlink()?, "lent0")?;
            delete_link(world.host.netlink()?, "lent2")
        },
        ..USUAL
    },
    Subject {
        plugin: "ovs",
        needs: &[VETH, Need::Program(ovs::SERVER), Need::Program(ovs::TOOL)],
        network: r#"[{"type":"ovs","bridge":"selftest0","socket_file":"/run/selftest-ovs.sock",
            "ipam":{"type":"static","addresses":[{"address":"10.89.0.2/24"}]}}]"#,
        prepare: ovs::prepare,
        probe: ovs::has_port,
        clean_up: ovs::clean_up,
        ..USUAL
    },
    Subject {
        plugin: "host-local",
        network: r#"[{"type":"ptp","ipam":{"type":"host-local",
            "ranges":[[{"subnet":"10.89.0.0/24","rangeStart":"10.89.0.77","rangeEnd":"10.89.0.77"}]]}}]"#,
        probe: |at| has_address(at, "10.89.0.77"),
        ..USUAL
    },
    Subject {
        plugin: "static",
        network: r#"[{"type":"ptp",
            "ipam":{"type":"static","addresses":[{"address":"10.89.0.5/24","gateway":"10.89.0.1"}]}}]"#,
        probe: |at| has_address(at, "10.89.0.5"),
        ..USUAL
    },
    Subject {
        plugin: "dhcp",
        needs: &[VETH, Need::Link("bridge")],
        network: r#"[{"type":"bridge","bridge":"selftest0","ipam":{"type":"dhcp"}}]"#,
        prepare: dhcp::prepare,
        probe: |at| has_address(at, dhcp::LEASED),
        clean_up: dhcp::clean_up,
        ..USUAL
    },
    Subject {
        plugin: "cluster-local",
        network: r#"[{"type":"ptp","ipam":{"type":"cluster-local","scope":"machine",
            "ranges":[[{"subnet":"10.89.0.0/24","rangeStart":"10.89.0.76","exclude":["10.89.0.76"]}]]}}]"#,
        probe: |at| has_address(at, "10.89.0.77"),
        ..USUAL
    },
    Subject {
        plugin: "whereabouts",
        network: r#"[{"type":"ptp","ipam":{"type":"whereabouts","scope":"machine",
            "range":"10.89.0.84-10.89.0.99/24","exclude":["10.89.0.84"],"gateway":"10.89.0.1"}}]"#,
        probe: |at| has_address(at, "10.89.0.85"),
        ..USUAL
    },
    Subject {
        plugin: "portmap",
        needs: &[VETH, Need::NfTables],
        network: ptp_and!(r#"{"type":"portmap","capabilities":{"portMappings":true}}"#),
        capabilities: r#"{"portMappings":[{"hostPort":8082,"containerPort":82,"protocol":"tcp"}]}"#,
        probe: port_leads_to_container,
        ..USUAL
    },
    Subject {
        plugin: "firewall",
        needs: &[VETH, Need::NfTables],
        network: r#"[{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.89.0.0/24",
            "routes":[{"dst":"0.0.0.0/0"}]}},{"type":"firewall"}]"#,
        prepare: drop_forwarded,
        probe: outside_answers,
        clean_up: accept_forwarded,
        ..USUAL
    },
    Subject {
        plugin: "tuning",
        network: ptp_and!(r#"{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}"#),
        probe: sysctl_is_set,
        ..USUAL
    },
    Subject {
        plugin: "bandwidth",
        needs: &[VETH, Need::Link("ifb"), Need::Qdisc("tbf")],
        network: ptp_and!(
            r#"{"type":"bandwidth","ingressRate":1000000,"ingressBurst":100000,
                "egressRate":1000000,"egressBurst":100000}"#
        ),
        ..USUAL
    },
    Subject {
        plugin: "sbr",
        network: ptp_and!(r#"{"type":"sbr"}"#),
        probe: source_has_rule,
        ..USUAL
    },
    Subject {
        plugin: "vrf",
        needs: &[VETH, Need::Link("vrf")],
        network: ptp_and!(r#"{"type":"vrf","vrfname":"red"}"#),
        probe: link_is_in_vrf,
        ..USUAL
    },
    Subject {
        plugin: "route-override",
        network: r#"[{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.89.0.0/24",
            "routes":[{"dst":"0.0.0.0/0"}]}},
            {"type":"route-override","flushgateway":true,"addroutes":[{"dst":"192.0.2.0/24","gw":"10.89.0.1"}]}]"#,
        probe: outside_answers,
        ..USUAL
    },
];

/// The file of a node's flanneld.
const SUBNET_ENV: &str = "/run/selftest-subnet.env";

fn write_subnet_env(_: &World<'_>) -> Result<Running> {
    let text = "FLANNEL_NETWORK=10.89.0.0/16\nFLANNEL_SUBNET=10.89.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    let path = std::path::Path::new(SUBNET_ENV);
    crate::plain_file::put(path, text.as_bytes()).map_err(Error::at_path("write", path))?;
    Ok(vec![])
}

/// The gateway of ptp's and bridge's subnet is the host.
fn host_answers(at: &Attached<'_>) -> Result<()> {
    pings(at, "10.89.0.1")
}

fn outside_answers(at: &Attached<'_>) -> Result<()> {
    traffic::ping(&at.container.netns, OUTSIDE).map(drop)
}

fn pings(at: &Attached<'_>, to: &str) -> Result<()> {
    traffic::ping(&at.container.netns, parse(to)?).map(drop)
}

fn parse(ip: &str) -> Result<IpAddr> {
    ip.parse().map_err(|_| Error::config("address", format_args!("{ip:?} is not an address")))
}

/// The container got this address and the host reaches it.
fn has_address(at: &Attached<'_>, expected: &str) -> Result<()> {
    let address = at.address()?;
    if address != parse(expected)? {
        return Err(Error::check(format!("the container has {address}, expected {expected}")));
    }
    traffic::ping(&at.world.host, address).map(drop)
}

/// A connection from outside arrives.
fn port_leads_to_container(at: &Attached<'_>) -> Result<()> {
    let client = End { netns: &at.world.outside.netns, address: SocketAddr::new(HOST, 8082) };
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let server = End { netns: &at.container.netns, address: SocketAddr::new(any, 82) };
    traffic::connect(&client, &server).map(drop)
}

fn sysctl_is_set(at: &Attached<'_>) -> Result<()> {
    let sysctl = Sysctl::ipv4_conf(IFNAME, "arp_filter");
    let value = at.container.netns.enter(|| sysctl.read())?;
    if value != "1" {
        return Err(Error::check(format!("arp_filter is {value}, expected 1")));
    }
    host_answers(at)
}

/// A rule sends what the address sends to a table of its own.
fn source_has_rule(at: &Attached<'_>) -> Result<()> {
    let address = at.address()?;
    let rules = at.container.netns.netlink()?.rules()?;
    if !rules.iter().any(|rule| rule.source == Some(address)) {
        return Err(Error::check(format!("no rule has the source {address}")));
    }
    traffic::ping(&at.world.host, address).map(drop)
}

fn link_is_in_vrf(at: &Attached<'_>) -> Result<()> {
    let container = at.container.netns.netlink()?;
    if container.link(IFNAME)?.master != Some(container.link("red")?.index) {
        return Err(Error::check("eth0 is not a port of the VRF red"));
    }
    traffic::ping(&at.world.host, at.address()?).map(drop)
}

/// Deletes a link that may be gone.
fn delete_link(netlink: &Netlink, name: &str) -> Result<()> {
    netlink.find_link(name)?.map_or(Ok(()), |link| netlink.delete_link(link.index))
}

// ---- a host that forwards nothing ----

const FILTER: Table = Table { family: NfFamily::Ip, name: "filter" };
const FORWARD: Hook = Hook { kind: "filter", number: 2, priority: 0 };

/// Makes the chain that a host's firewall has, with a rule that drops: what passes does so by a rule
/// of the plugin before it.
fn drop_forwarded(_: &World<'_>) -> Result<Running> {
    let mut batch = Batch::default();
    batch.table(FILTER, "");
    batch.base_chain(FILTER, "FORWARD", FORWARD).rule(FILTER, "FORWARD", |rule| {
        rule.verdict(&Verdict::Drop);
    });
    Nft::open()?.commit(&batch, "drop what is forwarded")?;
    Ok(vec![])
}

fn accept_forwarded(_: &World<'_>) -> Result<()> {
    let mut batch = Batch::default();
    batch.delete_table(FILTER);
    Nft::open()?.commit(&batch, "accept what is forwarded")
}

// ---- a device that is lent, and a VLAN of the machine outside ----

fn make_device(world: &World<'_>) -> Result<Running> {
    make_pair(world, "lent0", "lent1")?;
    give_address(world, "lent1", "203.0.113.9/24")?;
    Ok(vec![])
}

/// The device, and another that stands in for it.
fn make_devices(world: &World<'_>) -> Result<Running> {
    make_pair(world, "lent2", "lent3")?;
    make_device(world)
}

/// Creates a veth link on the host, whose peer outside it sets up.
fn make_pair(world: &World<'_>, name: &str, outside: &str) -> Result<()> {
    let netns = &world.outside.netns;
    let peer = PeerSpec { name: outside, mac: MacAddr::random(), netns: Some(netns.fd()) };
    let pair = VethSpec { name, mac: MacAddr::random(), peer, mtu: None };
    world.host.netlink()?.create_veth(&pair)?;
    set_up(netns.netlink()?, outside)
}

fn add_vlan_outside(world: &World<'_>) -> Result<Running> {
    let outside = world.outside.netns.netlink()?;
    let lower = Some(outside.link(IFNAME)?.index);
    let vlan = LinkSpec { lower, ..LinkSpec::of(LinkKind::Vlan(7)) };
    outside.create_link("eth0.7", None, &vlan)?;
    give_address(world, "eth0.7", "198.51.100.9/24")?;
    set_up(outside, "eth0.7")?;
    Ok(vec![])
}

/// Adds an address to a link of the machine outside.
fn give_address(world: &World<'_>, link: &str, net: &str) -> Result<()> {
    let outside = world.outside.netns.netlink()?;
    let net: IpNet = net.parse().map_err(|_| Error::config("address", "expected CIDR"))?;
    outside.add_address(&outside.link(link)?, net, ON_LINK)
}

// ---- frames of a tap interface ----

/// An address of the container's subnet that no host has.
const NEIGHBOUR: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 89, 0, 9), 9);
/// How long the frame may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// EtherType of ARP, at its place in a frame.
const ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE: std::ops::Range<usize> = 12..14;

/// Reads the container's ARP request from the tap interface.
fn frames_can_be_read(at: &Attached<'_>) -> Result<()> {
    let netns = &at.container.netns;
    let tap = netns.enter(|| tuntap::open_tap(IFNAME))?;
    netns.enter(|| {
        let sent = traffic::any_socket().and_then(|socket| socket.send_to(b"hello", NEIGHBOUR));
        sent.map(drop).map_err(|e| Error::io("send a datagram", &e))
    })?;
    let end = Instant::now() + PATIENCE;
    while let Some(frame) = next_frame(&tap, end)? {
        if frame.get(ETHERTYPE) == Some(&ARP) {
            return Ok(());
        }
    }
    Err(Error::check("no ARP request could be read from the tap interface"))
}

/// The next frame before `end`.
fn next_frame(mut tap: &File, end: Instant) -> Result<Option<Vec<u8>>> {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let ready = poll(&mut [PollFd::new(tap.as_fd(), PollFlags::POLLIN)], timeout);
    if ready.map_err(|e| Error::kernel("wait for a frame", e))? == 0 {
        return Ok(None);
    }
    let mut frame = vec![0; 2048];
    let length = tap.read(&mut frame).map_err(|e| Error::io("read a frame", &e))?;
    frame.truncate(length);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::super::super::world::UPLINK;
    use super::*;
    use crate::registry::PLUGINS;

    #[test]
    fn every_plugin_is_tried() {
        let tried: Vec<&str> = SUBJECTS.iter().map(|subject| subject.plugin).collect();
        let known: Vec<&str> = PLUGINS.iter().map(|entry| entry.name).collect();
        assert_eq!(tried, known);
    }

    #[test]
    fn a_network_of_a_plugin_has_the_plugin() {
        for subject in &SUBJECTS {
            let name = format!("\"type\":\"{}\"", subject.plugin);
            assert!(subject.network.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_subject_on_the_uplink_names_it() {
        let on_uplink = |subject: &&Subject| subject.network.contains("master");
        for subject in SUBJECTS.iter().filter(on_uplink) {
            assert!(subject.network.contains(UPLINK), "{}", subject.plugin);
        }
    }
}
