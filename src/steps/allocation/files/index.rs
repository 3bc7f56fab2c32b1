//! The index of a network's leases by container, so that ADD and DEL need not read every lease.
//!
//! The leases are the truth, and the reference plugin, which may run on the same directory before
//! an upgrade and after a rollback, does not know the index. So a stale index must be detectable
//! without the reference's help: each of our own operations ends by setting the modification time
//! of the network's directory and of the index's directory to the same value, one that no clock
//! returns (the *seal*). A process that creates or removes a file in either directory moves that
//! directory's time to the present. Two equal seals thus mean that no lease was created or removed
//! since. Overwriting a file in place does not break the seal: the reference does not do that, and
//! a container's entries in the index are compared with the container's files. Anything else (the
//! reference ran, we crashed, a directory was removed or restored from a backup) means that the
//! index is rebuilt from the leases.
//!
//! The seal's seconds identify the boot: nothing here is synced, so after a power loss the index's
//! files may be older than its directory claims. The seal's nanoseconds distinguish the states of
//! one boot.
//!
//! The index lives in `<dataDir>/.cni-multi/<network>`, because the reference reads every file in
//! the network's directory; no network's name begins with a dot. Leases are spread over 256 files
//! by a hash of the container's id: a lookup reads a 256th of the leases, and a rebuild is 256
//! writes however many leases there are.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;

use super::lock::boot_id;
use crate::cni::attachment::hash8;
use crate::plain_file;
use crate::steps::allocation::{Lease, Owner};

/// The size limit of a file of the index; with a million leases a file is a tenth of this.
const LIMIT: usize = 1 << 22;

/// The index of one network.
pub struct Index {
    dir: PathBuf,
    seal_of_boot: OnceCell<u64>,
}

/// The file of the index that holds a container's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u8);

impl Bucket {
    /// The bucket of a container.
    pub fn of(container_id: &str) -> Bucket {
        Bucket(hash8(container_id)[0])
    }
}

impl Index {
    /// The index of `network`.
    pub fn new(data_dir: &Path, network: &str) -> Index {
        Index { dir: data_dir.join(".cni-multi").join(network), seal_of_boot: OnceCell::new() }
    }

    /// A name for a file that is being written. It is here because the reference would take a draft
    /// that a crash leaves in the network's directory for a lease.
    pub fn draft(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether the index has exactly the leases of the network's directory.
    pub fn is_sealed(&self, network_dir: &Path) -> bool {
        let (Ok(theirs), Ok(ours)) = (fs::metadata(network_dir), fs::symlink_metadata(&self.dir))
        else {
            return false;
        };
        let modified = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec());
        let is_of_boot = u64::try_from(ours.mtime()) == Ok(self.seal_of_boot());
        ours.is_dir() && modified(&ours) == modified(&theirs) && is_of_boot
    }

    /// Declares that the index has exactly the leases of the network's directory.
    pub fn seal(&self, network_dir: &Path) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let state = now.map_or(0, |now| now.subsec_nanos());
        let seal = TimeSpec::from_duration(Duration::new(self.seal_of_boot(), state));
        set_modified(network_dir, &seal)?;
        set_modified(&self.dir, &seal)
    }

    /// The leases in a bucket, including those of other containers. None where the file cannot be
    /// understood.
    pub fn read(&self, bucket: Bucket) -> Option<Vec<Lease>> {
        match plain_file::read(&self.path(bucket), LIMIT) {
            Ok(bytes) => std::str::from_utf8(&bytes).ok()?.lines().map(parse).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(vec![]),
            Err(_) => None,
        }
    }

    /// Replaces a bucket. Not atomic: the writer has already broken the seal by changing a lease.
    ///
    /// An empty bucket has no file, so that only the reference's own files are left after the last
    /// DEL.
    pub fn write<'a>(
        &self,
        bucket: Bucket,
        leases: impl IntoIterator<Item = &'a Lease>,
    ) -> io::Result<()> {
        let text: String = leases.into_iter().map(to_line).collect();
        if text.is_empty() {
            return plain_file::remove(&self.path(bucket));
        }
        plain_file::replace(&self.path(bucket), text.as_bytes())
    }

    /// Creates the directory if it is missing.
    pub fn prepare(&self) -> io::Result<()> {
        if let Some(parent) = self.dir.parent() {
            create_dir(parent)?;
        }
        create_dir(&self.dir)
    }

    /// Rebuilds the whole index.
    pub fn rebuild(&self, leases: &[Lease]) -> io::Result<()> {
        self.prepare()?;
        fs::remove_dir_all(&self.dir)?;
        self.prepare()?;
        let mut buckets: BTreeMap<Bucket, Vec<&Lease>> = BTreeMap::new();
        for lease in leases {
            let bucket = Bucket::of(&lease.owner.container_id);
            buckets.entry(bucket).or_default().push(lease);
        }
        buckets.into_iter().try_for_each(|(bucket, leases)| self.write(bucket, leases))
    }

    /// The seal's seconds: an even number (some file systems store time in steps of two seconds)
    /// between 1973 and 2001. Neither a correct clock nor one that starts at 1970 returns it.
    fn seal_of_boot(&self) -> u64 {
        *self.seal_of_boot.get_or_init(|| {
            let hash = u64::from_le_bytes(hash8(&boot_id()));
            100_000_000 + 2 * (hash % 450_000_000)
        })
    }

    fn path(&self, bucket: Bucket) -> PathBuf {
        self.dir.join(format!("{:02x}", bucket.0))
    }
}

fn set_modified(dir: &Path, time: &TimeSpec) -> io::Result<()> {
    utimensat(AT_FDCWD, dir, &TimeSpec::UTIME_OMIT, time, UtimensatFlags::FollowSymlink)?;
    Ok(())
}

/// Creates a directory. Refuses a symbolic link in its place, since files of the index are removed
/// without further checks.
fn create_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e)
            if e.kind() == io::ErrorKind::AlreadyExists && fs::symlink_metadata(path)?.is_dir() =>
        {
            Ok(())
        }
        other => other,
    }
}

fn parse(line: &str) -> Option<Lease> {
    let mut words = line.split(' ');
    let ip = words.next()?.parse().ok()?;
    let container_id = words.next()?.to_owned();
    let (ifname, network) = (words.next().map(str::to_owned), words.next().map(str::to_owned));
    let owner = Owner { container_id, ifname, network };
    words.next().is_none().then_some(Lease { ip, owner })
}

fn to_line(lease: &Lease) -> String {
    let Lease { ip, owner: Owner { container_id, ifname, network } } = lease;
    let mut line = format!("{ip} {container_id}");
    for word in ifname.iter().chain(network) {
        line.push(' ');
        line.push_str(word);
    }
    line + "\n"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn lease(ip: &str, id: &str, ifname: Option<&str>) -> Lease {
        let ifname = ifname.map(Into::into);
        let owner = Owner { container_id: id.into(), ifname, network: None };
        Lease { ip: ip.parse().unwrap(), owner }
    }

    fn of_realm(ip: &str, id: &str) -> Lease {
        let of_network = lease(ip, id, Some("eth0"));
        let owner = Owner { network: Some("net".into()), ..of_network.owner };
        Lease { owner, ..of_network }
    }

    fn sealed(scratch: &Scratch, leases: &[Lease]) -> (PathBuf, Index) {
        let dir = scratch.path().join("net");
        fs::create_dir(&dir).unwrap();
        let index = Index::new(scratch.path(), "net");
        index.rebuild(leases).unwrap();
        index.seal(&dir).unwrap();
        assert!(index.is_sealed(&dir));
        (dir, index)
    }

    #[test]
    fn what_was_written_is_read() {
        let scratch = Scratch::new();
        let all = [
            lease("10.1.2.3", "a", Some("eth0")),
            lease("fd00::3", "a", Some("eth0")),
            lease("10.1.2.4", "old", None),
            of_realm("10.1.2.5", "shared"),
        ];
        let (_, index) = sealed(&scratch, &all);
        assert_eq!(index.read(Bucket::of("a")).unwrap(), all[..2]);
        assert_eq!(index.read(Bucket::of("old")).unwrap(), all[2..3]);
        assert_eq!(index.read(Bucket::of("shared")).unwrap(), all[3..]);
        assert_eq!(index.read(Bucket::of("nobody")).unwrap(), []);
        index.write(Bucket::of("a"), &all[1..2]).unwrap();
        assert_eq!(index.read(Bucket::of("a")).unwrap(), all[1..2]);
    }

    #[test]
    fn an_empty_bucket_has_no_file() {
        let scratch = Scratch::new();
        let (_, index) = sealed(&scratch, &[lease("10.1.2.3", "a", None)]);
        for _ in 0..2 {
            index.write(Bucket::of("a"), []).unwrap();
            assert_eq!(fs::read_dir(&index.dir).unwrap().count(), 0);
            assert_eq!(index.read(Bucket::of("a")).unwrap(), []);
        }
    }

    #[test]
    fn a_file_made_or_removed_by_others_breaks_the_seal() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 7] = [
            ("lease made", |root| fs::write(root.join("net/10.1.2.9"), "x").unwrap()),
            ("lease gone", |root| fs::remove_file(root.join("net/10.1.2.3")).unwrap()),
            ("network's directory made anew", |root| {
                fs::remove_dir_all(root.join("net")).unwrap();
                fs::create_dir(root.join("net")).unwrap();
            }),
            ("bucket gone", |root| {
                let bucket =
                    fs::read_dir(root.join(".cni-multi/net")).unwrap().next().unwrap().unwrap();
                fs::remove_file(bucket.path()).unwrap();
            }),
            ("index gone", |root| fs::remove_dir_all(root.join(".cni-multi/net")).unwrap()),
            ("all gone", |root| fs::remove_dir_all(root.join(".cni-multi")).unwrap()),
            ("draft left", |root| fs::write(root.join(".cni-multi/net/lease"), "x").unwrap()),
        ];
        for (what, change) in changes {
            let scratch = Scratch::new();
            let (dir, index) = sealed(&scratch, &[lease("10.1.2.3", "a", None)]);
            fs::write(dir.join("10.1.2.3"), "a").unwrap();
            assert!(!index.is_sealed(&dir));
            index.seal(&dir).unwrap();
            change(scratch.path());
            assert!(!index.is_sealed(&dir), "{what}");
        }
    }

    #[test]
    fn a_directory_restored_with_an_old_seal_does_not_fit_the_index() {
        let scratch = Scratch::new();
        let (dir, index) = sealed(&scratch, &[]);
        let old = fs::metadata(&dir).unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        index.seal(&dir).unwrap();
        assert!(index.is_sealed(&dir));
        fs::File::open(&dir).unwrap().set_modified(old).unwrap();
        assert!(!index.is_sealed(&dir));
    }

    #[test]
    fn a_seal_of_another_boot_does_not_count() {
        let scratch = Scratch::new();
        let (dir, index) = sealed(&scratch, &[]);
        let other = UNIX_EPOCH + Duration::from_secs(index.seal_of_boot() + 2);
        for dir in [&dir, &index.dir] {
            fs::File::open(dir).unwrap().set_modified(other).unwrap();
        }
        assert!(!index.is_sealed(&dir));
    }

    #[test]
    fn a_bucket_that_makes_no_sense_is_not_read() {
        let scratch = Scratch::new();
        let (_, index) = sealed(&scratch, &[]);
        for bad in ["x", "10.1.2.3", "10.1.2.3 a b c d", "nonsense a b"] {
            fs::write(index.path(Bucket::of("a")), bad).unwrap();
            assert_eq!(index.read(Bucket::of("a")), None, "{bad:?}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let scratch = Scratch::new();
        let elsewhere = scratch.path().join("elsewhere");
        fs::create_dir_all(elsewhere.join("net")).unwrap();
        fs::write(elsewhere.join("net/precious"), "x").unwrap();
        std::os::unix::fs::symlink(&elsewhere, scratch.path().join(".cni-multi")).unwrap();
        assert!(Index::new(scratch.path(), "net").rebuild(&[]).is_err());
        assert!(elsewhere.join("net/precious").exists());
    }
}
