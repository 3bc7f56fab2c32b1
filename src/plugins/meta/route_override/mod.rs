//! `route-override`: replaces routes and gateways that the plugins before it made.
//! <https://github.com/openshift/route-override-cni>

mod routes;

use serde::Deserialize;

use self::routes::Wishes;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Route};
use crate::error::Result;
use crate::net::netlink;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::{addresses, prev_result};

/// The `route-override` plugin.
pub struct RouteOverride;

/// The configuration of `route-override`; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    flushroutes: bool,
    flushgateway: bool,
    delroutes: Vec<Route>,
    addroutes: Vec<Route>,
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
    const KEYS: &'static [&'static str] = &[
        "flushroutes | boolean | false | Removes the routes of the interfaces from the main table, except those of scope link, those to link-local destinations, and those to a subnet without a gateway. The result's routes of that table leave with them.
        flushgateway | boolean | false | Removes the default routes of the interfaces, and from the result the gateways of the addresses.
        delroutes | list | none | Removes routes by destination, also those that no result lists.
        delroutes[].dst | subnet | required | The destination. Host bits do not count.
        delroutes[].table | integer | main | The table that it is removed from.
        delroutes[].gw | address | none | No effect, as in the original: the destination counts.
        delroutes[].gws | list of addresses | none | No effect.
        delroutes[].mtu | integer | 0 | No effect.
        delroutes[].advmss | integer | 0 | No effect.
        delroutes[].priority | integer | 0 | No effect.
        delroutes[].scope | integer | 0 | No effect.
        addroutes | list | none | Adds routes by the first interface. One that is there exactly so is left as it is.
        addroutes[].dst | subnet | required | The destination, without host bits.
        addroutes[].gw | address | none | The next hop. Without it the destination is on the link.
        addroutes[].gws | list of addresses | none | Several next hops: with `gw` they are one multipath route. [Results](host-local.md#result) leave it out.
        addroutes[].mtu | integer | 0 | The MTU along the route; 0 for none.
        addroutes[].advmss | integer | 0 | The TCP segment size to advertise; 0 for none.
        addroutes[].priority | integer | 0 | The metric; 0 leaves it to the kernel.
        addroutes[].table | integer | main | The routing table.
        addroutes[].scope | integer | 0 | The scope, 0 to 255: 0 global, 253 link.
        skipcheck | boolean | false | CHECK succeeds without looking.
        args.cni.flushroutes | boolean | none | In place of `flushroutes`.
        args.cni.flushgateway | boolean | none | In place of `flushgateway`.
        args.cni.delroutes | list | none | In place of `delroutes`, as a whole.
        args.cni.delroutes[].dst | subnet | required | As `delroutes[].dst`.
        args.cni.delroutes[].gw | address | none | As `delroutes[].gw`.
        args.cni.delroutes[].gws | list of addresses | none | As `delroutes[].gws`.
        args.cni.delroutes[].mtu | integer | 0 | As `delroutes[].mtu`.
        args.cni.delroutes[].advmss | integer | 0 | As `delroutes[].advmss`.
        args.cni.delroutes[].priority | integer | 0 | As `delroutes[].priority`.
        args.cni.delroutes[].table | integer | main | As `delroutes[].table`.
        args.cni.delroutes[].scope | integer | 0 | As `delroutes[].scope`.
        args.cni.addroutes | list | none | In place of `addroutes`, as a whole.
        args.cni.addroutes[].dst | subnet | required | As `addroutes[].dst`.
        args.cni.addroutes[].gw | address | none | As `addroutes[].gw`.
        args.cni.addroutes[].gws | list of addresses | none | As `addroutes[].gws`.
        args.cni.addroutes[].mtu | integer | 0 | As `addroutes[].mtu`.
        args.cni.addroutes[].advmss | integer | 0 | As `addroutes[].advmss`.
        args.cni.addroutes[].priority | integer | 0 | As `addroutes[].priority`.
        args.cni.addroutes[].table | integer | main | As `addroutes[].table`.
        args.cni.addroutes[].scope | integer | 0 | As `addroutes[].scope`.
        args.cni.skipcheck | boolean | none | In place of `skipcheck`.",
    ];

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
        transaction(|rb| routes::create(at, &wishes, &result, rb))?;
        Ok(wishes.put_into(result, conf.addroutes().1))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        if conf.args.cni.skipcheck.unwrap_or(conf.skipcheck) {
            return Ok(());
        }
        routes::verify(at, &conf.wishes()?, &prev_result::require(cx)?)
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
        routes::repair(at, &conf.wishes()?, &prev_result::require(cx)?, repairs)
    }
}

impl Conf {
    /// The routes to add, with their key.
    fn addroutes(&self) -> (&'static str, &[Route]) {
        match &self.args.cni.addroutes {
            Some(routes) => ("args.cni.addroutes", routes),
            None => ("addroutes", &self.addroutes),
        }
    }

    fn wishes(&self) -> Result<Wishes> {
        let asked = &self.args.cni;
        let (path, deleted) = match &asked.delroutes {
            Some(routes) => ("args.cni.delroutes", routes),
            None => ("delroutes", &self.delroutes),
        };
        // Of these only the destination and the table count.
        let bare = |route: &Route| Route { table: route.table, ..Route::to(route.dst.trunc()) };
        let deleted = planned(path, &deleted.iter().map(bare).collect::<Vec<_>>())?;
        let (path, added) = self.addroutes();
        Ok(Wishes {
            flush_routes: asked.flushroutes.unwrap_or(self.flushroutes),
            flush_gateway: asked.flushgateway.unwrap_or(self.flushgateway),
            deleted,
            added: planned(path, added)?,
        })
    }
}

/// The routes as the kernel takes them. One without a gateway is on the link.
fn planned(path: &str, routes: &[Route]) -> Result<Vec<netlink::Route>> {
    let each = routes.iter().enumerate();
    each.map(|(at, route)| addresses::plan(&format!("{path}[{at}]"), route, &[])).collect()
}
