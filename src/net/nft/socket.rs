//! The socket of nf_tables: transactions, questions and lists. Each module of objects adds its own
//! operations to it.

use std::fmt;
use std::os::fd::OwnedFd;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::batch::{Batch, Serialized};
use super::uapi::{NFT_MSG_GETGEN, NFTA_GEN_ID};
use super::wire::Attributes;
use crate::error::{Code, Error, Result};
use crate::net::netlink::attr::Attrs;
use crate::net::netlink::refused;
use crate::net::netlink::transport::{Message, Transport};
use crate::net::nfnetlink::{self, Family, Header, NFNL_SUBSYS_NFTABLES, NLM_F_DUMP};

/// How often a dump is begun again that another transaction interrupted.
const DUMP_TRIES: usize = 20;
/// How often a transaction is planned again because another came between. Each time another process
/// has got on.
const TRIES: usize = 1000;

/// A socket to nf_tables of one namespace, the one it was opened in.
pub struct Nft {
    transport: Transport,
}

impl Nft {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Nft> {
        let transport = Transport::open(NETLINK_NETFILTER)
            .map_err(|e| Error::kernel("open a netfilter socket", e))?;
        Ok(Nft { transport })
    }

    /// The same where the kernel has nf_tables; elsewhere nothing of ours can be there.
    pub fn open_if_there() -> Result<Option<Nft>> {
        match Nft::open().and_then(|nft| nft.generation().map(|_| nft)) {
            Err(error) if is_without_nf_tables(&error) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Asks somebody else than the kernel, see [`Transport::over`].
    pub fn over(socket: OwnedFd) -> Nft {
        Nft { transport: Transport::over(socket) }
    }

    /// The number of the rule set, which every transaction changes; fails where the kernel has no
    /// nf_tables.
    pub fn generation(&self) -> Result<u32> {
        let what = "read the generation of nf_tables";
        let found = self.get(
            NFT_MSG_GETGEN,
            Family::Unspec,
            what,
            |_| (),
            |attrs| attrs.be32(NFTA_GEN_ID),
        )?;
        found.ok_or_else(|| Error::kernel(what, Errno::EBADMSG))
    }

    /// Does all of a batch or nothing; `what` names it in the error.
    pub fn commit(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.commit_with(batch, what, |_| ())
    }

    /// Whether the kernel would do a batch. One that has no end it looks at and takes back, as for
    /// `nft --check`: nothing changes, and who watches the ruleset is told nothing.
    pub fn rehearse(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.send_batch(batch, Serialized::without_end, what, |_| ())
    }

    /// Plans and commits until no other transaction came between. The kernel looks at the generation
    /// before anything else, so whatever else it refuses is refused for good.
    pub fn again<T>(&self, what: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            match attempt() {
                Err(e) if e.is_errno(Errno::ERESTART) || e.is_errno(Errno::EINTR) => (),
                done => return done,
            }
        }
        Err(Error::new(Code::TRY_AGAIN, what)
            .with_details(format_args!("the rules changed during each of {TRIES} tries")))
    }

    /// The same as [`Nft::commit`]; what the kernel tells back goes to `each`.
    pub(super) fn commit_with(
        &self,
        batch: &Batch,
        what: impl fmt::Display,
        each: impl FnMut(Message<'_>),
    ) -> Result<()> {
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

    /// Asks for one object; None where the kernel says that there is none.
    pub(super) fn get<T>(
        &self,
        kind: u16,
        family: Family,
        what: impl fmt::Display,
        name: impl FnOnce(&mut Attributes),
        read: impl Fn(Attrs<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut body = Attributes::default();
        name(&mut body);
        let seq = self.send(kind, 0, family, &body).map_err(|e| Error::kernel(&what, e))?;
        let mut found = None;
        match self
            .transport
            .one(seq, |reply| found = read(Attrs::after(reply.payload, nfnetlink::HEADER)))
        {
            Ok(()) => Ok(found),
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(None),
            Err(refusal) => Err(refused(&what, refusal)),
        }
    }

    /// Reads a list that is consistent.
    pub(super) fn dump<T>(
        &self,
        kind: u16,
        family: Family,
        what: impl fmt::Display,
        name: impl FnOnce(&mut Attributes),
        read: impl Fn(Attrs<'_>, &mut Vec<T>),
    ) -> Result<Vec<T>> {
        let mut body = Attributes::default();
        name(&mut body);
        for _ in 0..DUMP_TRIES {
            let seq =
                self.send(kind, NLM_F_DUMP, family, &body).map_err(|e| Error::kernel(&what, e))?;
            let mut list = vec![];
            let each = |reply: Message<'_>| {
                read(Attrs::after(reply.payload, nfnetlink::HEADER), &mut list)
            };
            match self.transport.dump(seq, each) {
                Ok(true) => return Ok(list),
                Ok(false) => (),
                Err(refusal) if refusal.errno == Errno::ENOENT => return Ok(vec![]),
                Err(refusal) => return Err(refused(&what, refusal)),
            }
        }
        Err(Error::system(Code::TRY_AGAIN, &what, Errno::EINTR as i32)
            .with_details(format_args!("it changed during each of {DUMP_TRIES} tries")))
    }

    /// Whether a list has something that `is_one` accepts, reading no more pages of it than it must.
    /// The rest stays in the socket, so the list gets one of its own.
    pub(super) fn dump_has(
        kind: u16,
        family: Family,
        what: impl fmt::Display,
        name: impl FnOnce(&mut Attributes),
        is_one: impl Fn(Attrs<'_>) -> bool,
    ) -> Result<bool> {
        let page = Nft::open()?;
        let mut body = Attributes::default();
        name(&mut body);
        let seq =
            page.send(kind, NLM_F_DUMP, family, &body).map_err(|e| Error::kernel(&what, e))?;
        let mut found = false;
        let looked = page.transport.dump_until(seq, |reply| {
            found |= is_one(Attrs::after(reply.payload, nfnetlink::HEADER));
            found
        });
        match looked {
            Ok(()) => Ok(found),
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(false),
            Err(refusal) => Err(refused(what, refusal)),
        }
    }

    fn send(&self, kind: u16, flags: u16, family: Family, body: &Attributes) -> Result<u32, Errno> {
        let seq = self.transport.next_seq();
        let mut bytes = vec![];
        Header::new(NFNL_SUBSYS_NFTABLES, kind, flags, seq, family)
            .append(body.bytes(), &mut bytes);
        self.transport.send(&bytes)?;
        Ok(seq)
    }
}

/// Whether the kernel has no netfilter sockets, or has them and nothing that answers for nf_tables.
/// For any other reason, too many open files for one, there may be something of ours.
fn is_without_nf_tables(error: &Error) -> bool {
    let reasons = [
        Errno::EPROTONOSUPPORT,
        Errno::EAFNOSUPPORT,
        Errno::EINVAL,
        Errno::EOPNOTSUPP,
        Errno::EBADMSG,
    ];
    reasons.iter().any(|errno| error.is_errno(*errno))
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
