//! `sbr`: source-based routing. Packets from an interface's address leave by that interface.
//! <https://www.cni.dev/plugins/current/meta/sbr/>

mod source_routing;

use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;

use self::source_routing::Wishes;
use crate::cni::addr;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::net::netlink::Netlink;
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::{prev_result, routes};

/// The `sbr` plugin.
pub struct Sbr;

/// The configuration of `sbr`; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    table: Option<i64>,
    gateways: Vec<String>,
    add_source_hints: bool,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "table | integer | none | A table for the rules; no route is moved then, and the configuration supplies its routes: an IPAM route may have a `table`. 1 to 252, or from 256 on
        gateways | list of strings | none | The gateways of the default routes in the tables that ADD chooses, at most one of each family. They replace those of `prevResult`. Excludes `table`
        addSourceHints | boolean | false | The main table keeps the routes to the addresses' subnets, with the addresses as their preferred sources; all others move. No effect with `table`, which moves none",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        self.wishes().map(drop)
    }
}

impl Plugin for Sbr {
    const NAME: &'static str = "sbr";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "routes what an address sends by the address's own interface";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let result =
            prev_result::require_chained(cx, "This plugin must be called as chained plugin")?;
        let wishes = conf.wishes()?;
        let _lock = at.netns()?.lock(cx.deadline())?; // concurrent ADDs to this netns look for free tables too
        transaction(|rb| source_routing::create(Target { cx, at }, &result, &wishes, rb))?;
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = prev_result::require(cx)?;
        source_routing::check(Target { cx, at }, &result, &conf.wishes()?)
    }

    fn del(_cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        source_routing::delete(at, conf.table().ok().flatten())
    }

    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        let has_rules = Netlink::open().and_then(Netlink::into_has_rules);
        match has_rules.map_err(|e| e.with_code(Code::NOT_AVAILABLE))? {
            true => Ok(()),
            false => Err(Error::new(Code::NOT_AVAILABLE, "the kernel has no policy routing")
                .with_details("is it built with CONFIG_IP_MULTIPLE_TABLES?")),
        }
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        source_routing::collect_garbage(cx, valid)
    }

    /// Adds again the rules and the routes of tables that are missing. Routes that came back to the
    /// main table stay: nothing in a container is deleted.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        let _lock = at.netns()?.lock(cx.deadline())?;
        source_routing::repair(Target { cx, at }, &result, &conf.wishes()?, repairs)
    }
}

impl Conf {
    fn table(&self) -> Result<Option<u32>> {
        self.table.map(|table| routes::parse_table("table", table)).transpose()
    }

    fn wishes(&self) -> Result<Wishes> {
        let table = self.table()?;
        let gateways = self.gateways()?;
        if table.is_some() && !gateways.is_empty() {
            return Err(Error::exclusive("gateways", "table")
                .with_details("a configured table gets no routes from sbr"));
        }
        Ok(Wishes { table, gateways, source_hints: self.add_source_hints })
    }

    fn gateways(&self) -> Result<Vec<IpAddr>> {
        let at_most_one_each = |path: String, problem: fmt::Arguments<'_>| {
            Error::config(path, problem).expecting("at most one IPv4 and one IPv6 address")
        };
        if self.gateways.len() > Family::ALL.len() {
            let problem = format_args!("{} addresses", self.gateways.len());
            return Err(at_most_one_each("gateways".to_owned(), problem)
                .saying("gateways list cannot contain more than 2 entries (one IPv4, one IPv6)"));
        }
        let mut gateways: Vec<IpAddr> = vec![];
        for (index, text) in self.gateways.iter().enumerate() {
            let path = format!("gateways[{index}]");
            let Some(gateway) = addr::parse_ip(text).ok().flatten() else {
                return Err(Error::config(path, format_args!("{text:?} is not an address"))
                    .expecting("an IPv4 or IPv6 address")
                    .saying(format_args!("invalid static gateway IP address: {text}")));
            };
            let family = Family::of(gateway);
            if let Some(first) = gateways.iter().find(|other| Family::of(**other) == family) {
                let problem = format_args!("{gateway} is the second of its family");
                return Err(at_most_one_each(path, problem).saying(format_args!(
                    "gateways list contains multiple {family} addresses: {first} and {text}"
                )));
            }
            gateways.push(gateway);
        }
        Ok(gateways)
    }
}
