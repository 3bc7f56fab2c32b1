//! `vlan`: an interface for the frames of one VLAN on a link of the host.
//! <https://www.cni.dev/plugins/current/main/vlan/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::LinkKind;
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing, Plan};
use crate::steps::dns::DnsConf;
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::lower_link::{self, LowerLink};
use crate::steps::settings::AcceptRa;
use crate::steps::vlan_trunk::VLAN_MAX;
use crate::steps::{prev_result, veth};

/// The kernel's name for this kind of link.
const KIND: &str = "vlan";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "vlan", kind: KIND };
/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &LINKS];

/// The plugin.
pub struct Vlan;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    master: String,
    vlan_id: i64,
    mtu: i64,
    link_in_container: bool,
    #[serde(rename = "acceptRA")]
    accept_ra: AcceptRa,
    dns: DnsConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "master | string | required | The lower link, by its name or another name of it (`altname`).
        vlanId | integer | 0 | The VLAN, 0 to 4094. 0 is for frames with a priority and no VLAN. A link has each once; after a namespace has ended without DEL the kernel needs a moment to free its VLANs.
        mtu | integer | 0 | MTU, 68 to the master's; 0 for the master's.
        linkInContainer | boolean | false | The master is in the container.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "ipam.type | string | required | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md).",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        if self.master.is_empty() {
            return Err(Error::missing("master", "the name of the link to make the VLAN on")
                .saying("\"master\" field is required. It specifies the host interface name to create the VLAN for"));
        }
        let id = self.vlan_id;
        if !(0..=VLAN_MAX).contains(&id) {
            return Err(Error::out_of_range("vlanId", id, 0..=VLAN_MAX).saying(format_args!(
                "invalid VLAN ID {id} (must be between 0 and 4095 inclusive)"
            )));
        }
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type(cx)
    }

    fn validate_alone(&self) -> Result<()> {
        veth::validate_mtu(self.mtu)
    }
}

impl Plugin for Vlan {
    const NAME: &'static str = "vlan";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface for one VLAN on a link of the host";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let addressing = Addressing::by_ipam(cx, DuplicateDetection::Shared)?;
        at.netns()?;
        let lower = conf.lower_link();
        let kind = LinkKind::Vlan(conf.id());
        let spec = lower_link::upper(&lower.find(cx, at)?, kind, conf.mtu)?;
        let plan =
            Plan { links: LINKS, created_from: lower.place, spec, accept_ra: conf.accept_ra };
        let result = transaction(|rb| {
            let link = plan.create(cx, at, rb).map_err(|e| match e.is_exists() {
                // A link has each VLAN once, across all containers.
                true => e.with_code(Code::CONFLICT).with_details(format_args!(
                    "vlanId: {} of {:?} is taken by another interface",
                    conf.vlan_id, conf.master
                )),
                false => e,
            })?;
            addressing.set_up(at, &link, rb)
        })?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        ipam::require_type(cx)?;
        container_link::check(cx, at, |on| conf.compare(on))
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::require(cx)?;
        container_link::require_kind(cx, KIND)?;
        conf.lower_link().status(cx)?;
        ipam.status()
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
            let (name, mtu, wanted) = (&link.name, link.mtu, self.vlan_id);
            let mut found = ErrorList::default();
            if let Some(LinkKind::Vlan(id)) = link.detail
                && id != self.id()
            {
                let problem = format!("interface {name:?} has VLAN {id}, expected {wanted}");
                found.add(Error::check(problem));
            }
            if self.mtu != 0 && i64::from(mtu) != self.mtu {
                found.add(Error::check(format!(
                    "Error: Tuning configured MTU of {name} is {}, current value is {mtu}",
                    self.mtu
                )));
            }
            found.push(self.lower_link().verify(on.cx, on.at, link));
            found.push(self.accept_ra.compare(on));
            found.finish()
        })
    }

    fn lower_link(&self) -> LowerLink<'_> {
        LowerLink::new(&self.master, self.link_in_container)
    }

    fn id(&self) -> u16 {
        u16::try_from(self.vlan_id).unwrap_or_default()
    }
}
