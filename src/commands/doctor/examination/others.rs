//! The containers beside a named one: those that may have its addresses, on its networks and
//! bridges.

use super::attachment::{Attachment, Inside, bridge_of};
use super::lists::Lists;
use crate::error::Result;
use crate::net::netlink::Netlink;
use crate::net::netns::{self, FileId};
use crate::runtime::find::Recorded;

/// The attachments of the other records that are on a network or a bridge of those that were asked
/// for. What cannot be read of them is left out: nobody has asked for it.
pub fn beside(
    asked: &[Attachment],
    rest: Vec<Recorded>,
    lists: &mut Lists<'_>,
    host: &[FileId],
) -> Vec<Attachment> {
    let rest = rest.into_iter().filter(|recorded| is_beside(asked, recorded, lists));
    let mut beside: Vec<Recorded> = rest.collect();
    let in_host = |netns: &str| netns::file_id(netns).is_some_and(|found| host.contains(&found));
    beside.retain(|recorded| !in_host(&recorded.at.netns));
    let paths: Vec<&str> = beside.iter().map(|recorded| recorded.at.netns.as_str()).collect();
    let inside = netns::read_in_each(&paths, read);
    let of = |(recorded, inside)| Attachment { inside, ..Attachment::of(recorded, lists) };
    beside.into_iter().zip(inside).map(of).collect()
}

/// What the namespace of this thread has, without routes.
fn read() -> Result<Inside> {
    let netlink = Netlink::open()?;
    let (links, addresses) = (netlink.links()?, netlink.all_addresses()?);
    Ok(Inside { links, addresses, routes: vec![] })
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
