//! `vrf`: puts the interface into a VRF of the container, with its addresses and routes.
//! <https://www.cni.dev/plugins/current/meta/vrf/>

mod membership;

use serde::Deserialize;

use self::membership::Wanted;
use crate::cni::attachment::IfName;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Error, Result};
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::{container_link, prev_result, routes};

/// The `vrf` plugin.
pub struct Vrf;

/// The configuration of `vrf`; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    vrfname: String,
    table: i64,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "vrfname | string | required | The VRF's name: that of a VRF in the container, or an unused name there
        table | integer | 0 | Its routing table, not 253 to 255. 0: that of the existing VRF, else the first from 1 on without rules, routes and VRF",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        let name = &self.vrfname;
        if name.is_empty() {
            return Err(Error::missing("vrfname", "the name of a VRF")
                .saying("configuration is expected to have a valid vrf name"));
        }
        // The kernel replaces `%d` by a number, and takes NUL as the end of the name.
        let problem = match IfName::parse(name) {
            _ if name.contains(['%', '\0']) => "it contains % or NUL".to_owned(),
            Ok(_) => return self.wanted().map(drop),
            Err(error) => error.to_string(),
        };
        Err(Error::config("vrfname", format_args!("{name:?} is not a link name: {problem}")))
    }
}

impl Plugin for Vrf {
    const NAME: &'static str = "vrf";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "puts the interface into a VRF of the container";
    /// The versions that the reference supports.
    const VERSIONS: &'static [&'static str] = &["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let result = chained(cx)?;
        let wanted = conf.wanted()?;
        let _lock = at.netns()?.lock(cx.deadline())?; // concurrent ADDs to this netns may use the same VRF
        transaction(|rb| membership::join(cx, at, &wanted, rb))?;
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let wanted = conf.wanted()?;
        membership::check(Target { cx, at }, &wanted, &chained(cx)?)
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        membership::leave(cx, at, &conf.vrfname)
    }

    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        container_link::require_kind(cx, membership::KIND)
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        membership::collect_garbage(cx, valid)
    }

    /// Puts the interface into the VRF again, with the routes that ADD moved there.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let wanted = conf.wanted()?;
        let _lock = at.netns()?.lock(cx.deadline())?;
        membership::repair(Target { cx, at }, &wanted, repairs)
    }
}

/// Returns the result of the earlier plugin.
fn chained(cx: &Context<'_>) -> Result<AddResult> {
    prev_result::require_chained(cx, "missing prevResult from earlier plugin")
}

impl Conf {
    fn wanted(&self) -> Result<Wanted<'_>> {
        let configured = Some(self.table).filter(|table| *table != 0);
        let table = configured.map(|table| routes::parse_table("table", table)).transpose()?;
        Ok(Wanted { name: &self.vrfname, table })
    }
}
