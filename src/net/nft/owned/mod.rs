//! Elements with an owner: created together, found again by their owner alone, removed only while
//! they are still its own.
//!
//! Each of our tables has constant chains and rules; the elements of its sets and maps vary. One
//! more set, the ledger `attachments`, records for every owner which elements it has: its keys are
//! the owner's id and a running number, its comments name an element. So the cost of a removal does
//! not depend on the number of owners, and it needs nothing but the id.
//!
//! Every removal is bound to the generation of the ruleset that it was planned on: if anything
//! changed in between, another owner may have the element by now, so the kernel refuses, and the
//! transaction is planned again.

mod claims;
mod layout;
mod ledger;
mod release;
mod take;

pub use self::claims::{Claims, OurTable};
pub use self::layout::{Layout, Reliance, jump_to_admin};
pub use self::layout::{OwnedElement, Owner, Rival, SharedChain};
pub use self::release::{Owned, Released, Search};
pub use self::take::{Replaced, Taken};
