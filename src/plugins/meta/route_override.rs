//! `route-override`: replaces routes and gateways that the plugins before it made.
//! <https://github.com/openshift/route-override-cni>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Route};
use crate::error::Result;
use crate::net::netlink;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::route_override::{self, Wishes};
use crate::steps::{addresses, prev_result};

/// The `route-override` plugin.
pub struct RouteOverride;

/// The configuration of `route-override`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// Removes the routes of the container's interfaces that lead beyond their links.
    flushroutes: bool,
    /// Removes the default routes, and the gateways from the result.
    flushgateway: bool,
    /// Removes the routes to these destinations.
    delroutes: Vec<Route>,
    /// Adds these routes.
    addroutes: Vec<Route>,
    /// CHECK succeeds without looking.
    skipcheck: bool,
    args: Args,
}

/// `args`. The original crashes where it has no `cni`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Overrides,
}

/// The keys of the configuration that the network's user replaces, lists as a whole.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Overrides {
    flushroutes: Option<bool>,
    flushgateway: Option<bool>,
    delroutes: Option<Vec<Route>>,
    addroutes: Option<Vec<Route>>,
    skipcheck: Option<bool>,
}

impl PluginConf for Conf {
    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        self.wishes().map(drop)
    }
}

impl Plugin for RouteOverride {
    const NAME: &'static str = "route-override";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "replaces routes that the plugins before it made";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let result = prev_result::require_chained(cx, "Required prevResult missing")?;
        let wishes = conf.wishes()?;
        transaction(|rb| route_override::create(at, &wishes, &result, rb))?;
        Ok(wishes.put_into(result, conf.addroutes().routes))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        if conf.skips_check() {
            return Ok(());
        }
        route_override::verify(at, &conf.wishes()?, &prev_result::require(cx)?)
    }

    /// Nothing: the routes go with the interface.
    fn del(_cx: &Context<'_>, _conf: &Conf, _at: &Detachment) -> Result<()> {
        Ok(())
    }

    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        Ok(())
    }

    fn gc(_cx: &Context<'_>, _conf: &Conf, _valid: &ValidAttachments) -> Result<()> {
        Ok(())
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        route_override::repair(at, &conf.wishes()?, &prev_result::require(cx)?, repairs)
    }
}

/// A list of routes and its place in the configuration.
struct Listed<'c> {
    path: &'static str,
    routes: &'c [Route],
}

impl Conf {
    fn delroutes(&self) -> Listed<'_> {
        match &self.args.cni.delroutes {
            Some(routes) => Listed { path: "args.cni.delroutes", routes },
            None => Listed { path: "delroutes", routes: &self.delroutes },
        }
    }

    fn addroutes(&self) -> Listed<'_> {
        match &self.args.cni.addroutes {
            Some(routes) => Listed { path: "args.cni.addroutes", routes },
            None => Listed { path: "addroutes", routes: &self.addroutes },
        }
    }

    fn skips_check(&self) -> bool {
        self.args.cni.skipcheck.unwrap_or(self.skipcheck)
    }

    fn wishes(&self) -> Result<Wishes> {
        let asked = &self.args.cni;
        Ok(Wishes {
            flush_routes: asked.flushroutes.unwrap_or(self.flushroutes),
            flush_gateway: asked.flushgateway.unwrap_or(self.flushgateway),
            deleted: self.delroutes().destinations()?,
            added: self.addroutes().planned()?,
        })
    }
}

impl Listed<'_> {
    /// The routes as the kernel takes them. One without a gateway is on the link.
    fn planned(&self) -> Result<Vec<netlink::Route>> {
        let each = self.routes.iter().enumerate();
        each.map(|(at, route)| addresses::plan(&self.path_of(at), route, &[])).collect()
    }

    /// The routes of which only the destination and the table count.
    fn destinations(&self) -> Result<Vec<netlink::Route>> {
        let bare = |route: &Route| Route { table: route.table, ..Route::to(route.dst.trunc()) };
        let each = self.routes.iter().map(bare).enumerate();
        each.map(|(at, route)| addresses::plan(&self.path_of(at), &route, &[])).collect()
    }

    fn path_of(&self, index: usize) -> String {
        format!("{}[{index}]", self.path)
    }
}
