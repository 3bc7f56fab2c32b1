//! Work that the plugins of a chain postpone to the end of its DEL, so that the kernel's grace
//! periods for it overlap: one request deletes the host's links, and a thread dumps the connection
//! tracking table meanwhile. A plugin that a runtime executes alone postpones nothing.

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
    threads: Vec<JoinHandle<()>>,
}

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

    /// Deletes links of the host now, together with the postponed ones. Succeeds for links that are
    /// already gone.
    pub fn delete_links_now(&self, host: &Netlink, indexes: &[u32]) -> Result<()> {
        let postponed = self.0.borrow_mut().as_mut().map(|work| std::mem::take(&mut work.links));
        host.delete_links(&[indexes, &postponed.unwrap_or_default()].concat())
    }

    /// Runs a task in a thread until the end; or at once, if the kernel refuses the thread or the
    /// plugin runs alone. The task reports its own failures.
    pub fn meanwhile(&self, task: impl Fn() + Send + Sync + 'static) {
        match &mut *self.0.borrow_mut() {
            Some(work) => {
                let task = Arc::new(task);
                let of_thread = Arc::clone(&task);
                match Builder::new().spawn(move || of_thread()) {
                    Ok(thread) => work.threads.push(thread),
                    Err(_) => task(), // no thread is no reason to leave it undone
                }
            }
            None => task(),
        }
    }

    /// Does the postponed work. From now on plugins postpone nothing.
    pub fn finish<'a>(&self, host: impl FnOnce() -> Result<&'a Netlink>) -> Result<()> {
        let work = self.0.borrow_mut().take().unwrap_or_default();
        let mut errors = ErrorList::default();
        if !work.links.is_empty() {
            errors.push(host().and_then(|host| host.delete_links(&work.links)));
        }
        for thread in work.threads {
            errors.push(thread.join().map_err(|_| Error::new(Code::BUG, "a thread panicked")));
        }
        errors.finish()
    }
}
