//! What attachments own and DEL and GC find by the key alone: a list per plugin, in the order of
//! removal.

use super::{Context, Detachment};
use crate::cni::conf::ValidAttachments;
use crate::error::{ErrorList, Result};

/// A kind of object that attachments own.
pub trait Owned {
    /// DEL: removes those of one attachment. "Not there" is done.
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()>;

    /// GC: removes those of this network's attachments that are not valid.
    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()>;

    /// Removes these and then what follows in the list. A kind that has to go after the others, or in
    /// two steps around them, overrides this.
    fn surround(&self, cx: &Context<'_>, removal: Removal<'_>, rest: Rest<'_>) -> Result<()> {
        ErrorList::of([removal.run_on(self, cx), rest()])
    }
}

/// The operation that removes them.
#[derive(Clone, Copy)]
pub enum Removal<'a> {
    /// DEL, of one attachment.
    Del(&'a Detachment),
    /// GC, of the network's attachments that are not among the valid ones.
    Gc(&'a ValidAttachments),
}

impl Removal<'_> {
    /// DEL or GC of one kind.
    pub fn run_on<O: Owned + ?Sized>(self, owned: &O, cx: &Context<'_>) -> Result<()> {
        match self {
            Removal::Del(at) => owned.remove(cx, at),
            Removal::Gc(valid) => owned.collect(cx, valid),
        }
    }
}

/// Removes what follows in the list.
pub type Rest<'r> = &'r mut dyn FnMut() -> Result<()>;

/// Removes what attachments own: does all it can, and reports everything.
pub fn remove(list: &[&dyn Owned], cx: &Context<'_>, removal: Removal<'_>) -> Result<()> {
    match list {
        [] => Ok(()),
        [first, rest @ ..] => first.surround(cx, removal, &mut || remove(rest, cx, removal)),
    }
}
