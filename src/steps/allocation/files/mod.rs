//! The file store: one directory per network, with one file per lease, as the reference has it.
//!
//! A node is upgraded to this plugin and rolled back with pods running, so names, content, modes
//! and lock are the reference's. Our addition, the [`Index`], lies beside it.

pub mod attached;
pub mod index;
pub mod lease;
pub mod lock;
pub mod operator;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use self::index::{Bucket, Index};
use self::lease::Content;
use self::lock::Lock;
use super::ranges::RangeSet;
use super::{Lease, Owner, Pool, first_free};
use crate::cni::attachment::{Key, NetworkName};
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::rollback::Rollback;

/// Where a network's leases are stored.
pub struct Place {
    data_dir: PathBuf,
    /// The directory's name.
    name: String,
    dir: PathBuf,
    deadline: Deadline,
    /// Whether leases end with the boot that they are of.
    is_of_boot: bool,
    /// The network of the leases, where the directory has those of others as well.
    shared_by: Option<String>,
}

impl Place {
    /// The place of `network`: its directory is `<data_dir>/<network>`, and `deadline` limits the
    /// wait for its lock.
    pub fn new(data_dir: &Path, network: &NetworkName, deadline: Deadline) -> Place {
        Place {
            data_dir: data_dir.to_owned(),
            name: network.as_str().to_owned(),
            dir: data_dir.join(network.as_str()),
            deadline,
            is_of_boot: false,
            shared_by: None,
        }
    }

    /// The place of `network` in the directory `<data_dir>/<name>`, which other networks share: an
    /// address is leased to one of them at a time.
    pub fn shared(data_dir: &Path, name: &str, network: &NetworkName, deadline: Deadline) -> Place {
        Place {
            data_dir: data_dir.to_owned(),
            name: name.to_owned(),
            dir: data_dir.join(name),
            deadline,
            is_of_boot: false,
            shared_by: Some(network.as_str().to_owned()),
        }
    }

    /// The same place, where the leases of an earlier boot are free.
    #[must_use]
    pub fn of_this_boot(self) -> Place {
        Place { is_of_boot: true, ..self }
    }

    /// Whether the leases here are of an earlier boot.
    fn is_of_earlier_boot(&self) -> bool {
        self.is_of_boot && lock::is_of_earlier_boot(&self.dir)
    }

    /// The name of the directory, which is the network's unless others share it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the leases.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The owner that the attachment of this key is here.
    pub fn owner(&self, key: &Key) -> Owner {
        Owner { network: self.shared_by.clone(), ..Owner::of(key) }
    }

    /// Whether a lease of this owner is the network's to list and to collect. In a shared directory
    /// a lease without a network is the rest of one after a power loss: it is any network's.
    fn is_of_network(&self, owner: &Owner) -> bool {
        owner.network.is_none() || owner.network == self.shared_by
    }

    /// Fails with code 50 if a lease could not be created here, as far as that can be determined
    /// without creating one.
    pub fn require_usable(&self) -> Result<()> {
        for dir in self.dir.ancestors() {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            let what = format!("use directory {dir:?} for leases");
            let unusable = |e: Errno| Error::system(Code::NOT_AVAILABLE, what.clone(), e as i32);
            return match fs::metadata(dir) {
                Ok(metadata) if metadata.is_dir() => {
                    access(dir, AccessFlags::W_OK | AccessFlags::X_OK).map_err(unusable)
                }
                Ok(_) => Err(unusable(Errno::ENOTDIR)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // ADD creates it
                Err(e) => Err(Error::io(&what, &e).with_code(Code::NOT_AVAILABLE)),
            };
        }
        Ok(())
    }

    /// Whether the address has a file, of whatever kind. Takes no lock, so the answer may be stale
    /// at once.
    pub fn is_taken(&self, ip: IpAddr) -> bool {
        has_file(&self.dir, ip) && !self.is_of_earlier_boot()
    }

    /// Every address that has a file.
    pub fn taken(&self) -> Result<HashSet<IpAddr>> {
        if self.is_of_earlier_boot() {
            return Ok(HashSet::new());
        }
        Ok(addresses(&self.dir)?.into_iter().collect())
    }

    /// Whether any of these addresses has an empty file. Reads all of them; an address whose file
    /// cannot be read counts as taken.
    fn has_torn(&self, is_asked: impl Fn(IpAddr) -> bool) -> Result<bool> {
        let mut asked = addresses(&self.dir)?.into_iter().filter(|ip| is_asked(*ip));
        Ok(asked.any(|ip| matches!(lease::read(&self.dir, ip), Ok(Some(Content::Torn)))))
    }

    /// Whether none of the candidates is free. Runtimes call STATUS every few seconds, so the search ends
    /// at the first free one and takes no lock. A torn lease of an address that `is_asked` counts as
    /// free: the next ADD frees it.
    pub fn is_full(
        &self,
        candidates: impl Iterator<Item = IpAddr>,
        is_asked: impl Fn(IpAddr) -> bool,
    ) -> Result<bool> {
        Ok(first_free(candidates, &mut &*self)?.is_none() && !self.has_torn(is_asked)?)
    }

    /// The addresses of these sets that have a file.
    pub fn taken_of(&self, sets: &[&RangeSet]) -> Result<Vec<IpAddr>> {
        let of_sets = |ip: &IpAddr| sets.iter().any(|set| set.contains(*ip));
        Ok(self.taken()?.into_iter().filter(of_sets).collect())
    }

    /// Every lease, read without the lock and without any change; None where there is no directory.
    pub fn leases(&self) -> Result<Option<Vec<Lease>>> {
        if self.is_of_earlier_boot() {
            return Ok(None);
        }
        let ips = match lease::addresses(&self.dir) {
            Err(e) if plain_file::is_nowhere(&e) => return Ok(None),
            ips => ips.map_err(Error::at_path("open", &self.dir))?,
        };
        let mut leases = vec![];
        for ip in ips {
            if let Some(Content::Owned(owner)) = lease::read(&self.dir, ip)? {
                leases.push(Lease { ip, owner });
            }
        }
        Ok(Some(leases))
    }

    /// Locks the directory, which must exist.
    pub fn lock(&self) -> Result<Lock> {
        Lock::take(&self.dir, self.deadline)
    }
}

/// The addresses without the lock: what is free may be taken at once.
impl Pool for &Place {
    fn attempt(&mut self, ip: IpAddr) -> Result<bool> {
        Ok(!self.is_taken(ip))
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        Place::taken(self)
    }
}

/// A network's leases, locked. Dropping it brings the index up to date, whatever happened, and then
/// releases the lock.
pub struct FileStore {
    dir: PathBuf,
    index: Index,
    scope: Scope,
    /// What the index or the scan reported. Entries of the index may be stale, so the files decide.
    leases: Vec<Lease>,
    draft: Option<PathBuf>,
    /// Whether the seal is broken.
    changed: bool,
    /// Why the leases that were read may be incomplete. The index is not sealed then.
    unread: Option<Error>,
    /// None only on a read-only disk, where no process can change a lease.
    _lock: Option<Lock>,
}

/// Which leases have been read.
#[derive(Clone, Copy)]
enum Scope {
    /// Those of one bucket: the index was sealed.
    Bucket(Bucket),
    /// All of them.
    Network,
}

impl FileStore {
    /// Locks a network's leases to change those of a container; creates the directory if it is
    /// missing.
    pub fn create(place: &Place, owner: &Owner) -> Result<FileStore> {
        FileStore::create_for(place, Some(&owner.container_id))
    }

    /// Locks a network's leases to read those of a container; None where there is no directory.
    pub fn open(place: &Place, owner: &Owner) -> Result<Option<FileStore>> {
        FileStore::open_for(place, Some(&owner.container_id))
    }

    /// Locks a network's leases to read all of them; None where there is no directory.
    pub fn open_whole(place: &Place) -> Result<Option<FileStore>> {
        FileStore::open_for(place, None)
    }

    fn open_for(place: &Place, container_id: Option<&str>) -> Result<Option<FileStore>> {
        let lock = match place.lock() {
            Ok(lock) => Some(lock),
            Err(e) if e.is_errno(Errno::ENOENT) || e.is_errno(Errno::ENOTDIR) => return Ok(None),
            Err(e) if e.is_errno(Errno::EROFS) => None,
            Err(e) => return Err(e),
        };
        FileStore::read(place, lock, container_id).map(Some)
    }

    /// Locks a network's leases to change those of any container; creates the directory if it is
    /// missing.
    pub fn create_whole(place: &Place) -> Result<FileStore> {
        FileStore::create_for(place, None)
    }

    fn create_for(place: &Place, container_id: Option<&str>) -> Result<FileStore> {
        let lock = match place.lock() {
            Err(e) if e.is_errno(Errno::ENOENT) => {
                let dir = &place.dir;
                plain_file::make_directories(dir, 0o755)
                    .map_err(|e| Error::io(format_args!("create directory {dir:?}"), &e))?;
                place.lock()?
            }
            lock => lock?,
        };
        FileStore::read(place, Some(lock), container_id)
    }

    /// Reads the container's leases from the index; if that is stale, or no container is given,
    /// reads all leases from the files.
    fn read(place: &Place, lock: Option<Lock>, container_id: Option<&str>) -> Result<FileStore> {
        let dir = place.dir.clone();
        let index = Index::new(&place.data_dir, &place.name);
        let indexed = container_id.and_then(|id| indexed(&index, &dir, id));
        // A sealed index is of this boot.
        if place.is_of_boot && indexed.is_none() && lock.is_some() {
            let remove = |ip| plain_file::remove(&lease::path(&dir, ip));
            lock::begin_boot(&dir, remove).map_err(Error::at_path("begin a boot in", &dir))?;
        }
        let (scope, leases, unread) = match indexed {
            Some((bucket, leases)) => (Scope::Bucket(bucket), leases, None),
            None => {
                let (leases, unread) = scan(&dir)?;
                (Scope::Network, leases, unread)
            }
        };
        let changed = matches!(scope, Scope::Network);
        Ok(FileStore { dir, index, scope, leases, draft: None, changed, unread, _lock: lock })
    }

    /// Fails if a lease could not be read.
    pub fn require_all_read(&self) -> Result<()> {
        self.unread.clone().map_or(Ok(()), Err)
    }

    /// All leases, if all were requested.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// A lease appears with its content: the file is written elsewhere and then hard-linked to its
    /// name, which fails if the name is taken. One draft serves all leases of a call, and all
    /// candidates that turn out to be taken.
    fn create_lease(&mut self, path: &Path, owner: &Owner) -> io::Result<()> {
        self.changed = true;
        if let Ok(draft) = self.draft(owner) {
            match fs::hard_link(draft, path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => (),
                linked => return linked,
            }
        }
        // Not every file system has hard links, and the two directories may be on different file
        // systems. Then we do as the reference does: a crash can leave an empty lease, which the
        // next scan removes.
        plain_file::create(path, lease::to_text(owner).as_bytes())
    }

    fn draft(&mut self, owner: &Owner) -> io::Result<&Path> {
        if self.draft.is_none() {
            if matches!(self.scope, Scope::Network) {
                self.index.prepare()?;
            }
            let path = self.index.draft("lease");
            plain_file::create_anew(&path, lease::to_text(owner).as_bytes())?;
            self.draft = Some(path);
        }
        self.draft.as_deref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn remove_draft(&mut self) -> io::Result<()> {
        self.draft.take().map_or(Ok(()), fs::remove_file)
    }

    /// Writes a lease of another owner than the one before; returns false if the address is taken.
    pub fn insert(&mut self, lease: &Lease) -> Result<bool> {
        self.remove_draft().map_err(Error::at_path("remove a draft in", &self.dir))?;
        self.reserve(lease.ip, &lease.owner)
    }

    /// The address of the last reservation from a range set that has this turn.
    pub fn last_reserved(&self, turn: &str) -> Option<IpAddr> {
        lease::last_reserved(&self.dir, turn)
    }

    /// Remembers where the next search begins in the range sets that have this turn.
    /// Written in place, as the reference does: a crash can spoil only the next turn of the round
    /// robin.
    pub fn set_last_reserved(&mut self, turn: &str, ip: IpAddr) -> Result<()> {
        self.changed = true;
        let path = self.dir.join(lease::last_reserved_name(turn));
        plain_file::replace(&path, ip.to_string().as_bytes())
            .map_err(|e| Error::io(format_args!("write {path:?}"), &e))
    }

    /// Drops entries whose files are gone. Called after an undo, which removes lease files and does
    /// not know the index.
    pub fn forget_what_is_gone(&mut self) {
        let dir = &self.dir;
        self.leases.retain(|lease| has_file(dir, lease.ip));
    }

    /// The addresses that `owner` holds.
    pub fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        let mut held = vec![];
        for lease in self.leases.iter().filter(|lease| lease.owner == *owner) {
            if lease::is_current(&self.dir, lease)? {
                held.push(lease.ip);
            }
        }
        Ok(held)
    }

    /// The addresses that an attachment holds. If it has none: those that its container holds in leases
    /// without an interface name, as old plugins wrote them.
    pub fn held_by_attachment(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        let held = self.held_by(owner)?;
        if held.is_empty() { self.held_by(&owner.without_ifname()) } else { Ok(held) }
    }

    /// Every address that is not free.
    pub fn taken(&self) -> Result<HashSet<IpAddr>> {
        Ok(addresses(&self.dir)?.into_iter().collect())
    }

    /// Allocates the address to `owner` unless it is taken; returns whether it did.
    pub fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool> {
        let path = lease::path(&self.dir, ip);
        match self.create_lease(&path, owner) {
            Ok(()) => {
                self.leases.push(Lease { ip, owner: owner.clone() });
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::io(format_args!("create lease {path:?}"), &e)),
        }
    }

    /// Releases a reservation of this run if a later step fails.
    pub fn release_on_failure(&self, ip: IpAddr, rb: &mut Rollback<'_>) {
        let path = lease::path(&self.dir, ip);
        rb.undo(format_args!("release {ip}"), move || remove_lease(&path));
    }

    /// Releases an address.
    pub fn release(&mut self, ip: IpAddr) -> Result<()> {
        self.changed = true;
        remove_lease(&lease::path(&self.dir, ip))?;
        self.leases.retain(|lease| lease.ip != ip);
        Ok(())
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if self.remove_draft().is_err() {
            return; // without a seal the next call rebuilds the index and its directory
        }
        if self.changed && self.unread.is_none() {
            let updated = match self.scope {
                Scope::Bucket(bucket) => self.index.write(bucket, &self.leases),
                Scope::Network => self.index.rebuild(&self.leases),
            };
            // The next call rebuilds an index without a seal.
            let _ = updated.and_then(|()| self.index.seal(&self.dir));
        }
    }
}

/// Whether the address has a file, of whatever kind.
fn has_file(dir: &Path, ip: IpAddr) -> bool {
    fs::symlink_metadata(lease::path(dir, ip)).is_ok()
}

/// Removes a lease's file. Succeeds if the file is already gone.
fn remove_lease(path: &Path) -> Result<()> {
    plain_file::remove(path).map_err(|e| Error::io(format_args!("remove lease {path:?}"), &e))
}

fn addresses(dir: &Path) -> Result<Vec<IpAddr>> {
    lease::addresses(dir).map_err(|e| Error::io(format_args!("read directory {dir:?}"), &e))
}

/// Reads the leases in the container's bucket; None if the index is stale, or disagrees with the
/// files of the container's leases. A file that was overwritten in place has another owner, while the
/// directory's time is unchanged.
fn indexed(index: &Index, dir: &Path, container_id: &str) -> Option<(Bucket, Vec<Lease>)> {
    if !index.is_sealed(dir) {
        return None;
    }
    let bucket = Bucket::of(container_id);
    let leases = index.read(bucket)?;
    let mut held = leases.iter().filter(|lease| lease.owner.container_id == container_id.trim());
    let are_current = held.all(|lease| matches!(lease::is_current(dir, lease), Ok(true)));
    are_current.then_some((bucket, leases))
}

/// Reads every lease. An unreadable file does not prevent reading the others: the first such error is
/// returned beside them. Removes torn leases: the caller holds the lock, so no torn file is still
/// being written.
fn scan(dir: &Path) -> Result<(Vec<Lease>, Option<Error>)> {
    let (mut leases, mut unread) = (vec![], None);
    for ip in addresses(dir)? {
        match lease::read(dir, ip) {
            Ok(Some(Content::Owned(owner))) => leases.push(Lease { ip, owner }),
            Ok(Some(Content::Torn)) => {
                let _ = fs::remove_file(lease::path(dir, ip)); // it stays taken, and the next scan tries again
            }
            Ok(Some(Content::Foreign) | None) => (),
            Err(e) => unread = unread.or(Some(e)),
        }
    }
    Ok((leases, unread))
}
