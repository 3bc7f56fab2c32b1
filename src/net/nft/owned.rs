//! Elements that belong to somebody: made together, found again by their owner alone, removed only while still theirs.
//!
//! Each of our tables has constant chains and rules; what varies are elements of its sets and maps. One more set,
//! `attachments`, says for every owner which elements are his: its keys are the owner's id and a running number, its
//! comments name an element. So removing costs the same however many there are, and needs nothing but the id.
//!
//! Every removal is bound to the generation of the rule set that it was planned on: if anything changed in between,
//! another may own the element by now, the kernel refuses, and the plan is made anew.

use nix::errno::Errno;

use super::batch::{Batch, KeyType, Set, Table};
use super::expr::Verdict;
use super::{ElementInfo, Nft};
use crate::error::{Code, Error, Result};

/// Says which elements belong to whom.
const LEDGER: Set = Set { name: "attachments", key: &[KeyType::Mark; 5], is_verdict_map: false };

/// The comment of elements that are not one owner's alone.
const SHARED: &str = "shared";

/// How often a transaction is planned anew because another came between. Each time somebody else has got on.
const TRIES: usize = 1000;

/// Whoever elements belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The first half is the owner's group, for [`Nft::owners`].
    pub id: [u8; 16],
    /// The comment of his elements, which tells them from another's.
    pub comment: String,
}

/// An element that is to belong to somebody.
#[derive(Clone, Debug)]
pub struct OwnedElement {
    /// The name of the set or map.
    pub set: &'static str,
    /// The key.
    pub key: Vec<u8>,
    /// The chain that packets go to which it matches.
    pub chain: Option<SharedChain>,
    /// Whether others may have it at the same time. It goes with the last of them.
    pub is_shared: bool,
}

/// A chain that elements of many owners lead to; it goes with the last of them.
#[derive(Clone, Debug)]
pub struct SharedChain {
    /// Its name.
    pub name: String,
    /// Writes its rules, when it is made.
    pub rules: fn(&mut Batch, Table, &SharedChain),
    /// What the rules need to know.
    pub net: ipnet::IpNet,
}

/// One of our tables.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The table.
    pub table: Table,
    /// Shown by `nft list`.
    pub comment: &'static str,
    /// The chain that packets enter by.
    pub base_chain: &'static str,
    /// Writes its chains, rules and sets; doing so again changes nothing.
    pub lay_out: fn(&mut Batch, Table),
}

impl Nft {
    /// Makes the owner's elements. Those he had are replaced; one that another owner still has becomes his, for he was
    /// given what it stands for.
    pub fn claim(&self, layout: &Layout, owner: &Owner, elements: &[OwnedElement]) -> Result<()> {
        let what = format!("add elements to table {:?}", layout.table.name);
        if self.only_elements_are_missing(layout, owner, elements)? {
            let mut batch = Batch::default();
            add_elements(&mut batch, layout.table, owner, 0, elements);
            match self.commit(&batch, &what) {
                Err(error) if needs_plan(&error) => (),
                done => return done,
            }
        }
        self.again(&what, || {
            let mut batch = Batch::of_generation(self.generation()?);
            self.plan_release(&mut batch, layout.table, owner)?;
            lay_out(&mut batch, layout);
            for element in elements {
                let others = self.element(layout.table, element.set, &element.key)?;
                if others.is_some_and(|found| !element.is_shared && found.comment != owner.comment) {
                    batch.delete_element(layout.table, element.set, &element.key);
                }
                if let Some(chain) = &element.chain {
                    batch.chain(layout.table, &chain.name).flush_chain(layout.table, &chain.name);
                    (chain.rules)(&mut batch, layout.table, chain);
                }
            }
            add_elements(&mut batch, layout.table, owner, 0, elements);
            self.commit(&batch, &what)
        })
    }

    /// Adds elements to those that the owner has. One that is another's becomes his.
    pub fn claim_more(&self, layout: &Layout, owner: &Owner, elements: &[OwnedElement]) -> Result<()> {
        let what = format!("add elements to table {:?}", layout.table.name);
        let mut first = 0;
        while self.ledger_entry(layout.table, owner, first)?.is_some() {
            first += 1;
        }
        let mut batch = Batch::default();
        for element in elements {
            if self.element(layout.table, element.set, &element.key)?.is_some() {
                batch.delete_element(layout.table, element.set, &element.key);
            }
        }
        add_elements(&mut batch, layout.table, owner, first, elements);
        self.commit(&batch, &what)
    }

    /// Whether table and chains are there and the owner has nothing yet. A batch that fails makes the kernel wait for all
    /// its processors, which takes longer than anything else here, so none is tried that can be seen to fail.
    fn only_elements_are_missing(&self, layout: &Layout, owner: &Owner, elements: &[OwnedElement]) -> Result<bool> {
        let table = layout.table;
        let shared = elements.iter().filter_map(|element| element.chain.as_ref()).map(|chain| chain.name.as_str());
        for chain in std::iter::once(layout.base_chain).chain(shared) {
            if self.chain(table.family, table.name, chain)?.is_none() {
                return Ok(false);
            }
        }
        Ok(self.ledger_entry(table, owner, 0)?.is_none())
    }

    /// Removes all that belongs to the owner; false where there was nothing. The table goes with the last element.
    pub fn release(&self, layout: &Layout, owner: &Owner) -> Result<bool> {
        let what = format!("delete elements of table {:?}", layout.table.name);
        if self.ledger_entry(layout.table, owner, 0)?.is_none() {
            return Ok(false);
        }
        self.again(&what, || {
            let generation = self.generation()?;
            let mut batch = Batch::of_generation(generation);
            let Chains { unused, is_any_shared } = self.plan_release(&mut batch, layout.table, owner)?;
            if batch.is_empty() {
                return Ok(());
            }
            let is_another = |element: &ElementInfo| owner_of(&element.key) != Some(owner.id);
            if !is_any_shared && !self.has_element(layout.table, LEDGER.name, is_another)? {
                batch = Batch::of_generation(generation);
                batch.delete_table(layout.table);
                return self.commit(&batch, &what);
            }
            for chain in unused {
                batch.delete_chain(layout.table, &chain);
            }
            self.commit(&batch, &what)
        })?;
        Ok(true)
    }

    /// Which of these elements are missing, or are another's and do something else.
    pub fn missing<'a>(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &'a [OwnedElement],
    ) -> Result<Vec<&'a OwnedElement>> {
        let mut missing = vec![];
        for element in elements {
            let found = self.element(layout.table, element.set, &element.key)?;
            let leads_to = element.chain.as_ref().map(|chain| chain.name.as_str());
            let serves = |found: ElementInfo| {
                element.is_shared
                    || found.comment == owner.comment
                    || (leads_to.is_some() && found.chain.as_deref() == leads_to)
            };
            if !found.is_some_and(serves) {
                missing.push(element);
            }
        }
        Ok(missing)
    }

    /// Every owner of a group.
    pub fn owners(&self, layout: &Layout, group: [u8; 8]) -> Result<Vec<[u8; 16]>> {
        let ids = self.elements(layout.table, LEDGER.name)?.into_iter().filter_map(|element| owner_of(&element.key));
        let mut ids: Vec<[u8; 16]> = ids.filter(|id| id[..8] == group).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The elements, by set and key, that belong to the owner alone.
    pub fn belongings(&self, layout: &Layout, owner: &Owner) -> Result<Vec<(String, Vec<u8>)>> {
        let mut elements = vec![];
        for number in 0.. {
            let Some(entry) = self.ledger_entry(layout.table, owner, number)? else { break };
            let Some((set, key)) = read_entry(&entry) else { continue };
            if self.element(layout.table, &set, &key)?.is_some_and(|found| is_of(&found.comment, owner)) {
                elements.push((set, key));
            }
        }
        Ok(elements)
    }

    /// Whether the owner has any element at all.
    pub fn has_anything(&self, layout: &Layout, owner: &Owner) -> Result<bool> {
        Ok(self.ledger_entry(layout.table, owner, 0)?.is_some())
    }

    /// Whether the element is there, whoever's it is.
    pub fn has(&self, layout: &Layout, element: &OwnedElement) -> Result<bool> {
        Ok(self.element(layout.table, element.set, &element.key)?.is_some())
    }

    /// Plans the removal of the owner's elements; returns what becomes of the chains that they lead to.
    fn plan_release(&self, batch: &mut Batch, table: Table, owner: &Owner) -> Result<Chains> {
        let mut leading: Vec<(String, u32)> = vec![];
        for number in 0.. {
            let Some(entry) = self.ledger_entry(table, owner, number)? else { break };
            batch.delete_element(table, LEDGER.name, &ledger_key(owner, number));
            let Some((set, key)) = read_entry(&entry) else { continue };
            let Some(element) = self.element(table, &set, &key)? else { continue };
            let is_his = match element.comment == SHARED {
                true => !self.is_another_s(table, owner, &entry)?,
                false => is_of(&element.comment, owner),
            };
            if !is_his {
                continue;
            }
            batch.delete_element(table, &set, &key);
            if let Some(chain) = element.chain {
                match leading.iter_mut().find(|(name, _)| *name == chain) {
                    Some((_, count)) => *count += 1,
                    None => leading.push((chain, 1)),
                }
            }
        }
        let mut chains = Chains::default();
        for (chain, ours) in leading {
            match self.chain(table.family, table.name, &chain)? {
                Some(info) if info.uses == ours + RULES_OF_SHARED_CHAIN => chains.unused.push(chain),
                Some(_) => chains.is_any_shared = true,
                None => (),
            }
        }
        Ok(chains)
    }

    /// Whether a shared element is another owner's as well. He adds his entry without a look at ours; but that changes the
    /// generation, which our removal is bound to.
    fn is_another_s(&self, table: Table, owner: &Owner, entry: &str) -> Result<bool> {
        let names_it = |found: &ElementInfo| found.comment == entry && owner_of(&found.key) != Some(owner.id);
        self.has_element(table, LEDGER.name, names_it)
    }

    fn ledger_entry(&self, table: Table, owner: &Owner, number: u32) -> Result<Option<String>> {
        Ok(self.element(table, LEDGER.name, &ledger_key(owner, number))?.map(|element| element.comment))
    }

    /// Plans and commits until nobody came between. The kernel looks at the generation before anything else, so whatever
    /// else it refuses is refused for good.
    pub fn again(&self, what: &str, attempt: impl Fn() -> Result<()>) -> Result<()> {
        for _ in 0..TRIES {
            match attempt() {
                Err(e) if e.is_errno(Errno::ERESTART) => (),
                done => return done,
            }
        }
        Err(Error::new(Code::TRY_AGAIN, what)
            .with_details(format_args!("the rules changed during each of {TRIES} tries")))
    }
}

/// The table is not laid out yet, or somebody has an element already: what is there has to be read first.
fn needs_plan(error: &Error) -> bool {
    error.is_exists() || [Errno::ENOENT, Errno::EBUSY].iter().any(|errno| error.is_errno(*errno))
}

/// The chains that an owner's elements lead to.
#[derive(Default)]
struct Chains {
    /// No other element leads to these.
    unused: Vec<String>,
    /// To one at least another owner's element leads: so he is not the last, and the ledger need not be asked.
    is_any_shared: bool,
}

/// Every shared chain has two: what stays inside, and the rest.
const RULES_OF_SHARED_CHAIN: u32 = 2;

fn lay_out(batch: &mut Batch, layout: &Layout) {
    batch.table(layout.table, layout.comment).set(layout.table, &LEDGER);
    (layout.lay_out)(batch, layout.table);
}

/// Adds elements and their entries in the ledger, which are numbered from `first`.
fn add_elements(batch: &mut Batch, table: Table, owner: &Owner, first: u32, elements: &[OwnedElement]) {
    for (number, element) in (first..).zip(elements) {
        let verdict = element.chain.as_ref().map(|chain| Verdict::Goto(chain.name.clone()));
        if element.is_shared {
            batch.shared_element(table, element.set, &element.key, SHARED);
        } else {
            batch.element(table, element.set, &element.key, verdict.as_ref(), &owner.comment);
        }
        batch.element(table, LEDGER.name, &ledger_key(owner, number), None, &write_entry(element));
    }
}

fn ledger_key(owner: &Owner, number: u32) -> Vec<u8> {
    [&as_marks(owner.id)[..], &number.to_ne_bytes()].concat()
}

/// The id as nft(8) shows it in hex: marks are in the machine's byte order.
fn as_marks(mut id: [u8; 16]) -> [u8; 16] {
    if cfg!(target_endian = "little") {
        id.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    }
    id
}

/// The owner's id in a key of the ledger.
fn owner_of(key: &[u8]) -> Option<[u8; 16]> {
    key.get(..16)?.try_into().ok().map(as_marks)
}

/// A removal by id alone does not know the whole comment; every comment begins with the id in hex.
fn is_of(comment: &str, owner: &Owner) -> bool {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    comment.starts_with(&format!("{}-{}", hex(&owner.id[..8]), hex(&owner.id[8..])))
}

/// `<set> <key in hex>`, which a person can read in `nft list` as well.
fn write_entry(element: &OwnedElement) -> String {
    let key: String = element.key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {key}", element.set)
}

fn read_entry(entry: &str) -> Option<(String, Vec<u8>)> {
    let (set, hex) = entry.split_once(' ')?;
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let key = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some((set.to_owned(), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_entry_names_its_element() {
        let element = OwnedElement { set: "masq4", key: vec![10, 1, 0, 255], chain: None, is_shared: false };
        assert_eq!(write_entry(&element), "masq4 0a0100ff");
        assert_eq!(read_entry("masq4 0a0100ff"), Some(("masq4".into(), vec![10, 1, 0, 255])));
        for bad in ["", "masq4", "masq4 0", "masq4 zz", "masq4 ä0"] {
            assert_eq!(read_entry(bad), None, "{bad}");
        }
    }
}
