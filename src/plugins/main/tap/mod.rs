//! `tap`: an interface whose frames a process reads and writes, such as a virtual machine monitor.
//! <https://www.cni.dev/plugins/current/main/tap/>

mod labelled;

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, Result};
use crate::net::mac::{self, MacAddr};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::tuntap::{self, TapSpec};
use crate::plugin::{Attachment, Context, Detachment, Kind, OperatorCommand, Plugin, PluginConf};
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::DuplicateDetection;
use crate::steps::dns::DnsConf;
use crate::steps::hardware_address::{self, MacConf};
use crate::steps::ipam::{self, Ipam};
use crate::steps::link_record::PluginLinks;
use crate::steps::{container_link, veth};

/// The kernel's name for this kind of link.
const KIND: &str = "tun";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "tap", kind: KIND };

/// The plugin.
pub struct Tap;

/// Its configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    /// Let several processes or threads open it, with one queue each. Default false.
    multi_queue: bool,
    /// MTU in bytes; 0, the default, leaves it to the kernel.
    mtu: u32,
    /// Its hardware address, which CNI_ARGS and `runtimeConfig` override.
    #[serde(deserialize_with = "mac::optional")]
    mac: Option<MacAddr>,
    /// The user id that may open it.
    owner: Option<u32>,
    /// The group id that may open it.
    group: Option<u32>,
    /// The SELinux context that the interface is created in.
    selinux_context: String,
    /// A bridge in the container whose port the interface becomes.
    bridge: String,
    /// Resolver settings of the result, in place of the IPAM plugin's.
    dns: DnsConf,
    runtime_config: MacConf,
}

impl PluginConf for Conf {
    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        veth::validate_mtu(self.mtu)?;
        self.mac = hardware_address::of_key(self.mac.as_ref(), cx.args, &self.runtime_config)?;
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }
}

impl Plugin for Tap {
    const NAME: &'static str = "tap";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface whose frames a process reads and writes";
    const COMMANDS: &'static [OperatorCommand] = &[labelled::COMMAND];
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let ipam = Ipam::find_unless_layer_two(cx)?;
        transaction(|rb| {
            let bridge = conf.find_bridge(at.netlink()?)?;
            let link = create(conf, at, rb)?;
            conf.equip(at, &link, bridge)?;
            let link = at.netlink()?.link(at.ifname())?; // with its address
            let mut result =
                container_link::set_up(at, &link, ipam.as_ref(), DuplicateDetection::Off, rb)?;
            result.dns = conf.dns.or(result.dns);
            Ok(result)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        ipam::check_if_any(cx, at)?;
        let link = container_link::verify(cx, at, Some(KIND))?;
        conf.verify_bridge(at, &link)
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        container_link::detach(cx, at, LINKS)
    }

    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        tuntap::require_device().map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        ipam::status_if_any(cx)
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        container_link::collect_garbage(cx, valid, LINKS)
    }
}

/// Creates the interface in the container with the name in CNI_IFNAME.
fn create<'a>(conf: &Conf, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<Link> {
    container_link::require_free_name(at)?;
    LINKS.forget(at)?;
    let spec = conf.wanted(at.ifname());
    at.run(|| match conf.selinux_context.as_str() {
        "" => tuntap::create_tap(&spec),
        context => labelled::create_tap(&spec, context),
    })?;
    container_link::own(at, LINKS, at.ifname().to_owned(), rb)
}

impl Conf {
    fn wanted(&self, ifname: &str) -> TapSpec {
        TapSpec {
            name: ifname.to_owned(),
            owner: self.owner,
            group: self.group,
            multi_queue: self.multi_queue,
        }
    }

    /// The bridge in the container, if one is configured.
    fn find_bridge(&self, container: &Netlink) -> Result<Option<Link>> {
        if self.bridge.is_empty() {
            return Ok(None);
        }
        match container.find_link(&self.bridge)? {
            Some(link) if link.kind == "bridge" => Ok(Some(link)),
            Some(link) => {
                let kind = if link.kind.is_empty() { "device" } else { &link.kind };
                Err(Error::config("bridge", format_args!("{:?} is a {kind}", self.bridge))
                    .expecting("a bridge"))
            }
            None => Err(Error::config(
                "bridge",
                format_args!("{:?} is not a link of the container", self.bridge),
            )
            .expecting("the name of a bridge there")),
        }
    }

    /// Sets the properties that an ioctl cannot set.
    fn equip(&self, at: &Attachment, link: &Link, bridge: Option<Link>) -> Result<()> {
        let mtu = Some(self.mtu).filter(|mtu| *mtu != 0);
        let master = bridge.map(|bridge| bridge.index);
        if mtu.is_none() && master.is_none() && self.mac.is_none() {
            return Ok(());
        }
        at.netlink()?.change_link(
            link,
            &LinkChange { mtu, master, mac: self.mac.clone(), ..LinkChange::default() },
        )
    }

    fn verify_bridge(&self, at: &Attachment, link: &Link) -> Result<()> {
        let bridge =
            self.find_bridge(at.netlink()?).map_err(|e| e.with_code(Code::CHECK_FAILED))?;
        match bridge.filter(|bridge| link.master != Some(bridge.index)) {
            Some(bridge) => Err(Error::check(format!(
                "interface {:?} is not a port of bridge {:?}",
                link.name, bridge.name
            ))),
            None => Ok(()),
        }
    }
}
