//! The addresses of sticky names with `"scope": "machine"`: a file in the directory of the realm.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::held;
use super::pool::{Pool, candidates};
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::steps::allocation::Owner;

/// The file's name.
const FILE: &str = "names.json";
/// How many names without a lease are kept of a pool, those that were used last.
const MOST_IDLE: usize = 256;
/// How many seconds pass before the use of a name is noted again.
const NOTED: u64 = 3600;
/// The longest file.
const LIMIT: usize = 16 << 20;

/// What an address is kept for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    network: Option<String>,
    name: String,
    /// When an attachment last had the name, in seconds since 1970.
    used: u64,
}

/// The names by address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RealmNames(BTreeMap<IpAddr, Kept>);

impl RealmNames {
    /// Reads the file of a realm's directory.
    pub fn read(dir: &Path) -> Result<RealmNames> {
        let path = dir.join(FILE);
        let text = plain_file::read_if_any(&path, LIMIT).map_err(Error::at_path("read", &path))?;
        let Some(text) = text else { return Ok(RealmNames::default()) };
        serde_json::from_slice(&text).map_err(|e| {
            let msg = format!("read {}: {e}", path.display());
            Error::new(Code::DECODE, msg)
                .with_details("restore the file; without it names get other addresses")
        })
    }

    /// Writes the file, and returns once it is on the disk: names outlive a boot.
    pub fn write(&self, dir: &Path) -> Result<()> {
        held::write(&dir.join(FILE), self)
    }

    /// The address of the name of an attachment in a pool for names; None if all are leased. A new
    /// name gets a free address, else that of the name without a lease that was used longest ago.
    pub fn assign(
        &mut self,
        owner: &Owner,
        name: &str,
        pool: &Pool,
        taken: &HashSet<IpAddr>,
    ) -> Option<IpAddr> {
        let now = held::now();
        let mut all = self.0.iter();
        let own = all.find(|(ip, kept)| kept.is_of(owner, name) && pool.allocates(**ip));
        if let Some((ip, kept)) = own
            && kept.used + NOTED > now
        {
            return Some(*ip);
        }
        let is_free = |ip: &IpAddr| !taken.contains(ip) && !self.0.contains_key(ip);
        let ip = own.map(|(ip, _)| *ip);
        let ip = ip.or_else(|| candidates(pool.spans(), None).find(is_free));
        let ip = ip.or_else(|| self.idle(pool, taken).first().copied())?;
        let kept = Kept { network: owner.network.clone(), name: name.to_owned(), used: now };
        self.0.insert(ip, kept);
        let idle = self.idle(pool, taken);
        let others = idle.iter().filter(|other| **other != ip);
        for other in others.take(idle.len().saturating_sub(MOST_IDLE)) {
            self.0.remove(other);
        }
        Some(ip)
    }

    /// The addresses of names without a lease, those first whose names were used longest ago.
    fn idle(&self, pool: &Pool, taken: &HashSet<IpAddr>) -> Vec<IpAddr> {
        let is_idle = |(ip, _): &(&IpAddr, &Kept)| pool.allocates(**ip) && !taken.contains(*ip);
        let mut idle: Vec<_> = self.0.iter().filter(is_idle).collect();
        idle.sort_by_key(|(_, kept)| kept.used);
        idle.into_iter().map(|(ip, _)| *ip).collect()
    }

    /// The name that an address is kept for.
    #[cfg(feature = "cluster")]
    pub fn name_at(&self, ip: IpAddr) -> Option<&str> {
        self.0.get(&ip).map(|kept| kept.name.as_str())
    }

    /// Whether the address is kept for a name that the attachment has not.
    pub fn is_of_other(&self, ip: IpAddr, owner: &Owner, names: &[String]) -> bool {
        let is_own = |kept: &Kept| names.iter().any(|name| kept.is_of(owner, name));
        self.0.get(&ip).is_some_and(|kept| !is_own(kept))
    }
}

impl Kept {
    fn is_of(&self, owner: &Owner, name: &str) -> bool {
        self.network == owner.network && self.name == name
    }
}
