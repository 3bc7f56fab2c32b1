//! The state of a device on the host. The kernel drops some of it when a link changes its
//! namespace, and the container may change the rest; the host gets all of it back.

use serde::{Deserialize, Serialize};

use super::identity::Identity;
use crate::error::{ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{KeptAddress, Link, LinkChange, Netlink};

/// The state of a device on the host, and its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belongings {
    /// Its name.
    pub device: String,
    /// Its identity. Records of earlier versions lack it.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Whether it was up.
    up: bool,
    /// Its hardware address.
    pub mac: String,
    /// Its MTU in bytes.
    mtu: u32,
    /// Its addresses, without those that the kernel or a router assigned.
    addresses: Vec<String>,
    /// The length of its transmit queue. Records of earlier versions lack this and the following
    /// fields.
    #[serde(default)]
    txqlen: Option<u32>,
    /// Whether it was promiscuous.
    #[serde(default)]
    promisc: Option<bool>,
    /// Whether it received all multicast packets.
    #[serde(default)]
    allmulti: Option<bool>,
    /// Its altnames.
    #[serde(default)]
    alternative_names: Vec<String>,
    /// Its alias.
    #[serde(default)]
    alias: String,
}

impl Belongings {
    /// Reads the state of a link, in its own namespace.
    pub fn of(host: &Netlink, link: &Link) -> Result<Belongings> {
        Ok(Belongings {
            device: link.name.clone(),
            identity: None,
            up: link.up,
            mac: link.mac().to_string(),
            mtu: link.mtu,
            addresses: kept_addresses(host, link)?,
            txqlen: Some(link.txqlen),
            promisc: Some(link.promisc),
            allmulti: Some(link.allmulti),
            alternative_names: link.alternative_names.clone(),
            alias: link.alias.clone(),
        })
    }

    /// Reads the state of the device before it leaves the host.
    pub fn of_device(host: &Netlink, link: &Link, identity: Identity) -> Result<Belongings> {
        let state = Belongings::of(host, link)?;
        Ok(Belongings { identity: Some(identity), ..state })
    }

    /// Whether they are of the device with this identity.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.identity.as_ref().is_some_and(|own| own.is_same_as(identity))
    }

    /// Whether a record of an earlier version is of this link of the host. Such a record does not
    /// identify its device.
    pub fn is_of_earlier_version(&self, link: &Link) -> bool {
        self.identity.is_none() && self.device == link.name && link.alias == link.name
    }

    /// Restores the state of a link that is back on the host.
    pub fn restore(&self, host: &Netlink, link: &Link) -> Result<()> {
        let restored = self.restore_all(host, link);
        if restored.as_ref().is_err_and(|error| error.may_pass()) {
            return restored; // the next DEL finds it by its alias; a permanent refusal is reported once
        }
        restored.and(self.restore_alias(host, link))
    }

    fn restore_alias(&self, host: &Netlink, link: &Link) -> Result<()> {
        let change = LinkChange { alias: Some(&self.alias), ..LinkChange::default() };
        host.change_link(link, &change)
    }

    /// Restores all that can be restored.
    fn restore_all(&self, host: &Netlink, link: &Link) -> Result<()> {
        let mut errors = ErrorList::default();
        let change = self.missing_on(link);
        if change != LinkChange::default() {
            errors.push(host.change_link(link, &change));
        }
        self.restore_names(host, link, &mut errors);
        if self.up {
            errors.push(host.set_up(link));
        }
        self.restore_addresses(host, link, &mut errors);
        errors.finish()
    }

    fn restore_names(&self, host: &Netlink, link: &Link, errors: &mut ErrorList) {
        for name in &self.alternative_names {
            if !link.alternative_names.contains(name) {
                errors.push(unless_there(host.add_alternative_name(link, name)));
            }
        }
    }

    fn restore_addresses(&self, host: &Netlink, link: &Link, errors: &mut ErrorList) {
        for text in &self.addresses {
            let address = KeptAddress::from_text(text);
            errors.push(unless_there(host.restore_address(link, &address)));
        }
    }

    /// The change that makes the link what it was, except for being up.
    fn missing_on(&self, link: &Link) -> LinkChange<'static> {
        LinkChange {
            mac: self.mac.parse().ok().filter(|mac: &MacAddr| *mac != link.mac()),
            mtu: Some(self.mtu).filter(|mtu| *mtu != link.mtu),
            txqlen: self.txqlen.filter(|txqlen| *txqlen != link.txqlen),
            promisc: self.promisc.filter(|promisc| *promisc != link.promisc),
            allmulti: self.allmulti.filter(|allmulti| *allmulti != link.allmulti),
            ..LinkChange::default()
        }
    }
}

fn kept_addresses(host: &Netlink, link: &Link) -> Result<Vec<String>> {
    let kept = host.keep_addresses(link)?;
    Ok(kept.iter().map(|address| address.as_text().to_owned()).collect())
}

/// Succeeds if the host's own configuration has already added it.
fn unless_there(added: Result<()>) -> Result<()> {
    match added {
        Err(e) if e.is_exists() => Ok(()),
        added => added,
    }
}
