//! D6xx: names. What can be decided from outside: no query is sent.

use std::net::IpAddr;
use std::path::Path;

use super::attachment::Attachment;
use super::faults::{
    NO_RESOLV_CONF, NO_ROUTE_TO_SERVER, NO_SERVER, OTHER_SERVERS, SERVER_ON_LOOPBACK,
};
use super::finding::{Finding, Findings, quoted};
use super::node::{Node, Reader};
use super::resolver::{Resolver, Resolvers, Source, is_served, named_file};
use super::wiring::Wiring;
use crate::commands::fault::Severity;
use crate::error::Result;
use crate::net::dns_query::PORT;
use crate::net::netns::Netns;
use crate::runtime::find;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let alive = |attachment: &&Attachment| attachment.inside.is_some();
    if !node.attachments.iter().any(|attachment| alive(&attachment)) {
        return;
    }
    let mut resolvers = Reader(findings).keep(Resolvers::look());
    let wirings = Wiring::all(node);
    let mut seen = vec![];
    for attachment in node.attachments.iter().filter(alive) {
        let Some(identity) = attachment.id.map(|id| id.file()) else { continue };
        let is_first = !seen.contains(&identity);
        seen.push(identity);
        let name = find::netns_name(&attachment.at().netns);
        let resolver = resolvers.of(identity, name);
        let resolver = Reader(findings).keep_of(attachment.object(), resolver);
        if let Some(resolver) = &resolver {
            node.servers.borrow_mut().insert(identity, resolver.servers.clone());
        }
        let mut own = wirings.iter().filter(|it| it.attachment.at().netns == attachment.at().netns);
        let is_down = |wiring: &Wiring<'_>| wiring.interface.is_some_and(|link| !link.up);
        let leads_nowhere = own.all(|wiring| wiring.is_internal(node) || is_down(wiring));
        let case = Case { attachment, resolver, leads_nowhere };
        case.examine_result(findings);
        if is_first {
            case.examine_file(findings); // one file for all interfaces of the container
        }
    }
}

/// A container with its resolver.
struct Case<'a> {
    attachment: &'a Attachment,
    resolver: Option<Resolver>,
    /// Whether no network of the container leads anywhere, although its runtime may give it the
    /// nameservers of the host, as podman does; or whether its interfaces are down.
    leads_nowhere: bool,
}

/// Whether a nameserver can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reachable,
    NoRoute,
    /// An address of a loopback where nothing listens.
    NotServed,
}

impl Case<'_> {
    /// The nameservers of the result.
    fn wanted(&self) -> Vec<IpAddr> {
        let dns = self.attachment.result.iter().flat_map(|result| &result.dns.nameservers);
        dns.filter_map(|server| server.parse().ok()).collect()
    }

    /// Compares the nameservers of the result with the file. Without a file, the runtime may give
    /// them to programs in a way that is not seen from outside.
    fn examine_result(&self, findings: &mut Findings) {
        let wanted = self.wanted();
        if wanted.is_empty() {
            return;
        }
        match (&self.resolver, find::netns_name(&self.attachment.at().netns)) {
            (Some(resolver), _) => self.examine_others(resolver, &wanted, findings),
            (None, name) => {
                self.examine_servers(&wanted, "the result of ADD", findings);
                if let Some(file) = name.map(named_file) {
                    let evidence = format!("{} does not exist", file.display());
                    let fix = write_command(&file, &wanted);
                    findings.add(self.attachment.found(&NO_RESOLV_CONF, evidence).fix(fix));
                }
            }
        }
    }

    /// A runtime may choose other nameservers than the result has; in the file of `ip netns` they
    /// are a mistake.
    fn examine_others(&self, resolver: &Resolver, wanted: &[IpAddr], findings: &mut Findings) {
        let is_any = resolver.servers.iter().any(|server| wanted.contains(server));
        if resolver.source != Source::Named || is_any || resolver.servers.is_empty() {
            return;
        }
        let evidence = format!("{} has {}", resolver.file.display(), listed(&resolver.servers));
        let fix = write_command(&resolver.file, wanted);
        findings.add(self.attachment.found(&OTHER_SERVERS, evidence).fix(fix));
    }

    /// Looks at the nameservers that programs in the container use.
    fn examine_file(&self, findings: &mut Findings) {
        let Some(resolver) = &self.resolver else { return };
        let file = resolver.file.display().to_string();
        if resolver.servers.is_empty() {
            let evidence = format!("{file}: programs ask 127.0.0.1 instead");
            findings.add(self.attachment.found(&NO_SERVER, evidence).fix(self.advice()));
        }
        self.examine_servers(&resolver.servers, &file, findings);
    }

    /// Names are resolved as long as one of the servers can be asked: without a route, or without a
    /// listener on the loopback, the resolver asks the next one at once.
    fn examine_servers(&self, servers: &[IpAddr], origin: &str, findings: &mut Findings) {
        let states = Reader(findings).keep(self.states(servers));
        if states.contains(&State::Reachable) {
            return;
        }
        let of = |wanted| {
            let all = servers.iter().zip(&states).filter(move |(_, state)| **state == wanted);
            all.map(|(server, _)| *server).collect::<Vec<IpAddr>>()
        };
        let object = self.attachment.object();
        let is_error = |it: &Finding| it.object == object && it.fault.severity == Severity::Error;
        let unrouted = of(State::NoRoute);
        if !unrouted.is_empty() && !self.leads_nowhere && !findings.0.iter().any(is_error) {
            let is = if unrouted.len() == 1 { "is" } else { "are" };
            let servers = listed(&unrouted);
            let evidence = format!("{servers} of {origin} {is} not reachable by any route");
            let finding = self.attachment.found(&NO_ROUTE_TO_SERVER, evidence);
            findings.add(finding.fix(self.route_command()));
        }
        for server in of(State::NotServed) {
            let evidence = format!(
                "{origin} has {server}, and nothing listens there: that address is the container's own"
            );
            findings.add(self.attachment.found(&SERVER_ON_LOOPBACK, evidence).fix(self.advice()));
        }
    }

    /// The state of each server; nothing if the namespace is gone by now.
    fn states(&self, servers: &[IpAddr]) -> Result<Vec<State>> {
        if servers.is_empty() {
            return Ok(vec![]);
        }
        let Some(netns) = self.attachment.open()? else { return Ok(vec![]) };
        servers.iter().map(|server| state(&netns, *server)).collect()
    }

    /// The command that adds a default route by the gateway of the result.
    fn route_command(&self) -> String {
        let at = self.attachment.at();
        let ips = self.attachment.result.iter().flat_map(|result| &result.ips);
        let gateway = ips.filter_map(|ip| ip.gateway).next();
        let (netns, ifname) = (quoted(&at.netns), quoted(at.key.ifname.as_str()));
        match gateway {
            Some(gateway) => format!(
                "sudo nsenter --net={netns} ip route add default via {gateway} dev {ifname}"
            ),
            None => format!("sudo nsenter --net={netns} ip route"),
        }
    }

    fn advice(&self) -> String {
        let wanted = self.wanted();
        match find::netns_name(&self.attachment.at().netns) {
            Some(name) if !wanted.is_empty() => write_command(&named_file(name), &wanted),
            _ => format!(
                "name the servers in \"dns\" of {}, or of the runtime, and attach the container again",
                self.attachment.at().key.network
            ),
        }
    }
}

/// The command that writes these nameservers.
fn write_command(file: &Path, servers: &[IpAddr]) -> String {
    let dir = file.parent().unwrap_or(file);
    let lines: Vec<String> =
        servers.iter().map(|server| format!("nameserver {server}\\n")).collect();
    format!(
        "sudo mkdir -p {}; printf '{}' | sudo tee {}",
        quoted(&dir.to_string_lossy()),
        lines.concat(),
        quoted(&file.to_string_lossy())
    )
}

fn listed(servers: &[IpAddr]) -> String {
    let texts: Vec<String> = servers.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

fn state(netns: &Netns, server: IpAddr) -> Result<State> {
    if server.is_loopback() {
        let is_served = netns.enter(|| is_served(server, PORT))?;
        return Ok(if is_served { State::Reachable } else { State::NotServed });
    }
    match netns.netlink()?.link_towards(server) {
        Err(error) if error.is_unreachable() => Ok(State::NoRoute),
        found => found.map(|_| State::Reachable),
    }
}
