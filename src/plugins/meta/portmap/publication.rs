//! The ports of one attachment, as they are to be published.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::conf::Conf;
use super::mapping::{self, Forward};
use crate::cni::attachment::Key;
use crate::cni::result::{AddResult, IpConfig};
use crate::cni::valid::Holder;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::Attachment;

/// What an attachment's ports lead to.
pub struct Publication<'a> {
    /// The attachment.
    pub key: &'a Key,
    /// Its configuration.
    pub conf: &'a Conf,
    /// The mappings, each with its destination.
    pub forwards: Vec<Forward>,
    /// With nftables: the host's own addresses, if others are those of services.
    pub known: Option<Vec<IpNet>>,
}

/// Another attachment or container that has a port, as its rules show it.
pub struct Held {
    /// The words that name it in messages.
    pub words: String,
    /// Its network; empty if unknown.
    pub network: String,
    /// Its container.
    pub holder: Holder,
    /// Where its ports lead to.
    pub addresses: Vec<IpAddr>,
}

impl<'a> Publication<'a> {
    /// Plans the forwards to the container's first address of each family.
    pub fn plan(conf: &'a Conf, result: &AddResult, at: &'a Attachment) -> Result<Publication<'a>> {
        let v4 = first_address(result, at, Family::V4);
        let v6 = first_address(result, at, Family::V6);
        if !conf.mappings.is_empty() && v4.or(v6).is_none() {
            let ifname = at.ifname();
            let problem = format!(
                "interface {ifname:?} has no address, expected one for the ports to lead to"
            );
            return Err(Error::config("prevResult.ips", problem));
        }
        let forwards = mapping::plan(&conf.mappings, v4, v6)?;
        Ok(Publication { key: &at.key, conf, forwards, known: None })
    }

    /// Whether there is nothing to publish.
    pub fn is_empty(&self) -> bool {
        self.forwards.is_empty()
    }

    /// The forwards of one family.
    pub fn of_family(&self, family: Family) -> impl Iterator<Item = &Forward> {
        self.forwards.iter().filter(move |forward| forward.family() == family)
    }

    /// The same publication for each family that it has forwards of, with that family's address of
    /// the container.
    pub fn by_family(&self) -> Vec<(IpAddr, Publication<'a>)> {
        let of_family = |family| {
            let forwards: Vec<Forward> = self.of_family(family).cloned().collect();
            let address = forwards.first()?.to.addr();
            Some((address, Publication { forwards, known: None, ..*self }))
        };
        Family::ALL.into_iter().filter_map(of_family).collect()
    }
}

/// The first port, and how many more there are.
impl fmt::Display for Publication<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.forwards.first() else { return f.write_str("no port") };
        write!(f, "port {first}")?;
        let ports: HashSet<_> = self.forwards.iter().map(Forward::to_string).collect();
        match ports.len() {
            0 | 1 => Ok(()),
            count => write!(f, " and {} more", count - 1),
        }
    }
}

/// Returns the first address of a family that the container's interface has, or that no interface
/// is named for.
fn first_address(result: &AddResult, at: &Attachment, family: Family) -> Option<IpNet> {
    let interface_of = |ip: &IpConfig| result.interfaces.get(usize::try_from(ip.interface?).ok()?);
    let is_in_container = |ip: &&IpConfig| {
        interface_of(ip)
            .is_none_or(|interface| interface.name == at.ifname() && !interface.sandbox.is_empty())
    };
    let mut addresses = result.ips.iter().filter(is_in_container).map(|ip| ip.address);
    addresses.find(|address| Family::of_net(*address) == family)
}
