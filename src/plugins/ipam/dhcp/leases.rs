//! The leases of the daemon, as the plugin and operators see them: through the running daemon, or
//! in the files of one that has exited.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::daemon::flags::Flags;
use super::daemon::journal::{Journal, Record, file_name, forget_all_torn};
use super::daemon::release::give_back;
use super::wire::DEFAULT_SOCKET;
use super::wire::{DAEMON, Described, Peer, Request, is_not_running, names_in};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::deadline::Deadline;
use crate::error::{Code, ErrorList, Result};
use crate::family::Family;
use crate::plugin::Context;
use crate::plugin::leases::{Holding, Holdings, LeaseImporter, LeaseStore};
use crate::service::journal::{Read, Record as _};
use crate::sys::random::Random;

/// How long a daemon may take to exit or to start while a lease is released.
const RESTART_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two attempts to reach the daemon.
const RESTART_PAUSE: Duration = Duration::from_millis(2);

/// The leases of the daemon.
pub struct Leases;

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let mut held = vec![];
        for Kept { key, address, netns_path } in kept(&Peer::of(cx)?)? {
            if let Some(address) = address.filter(|_| key.network == cx.config.name) {
                let container_id = key.container_id.to_string();
                let ifname = key.ifname.to_string();
                held.push(Holding { address, container_id, ifname, since: None, netns_path });
            }
        }
        Ok(Holdings { held, ranges: vec![] })
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        let daemon = Peer { socket: DEFAULT_SOCKET.into(), deadline: Deadline::default() };
        let leases = kept(&daemon)?.into_iter().filter(|lease| lease.address.is_some());
        Ok(leases.map(|lease| lease.key.network).collect())
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        None
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        let network = cx.config.name.as_str();
        let family = if held.address.is_ipv6() { "/6" } else { "" };
        let key = format!("{}/{network}/{}{family}", held.container_id, held.ifname);
        Peer::of(cx)?.ask::<()>(&Request::Release { key }).map(|()| true)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        None
    }
}

/// A lease, or one that is being acquired, of a daemon that runs or has exited.
struct Kept {
    key: Key,
    /// The address, once there is one.
    address: Option<IpAddr>,
    netns_path: String,
}

impl Kept {
    /// A lease of the running daemon, if its name is that of an attachment.
    fn of(lease: Described) -> Option<Kept> {
        let address = lease.net().map(|net| net.addr());
        Some(Kept { key: lease.attachment()?, address, netns_path: lease.namespace })
    }

    /// A lease that a daemon has left.
    fn of_record(record: &Record) -> Kept {
        let address = record.lease.as_ref().map(|lease| lease.net().addr());
        Kept { key: record.key.clone(), address, netns_path: record.place.netns.clone() }
    }

    /// Describes the lease for the report of a GC.
    fn stale(self) -> Stale {
        Stale {
            what: self.address.map_or_else(|| "lease".to_owned(), |ip| format!("lease {ip}")),
            holder: Holder::of(&self.key),
            addresses: self.address.into_iter().collect(),
            netns_path: self.netns_path,
            ..Stale::default()
        }
    }
}

/// All leases.
fn kept(daemon: &Peer) -> Result<Vec<Kept>> {
    match daemon.ask::<Vec<Described>>(&Request::Leases) {
        Err(error) if is_not_running(&error) => {
            let Some(journal) = left_behind(&daemon.socket)? else { return Ok(vec![]) };
            let of_record = |read| match read {
                Read::Record(record) => Some(Kept::of_record(&record)),
                _ => None,
            };
            Ok(journal.read_all()?.into_iter().filter_map(of_record).collect())
        }
        leases => Ok(leases?.into_iter().filter_map(Kept::of).collect()),
    }
}

/// The journal of a daemon that has exited.
fn left_behind(socket: &Path) -> Result<Option<Journal>> {
    Journal::left_behind(&DAEMON, &DAEMON.journal_beside(socket))
}

/// Releases the leases of an attachment: through the daemon, or from its journal if no daemon runs.
pub fn release(daemon: &Peer, key: &Key) -> Result<()> {
    let deadline = daemon.deadline.of_wait(RESTART_PATIENCE);
    let del = Request::Del(key.clone());
    loop {
        // A retry may avoid two errors: the daemon may exit during the request, and may start
        // during the work on its journal.
        let again = match daemon.begin_to_ask(&del).and_then(|asked| asked.answer()) {
            Ok(answer) => return answer,
            Err(error) if is_not_running(&error) => match release_left_behind(daemon, key) {
                Err(error) if error.code == Code::CONFLICT => error,
                done => return done,
            },
            Err(error) if error.code == Code::TRY_AGAIN => error,
            Err(error) => return Err(error),
        };
        if Instant::now() > deadline {
            return Err(again);
        }
        thread::sleep(RESTART_PAUSE); // a killed daemon closes its socket first and releases its lock last
    }
}

/// Releases the leases of an attachment, if a daemon that has exited has left any.
fn release_left_behind(daemon: &Peer, key: &Key) -> Result<()> {
    let Some(journal) = left_behind(&daemon.socket)? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        let name = file_name(key, family);
        errors.push(journal.find(&name).and_then(|record| {
            record.iter().for_each(send_release);
            journal.remove(&name)
        }));
    }
    errors.finish()
}

/// Sends one message without an answer: if it cannot be sent, the server reclaims the address when
/// the lease expires.
fn send_release(record: &Record) {
    let _ = give_back(record, None, &Flags::default(), &mut Random::new());
}

/// Releases the leases of a network except those of valid attachments.
pub fn gc(daemon: &Peer, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    match gc_by_daemon(daemon, network, valid) {
        Err(error) if is_not_running(&error) => {
            gc_left_behind(&daemon.socket, network, valid).map_err(|e| e.with_details(&error.msg))
        }
        done => done,
    }
}

/// Lets the daemon release the stale leases, unless this is only a look, and reports them if that is
/// requested.
fn gc_by_daemon(daemon: &Peer, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    let mut stale = vec![];
    if valid.is_watched() {
        stale = daemon.ask::<Vec<Described>>(&Request::Leases)?;
    }
    if !valid.is_look() {
        let (network, valid) = (network.clone(), names_in(valid));
        daemon.ask::<()>(&Request::Gc { network, valid })?;
    }
    for lease in stale.into_iter().filter_map(Kept::of) {
        if valid.is_stale(network, &lease.key) {
            valid.remove(|| lease.stale(), || Ok(()))?;
        }
    }
    Ok(())
}

/// Does what the daemon would do, in the journal of one that has exited.
fn gc_left_behind(socket: &Path, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    let Some(journal) = left_behind(socket)? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for read in journal.read_all()? {
        let Read::Record(record) = read else { continue };
        if valid.is_stale(network, &record.key) {
            let release = || {
                send_release(&record);
                journal.remove(&record.name())
            };
            errors.push(valid.remove(|| Kept::of_record(&record).stale(), release));
        }
    }
    if !valid.is_look() {
        forget_all_torn(&journal, network, &names_in(valid));
    }
    errors.finish()
}
