//! `host-device`: moves a link of the host into the container, and back.
//! <https://www.cni.dev/plugins/current/main/host-device/>
//!
//! A device that is bound to a user-space driver (DPDK) is not a link: there is nothing to move,
//! and the result reports its addresses to the application.

mod belongings;
mod conf;
mod identity;
mod passage;
mod selector;

pub use self::conf::Conf;

use self::selector::Device;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::Result;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::DuplicateDetection;
use crate::steps::ipam::{self, Ipam};
use crate::steps::{container_link, prev_result};

/// The plugin.
pub struct HostDevice;

impl Plugin for HostDevice {
    const NAME: &'static str = "host-device";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "moves a link of the host into the container, and back";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let ipam = Ipam::find_unless_layer_two(cx)?;
        container_link::require_free_name(at)?;
        let device = selector::find(cx.host()?, conf.selector()?)?;
        transaction(|rb| {
            let mut result = match &device {
                Device::Link(device) => {
                    let link = passage::enter(cx, at, device, rb)?;
                    container_link::set_up(
                        at,
                        &link,
                        ipam.as_ref(),
                        DuplicateDetection::Shared,
                        rb,
                    )?
                }
                Device::OfUserSpace => tell(at, ipam.as_ref(), rb)?,
            };
            result.dns = conf.dns.or(result.dns);
            Ok(result)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        ipam::check_if_any(cx, at)?;
        let result = prev_result::require(cx)?;
        let (_, interface) = prev_result::container_interface(&result, at)?;
        if interface.mac.is_empty() && conf.selector()?.may_be_of_user_space() {
            return Ok(()); // nothing is in the container
        }
        container_link::verify(cx, at, None).map(drop)
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        ipam::del_with_link(cx, at, &mut || passage::leave(cx, &at.key, at.netns.as_deref()))
    }

    /// Does not look for the device: if it is not on the host it may be in use in a container.
    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        ipam::status_if_any(cx)
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        ipam::gc_with_links(cx, valid, &mut || passage::collect_garbage(cx, valid))
    }
}

/// The result for a device that is not a link.
fn tell<'a>(
    at: &'a Attachment,
    ipam: Option<&Ipam<'a>>,
    rb: &mut Rollback<'a>,
) -> Result<AddResult> {
    let mut result = ipam.map_or(Ok(AddResult::default()), |ipam| ipam.add(at, rb))?;
    let name = at.ifname().to_owned();
    let sandbox = at.netns_path.clone();
    result.interfaces = vec![Interface { name, sandbox, ..Interface::default() }];
    result.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
    Ok(result)
}
