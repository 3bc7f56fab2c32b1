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

    /// Removes these and those after them in the list. Overridden where these are removed after the
    /// others, or on both sides of them.
    fn surround(&self, cx: &Context<'_>, whose: Whose<'_>, rest: Rest<'_>) -> Result<()> {
        ErrorList::of([whose.take(self, cx), rest()])
    }
}

/// Whose objects are removed.
#[derive(Clone, Copy)]
pub enum Whose<'a> {
    /// Those of the attachment that DEL names.
    Of(&'a Detachment),
    /// Those of attachments that are not valid.
    Stale(&'a ValidAttachments),
}

impl Whose<'_> {
    /// Removes or collects objects of one kind.
    pub fn take<O: Owned + ?Sized>(self, owned: &O, cx: &Context<'_>) -> Result<()> {
        match self {
            Whose::Of(at) => owned.remove(cx, at),
            Whose::Stale(valid) => owned.collect(cx, valid),
        }
    }
}

/// Removes what follows in the list.
pub type Rest<'r> = &'r mut dyn FnMut() -> Result<()>;

/// Removes what attachments own: does all it can, and reports everything.
pub fn remove(list: &[&dyn Owned], cx: &Context<'_>, whose: Whose<'_>) -> Result<()> {
    match list {
        [] => Ok(()),
        [first, rest @ ..] => first.surround(cx, whose, &mut || remove(rest, cx, whose)),
    }
}
