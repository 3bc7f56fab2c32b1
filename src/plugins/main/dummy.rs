//! `dummy`: an interface that has addresses and discards all packets sent to it.
//! <https://www.cni.dev/plugins/current/main/dummy/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Error, Result};
use crate::net::netlink::{LinkKind, LinkSpec};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing, NetnsOf, Plan};
use crate::steps::dns::DnsConf;
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::prev_result;
use crate::steps::settings::AcceptRa;

/// The kernel's name for this kind of link.
const KIND: &str = "dummy";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "dummy", kind: KIND };
/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &LINKS];

/// The plugin.
pub struct Dummy;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    dns: DnsConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        DnsConf::KEYS,
        "ipam.type | string | required | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md).",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        if cx.config.ipam_type()?.is_empty() {
            return Err(Error::missing("ipam.type", "the name of an ipam plugin")
                .saying("dummy interface requires an IPAM configuration"));
        }
        Ok(())
    }
}

impl Plugin for Dummy {
    const NAME: &'static str = "dummy";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface that has addresses and carries nothing";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let addressing = Addressing::by_ipam(cx, DuplicateDetection::Off)?;
        at.netns()?;
        let spec = LinkSpec::of(LinkKind::Dummy);
        let (created_from, accept_ra) = (NetnsOf::Container, AcceptRa::default());
        let plan = Plan { links: LINKS, created_from, spec, accept_ra };
        Ok(conf.dns.put_into(addressing.attach(at, &plan)?))
    }

    fn check(cx: &Context<'_>, _conf: &Conf, at: &Attachment) -> Result<()> {
        ipam::require_type(cx)?;
        container_link::check(cx, at, compare)
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        let ipam = Ipam::require(cx)?;
        container_link::require_kind(cx, KIND)?;
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, _: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        container_link::repair(cx, at, repairs, compare)
    }
}

fn compare(on: Target<'_>) -> Result<()> {
    container_link::compare(on, prev_result::require(on.cx), Some(KIND), |_| Ok(()))
}
