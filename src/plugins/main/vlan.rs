//! `vlan`: an interface for the frames of one VLAN on a link of the host.
//! <https://www.cni.dev/plugins/current/main/vlan/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{Link, LinkKind, LinkSpec};
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
use crate::steps::router_advertisements::AcceptRa;
use crate::steps::{link_kind, prev_result, veth};

/// The kernel's name for this kind of link.
const KIND: &str = "vlan";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "vlan", kind: KIND };
/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &LINKS];
/// The greatest VLAN id; 4095 is reserved.
const VLAN_MAX: i64 = 4094;

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
            return Err(missing_master());
        }
        validate_id(self.vlan_id)
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
        let plan = conf.plan(&conf.lower_link().find(cx, at)?)?;
        let result = transaction(|rb| {
            let link = plan.create(cx, at, rb).map_err(|e| conf.if_taken(e))?;
            addressing.set_up(at, &link, rb)
        })?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        ipam::require_type(cx)?;
        let on = Target { cx, at };
        container_link::check(on, || conf.compare(on))
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::require(cx)?;
        link_kind::require(cx, KIND)?;
        conf.lower_link().status(cx)?;
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let on = Target { cx, at };
        container_link::repair(on, repairs, || conf.compare(on))
    }
}

fn missing_master() -> Error {
    Error::missing("master", "the name of the link to make the VLAN on").saying(
        "\"master\" field is required. It specifies the host interface name to create the VLAN for",
    )
}

fn validate_id(id: i64) -> Result<()> {
    if (0..=VLAN_MAX).contains(&id) {
        return Ok(());
    }
    Err(Error::out_of_range("vlanId", id, 0..=VLAN_MAX)
        .saying(format_args!("invalid VLAN ID {id} (must be between 0 and 4095 inclusive)")))
}

impl Conf {
    /// Compares what is in the container.
    fn compare(&self, on: Target<'_>) -> Result<()> {
        container_link::compare(on, prev_result::require(on.cx), Some(KIND), |link| {
            ErrorList::of([
                self.verify_id(link),
                self.verify_mtu(link),
                self.lower_link().verify(on.cx, on.at, link),
                self.accept_ra.compare(on),
            ])
        })
    }

    fn lower_link(&self) -> LowerLink<'_> {
        LowerLink::new(&self.master, self.link_in_container)
    }

    fn id(&self) -> u16 {
        u16::try_from(self.vlan_id).unwrap_or_default()
    }

    fn plan(&self, master: &Link) -> Result<Plan> {
        let spec = self.spec(master)?;
        let birthplace = self.lower_link().place;
        Ok(Plan { links: LINKS, birthplace, spec, accept_ra: self.accept_ra })
    }

    fn spec(&self, master: &Link) -> Result<LinkSpec> {
        lower_link::upper(master, LinkKind::Vlan(self.id()), self.mtu)
    }

    /// Explains that the VLAN exists: a link has each VLAN once, across all containers.
    fn if_taken(&self, error: Error) -> Error {
        if !error.is_exists() {
            return error;
        }
        let Conf { vlan_id, master, .. } = self;
        error.with_code(Code::CONFLICT).with_details(format_args!(
            "vlanId: {vlan_id} of {master:?} is taken by another interface"
        ))
    }

    fn verify_id(&self, link: &Link) -> Result<()> {
        match link.detail {
            Some(LinkKind::Vlan(id)) if id != self.id() => Err(self.other_id(link, id)),
            _ => Ok(()),
        }
    }

    fn other_id(&self, link: &Link, id: u16) -> Error {
        let expected = self.vlan_id;
        Error::check(format!("interface {:?} has VLAN {id}, expected {expected}", link.name))
    }

    fn verify_mtu(&self, link: &Link) -> Result<()> {
        if self.mtu == 0 || i64::from(link.mtu) == self.mtu {
            return Ok(());
        }
        Err(self.other_mtu(link))
    }

    fn other_mtu(&self, link: &Link) -> Error {
        Error::check(format!(
            "Error: Tuning configured MTU of {} is {}, current value is {}",
            link.name, self.mtu, link.mtu
        ))
    }
}
