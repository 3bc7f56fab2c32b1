//! Elements with an owner: made together, found again by their owner alone, removed only while they
//! are still its own.
//!
//! Each of our tables has constant chains and rules; what varies are elements of its sets and maps.
//! One more set, `attachments`, says for every owner which elements it has: its keys are the
//! owner's id and a running number, its comments name an element. So removing costs the same
//! however many there are, and needs nothing but the id.
//!
//! Every removal is bound to the generation of the rule set that it was planned on: if anything
//! changed in between, another may own the element by now, the kernel refuses, and the transaction
//! is planned again.

mod claims;
mod element;
mod finder;
mod layout;
mod ledger;
mod release;
mod take;
mod verify;

pub use self::claims::{Claims, OurTable};
pub use self::element::{OwnedElement, Owner, Rival, SharedChain};
pub use self::layout::Layout;
pub use self::release::{Owned, Released, Search};
pub use self::take::{Replaced, Taken};
