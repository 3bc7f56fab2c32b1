//! D6xx: names. What can be decided from outside: no query is sent.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::attachment::Attachment;
use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Severity, quoted};
use super::node::{Node, Reader};
use super::resolver::{Resolver, Resolvers, Source, is_served};
use super::wiring::Wiring;
use crate::error::Result;
use crate::net::dns_query::PORT;
use crate::net::netns::Netns;
use crate::runtime::find;

const NO_ROUTE: Fault = Fault::error("D601", "the container has no route to a nameserver");
const LOOPBACK: Fault =
    Fault::error("D602", "the container's nameserver is on a loopback that has none");
const NO_FILE: Fault =
    Fault::warning("D603", "the nameservers of the result are in no resolv.conf");
const EMPTY: Fault = Fault::warning("D604", "the container's resolv.conf has no nameserver");
const OTHERS: Fault =
    Fault::warning("D605", "resolv.conf has none of the nameservers of the result");

/// The examination.
pub const EXAMINATION: Examination =
    Examination { faults: || vec![&NO_ROUTE, &LOOPBACK, &NO_FILE, &EMPTY, &OTHERS], examine };

fn examine(node: &Node<'_>, findings: &mut Findings) {
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
                name.into_iter().for_each(|name| self.add_no_file(name, &wanted, findings));
            }
        }
    }

    fn add_no_file(&self, name: &str, wanted: &[IpAddr], findings: &mut Findings) {
        let file = file_of(name);
        let evidence = format!("{} does not exist", file.display());
        self.add(&NO_FILE, evidence, write_command(&file, wanted), findings);
    }

    /// A runtime may choose other nameservers than the result has; in the file of `ip netns` they
    /// are a mistake.
    fn examine_others(&self, resolver: &Resolver, wanted: &[IpAddr], findings: &mut Findings) {
        let is_any = resolver.servers.iter().any(|server| wanted.contains(server));
        if resolver.source != Source::Named || is_any || resolver.servers.is_empty() {
            return;
        }
        let evidence = format!("{} has {}", resolver.file.display(), listed(&resolver.servers));
        self.add(&OTHERS, evidence, write_command(&resolver.file, wanted), findings);
    }

    /// Looks at the nameservers that programs in the container use.
    fn examine_file(&self, findings: &mut Findings) {
        let Some(resolver) = &self.resolver else { return };
        let file = resolver.file.display().to_string();
        if resolver.servers.is_empty() {
            let evidence = format!("{file}: programs ask 127.0.0.1 instead");
            self.add(&EMPTY, evidence, self.advice(), findings);
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
        if !self.leads_nowhere && !findings.0.iter().any(is_error) {
            self.add_no_route(&of(State::NoRoute), origin, findings);
        }
        self.add_not_served(&of(State::NotServed), origin, findings);
    }

    /// The state of each server; nothing if the namespace is gone by now.
    fn states(&self, servers: &[IpAddr]) -> Result<Vec<State>> {
        if servers.is_empty() {
            return Ok(vec![]);
        }
        let Some(netns) = self.attachment.open()? else { return Ok(vec![]) };
        servers.iter().map(|server| state(&netns, *server)).collect()
    }

    fn add_no_route(&self, servers: &[IpAddr], origin: &str, findings: &mut Findings) {
        if !servers.is_empty() {
            let is = if servers.len() == 1 { "is" } else { "are" };
            let servers = listed(servers);
            let evidence = format!("{servers} of {origin} {is} not reachable by any route");
            self.add(&NO_ROUTE, evidence, self.route_command(), findings);
        }
    }

    fn add_not_served(&self, servers: &[IpAddr], file: &str, findings: &mut Findings) {
        for server in servers {
            let evidence = format!(
                "{file} has {server}, and nothing listens there: that address is the container's own"
            );
            self.add(&LOOPBACK, evidence, self.advice(), findings);
        }
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
            Some(name) if !wanted.is_empty() => write_command(&file_of(name), &wanted),
            _ => format!(
                "name the servers in \"dns\" of {}, or of the runtime, and attach the container again",
                self.attachment.at().key.network
            ),
        }
    }

    fn add(&self, fault: &'static Fault, evidence: String, fix: String, findings: &mut Findings) {
        findings.add(Finding::new(fault, self.attachment.object(), evidence).fix(fix));
    }
}

/// The file that `ip netns exec` shows as /etc/resolv.conf (ip-netns(8)).
fn file_of(name: &str) -> PathBuf {
    Path::new("/etc/netns").join(name).join("resolv.conf")
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
