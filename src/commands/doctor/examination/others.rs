//! The containers beside a named one: those that may have its addresses, on its networks and
//! bridges.

use std::collections::HashMap;

use super::attachment::{Attachment, bridge_of};
use super::request::Request;
use crate::net::netns::FileId;
use crate::runtime::directory;
use crate::runtime::find::Recorded;

/// The attachments of the other records that are on a network or a bridge of those that were asked
/// for. What cannot be read of them is left out: nobody has asked for it.
pub fn beside(
    asked: &[Attachment],
    rest: Vec<Recorded>,
    request: &Request<'_>,
    host: &[FileId],
) -> Vec<Attachment> {
    let mut bridges = Bridges { request, by_document: HashMap::new() };
    let own: Vec<Option<String>> = asked.iter().map(|it| bridges.of(&it.recorded)).collect();
    let is_beside = |recorded: &Recorded, bridges: &mut Bridges<'_>| {
        let is_on = |it: &Attachment| it.at().key.network == recorded.at.key.network;
        asked.iter().any(is_on)
            || bridges.of(recorded).is_some_and(|bridge| own.contains(&Some(bridge)))
    };
    let mut all = vec![];
    for recorded in rest {
        if is_beside(&recorded, &mut bridges) {
            let mut attachment = Attachment::of(recorded, request);
            if attachment.look_at_addresses(host).is_ok() {
                all.push(attachment);
            }
        }
    }
    all
}

/// The bridge of each network. Attachments of one network mostly have the same document.
struct Bridges<'a> {
    request: &'a Request<'a>,
    by_document: HashMap<Vec<u8>, Option<String>>,
}

impl Bridges<'_> {
    fn of(&mut self, recorded: &Recorded) -> Option<String> {
        let document = recorded.document();
        if !self.by_document.contains_key(document) {
            let list = directory::of_document(document.to_vec(), &self.request.conf_dir).ok();
            let bridge = list.and_then(|list| bridge_of(list.plugins.first()?).map(str::to_owned));
            self.by_document.insert(document.to_vec(), bridge);
        }
        self.by_document.get(document)?.clone()
    }
}
