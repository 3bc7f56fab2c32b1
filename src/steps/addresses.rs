//! Addresses and routes of the container's interface.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::errno::Errno;

use crate::cni::result::{self, AddResult};
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::net::netlink::{
    Address, AddressOptions, FoundRoute, Link, Netlink, Route, Scope, Watch,
};
use crate::net::sysctl::Sysctl;
use crate::plugin::{Attachment, Context};
use crate::steps::gateway_field;

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

/// Gives the interface the addresses and routes of the result, and sets it up.
pub fn configure(
    cx: &Context<'_>,
    at: &Attachment,
    result: &AddResult,
    wiring: &Wiring,
) -> Result<()> {
    let routes = planned_routes(result)?;
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    prepare(at, has_v6, wiring.detection)?;
    let container = at.netlink()?;
    let link = &container.link(at.ifname())?;
    let watch = (has_v6 && wiring.detects()).then(|| at.run(Watch::ipv6_addresses)).transpose()?;
    for ip in &result.ips {
        add_address(container, link, ip.address, wiring)?;
    }
    container
        .set_up(link)
        .map_err(|e| e.worded(format_args!("failed to set {:?} UP", link.name)))?;
    if let Some(watch) = watch {
        settle(container, link, &watch, cx.deadline())?;
    }
    for route in wiring.routes_first.iter().chain(&routes) {
        let added = container.add_route(link, route).map_err(|e| e.worded(adding(route, link)));
        added.map_err(|e| if_unreachable(e, cx, result, route))?;
    }
    Ok(())
}

fn add_address(container: &Netlink, link: &Link, address: IpNet, wiring: &Wiring) -> Result<()> {
    let options = AddressOptions {
        detect_duplicates: wiring.detects(),
        subnet_on_link: wiring.subnet_on_link,
    };
    container.add_address(link, address, options).map_err(|e| {
        let what = format!("failed to add IP addr {address} to {:?}", link.name);
        if_taken(e.worded(what), address)
    })
}

/// The reference's words for a route that cannot be added.
fn adding(route: &Route, link: &Link) -> String {
    format!(
        "failed to add route '{} via {} dev {} metric {} (Scope: {}, Table: {})'",
        route.dst,
        route.gateway.map_or("<nil>".to_owned(), |gateway| gateway.to_string()),
        link.name,
        route.priority.unwrap_or_default(),
        route.scope,
        route.table.unwrap_or_default(),
    )
}

/// Explains a route that the kernel refused because its gateway is outside the subnet. Our IPAM
/// plugins accept such a gateway, as the reference's do, because another route may lead to it.
fn if_unreachable(error: Error, cx: &Context<'_>, result: &AddResult, route: &Route) -> Error {
    let is_outside = |gateway: &IpAddr| !result.ips.iter().any(|ip| ip.address.contains(gateway));
    match route.gateway.filter(is_outside) {
        Some(gateway) if error.is_unreachable() => error.with_details(format_args!(
            "{}: {gateway} is not in {}, expected an address of the subnet, or {}",
            gateway_field::of(cx.config, result, gateway),
            subnets_of_family(result, gateway),
            way_out_for(gateway),
        )),
        _ => error,
    }
}

fn subnets_of_family(result: &AddResult, gateway: IpAddr) -> String {
    let nets = result.ips.iter().map(|ip| ip.address.trunc());
    let of_family = nets.filter(|net| Family::of_net(*net) == Family::of(gateway));
    let subnets: Vec<String> = of_family.map(|net| net.to_string()).collect();
    subnets.join(", ")
}

/// What makes the kernel accept a gateway outside the subnet.
fn way_out_for(gateway: IpAddr) -> String {
    match gateway {
        IpAddr::V4(gateway) => format!(
            r#"{{"dst": "{gateway}/32", "gw": "0.0.0.0", "scope": 253}} before the other routes"#
        ),
        IpAddr::V6(_) => "one of fe80::/10".to_owned(),
    }
}

/// Reports an address conflict: all ipvlans of one lower link share its address table, so the
/// kernel knows the addresses of the others.
fn if_taken(error: Error, address: IpNet) -> Error {
    if !error.is_errno(Errno::EADDRINUSE) {
        return error;
    }
    let details = format!("another interface has {}", address.addr());
    error.with_code(Code::CONFLICT).with_details(details)
}

/// Writes the settings that must be in place before the first address and before the link is up.
fn prepare(at: &Attachment, has_v6: bool, detection: DuplicateDetection) -> Result<()> {
    let ifname = at.ifname();
    at.run(|| {
        let v6 = |setting| Sysctl::ipv6_conf(ifname, setting);
        // Optional: a container is attached even if the kernel lacks IPv6 or the setting.
        let wish = |setting, value| drop(v6(setting).write(value));
        match detection {
            DuplicateDetection::Off => wish("accept_dad", "0"),
            DuplicateDetection::Shared => wish("ndisc_notify", "1"),
            DuplicateDetection::Enhanced => {
                wish("enhanced_dad", "1");
                wish("accept_dad", "1");
            }
        }
        let _ = Sysctl::ipv4_conf(ifname, "arp_notify").write("1"); // neighbours learn a reused address at once
        if has_v6 {
            for link in ["lo", ifname] {
                enable_ipv6(link)?;
            }
            // The container's own tools may set the link down and up again; its address must
            // survive that.
            v6("keep_addr_on_down").ensure("1")?;
        }
        Ok(())
    })
}

/// Enables IPv6 on the interface: container runtimes disable it in new namespaces, and a request
/// for an IPv6 address needs it.
pub fn enable_ipv6(ifname: &str) -> Result<()> {
    Sysctl::ipv6_conf(ifname, "disable_ipv6").ensure("0").map_err(|e| {
        let hint = if e.is_not_found() { "does the kernel have IPv6?" } else { "" };
        e.context(format_args!("enable IPv6 for interface {ifname:?}")).with_details(hint)
    })
}

/// Waits for duplicate address detection of the link's tentative addresses, if it has any.
pub fn settle_if_tentative(at: &Attachment, link: &Link, deadline: Deadline) -> Result<()> {
    let container = at.netlink()?;
    if !container.addresses(link)?.iter().any(|address| address.tentative) {
        return Ok(());
    }
    settle(container, link, &at.run(Watch::ipv6_addresses)?, deadline)
}

/// Waits for duplicate address detection.
fn settle(container: &Netlink, link: &Link, watch: &Watch, deadline: Deadline) -> Result<()> {
    let limit = deadline.limit(DAD_PATIENCE);
    let end = Instant::now() + limit;
    while has_tentative(container, link)? {
        if watch.until(end)? {
            continue;
        }
        if container.link(&link.name)?.is_operational() {
            return Err(unsettled(link, still_tentative(link, limit)));
        }
        return Ok(()); // nothing is sent or received before it has a carrier
    }
    Ok(())
}

/// Whether the link has an address that may not be used yet. Fails for one that another machine
/// has.
fn has_tentative(container: &Netlink, link: &Link) -> Result<bool> {
    let addresses = container.addresses(link)?;
    match addresses.iter().find(|address| address.dad_failed) {
        Some(taken) => Err(unsettled(link, duplicate(Code::CONFLICT, link, taken.net))),
        None => Ok(addresses.iter().any(|address| address.tentative)),
    }
}

fn unsettled(link: &Link, error: Error) -> Error {
    error.context(format_args!("failed to settle addresses for {:?}", link.name))
}

fn still_tentative(link: &Link, waited: Duration) -> Error {
    let name = &link.name;
    let seconds = waited.as_secs();
    Error::new(
        Code::TRY_AGAIN,
        format!("link {name} still has tentative addresses after {seconds} seconds"),
    )
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

/// The route at `path` of the result.
fn plan(path: &str, route: &result::Route, gateways: &[IpAddr]) -> Result<Route> {
    if route.dst.addr() != route.dst.network() {
        let problem = format!("{} has host bits set", route.dst);
        return Err(Error::config(format_args!("{path}.dst"), problem)
            .expecting(format_args!("{}", route.dst.trunc())));
    }
    let of_table = |table| number(path, "table", table);
    Ok(Route {
        gateway: gateway_of(path, route, gateways)?,
        scope: route.scope.map_or(Ok(Scope::UNIVERSE), |scope| scope_of(path, scope))?,
        table: route.table.map_or(Ok(None), of_table)?,
        priority: number(path, "priority", route.priority)?,
        mtu: number(path, "mtu", route.mtu)?,
        advmss: number(path, "advmss", route.advmss)?,
        ..Route::to(route.dst)
    })
}

fn gateway_of(path: &str, route: &result::Route, all: &[IpAddr]) -> Result<Option<IpAddr>> {
    let is_of_family = |gateway: &IpAddr| Family::of(*gateway) == Family::of_net(route.dst);
    let gateway = route.gw.or_else(|| all.iter().copied().find(is_of_family));
    if gateway.as_ref().is_none_or(is_of_family) {
        return Ok(gateway);
    }
    let problem = format!("it is not of the family of {}", route.dst);
    Err(Error::config(format_args!("{path}.gw"), problem)
        .saying("gateway, source, and destination ip are not the same IP family"))
}

fn scope_of(path: &str, scope: i64) -> Result<Scope> {
    let number = u8::try_from(scope);
    number.map(Scope).map_err(|_| out_of_range(path, "scope", scope, u8::MAX.into()))
}

/// A number of a route; 0 leaves it to the kernel.
fn number(path: &str, field: &str, value: i64) -> Result<Option<u32>> {
    match u32::try_from(value) {
        Ok(number) => Ok(Some(number).filter(|number| *number != 0)),
        Err(_) => Err(out_of_range(path, field, value, u32::MAX.into())),
    }
}

fn out_of_range(path: &str, field: &str, value: i64, most: i64) -> Error {
    Error::out_of_range(format_args!("{path}.{field}"), value, 0..=most)
}

/// Compares the addresses and routes in prevResult with those of the kernel.
///
/// A later plugin may have moved routes to another table or link, so all tables are searched for a
/// route unless it names its table.
pub fn verify(at: &Attachment, link: &Link, result: &AddResult, index: usize) -> Result<()> {
    let container = at.netlink()?;
    if !link.up {
        return Err(Error::check(format!("Interface {} is down", link.name)));
    }
    let addresses = container.addresses(link)?;
    for ip in result.ips.iter().filter(|ip| ip.interface.is_none_or(|of| of == index as i64)) {
        verify_address(&addresses, link, ip.address)?;
    }
    verify_routes(container, &result.routes)
}

fn verify_address(present: &[Address], link: &Link, wanted: IpNet) -> Result<()> {
    match present.iter().find(|address| address.net == wanted) {
        None => {
            let name = &link.name;
            Err(Error::check(format!("Failed to match addr {wanted} on interface {name}")))
        }
        Some(found) if found.dad_failed => Err(duplicate(Code::CHECK_FAILED, link, wanted)),
        Some(_) => Ok(()),
    }
}

fn verify_routes(container: &Netlink, wanted: &[result::Route]) -> Result<()> {
    let found = if wanted.is_empty() { vec![] } else { container.routes()? };
    match wanted.iter().find(|route| !found.iter().any(|found| is_route(found, route))) {
        Some(missing) => Err(missing_route(missing)),
        None => Ok(()),
    }
}

fn missing_route(route: &result::Route) -> Error {
    let gateway = route.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
    Error::check(format!("Expected Route {}{gateway} not found in routing table", route.dst))
}

fn is_route(found: &FoundRoute, wanted: &result::Route) -> bool {
    let is_default = wanted.dst.prefix_len() == 0;
    let via = |gateway: IpAddr| is_default || found.gateways.contains(&gateway);
    found.dst == wanted.dst.trunc()
        && wanted.gw.is_none_or(via)
        && wanted.table.is_none_or(|table| table == 0 || i64::from(found.table) == table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::result::IpConfig;

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
