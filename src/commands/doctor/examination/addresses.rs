//! D50x: addresses and routes of containers, and what the host has for them.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, quoted, text_of};
use super::node::Node;
use super::wiring::{Wiring, attach_again};
use crate::cni::conf::Config;
use crate::cni::result::{AddResult, IpConfig};
use crate::error::Code;
use crate::family::Family;
use crate::net::netlink::{Address, FoundRoute, Link};
use crate::plugin::Context;
use crate::runtime::derive;
use crate::runtime::list::NetworkList;
use crate::steps::backend::Backend;
use crate::steps::masquerade::Masquerade;

const NO_GATEWAY: Fault = Fault::error("D501", "the host lacks the gateway's address");
const LOST: Fault = Fault::error("D502", "the container lacks an address of its record");
const TWICE: Fault = Fault::error("D503", "two containers of a network have one address");
const NO_DEFAULT: Fault = Fault::error("D504", "the container has no default route");
const NOBODY: Fault = Fault::error("D505", "the default route's gateway is no host's address");
const MASQUERADE: Fault = Fault::error("D506", "the container's addresses are not masqueraded");

/// The examination.
pub const EXAMINATION: Examination = Examination {
    faults: || vec![&NO_GATEWAY, &LOST, &TWICE, &NO_DEFAULT, &NOBODY, &MASQUERADE],
    examine,
};

/// The main routing table.
const MAIN: u32 = 254;

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let all = Wiring::all(node);
    for wiring in &all {
        let Some(result) = wiring.attachment.result.as_ref() else { continue };
        let Some(interface) = wiring.interface else { continue };
        let mut examined = Examined { wiring, node, result, interface, findings };
        examined.gateways();
        examined.addresses();
        examined.default_routes(&all);
        examined.masquerade();
    }
    same_addresses(&all, findings);
}

struct Examined<'e, 'a> {
    wiring: &'e Wiring<'a>,
    node: &'e Node<'a>,
    result: &'e AddResult,
    interface: &'e Link,
    findings: &'e mut Findings,
}

impl Examined<'_, '_> {
    fn add(&mut self, fault: &'static Fault, evidence: String, fix: String) {
        let object = self.wiring.attachment.object();
        self.findings.add(Finding::new(fault, object, evidence).fix(fix));
    }

    /// The addresses of the interface, in the record.
    fn recorded(&self) -> Vec<IpConfig> {
        let ifname = &self.interface.name;
        let is_own = |index: i64| {
            let interface =
                usize::try_from(index).ok().and_then(|at| self.result.interfaces.get(at));
            interface.is_some_and(|it| it.name == *ifname && !it.sandbox.is_empty())
        };
        let ips = self.result.ips.iter().filter(|ip| ip.interface.is_none_or(is_own));
        ips.cloned().collect()
    }

    /// The gateways that the host is for the container.
    fn gateways(&mut self) {
        let Some(link) = self.wiring.gateway_link().filter(|_| self.is_gateway()) else { return };
        for gateway in self.recorded().iter().filter_map(|ip| ip.gateway) {
            if !self
                .node
                .addresses
                .iter()
                .any(|it| it.link == link.index && it.net.addr() == gateway)
            {
                let evidence = format!("{gateway} is not on {:?}", link.name);
                self.add(&NO_GATEWAY, evidence, self.wiring.sync());
            }
        }
    }

    fn is_gateway(&self) -> bool {
        self.wiring.is_routed() && !self.wiring.is_in_vlan()
    }

    fn addresses(&mut self) {
        for ip in self.recorded() {
            let ip = ip.address;
            if self.lacks(ip) {
                let name = &self.interface.name;
                let evidence = format!("{ip} is not on {name:?}");
                let mut fix = self.wiring.within(&format!("ip addr add {ip} dev {}", quoted(name)));
                // The kernel has removed the routes through the gateway with the address.
                if let Some(gateway) = self.lost_gateway(Family::of_net(ip)) {
                    let route = self.wiring.within(&format!("ip route add default via {gateway}"));
                    fix = format!("{fix} && {route}");
                }
                self.add(&LOST, evidence, fix);
            }
        }
    }

    fn default_routes(&mut self, all: &[Wiring<'_>]) {
        for family in Family::ALL {
            let wanted = self.wanted_gateway(family);
            let lost = self.lost_gateway(family).filter(|_| !self.has_lost_address(family));
            if let Some(gateway) = lost {
                let evidence = format!("the record has a default route by {gateway}");
                let command = format!("ip route add default via {gateway}");
                self.add(&NO_DEFAULT, evidence, self.wiring.within(&command));
            }
            let main = self.defaults(family).filter(|route| route.table == MAIN);
            let used: Vec<IpAddr> = main.flat_map(|route| route.gateways.clone()).collect();
            for gateway in used {
                if self.has_no_owner(gateway, all) {
                    self.add_unowned_gateway(gateway, wanted);
                }
            }
        }
    }

    /// The default routes of the container, in all tables.
    fn defaults(&self, family: Family) -> impl Iterator<Item = &FoundRoute> {
        let any = IpNet::new(family.unspecified(), 0).ok();
        self.wiring.inside.routes.iter().filter(move |route| Some(route.dst) == any)
    }

    /// The gateway of the record's default route, if the container has no default route.
    fn lost_gateway(&self, family: Family) -> Option<IpAddr> {
        let wanted = self.wanted_gateway(family)?;
        self.defaults(family).next().is_none().then_some(wanted)
    }

    fn has_lost_address(&self, family: Family) -> bool {
        let lost = |ip: &IpConfig| Family::of_net(ip.address) == family && self.lacks(ip.address);
        self.recorded().iter().any(lost)
    }

    fn lacks(&self, ip: IpNet) -> bool {
        let inside = &self.wiring.inside.addresses;
        !inside.iter().any(|it| it.net == ip && it.link == self.interface.index)
    }

    /// The gateway of the default route that the record has.
    fn wanted_gateway(&self, family: Family) -> Option<IpAddr> {
        let is_default = |net: &IpNet| net.prefix_len() == 0 && Family::of_net(*net) == family;
        let route = self.result.routes.iter().find(|route| is_default(&route.dst))?;
        let of_address = |ip: &IpConfig| Family::of_net(ip.address) == family;
        route.gw.or_else(|| self.recorded().iter().find(|ip| of_address(ip))?.gateway)
    }

    /// Whether no host that can be seen has the gateway's address. Beyond a link of hardware
    /// another host may have it.
    fn has_no_owner(&self, gateway: IpAddr, all: &[Wiring<'_>]) -> bool {
        let is_closed = match self.wiring.bridge {
            Some(_) => !self.wiring.has_uplink(self.node),
            None => self.wiring.is("ptp"),
        };
        let has =
            |addresses: &[Address]| addresses.iter().any(|address| address.net.addr() == gateway);
        is_closed
            && !gateway_is_link_local(gateway)
            && !has(&self.node.addresses)
            && !all.iter().any(|other| has(&other.inside.addresses))
    }

    fn add_unowned_gateway(&mut self, gateway: IpAddr, wanted: Option<IpAddr>) {
        let evidence = format!("the default route is by {gateway}, which no host has");
        match wanted {
            Some(wanted) if wanted != gateway => {
                let command = format!("ip route replace default via {wanted}");
                let fix = self.wiring.within(&command);
                self.add(&NOBODY, evidence, fix);
            }
            Some(_) if self.is_gateway() => (), // the missing address of the gateway is the cause
            _ => self.add(&NOBODY, evidence, attach_again(self.wiring.attachment)),
        }
    }

    fn masquerade(&mut self) {
        if !self.wiring.is_pair() || !self.wiring.is_set("ipMasq") {
            return;
        }
        let attachment = self.wiring.attachment;
        let Some(config) = attachment.list.as_ref().and_then(|list| self.config(list)) else {
            return;
        };
        let request = self.node.request;
        let cx = Context::new(request.plugins, &config, request.env, "", vec![]);
        let backend = match self.wiring.text("ipMasqBackend") {
            Some("iptables") => Some(Backend::Iptables),
            Some("nftables") => Some(Backend::Nftables),
            _ => None,
        };
        let verified = Masquerade::by(backend, &cx).verify(&attachment.at().key, self.result);
        match verified {
            Err(error) if error.code == Code::CHECK_FAILED => {
                self.add(&MASQUERADE, text_of(&error), self.wiring.sync());
            }
            _ => (), // any other error is in the CHECK of the plugin
        }
    }

    /// The configuration of the plugin that has connected the container.
    fn config(&self, list: &NetworkList) -> Option<Config> {
        Config::parse(derive::for_status(list, self.wiring.plugin)).ok()
    }
}

fn gateway_is_link_local(gateway: IpAddr) -> bool {
    match gateway {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether containers of one network may all have the address: it is that of `lo`, or of a link.
fn is_for_everybody(ip: IpAddr) -> bool {
    ip.is_loopback() || gateway_is_link_local(ip)
}

/// Addresses that two containers of one network have.
fn same_addresses(all: &[Wiring<'_>], findings: &mut Findings) {
    let mut owners: HashMap<(&str, IpAddr), &Wiring<'_>> = HashMap::new();
    for wiring in all {
        let Some(interface) = wiring.interface else { continue };
        let own = wiring.inside.addresses.iter().filter(|it| it.link == interface.index);
        for ip in own.map(|it| it.net.addr()).filter(|ip| !is_for_everybody(*ip)) {
            let Some(first) = owners.insert((wiring.network(), ip), wiring) else { continue };
            let names = [first, wiring].map(|wiring| wiring.attachment.at().name());
            let evidence = format!("{} have {ip}", names.join(" and "));
            let object = Object::Network(wiring.network().to_owned());
            let fix = attach_again(wiring.attachment);
            findings.add(Finding::new(&TWICE, object, evidence).fix(fix));
        }
    }
}
