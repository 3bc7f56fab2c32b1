//! A replica of the host and of one container, to rehearse an operation in: namespaces of this
//! process's own, with links of the same names, their addresses, routes and settings, and copies of
//! the directories that plugins write to. It ends with the process, and nothing of it reaches the
//! machine.
//!
//! [`mounts`] copies directories and makes the others read-only, [`links`] copies what rtnetlink
//! shows, [`settings`] sysctls; the rules of nf_tables are copied by
//! [`Nft`](crate::net::nft::Nft).

mod links;
mod mounts;
mod settings;

use std::path::PathBuf;

use nix::sched::CloneFlags;

use self::links::Outside;
use super::netns::Netns;
use super::nft::Nft;
use super::private::leave;
use super::temporary::Temporary;
use crate::error::{Error, Result};

/// The namespaces of the machine that are replicated.
#[derive(Debug)]
pub struct Original {
    /// The host's.
    pub host: Netns,
    /// The container's; None if it does not exist.
    pub container: Option<Netns>,
}

/// The replicas of both.
pub struct Replica {
    /// The host's, which this process is in.
    pub host: Netns,
    /// The container's.
    container: Option<Temporary>,
    /// The other ends of links, and of the links of the host that stand for devices.
    _outside: Temporary,
}

impl Original {
    /// The namespace of this process, and the one at a path. Fails if a namespace there cannot be
    /// opened.
    pub fn open(container: &str) -> Result<Original> {
        let container = Netns::open_if_there(container)?;
        Ok(Original { host: Netns::current()?, container })
    }
}

impl Replica {
    /// Moves this single-threaded process into a replica, in which the files below `writable` can
    /// be changed, and no others outside /run.
    pub fn enter(original: &Original, writable: &[PathBuf]) -> Result<Replica> {
        let rules =
            original.host.enter(|| Nft::open_if_there()?.map_or(Ok(vec![]), |nft| nft.copies()))?;
        leave(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .map_err(|e| Error::kernel("make namespaces for a rehearsal", e))?;
        mounts::replicate(writable)?;
        let outside = Temporary::create_bare()?;
        let host = Netns::current()?;
        replicate(&original.host, &host, (&outside, "host"))?;
        if let Some(nft) = Nft::open_if_there()? {
            nft.make_copies(&rules)?;
        }
        let container = match &original.container {
            Some(netns) => Some(replica_of(netns, original, &outside)?),
            None => None,
        };
        Ok(Replica { host, container: container.flatten(), _outside: outside })
    }

    /// The path of the container's replica; None without a container, or if it is the host itself.
    pub fn container_path(&self) -> Option<String> {
        self.container.as_ref().map(Temporary::path)
    }
}

/// The replica of a container's namespace; None if that is the host's.
fn replica_of(
    container: &Netns,
    original: &Original,
    outside: &Temporary,
) -> Result<Option<Temporary>> {
    if container.is_same_as(&original.host)? {
        return Ok(None);
    }
    let replica = Temporary::create_bare()?;
    replicate(container, &Netns::open(&replica.path())?, (outside, "pod"))?;
    Ok(Some(replica))
}

fn replicate(
    original: &Netns,
    replica: &Netns,
    (outside, prefix): (&Temporary, &'static str),
) -> Result<()> {
    let netns = &Netns::open(&outside.path())?;
    settings::replicate(original, replica)?; // new links inherit some
    links::replicate(original, replica, &Outside { netns, prefix })?;
    settings::replicate(original, replica)
}
