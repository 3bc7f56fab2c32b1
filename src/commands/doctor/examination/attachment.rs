//! The facts about one attachment: its record, and its namespace as it is now.

use super::finding::Object;
use super::request::Request;
use crate::cni::result::AddResult;
use crate::error::Result;
use crate::net::netlink::{Address, FoundRoute, Link};
use crate::net::netns::Netns;
use crate::runtime::cache::Record;
use crate::runtime::directory;
use crate::runtime::find::{self, Recorded};
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;

/// A recorded attachment.
pub struct Attachment {
    /// Its parameters, and the file of its record.
    pub recorded: Recorded,
    /// The result of its ADD; None if the record has none that can be read.
    pub result: Option<AddResult>,
    /// Its network as it was at ADD; None if the record has none that can be read.
    pub list: Option<NetworkList>,
    /// Its namespace; None if that is gone, or cannot be opened.
    pub netns: Option<Netns>,
    /// What is in the namespace; None if that is gone, or cannot be read.
    pub inside: Option<Inside>,
}

/// A namespace as it is now.
pub struct Inside {
    /// Its links.
    pub links: Vec<Link>,
    /// The addresses of all links.
    pub addresses: Vec<Address>,
    /// The routes of all tables but `local`.
    pub routes: Vec<FoundRoute>,
}

/// The recorded attachments that were asked for. Fails if the name stands for several containers.
pub fn recorded(request: &Request<'_>) -> Result<Vec<Recorded>> {
    let caches = find::caches(&request.cache)?;
    if request.subject.is_empty() {
        find::recorded(&caches)
    } else {
        find::of_container(&caches, &request.subject)
    }
}

impl Attachment {
    /// The attachment of a record; nothing is known of its namespace yet.
    pub fn of(recorded: Recorded, request: &Request<'_>) -> Attachment {
        let record = recorded.found.record.as_ref().ok();
        let result = record.and_then(result_of);
        let list = record.and_then(|record| list_of(record, request));
        Attachment { recorded, result, list, netns: None, inside: None }
    }

    /// Its parameters.
    pub fn at(&self) -> &Parameters {
        &self.recorded.at
    }

    /// Whether the interface is in the namespace.
    pub fn has_interface(&self) -> bool {
        let ifname = self.at().key.ifname.as_str();
        self.inside.as_ref().is_some_and(|it| it.links.iter().any(|link| link.name == ifname))
    }

    /// The hardware address of the interface, in the record.
    pub fn recorded_mac(&self) -> Option<&str> {
        let ifname = self.at().key.ifname.as_str();
        let mut interfaces = self.result.as_ref()?.interfaces.iter();
        let own = interfaces.find(|it| it.name == ifname && !it.sandbox.is_empty())?;
        Some(own.mac.as_str()).filter(|mac| !mac.is_empty())
    }

    /// Whether the link's hardware address is not the recorded one. Links without one, and records
    /// without one, have nothing to compare.
    pub fn has_another_mac(&self, link: &Link) -> bool {
        let mac = link.mac().to_string();
        self.recorded_mac().is_some_and(|recorded| !mac.eq_ignore_ascii_case(recorded))
    }

    /// As the object of a finding.
    pub fn object(&self) -> Object {
        let key = &self.at().key;
        Object::Attachment {
            container: self.at().name(),
            network: key.network.to_string(),
            ifname: key.ifname.to_string(),
        }
    }

    /// Opens the namespace and reads what is in it.
    pub fn look_inside(&mut self) -> Result<()> {
        let Some(netns) = Netns::open_if_there(&self.at().netns)? else { return Ok(()) };
        let netlink = netns.netlink()?;
        self.inside = Some(Inside {
            links: netlink.links()?,
            addresses: netlink.all_addresses()?,
            routes: netlink.routes()?,
        });
        self.netns = Some(netns);
        Ok(())
    }
}

fn result_of(record: &Record) -> Option<AddResult> {
    record.result.as_ref().ok()?.clone()?.into_add_result().ok()
}

/// The network of the record, with the plugins of its directory.
fn list_of(record: &Record, request: &Request<'_>) -> Option<NetworkList> {
    if record.document.is_empty() {
        return None;
    }
    directory::of_document(record.document.clone(), &request.conf_dir).ok()
}
