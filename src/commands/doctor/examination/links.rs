//! D30x to D32x: the links between a container and the host's network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::attachment::Attachment;
use super::faults::{
    ANOTHER_INTERFACE, BRIDGE_DOWN, BRIDGE_MISSING, END_DOWN, END_MISSING, INTERFACE_DOWN,
    INTERFACE_MISSING, LOOPBACK_DOWN, LOWER_WITHOUT_CARRIER, MTU_OF_BRIDGE, MTU_OF_ENDS,
    NOT_A_PORT, NOT_IN_VLAN, SAME_MAC,
};
use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use super::shared::Owners;
use super::wiring::{Wiring, attach_again};
use crate::commands::fault::Fault;
use crate::error::Aspect;
use crate::family::Family;
use crate::net::mac::MacAddr;
use crate::net::netlink::{Address, Link, VlanFlags};

/// The kinds of links that are below a link of the container's.
const ABOVE_A_LINK: [&str; 3] = ["macvlan", "ipvlan", "vlan"];

/// The name of every namespace's loopback.
const LOOPBACK: &str = "lo";

/// What CHECK reports because of each fault.
const CONSEQUENCES: [(&Fault, Aspect); 8] = [
    (&BRIDGE_MISSING, Aspect::Bridge),
    (&INTERFACE_MISSING, Aspect::Interface),
    (&NOT_A_PORT, Aspect::Port),
    (&END_MISSING, Aspect::HostEnd),
    (&END_DOWN, Aspect::HostEnd),
    (&INTERFACE_DOWN, Aspect::Interface),
    (&LOOPBACK_DOWN, Aspect::Interface),
    (&ANOTHER_INTERFACE, Aspect::Interface),
];

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let (all, asked) = Wiring::with_others(node);
    for wiring in &all[..asked] {
        Examined { wiring, findings }.links();
    }
    loopbacks(&all[..asked], findings);
    vlans(node, &all, asked, findings);
    same_macs(&all, asked, findings);
}

struct Examined<'e, 'a> {
    wiring: &'e Wiring<'a>,
    findings: &'e mut Findings,
}

impl Examined<'_, '_> {
    fn add(&mut self, fault: &'static Fault, evidence: String, fix: String) {
        let object = self.wiring.attachment.object();
        let explained = self.consequences(fault);
        self.findings.add(Finding::new(fault, object, evidence).fix(fix).explaining(explained));
    }

    /// What CHECK reports because of the fault.
    fn consequences(&self, fault: &'static Fault) -> Vec<Aspect> {
        let of_fault = CONSEQUENCES.iter().filter(|(cause, _)| *cause == fault);
        let mut all: Vec<Aspect> = of_fault.map(|(_, aspect)| aspect.clone()).collect();
        if *fault == INTERFACE_DOWN {
            let result = || self.wiring.attachment.result.iter();
            all.extend(result().flat_map(|it| &it.routes).map(|route| Aspect::Route(route.dst)));
            all.extend(result().flat_map(|it| &it.ips).map(|ip| Aspect::Address(ip.address)));
        }
        all
    }

    fn links(mut self) {
        self.bridge();
        self.lower();
        let attachment = self.wiring.attachment;
        let Some(interface) = self.wiring.interface else {
            let at = attachment.at();
            let evidence = format!("interface {:?} is not in {}", at.key.ifname.as_str(), at.netns);
            return self.add(&INTERFACE_MISSING, evidence, attach_again(attachment));
        };
        if self.is_another(interface) && !self.is_recorded_pair() {
            return;
        }
        if self.wiring.is_pair() && interface.kind == "veth" {
            self.pair(interface);
        }
        if !interface.up && interface.name != LOOPBACK {
            let evidence = format!("interface {:?} of the container is down", interface.name);
            let fix = attach_again(self.wiring.attachment); // its routes are gone as well
            self.add(&INTERFACE_DOWN, evidence, fix);
        }
    }

    fn bridge(&mut self) {
        let Some(name) = self.wiring.bridge_name() else { return };
        let sync = self.wiring.sync();
        match self.wiring.bridge {
            None => self.add(&BRIDGE_MISSING, format!("bridge {name:?} does not exist"), sync),
            Some(bridge) if !bridge.up => {
                let result = self.wiring.attachment.result.iter().flat_map(|result| &result.ips);
                // The kernel removes addresses of IPv6 from a link that is down.
                let gateways = result.filter_map(|ip| ip.gateway).filter(IpAddr::is_ipv6);
                let lost = gateways.map(Aspect::Gateway).chain([Aspect::Bridge]);
                let evidence = format!("bridge {name:?} is down");
                let finding = Finding::new(&BRIDGE_DOWN, self.wiring.attachment.object(), evidence);
                self.findings.add(finding.fix(sync).explaining(lost));
            }
            Some(_) => (),
        }
    }

    /// The link of the host that a macvlan, an ipvlan or a VLAN is made of. One that is down, or
    /// gone, is a finding about the network.
    fn lower(&mut self) {
        let wiring = self.wiring;
        let is_above = ABOVE_A_LINK.iter().any(|kind| wiring.is(kind));
        let Some(lower) = wiring.below.filter(|lower| is_above && lower.lacks_carrier()) else {
            return;
        };
        let name = lower.name.clone();
        let evidence = format!("link {name:?} of the host is up, and has no carrier");
        let fix = format!("connect {name:?}: its cable, its switch, or its other end");
        self.add(&LOWER_WITHOUT_CARRIER, evidence, fix);
    }

    /// Whether the record has another hardware address. Links without one have nothing to compare.
    fn is_another(&mut self, interface: &Link) -> bool {
        let attachment = self.wiring.attachment;
        if !attachment.has_another_mac(interface) {
            return false;
        }
        let (mac, recorded) = (interface.mac(), attachment.recorded_mac().unwrap_or_default());
        let evidence = format!("{:?} has {mac}, the record has {recorded}", interface.name);
        self.add(&ANOTHER_INTERFACE, evidence, attach_again(attachment));
        true
    }

    /// Whether the host's end is the recorded one, so that the interface is the container's in spite
    /// of its hardware address.
    fn is_recorded_pair(&self) -> bool {
        let result = self.wiring.attachment.result.iter().flat_map(|result| &result.interfaces);
        let mut of_host = result.filter(|interface| interface.sandbox.is_empty());
        let Some(end) = self.wiring.below.filter(|end| end.kind == "veth") else { return false };
        of_host.any(|interface| interface.name == end.name)
    }

    fn pair(&mut self, interface: &Link) {
        let wiring = self.wiring;
        let Some(end) = wiring.below else {
            let evidence = format!("the other end of {:?} is not on the host", interface.name);
            let again = attach_again(wiring.attachment);
            let delete = wiring.within(&format!("ip link del {}", quoted(&interface.name)));
            return self.add(&END_MISSING, evidence, format!("{delete}; {again}"));
        };
        let container = format!("{}/{}", wiring.attachment.at().name(), interface.name);
        let name = &end.name;
        if let Some(bridge) = wiring.bridge
            && end.master != Some(bridge.index)
        {
            let bridge = &bridge.name;
            let evidence = format!(
                "bridge {bridge:?}: host end {name} of {container} is not a port of the bridge"
            );
            self.add(&NOT_A_PORT, evidence, wiring.sync());
        }
        if !end.up {
            let evidence = format!("host end {name} of {container} is down");
            self.add(&END_DOWN, evidence, wiring.sync());
        }
        self.mtu(interface, end);
    }

    fn mtu(&mut self, interface: &Link, end: &Link) {
        let wiring = self.wiring;
        let (own, others) = (interface.mtu, end.mtu);
        // An MTU that was asked for is the container's alone, with the reference as well.
        if own > others || own < others && !has_mtu(wiring.attachment) {
            let evidence = format!(
                "{} has MTU {own}, its other end {} has {others}: long packets are dropped",
                interface.name, end.name
            );
            let fix =
                wiring.within(&format!("ip link set {} mtu {others}", quoted(&interface.name)));
            self.add(&MTU_OF_ENDS, evidence, fix);
        }
        let carried = own.min(others);
        if let Some(bridge) = wiring.bridge.filter(|bridge| bridge.mtu < carried) {
            let name = &bridge.name;
            let evidence = format!(
                "bridge {name:?} has MTU {}, its port {} has {others}",
                bridge.mtu, end.name
            );
            let fix = format!("sudo ip link set {} mtu {carried}", quoted(name));
            self.add(&MTU_OF_BRIDGE, evidence, fix);
        }
    }
}

/// Reports each namespace with a loopback that is down: of pods, since their runtime sets it up, and of
/// containers with a record of their loopback. `ip netns` leaves the loopback down.
fn loopbacks(all: &[Wiring<'_>], findings: &mut Findings) {
    let (of_loopback, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|wiring| wiring.attachment.at().key.ifname.as_str() == LOOPBACK);
    let pods = others.into_iter().filter(|wiring| wiring.attachment.at().pod().is_some());
    let mut known = vec![];
    for wiring in of_loopback.into_iter().chain(pods) {
        let is_down = |link: &Link| link.name == LOOPBACK && !link.up;
        if known.contains(&wiring.attachment.id) || !wiring.inside.links.iter().any(is_down) {
            continue;
        }
        known.push(wiring.attachment.id);
        let fix = wiring.within("ip link set lo up");
        let evidence = "interface \"lo\" of the container is down".to_owned();
        Examined { wiring, findings }.add(&LOOPBACK_DOWN, evidence, fix);
    }
}

/// Reports each network that has its gateway beyond the bridge, and its VLAN on no uplink of the bridge.
/// A gateway is beyond if neither the host nor a container has its address. The first `asked` were asked for.
fn vlans(node: &Node<'_>, all: &[Wiring<'_>], asked: usize, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for wiring in &all[..asked] {
        let Some((bridge, vlan)) = wiring.bridge.zip(wiring.vlan()) else { continue };
        if !bridge.vlan_filtering || !seen.insert(wiring.network()) {
            continue;
        }
        let has = |all: &[Address], ip: IpAddr| all.iter().any(|it| it.net.addr() == ip);
        let is_beyond = |gateway: IpAddr| {
            !has(&node.addresses, gateway)
                && !all.iter().any(|it| has(&it.inside.addresses, gateway))
        };
        let mut gateways = Family::ALL.into_iter().filter_map(|family| wiring.gateway(family));
        let uplinks: Vec<&Link> = wiring.uplinks(node).collect();
        if uplinks.is_empty() || !gateways.any(is_beyond) {
            continue;
        }
        let members = uplinks.iter().map(|uplink| node.netlink.port_vlans(uplink)).collect();
        let members: Vec<Vec<(u16, VlanFlags)>> = Reader(findings).keep(members);
        if !members.iter().flatten().any(|(id, _)| *id == vlan) {
            let (name, uplink) = (&bridge.name, quoted(&uplinks[0].name));
            let evidence = format!("bridge {name:?}: its port {uplink} is not in VLAN {vlan}");
            let show = format!("sudo bridge vlan show dev {uplink}");
            let object = Object::Network(wiring.network().to_owned());
            findings.add(Finding::new(&NOT_IN_VLAN, object, evidence).show(show));
        }
    }
}

/// Whether a plugin of the network was asked for an MTU.
fn has_mtu(attachment: &Attachment) -> bool {
    let plugins = attachment.list.iter().flat_map(|list| &list.plugins);
    plugins.into_iter().any(|plugin| plugin.value.get("mtu").is_some())
}

/// Hardware addresses that two containers of one bridge have: the bridge sends packets to one of
/// them. The first `asked` were asked for.
fn same_macs(all: &[Wiring<'_>], asked: usize, findings: &mut Findings) {
    let mut owners = Owners::new(asked);
    for (number, wiring) in all.iter().enumerate() {
        if let (Some(bridge), Some(interface)) = (wiring.bridge, wiring.interface) {
            let is_recorded = !wiring.attachment.has_another_mac(interface);
            owners.insert((bridge.index, &interface.mac), (number, wiring), is_recorded);
        }
    }
    let text = |(_, mac): &(u32, &Vec<u8>)| MacAddr::new(mac).to_string();
    findings.0.extend(owners.findings(&SAME_MAC, text));
}
