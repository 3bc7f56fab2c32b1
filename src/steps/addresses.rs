//! Addresses and routes of the container's interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::errno::Errno;

use super::ipam;
use crate::cni::conf::Config;
use crate::cni::result::{self, AddResult, IpConfig};
use crate::deadline::Deadline;
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{AddressOptions, FoundRoute, Link, Netlink, Route, Scope, Watch};
use crate::net::sysctl::Sysctl;
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;

/// How long duplicate address detection may take, as in the reference.
const DAD_PATIENCE: Duration = Duration::from_secs(5);

/// Whether the kernel probes for duplicates of an IPv6 address before it uses the address, which
/// takes a second or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// The address is used at once: no other host can have it on a link that was just made for one
    /// container.
    Off,
    /// Probes as the kernel is configured to: for a link to a network of unknown machines. These
    /// learn the address from the probe too.
    Shared,
    /// Probes, also in ways that a loop in the network does not fool (RFC 7527).
    Enhanced,
}

impl DuplicateDetection {
    /// The settings of an interface in `net.ipv6.conf`, with their values.
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            DuplicateDetection::Off => &[("accept_dad", "0")],
            DuplicateDetection::Shared => &[("ndisc_notify", "1")],
            DuplicateDetection::Enhanced => &[("enhanced_dad", "1"), ("accept_dad", "1")],
        }
    }
}

/// How the interface is connected to its subnet.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// Whether IPv6 addresses are probed for duplicates before they are used.
    pub detection: DuplicateDetection,
    /// Whether the address's subnet is on the link; without it only routes reach anything.
    pub subnet_on_link: bool,
    /// Routes that the result's routes depend on; they are added first.
    pub routes_first: Vec<Route>,
}

impl Wiring {
    /// The whole subnet is on the link.
    pub fn to_subnet(detection: DuplicateDetection) -> Wiring {
        Wiring { detection, subnet_on_link: true, routes_first: vec![] }
    }

    fn detects(&self) -> bool {
        self.detection != DuplicateDetection::Off
    }
}

/// The container's interface with the addresses and routes of the result, up.
pub struct Inside<'p> {
    /// The result.
    pub result: &'p AddResult,
    /// How it is connected; None in layer 2, where it is only set up.
    pub wiring: Option<Wiring>,
    /// The interface and its index in the result, where the caller has them. CHECK has.
    pub found: Option<(&'p Link, usize)>,
}

impl<'a> Part<'a> for Inside<'_> {
    fn what(&self) -> String {
        "give the interface its addresses and routes".to_owned()
    }

    fn make(&self, Target { cx, at }: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        if let Some(wiring) = &self.wiring {
            return configure(cx, at, self.result, wiring);
        }
        let container = at.netlink()?;
        match self.found {
            Some((link, _)) => container.set_up(link),
            None => container.set_up(&container.link(at.ifname())?),
        }
    }

    fn compare(&self, on: Target<'a>) -> Result<()> {
        let Some((link, index)) = self.found else { return Ok(()) };
        verify(on.at, link, self.result, index)
    }

    fn may_differ(&self, on: Target<'a>) -> Result<bool> {
        let Some((link, _)) = self.found else { return Ok(false) };
        let container = on.at.netlink()?;
        for ip in &self.result.ips {
            if !link.up || !container.is_local(ip.address.addr()).unwrap_or(false) {
                return Ok(true);
            }
        }
        let leads_elsewhere = |route: &result::Route| {
            let to = match (route.dst.prefix_len(), Family::of_net(route.dst)) {
                (0, Family::V4) => DOCUMENTATION_V4.into(),
                (0, Family::V6) => DOCUMENTATION_V6.into(),
                _ => route.dst.network(),
            };
            container.link_towards(to).ok() != Some(link.index)
        };
        Ok(self.result.routes.iter().any(leads_elsewhere))
    }

    fn is_repaired(&self) -> bool {
        false
    }
}

/// Addresses of no network (RFC 5737, RFC 3849), which only a default route leads to.
const DOCUMENTATION_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DOCUMENTATION_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Gives the interface the addresses and routes of the result, and sets it up.
pub fn configure(
    cx: &Context<'_>,
    at: &Attachment,
    result: &AddResult,
    wiring: &Wiring,
) -> Result<()> {
    let routes = planned_routes(result)?;
    let ifname = at.ifname();
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    // Before the first address and before the link is up.
    at.run(|| {
        for (setting, value) in wiring.detection.settings() {
            // Optional: a container is attached even if the kernel lacks IPv6 or one of them.
            let _ = Sysctl::ipv6_conf(ifname, setting).write(value);
        }
        let _ = Sysctl::ipv4_conf(ifname, "arp_notify").write("1"); // neighbours learn a reused address at once
        if has_v6 {
            enable_ipv6("lo")?;
            enable_ipv6(ifname)?;
            // The container's own tools may set the link down and up again; its address must survive
            // that.
            Sysctl::ipv6_conf(ifname, "keep_addr_on_down").ensure("1")?;
        }
        Ok(())
    })?;
    let container = at.netlink()?;
    let link = container.link(ifname)?;
    let interface = Interface { config: cx.config, container, link, result, wiring };
    let is_probed = wiring.detects() && has_v6;
    let watch = is_probed.then(|| at.run(Watch::ipv6_addresses)).transpose()?;
    result.ips.iter().try_for_each(|ip| interface.add_address(ip.address))?;
    container
        .set_up(&interface.link)
        .map_err(|e| e.worded(format_args!("failed to set {ifname:?} UP")))?;
    if let Some(watch) = watch {
        settle(container, &interface.link, &watch, cx.deadline())?;
    }
    // The result's routes may depend on the wiring's.
    wiring.routes_first.iter().chain(&routes).try_for_each(|route| interface.add_route(route))
}

/// An interface, and what it is given.
struct Interface<'a> {
    config: &'a Config,
    container: &'a Netlink,
    link: Link,
    result: &'a AddResult,
    wiring: &'a Wiring,
}

impl Interface<'_> {
    /// All ipvlans of one lower link share its address table, so the kernel knows the addresses of the
    /// others.
    fn add_address(&self, address: IpNet) -> Result<()> {
        let Wiring { subnet_on_link, .. } = *self.wiring;
        let options = AddressOptions { detect_duplicates: self.wiring.detects(), subnet_on_link };
        self.container.add_address(&self.link, address, options).map_err(|e| {
            let name = &self.link.name;
            let error = e.worded(format_args!("failed to add IP addr {address} to {name:?}"));
            match error.is_errno(Errno::EADDRINUSE) {
                true => error
                    .with_code(Code::CONFLICT)
                    .with_details(format_args!("another interface has {}", address.addr())),
                false => error,
            }
        })
    }

    /// Adds a route. A failure is in the reference's words, which know no route with several gateways.
    fn add_route(&self, route: &Route) -> Result<()> {
        self.container.add_route(&self.link, route).map_err(|e| {
            let gateways: Vec<String> = route.gateways().map(|ip| ip.to_string()).collect();
            let via = if gateways.is_empty() { "<nil>".to_owned() } else { gateways.join(", ") };
            let is_unreachable = e.is_unreachable();
            let error = e.worded(format_args!(
                "failed to add route '{} via {via} dev {} metric {} (Scope: {}, Table: {})'",
                route.dst,
                self.link.name,
                route.priority.unwrap_or_default(),
                route.scope,
                route.table.unwrap_or_default(),
            ));
            if is_unreachable { self.unreachable(error, route) } else { error }
        })
    }

    /// Explains a route that the kernel refused because its gateway is outside the subnet. Our IPAM
    /// plugins accept such a gateway, as the reference's do, because another route may lead to it.
    fn unreachable(&self, error: Error, route: &Route) -> Error {
        let is_outside =
            |gateway: &IpAddr| !self.result.ips.iter().any(|ip| ip.address.contains(gateway));
        let Some(gateway) = route.gateways().find(is_outside) else { return error };
        let nets = self.result.ips.iter().map(|ip| ip.address.trunc());
        let nets: Vec<String> =
            nets.filter(|net| is_same_family(gateway, *net)).map(|net| net.to_string()).collect();
        let way_out = match gateway {
            IpAddr::V4(gateway) => format!(
                r#"{{"dst": "{gateway}/32", "gw": "0.0.0.0", "scope": 253}} before the other routes"#
            ),
            IpAddr::V6(_) => "one of fe80::/10".to_owned(),
        };
        error.with_details(format_args!(
            "{}: {gateway} is not in {}, expected an address of the subnet, or {way_out}",
            ipam::gateway_field(self.config, self.result, gateway),
            nets.join(", "),
        ))
    }
}

/// Enables IPv6 on the interface: container runtimes disable it in new namespaces, and a request
/// for an IPv6 address needs it.
pub fn enable_ipv6(ifname: &str) -> Result<()> {
    Sysctl::ipv6_conf(ifname, "disable_ipv6").ensure("0").map_err(|error| {
        let hint = if error.is_not_found() { "does the kernel have IPv6?" } else { "" };
        error.context(format_args!("enable IPv6 for interface {ifname:?}")).with_details(hint)
    })
}

/// Waits for duplicate address detection of the link's tentative addresses, if it has any.
pub fn settle_if_tentative(at: &Attachment, link: &Link, deadline: Deadline) -> Result<()> {
    let container = at.netlink()?;
    if container.addresses(link)?.iter().any(|address| address.tentative) {
        settle(container, link, &at.run(Watch::ipv6_addresses)?, deadline)?;
    }
    Ok(())
}

/// Waits for duplicate address detection. Fails for an address that another machine has, and for one
/// that is not settled in time on a link with a carrier: without one, nothing is sent or received.
fn settle(container: &Netlink, link: &Link, watch: &Watch, deadline: Deadline) -> Result<()> {
    let name = &link.name;
    let failed = |e: Error| e.context(format_args!("failed to settle addresses for {name:?}"));
    let limit = deadline.limit(DAD_PATIENCE);
    let end = Instant::now() + limit;
    loop {
        let addresses = container.addresses(link)?;
        if let Some(taken) = addresses.iter().find(|address| address.dad_failed) {
            return Err(failed(duplicate(Code::CONFLICT, link, taken.net)));
        }
        if !addresses.iter().any(|address| address.tentative) {
            return Ok(());
        }
        if !watch.until(end)? {
            break;
        }
    }
    if !container.link(name)?.is_operational() {
        return Ok(());
    }
    let seconds = limit.as_secs();
    let msg = format!("link {name} still has tentative addresses after {seconds} seconds");
    Err(failed(Error::new(Code::TRY_AGAIN, msg)))
}

fn duplicate(code: Code, link: &Link, address: IpNet) -> Error {
    let name = &link.name;
    let address = address.addr();
    Error::new(code, format!("link {name} has address {address} in DADFAILED state"))
        .with_details("a neighbour has the address: give this container another one")
}

/// The result's routes as the kernel takes them: a route without a gateway of its own gets the
/// first gateway of its family.
pub fn planned_routes(result: &AddResult) -> Result<Vec<Route>> {
    let gateways: Vec<IpAddr> = result.ips.iter().filter_map(|ip| ip.gateway).collect();
    let routes = result.routes.iter().enumerate();
    routes.map(|(index, route)| plan(&format!("routes[{index}]"), route, &gateways)).collect()
}

/// The route at `path`, as the kernel takes it. Without a gateway of its own it gets the first of
/// `gateways` that is of its family.
pub fn plan(path: &str, route: &result::Route, gateways: &[IpAddr]) -> Result<Route> {
    if route.dst.addr() != route.dst.network() {
        let problem = format_args!("{} has host bits set", route.dst);
        return Err(Error::config(format_args!("{path}.dst"), problem)
            .expecting(format_args!("{}", route.dst.trunc())));
    }
    let paths = (0..route.gws.len()).map(|index| format!("{path}.gws[{index}]"));
    let named = route.gw.map(|gateway| (format!("{path}.gw"), gateway));
    for (path, gateway) in named.into_iter().chain(paths.zip(route.gws.iter().copied())) {
        if !is_same_family(gateway, route.dst) {
            let problem = format_args!("it is not of the family of {}", route.dst);
            return Err(Error::config(path, problem)
                .saying("gateway, source, and destination ip are not the same IP family"));
        }
    }
    let mut hops = route.next_hops();
    let gateway = match hops.len() {
        0 => gateways.iter().copied().find(|gateway| is_same_family(*gateway, route.dst)),
        1 => hops.pop(),
        _ => None,
    };
    let scope = route.scope.unwrap_or(Scope::UNIVERSE.0.into());
    Ok(Route {
        gateway,
        hops,
        scope: Scope(within(path, "scope", scope, u8::MAX.into())?),
        table: number(path, "table", route.table.unwrap_or_default())?,
        priority: number(path, "priority", route.priority)?,
        mtu: number(path, "mtu", route.mtu)?,
        advmss: number(path, "advmss", route.advmss)?,
        ..Route::to(route.dst)
    })
}

fn is_same_family(gateway: IpAddr, dst: IpNet) -> bool {
    Family::of(gateway) == Family::of_net(dst)
}

/// A number of a route; 0 leaves it to the kernel.
fn number(path: &str, field: &str, value: i64) -> Result<Option<u32>> {
    Ok(Some(within(path, field, value, u32::MAX.into())?).filter(|number| *number != 0))
}

fn within<T: TryFrom<i64>>(path: &str, field: &str, value: i64, most: i64) -> Result<T> {
    let path = format_args!("{path}.{field}");
    T::try_from(value).map_err(|_| Error::out_of_range(path, value, 0..=most))
}

/// Compares the addresses and routes in prevResult with those of the kernel.
///
/// A later plugin may have moved routes to another table or link, so all tables are searched for a
/// route unless it names its table.
pub fn verify(at: &Attachment, link: &Link, result: &AddResult, index: usize) -> Result<()> {
    let container = at.netlink()?;
    let present = container.addresses(link)?;
    let mut found = ErrorList::default();
    if !link.up {
        let error = Error::check(format!("Interface {} is down", link.name));
        found.add(error.about(&Aspect::Interface));
    }
    // An address that names no interface is of this one.
    let is_own = |ip: &&IpConfig| ip.interface.is_none_or(|of| of == index as i64);
    for wanted in result.ips.iter().filter(is_own).map(|ip| ip.address) {
        match present.iter().find(|address| address.net == wanted) {
            Some(address) if address.dad_failed => {
                found.add(duplicate(Code::CHECK_FAILED, link, wanted));
            }
            Some(_) => (),
            None => {
                let what = format!("Failed to match addr {wanted} on interface {}", link.name);
                found.add(Error::check(what).about(&Aspect::Address(wanted)));
            }
        }
    }
    found.push(verify_routes(container, &result.routes));
    found.finish()
}

/// Compares the routes of a result with those of the kernel.
pub fn verify_routes(container: &Netlink, wanted: &[result::Route]) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let present = container.routes()?;
    // Through the wanted gateways, if any, and in the table, if one is wanted. The gateway of a
    // default route counts only among several.
    let is_route = |found: &FoundRoute, wanted: &result::Route| {
        let gateways = wanted.gateways();
        let is_through = (wanted.dst.prefix_len() == 0 && wanted.next_hops().len() < 2)
            || gateways.iter().all(|gateway| found.gateways.contains(gateway));
        let is_in = |table| table == 0 || i64::from(found.table) == table;
        found.dst == wanted.dst.trunc() && is_through && wanted.table.is_none_or(is_in)
    };
    let is_there = |route: &&result::Route| present.iter().any(|found| is_route(found, route));
    let missing = wanted.iter().filter(|route| !is_there(route));
    ErrorList::of(missing.map(|route| Err(missing_route(route.dst, &route.gateways()))))
}

/// The difference of a route that the container lacks.
pub fn missing_route(dst: IpNet, gateways: &[IpAddr]) -> Error {
    let via: String = gateways.iter().map(|gateway| format!(" via {gateway}")).collect();
    Error::check(format!("Expected Route {dst}{via} not found in routing table"))
        .about(&Aspect::Route(dst))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(routes: Vec<result::Route>) -> AddResult {
        let mut v4 = IpConfig::new("10.1.0.2/24".parse().unwrap());
        v4.gateway = Some("10.1.0.1".parse().unwrap());
        AddResult { ips: vec![v4], routes, ..AddResult::default() }
    }

    #[test]
    fn a_route_takes_the_first_gateway_of_its_family() {
        let to = |dst: &str| result::Route::to(dst.parse().unwrap());
        let routes = planned_routes(&result(vec![to("0.0.0.0/0"), to("::/0")])).unwrap();
        assert_eq!(routes[0].gateway, Some("10.1.0.1".parse().unwrap()));
        assert_eq!(routes[1].gateway, None);
    }

    #[test]
    fn routes_that_no_kernel_takes_are_refused_with_their_path() {
        let to = |dst: &str| result::Route::to(dst.parse().unwrap());
        let cases = [
            (
                to("10.1.2.3/16"),
                "routes[0].dst: 10.1.2.3/16 has host bits set, expected 10.1.0.0/16",
            ),
            (
                result::Route { mtu: -1, ..to("10.0.0.0/8") },
                "routes[0].mtu: -1 is out of range, expected 0 to 4294967295",
            ),
            (
                result::Route { scope: Some(256), ..to("10.0.0.0/8") },
                "routes[0].scope: 256 is out of range, expected 0 to 255",
            ),
            (
                result::Route { gw: Some("fe80::1".parse().unwrap()), ..to("10.0.0.0/8") },
                "gateway, source, and destination ip are not the same IP family; routes[0].gw: it is not of the family of 10.0.0.0/8",
            ),
        ];
        for (route, msg) in cases {
            let error = planned_routes(&result(vec![route])).unwrap_err();
            assert_eq!((error.code, error.to_string().as_str()), (Code::INVALID_CONFIG, msg));
        }
    }
}
