//! Work that the plugins of a chain postpone to the end of its DEL, so that the kernel's grace
//! periods for it overlap or are not needed: one request deletes the host's links, changes of a
//! link go with it, and a thread deletes stale flows from the connection tracking table meanwhile.
//! A plugin that a runtime executes alone postpones nothing.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::Netlink;

/// The postponed work; None while plugins do theirs at once.
#[derive(Default)]
pub struct Postponed(RefCell<Option<Work>>);

#[derive(Default)]
struct Work {
    /// The ifindexes of the host's links that the next deletion takes along, or the end.
    links: Vec<u32>,
    changes: Vec<Change>,
    threads: Vec<JoinHandle<Box<dyn Send>>>,
}

/// A change of a link of the host, which ends with the link.
struct Change {
    /// The link's ifindex.
    link: u32,
    undo: Undo,
}

type Undo = Box<dyn Fn(&Netlink) -> Result<()>>;

impl Postponed {
    /// From now on plugins may postpone work to [`Postponed::finish`].
    pub fn begin(&self) {
        *self.0.borrow_mut() = Some(Work::default());
    }

    /// Deletes a link of the host, at the latest at the end. Succeeds if it is already gone.
    pub fn delete_link(&self, host: &Netlink, index: u32) -> Result<()> {
        match &mut *self.0.borrow_mut() {
            Some(work) => work.links.push(index),
            None => return host.delete_links(&[index]),
        }
        Ok(())
    }

    /// Undoes a change of a link of the host, at the latest at the end and before the postponed
    /// deletions; not at all if the link is deleted by then.
    pub fn undo_unless_deleted(
        &self,
        host: &Netlink,
        link: u32,
        undo: impl Fn(&Netlink) -> Result<()> + 'static,
    ) -> Result<()> {
        match &mut *self.0.borrow_mut() {
            Some(work) => work.changes.push(Change { link, undo: Box::new(undo) }),
            None => return undo(host),
        }
        Ok(())
    }

    /// Deletes links of the host now, together with the postponed ones, after the changes of other
    /// links were undone. Succeeds for links that are already gone.
    pub fn delete_links_now(&self, host: &Netlink, indexes: &[u32]) -> Result<()> {
        let Some(work) = &mut *self.0.borrow_mut() else { return host.delete_links(indexes) };
        let undone = work.undo_changes(host, |link| !indexes.contains(&link));
        let deleted = host.delete_links(&[indexes, &std::mem::take(&mut work.links)].concat());
        if deleted.is_ok() {
            work.changes.clear();
        }
        ErrorList::of([undone, deleted])
    }

    /// Runs a task in a thread until the end; or at once, if the kernel refuses the thread or the
    /// plugin runs alone. The task reports its own failures. What it returns, such as a socket that
    /// is better closed late, is kept until the end.
    pub fn meanwhile<T: Send + 'static>(&self, task: impl Fn() -> T + Send + Sync + 'static) {
        match &mut *self.0.borrow_mut() {
            Some(work) => {
                let task = Arc::new(task);
                let of_thread = Arc::clone(&task);
                match Builder::new().spawn(move || Box::new(of_thread()) as Box<dyn Send>) {
                    Ok(thread) => work.threads.push(thread),
                    Err(_) => drop(task()), // no thread is no reason to leave it undone
                }
            }
            None => drop(task()),
        }
    }

    /// Does the postponed work. From now on plugins postpone nothing.
    pub fn finish<'a>(&self, host: impl FnOnce() -> Result<&'a Netlink>) -> Result<()> {
        let mut work = self.0.borrow_mut().take().unwrap_or_default();
        let mut errors = ErrorList::default();
        if !work.changes.is_empty() || !work.links.is_empty() {
            errors.push(host().and_then(|host| {
                ErrorList::of([work.undo_changes(host, |_| true), host.delete_links(&work.links)])
            }));
        }
        for thread in work.threads {
            let joined = thread.join().map(drop);
            errors.push(joined.map_err(|_| Error::new(Code::BUG, "a thread panicked")));
        }
        errors.finish()
    }
}

impl Work {
    /// Undoes the changes of links that `is_due` accepts.
    fn undo_changes(&mut self, host: &Netlink, is_due: impl Fn(u32) -> bool) -> Result<()> {
        let due = self.changes.extract_if(.., |change| is_due(change.link));
        ErrorList::of(due.map(|change| (change.undo)(host)))
    }
}
