//! A repair of the host's side of running attachments: what is missing is noted as a change, and
//! made again unless the repair only looks.
//!
//! ```text
//! if host.find_link(name)?.is_none() {
//!     repairs.make(format_args!("create bridge {name:?}"), || host.create_bridge(&spec))?;
//! }
//! ```
//! So a step is written once, and a dry run cannot differ from the repair.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use crate::error::{Code, Result};

/// Whether a repair changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Note what is missing, and change nothing.
    Look,
    /// Make again what is missing.
    Make,
}

/// The changes of a repair.
pub struct Repairs {
    extent: Extent,
    /// Those that were not taken yet, in the order they were made.
    changes: RefCell<Vec<String>>,
    /// All of them. A look finds what several attachments share missing again for each of them.
    known: RefCell<BTreeSet<String>>,
    /// What a look has verified that several attachments share.
    sound: RefCell<BTreeSet<String>>,
    /// The differences of the container's side, which stays as it is.
    left: RefCell<Vec<String>>,
    /// The plugins of others, which cannot repair.
    skipped: RefCell<BTreeSet<String>>,
}

impl Repairs {
    /// A repair of this extent, which has found nothing yet.
    pub fn new(extent: Extent) -> Repairs {
        Repairs {
            extent,
            changes: RefCell::default(),
            known: RefCell::default(),
            sound: RefCell::default(),
            left: RefCell::default(),
            skipped: RefCell::default(),
        }
    }

    /// Whether nothing is changed. What an earlier step would have made does not exist then.
    pub fn is_look(&self) -> bool {
        self.extent == Extent::Look
    }

    /// Makes something that is missing, unless this is a look. `what` is the change in the
    /// imperative, with the object's name: `add address 10.88.0.1/24 to "cni0"`. It is noted unless
    /// `make` fails.
    pub fn make(&self, what: impl fmt::Display, make: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.extent == Extent::Make {
            make()?;
        }
        self.note(what.to_string());
        Ok(())
    }

    /// Makes something again if its check has failed. Returns any other error of the check.
    pub fn make_unless(
        &self,
        verified: Result<()>,
        what: impl fmt::Display,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match verified {
            Err(error) if error.code == Code::CHECK_FAILED => self.make(what, make),
            verified => verified,
        }
    }

    /// As [`Repairs::make_unless`], for something named `what` that several attachments share:
    /// a look verifies it for the first of them that needs it.
    pub fn make_shared(
        &self,
        what: impl fmt::Display,
        verify: impl FnOnce() -> Result<()>,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let what = what.to_string();
        if self.sound.borrow().contains(&what) {
            return Ok(());
        }
        let verified = verify();
        if self.is_look() && verified.is_ok() {
            self.sound.borrow_mut().insert(what.clone());
        }
        self.make_unless(verified, what, make)
    }

    fn note(&self, what: String) {
        if self.known.borrow_mut().insert(what.clone()) || self.extent == Extent::Make {
            self.changes.borrow_mut().push(what);
        }
    }

    /// Notes the differences of a comparison with what the container may change. Returns any other
    /// error.
    pub fn leave(&self, compared: Result<()>) -> Result<()> {
        match compared {
            Err(error) if error.code == Code::CHECK_FAILED => {
                self.left
                    .borrow_mut()
                    .extend(error.into_parts().iter().map(|part| part.msg.clone()));
                Ok(())
            }
            compared => compared,
        }
    }

    /// The differences that were left since the last call.
    pub fn take_left(&self) -> Vec<String> {
        self.left.take()
    }

    /// Notes that this plugin, which is not compiled in, was not asked.
    pub fn skip(&self, plugin: impl fmt::Display) {
        self.skipped.borrow_mut().insert(plugin.to_string());
    }

    /// Drops the changes that `again`, a later look, has found missing, and returns them.
    pub fn retract(&self, again: &Repairs) -> Vec<String> {
        let missing = again.changes.borrow();
        self.changes.borrow_mut().extract_if(.., |change| missing.contains(change)).collect()
    }

    /// Whether there are changes that were not taken.
    pub fn has_changes(&self) -> bool {
        !self.changes.borrow().is_empty()
    }

    /// Drops what was found, because something has changed since.
    pub fn begin_again(&self) {
        self.changes.take();
        self.left.take();
        self.known.take();
        self.sound.take();
    }

    /// The changes since the last call.
    pub fn take_changes(&self) -> Vec<String> {
        self.changes.take()
    }

    /// The plugins that were not asked since the last call, each once.
    pub fn take_skipped(&self) -> BTreeSet<String> {
        self.skipped.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    #[test]
    fn look_notes_each_change_once_and_makes_none() {
        let repairs = Repairs::new(Extent::Look);
        for _ in 0..2 {
            repairs.make("create a", || Err(Error::new(Code::BUG, "made"))).unwrap();
        }
        assert_eq!(repairs.take_changes(), ["create a"]);
        repairs.make("create a", || Ok(())).unwrap();
        assert_eq!(repairs.take_changes(), [""; 0]);
    }

    #[test]
    fn look_verifies_what_is_shared_once_while_it_is_sound() {
        let verified = |repairs: &Repairs, sound: bool| {
            let mut count = 0;
            for _ in 0..2 {
                let verify = || {
                    count += 1;
                    if sound { Ok(()) } else { Err(Error::check("gone")) }
                };
                repairs.make_shared("forward", verify, || Ok(())).unwrap();
            }
            (count, repairs.take_changes().len())
        };
        assert_eq!(verified(&Repairs::new(Extent::Look), true), (1, 0));
        assert_eq!(verified(&Repairs::new(Extent::Look), false), (2, 1));
        assert_eq!(verified(&Repairs::new(Extent::Make), true), (2, 0));
    }

    #[test]
    fn repair_notes_what_it_has_made() {
        let repairs = Repairs::new(Extent::Make);
        repairs.make("create a", || Err(Error::new(Code::KERNEL, "refused"))).unwrap_err();
        for _ in 0..2 {
            repairs.make("create b", || Ok(())).unwrap();
        }
        assert_eq!(repairs.take_changes(), ["create b", "create b"]);
    }

    #[test]
    fn a_change_that_is_missing_again_is_retracted() {
        let [repairs, again] = [Extent::Make, Extent::Look].map(Repairs::new);
        ["create a", "create b"].iter().for_each(|what| repairs.make(what, || Ok(())).unwrap());
        again.make("create b", || Ok(())).unwrap();
        assert_eq!(repairs.retract(&again), ["create b"]);
        assert_eq!(repairs.take_changes(), ["create a"]);
    }

    #[test]
    fn skipped_plugins_are_named_once() {
        let repairs = Repairs::new(Extent::Look);
        ["calico", "calico", "cilium"].into_iter().for_each(|plugin| repairs.skip(plugin));
        assert_eq!(repairs.take_skipped().into_iter().collect::<Vec<_>>(), ["calico", "cilium"]);
    }
}
