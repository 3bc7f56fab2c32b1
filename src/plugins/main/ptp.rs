//! `ptp`: a veth pair between container and host, each container a routed network of its own.
//! <https://www.cni.dev/plugins/current/main/ptp/>
//!
//! This is the model plugin: read it to learn how the others are built.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{AddressOptions, Link, Netlink, Route, Scope};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::addresses::{self, DuplicateDetection, Wiring};
use crate::steps::backend::Backend;
use crate::steps::dns::DnsConf;
use crate::steps::ipam::{self, Ipam};
use crate::steps::masquerade::{self, Masquerade};
use crate::steps::router_advertisements::AcceptRa;
use crate::steps::{
    fastpath, forwarding, interface, link_kind, prev_result, router_advertisements, veth,
};

/// The index of the container's interface in the result.
const CONTAINER: i64 = 1;

/// The plugin.
pub struct Ptp;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    ip_masq: bool,
    #[serde(deserialize_with = "masquerade::backend")]
    ip_masq_backend: Option<Backend>,
    #[serde(rename = "nonMasqueradeCIDRs")]
    non_masquerade_cidrs: masquerade::Exempt,
    mtu: u32,
    fast_path: bool,
    #[serde(rename = "acceptRA")]
    accept_ra: AcceptRa,
    dns: DnsConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "ipMasq | boolean | false | Traffic that leaves the container's subnet gets the host's address.
        ipMasqBackend | string | `nftables` | `nftables` or `iptables`. By default nftables over netlink; iptables on a kernel without nf_tables, with a warning on stderr.",
        masquerade::Exempt::KEYS,
        "mtu | integer | 0 | MTU of the pair, 68 to 65535; 0 leaves it to the kernel.
        fastPath | boolean | false | Established flows of TCP and UDP go from link to link by a flowtable of nftables, past the rules of the host: see [fast path](fast-path.md). The uplinks are the links of the host's default routes.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "ipam.type | string | required | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md); not [dhcp](dhcp.md), which needs the interface, and ptp creates that after it knows the addresses.",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        veth::validate_mtu(self.mtu)
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type(cx)
    }
}

impl Plugin for Ptp {
    const NAME: &'static str = "ptp";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "connects container and host by a veth pair and routes";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let ipam = Ipam::require_valid(cx)?;
        at.netns()?;
        transaction(|rb| {
            let mut result = ipam.add(at, rb)?;
            require_gateways(&result)?;
            let pair = veth::create(cx, at, &conf.wishes(), rb)?;
            conf.accept_ra.set(cx, at)?;
            add_interfaces(&mut result, at, &pair);
            set_host_end_up(cx, &pair.host)?;
            addresses::configure(cx, at, &result, &through_gateways(&result))?;
            route_to_container(cx, &pair.host, &result)?;
            forwarding::ensure(&result).map_err(|e| e.context("Could not enable IP forwarding"))?;
            if conf.ip_masq {
                conf.masquerade(cx).create(at, &result, rb)?;
            }
            if conf.fast_path {
                let path = fastpath::Path::through(&pair.host.name, &result);
                fastpath::create(cx, &at.key, &path, rb)?;
            }
            Ok(conf.dns.put_into(result))
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let mut found = ErrorList::default();
        found.push(Ipam::require(cx)?.check(at));
        conf.verify(cx, at, &mut found);
        found.finish()
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        fastpath::del_with_pair(cx, at)
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::require(cx)?;
        link_kind::require(cx, veth::KIND)?;
        if conf.ip_masq {
            conf.masquerade(cx).status()?;
        }
        if conf.fast_path {
            fastpath::status(cx.handles())?;
        }
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        errors.push(ipam::gc_with_links(cx, valid, &mut || fastpath::gc_with_pairs(cx, valid)));
        errors.push(masquerade::collect_garbage(cx.handles(), &cx.config.name, valid));
        errors.finish()
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        let link = veth::host_end(cx, at, &result, &at.netlink()?.link(at.ifname())?)?;
        ipam::repair_before(cx, at, repairs, || {
            let mut errors = ErrorList::default();
            errors.push(repair_host_end(cx, &link, &result, repairs));
            if conf.fast_path {
                let path = fastpath::Path::through(&link.name, &result);
                errors.push(fastpath::repair(cx, at, &path, repairs));
            }
            if conf.ip_masq {
                errors.push(conf.masquerade(cx).repair(at, &result, repairs));
            }
            errors.finish()
        })
    }
}

impl Conf {
    /// Compares prevResult with the kernel; stops where a link is missing that the rest needs.
    fn verify(&self, cx: &Context<'_>, at: &Attachment, found: &mut ErrorList) -> Option<()> {
        let result = found.push(prev_result::require(cx))?;
        let (index, interface) = found.push(prev_result::container_interface(&result, at))?;
        let container = prev_result::verify_link(at, interface, Some("veth"), found)?;
        if let Some(link) = found.push(veth::host_end(cx, at, &result, &container)) {
            found.push(verify_host_end(cx, &link, &container, &result));
            if self.fast_path {
                let path = fastpath::Path::through(&link.name, &result);
                found.push(fastpath::verify(cx, &at.key, &path));
            }
        }
        found.push(addresses::verify(at, &container, &result, index));
        found.push(self.accept_ra.verify(cx, at));
        if self.ip_masq {
            found.push(self.masquerade(cx).verify(&at.key, &result));
        }
        Some(())
    }

    fn masquerade<'a>(&self, cx: &'a Context<'_>) -> Masquerade<'a> {
        Masquerade::by(self.ip_masq_backend, &self.non_masquerade_cidrs, cx)
    }

    fn wishes(&self) -> veth::Wishes {
        veth::Wishes { mtu: Some(self.mtu).filter(|mtu| *mtu != 0), mac: None }
    }
}

/// Requires a gateway for each address: all traffic goes through the host's end, which gets the
/// gateways' addresses.
fn require_gateways(result: &AddResult) -> Result<()> {
    let Some(ip) = result.ips.iter().find(|ip| ip.gateway.is_none()) else { return Ok(()) };
    Err(Error::new(Code::INVALID_CONFIG, format!("address {} has no gateway", ip.address))
        .with_details(
            "ptp gives the gateway's address to the host's end; set a gateway in the ipam section",
        ))
}

/// Adds both ends of the pair to the result.
fn add_interfaces(result: &mut AddResult, at: &Attachment, pair: &veth::Pair) {
    let host = interface::on_host(&pair.host);
    result.interfaces = vec![host, interface::in_container(at, &pair.mac)];
    interface::assign_addresses(result, CONTAINER);
}

/// Sets the host's end up, after it was set to ignore router advertisements from the container.
fn set_host_end_up(cx: &Context<'_>, link: &Link) -> Result<()> {
    router_advertisements::ignore(&link.name)?;
    cx.host()?.set_up(link)
}

/// The wiring of the container: its gateway is on the link, and the rest of its subnet is reached
/// through the gateway, because two containers of one subnet are not on one link.
fn through_gateways(result: &AddResult) -> Wiring {
    let routes_first = result.ips.iter().flat_map(routes_through_gateway).collect();
    Wiring { detection: DuplicateDetection::Off, subnet_on_link: false, routes_first }
}

fn routes_through_gateway(ip: &IpConfig) -> Vec<Route> {
    let Some(gateway) = ip.gateway else { return vec![] };
    let source = Some(ip.address.addr());
    let to_gateway = Route { scope: Scope::LINK, source, ..Route::to(gateway.into()) };
    match subnet_behind(gateway, ip) {
        Some(subnet) => {
            vec![to_gateway, Route { gateway: Some(gateway), source, ..Route::to(subnet) }]
        }
        None => vec![to_gateway],
    }
}

/// The subnet of the address, unless it consists of one address or is the gateway alone.
fn subnet_behind(gateway: IpAddr, ip: &IpConfig) -> Option<IpNet> {
    let subnet = ip.address.trunc();
    let is_single = subnet.prefix_len() == subnet.max_prefix_len();
    Some(subnet).filter(|subnet| !is_single && *subnet != IpNet::from(gateway))
}

/// Gives the host's end the gateways' addresses, and the host a route to each of the container's.
fn route_to_container(cx: &Context<'_>, link: &Link, result: &AddResult) -> Result<()> {
    let host = cx.host()?;
    for ip in &result.ips {
        if let Some(gateway) = ip.gateway {
            add_gateway(host, link, gateway)?;
        }
        add_host_route(host, link, ip).map_err(|e| e.worded("failed to add route on host"))?;
    }
    Ok(())
}

fn add_gateway(host: &Netlink, link: &Link, gateway: IpAddr) -> Result<()> {
    let options = AddressOptions { detect_duplicates: false, subnet_on_link: true };
    match host.add_address(link, gateway.into(), options) {
        Err(e) if e.is_exists() => Ok(()), // two addresses of one subnet share their gateway
        added => {
            added.map_err(|e| e.worded(format_args!("failed to add IP addr ({gateway}) to veth")))
        }
    }
}

fn add_host_route(host: &Netlink, link: &Link, ip: &IpConfig) -> Result<()> {
    let route = Route { scope: Scope::HOST, ..Route::to(ip.address.addr().into()) };
    match host.add_only_route(link, &route) {
        Err(e) if e.is_exists() => Err(e.with_code(Code::CONFLICT).with_details(format_args!(
            "the host routes {} to another link already: is the address given to another container?",
            ip.address.addr()
        ))),
        added => added.map_err(|e| e.with_details(format_args!("to {}", route.dst))),
    }
}

/// Verifies that the host's end is up, has the gateways' addresses, and that what arrives there is
/// forwarded.
fn verify_host_end(
    cx: &Context<'_>,
    link: &Link,
    container: &Link,
    result: &AddResult,
) -> Result<()> {
    let gateways: Vec<IpAddr> = result.ips.iter().filter_map(|ip| ip.gateway).collect();
    ErrorList::of([
        veth::verify_up(link),
        veth::verify_gateways(cx.host()?, link, &gateways, container),
        forwarding::verify(result, &link.name),
    ])
}

/// Makes again what is missing of the host's end: its state, the gateways' addresses, the routes to
/// the container, and forwarding.
fn repair_host_end(
    cx: &Context<'_>,
    link: &Link,
    result: &AddResult,
    repairs: &Repairs,
) -> Result<()> {
    let name = &link.name;
    let up = veth::verify_up(link);
    repairs.make_unless(up, format_args!("set {name:?} up"), || set_host_end_up(cx, link))?;
    for ip in &result.ips {
        repair_gateway(cx, link, ip, repairs)?;
        repair_host_route(cx, link, ip, repairs)?;
    }
    forwarding::repair(result, name, repairs)
}

fn repair_gateway(cx: &Context<'_>, link: &Link, ip: &IpConfig, repairs: &Repairs) -> Result<()> {
    let (host, Some(gateway)) = (cx.host()?, ip.gateway) else { return Ok(()) };
    if host.addresses(link)?.iter().any(|address| address.net.addr() == gateway) {
        return Ok(());
    }
    let what = format_args!("give {gateway} to {:?}", link.name);
    repairs.make(what, || add_gateway(host, link, gateway))
}

fn repair_host_route(
    cx: &Context<'_>,
    link: &Link,
    ip: &IpConfig,
    repairs: &Repairs,
) -> Result<()> {
    let (host, dst) = (cx.host()?, IpNet::from(ip.address.addr()));
    if host.routes()?.iter().any(|route| route.dst == dst) {
        return Ok(());
    }
    let what = format_args!("route {} to {:?}", dst.addr(), link.name);
    repairs.make(what, || add_host_route(host, link, ip))
}
