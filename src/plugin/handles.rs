//! The open handles to the kernel that the plugins of an operation share.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use nix::errno::Errno;

use super::postponed::Postponed;
use crate::deadline::{Clock, Deadline};
use crate::error::{Code, Error, ErrorList, Result};
use crate::file_lock::StuckHolder;
use crate::net::iptables::Programs;
use crate::net::netlink::Netlink;
use crate::net::netns::Netns;
use crate::net::nft::Nft;
use crate::timing;

/// The open handles to the kernel, each opened on first use, and the deadline of the operation. The
/// plugins of a chain that run in one process share them.
pub struct Handles {
    clock: Clock,
    host: OnceCell<Netlink>,
    container: RefCell<Option<(String, Rc<Netns>)>>,
    nft: OnceCell<Option<Nft>>,
    iptables: Programs,
    stuck_holder_of_undo: StuckHolder,
    postponed: Postponed,
}

/// Nothing is open, and the operation begins now.
impl Default for Handles {
    fn default() -> Handles {
        Handles::with(Clock::default())
    }
}

impl Handles {
    pub(super) fn with(clock: Clock) -> Handles {
        let iptables = Programs::new(clock.clone());
        Handles {
            clock,
            host: OnceCell::new(),
            container: RefCell::default(),
            nft: OnceCell::new(),
            iptables,
            stuck_holder_of_undo: StuckHolder::default(),
            postponed: Postponed::default(),
        }
    }

    /// The clock of everything that works with these handles.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The deadline of everything that works with these handles.
    pub fn deadline(&self) -> Deadline {
        self.clock.deadline()
    }

    /// From now on the kernel answers each question about the host once, until
    /// [`Handles::forget`]; answers of before are dropped.
    pub fn remember(&self) -> Result<()> {
        self.host()?.remember();
        self.iptables.remember();
        if let Some(nft) = self.nft()? {
            nft.remember();
        }
        Ok(())
    }

    /// From now on the kernel answers each question, also about the namespace requested last.
    pub fn forget(&self) {
        self.container.take();
        self.iptables.forget();
        if let Some(host) = self.host.get() {
            host.forget();
        }
        if let Some(Some(nft)) = self.nft.get() {
            nft.forget();
        }
    }

    /// The netlink socket of the current namespace, the host's.
    pub fn host(&self) -> Result<&Netlink> {
        get_or_try_init(&self.host, Netlink::open)
    }

    /// Begins the next operation of this process, which has its whole time again. A holder of a
    /// lock that a whole wait was in vain for is not awaited once more.
    pub fn begin_next(&self) {
        self.clock.restart();
    }

    /// The namespace at this path; calls `open` unless it is the one requested last.
    pub fn netns(
        &self,
        path: &str,
        open: fn(&str) -> Result<Option<Netns>>,
    ) -> Result<Option<Rc<Netns>>> {
        if let Some((kept, netns)) = &*self.container.borrow()
            && kept == path
        {
            return Ok(Some(Rc::clone(netns)));
        }
        let opened = open(path)?.map(Rc::new);
        *self.container.borrow_mut() = opened.clone().map(|netns| (path.to_owned(), netns));
        Ok(opened)
    }

    /// The nf_tables socket of the current namespace; None if the kernel lacks nf_tables.
    ///
    /// It stays open to the end, because closing one waits until the kernel has freed everything
    /// deleted by any process: ten milliseconds or more, which have already passed if a link is
    /// deleted in between.
    pub fn nft(&self) -> Result<Option<&Nft>> {
        get_or_try_init(&self.nft, Nft::open_if_there).map(Option::as_ref)
    }

    /// As [`Handles::nft`], but fails without nf_tables.
    pub fn require_nft(&self) -> Result<&Nft> {
        self.nft()?.ok_or_else(|| Error::kernel("open a netfilter socket", Errno::EOPNOTSUPP))
    }

    /// What the plugins of a chain postpone to the end of its DEL.
    pub fn postponed(&self) -> &Postponed {
        &self.postponed
    }

    /// Runs the DELs of a chain's plugins, and then the work that they have postponed, whether or
    /// not one has failed.
    pub fn together(&self, dels: impl FnOnce() -> Result<()>) -> Result<()> {
        self.postponed.begin();
        let done = dels();
        let _account = timing::open(|| "end of DEL".to_owned());
        ErrorList::of([done, self.postponed.finish(|| self.host())])
    }

    /// Whether undos of this operation may still wait for the lock that they take.
    pub fn stuck_holder_of_undo(&self) -> &StuckHolder {
        &self.stuck_holder_of_undo
    }

    /// The host's iptables programs.
    pub fn iptables(&self) -> &Programs {
        &self.iptables
    }
}

/// `OnceCell::get_or_try_init`, which std does not offer yet.
pub(super) fn get_or_try_init<T>(
    cell: &OnceCell<T>,
    init: impl FnOnce() -> Result<T>,
) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(init()?); // no other thread can have set it
    }
    cell.get().ok_or_else(|| Error::new(Code::BUG, "a cell that was just set is empty"))
}
