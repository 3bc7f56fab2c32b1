//! D50x: addresses and routes of containers, and what the host has for them.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::faults::{
    ADDRESS_LOST, ADDRESS_TWICE, GATEWAY_MISSING, GATEWAY_OF_NO_HOST, NO_DEFAULT_ROUTE,
    NOT_MASQUERADED,
};
use super::finding::{Findings, quoted, text_of};
use super::node::Node;
use super::shared::Owners;
use super::wiring::{Wiring, attach_again};
use crate::cni::conf::Config;
use crate::cni::decode;
use crate::cni::result::{AddResult, IpConfig, Route};
use crate::error::{Aspect, Code};
use crate::family::Family;
use crate::net::netlink::{Address, FoundRoute, Link};
use crate::plugin::Context;
use crate::runtime::derive;
use crate::steps::masquerade::Masquerade;
use crate::steps::rules::Backend;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let (all, asked) = Wiring::with_others(node);
    for wiring in &all[..asked] {
        let Some(result) = wiring.attachment.result.as_ref() else { continue };
        let Some(interface) = wiring.interface else { continue };
        let own = wiring.inside.addresses.iter().filter(|it| it.link == interface.index);
        let own = own.map(|it| it.net).collect();
        let mut examined = Examined { wiring, node, result, interface, own, findings };
        examined.gateways();
        // The kernel has removed the routes, and addresses of IPv6, of an interface that is down.
        if interface.up {
            examined.addresses();
            examined.default_routes(&all);
        }
        examined.masquerade();
    }
    same_addresses(&all, asked, findings);
}

struct Examined<'e, 'a> {
    wiring: &'e Wiring<'a>,
    node: &'e Node<'a>,
    result: &'e AddResult,
    interface: &'e Link,
    /// The addresses of the interface.
    own: HashSet<IpNet>,
    findings: &'e mut Findings,
}

impl Examined<'_, '_> {
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
        let is_gateway = self.wiring.is_routed() && !self.wiring.is_in_vlan();
        let link = self.wiring.gateway_link().filter(|link| link.up && is_gateway);
        let Some(link) = link else { return };
        for gateway in self.recorded().iter().filter_map(|ip| ip.gateway) {
            let is_its = |it: &Address| it.link == link.index && it.net.addr() == gateway;
            if !self.node.addresses.iter().any(is_its) {
                let evidence = format!("{gateway} is not on {:?}", link.name);
                let finding = self.wiring.found(&GATEWAY_MISSING, evidence).fix(self.wiring.sync());
                self.findings.add(finding.explaining([Aspect::Gateway(gateway)]));
            }
        }
    }

    fn addresses(&mut self) {
        for ip in self.recorded() {
            let ip = ip.address;
            if self.lacks(ip) {
                let name = &self.interface.name;
                let evidence = format!("{ip} is not on {name:?}");
                let mut fix = self.wiring.within(&format!("ip addr add {ip} dev {}", quoted(name)));
                // The kernel has removed the routes through the gateway with the address.
                let lost = self.lost_gateway(Family::of_net(ip));
                if let Some(gateway) = lost.filter(|gateway| self.is_lost_with(ip, *gateway)) {
                    let route = self.wiring.within(&format!("ip route add default via {gateway}"));
                    fix = format!("{fix} && {route}");
                }
                let finding = self.wiring.found(&ADDRESS_LOST, evidence).fix(fix);
                let routes = self.routes_lost_with(ip).map(|route| Aspect::Route(route.dst));
                let explained: Vec<Aspect> = routes.chain([Aspect::Address(ip)]).collect();
                self.findings.add(finding.explaining(explained));
            }
        }
    }

    fn default_routes(&mut self, all: &[Wiring<'_>]) {
        for family in Family::ALL {
            let wanted = self.wanted_gateway(family);
            // An address that the container lacks takes the routes by the gateway with it.
            let is_explained = |gateway: &IpAddr| {
                let explains = |ip: &IpConfig| {
                    self.lacks(ip.address) && self.is_lost_with(ip.address, *gateway)
                };
                self.recorded().iter().any(explains)
            };
            let lost = self.lost_gateway(family).filter(|gateway| !is_explained(gateway));
            if let Some(gateway) = lost {
                let evidence = format!("the record has a default route by {gateway}");
                let command = format!("ip route add default via {gateway}");
                let finding = self
                    .wiring
                    .found(&NO_DEFAULT_ROUTE, evidence)
                    .fix(self.wiring.within(&command));
                self.findings.add(finding.explaining([Aspect::Route(family.whole())]));
            }
            let best = best_default(&self.wiring.inside.routes, family);
            let used = best.filter(|route| route.link == Some(self.interface.index));
            let used: Vec<IpAddr> = used.map_or(vec![], |route| route.gateways.clone());
            for gateway in used {
                if self.has_no_owner(gateway, all) {
                    self.add_unowned_gateway(gateway, wanted);
                }
            }
        }
    }

    /// The gateway of the record's default route, if the container has no default route in any table.
    fn lost_gateway(&self, family: Family) -> Option<IpAddr> {
        let is_any = self.wiring.inside.routes.iter().any(|route| route.dst == family.whole());
        self.wanted_gateway(family).filter(|_| !is_any)
    }

    /// Whether the kernel removes the routes by the gateway with the address: it is that of their
    /// subnet, or the last one of the family.
    fn is_lost_with(&self, ip: IpNet, gateway: IpAddr) -> bool {
        let is_left = |it: &Address| {
            it.link == self.interface.index
                && it.net.addr().is_ipv4() == ip.addr().is_ipv4()
                && !gateway_is_link_local(it.net.addr())
        };
        ip.contains(&gateway)
            || ip.addr().is_ipv4() == gateway.is_ipv4()
                && !self.wiring.inside.addresses.iter().any(is_left)
    }

    /// The recorded routes that the kernel has removed with the address.
    fn routes_lost_with(&self, ip: IpNet) -> impl Iterator<Item = &Route> {
        let family = Family::of_net(ip);
        self.result.routes.iter().filter(move |route| {
            let gateway = route.gw.or_else(|| self.gateway_of(family));
            Family::of_net(route.dst) == family
                && gateway.is_some_and(|gw| self.is_lost_with(ip, gw))
        })
    }

    /// The gateway of the first recorded address of the family.
    fn gateway_of(&self, family: Family) -> Option<IpAddr> {
        let of_family = |ip: &IpConfig| Family::of_net(ip.address) == family;
        self.recorded().into_iter().find(of_family)?.gateway
    }

    fn lacks(&self, ip: IpNet) -> bool {
        !self.own.contains(&ip)
    }

    /// The gateway of the default route that the record has.
    fn wanted_gateway(&self, family: Family) -> Option<IpAddr> {
        let route = self.result.routes.iter().find(|route| route.dst == family.whole())?;
        route.gw.or_else(|| self.gateway_of(family))
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
        let attachment = self.wiring.attachment;
        let is_reported = self.findings.explain(&attachment.object(), &Aspect::Gateway(gateway));
        let fix = match wanted {
            Some(wanted) if wanted != gateway => {
                self.wiring.within(&format!("ip route replace default via {wanted}"))
            }
            Some(_) if is_reported => return, // the host lacks the gateway's address
            _ => attach_again(attachment),
        };
        let evidence = format!("the default route is by {gateway}, which no host has");
        self.findings.add(attachment.found(&GATEWAY_OF_NO_HOST, evidence).fix(fix));
    }

    fn masquerade(&mut self) {
        if !self.wiring.is_pair() || !self.wiring.is_set("ipMasq") {
            return;
        }
        let attachment = self.wiring.attachment;
        let config = attachment
            .list
            .as_ref()
            .and_then(|list| Config::parse(derive::for_status(list, self.wiring.plugin)).ok());
        let Some(config) = config else { return };
        let request = self.node.request;
        let cx = Context::new(request.plugins, &config, request.env, "", vec![]);
        let backend = match self.wiring.text("ipMasqBackend") {
            Some("iptables") => Some(Backend::Iptables),
            Some("nftables") => Some(Backend::Nftables),
            _ => None,
        };
        let exempt = decode::member(&self.wiring.plugin.value, "nonMasqueradeCIDRs");
        let exempt = exempt.unwrap_or_default();
        let masquerade = Masquerade::of(backend, &exempt, self.result);
        let verified = masquerade.verify(cx.handles(), &attachment.at().key);
        match verified {
            Err(error) if error.code == Code::CHECK_FAILED => {
                let finding =
                    self.wiring.found(&NOT_MASQUERADED, text_of(&error)).fix(self.wiring.sync());
                self.findings.add(finding.explaining([Aspect::Masquerade]));
            }
            _ => (), // any other error is in the CHECK of the plugin
        }
    }
}

/// The default route with the least metric, of several the first.
pub fn best_default(routes: &[FoundRoute], family: Family) -> Option<&FoundRoute> {
    routes.iter().filter(|route| route.is_default(family)).min_by_key(|route| route.metric)
}

fn gateway_is_link_local(gateway: IpAddr) -> bool {
    match gateway {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Addresses that several containers of one network have. The first `asked` were asked for.
fn same_addresses(all: &[Wiring<'_>], asked: usize, findings: &mut Findings) {
    let mut owners = Owners::new(asked);
    for (number, wiring) in all.iter().enumerate() {
        let Some(interface) = wiring.interface else { continue };
        let recorded = wiring.attachment.result.iter().flat_map(|result| &result.ips);
        let recorded: HashSet<IpAddr> = recorded.map(|it| it.address.addr()).collect();
        let own = wiring.inside.addresses.iter().filter(|it| it.link == interface.index);
        for ip in own.map(|it| it.net.addr()).filter(|ip| is_of_one_host(*ip)) {
            let is_recorded = recorded.contains(&ip);
            owners.insert((wiring.network(), ip), (number, wiring), is_recorded);
        }
    }
    let text = |(_, ip): &(&str, IpAddr)| ip.to_string();
    findings.0.extend(owners.findings(&ADDRESS_TWICE, text));
}

/// Whether one host of a network may have the address: each has those of its link and its loopback.
pub fn is_of_one_host(ip: IpAddr) -> bool {
    !gateway_is_link_local(ip) && !ip.is_loopback()
}
