//! `ipvlan`: an interface that shares the hardware address of a link of the host.
//! <https://www.cni.dev/plugins/current/main/ipvlan/>
//!
//! It can be chained after a plugin that created a link on the host, which is then the master;
//! without an IPAM plugin it also takes over that plugin's addresses.

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::decode;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Error, ErrorList, Result};
use crate::net::netlink::{IpvlanMode, LinkKind};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing, Plan};
use crate::steps::dns::DnsConf;
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::lower_link::{self, LowerLink};
use crate::steps::settings::AcceptRa;
use crate::steps::{prev_result, veth};

/// The kernel's name for this kind of link.
const KIND: &str = "ipvlan";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "ipvlan", kind: KIND };
/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &LINKS];

/// The plugin.
pub struct Ipvlan;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    master: String,
    #[serde(deserialize_with = "decode::word")]
    mode: IpvlanMode,
    mtu: i64,
    link_in_container: bool,
    #[serde(rename = "acceptRA")]
    accept_ra: AcceptRa,
    dns: DnsConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "master | string | see there | The lower link, by its name or another name of it (`altname`). Default: the only interface of `prevResult` if the plugin is chained, else the link of the default route of the main table, IPv4's, else IPv6's; of several next hops the first counts.
        mode | string | `l2` | `l2`: a common network. `l3`: the master routes. `l3s`: the same, and the host's packet filter sees packets to the containers. All containers of a master have one mode, that of the last one.
        mtu | integer | 0 | MTU, 68 to the master's; 0 for the master's.
        linkInContainer | boolean | false | The master, or the default route that selects it, is in the container.",
        AcceptRa::KEY,
        "dns.nameservers | list of strings | IPAM's | Name servers of the result. Any of the four `dns` keys, even an empty list, replaces all of IPAM's or of `prevResult`.
        dns.domain | string | IPAM's | The local domain.
        dns.search | list of strings | IPAM's | Domains to search.
        dns.options | list of strings | IPAM's | Options as in resolv.conf(5).
        ipam.type | string | none | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md). Default: the addresses of `prevResult`.",
    ];

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        match cx.config.prev_result()? {
            Some(previous) if !previous.ips.is_empty() => cx.config.ipam_type().map(drop),
            _ => ipam::require_type(cx),
        }
    }

    fn validate_alone(&self) -> Result<()> {
        veth::validate_mtu(self.mtu)
    }
}

impl Plugin for Ipvlan {
    const NAME: &'static str = "ipvlan";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface that shares the address of a link of the host";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let previous = cx.config.prev_result()?;
        let addressing = match &previous {
            // Without an IPAM plugin, the addresses of the plugin before this one.
            Some(previous) if !previous.ips.is_empty() && cx.config.ipam_type()?.is_empty() => {
                Addressing::taken_over(cx, previous.clone(), DuplicateDetection::Shared)
            }
            _ => Addressing::by_ipam(cx, DuplicateDetection::Shared)?,
        };
        at.netns()?;
        let lower = conf.lower_link(match &previous {
            Some(previous) if conf.master.is_empty() => single_name(&previous.interfaces)?,
            _ => &conf.master,
        });
        let kind = LinkKind::Ipvlan(conf.mode);
        let spec = lower_link::upper(&lower.find(cx, at)?, kind, conf.mtu)?;
        let plan =
            Plan { links: LINKS, created_from: lower.place, spec, accept_ra: conf.accept_ra };
        Ok(conf.dns.put_into(addressing.attach(at, &plan)?))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        container_link::check(cx, at, |on| conf.compare(on))
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::find(cx)?;
        container_link::require_kind(cx, KIND)?;
        if ipam.is_some() || !conf.master.is_empty() {
            conf.lower_link(&conf.master).status(cx)?; // else it is chained, and its master does not exist yet
        }
        ipam.map_or(Ok(()), |ipam| ipam.status())
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        container_link::repair(cx, at, repairs, |on| conf.compare(on))
    }
}

impl Conf {
    /// Compares what is in the container.
    fn compare(&self, on: Target<'_>) -> Result<()> {
        container_link::compare(on, prev_result::require(on.cx), Some(KIND), |link| {
            ErrorList::of([
                match link.detail {
                    Some(LinkKind::Ipvlan(mode)) if mode != self.mode => {
                        Err(Error::check(format!(
                            "Container IPVlan mode {mode} does not match expected value: {}",
                            self.mode
                        )))
                    }
                    _ => Ok(()),
                },
                self.lower_link(&self.master).verify(on.cx, on.at, link),
                self.accept_ra.compare(on),
            ])
        })
    }

    fn lower_link<'a>(&self, name: &'a str) -> LowerLink<'a> {
        LowerLink::new(name, self.link_in_container)
    }
}

/// The name of the only interface.
fn single_name(interfaces: &[Interface]) -> Result<&str> {
    match interfaces {
        [Interface { name, .. }] if !name.is_empty() => Ok(name),
        _ => {
            let problem = format!("missing, and prevResult has {} interfaces", interfaces.len());
            Err(Error::config("master", problem)
                .expecting("one with a name")
                .saying("chained master failure. PrevResult lacks a single named interface"))
        }
    }
}
