//! The containers beside a named one: those that may have its addresses, on its networks and
//! bridges.

use super::attachment::{Attachment, Inside, Lists, bridge_of};
use crate::error::Result;
use crate::net::netlink::Netlink;
use crate::net::netns::{self, FileId, LinkPlace};
use crate::runtime::find::Recorded;

/// The other records of attachments that are on a network or a bridge of those that were asked for.
pub struct Beside(Vec<Recorded>);

impl Beside {
    /// Selects them among the records that were not asked for.
    pub fn of(asked: &[Attachment], rest: Vec<Recorded>, lists: &mut Lists<'_>) -> Beside {
        Beside(rest.into_iter().filter(|recorded| is_beside(asked, recorded, lists)).collect())
    }

    /// What is inside of each one's namespace; None if that is the host's, or cannot be read: the
    /// question is not about them.
    pub fn look_inside(&self, host: &[FileId]) -> Vec<Option<Inside>> {
        let ats = self.0.iter().map(|recorded| &recorded.at);
        let places: Vec<_> =
            ats.map(|at| LinkPlace { netns: &at.netns, ifname: at.key.ifname.as_str() }).collect();
        netns::read_in_each(&places, host, read)
    }

    /// The attachments, with what is inside of each.
    pub fn attachments(
        self,
        inside: Vec<Option<Inside>>,
        lists: &mut Lists<'_>,
    ) -> Vec<Attachment> {
        let of = |(recorded, inside)| Attachment { inside, ..Attachment::of(recorded, lists) };
        self.0.into_iter().zip(inside).map(of).collect()
    }
}

/// What can conflict with another container: the interface in the namespace of this thread, and the
/// addresses there.
fn read(ifname: &str) -> Result<Inside> {
    let netlink = Netlink::open()?;
    let links = netlink.find_link(ifname)?.into_iter().collect();
    Ok(Inside { links, addresses: netlink.all_addresses()?, routes: vec![] })
}

fn is_beside(asked: &[Attachment], recorded: &Recorded, lists: &mut Lists<'_>) -> bool {
    let is_on_network = |it: &Attachment| it.at().key.network == recorded.at.key.network;
    if asked.iter().any(is_on_network) {
        return true;
    }
    let list = lists.of(recorded.document());
    let Some(bridge) = list.as_ref().and_then(|list| bridge_of(list.plugins.first()?)) else {
        return false;
    };
    asked.iter().any(|it| it.bridge() == Some(bridge))
}
