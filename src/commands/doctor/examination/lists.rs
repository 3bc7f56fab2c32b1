//! The networks of records, each parsed once: attachments of one network mostly have one document.

use std::collections::HashMap;
use std::rc::Rc;

use super::request::Request;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;

/// The networks by their documents.
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
