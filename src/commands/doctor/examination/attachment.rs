//! The facts about one attachment: its record with its network, and its namespace as it is now.

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use super::finding::{Finding, Object};
use super::request::Request;
use crate::cni::json::Value;
use crate::cni::result::AddResult;
use crate::commands::fault::Fault;
use crate::error::Result;
use crate::net::netlink::{Address, FoundRoute, Link};
use crate::net::netns::{FileId, Netns, NetnsId};
use crate::runtime::cache::Record;
use crate::runtime::directory;
use crate::runtime::find::{self, Name, Recorded};
use crate::runtime::list::{NetworkList, PluginConfig};
use crate::runtime::parameters::Parameters;

/// A recorded attachment.
pub struct Attachment {
    /// Its parameters, and the file of its record.
    pub recorded: Recorded,
    /// The result of its ADD; None if the record has none that can be read.
    pub result: Option<AddResult>,
    /// Its network as it was at ADD; None if the record has none that can be read.
    pub list: Option<Rc<NetworkList>>,
    /// Its namespace, which is not kept open: there may be more than this process may open. None if
    /// that is gone, cannot be opened, or is the host's.
    pub id: Option<NetnsId>,
    /// Whether its path leads to a namespace of the host.
    pub is_in_host: bool,
    /// What is in the namespace; None if that is gone, cannot be read, or is the host's.
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

/// The recorded attachments that were asked for, and all others. Fails if the name stands for
/// several containers.
pub fn recorded(request: &Request<'_>) -> Result<(Vec<Recorded>, Vec<Recorded>)> {
    let all = find::recorded(&find::caches(&request.cache)?)?;
    if request.subject.is_empty() {
        return Ok((all, vec![]));
    }
    let name = Name::parse(&request.subject)?;
    let asked = name.only_of(all.iter().collect(), |recorded: &&Recorded| Some(&recorded.at))?;
    let files: Vec<PathBuf> = asked.into_iter().map(|it| it.found.file.clone()).collect();
    Ok(all.into_iter().partition(|recorded| files.contains(&recorded.found.file)))
}

/// The bridge of a configuration without one.
const USUAL_BRIDGE: &str = "cni0";

/// The name of the bridge that the plugin connects containers to, if it does.
pub fn bridge_of(plugin: &PluginConfig) -> Option<&str> {
    let named = plugin.value.get("bridge").and_then(Value::as_str);
    let bridge = named.filter(|name| !name.is_empty()).unwrap_or(USUAL_BRIDGE);
    (plugin.kind == "bridge").then_some(bridge)
}

impl Attachment {
    /// The attachment of a record; nothing is known of its namespace yet.
    pub fn of(recorded: Recorded, lists: &mut Lists<'_>) -> Attachment {
        let result = recorded.found.record.as_ref().ok().and_then(result_of);
        let list = lists.of(recorded.document());
        Attachment { recorded, result, list, id: None, is_in_host: false, inside: None }
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

    /// A finding about it.
    pub fn found(&self, fault: &'static Fault, evidence: impl Into<String>) -> Finding {
        Finding::new(fault, self.object(), evidence)
    }

    /// The name of the bridge that it is on, if it is on one.
    pub fn bridge(&self) -> Option<&str> {
        bridge_of(self.list.as_ref()?.plugins.first()?)
    }

    /// Reads what is in the namespace, unless it is one of the host's.
    pub fn look_inside(&mut self, host: &[FileId]) -> Result<()> {
        let Some(netns) = Netns::open_if_there(&self.at().netns)? else { return Ok(()) };
        self.is_in_host = host.contains(&netns.identity()?);
        if self.is_in_host {
            return Ok(());
        }
        let netlink = netns.netlink()?;
        self.inside = Some(Inside {
            links: netlink.links()?,
            addresses: netlink.all_addresses()?,
            routes: netlink.routes()?,
        });
        self.id = Some(netns.id()?);
        Ok(())
    }

    /// Opens the namespace again; None if it is gone, or the path leads to another one by now.
    pub fn open(&self) -> Result<Option<Netns>> {
        let Some(id) = self.id else { return Ok(None) };
        let Some(netns) = Netns::open_if_there(&self.at().netns)? else { return Ok(None) };
        Ok(if netns.id()? == id { Some(netns) } else { None })
    }
}

fn result_of(record: &Record) -> Option<AddResult> {
    record.result.as_ref().ok()?.clone()?.into_add_result().ok()
}

/// The networks of records by their documents, each parsed once: attachments of one network mostly
/// have one document.
pub struct Lists<'a> {
    request: &'a Request<'a>,
    by_document: HashMap<Vec<u8>, Option<Rc<NetworkList>>>,
}

impl<'a> Lists<'a> {
    /// None is parsed yet.
    pub fn new(request: &'a Request<'a>) -> Lists<'a> {
        Lists { request, by_document: HashMap::new() }
    }

    /// The network of a document, with the plugins of its directory; None without one that can be
    /// read.
    pub fn of(&mut self, document: &[u8]) -> Option<Rc<NetworkList>> {
        if document.is_empty() {
            return None;
        }
        if !self.by_document.contains_key(document) {
            let list = directory::of_document(document.to_vec(), &self.request.conf_dir);
            let dirs = self.request.plugin_dirs();
            let list = list.map(|list| list.with_own_names(self.request.plugins, &dirs));
            self.by_document.insert(document.to_vec(), list.ok().map(Rc::new));
        }
        self.by_document.get(document)?.clone()
    }
}
