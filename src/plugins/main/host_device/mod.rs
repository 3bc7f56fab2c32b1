//! `host-device`: moves a link of the host into the container, and back.
//! <https://www.cni.dev/plugins/current/main/host-device/>
//!
//! A device that is bound to a user-space driver (DPDK) is not a link: there is nothing to move,
//! and the result reports its addresses to the application.

mod conf;
mod moving;

use self::conf::{Device, Selector};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::Result;
use crate::net::mac::MacAddr;
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing};
use crate::steps::ipam::{self, Leases};
use crate::steps::prev_result;

pub use self::conf::Conf;

/// The plugin.
pub struct HostDevice;

impl Plugin for HostDevice {
    const NAME: &'static str = "host-device";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "moves a link of the host into the container, and back";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let addressing = Addressing::by_ipam_if_any(cx, DuplicateDetection::Shared)?;
        container_link::require_free_name(at)?;
        let device = conf::find(cx.host()?, conf.selector()?)?;
        let result = transaction(|rb| match &device {
            Device::Link(device) => {
                let link = moving::enter(cx, at, device, rb)?;
                conf.accept_ra.make(Target { cx, at }, rb)?;
                addressing.set_up(at, &link, rb)
            }
            Device::OfUserSpace => addressing.result(at, &MacAddr::new(&[]), rb),
        })?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        container_link::check(cx, at, |on| conf.compare(on))
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    /// Does not look for the device: if it is not on the host it may be in use in a container.
    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        ipam::status_if_any(cx)
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        container_link::repair(cx, at, repairs, |on| conf.compare(on))
    }
}

/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &Devices];

/// The devices of attachments, which go back to the host.
struct Devices;

impl Owned for Devices {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        moving::detach(cx, at)
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        moving::collect_garbage(cx, valid)
    }
}

impl Conf {
    /// Compares what is in the container.
    fn compare(&self, on: Target<'_>) -> Result<()> {
        let result = prev_result::require(on.cx);
        // No link went into the container if prevResult says that the device is of user space.
        if let Ok(result) = &result
            && let Ok((_, interface)) = prev_result::container_interface(result, on.at)
            && interface.mac.is_empty()
            && matches!(self.selector(), Ok(Selector::Pci(_) | Selector::Id(_)))
        {
            return Ok(());
        }
        container_link::compare(on, result, None, |_| self.accept_ra.compare(on))
    }
}
