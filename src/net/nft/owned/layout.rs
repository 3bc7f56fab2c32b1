//! What our tables consist of, apart from the elements.

use crate::error::Result;
use crate::net::nft::batch::{Batch, Holds, KeyType, Set, Table};
use crate::net::nft::expr::Verdict;

/// The ledger, the set that records which owner has which element: its keys are an owner's id and a
/// number, its comments name an element.
pub(super) const LEDGER: Set =
    Set { name: "attachments", key: &[KeyType::Mark; 5], holds: Holds::Keys };

/// The chain that an administrator may fill. We write no rule of it, and a table in which it has rules
/// outlives the last owner.
pub(super) const ADMIN: &str = "admin";

/// Writes a rule for the layout: the administrator's chain comes before what the chain says from here on.
pub fn jump_to_admin(batch: &mut Batch, table: Table, chain: &str) {
    batch.chain(table, ADMIN);
    batch.rule(table, chain, |rule| {
        rule.verdict(&Verdict::Jump(ADMIN.to_owned()));
    });
}

/// The layout of one of our tables.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The table.
    pub table: Table,
    /// Shown by `nft list`.
    pub comment: &'static str,
    /// Its sets and maps, apart from the ledger.
    pub sets: &'static [&'static Set],
    /// Writes its constant chains and rules; writing them again changes nothing.
    pub lay_out: fn(&mut Batch, Table),
    /// What on the host relies on elements of one of the sets.
    pub reliance: Option<Reliance>,
}

/// Something on the host that is safe only while elements of a set stand. It ends before the
/// transaction that removes the element: a process that is killed in between leaves the host safe.
#[derive(Clone, Copy, Debug)]
pub struct Reliance {
    /// The set.
    pub set: &'static Set,
    /// Ends what relies on the element with this key. It may have ended already.
    pub end: fn(&[u8]) -> Result<()>,
    /// Begins it again: the transaction was planned once more, and the element stays.
    pub begin_again: fn(&[u8]) -> Result<()>,
}

impl Layout {
    /// The name of the set, if the table has it.
    pub(super) fn set(&self, name: &str) -> Option<&'static str> {
        self.sets.iter().map(|set| set.name).find(|known| *known == name)
    }

    /// Adds the table with everything except elements.
    pub(super) fn write(&self, batch: &mut Batch) {
        batch.table(self.table, self.comment).set(self.table, &LEDGER);
        for set in self.sets {
            batch.set(self.table, set);
        }
        (self.lay_out)(batch, self.table);
    }

    /// Only the constant chains and rules.
    pub(super) fn chains_and_rules(&self) -> Batch {
        let mut batch = Batch::default();
        (self.lay_out)(&mut batch, self.table);
        batch
    }
}
