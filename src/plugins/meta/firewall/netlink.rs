//! The rules in the tables of iptables-nft, written and read over netlink: no program is started.
//!
//! Without a chain FORWARD, no rule of iptables drops packets and nothing has to be accepted.

use std::collections::HashSet;
use std::net::IpAddr;

use super::conf::Wish;
use super::rules::{self, CNI_FORWARD, FORWARD, STAGE_1};
use super::table::{Held, RuleHandle};
use crate::error::Result;
use crate::family::Family;
use crate::net::filter_rule::{FilterRule, Target};
use crate::net::nft::Nft;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::xtables::{Listed, add_rule, filter_table};
use crate::plugin::Handles;

const ACCEPTING: &str = "accept in the tables of iptables-nft";

/// What one ADD has added to the tables of iptables-nft.
#[derive(Debug, Default)]
pub struct Added(Vec<AddedTo>);

/// The additions to one table.
#[derive(Debug)]
struct AddedTo {
    table: Table,
    /// The previous rules of `CNI-FORWARD`, if they were read.
    before: Vec<Listed>,
    chains: Vec<String>,
    rules: Vec<(&'static str, FilterRule)>,
    handles: Vec<u64>,
    /// How many existing rules were moved. Their handles come last.
    moved: usize,
}

impl AddedTo {
    fn new(table: Table, before: Vec<Listed>) -> AddedTo {
        AddedTo { table, before, chains: vec![], rules: vec![], handles: vec![], moved: 0 }
    }

    fn chain(&mut self, batch: &mut Batch, name: &str) {
        batch.chain(self.table, name);
        self.chains.push(name.to_owned());
    }

    /// Adds a rule at the beginning of a chain.
    fn first(&mut self, batch: &mut Batch, chain: &'static str, rule: FilterRule) {
        add_rule(batch, self.table, chain, true, &rule);
        self.rules.push((chain, rule));
    }

    /// Adds a rule at the end of a chain.
    fn last(&mut self, batch: &mut Batch, chain: &'static str, rule: FilterRule) {
        add_rule(batch, self.table, chain, false, &rule);
        self.rules.push((chain, rule));
    }

    /// Moves a rule of FORWARD to the beginning, after all other rules were added.
    fn put_in_front(&mut self, batch: &mut Batch, handle: u64, rule: &FilterRule) {
        batch.delete_rule(self.table, FORWARD, handle);
        add_rule(batch, self.table, FORWARD, true, rule);
        self.moved += 1;
    }

    /// Returns the rules of addresses.
    fn accepts(&self) -> impl Iterator<Item = RuleHandle> {
        let table = self.table;
        let numbered = self.rules.iter().zip(&self.handles);
        numbered
            .filter(|((_, rule), _)| rule.target == Target::Accept)
            .map(move |(_, handle)| RuleHandle { table, handle: *handle })
    }

    /// Returns the rules that were added to a chain.
    fn rules_of(&self, chain: &str) -> HashSet<&FilterRule> {
        self.rules.iter().filter(|(of, _)| *of == chain).map(|(_, rule)| rule).collect()
    }
}

impl Added {
    /// Assigns the handles, which are in the order in which the rules were added.
    fn numbered(mut self, handles: Vec<u64>) -> Added {
        let mut handles = handles.into_iter();
        for part in &mut self.0 {
            part.handles = handles.by_ref().take(part.rules.len() + part.moved).collect();
        }
        self
    }

    /// Returns the rules of addresses.
    pub fn accepts(&self) -> Vec<RuleHandle> {
        self.0.iter().flat_map(AddedTo::accepts).collect()
    }
}

/// Accepts the packets of the addresses, for both families in one transaction; returns what was
/// added. `are_new` means that the addresses are known to have no rules yet: then a chain with the
/// rules of thousands of containers is not read.
pub fn accept(handles: &Handles, wish: &Wish, are_new: bool) -> Result<Added> {
    let nft = handles.require_nft()?;
    let tables = tables_with_forward(nft, wish)?;
    if are_new && are_laid_out(nft, &tables, wish)? {
        match append(nft, &tables) {
            // the last container has just gone, and the chain with it
            Err(error) if error.is_not_found() => (),
            done => return done,
        }
    }
    nft.again(ACCEPTING, || {
        let mut batch = Batch::of_generation(nft.generation()?);
        let mut added = Added::default();
        for (table, ips) in &tables {
            let filter = Filter { nft, table: *table };
            added.0.push(filter.plan_accept(&mut batch, ips, &wish.admin_chain)?);
        }
        nft.commit_rules(&batch, ACCEPTING).map(|handles| added.numbered(handles))
    })
}

/// Adds the rules of addresses to existing chains.
fn append(nft: &Nft, tables: &[(Table, Vec<IpAddr>)]) -> Result<Added> {
    let mut batch = Batch::default();
    let mut added = Added::default();
    for (table, ips) in tables {
        let mut part = AddedTo::new(*table, vec![]);
        for rule in ips.iter().flat_map(|ip| rules::of_address(*ip)) {
            part.last(&mut batch, CNI_FORWARD, rule);
        }
        added.0.push(part);
    }
    nft.commit_rules(&batch, ACCEPTING).map(|handles| added.numbered(handles))
}

/// Reverts what `accept` has added. Chains, and the jumps to them, stay if other rules have come to
/// need them.
pub fn take_back(handles: &Handles, added: &Added) -> Result<()> {
    let nft = handles.require_nft()?;
    let what = "take back from the tables of iptables-nft";
    nft.again(what, || {
        let mut batch = Batch::of_generation(nft.generation()?);
        for part in &added.0 {
            Filter { nft, table: part.table }.plan_take_back(&mut batch, part)?;
        }
        nft.commit(&batch, what)
    })
}

/// Verifies what `accept` makes, and what it would make now if a chain that drops has appeared
/// since. Reports the first thing that is missing.
pub fn verify(handles: &Handles, wish: &Wish, noted: &[RuleHandle]) -> Result<()> {
    let nft = handles.require_nft()?;
    for (table, ips) in tables_with_forward(nft, wish)? {
        let filter = Filter { nft, table };
        let is_noted = noted.iter().any(|rule| rule.table == table);
        if is_noted || !filter.passes_all()? {
            filter.verify_jumps(&wish.admin_chain)?;
            filter.verify_accepts(&ips, noted)?;
        }
    }
    Ok(())
}

/// From this number of handles on, all rules are read: the kernel searches for each handle from the
/// chain's beginning.
const MANY: usize = 256;

/// Removes the rules of the addresses, whichever program made them, and with the last rules the
/// jumps to them.
pub fn remove(handles: &Handles, held: &Held) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let what = "remove from the tables of iptables-nft";
    nft.again(what, || {
        let mut batch = Batch::of_generation(nft.generation()?);
        for family in Family::ALL {
            let ips = held.ips.iter().filter(|ip| Family::of(**ip) == family);
            let theirs: Vec<FilterRule> = ips.flat_map(|ip| rules::of_address(*ip)).collect();
            let filter = Filter { nft, table: filter_table(family) };
            if !theirs.is_empty() && !filter.plan_remove_noted(&mut batch, &theirs, &held.rules)? {
                let is_noted = held.is_any_noted(|ip| Family::of(ip) == family);
                filter.plan_remove(&mut batch, &theirs, is_noted)?;
            }
        }
        nft.commit(&batch, what)
    })
}

/// Up to this number of rules it costs nothing to read them all, and to see whether other
/// containers' rules are left: besides the rules of addresses there are only jumps, in and out.
const FEW: usize = 32;

/// Returns the table of each family with addresses, if packets are forwarded through it.
fn tables_with_forward(nft: &Nft, wish: &Wish) -> Result<Vec<(Table, Vec<IpAddr>)>> {
    let mut found = vec![];
    for family in Family::ALL {
        let table = filter_table(family);
        let ips = wish.ips_of(family);
        if !ips.is_empty() && nft.chain(table.family, table.name, FORWARD)?.is_some() {
            found.push((table, ips));
        }
    }
    Ok(found)
}

/// Whether everything but the rules of addresses exists: the jump from FORWARD, and the jump to the
/// administrator's chain.
fn are_laid_out(nft: &Nft, tables: &[(Table, Vec<IpAddr>)], wish: &Wish) -> Result<bool> {
    for (table, _) in tables {
        let filter = Filter { nft, table: *table };
        let forward = filter.rules(FORWARD)?;
        if !has(&forward, &rules::jump()) || late_isolation(&forward).is_some() {
            return Ok(false);
        }
        let are_connected =
            filter.uses(CNI_FORWARD)? >= 2 && filter.is_led_to(&wish.admin_chain)?;
        if !are_connected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the jump to the isolation chains if it does not come before the jump to the accepts. It
/// stays after the last container, so the jump to the accepts may be newer, and the newest rule is
/// in front.
fn late_isolation(forward: &[Listed]) -> Option<(u64, &FilterRule)> {
    let isolation = forward.iter().position(|listed| leads_to(listed, STAGE_1))?;
    let accepts = forward.iter().position(|listed| leads_to(listed, CNI_FORWARD));
    let Listed { handle, rule } = &forward[isolation];
    match accepts {
        Some(accepts) if isolation < accepts => None,
        _ => Some((*handle, rule.as_ref()?)),
    }
}

fn leads_to(listed: &Listed, chain: &str) -> bool {
    listed.rule.as_ref().is_some_and(|rule| rule.target == Target::Chain(chain.to_owned()))
}

/// iptables' table `filter` of one family.
struct Filter<'a> {
    nft: &'a Nft,
    table: Table,
}

impl Filter<'_> {
    fn rules(&self, chain: &str) -> Result<Vec<Listed>> {
        self.nft.filter_rules(self.table, chain)
    }

    /// Returns the number of rules in a chain plus the number of jumps to it.
    fn uses(&self, chain: &str) -> Result<usize> {
        let found = self.nft.chain(self.table.family, self.table.name, chain)?;
        Ok(found.map_or(0, |info| info.uses as usize))
    }

    /// Whether any rule leads to a chain, which may have rules of its own.
    fn is_led_to(&self, chain: &str) -> Result<bool> {
        let uses = self.uses(chain)?;
        Ok(uses > 0 && uses > self.rules(chain)?.len())
    }

    fn has_chain(&self, chain: &str) -> Result<bool> {
        Ok(self.nft.chain(self.table.family, self.table.name, chain)?.is_some())
    }

    /// Whether FORWARD drops nothing that we would accept. A FORWARD that another program has
    /// created since ADD may be like that: iptables creates it when it is first called, and never
    /// removes it.
    fn passes_all(&self) -> Result<bool> {
        let forward = self.nft.chain(self.table.family, self.table.name, FORWARD)?;
        let is_dropping = forward.is_some_and(|chain| chain.is_dropping);
        Ok(!is_dropping && self.rules(FORWARD)?.iter().all(is_of_cni))
    }

    fn verify_jumps(&self, admin_chain: &str) -> Result<()> {
        for (chain, rule) in
            [(FORWARD, rules::jump()), (CNI_FORWARD, rules::admin_jump(admin_chain))]
        {
            let is_there = self.nft.has_filter_rule(self.table, chain, &rule)?;
            self.require(chain, &rule, is_there)?;
        }
        Ok(())
    }

    fn verify_accepts(&self, ips: &[IpAddr], noted: &[RuleHandle]) -> Result<()> {
        let mut known = Known::of(self.noted_rules(noted)?);
        let wanted: Vec<FilterRule> = ips.iter().flat_map(|ip| rules::of_address(*ip)).collect();
        if !wanted.iter().all(|rule| known.has(rule)) {
            known = Known::of(self.rules(CNI_FORWARD)?);
        }
        wanted.iter().try_for_each(|rule| self.require(CNI_FORWARD, rule, known.has(rule)))
    }

    fn require(&self, chain: &str, rule: &FilterRule, is_there: bool) -> Result<()> {
        if is_there {
            Ok(())
        } else {
            let place = format!("table \"{} filter\"", self.table.family);
            Err(rules::not_found(&place, chain, rule))
        }
    }

    /// Returns those of the recorded rules that are in this table.
    fn noted_rules(&self, noted: &[RuleHandle]) -> Result<Vec<Listed>> {
        let of_table = noted.iter().filter(|rule| rule.table == self.table);
        if of_table.clone().count() >= MANY {
            let handles: HashSet<u64> = of_table.map(|rule| rule.handle).collect();
            let mut rules = self.rules(CNI_FORWARD)?;
            rules.retain(|listed| handles.contains(&listed.handle));
            return Ok(rules);
        }
        let found = of_table.map(|rule| self.nft.filter_rule(self.table, CNI_FORWARD, rule.handle));
        Ok(found.collect::<Result<Vec<Option<Listed>>>>()?.into_iter().flatten().collect())
    }

    fn plan_accept(&self, batch: &mut Batch, ips: &[IpAddr], admin_chain: &str) -> Result<AddedTo> {
        let inside = self.rules(CNI_FORWARD)?;
        let mut added = AddedTo::new(self.table, inside.clone());
        for chain in [CNI_FORWARD, admin_chain] {
            if !self.has_chain(chain)? {
                added.chain(batch, chain);
            }
        }
        let forward = self.rules(FORWARD)?;
        if !has(&forward, &rules::jump()) {
            added.first(batch, FORWARD, rules::jump());
        }
        if !has(&inside, &rules::admin_jump(admin_chain)) {
            added.first(batch, CNI_FORWARD, rules::admin_jump(admin_chain));
        }
        let known = Known::of(inside);
        for rule in ips.iter().flat_map(|ip| rules::of_address(*ip)).filter(|rule| !known.has(rule))
        {
            added.last(batch, CNI_FORWARD, rule);
        }
        if let Some((handle, rule)) = late_isolation(&forward) {
            added.put_in_front(batch, handle, rule);
        }
        Ok(added)
    }

    fn plan_take_back(&self, batch: &mut Batch, part: &AddedTo) -> Result<()> {
        let inside = self.rules(CNI_FORWARD)?;
        let forward = self.rules(FORWARD)?;
        let ours_inside = part.rules_of(CNI_FORWARD);
        let ours_before = part.rules_of(FORWARD);
        let before: HashSet<&Listed> = part.before.iter().collect();
        let is_known = |listed: &Listed| before.contains(listed) || is_among(listed, &ours_inside);
        let is_all_ours = inside.iter().all(is_known) && !rules::others_rely_on_chains();
        let goes = |listed: &Listed, ours: &HashSet<&FilterRule>| {
            is_among(listed, ours) && (is_all_ours || is_accept(listed))
        };
        let goes_inside = inside.iter().filter(|listed| goes(listed, &ours_inside));
        self.plan_deletion(batch, CNI_FORWARD, goes_inside);
        let goes_before = forward.iter().filter(|listed| goes(listed, &ours_before));
        self.plan_deletion(batch, FORWARD, goes_before);
        let jumps = forward.iter().filter(|listed| is_among(listed, &ours_before)).count();
        for chain in part.chains.iter().filter(|_| is_all_ours) {
            let ours = if chain == CNI_FORWARD { inside.len() + jumps } else { 1 };
            let found = self.nft.chain(self.table.family, self.table.name, chain)?;
            if found.is_some_and(|info| info.uses as usize == ours) {
                batch.delete_chain(self.table, chain);
            }
        }
        Ok(())
    }

    /// Plans to remove the rules by their handles. Returns false, without a plan, if not all
    /// handles are known, or if the rules may be the last ones.
    fn plan_remove_noted(
        &self,
        batch: &mut Batch,
        theirs: &[FilterRule],
        noted: &[RuleHandle],
    ) -> Result<bool> {
        let mut known = self.noted_rules(noted)?;
        let wanted: HashSet<&FilterRule> = theirs.iter().collect();
        known.retain(|listed| is_among(listed, &wanted));
        let found: HashSet<&FilterRule> =
            known.iter().filter_map(|listed| listed.rule.as_ref()).collect();
        if !theirs.iter().all(|rule| found.contains(rule))
            || self.uses(CNI_FORWARD)? <= known.len() + FEW
        {
            return Ok(false);
        }
        self.plan_deletion(batch, CNI_FORWARD, &known);
        Ok(true)
    }

    /// Plans to remove the rules, and the chains with the last ones. `is_noted` means that an ADD
    /// of ours made the rules: then the chains are there for them, even if the rules were flushed.
    fn plan_remove(&self, batch: &mut Batch, rules: &[FilterRule], is_noted: bool) -> Result<()> {
        let inside = self.rules(CNI_FORWARD)?;
        let rules: HashSet<&FilterRule> = rules.iter().collect();
        let (theirs, others): (Vec<&Listed>, Vec<&Listed>) =
            inside.iter().partition(|listed| is_among(listed, &rules));
        if theirs.is_empty() && !is_noted {
            return Ok(());
        }
        self.plan_deletion(batch, CNI_FORWARD, theirs);
        let others: Vec<Option<&FilterRule>> =
            others.iter().map(|listed| listed.rule.as_ref()).collect();
        let admin_chains = rules::admin_chains_of(&others);
        if admin_chains.len() == others.len() {
            self.plan_dismantling(batch, inside.len(), &admin_chains)?;
        }
        Ok(())
    }

    /// Plans to remove the chain, which has only jumps to administrators' chains left. Those chains
    /// stay if they have rules, or are used elsewhere.
    fn plan_dismantling(
        &self,
        batch: &mut Batch,
        rules_inside: usize,
        admin_chains: &[String],
    ) -> Result<()> {
        let forward = self.rules(FORWARD)?;
        // An ADD of the reference would put a new jump before the isolation.
        let is_isolating = forward.iter().any(|listed| leads_to(listed, STAGE_1));
        if is_isolating || !self.has_chain(CNI_FORWARD)? {
            return Ok(());
        }
        let is_jump =
            |listed: &&Listed| listed.rule.as_ref().is_some_and(|rule| rule.does(&rules::jump()));
        let jumps: Vec<&Listed> = forward.iter().filter(is_jump).collect();
        if self.uses(CNI_FORWARD)? != rules_inside + jumps.len() || rules::others_rely_on_chains() {
            return Ok(()); // another program leads packets there, or is about to
        }
        self.plan_deletion(batch, FORWARD, jumps);
        batch.delete_chain(self.table, CNI_FORWARD);
        for chain in admin_chains {
            if self.uses(chain)? == 1 {
                batch.delete_chain(self.table, chain);
            }
        }
        Ok(())
    }

    /// Plans to delete these rules of a chain.
    fn plan_deletion<'l>(
        &self,
        batch: &mut Batch,
        chain: &str,
        rules: impl IntoIterator<Item = &'l Listed>,
    ) {
        for listed in rules {
            batch.delete_rule(self.table, chain, listed.handle);
        }
    }
}

/// Whether the rule leads to the accepts, or to the isolation, which comes before them.
fn is_of_cni(listed: &Listed) -> bool {
    match listed.rule.as_ref().map(|rule| &rule.target) {
        Some(Target::Chain(chain)) => [CNI_FORWARD, STAGE_1].contains(&chain.as_str()),
        Some(Target::Accept) | None => false,
    }
}

fn is_accept(listed: &Listed) -> bool {
    listed.rule.as_ref().is_some_and(|rule| rule.target == Target::Accept)
}

fn is_among(listed: &Listed, rules: &HashSet<&FilterRule>) -> bool {
    listed.rule.as_ref().is_some_and(|rule| rules.contains(rule))
}

fn has(present: &[Listed], rule: &FilterRule) -> bool {
    present.iter().any(|listed| listed.rule.as_ref().is_some_and(|found| found.does(rule)))
}

/// The existing rules, to look up those without comments.
struct Known(HashSet<FilterRule>);

impl Known {
    fn of(listed: Vec<Listed>) -> Known {
        Known(listed.into_iter().filter_map(|listed| listed.rule).collect())
    }

    fn has(&self, rule: &FilterRule) -> bool {
        self.0.contains(rule)
    }
}
