//! `route_localnet` of the host's link to a container: without it the kernel sends nothing from
//! 127.0.0.1 by that link.
//!
//! The setting also admits packets from and to 127.0.0.0/8 that arrive there, and programs that
//! listen at 127.0.0.1 trust the host alone. So our table drops these packets on the links in its
//! set `localnet`, which has the links that we have switched on and no other: an administrator may
//! need the setting on other links. A link's element stands before the setting is on, and goes after
//! it is off.
//!
//! The value itself records that we have set it. It goes with its link, and it outlives the rule
//! set, so that after `nft flush ruleset` DEL still knows what to switch off.

use crate::error::{Error, Result};
use crate::net::netlink::Link;
use crate::net::netlink::attr::read_text;
use crate::net::nft::batch::{Holds, KeyType, Set};
use crate::net::nft::owned::{OwnedElement, Reliance};
use crate::net::nft::wire::link_name;
use crate::net::sysctl::Sysctl;
use crate::plugin::part::{Part, Target};
use crate::rollback::Rollback;

/// The links whose setting we have switched on.
pub const LINKS: Set = Set { name: "localnet", key: &[KeyType::IfName], holds: Holds::Keys };
/// The setting is safe while its link is in the set.
pub const RELIANCE: Reliance = Reliance { set: &LINKS, end, begin_again };

/// Our value. For the kernel every value but 0 is on.
pub const OURS: u32 = 127;

/// The setting of one link, if it is ours to switch on: it is off, or has our value.
pub struct Localnet {
    pub setting: Sysctl,
    /// The link's element in [`LINKS`].
    pub element: OwnedElement,
    /// Whether the kernel can drop what the setting admits. Without nf_tables the setting becomes 1
    /// and stays, as with the reference.
    pub is_guarded: bool,
}

impl Localnet {
    /// The value that switches it on.
    fn value(&self) -> String {
        if self.is_guarded { OURS.to_string() } else { "1".to_owned() }
    }
}

impl<'a> Part<'a> for &Localnet {
    fn what(&self) -> String {
        format!("set sysctl {} to {}", self.setting, self.value())
    }

    /// The link's element stands.
    fn make(&self, _: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        match self.setting.read()?.as_str() {
            "0" => self.setting.write(&self.value()),
            _ => Ok(()),
        }
    }

    /// A setting that cannot be read is not on either: its link may be gone.
    fn compare(&self, _: Target<'a>) -> Result<()> {
        if self.setting.read().is_ok_and(|value| value != "0") || is_on_for_all() {
            Ok(())
        } else {
            Err(is_off(&self.setting))
        }
    }

    fn is_shared(&self) -> bool {
        true
    }
}

pub fn of_link(name: &str) -> Sysctl {
    Sysctl::ipv4_conf(name, "route_localnet")
}

/// IN_DEV_ROUTE_LOCALNET of linux/inetdevice.h: for the link, or for all.
pub fn is_on(link: &Link) -> bool {
    link.route_localnet != 0 || is_on_for_all()
}

fn is_on_for_all() -> bool {
    of_link("all").read().is_ok_and(|value| value != "0")
}

pub fn is_off(setting: &Sysctl) -> Error {
    Error::check(format!("sysctl {setting} is off, so the ports do not answer at 127.0.0.1"))
}

/// A link of several attachments, such as a bridge, has one element for all of them.
pub fn element(name: &str, is_shared: bool) -> OwnedElement {
    OwnedElement { is_shared, ..OwnedElement::of(&LINKS, link_name(name)) }
}

/// Switches a link's setting off if it has our value. It was off before: no other is changed to
/// ours.
pub fn end(key: &[u8]) -> Result<()> {
    change(key, OURS, 0)
}

fn begin_again(key: &[u8]) -> Result<()> {
    change(key, 0, OURS)
}

fn change(key: &[u8], from: u32, to: u32) -> Result<()> {
    let setting = of_link(&read_text(key));
    match setting.read() {
        Ok(value) if value == from.to_string() => setting.write(&to.to_string()),
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()), // the link is gone, and the setting with it
        Err(error) => Err(error),
    }
}
