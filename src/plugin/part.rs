//! What an attachment consists of. A plugin lists its parts once, in the order of ADD: ADD makes
//! them, CHECK compares each with the kernel, and a repair makes again those that differ. What DEL and
//! GC find by the key alone is another list, see [`owned`](super::owned).

use super::{Attachment, Context};
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};

/// The attachment that parts belong to, and the call that is about it.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The call.
    pub cx: &'a Context<'a>,
    /// The attachment.
    pub at: &'a Attachment,
}

/// One effect of ADD. Undos may keep what lives as long as the call, `'a`, and outlive the part.
pub trait Part<'a> {
    /// The change that makes it, in the imperative, with the object's name: a repair lists it.
    fn what(&self) -> String;

    /// ADD and repairs: makes it, and registers the undo. That undoes what this call has made: what was
    /// there before, or has another user by then, stays. (A bridge and its port are made by hand in
    /// ADD, which needs what they return.)
    fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()>;

    /// CHECK: compares it with the kernel and changes nothing. A difference that `make` can mend, or
    /// that nothing repairs, has code 103. With any other nothing is repaired: the kernel did not
    /// answer, or a person has to judge. One that is about [`Aspect::Cause`] is left out
    /// of CHECK, since its cause is reported, and is repaired.
    fn compare(&self, on: Target<'a>) -> Result<()>;

    /// For a repair, which looks at every attachment of the node: whether a part that stays as it is may
    /// differ. Returns false if a few questions without a dump show that it does not.
    fn may_differ(&self, _on: Target<'a>) -> Result<bool> {
        Ok(true)
    }

    /// Makes it again after `compare` has found a difference: as ADD, unless what is left of it is
    /// in the way.
    fn make_again(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        self.make(on, rb)
    }

    /// Whether those after it depend on it: they are left alone if it cannot be made again.
    fn is_base(&self) -> bool {
        false
    }

    /// Whether several attachments have it in common: a look compares it once for all of them.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether CHECK compares it; false for what an attachment of the reference may lack.
    fn is_checked(&self) -> bool {
        true
    }

    /// Whether a repair makes it again; false for the container's side, which stays as it is.
    fn is_repaired(&self) -> bool {
        true
    }
}

/// The names of all kinds of parts. `tests/plugins/parts.rs` breaks one of each.
pub const NAMES: &[&str] = &[
    "accept_ra",
    "addresses and routes",
    "admission",
    "bridge",
    "bridge up",
    "egress limit",
    "fast path",
    "forwarded groups",
    "forwarding",
    "gateways",
    "host end",
    "host route",
    "ingress limit",
    "main table",
    "masquerade",
    "ovs port",
    "port",
    "ports",
    "promiscuous mode",
    "route_localnet",
    "source hint",
    "source rule",
    "source table",
    "spoof check",
    "sysctl",
    "vrf",
    "vrf route",
    "vrf up",
];

/// The parts of an attachment, in the order of ADD.
#[derive(Default)]
pub struct Parts<'p, 'a>(Vec<Box<dyn Part<'a> + 'p>>);

impl<'p, 'a> Parts<'p, 'a> {
    /// Adds a part of the kind with this name, one of [`NAMES`].
    pub fn push(&mut self, name: &str, part: impl Part<'a> + 'p) {
        debug_assert!(NAMES.contains(&name), "{name:?} is not in NAMES");
        self.0.push(Box::new(part));
    }

    /// Adds parts of one kind.
    pub fn extend(&mut self, name: &str, parts: impl IntoIterator<Item = impl Part<'a> + 'p>) {
        parts.into_iter().for_each(|part| self.push(name, part));
    }

    /// Adds those of another list.
    pub fn append(&mut self, mut others: Parts<'p, 'a>) {
        self.0.append(&mut others.0);
    }

    /// ADD: makes them; ends with the first error.
    pub fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        self.0.iter().try_for_each(|part| part.make(on, rb))
    }

    /// CHECK: all differences.
    pub fn compare(&self, on: Target<'a>) -> Result<()> {
        let checked = self.0.iter().filter(|part| part.is_checked());
        let follows = |error: &Error| error.aspect == Some(Aspect::Cause);
        let compared = checked.map(|part| part.compare(on));
        ErrorList::of(compared.filter(|outcome| !outcome.as_ref().is_err_and(follows)))
    }

    /// Makes again those that differ, or notes them; of the container's side, what is left.
    pub fn repair(&self, on: Target<'a>, repairs: &Repairs) -> Result<()> {
        let mut errors = ErrorList::default();
        for part in &self.0 {
            if !part.is_repaired() {
                if errors.push(part.may_differ(on)) == Some(true) {
                    errors.push(repairs.leave(part.compare(on)));
                }
                continue;
            }
            let compare = || part.compare(on);
            let again = || transaction(|rb| part.make_again(on, rb));
            let repaired = match part.is_shared() {
                true => repairs.make_shared(part.what(), compare, again),
                false => repairs.make_unless(compare(), part.what(), again),
            };
            if errors.push(repaired).is_none() && part.is_base() {
                break;
            }
        }
        errors.finish()
    }
}
