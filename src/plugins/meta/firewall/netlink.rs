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

    fn rule(&mut self, batch: &mut Batch, chain: &'static str, is_first: bool, rule: FilterRule) {
        add_rule(batch, self.table, chain, is_first, &rule);
        self.rules.push((chain, rule));
    }

    /// Puts a rule that is there in front of its chain, after all others were added.
    fn put_in_front(
        &mut self,
        batch: &mut Batch,
        chain: &'static str,
        handle: u64,
        rule: &FilterRule,
    ) {
        batch.delete_rule(self.table, chain, handle);
        add_rule(batch, self.table, chain, true, rule);
        self.moved += 1;
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
        let of_table = |part: &AddedTo| {
            let is_v6 = part.table == filter_table(true);
            let accepts = part
                .rules
                .iter()
                .zip(&part.handles)
                .filter(|((_, rule), _)| rule.target == Target::Accept);
            accepts.map(|(_, handle)| RuleHandle { is_v6, handle: *handle }).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_table).collect()
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
            added.0.push(plan_accept(nft, &mut batch, *table, ips, &wish.admin_chain)?);
        }
        nft.commit_rules(&batch, ACCEPTING).map(|handles| added.numbered(handles))
    })
}

/// Adds the rules of addresses to chains that are there.
fn append(nft: &Nft, tables: &[(Table, Vec<IpAddr>)]) -> Result<Added> {
    let (mut batch, mut added) = (Batch::default(), Added::default());
    for (table, ips) in tables {
        let mut part = AddedTo::new(*table, vec![]);
        for rule in ips.iter().flat_map(|ip| rules::of_address(*ip)) {
            part.rule(&mut batch, CNI_FORWARD, false, rule);
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
            plan_take_back(nft, &mut batch, part)?;
        }
        nft.commit(&batch, what)
    })
}

fn plan_take_back(nft: &Nft, batch: &mut Batch, part: &AddedTo) -> Result<()> {
    let table = part.table;
    let inside = nft.filter_rules(table, CNI_FORWARD)?;
    let forward = nft.filter_rules(table, FORWARD)?;
    let (ours_inside, ours_before) = (part.rules_of(CNI_FORWARD), part.rules_of(FORWARD));
    let before: HashSet<&Listed> = part.before.iter().collect();
    let is_of = |ours: &HashSet<&FilterRule>, listed: &Listed| {
        listed.rule.as_ref().is_some_and(|rule| ours.contains(rule))
    };
    let is_known = |listed: &Listed| before.contains(listed) || is_of(&ours_inside, listed);
    let is_all_ours = inside.iter().all(is_known) && !rules::others_rely_on_chains();
    let is_accept =
        |listed: &Listed| listed.rule.as_ref().is_some_and(|rule| rule.target == Target::Accept);
    for (chain, ours, listed) in of_chain(CNI_FORWARD, &ours_inside, &inside).chain(of_chain(
        FORWARD,
        &ours_before,
        &forward,
    )) {
        if is_of(ours, listed) && (is_all_ours || is_accept(listed)) {
            batch.delete_rule(table, chain, listed.handle);
        }
    }
    let jumps = forward.iter().filter(|listed| is_of(&ours_before, listed)).count();
    for chain in part.chains.iter().filter(|_| is_all_ours) {
        let ours = if chain == CNI_FORWARD { inside.len() + jumps } else { 1 };
        if nft
            .chain(table.family, table.name, chain)?
            .is_some_and(|info| info.uses as usize == ours)
        {
            batch.delete_chain(table, chain);
        }
    }
    Ok(())
}

/// The rules of a chain, each with its chain and those of ours in that.
fn of_chain<'a>(
    chain: &'static str,
    ours: &'a HashSet<&'a FilterRule>,
    rules: &'a [Listed],
) -> impl Iterator<Item = (&'static str, &'a HashSet<&'a FilterRule>, &'a Listed)> {
    rules.iter().map(move |listed| (chain, ours, listed))
}

/// The rules of a chain and what leads to it, counted together.
fn uses(nft: &Nft, table: Table, chain: &str) -> Result<usize> {
    Ok(nft.chain(table.family, table.name, chain)?.map_or(0, |info| info.uses as usize))
}

/// The first thing that is missing of what `accept` makes, and of what it would make where a chain
/// drops that was not there then.
pub fn verify(handles: &Handles, wish: &Wish, noted: &[RuleHandle]) -> Result<()> {
    let nft = handles.require_nft()?;
    for (table, ips) in tables_with_forward(nft, wish)? {
        let is_v6 = table == filter_table(true);
        if !noted.iter().any(|rule| rule.is_v6 == is_v6) && passes_all(nft, table)? {
            continue;
        }
        let require = |chain: &str, rule: &FilterRule, is_there: bool| match is_there {
            true => Ok(()),
            false => {
                let family = if is_v6 { "ip6" } else { "ip" };
                Err(rules::not_found(&format!("table \"{family} filter\""), chain, rule))
            }
        };
        for (chain, rule) in
            [(FORWARD, rules::jump()), (CNI_FORWARD, rules::admin_jump(&wish.admin_chain))]
        {
            require(chain, &rule, nft.has_filter_rule(table, chain, &rule)?)?;
        }
        let mut known = Known::of(noted_rules(nft, table, noted)?);
        let wanted: Vec<FilterRule> = ips.iter().flat_map(|ip| rules::of_address(*ip)).collect();
        if !wanted.iter().all(|rule| known.has(rule)) {
            known = Known::of(nft.filter_rules(table, CNI_FORWARD)?);
        }
        wanted.iter().try_for_each(|rule| require(CNI_FORWARD, rule, known.has(rule)))?;
    }
    Ok(())
}

/// Whether FORWARD drops nothing that we would accept. One that others have made since ADD may be
/// so: iptables makes it when it is first asked for anything, and never takes it away again.
fn passes_all(nft: &Nft, table: Table) -> Result<bool> {
    let is_dropping =
        nft.chain(table.family, table.name, FORWARD)?.is_some_and(|chain| chain.is_dropping);
    // What isolates bridges comes before the accepts.
    let is_of_cni = |listed: &Listed| match listed.rule.as_ref().map(|rule| &rule.target) {
        Some(Target::Chain(chain)) => [CNI_FORWARD, STAGE_1].contains(&chain.as_str()),
        Some(Target::Accept) | None => false,
    };
    Ok(!is_dropping && nft.filter_rules(table, FORWARD)?.iter().all(is_of_cni))
}

/// The kernel looks for a handle from the chain's beginning, so from so many on all rules are read.
const MANY: usize = 256;

/// Those of the noted rules that are in this table.
fn noted_rules(nft: &Nft, table: Table, noted: &[RuleHandle]) -> Result<Vec<Listed>> {
    let of_table = noted.iter().filter(|rule| filter_table(rule.is_v6) == table);
    if of_table.clone().count() >= MANY {
        let handles: HashSet<u64> = of_table.map(|rule| rule.handle).collect();
        let mut rules = nft.filter_rules(table, CNI_FORWARD)?;
        rules.retain(|listed| handles.contains(&listed.handle));
        return Ok(rules);
    }
    let found = of_table.map(|rule| nft.filter_rule(table, CNI_FORWARD, rule.handle));
    Ok(found.collect::<Result<Vec<Option<Listed>>>>()?.into_iter().flatten().collect())
}

/// Removes the rules of the addresses, whoever made them; with the last of all what leads to them.
pub fn remove(handles: &Handles, held: &Held) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let what = "remove from the tables of iptables-nft";
    nft.again(what, || {
        let mut batch = Batch::of_generation(nft.generation()?);
        for is_v6 in [false, true] {
            let ips = held.ips.iter().filter(|ip| ip.is_ipv6() == is_v6);
            let theirs: Vec<FilterRule> = ips.flat_map(|ip| rules::of_address(*ip)).collect();
            let table = filter_table(is_v6);
            if !theirs.is_empty()
                && !plan_remove_noted(nft, &mut batch, table, &theirs, &held.rules)?
            {
                plan_remove(
                    &nft,
                    &mut batch,
                    table,
                    &theirs,
                    held.is_any_noted(|ip| ip.is_ipv6() == is_v6),
                )?;
            }
        }
        nft.commit(&batch, what)
    })
}

/// Removes the rules by their handles. False, and nothing is planned, where they are not all known
/// or may be the last.
fn plan_remove_noted(
    nft: &Nft,
    batch: &mut Batch,
    table: Table,
    theirs: &[FilterRule],
    noted: &[RuleHandle],
) -> Result<bool> {
    let mut known = noted_rules(nft, table, noted)?;
    let wanted: HashSet<&FilterRule> = theirs.iter().collect();
    known.retain(|listed| listed.rule.as_ref().is_some_and(|rule| wanted.contains(rule)));
    let found: HashSet<&FilterRule> =
        known.iter().filter_map(|listed| listed.rule.as_ref()).collect();
    if !theirs.iter().all(|rule| found.contains(rule))
        || uses(nft, table, CNI_FORWARD)? <= known.len() + FEW
    {
        return Ok(false);
    }
    for listed in known {
        batch.delete_rule(table, CNI_FORWARD, listed.handle);
    }
    Ok(true)
}

/// With no more rules than so many it costs nothing to read them, and to see whether others are
/// left: besides those of addresses there are only jumps, in and out.
const FEW: usize = 32;

/// The table of each family that has addresses, where packets are forwarded through it.
fn tables_with_forward(nft: &Nft, wish: &Wish) -> Result<Vec<(Table, Vec<IpAddr>)>> {
    let mut found = vec![];
    for is_v6 in [false, true] {
        let (table, ips) = (filter_table(is_v6), wish.ips_of_family(is_v6));
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
        let forward = nft.filter_rules(*table, FORWARD)?;
        if !has(&forward, &rules::jump()) || late_isolation(&forward).is_some() {
            return Ok(false);
        }
        let are_connected =
            uses(nft, *table, CNI_FORWARD)? >= 2 && is_led_to(nft, *table, &wish.admin_chain)?;
        if !are_connected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether anything leads to a chain, which may have rules of its own.
fn is_led_to(nft: &Nft, table: Table, chain: &str) -> Result<bool> {
    let uses = uses(nft, table, chain)?;
    Ok(uses > 0 && uses > nft.filter_rules(table, chain)?.len())
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

fn plan_accept(
    nft: &Nft,
    batch: &mut Batch,
    table: Table,
    ips: &[IpAddr],
    admin_chain: &str,
) -> Result<AddedTo> {
    let inside = nft.filter_rules(table, CNI_FORWARD)?;
    let mut added = AddedTo::new(table, inside.clone());
    for chain in [CNI_FORWARD, admin_chain] {
        if nft.chain(table.family, table.name, chain)?.is_none() {
            added.chain(batch, chain);
        }
    }
    let forward = nft.filter_rules(table, FORWARD)?;
    if !has(&forward, &rules::jump()) {
        added.rule(batch, FORWARD, true, rules::jump());
    }
    if !has(&inside, &rules::admin_jump(admin_chain)) {
        added.rule(batch, CNI_FORWARD, true, rules::admin_jump(admin_chain));
    }
    let known = Known::of(inside);
    for rule in ips.iter().flat_map(|ip| rules::of_address(*ip)).filter(|rule| !known.has(rule)) {
        added.rule(batch, CNI_FORWARD, false, rule);
    }
    if let Some((handle, rule)) = late_isolation(&forward) {
        added.put_in_front(batch, FORWARD, handle, rule);
    }
    Ok(added)
}

/// `is_noted` is whether an ADD of ours has made the rules: then the chains are there for them,
/// though they may have been flushed.
fn plan_remove(
    nft: &Nft,
    batch: &mut Batch,
    table: Table,
    rules: &[FilterRule],
    is_noted: bool,
) -> Result<()> {
    let inside = nft.filter_rules(table, CNI_FORWARD)?;
    let rules: HashSet<&FilterRule> = rules.iter().collect();
    let is_theirs =
        |listed: &&Listed| listed.rule.as_ref().is_some_and(|rule| rules.contains(rule));
    let (theirs, others): (Vec<&Listed>, Vec<&Listed>) = inside.iter().partition(is_theirs);
    if theirs.is_empty() && !is_noted {
        return Ok(());
    }
    for listed in theirs {
        batch.delete_rule(table, CNI_FORWARD, listed.handle);
    }
    let others: Vec<Option<&FilterRule>> =
        others.iter().map(|listed| listed.rule.as_ref()).collect();
    let admin_chains = rules::admin_chains_of(&others);
    if admin_chains.len() == others.len() {
        plan_dismantling(nft, batch, table, inside.len(), &admin_chains)?;
    }
    Ok(())
}

/// Nothing is left but jumps to administrators' chains. Their chains stay where they have rules, or
/// are used elsewhere.
fn plan_dismantling(
    nft: &Nft,
    batch: &mut Batch,
    table: Table,
    rules_inside: usize,
    admin_chains: &[String],
) -> Result<()> {
    let forward = nft.filter_rules(table, FORWARD)?;
    // An ADD of the reference would put a new jump before what keeps bridges from each other.
    let is_isolating = forward.iter().any(|listed| leads_to(listed, STAGE_1));
    if is_isolating || nft.chain(table.family, table.name, CNI_FORWARD)?.is_none() {
        return Ok(());
    }
    let is_jump =
        |listed: &&Listed| listed.rule.as_ref().is_some_and(|rule| rule.does(&rules::jump()));
    let jumps: Vec<&Listed> = forward.iter().filter(is_jump).collect();
    if uses(nft, table, CNI_FORWARD)? != rules_inside + jumps.len()
        || rules::others_rely_on_chains()
    {
        return Ok(()); // somebody else leads packets there, or is about to
    }
    for jump in jumps {
        batch.delete_rule(table, FORWARD, jump.handle);
    }
    batch.delete_chain(table, CNI_FORWARD);
    for chain in admin_chains {
        if uses(nft, table, chain)? == 1 {
            batch.delete_chain(table, chain);
        }
    }
    Ok(())
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
