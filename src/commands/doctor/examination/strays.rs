//! D507 to D512: addresses and default routes that no plugin gave, in the container and on the host's
//! end of its pair, such as those of a network service of the host; and addresses of containers and of
//! services that the host has as well.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::addresses::{best_default, is_of_one_host};
use super::faults::{
    ADDRESS_LOST, ADDRESS_ON_HOST, GATEWAY_OF_NO_HOST, PORT_OF_SERVICE, ROUTE_INTO_CONTAINER,
    STRAY_ADDRESS, STRAY_ON_END, STRAY_ROUTE,
};
use super::finding::{Finding, Findings, quoted};
use super::node::Node;
use super::wiring::Wiring;
use crate::cni::result::AddResult;
use crate::commands::fault::Fault;
use crate::commands::net::capability;
use crate::family::Family;
use crate::net::netlink::{Address, FoundRoute, Link};
use crate::plugins::meta::portmap;

/// It runs after that of addresses, which compares with the record.
pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let (all, asked) = Wiring::with_others(node);
    for wiring in &all[..asked] {
        let Some(interface) = wiring.interface.filter(|link| link.up) else { continue };
        let of_container = node.attachments.iter().filter(|it| it.id == wiring.attachment.id);
        let records = of_container.filter_map(|it| it.result.as_ref()).collect();
        let case = Case { node, wiring, interface, records };
        findings.0.extend([case.on_host(), case.of_service(), case.end()].into_iter().flatten());
        let has = |fault: &Fault| {
            let object = wiring.attachment.object();
            findings.0.iter().any(|known| known.object == object && *known.fault == *fault)
        };
        let (is_lost, has_no_owner) = (has(&ADDRESS_LOST), has(&GATEWAY_OF_NO_HOST)); // each has a fix for both
        findings.0.extend(case.address(&all).filter(|_| !is_lost));
        let routes = Family::ALL.into_iter().filter_map(|family| case.route(family));
        findings.0.extend(routes.filter(|_| !has_no_owner));
    }
}

struct Case<'c, 'a> {
    node: &'c Node<'a>,
    wiring: &'c Wiring<'a>,
    interface: &'c Link,
    /// The results of all attachments of the container.
    records: Vec<&'c AddResult>,
}

impl Case<'_, '_> {
    /// The host takes packets to an address that it has for its own.
    fn on_host(&self) -> Option<Finding> {
        let ips = self.wiring.attachment.result.iter().flat_map(|result| &result.ips);
        let owner = |ip: IpAddr| self.node.addresses.iter().find(|it| it.net.addr() == ip);
        let mut owned = ips.filter_map(|ip| owner(ip.address.addr()));
        let address = owned.find(|it| is_of_one_host(it.net.addr()))?;
        let (ip, name) = (address.net.addr(), &self.node.link(address.link)?.name);
        let finding =
            self.wiring.found(&ADDRESS_ON_HOST, format!("{ip} is on {name:?} of the host"));
        Some(finding.show(format!("ip addr show to {ip}")))
    }

    /// A port at the address of a service takes the packets of the service with that port.
    fn of_service(&self) -> Option<Finding> {
        let published = capability::host_addresses(&self.wiring.attachment.at().capability_args);
        let link = |it: &Address| {
            let link = self.node.link(it.link)?;
            Some(link).filter(|link| portmap::SERVICE_LINKS.contains(&link.name.as_str()))
        };
        let addresses = self.node.addresses.iter().filter(|it| published.contains(&it.net.addr()));
        let (ip, link) = addresses.filter_map(|it| Some((it.net.addr(), link(it)?))).next()?;
        let name = &link.name;
        let finding = self
            .wiring
            .found(&PORT_OF_SERVICE, format!("hostIP {ip} is on {name:?}, of a service"));
        Some(finding.show(format!("ip addr show dev {name}")))
    }

    /// The addresses that were added for good. A network without IPAM leaves them to the container. One
    /// that another container of the network has as well is a conflict, and one that is a recorded
    /// gateway makes the container the router.
    fn address(&self, all: &[Wiring<'_>]) -> Option<Finding> {
        let recorded = || self.records.iter().flat_map(|record| &record.ips);
        let known: HashSet<IpAddr> = recorded().map(|ip| ip.address.addr()).collect();
        let is_stray = |it: &&Address| {
            let ip = it.net.addr();
            it.link == self.interface.index
                && it.is_lasting
                && is_of_one_host(ip)
                && !known.contains(&ip)
        };
        let mut strays: Vec<&Address> =
            self.wiring.inside.addresses.iter().filter(is_stray).collect();
        let result = self.wiring.attachment.result.as_ref()?;
        if strays.is_empty() || result.ips.is_empty() || self.wiring.is("loopback") {
            return None;
        }
        let (network, id) = (self.wiring.network(), self.wiring.attachment.id);
        let others = all.iter().filter(|it| it.network() == network && it.attachment.id != id);
        let others = others.flat_map(|it| &it.inside.addresses);
        let of_others = others.map(|it| it.net.addr());
        let of_network = all.iter().filter(|it| it.network() == network);
        let results = of_network.filter_map(|it| it.attachment.result.as_ref());
        let gateways = results.flat_map(|it| it.ips.iter().filter_map(|ip| ip.gateway));
        let others: HashSet<IpAddr> = of_others.chain(gateways).collect();
        strays.retain(|it| !others.contains(&it.net.addr()));
        let (first, more) = strays.split_first()?;
        let more =
            if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let (name, first) = (&self.interface.name, first.net);
        let show = self.wiring.within(&format!("ip addr show dev {}", quoted(name)));
        let evidence = format!("{name:?} has {first}{more}, which no plugin gave");
        Some(self.wiring.found(&STRAY_ADDRESS, evidence).show(show))
    }

    /// The default route that the kernel prefers, if it is by no recorded gateway.
    fn route(&self, family: Family) -> Option<Finding> {
        let known: Vec<IpAddr> = self.records.iter().flat_map(|it| gateways(it, family)).collect();
        let best = best_default(&self.wiring.inside.routes, family)?;
        let routes = &self.wiring.inside.routes;
        let mut defaults = routes.iter().filter(|route| route.is_default(family));
        let is_recorded = |route: &FoundRoute| route.gateways.iter().any(|it| known.contains(it));
        if best.link != Some(self.interface.index) || best.is_leased || !defaults.any(is_recorded) {
            return None;
        }
        let stray = best.gateways.iter().find(|it| !known.contains(it));
        if stray.is_none() && !best.gateways.is_empty() {
            return None;
        }
        let (by, via) = match stray {
            Some(gateway) => (format!("by {gateway}"), format!(" via {gateway}")),
            None => ("without a gateway".to_owned(), String::new()),
        };
        let evidence =
            format!("the default route {by} goes before the recorded one by {}", known[0]);
        let command = format!(
            "ip {} route del default{via} dev {} metric {}",
            option(family),
            quoted(&self.interface.name),
            best.metric
        );
        Some(self.wiring.found(&STRAY_ROUTE, evidence).fix(self.wiring.within(&command)))
    }

    /// Addresses and the default route of the host by the host's end. That of ptp has the gateways.
    fn end(&self) -> Option<Finding> {
        let end = self.wiring.below.filter(|_| self.wiring.is_pair())?;
        let result = self.wiring.attachment.result.as_ref()?;
        let is_given = |ip: IpAddr| {
            self.wiring.is("ptp") && result.ips.iter().any(|it| it.gateway == Some(ip))
        };
        let is_stray = |it: &&Address| {
            let ip = it.net.addr();
            it.link == end.index && !is_given(ip) && (ip.is_ipv4() || is_of_one_host(ip))
        };
        let strays = self.node.addresses.iter().filter(is_stray).map(|it| it.net);
        let strays: Vec<IpNet> = strays.collect();
        let is_here = |route: &&FoundRoute| route.link == Some(end.index);
        let best =
            |family| Some((family, best_default(&self.node.routes, family).filter(is_here)?));
        let routes: Vec<(Family, &FoundRoute)> = Family::ALL.into_iter().filter_map(best).collect();
        if strays.is_empty() && routes.is_empty() {
            return None;
        }
        let name = quoted(&end.name);
        let of_routes = routes.iter().map(|(family, route)| {
            let (option, metric) = (option(*family), route.metric);
            format!("sudo ip {option} route del default dev {name} metric {metric}")
        });
        let of_addresses = strays.iter().map(|it| format!("sudo ip addr del {it} dev {name}"));
        let commands: Vec<String> = of_routes.chain(of_addresses).collect();
        let (fault, route) = match routes.is_empty() {
            true => (&STRAY_ON_END, None),
            false => (&ROUTE_INTO_CONTAINER, Some("the default route".to_owned())),
        };
        let all: Vec<String> =
            route.into_iter().chain(strays.iter().map(IpNet::to_string)).collect();
        let all = all.join(" and ");
        let evidence = format!("host end {} has {all}, which no plugin gave", end.name);
        Some(self.wiring.found(fault, evidence).fix(commands.join(" && ")))
    }
}

/// The option of ip(8) for the family.
fn option(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

/// The gateways of the record's default routes.
fn gateways(record: &AddResult, family: Family) -> Vec<IpAddr> {
    let of_family = record.ips.iter().filter(|ip| Family::of_net(ip.address) == family);
    let first = of_family.filter_map(|ip| ip.gateway).next();
    let defaults = record.routes.iter().filter(|route| route.dst == family.whole());
    defaults.filter_map(|route| route.gw.or(first)).collect()
}
