//! The rules in the tables of iptables-nft, written and read over netlink: no program is started.
//!
//! Where there is no chain FORWARD, nothing of iptables drops and nothing has to be accepted.

use std::collections::HashSet;
use std::net::IpAddr;

use super::conf::Wish;
use super::rules::{self, CNI_FORWARD, FORWARD, STAGE_1};
use super::table::{Held, RuleHandle};
use crate::error::Result;
use crate::net::filter_rule::{FilterRule, Target};
use crate::net::nft::Nft;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::xtables::{Listed, add_rule, filter_table};
use crate::plugin::Handles;

const ACCEPTING: &str = "accept in the tables of iptables-nft";

/// What one ADD has put into the tables of iptables-nft.
#[derive(Debug, Default)]
pub struct Added(Vec<AddedTo>);

/// The part of one table.
#[derive(Debug)]
struct AddedTo {
    table: Table,
    /// What `CNI-FORWARD` had before, where it was looked at.
    before: Vec<Listed>,
    chains: Vec<String>,
    rules: Vec<(&'static str, FilterRule)>,
    handles: Vec<u64>,
    /// How many rules were there before and have another place now. Their handles come last.
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

    /// Adds a rule in front of a chain.
    fn first(&mut self, batch: &mut Batch, chain: &'static str, rule: FilterRule) {
        add_rule(batch, self.table, chain, true, &rule);
        self.rules.push((chain, rule));
    }

    /// Adds a rule at the end of a chain.
    fn last(&mut self, batch: &mut Batch, chain: &'static str, rule: FilterRule) {
        add_rule(batch, self.table, chain, false, &rule);
        self.rules.push((chain, rule));
    }

    /// Puts a rule that FORWARD has in front of it, after all others were added.
    fn put_in_front(&mut self, batch: &mut Batch, handle: u64, rule: &FilterRule) {
        batch.delete_rule(self.table, FORWARD, handle);
        add_rule(batch, self.table, FORWARD, true, rule);
        self.moved += 1;
    }

    /// The rules of addresses.
    fn accepts(&self) -> impl Iterator<Item = RuleHandle> {
        let is_v6 = self.table == filter_table(true);
        let numbered = self.rules.iter().zip(&self.handles);
        numbered
            .filter(|((_, rule), _)| rule.target == Target::Accept)
            .map(move |(_, handle)| RuleHandle { is_v6, handle: *handle })
    }

    /// The rules that it added to a chain.
    fn rules_of(&self, chain: &str) -> HashSet<&FilterRule> {
        self.rules.iter().filter(|(of, _)| *of == chain).map(|(_, rule)| rule).collect()
    }
}

impl Added {
    /// The handles are in the order in which the rules were added.
    fn numbered(mut self, handles: Vec<u64>) -> Added {
        let mut handles = handles.into_iter();
        for part in &mut self.0 {
            part.handles = handles.by_ref().take(part.rules.len() + part.moved).collect();
        }
        self
    }

    /// The rules of addresses.
    pub fn accepts(&self) -> Vec<RuleHandle> {
        self.0.iter().flat_map(AddedTo::accepts).collect()
    }
}

/// Accepts the packets of the addresses, of both families in one transaction; returns what was not
/// there. `are_new` is whether the addresses are known to have no rules yet: then a chain with
/// those of thousands of containers is not read.
pub fn accept(handles: &Handles, wish: &Wish, are_new: bool) -> Result<Added> {
    let nft = handles.require_nft()?;
    let tables = tables_with_forward(nft, wish)?;
    if are_new && are_laid_out(nft, &tables, wish)? {
        match append(nft, &tables) {
            // the last container of all has just gone, and the chain with it
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

/// Adds the rules of addresses to chains that are there.
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

/// Takes back what `accept` has added. Chains, and what leads to them, stay where others have come
/// to need them.
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

/// The first thing that is missing of what `accept` makes, and of what it would make where a chain
/// drops that was not there then.
pub fn verify(handles: &Handles, wish: &Wish, noted: &[RuleHandle]) -> Result<()> {
    let nft = handles.require_nft()?;
    for (table, ips) in tables_with_forward(nft, wish)? {
        let filter = Filter { nft, table };
        let is_noted = noted.iter().any(|rule| filter_table(rule.is_v6) == table);
        if is_noted || !filter.passes_all()? {
            filter.verify_jumps(&wish.admin_chain)?;
            filter.verify_accepts(&ips, noted)?;
        }
    }
    Ok(())
}

/// The kernel looks for a handle from the chain's beginning, so from so many on all rules are read.
const MANY: usize = 256;

/// Removes the rules of the addresses, whoever made them; with the last of all what leads to them.
pub fn remove(handles: &Handles, held: &Held) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let what = "remove from the tables of iptables-nft";
    nft.again(what, || {
        let mut batch = Batch::of_generation(nft.generation()?);
        for is_v6 in [false, true] {
            let ips = held.ips.iter().filter(|ip| ip.is_ipv6() == is_v6);
            let theirs: Vec<FilterRule> = ips.flat_map(|ip| rules::of_address(*ip)).collect();
            let filter = Filter { nft, table: filter_table(is_v6) };
            if !theirs.is_empty() && !filter.plan_remove_noted(&mut batch, &theirs, &held.rules)? {
                let is_noted = held.is_any_noted(|ip| ip.is_ipv6() == is_v6);
                filter.plan_remove(&mut batch, &theirs, is_noted)?;
            }
        }
        nft.commit(&batch, what)
    })
}

/// With no more rules than so many it costs nothing to read them, and to see whether others are
/// left: besides those of addresses there are only jumps, in and out.
const FEW: usize = 32;

/// The table of each family that has addresses, where packets are forwarded through it.
fn tables_with_forward(nft: &Nft, wish: &Wish) -> Result<Vec<(Table, Vec<IpAddr>)>> {
    let mut found = vec![];
    for is_v6 in [false, true] {
        let table = filter_table(is_v6);
        let ips = wish.ips_of_family(is_v6);
        if !ips.is_empty() && nft.chain(table.family, table.name, FORWARD)?.is_some() {
            found.push((table, ips));
        }
    }
    Ok(found)
}

/// Whether all is there but the rules of addresses: a jump from FORWARD, and one to the
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

/// What leads to the chains that keep bridges from each other, where it does not come before what
/// leads to the accepts: it stays after the last container, and the newest rule is in front.
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

    /// The rules of a chain and what leads to it, counted together.
    fn uses(&self, chain: &str) -> Result<usize> {
        let found = self.nft.chain(self.table.family, self.table.name, chain)?;
        Ok(found.map_or(0, |info| info.uses as usize))
    }

    /// Whether anything leads to a chain, which may have rules of its own.
    fn is_led_to(&self, chain: &str) -> Result<bool> {
        let uses = self.uses(chain)?;
        Ok(uses > 0 && uses > self.rules(chain)?.len())
    }

    fn has_chain(&self, chain: &str) -> Result<bool> {
        Ok(self.nft.chain(self.table.family, self.table.name, chain)?.is_some())
    }

    /// Whether FORWARD drops nothing that we would accept. One that others have made since ADD may
    /// be so: iptables makes it when it is first asked for anything, and never takes it away again.
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
            let family = if self.table == filter_table(true) { "ip6" } else { "ip" };
            Err(rules::not_found(&format!("table \"{family} filter\""), chain, rule))
        }
    }

    /// Those of the noted rules that are in this table.
    fn noted_rules(&self, noted: &[RuleHandle]) -> Result<Vec<Listed>> {
        let of_table = noted.iter().filter(|rule| filter_table(rule.is_v6) == self.table);
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

    /// Removes the rules by their handles. False, and nothing is planned, where they are not all
    /// known or may be the last.
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

    /// `is_noted` is whether an ADD of ours has made the rules: then the chains are there for them,
    /// though they may have been flushed.
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

    /// Nothing is left but jumps to administrators' chains. Their chains stay where they have
    /// rules, or are used elsewhere.
    fn plan_dismantling(
        &self,
        batch: &mut Batch,
        rules_inside: usize,
        admin_chains: &[String],
    ) -> Result<()> {
        let forward = self.rules(FORWARD)?;
        // An ADD of the reference would put a new jump before what keeps bridges from each other.
        let is_isolating = forward.iter().any(|listed| leads_to(listed, STAGE_1));
        if is_isolating || !self.has_chain(CNI_FORWARD)? {
            return Ok(());
        }
        let is_jump =
            |listed: &&Listed| listed.rule.as_ref().is_some_and(|rule| rule.does(&rules::jump()));
        let jumps: Vec<&Listed> = forward.iter().filter(is_jump).collect();
        if self.uses(CNI_FORWARD)? != rules_inside + jumps.len() || rules::others_rely_on_chains() {
            return Ok(()); // somebody else leads packets there, or is about to
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

    /// Deletes these rules of a chain.
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

/// Whether the rule leads to the accepts, or to what isolates bridges, which comes before them.
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

/// Rules without comments that are there.
struct Known(HashSet<FilterRule>);

impl Known {
    fn of(listed: Vec<Listed>) -> Known {
        Known(listed.into_iter().filter_map(|listed| listed.rule).collect())
    }

    fn has(&self, rule: &FilterRule) -> bool {
        self.0.contains(rule)
    }
}
