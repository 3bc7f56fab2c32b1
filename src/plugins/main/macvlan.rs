//! `macvlan`: an interface with its own hardware address on a link of the host.
//! <https://www.cni.dev/plugins/current/main/macvlan/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::decode;
use crate::cni::result::AddResult;
use crate::error::{Error, ErrorList, Result};
use crate::net::mac::{self, MacAddr};
use crate::net::netlink::{Link, LinkKind, LinkSpec, MacvlanMode};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing, Plan};
use crate::steps::dns::DnsConf;
use crate::steps::hardware_address::{self, MacConf};
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::lower_link::{self, LowerLink};
use crate::steps::settings::AcceptRa;
use crate::steps::{prev_result, veth};

/// The kernel's name for this kind of link.
const KIND: &str = "macvlan";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "macvlan", kind: KIND };
/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &LINKS];

/// The plugin.
pub struct Macvlan;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    master: String,
    #[serde(deserialize_with = "decode::word")]
    mode: MacvlanMode,
    mtu: i64,
    #[serde(deserialize_with = "mac::optional")]
    mac: Option<MacAddr>,
    link_in_container: bool,
    #[serde(rename = "acceptRA")]
    accept_ra: AcceptRa,
    bcqueuelen: u32,
    dns: DnsConf,
    runtime_config: MacConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "master | string | the default route's link | The lower link, by its name or another name of it (`altname`). The default route is that of the main table, IPv4's, else IPv6's; of several next hops the first counts.
        mode | string | `bridge` | `bridge`: containers of the master reach each other. `private`: they do not. `vepa`: their packets to each other leave by the master, and a switch reflects them. `passthru`: the only container of the master, with the master's hardware address.
        mtu | integer | 0 | MTU, 68 to the master's; 0 for the master's.
        mac | string | random | The hardware address, six octets. Mode `passthru` ignores it and uses the master's.
        runtimeConfig.mac | string | random | The same; overrides `mac` and CNI_ARGS. Capability `mac`.
        CNI_ARGS: MAC | string | random | The same; overrides `mac`. `IgnoreUnknown=1` allows other arguments, which are an error otherwise on ADD and CHECK.
        linkInContainer | boolean | false | The master, or the default route that selects it, is in the container.
        bcqueuelen | integer | 0 | Queue length for broadcasts and multicasts to the containers of the master; 0 for the kernel's default of 1000. The master has the largest requested value. Linux has it since 5.11: an older kernel passes it over, and CHECK says so.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "ipam.type | string | none | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md).",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        self.mac = hardware_address::of_key(self.mac.as_ref(), cx.args, &self.runtime_config)?;
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }

    fn validate_alone(&self) -> Result<()> {
        veth::validate_mtu(self.mtu)
    }
}

impl Plugin for Macvlan {
    const NAME: &'static str = "macvlan";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface with an address of its own on a link of the host";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let addressing = Addressing::by_ipam_if_any(cx, DuplicateDetection::Shared)?;
        at.netns()?;
        let lower = conf.lower_link();
        let broadcast_queue = Some(conf.bcqueuelen).filter(|length| *length != 0);
        let kind = LinkKind::Macvlan { mode: conf.mode, broadcast_queue };
        let spec = lower_link::upper(&lower.find(cx, at)?, kind, conf.mtu)?;
        let spec = LinkSpec { mac: conf.mac.clone(), ..spec };
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
        conf.lower_link().status(cx)?;
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
                self.verify_kind(link),
                self.lower_link().verify(on.cx, on.at, link),
                self.accept_ra.compare(on),
            ])
        })
    }

    /// Compares mode and queue. A kernel without the queue's setting passes over what ADD asks for.
    fn verify_kind(&self, link: &Link) -> Result<()> {
        let Some(LinkKind::Macvlan { mode, broadcast_queue }) = link.detail else { return Ok(()) };
        let mut found = ErrorList::default();
        let mut differs = |what: &str, value: String, expected: String| {
            found.add(Error::check(format!(
                "container macvlan {what} {value} does not match expected value: {expected}"
            )));
        };
        let length = self.bcqueuelen;
        if mode != self.mode {
            differs("mode", mode.to_string(), self.mode.to_string());
        }
        match broadcast_queue {
            Some(found) if length != 0 && found != length => {
                differs("bcqueuelen", found.to_string(), length.to_string());
            }
            None if length != 0 => {
                let problem = format!("this kernel has no bcqueuelen, expected {length}");
                let error = Error::check(problem).with_details("Linux has it since 5.11");
                found.add(error);
            }
            _ => (),
        }
        found.finish()
    }

    fn lower_link(&self) -> LowerLink<'_> {
        LowerLink::new(&self.master, self.link_in_container)
    }
}
