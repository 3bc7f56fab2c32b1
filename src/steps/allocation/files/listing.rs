//! Lists a network's leases without its lock, for display: nothing is changed, and the list may be
//! stale at once.

use std::fs;
use std::net::IpAddr;
use std::time::SystemTime;

use super::Place;
use super::lease::{self, Content};
use crate::error::{Error, Result};
use crate::plain_file;
use crate::steps::allocation::owner::Owner;

/// A file that takes an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The address.
    pub ip: IpAddr,
    /// The owner; None if the content is of another program.
    pub owner: Option<Owner>,
    /// When the file was written.
    pub since: Option<SystemTime>,
}

impl Place {
    /// Every address that a file takes, sorted; empty without a directory. A torn file takes none.
    pub fn list(&self) -> Result<Vec<Listed>> {
        if self.has_passed() {
            return Ok(vec![]);
        }
        let mut ips = match lease::addresses(self.dir()) {
            Err(e) if plain_file::is_nowhere(&e) => vec![],
            ips => ips.map_err(Error::at_path("open", self.dir()))?,
        };
        ips.sort_unstable();
        let mut all = vec![];
        for ip in ips {
            let owner = match lease::read(self.dir(), ip)? {
                None | Some(Content::Torn) => continue,
                Some(Content::Owned(owner)) => Some(owner),
                Some(Content::Foreign) => None,
            };
            let metadata = fs::symlink_metadata(lease::path(self.dir(), ip)).ok();
            let since = metadata.and_then(|metadata| metadata.modified().ok());
            all.push(Listed { ip, owner, since });
        }
        Ok(all)
    }
}
