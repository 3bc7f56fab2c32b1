//! `sbr`: source-based routing. Packets from an interface's address leave by that interface.
//! <https://www.cni.dev/plugins/current/meta/sbr/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Code, Error, Result};
use crate::net::netlink::Netlink;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
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
        transaction(|rb| route(at, &ips, table, rb))?;
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        source_routing::verify(at, &prev_result::require(cx)?, conf.table()?)
    }

    fn del(_cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        source_routing::delete(at, conf.table().ok().flatten())
    }

    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        if has_policy_routing()? { Ok(()) } else { Err(no_policy_routing()) }
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        source_routing::collect_garbage(cx, valid)
    }

    /// Adds again the rules and the routes of tables that are missing. Routes that came back to the
    /// main table stay: nothing in a container is deleted.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        let _lock = at.netns()?.lock(cx.deadline())?;
        source_routing::repair(at, &result, conf.table()?, repairs)
    }
}

/// Routes by the configured table, or by a table of each address's own.
fn route<'a>(
    at: &'a Attachment,
    ips: &[&IpConfig],
    table: Option<u32>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    match table {
        Some(table) => source_routing::lead(at, ips, table, rb),
        None => source_routing::move_routes(at, ips, rb),
    }
}

fn has_policy_routing() -> Result<bool> {
    Netlink::open().and_then(Netlink::into_has_rules).map_err(|e| e.with_code(Code::NOT_AVAILABLE))
}

fn no_policy_routing() -> Error {
    Error::new(Code::NOT_AVAILABLE, "the kernel has no policy routing")
        .with_details("is it built with CONFIG_IP_MULTIPLE_TABLES?")
}

impl Conf {
    fn table(&self) -> Result<Option<u32>> {
        self.table.map(|table| routing_table::parse("table", table)).transpose()
    }
}
