//! `null`: a dummy link in the container with one address, and a route of the host to that address
//! by the host's `lo`. It connects nothing: it shows what a plugin consists of.

use std::net::IpAddr;

use cni_multi::cni::addr::opt_cidr;
use cni_multi::cni::attachment::Key;
use cni_multi::cni::conf::ValidAttachments;
use cni_multi::cni::result::{AddResult, IpConfig};
use cni_multi::cni::valid::Stale;
use cni_multi::error::{Code, Error, ErrorList, Result};
use cni_multi::net::netlink::{FoundRoute, Link, LinkKind, LinkSpec, Netlink, Route, Scope};
use cni_multi::plugin::owned::{self, Owned, Removal};
use cni_multi::plugin::part::{Part, Parts, Target};
use cni_multi::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use cni_multi::repair::Repairs;
use cni_multi::rollback::{Rollback, transaction};
use cni_multi::steps::addresses::{DuplicateDetection, Inside, Wiring};
use cni_multi::steps::container_link::{NetnsOf, Plan};
use cni_multi::steps::link_record::PluginLinks;
use cni_multi::steps::records::Records;
use cni_multi::steps::settings::AcceptRa;
use cni_multi::steps::{container_link, interface, prev_result, routes};
use ipnet::IpNet;
use serde::Deserialize;

/// The kernel's name for this kind of link.
const KIND: &str = "dummy";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "null", kind: KIND };

/// The plugin.
pub struct Null;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    #[serde(with = "opt_cidr")]
    address: Option<IpNet>,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "address | string | required | The interface's address with its prefix length, such as `192.0.2.2/32`.",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        let missing = || Error::missing("address", "one as in 192.0.2.2/32");
        self.address.map(drop).ok_or_else(missing)
    }
}

impl Plugin for Null {
    const NAME: &'static str = "null";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface with one address, which the host routes to itself";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        at.netns()?;
        let (spec, accept_ra) = (LinkSpec::of(LinkKind::Dummy), AcceptRa::default());
        let plan = Plan { links: LINKS, created_from: NetnsOf::Container, spec, accept_ra };
        transaction(|rb| {
            let link = plan.create(cx, at, rb)?;
            let interfaces = vec![interface::in_container(at, &link.mac())];
            let ips = conf.address.map(IpConfig::new).into_iter().collect();
            let mut result = AddResult { interfaces, ips, ..AddResult::default() };
            interface::assign_addresses(&mut result, 0);
            conf.parts(&result, None).make(Target { cx, at }, rb)?;
            Ok(result)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = prev_result::require(cx)?;
        let mut found = ErrorList::default();
        let link = prev_result::see(at, &result, Some(KIND), &mut found);
        let link = link.as_ref().map(|(link, index)| (link, *index));
        found.push(conf.parts(&result, link).compare(Target { cx, at }));
        found.finish()
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        conf.parts(&result, None).repair(Target { cx, at }, repairs)
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        container_link::require_kind(cx, KIND)
    }
}

/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&HostRoutes, &LINKS];

impl Conf {
    /// What an attachment consists of, besides the link. `found` is that link with its index in the
    /// result, as CHECK has found it.
    fn parts<'p, 'a>(
        &self,
        result: &'p AddResult,
        found: Option<(&'p Link, usize)>,
    ) -> Parts<'p, 'a> {
        let mut parts = Parts::default();
        let wiring = Some(Wiring::to_subnet(DuplicateDetection::Off));
        parts.push("addresses and routes", Inside { result, wiring, found });
        parts.extend("host route", self.address.map(|address| HostRoute(address.addr())));
        parts
    }
}

/// The host's route to an address of the container, by `lo`.
struct HostRoute(IpAddr);

impl HostRoute {
    fn route(&self) -> Route {
        Route { scope: Scope::HOST, ..Route::to(self.0.into()) }
    }

    /// The routes to the address alone, of any owner and metric.
    fn find(&self, host: &Netlink) -> Result<Vec<FoundRoute>> {
        let mut routes = host.routes()?;
        let dst = IpNet::from(self.0);
        routes.retain(|route| route.dst == dst && route.table == routes::MAIN);
        Ok(routes)
    }

    fn taken(&self) -> Error {
        let msg = format!("the host has a route to {} already", self.0);
        Error::new(Code::CONFLICT, msg).with_details("is the address given to another container?")
    }
}

impl<'a> Part<'a> for HostRoute {
    fn what(&self) -> String {
        format!("route {} to \"lo\"", self.0)
    }

    /// Writes the record before it adds the route, so that DEL finds the route of a killed ADD, and
    /// only if the host has no route to the address, so that DEL removes none of others.
    fn make(&self, Target { cx, at }: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let host = cx.host()?;
        release(cx, &at.key)?; // an earlier ADD had no DEL
        if !self.find(host)?.is_empty() {
            return Err(self.taken());
        }
        records().write(at, &self.0)?;
        rb.undo("forget the host's route", move || records().remove(&at.key));
        host.add_only_route(&host.link("lo")?, &self.route())?;
        rb.undo("delete the host's route", move || release(cx, &at.key));
        Ok(())
    }

    /// A route of others stays, and is for a person to judge.
    fn compare(&self, on: Target<'a>) -> Result<()> {
        let host = on.cx.host()?;
        let (found, lo) = (self.find(host)?, host.link("lo")?.index);
        match found.as_slice() {
            [] => Err(Error::check(format!("the host has no route to {} by \"lo\"", self.0))),
            all if all.iter().any(|route| route.link == Some(lo)) => Ok(()),
            _ => Err(self.taken()),
        }
    }
}

/// The routes of the host, by their records: nothing in a route names its owner.
struct HostRoutes;

impl Owned for HostRoutes {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        release(cx, &at.key)
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        for found in records().stale::<IpAddr>(&cx.config.name, valid)? {
            let what = format!("route {}", found.kept);
            let as_stale = || Stale { what, ..found.as_stale() };
            errors.push(valid.remove(as_stale, || release(cx, &found.key)));
        }
        errors.push(records().forget_torn::<IpAddr>(&cx.config.name, valid));
        errors.finish()
    }
}

/// Removes the route of the record, and the record.
fn release(cx: &Context<'_>, key: &Key) -> Result<()> {
    if let Some(ip) = records().read(key)? {
        let host = cx.host()?;
        host.remove_route(&host.link("lo")?, &HostRoute(ip).route())?;
    }
    records().remove(key)
}

/// The address of each attachment's route. [`LINKS`] keeps its records in `null`.
fn records() -> Records {
    Records::of_plugin("null-routes")
}
