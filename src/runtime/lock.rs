//! The lock between operations: those on one container wait for each other, as the specification
//! demands of a runtime, and GC waits for all of them.
//!
//! Of two concurrent ADDs of one attachment one fails, and its undo would delete what the other has
//! made; a GC would treat an address that an ADD has just allocated as stale. libcni leaves the
//! locking to its caller, and a person who calls it does not lock.
//!
//! Each cache has one file, `lock`. A container has one byte of it, by the hash of its id; its
//! namespace has another, since two ids may mean one namespace; and GC takes all bytes. If
//! containers come and go all the time there is no moment without one, so GC takes the first byte
//! before the others, and a new operation waits for that byte first. No file is created or removed
//! for a container, and what readers of the cache list does not change. Other runtimes do not use
//! the lock: they know only their own containers.
//!
//! A plugin may call a runtime for its own container, as Multus does: the places that an ancestor
//! holds are in its environment, and it does not wait for them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use super::cache::{Cache, create_dir};
use super::parameters::Parameters;
use crate::cni::attachment::hash8;
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result, warn};
use crate::file_lock::{self, Lock, Mode, Patience, Range};
use crate::plain_file;

/// The length of a range up to the largest offset.
const TO_THE_END: i64 = 0;

/// The bytes of namespaces follow those of containers. A holder of both has taken the container's
/// first, so no two operations deadlock.
const NAMESPACES: i64 = 1 << 61;

/// The variable with the places that this process's ancestors hold. Its name does not begin with
/// `CNI_`, because those names are the protocol's.
const HELD: &str = "HELD_BY_CNI_MULTI";

/// The lock, held until it is dropped.
pub(super) struct Held {
    /// The environment for programs that run under the lock.
    pub env: Environment,
    _files: Vec<File>,
}

/// Bytes of the file, and what they stand for.
struct Place {
    range: Range,
    what: String,
}

impl Held {
    /// Holds no lock, so it keeps no operation waiting.
    pub fn nothing(env: &Environment) -> Held {
        Held { env: env.clone(), _files: vec![] }
    }
}

impl Cache {
    /// Waits until no operation is running on this container or in this namespace, or with None on
    /// any. Code 11 on timeout.
    ///
    /// No lock is held if there can be none: a directory that is not writable must not prevent DEL.
    pub(super) fn lock(
        &self,
        patience: Patience,
        at: Option<&Parameters>,
        env: &Environment,
    ) -> Result<Held> {
        let path = self.dir().join("lock");
        let open = || {
            create_dir(self.dir())?;
            let file = plain_file::open_or_create(&path)?;
            let metadata = file.metadata()?;
            Ok::<_, io::Error>((file, metadata))
        };
        let Ok((file, metadata)) = open() else { return Ok(Held::nothing(env)) };
        let ancestors = Ancestors {
            places: env.get(HELD),
            cache: format!(" {}:{}:", metadata.dev(), metadata.ino()),
        };
        hold(file, &ancestors, at, patience, env)
            .map_err(|error| file_lock::with_fuser_advice(error, &path))
    }
}

/// Takes all places of the operation with the open lock file.
fn hold(
    file: File,
    ancestors: &Ancestors,
    at: Option<&Parameters>,
    patience: Patience,
    env: &Environment,
) -> Result<Held> {
    let gc = gc();
    // An operation that an ancestor waits for must not wait for a GC that waits for the ancestor.
    // Operations that wait for GC do not keep each other waiting.
    let has_ancestor = ancestors.places.contains(&ancestors.cache);
    if at.is_some() && !has_ancestor && !gc.range.is_shareable(&file).unwrap_or(true) {
        gc.wait(&file, Mode::Shared, patience.limit())?;
    }
    let mut held = ancestors.places.clone();
    let mut files = vec![];
    for place in places(at) {
        // No lock support in the file system is not an error: continue unlocked.
        let is_taken = place.range.try_take(&file, Mode::Exclusive).unwrap_or(true);
        // An ancestor will hold its place for as long as this takes.
        if !is_taken && !ancestors.has(&place) && !ancestors.has(&gc) {
            files.push(place.wait(&file, Mode::Exclusive, patience.limit())?);
        }
        held += &ancestors.entry(&place);
    }
    files.push(file);
    Ok(Held { env: env.with(HELD, held), _files: files })
}

/// The places that this process's ancestors hold.
struct Ancestors {
    /// Those of every cache, as in the environment.
    places: String,
    /// How an entry of this cache begins.
    cache: String,
}

impl Ancestors {
    fn has(&self, place: &Place) -> bool {
        self.places.contains(&self.entry(place))
    }

    fn entry(&self, place: &Place) -> String {
        format!("{}{} ", self.cache, place.range.start)
    }
}

impl Place {
    /// Waits for the holder, and takes the place with a file of its own: an operation that gives up
    /// releases with its file what that has.
    fn wait(&self, file: &File, mode: Mode, patience: Duration) -> Result<File> {
        warn("waiting for another operation on the same container, or gc");
        file_lock::take_beside(file, Lock::Bytes(self.range, mode), patience)
            .map_err(|e| Error::io(format_args!("wait for {}", self.what), &e))?
            .ok_or_else(|| {
                let msg = format!("{} has not ended for {patience:?}", self.what);
                Error::new(Code::TRY_AGAIN, msg)
            })
    }
}

/// The place that only GC takes, from the time when it waits for the others.
fn gc() -> Place {
    Place { range: Range::byte(0), what: "gc".into() }
}

/// The places that an operation takes, in this order. No operation runs in a namespace that is
/// gone.
fn places(at: Option<&Parameters>) -> Vec<Place> {
    let Some(at) = at else {
        let range = Range { start: 1, length: TO_THE_END };
        return vec![gc(), Place { range, what: "an operation on a container".into() }];
    };
    let id = at.key.container_id.as_str();
    let what = format!("another operation on container {id:?}, or gc,");
    let mut places = vec![Place { range: byte_of(id), what }];
    if let Ok(metadata) = fs::metadata(&at.netns) {
        let mut range = byte_of(&format!("{}:{}", metadata.dev(), metadata.ino()));
        range.start |= NAMESPACES;
        let what = format!("another operation in namespace {:?}, or gc,", at.netns);
        places.push(Place { range, what });
    }
    places
}

/// The byte of a name; the first byte is reserved for GC.
fn byte_of(name: &str) -> Range {
    Range { start: i64::from_be_bytes(hash8(name)) & (NAMESPACES - 1) | 1, length: 1 }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::cni::attachment::Key;
    use crate::cni::json::Value;
    use crate::deadline::Deadline;
    use crate::scratch::Scratch;

    const LONG: Duration = Duration::from_secs(30);

    fn within(of_one: Duration) -> Patience {
        Patience { of_one, deadline: Deadline::default() }
    }

    /// `ID NETNS`.
    fn parameters(text: &str) -> Parameters {
        let (id, netns) = text.split_once(' ').unwrap();
        let key = Key::parse("n", id, "eth0").unwrap();
        Parameters {
            key,
            netns: netns.into(),
            args: vec![],
            capability_args: Value::Object(vec![]),
        }
    }

    /// Whether a holder of `held` keeps out a process that wants `wanted`, for as long and no
    /// longer.
    fn excludes(held: Option<&str>, wanted: Option<&str>) -> bool {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let first = held.map(parameters);
        let env = Environment::default();
        let wanted = wanted.map(parameters);
        let first = cache.lock(within(LONG), first.as_ref(), &env).unwrap();
        let lock = || cache.lock(within(Duration::ZERO), wanted.as_ref(), &env);
        let excluded = lock().is_err();
        drop(first);
        drop(lock().unwrap());
        excluded
    }

    #[test]
    fn a_container_has_a_lock_of_its_own_and_gc_has_all() {
        assert!(excludes(Some("a /x"), Some("a /y")));
        assert!(!excludes(Some("a /x"), Some("b /x")));
        assert!(
            excludes(Some("a /x"), None) && excludes(None, Some("b /x")) && excludes(None, None)
        );
    }

    #[test]
    fn a_namespace_has_a_lock_of_its_own_whatever_it_is_called() {
        let own = format!("b /proc/{}/ns/net", std::process::id());
        assert!(excludes(Some("a /proc/self/ns/net"), Some(&own)));
        assert!(!excludes(Some("a /proc/self/ns/net"), Some("b /proc/self/ns/mnt")));
    }

    #[test]
    fn who_waits_too_long_is_told_for_whom() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let at = parameters("a /proc/self/ns/net");
        let env = Environment::default();
        let _held = cache.lock(within(LONG), Some(&at), &env).unwrap();
        let told = |at: Option<&Parameters>| {
            let error = cache.lock(within(Duration::from_millis(1)), at, &env).err().unwrap();
            assert_eq!(error.code, Code::TRY_AGAIN);
            error.to_string().replace(dir.path().to_str().unwrap(), "DIR")
        };
        let fuser = "has not ended for 1ms; `fuser -v DIR/lock` names its owner";
        assert_eq!(
            told(Some(&at)),
            format!("another operation on container \"a\", or gc, {fuser}")
        );
        let other = parameters("b /proc/self/ns/net");
        let namespace = "another operation in namespace \"/proc/self/ns/net\", or gc,";
        assert_eq!(told(Some(&other)), format!("{namespace} {fuser}"));
        assert_eq!(told(None), format!("an operation on a container {fuser}"));
    }

    #[test]
    fn who_comes_while_gc_waits_lets_it_go_first() {
        let dir = Scratch::new();
        let env = Environment::default();
        let cache = Cache::new(dir.path());
        let lock = |at: &str, env: &Environment| {
            cache.lock(within(Duration::ZERO), Some(&parameters(at)), env)
        };
        let first = cache.lock(within(LONG), Some(&parameters("a /x")), &env).unwrap();
        thread::scope(|scope| {
            let gc = scope.spawn(|| cache.lock(within(LONG), None, &env));
            while lock("b /y", &env).is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
            assert!(lock("b /y", &first.env).is_ok(), "an ancestor waits for it");
            drop(first);
            let gc = gc.join().unwrap().unwrap();
            assert!(lock("b /y", &env).is_err() && lock("b /y", &gc.env).is_ok());
        });
        assert!(lock("b /y", &env).is_ok());
    }

    #[test]
    fn what_an_ancestor_holds_is_not_waited_for() {
        let dir = Scratch::new();
        let other = Scratch::new();
        let cache = Cache::new(dir.path());
        let env = Environment::default();
        let lock = |at: &str, env: &Environment| {
            cache.lock(within(Duration::ZERO), Some(&parameters(at)), env).map(|held| held.env)
        };
        let first = cache.lock(within(LONG), Some(&parameters("a /x")), &env).unwrap();
        let second = lock("a /x", &first.env).unwrap();
        assert!(lock("a /x", &second).is_ok());
        let _stranger = cache.lock(within(LONG), Some(&parameters("b /x")), &env).unwrap();
        assert!(lock("b /x", &second).is_err() && lock("a /x", &env).is_err());
        let elsewhere = Cache::new(other.path());
        let _held = elsewhere.lock(within(LONG), Some(&parameters("a /x")), &env).unwrap();
        let wanted = elsewhere.lock(within(Duration::ZERO), Some(&parameters("a /x")), &first.env);
        assert!(wanted.is_err(), "it is another cache's");
        drop((first, _stranger));
        let gc = cache.lock(within(LONG), None, &env).unwrap();
        assert!(lock("a /x", &gc.env).is_ok() && lock("a /x", &env).is_err());
    }

    #[test]
    fn lock_that_cannot_exist_is_skipped_without_wait_or_follow() {
        let dir = Scratch::new();
        dir.write("file", "");
        let held = |cache: &Cache| {
            cache.lock(within(LONG), None, &Environment::default()).unwrap()._files.len() == 1
        };
        assert!(!held(&Cache::new(dir.path().join("file"))));
        let cache = Cache::new(dir.path());
        let lock = dir.path().join("lock");
        nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!held(&cache));
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(dir.path().join("target"), &lock).unwrap();
        assert!(!held(&cache) && !dir.path().join("target").exists());
        fs::remove_file(&lock).unwrap();
        assert!(held(&cache));
    }
}
