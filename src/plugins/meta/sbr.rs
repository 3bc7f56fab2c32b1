//! `sbr`: source-based routing. Packets from an interface's address leave by that interface.
//! <https://www.cni.dev/plugins/current/meta/sbr/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, Result};
use crate::net::netlink::Netlink;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::rollback::transaction;
use crate::steps::{prev_result, routing_table, source_routing};

/// The `sbr` plugin.
pub struct Sbr;

/// The configuration of `sbr`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    /// The table that the addresses' rules look up; no route is moved then. Without it, each
    /// address gets a table of its own with the interface's routes.
    table: Option<i64>,
}

impl PluginConf for Conf {
    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        self.table().map(drop)
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
        let ips = source_routing::addresses(&result, at.ifname())?;
        let table = conf.table()?;
        let _lock = at.netns()?.lock(cx.deadline())?; // concurrent ADDs to this netns look for free tables too
        transaction(|rb| match table {
            Some(table) => source_routing::lead(at, &ips, table, rb),
            None => source_routing::move_routes(at, &ips, rb),
        })?;
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        source_routing::verify(at, &prev_result::require(cx)?, conf.table()?)
    }

    fn del(_cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        source_routing::delete(at, conf.table().ok().flatten())
    }

    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        match Netlink::open()
            .and_then(Netlink::into_has_rules)
            .map_err(|e| e.with_code(Code::NOT_AVAILABLE))?
        {
            true => Ok(()),
            false => Err(Error::new(Code::NOT_AVAILABLE, "the kernel has no policy routing")
                .with_details("is it built with CONFIG_IP_MULTIPLE_TABLES?")),
        }
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        source_routing::collect_garbage(cx, valid)
    }
}

impl Conf {
    fn table(&self) -> Result<Option<u32>> {
        self.table.map(|table| routing_table::parse("table", table)).transpose()
    }
}
