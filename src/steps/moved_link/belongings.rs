//! The state of a device on the host. The kernel drops some of it when a link changes its
//! namespace, and the container may change the rest; the host gets all of it back.

use serde::{Deserialize, Serialize};

use super::identity::{Identity, Links};
use crate::error::{ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{KeptAddress, Link, LinkChange, Netlink};

/// A device of the host in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// Its identity.
    pub identity: Identity,
    /// Its state on the host.
    pub state: Belongings,
}

impl Lent {
    /// Reads the state of the device before it leaves the host.
    pub fn of(host: &Netlink, link: &Link, identity: Identity) -> Result<Lent> {
        Ok(Lent { identity, state: Belongings::of(host, link)? })
    }

    /// Whether the device is on the host, to which no container can move it: a DEL of the reference has,
    /// after a rollback.
    pub fn is_home(&self, host: &Links<'_>) -> Result<bool> {
        Ok(host.find(&self.identity, &self.state.device)?.is_some())
    }
}

/// The state of a link in its own namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belongings {
    /// Its name.
    pub device: String,
    /// Whether it was up.
    up: bool,
    /// Its hardware address.
    pub mac: String,
    /// Its MTU in bytes.
    mtu: u32,
    /// Its addresses, without those that the kernel or a router assigned.
    addresses: Vec<String>,
    /// The length of its transmit queue.
    txqlen: u32,
    /// Whether it was promiscuous.
    promisc: bool,
    /// Whether it received all multicast packets.
    allmulti: bool,
    /// Its altnames.
    alternative_names: Vec<String>,
    /// Its alias.
    alias: String,
}

impl Belongings {
    /// Reads the state of a link, in its own namespace.
    pub fn of(host: &Netlink, link: &Link) -> Result<Belongings> {
        Ok(Belongings {
            device: link.name.clone(),
            up: link.up,
            mac: link.mac().to_string(),
            mtu: link.mtu,
            addresses: kept_addresses(host, link)?,
            txqlen: link.txqlen,
            promisc: link.promisc,
            allmulti: link.allmulti,
            alternative_names: link.alternative_names.clone(),
            alias: link.alias.clone(),
        })
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
            txqlen: Some(self.txqlen).filter(|txqlen| *txqlen != link.txqlen),
            promisc: Some(self.promisc).filter(|promisc| *promisc != link.promisc),
            allmulti: Some(self.allmulti).filter(|allmulti| *allmulti != link.allmulti),
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
