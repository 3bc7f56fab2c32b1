//! `ptp`: a veth pair between container and host, each container a routed network of its own.
//! <https://www.cni.dev/plugins/current/main/ptp/>
//!
//! This is the model plugin: read it to learn how the others are built.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{AddressOptions, Link, Route, Scope};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part, Parts, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::{DuplicateDetection, Inside, Wiring};
use crate::steps::dns::DnsConf;
use crate::steps::fastpath::{self, FastPaths, Path};
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::masquerade::{self, Masquerade, Masquerading};
use crate::steps::rules::Backend;
use crate::steps::settings::{self, AcceptRa, Forwarding};
use crate::steps::veth::{self, Pairs};
use crate::steps::{container_link, interface, prev_result, routes};

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
            // All traffic goes through the host's end, which gets the gateways' addresses.
            if let Some(ip) = result.ips.iter().find(|ip| ip.gateway.is_none()) {
                let msg = format!("address {} has no gateway", ip.address);
                return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(
                    "ptp gives the gateway's address to the host's end; set a gateway in the ipam section",
                ));
            }
            let pair = veth::create(cx, at, &conf.wishes(), rb)?;
            let [host, inside] =
                [interface::on_host(&pair.host), interface::in_container(at, &pair.mac)];
            result.interfaces = vec![host, inside];
            interface::assign_addresses(&mut result, CONTAINER);
            conf.parts(&result, Some(&pair.host), None).make(Target { cx, at }, rb)?;
            Ok(conf.dns.put_into(result))
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let mut found = ErrorList::default();
        found.push(Ipam::require(cx)?.check(at));
        if let Some(result) = found.push(prev_result::require(cx))
            && let Some((inside, index)) =
                prev_result::see(at, &result, Some(veth::KIND), &mut found)
        {
            let link = found.push(veth::host_end(cx, at, &result, &inside));
            let parts = conf.parts(&result, link.as_ref(), Some((&inside, index)));
            found.push(parts.compare(Target { cx, at }));
        }
        found.finish()
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::require(cx)?;
        container_link::require_kind(cx, veth::KIND)?;
        if conf.ip_masq {
            masquerade::status(cx.handles(), conf.ip_masq_backend)?;
        }
        if conf.fast_path {
            fastpath::status(cx.handles())?;
        }
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        let inside = at.netlink()?.link(at.ifname())?;
        let link = veth::host_end(cx, at, &result, &inside)?;
        let found = prev_result::index_of(&result, at).map(|index| (&inside, index));
        ipam::repair_before(cx, at, repairs, || {
            conf.parts(&result, Some(&link), found).repair(Target { cx, at }, repairs)
        })
    }
}

/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Masquerading, &Leases, &FastPaths, &Pairs];

impl Conf {
    /// What an attachment consists of, besides the lease and the pair. `link` is the host's end, `found`
    /// the container's with its index in the result, as CHECK has found it.
    fn parts<'p, 'a>(
        &self,
        result: &'p AddResult,
        link: Option<&'p Link>,
        found: Option<(&'p Link, usize)>,
    ) -> Parts<'p, 'a> {
        let mut parts = Parts::default();
        parts.push("accept_ra", self.accept_ra);
        parts.extend("host end", link.map(HostEnd));
        parts.push(
            "addresses and routes",
            Inside { result, wiring: Some(through_gateways(result)), found },
        );
        if let Some(link) = link {
            parts.push("gateways", Gateways { link, result });
            parts.extend(
                "host route",
                result.ips.iter().map(|ip| HostRoute { link, ip: ip.address.addr() }),
            );
            parts.extend(
                "forwarding",
                Forwarding::of(result, &link.name, "Could not enable IP forwarding"),
            );
        }
        if self.ip_masq {
            let exempt = &self.non_masquerade_cidrs;
            parts.push("masquerade", Masquerade::of(self.ip_masq_backend, exempt, result));
        }
        parts.extend(
            "fast path",
            link.filter(|_| self.fast_path).map(|link| Path::through(&link.name, result)),
        );
        parts
    }

    fn wishes(&self) -> veth::Wishes {
        veth::Wishes { mtu: Some(self.mtu).filter(|mtu| *mtu != 0), mac: None }
    }
}

/// The wiring of the container: its gateway is on the link, and the rest of its subnet is reached
/// through the gateway, because two containers of one subnet are not on one link.
fn through_gateways(result: &AddResult) -> Wiring {
    let mut routes_first = vec![];
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        let (source, subnet) = (Some(ip.address.addr()), ip.address.trunc());
        routes_first.push(Route { scope: Scope::LINK, source, ..Route::to(gateway.into()) });
        // A subnet that is one address, or the gateway alone, has no rest.
        if subnet.prefix_len() < subnet.max_prefix_len() && subnet != IpNet::from(gateway) {
            routes_first.push(Route { gateway: Some(gateway), source, ..Route::to(subnet) });
        }
    }
    Wiring { detection: DuplicateDetection::Off, subnet_on_link: false, routes_first }
}

/// The host's end of the pair, up.
struct HostEnd<'p>(&'p Link);

impl<'a> Part<'a> for HostEnd<'_> {
    fn what(&self) -> String {
        format!("set {:?} up", self.0.name)
    }

    /// Ignores router advertisements from the container before it is up.
    fn make(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        settings::ignore_ra(&self.0.name)?;
        on.cx.host()?.set_up(self.0)
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        veth::verify_up(self.0)
    }
}

/// The gateways' addresses on the host's end.
struct Gateways<'p> {
    link: &'p Link,
    result: &'p AddResult,
}

impl Gateways<'_> {
    /// In the order of the result: the kernel takes the first as the host's own.
    fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.result.ips.iter().filter_map(|ip| ip.gateway).collect();
        all.dedup();
        all
    }
}

impl<'a> Part<'a> for Gateways<'_> {
    fn what(&self) -> String {
        let all: Vec<String> = self.addresses().iter().map(IpAddr::to_string).collect();
        format!("give {} to {:?}", all.join(", "), self.link.name)
    }

    fn make(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let options = AddressOptions { detect_duplicates: false, subnet_on_link: true };
        for gateway in self.addresses() {
            match on.cx.host()?.add_address(self.link, gateway.into(), options) {
                Err(e) if e.is_exists() => (), // a repair adds those that are missing
                added => added.map_err(|e| {
                    e.worded(format_args!("failed to add IP addr ({gateway}) to veth"))
                })?,
            }
        }
        Ok(())
    }

    fn compare(&self, Target { cx, at }: Target<'a>) -> Result<()> {
        veth::verify_gateways(cx.host()?, self.link, &self.addresses(), at.ifname())
    }
}

/// The host's route to an address of the container.
struct HostRoute<'p> {
    link: &'p Link,
    ip: IpAddr,
}

impl HostRoute<'_> {
    fn taken(&self) -> String {
        format!(
            "the host routes {} to another link already: is the address given to another container?",
            self.ip
        )
    }
}

impl<'a> Part<'a> for HostRoute<'_> {
    fn what(&self) -> String {
        format!("route {} to {:?}", self.ip, self.link.name)
    }

    fn make(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let route = Route { scope: Scope::HOST, ..Route::to(self.ip.into()) };
        let added = match on.cx.host()?.add_only_route(self.link, &route) {
            Err(e) if e.is_exists() => Err(e.with_code(Code::CONFLICT).with_details(self.taken())),
            added => added.map_err(|e| e.with_details(format_args!("to {}", route.dst))),
        };
        added.map_err(|e| e.worded("failed to add route on host"))
    }

    /// A route of others stays, and is for a person to judge.
    fn compare(&self, on: Target<'a>) -> Result<()> {
        let mut present = on.cx.host()?.routes()?;
        let dst = IpNet::from(self.ip);
        present.retain(|route| route.dst == dst && route.table == routes::MAIN);
        let name = &self.link.name;
        match present.first() {
            None => Err(Error::check(format!("the host has no route to {} by {name:?}", self.ip))),
            _ if present.iter().any(|route| route.link == Some(self.link.index)) => Ok(()),
            Some(_) => Err(Error::new(Code::CONFLICT, self.taken())),
        }
    }

    /// The reference compares none, and asking for the table costs more than the rest of CHECK.
    fn is_checked(&self) -> bool {
        false
    }
}
