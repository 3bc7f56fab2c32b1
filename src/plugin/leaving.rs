//! What the DELs of a chain leave to its end, so that the kernel's waits for each run side by side:
//! links of the host go in one request, and long questions are asked by another thread. A plugin
//! that a runtime calls alone does each at once.

use std::cell::RefCell;
use std::thread::{self, JoinHandle};

use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::Netlink;

/// What is left to do; nothing is left before [`Leaving::begin`].
#[derive(Default)]
pub struct Leaving(RefCell<Option<Left>>);

#[derive(Default)]
struct Left {
    /// The ifindexes of links of the host that go with the next one, or at the end.
    links: Vec<u32>,
    threads: Vec<JoinHandle<()>>,
}

impl Leaving {
    /// From now on something may be left to [`Leaving::finish`].
    pub fn begin(&self) {
        *self.0.borrow_mut() = Some(Left::default());
    }

    /// Deletes a link of the host, at the latest at the end. Succeeds if it is already gone.
    pub fn delete_link(&self, host: &Netlink, index: u32) -> Result<()> {
        match &mut *self.0.borrow_mut() {
            Some(left) => left.links.push(index),
            None => return host.delete_links(&[index]),
        }
        Ok(())
    }

    /// Deletes links of the host, with those that were left. Succeeds for those already gone.
    pub fn delete_links(&self, host: &Netlink, indexes: &[u32]) -> Result<()> {
        let left = self.0.borrow_mut().as_mut().map(|left| std::mem::take(&mut left.links));
        host.delete_links(&[indexes, &left.unwrap_or_default()].concat())
    }

    /// Does this work, which reports its own failures, at the latest at the end.
    pub fn meanwhile(&self, work: impl FnOnce() + Send + 'static) {
        match &mut *self.0.borrow_mut() {
            Some(left) => left.threads.push(thread::spawn(work)),
            None => work(),
        }
    }

    /// Does what is left. From now on nothing is left any more.
    pub fn finish<'a>(&self, host: impl FnOnce() -> Result<&'a Netlink>) -> Result<()> {
        let left = self.0.borrow_mut().take().unwrap_or_default();
        let mut errors = ErrorList::default();
        if !left.links.is_empty() {
            errors.push(host().and_then(|host| host.delete_links(&left.links)));
        }
        for thread in left.threads {
            errors.push(thread.join().map_err(|_| Error::new(Code::BUG, "a thread panicked")));
        }
        errors.finish()
    }
}
