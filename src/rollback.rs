//! The undo stack: it restores the kernel and the disk after a failed ADD.
//!
//! ```text
//! transaction(|rb| {
//!     host.create_link(name, None, &spec)?;
//!     rb.undo("delete link", move || host.delete_link_by_name(name));
//!     …
//! })
//! ```
//! Register an undo after a step that is atomic, before one that can half-succeed.

use std::fmt;

use crate::error::{Error, Result};

type Undo<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// The undos of the steps done so far.
#[derive(Default)]
pub struct Rollback<'a> {
    undos: Vec<(String, Undo<'a>)>,
}

impl<'a> Rollback<'a> {
    /// Registers `undo`, which runs if a later step fails; `what` names it if it fails itself.
    pub fn undo(&mut self, what: impl fmt::Display, undo: impl FnOnce() -> Result<()> + 'a) {
        self.undos.push((what.to_string(), Box::new(undo)));
    }

    /// Runs all undos, last one first; adds their failures to the error's details.
    fn undo_all(&mut self, mut error: Error) -> Error {
        let mut is_undone = !self.undos.is_empty();
        while let Some((what, undo)) = self.undos.pop() {
            match undo() {
                Err(failed) if !failed.is_not_found() => {
                    error = error.with_details(format_args!("undo: {what}: {failed}"));
                    is_undone = false;
                }
                _ => (), // what is gone already is undone
            }
        }
        if is_undone { error.undone() } else { error }
    }
}

/// A panic unwinds through here: a bug must still be undone.
impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        while let Some((_, undo)) = self.undos.pop() {
            let _ = undo(); // the panic is the error that is reported
        }
    }
}

/// Runs `steps`; if they fail, everything they registered is undone in reverse order.
pub fn transaction<'a, T>(steps: impl FnOnce(&mut Rollback<'a>) -> Result<T>) -> Result<T> {
    let mut rollback = Rollback::default();
    match steps(&mut rollback) {
        Ok(done) => {
            rollback.undos.clear();
            Ok(done)
        }
        Err(error) => Err(rollback.undo_all(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::Code;

    #[test]
    fn undos_run_in_reverse_and_their_failures_are_told() {
        let log = RefCell::new(vec![]);
        let failed = transaction(|rb| {
            rb.undo("first", || {
                log.borrow_mut().push(1);
                Err(Error::new(Code::KERNEL, "no"))
            });
            rb.undo("second", || {
                log.borrow_mut().push(2);
                Ok(())
            });
            Err::<(), _>(Error::new(Code::IO, "why"))
        });
        assert_eq!(*log.borrow(), [2, 1]);
        assert_eq!(failed.unwrap_err().to_string(), "why; undo: first: no");
    }

    #[test]
    fn an_error_says_whether_there_was_anything_to_undo() {
        let fail = |changes: bool| {
            let failed = transaction(|rb| {
                if changes {
                    rb.undo("it", || Ok(()));
                }
                Err::<(), _>(Error::new(Code::IO, "why"))
            });
            failed.unwrap_err().was_undone
        };
        assert_eq!([false, true].map(fail), [false, true]);
        let stays = transaction(|rb| {
            rb.undo("it", || Err(Error::new(Code::IO, "busy")));
            Err::<(), _>(Error::new(Code::IO, "why"))
        });
        assert!(!stays.unwrap_err().was_undone, "an undo has failed");
    }

    #[test]
    fn success_keeps_what_was_done() {
        let undone = RefCell::new(false);
        let done = transaction(|rb| {
            rb.undo("it", || {
                *undone.borrow_mut() = true;
                Ok(())
            });
            Ok(7)
        });
        assert_eq!((done.unwrap(), *undone.borrow()), (7, false));
    }

    #[test]
    fn a_panic_undoes_too() {
        let undone = std::sync::atomic::AtomicBool::new(false);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            transaction(|rb| -> Result<()> {
                rb.undo("it", || {
                    undone.store(true, std::sync::atomic::Ordering::Relaxed);
                    Ok(())
                });
                panic!("bug")
            })
        }));
        assert!(panicked.is_err() && undone.into_inner());
    }
}
