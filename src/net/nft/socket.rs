//! The nf_tables socket: transactions, lookups and dumps. Each module of objects adds its own
//! operations to it.
//!
//! The queue of transactions: processes of ours that change one ruleset take turns.
//!
//! The kernel refuses a transaction that was planned before another one was committed. Of twenty
//! plugins that plan at once, one commits and the others plan again. So a plugin locks a file
//! before it plans, and unlocks it when it has committed.
//!
//! The lock only saves work. Programs that do not take it (nft, firewalld) may commit at any time,
//! and [`super::Nft::again`] then plans again. So waiting for a turn returns no error: a plugin that
//! cannot open the file, or has waited for a second, commits without the lock.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::batch::{Batch, Serialized};
use super::uapi::{NFT_MSG_GETGEN, NFTA_GEN_ID};
use super::wire::Attributes;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Lock, Mode, Range};
use crate::net::netlink::attr::Attrs;
use crate::net::netlink::transport::{Message, Refusal, Transport};
use crate::net::netlink::{never_consistent, refused};
use crate::net::nfnetlink::{self, Header, NFNL_SUBSYS_NFTABLES, NLM_F_DUMP, NfFamily};
use crate::plain_file;

/// How often a dump is retried that another transaction interrupted.
const DUMP_TRIES: usize = 20;
/// How many sockets of [`Nft::dump_has`] stay open.
const PAGES: usize = 16;
/// How often a transaction is planned again after another one was committed in between. Each time
/// another process has made progress.
const TRIES: usize = 1000;
/// The errors of a kernel without nf_tables.
const ABSENT: [Errno; 5] =
    [Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL, Errno::EOPNOTSUPP, Errno::EBADMSG];

/// An nf_tables socket of one namespace, the one it was opened in.
pub struct Nft {
    transport: Transport,
    queue: Queue,
    /// The names of tables that were found sound, while answers are kept.
    sound: RefCell<Option<BTreeSet<String>>>,
    /// The sockets of [`Nft::dump_has`], the newest first.
    pages: RefCell<Vec<Transport>>,
}

impl Nft {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Nft> {
        let transport = open_transport()?;
        let queue = Queue::of(transport.netns_cookie());
        Ok(Nft::with(transport, queue))
    }

    /// Opens a socket if the kernel has nf_tables; otherwise no objects of ours can exist.
    pub fn open_if_there() -> Result<Option<Nft>> {
        match Nft::open().and_then(|nft| nft.generation().map(|_| nft)) {
            // The kernel lacks netfilter sockets, or has them without nf_tables. After any other
            // error, too many open files for example, objects of ours may exist.
            Err(error) if ABSENT.iter().any(|errno| error.is_errno(*errno)) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Talks to a peer other than the kernel, see [`Transport::over`].
    pub fn over(socket: OwnedFd) -> Nft {
        Nft::with(Transport::over(socket), Queue::none())
    }

    fn with(transport: Transport, queue: Queue) -> Nft {
        Nft { transport, queue, sound: RefCell::default(), pages: RefCell::default() }
    }

    /// From now on the kernel answers each question once, until [`Nft::forget`].
    pub fn remember(&self) {
        self.transport.remember();
        *self.sound.borrow_mut() = Some(BTreeSet::new());
    }

    /// From now on the kernel answers each question.
    pub fn forget(&self) {
        self.transport.forget();
        *self.sound.borrow_mut() = None;
    }

    /// The damage of a table, which `find` returns. While answers are kept, a sound table is looked
    /// at once.
    pub(super) fn damage_of(
        &self,
        table: &str,
        find: impl FnOnce() -> Result<Option<String>>,
    ) -> Result<Option<String>> {
        if self.sound.borrow().as_ref().is_some_and(|sound| sound.contains(table)) {
            return Ok(None);
        }
        let damage = find()?;
        if let (None, Some(sound)) = (&damage, &mut *self.sound.borrow_mut()) {
            sound.insert(table.to_owned());
        }
        Ok(damage)
    }

    /// The generation of the ruleset, which every transaction changes; fails if the kernel lacks
    /// nf_tables.
    pub fn generation(&self) -> Result<u32> {
        let what = format_args!("read the generation of nf_tables");
        let query = Query::new(NFT_MSG_GETGEN, NfFamily::Unspec, what, |_| ());
        let found = self.get(&query, |attrs| attrs.be32(NFTA_GEN_ID))?;
        found.ok_or_else(|| Error::kernel(what, Errno::EBADMSG))
    }

    /// Applies a batch as a whole or not at all; `what` names it in the error.
    pub fn commit(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.commit_with(batch, what, |_| ())
    }

    /// Whether the kernel would apply a batch. It validates and rolls back a batch without an end,
    /// as for `nft --check`: nothing changes, and monitors of the ruleset are not notified.
    pub fn rehearse(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.send_batch(batch, Serialized::without_end, what, |_| ())
    }

    /// Plans and commits in one turn of the queue, and retries if another transaction was committed
    /// in between. The kernel checks the generation before anything else, so any other refusal is
    /// final.
    pub fn again<T>(&self, what: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let _turn = self.queue.turn();
        for _ in 0..TRIES {
            match attempt() {
                Err(e) if e.is_errno(Errno::ERESTART) || e.is_errno(Errno::EINTR) => (),
                done => return done,
            }
        }
        Err(Error::new(Code::TRY_AGAIN, what)
            .with_details(format_args!("the rules changed during each of {TRIES} tries")))
    }

    /// Like [`Nft::commit`]; the kernel's echoes go to `each`.
    pub(super) fn commit_with(
        &self,
        batch: &Batch,
        what: impl fmt::Display,
        each: impl FnMut(Message<'_>),
    ) -> Result<()> {
        let _turn = if batch.is_empty() { None } else { self.queue.turn() };
        self.send_batch(batch, |serialized| serialized, what, each)
    }

    fn send_batch(
        &self,
        batch: &Batch,
        as_sent: impl FnOnce(Serialized) -> Serialized,
        what: impl fmt::Display,
        each: impl FnMut(Message<'_>),
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let first = self.transport.next_seqs(batch.messages());
        let serialized = as_sent(batch.serialize(first));
        self.transport.send(&serialized.bytes).map_err(|e| Error::kernel(&what, e))?;
        let numbers = first..first.wrapping_add(batch.messages());
        self.transport
            .batch_acknowledged(numbers, serialized.last, each)
            .map_err(|refusal| refused(&what, refusal))
    }

    /// Requests one object; None if the kernel reports that it does not exist.
    pub(super) fn get<T>(
        &self,
        query: &Query<'_>,
        read: impl Fn(Attrs<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut found = None;
        let answered =
            self.transport.ask(query.to_bytes(0, 0), &mut |reply| found = read(content(&reply)));
        Ok(query.unless_absent(answered)?.and(found))
    }

    /// Dumps a list that is consistent.
    pub(super) fn dump<T>(
        &self,
        query: &Query<'_>,
        read: impl Fn(Attrs<'_>, &mut Vec<T>),
    ) -> Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            let mut list = vec![];
            let question = query.to_bytes(NLM_F_DUMP, 0);
            let dumped =
                self.transport.ask(question, &mut |reply| read(content(&reply), &mut list));
            match query.unless_absent(dumped)? {
                Some(true) => return Ok(list),
                Some(false) => (),
                None => return Ok(vec![]),
            }
        }
        Err(never_consistent(query.what, DUMP_TRIES))
    }

    /// Whether a list has an entry that `is_one` accepts. It reads no more pages than necessary,
    /// and the rest stays in the socket, so the list has a socket of its own. That socket stays
    /// open: close(2) on any netfilter socket waits until the kernel has freed the objects that any
    /// process has deleted. While answers are kept, it reads the whole list once.
    pub(super) fn dump_has(
        &self,
        query: &Query<'_>,
        is_one: impl Fn(Attrs<'_>) -> bool,
    ) -> Result<bool> {
        if self.sound.borrow().is_some() {
            let found = self.dump(query, |attrs, found| {
                if found.is_empty() && is_one(attrs) {
                    found.push(());
                }
            });
            return Ok(!found?.is_empty());
        }
        let mut pages = self.pages.borrow_mut();
        pages.truncate(PAGES - 1);
        pages.insert(0, open_transport()?);
        let page = &pages[0];
        let seq = page.next_seq();
        let sent = page.send(&query.to_bytes(NLM_F_DUMP, seq));
        sent.map_err(|e| Error::kernel(query.what, e))?;
        let mut found = false;
        let looked = page.dump_until(seq, |reply| {
            found |= is_one(content(&reply));
            found
        });
        Ok(query.unless_absent(looked)?.is_some() && found)
    }
}

pub(super) fn open_transport() -> Result<Transport> {
    Transport::open(NETLINK_NETFILTER).map_err(|e| Error::kernel("open a netfilter socket", e))
}

/// A request for objects.
pub(super) struct Query<'a> {
    header: Header,
    /// What it is for, in errors.
    what: fmt::Arguments<'a>,
    body: Attributes,
}

impl<'a> Query<'a> {
    /// A query of this type (NFT_MSG_GET*). `name` writes the attributes that name the objects.
    pub(super) fn new(
        kind: u16,
        family: NfFamily,
        what: fmt::Arguments<'a>,
        name: impl FnOnce(&mut Attributes),
    ) -> Query<'a> {
        let mut body = Attributes::default();
        name(&mut body);
        Query { header: Header::new(NFNL_SUBSYS_NFTABLES, kind, family), what, body }
    }

    /// The message with these flags and this number.
    fn to_bytes(&self, flags: u16, seq: u32) -> Vec<u8> {
        let mut bytes = vec![];
        self.header.with(flags).append(seq, self.body.bytes(), &mut bytes);
        bytes
    }

    /// The answer; None if the kernel reports that the objects do not exist.
    fn unless_absent<T>(&self, answered: Result<T, Refusal>) -> Result<Option<T>> {
        match answered.map(Some) {
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(None),
            answered => answered.map_err(|refusal| refused(self.what, refusal)),
        }
    }
}

/// The attributes of an answer.
fn content<'a>(reply: &Message<'a>) -> Attrs<'a> {
    Attrs::after(reply.payload, nfnetlink::HEADER)
}

/// The lock file, which has a byte for each namespace.
const LOCK: &str = "/run/cni/nftables/lock";
/// How long to wait for a turn. A turn takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The place of one socket in the queue of its namespace.
#[derive(Debug)]
pub struct Queue {
    /// The byte of the namespace; None if the socket does not queue.
    byte: Cell<Option<Range>>,
    has_turn: Cell<bool>,
}

/// A turn, which ends when this value is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    queue: &'a Queue,
    /// The file that has the lock.
    _locked: Option<File>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.has_turn.set(false);
    }
}

impl Queue {
    /// The queue of the namespace with this cookie. Before Linux 5.14 namespaces have none, and
    /// share one queue.
    pub fn of(netns_cookie: Option<u64>) -> Queue {
        let byte = Cell::new(Some(Range::byte(netns_cookie.unwrap_or_default())));
        Queue { byte, has_turn: Cell::new(false) }
    }

    /// For a socket that does not queue.
    pub fn none() -> Queue {
        Queue { byte: Cell::new(None), has_turn: Cell::new(false) }
    }

    /// Waits for a turn, unless the socket has it already.
    pub fn turn(&self) -> Option<Turn<'_>> {
        let byte = self.byte.get().filter(|_| !self.has_turn.get())?;
        let lock = || {
            let file = plain_file::open_or_create_private(Path::new(LOCK))?;
            file_lock::take_within(file, Lock::Bytes(byte, Mode::Exclusive), PATIENCE)
        };
        let locked = lock().ok().flatten();
        if locked.is_none() {
            self.byte.set(None); // this socket does not wait for a stopped process again
        }
        self.has_turn.set(true);
        Some(Turn { queue: self, _locked: locked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_others_always_forestall_is_told_to_try_again() {
        let forestalled = || Err::<(), _>(Error::kernel("commit", Errno::ERESTART));
        let error = Nft::open().unwrap().again("delete elements", forestalled).unwrap_err();
        let told = "delete elements; the rules changed during each of 1000 tries";
        assert_eq!((error.code, error.to_string().as_str()), (Code::TRY_AGAIN, told));
    }
}
