//! Determines which containers are alive, for a GC without a list from a runtime.
//!
//! Records of runtimes may be in another directory, or be lost. So the decision relies on what a
//! container cannot write and the kernel keeps: the host's end of a veth pair, since the other end
//! disappears with its namespace; the namespace at a path that was recorded; records in any cache
//! below /var/lib/cni; and, for an address, whether any namespace of the machine has it. Only that
//! last one can a container change: its own address, to its own harm.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use super::cache::Cache;
use super::find;
use crate::cni::attachment::{Hash8, Key, NetworkName};
use crate::cni::valid::{Holder, Stale, ValidAttachment};
use crate::error::{Error, Result};
use crate::net::namespaces;
use crate::net::netns::Netns;

/// The verdict of a GC on an object without a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its container is alive.
    Lives,
    /// There is no evidence either way.
    Unknown,
    /// Its container is gone.
    Gone,
}

impl Verdict {
    /// Why the object is kept.
    pub fn reason(self) -> &'static str {
        match self {
            Verdict::Lives => "its container lives",
            Verdict::Unknown | Verdict::Gone => "nothing tells whether its container lives",
        }
    }
}

/// The evidence of which containers are alive.
pub struct Living {
    /// Every address in another namespace; an error if a namespace, or a record, may have been
    /// missed.
    addresses: Result<HashSet<IpAddr>>,
    /// Attachments that have a record, in any cache, and a namespace.
    recorded: Vec<Key>,
}

impl Living {
    /// Collects the evidence now. The objects to be judged must have been collected before: an ADD
    /// allocates an address first and then puts it on a link.
    pub fn look(network: Option<&NetworkName>, own: &Cache) -> Living {
        let (recorded, problem) = match recorded(network, own) {
            Ok(recorded) => (recorded, None),
            Err(problem) => (vec![], Some(problem)),
        };
        let addresses = problem.map_or_else(namespaces::addresses_elsewhere, Err);
        Living { addresses, recorded }
    }

    /// Why the evidence is incomplete, if it is.
    pub fn problem(&self) -> Option<&Error> {
        self.addresses.as_ref().err()
    }

    /// The attachments to a network that have a record, in any cache, and a namespace.
    pub fn recorded(&self) -> &[Key] {
        &self.recorded
    }

    /// Whether an address is on a link of any namespace.
    pub fn has(&self, address: &IpAddr) -> Result<bool> {
        self.addresses.as_ref().map(|all| all.contains(address)).map_err(Clone::clone)
    }

    /// Judges each object by itself and by the other objects of its container: a container that is
    /// alive on one interface is alive on all. `alive` are the containers that are known to be
    /// alive.
    pub fn judge(&self, all: &[Stale], alive: &[ValidAttachment]) -> Vec<Verdict> {
        let (mut lives, mut gone) = (Group::default(), Group::default());
        // These containers, and those with a record, are alive whatever the objects say.
        lives.containers.extend(alive.iter().map(|valid| valid.container_id.clone()));
        self.recorded.iter().for_each(|key| lives.insert(&Holder::of(key)));
        let alone: Vec<Verdict> = all.iter().map(|stale| self.judge_alone(stale)).collect();
        for (stale, verdict) in all.iter().zip(&alone) {
            match verdict {
                Verdict::Lives => lives.insert(&stale.holder),
                Verdict::Gone => gone.insert(&stale.holder),
                Verdict::Unknown => (),
            }
        }
        let judge = |(stale, alone): (&Stale, Verdict)| match alone {
            _ if lives.has(&stale.holder) => Verdict::Lives,
            Verdict::Unknown if stale.is_torn || gone.has(&stale.holder) => Verdict::Gone,
            verdict => verdict,
        };
        all.iter().zip(alone).map(judge).collect()
    }

    /// The verdict on an object by itself.
    fn judge_alone(&self, stale: &Stale) -> Verdict {
        if stale.is_alive {
            return Verdict::Lives;
        }
        if !stale.netns_path.is_empty() {
            return if is_gone(&stale.netns_path) { Verdict::Gone } else { Verdict::Lives };
        }
        if stale.needs_link {
            return Verdict::Gone; // the link would be among `all`, and keep its attachment alive
        }
        match &self.addresses {
            Ok(_) if stale.addresses.is_empty() => Verdict::Unknown,
            Ok(all) if stale.addresses.iter().any(|ip| all.contains(ip)) => Verdict::Lives,
            Ok(_) => Verdict::Gone,
            Err(_) => Verdict::Unknown,
        }
    }
}

/// A set of attachments and containers.
#[derive(Default)]
struct Group {
    hashes: HashSet<Hash8>,
    containers: HashSet<String>,
    /// The beginnings of ids that were truncated in a comment.
    beginnings: Vec<String>,
}

impl Group {
    fn insert(&mut self, holder: &Holder) {
        self.hashes.extend(holder.hash);
        match (holder.container_id.as_str(), holder.is_cut) {
            ("", _) => (),
            (beginning, true) => self.beginnings.push(beginning.to_owned()),
            (id, false) => drop(self.containers.insert(id.to_owned())),
        }
    }

    fn has(&self, holder: &Holder) -> bool {
        let id = holder.container_id.as_str();
        if holder.hash.is_some_and(|hash| self.hashes.contains(&hash)) {
            return true;
        }
        let has_id = match holder.is_cut {
            true => self.containers.iter().any(|known| known.starts_with(id)),
            false => self.containers.contains(id),
        };
        let has_beginning = || self.beginnings.iter().any(|known| id.starts_with(known.as_str()));
        !id.is_empty() && (has_id || has_beginning())
    }
}

/// The attachments that have a record below /var/lib/cni, or in the operator's cache, and a
/// namespace. An unreadable file counts for every attachment that its name may stand for.
fn recorded(network: Option<&NetworkName>, own: &Cache) -> Result<Vec<Key>> {
    let mut keys = vec![];
    for cache in find::caches(own)? {
        for found in cache.all()? {
            let at = match (network, &found.record) {
                (Some(network), _) => found.attachment(network),
                (None, Ok(record)) => record.at.clone(),
                (None, Err(_)) => None,
            };
            let is_of_network = |key: &Key| network.is_none_or(|network| key.network == *network);
            match (at, network) {
                (Some(at), _) if is_of_network(&at.key) && !is_gone(&at.netns) => keys.push(at.key),
                (None, Some(network)) => keys.extend(found.readings(network)),
                _ => (),
            }
        }
    }
    Ok(keys)
}

/// Whether there is nothing at the path. An unreadable path, and an empty one, counts as existing.
pub fn is_gone(netns: &str) -> bool {
    !netns.is_empty() && !Path::new(netns).try_exists().unwrap_or(true)
}

/// The state of a namespace: `alive`, `gone` (GC detaches it), or `unknown`.
pub fn state_of(netns: &str) -> &'static str {
    match Netns::open_if_there(netns) {
        Ok(Some(_)) => "alive",
        _ if is_gone(netns) => "gone",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn lease(id: &str, ifname: &str, ip: &str) -> Stale {
        let key = Key::parse("net", id, ifname).unwrap();
        Stale { holder: Holder::of(&key), addresses: vec![ip.parse().unwrap()], ..Stale::default() }
    }

    fn verdicts(
        addresses: Result<HashSet<IpAddr>>,
        all: &[Stale],
        alive: &[ValidAttachment],
    ) -> Vec<Verdict> {
        Living { addresses, recorded: vec![] }.judge(all, alive)
    }

    fn on_links(ips: &[&str]) -> Result<HashSet<IpAddr>> {
        Ok(ips.iter().map(|ip| ip.parse().unwrap()).collect())
    }

    #[test]
    fn an_address_that_no_namespace_has_is_of_nobody() {
        let all = [lease("a", "eth0", "10.0.0.1"), lease("b", "eth0", "10.0.0.2")];
        assert_eq!(verdicts(on_links(&["10.0.0.1"]), &all, &[]), [Verdict::Lives, Verdict::Gone]);
        let unseen = Err(Error::new(Code::IO, "x"));
        assert_eq!(verdicts(unseen, &all, &[]), [Verdict::Unknown; 2]);
    }

    #[test]
    fn a_container_that_lives_with_one_interface_lives_with_all() {
        let all = [
            lease("a", "eth0", "10.0.0.1"),
            lease("a", "net1", "10.0.0.2"),
            lease("b", "eth0", "10.0.0.3"),
        ];
        let lives = [Verdict::Lives, Verdict::Lives, Verdict::Gone];
        assert_eq!(verdicts(on_links(&["10.0.0.1"]), &all, &[]), lives);
        let recorded = ValidAttachment { container_id: "a".into(), ifname: "eth7".into() };
        assert_eq!(verdicts(on_links(&[]), &all, &[recorded]), lives);
        let long = "x".repeat(120);
        let link = Holder::of_comment(&Key::parse("net", &long, "eth0").unwrap().comment());
        let link = Stale { holder: link, is_alive: true, ..Stale::default() };
        assert_eq!(
            verdicts(on_links(&[]), &[link, lease(&long, "net1", "10.0.0.4")], &[]),
            [Verdict::Lives; 2]
        );
    }

    #[test]
    fn what_says_nothing_goes_with_what_else_its_attachment_had() {
        let key = Key::parse("net", "a", "eth0").unwrap();
        let backup = Stale { holder: Holder::of(&key), ..Stale::default() };
        let spoof = Stale { needs_link: true, ..backup.clone() };
        assert_eq!(verdicts(on_links(&[]), std::slice::from_ref(&backup), &[]), [Verdict::Unknown]);
        assert_eq!(
            verdicts(on_links(&[]), &[backup, lease("a", "eth0", "10.0.0.1"), spoof], &[]),
            [Verdict::Gone; 3]
        );
    }

    #[test]
    fn a_path_that_was_written_down_tells_of_its_namespace() {
        let key = Key::parse("net", "a", "eth0").unwrap();
        let at = |path: &str| Stale {
            holder: Holder::of(&key),
            netns_path: path.to_owned(),
            ..Stale::default()
        };
        assert_eq!(verdicts(on_links(&[]), &[at("/proc")], &[]), [Verdict::Lives]);
        assert_eq!(verdicts(on_links(&[]), &[at("/nonexistent")], &[]), [Verdict::Gone]);
    }
}
