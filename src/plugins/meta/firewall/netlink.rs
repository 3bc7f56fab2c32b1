//! The rules in the tables of iptables-nft, written and read over netlink: no program is started.
//!
//! Without a chain FORWARD, no rule of iptables drops packets and nothing has to be accepted now.
//! Where iptables-nft is installed, ADD makes the chain as that program would: Docker or ufw may set
//! its policy to DROP later, and then find the accepts. So does it where the administrator's chain
//! is there already.

use std::collections::HashSet;
use std::net::IpAddr;

use super::conf::Wish;
use super::rules::{self, CNI_FORWARD, FORWARD, STAGE_1};
use super::table::{HOOK, Held, RuleHandle};
use super::verdict::{self, Kind};
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::net::filter_rule::{FilterRule, Target};
use crate::net::iptables::Variant;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::xtables::{Listed, add_rule, filter_table};
use crate::net::nft::{ChainInfo, Nft};
use crate::plugin::Handles;

/// The comment by which DEL knows a chain FORWARD, and its table, that an ADD has made.
pub const MADE: &str = "made by cni-multi, and removed with the last container";

const ACCEPTING: &str = "accept in the tables of iptables-nft";

/// What one ADD has added to the tables of iptables-nft.
#[derive(Debug)]
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

    /// Adds a rule at the beginning of a chain.
    fn first(&mut self, batch: &mut Batch, chain: &'static str, rule: FilterRule) {
        add_rule(batch, self.table, chain, true, &rule);
        self.rules.push((chain, rule));
    }

    /// Adds rules of addresses at the end of their chain.
    fn accept(&mut self, batch: &mut Batch, rules: impl Iterator<Item = FilterRule>) {
        for rule in rules {
            add_rule(batch, self.table, CNI_FORWARD, false, &rule);
            self.rules.push((CNI_FORWARD, rule));
        }
    }

    /// Returns the rules that were added to a chain.
    fn rules_of(&self, chain: &str) -> HashSet<&FilterRule> {
        self.rules.iter().filter(|(of, _)| *of == chain).map(|(_, rule)| rule).collect()
    }

    /// Returns our rules of a chain: those of addresses, and the jumps if they go too.
    fn ours<'l>(&self, chain: &str, found: &'l [Listed], with_jumps: bool) -> Vec<&'l Listed> {
        let ours = self.rules_of(chain);
        let is_accept =
            |listed: &Listed| listed.rule.as_ref().is_some_and(|it| it.target == Target::Accept);
        let goes = |listed: &&Listed| is_among(listed, &ours) && (with_jumps || is_accept(listed));
        found.iter().filter(goes).collect()
    }
}

impl Added {
    /// Returns the rules of addresses.
    pub fn accepts(&self) -> Vec<RuleHandle> {
        let mut accepts = vec![];
        for AddedTo { table, rules, handles, .. } in &self.0 {
            let numbered = rules.iter().zip(handles);
            let of_addresses = numbered.filter(|((_, rule), _)| rule.target == Target::Accept);
            accepts.extend(
                of_addresses.map(|(_, handle)| RuleHandle { table: *table, handle: *handle }),
            );
        }
        accepts
    }
}

/// Accepts the packets of the addresses, for both families in one transaction; returns what was
/// added. `are_new` means that the addresses are known to have no rules yet: then a chain with the
/// rules of thousands of containers is not read.
pub fn accept(handles: &Handles, wish: &Wish, are_new: bool) -> Result<Added> {
    let nft = handles.require_nft()?;
    // Accepts belong into a table that is in use, or will be as soon as the host's iptables is called.
    let tables = tables(nft, wish, |filter, family| {
        Ok(filter.is_in_use(wish)?
            || handles.iptables().variant_of_host(family) == Some(Variant::Nft))
    })?;
    if are_new && are_laid_out(&tables, &wish.admin_chain)? {
        let append = |batch: &mut Batch, filter: &Filter<'_>, ips: &[IpAddr]| {
            let mut added = AddedTo::new(filter.table, vec![]);
            added.accept(batch, wish.rules_of(ips).into_iter());
            Ok(added)
        };
        match add(nft, Batch::default(), &tables, append) {
            // the last container has just gone, and the chain with it
            Err(error) if error.is_not_found() => (),
            done => return done,
        }
    }
    let lay_out = |tables: &[(Filter<'_>, Vec<IpAddr>)]| {
        nft.again(ACCEPTING, || {
            let batch = Batch::of_generation(nft.generation()?);
            add(nft, batch, tables, |batch, filter, ips| filter.plan_accept(batch, ips, wish))
        })
    };
    match lay_out(&tables) {
        // A kernel without the extensions of iptables: no program can make a FORWARD that drops.
        Err(error) if error.is_not_found() => {
            let needed = self::tables(nft, wish, |filter, _| filter.is_in_use(wish))?;
            if needed.len() == tables.len() {
                return Err(error);
            }
            lay_out(&needed)
        }
        done => done,
    }
}

/// Adds what `plan` returns for each table, in one transaction.
fn add(
    nft: &Nft,
    mut batch: Batch,
    tables: &[(Filter<'_>, Vec<IpAddr>)],
    plan: impl Fn(&mut Batch, &Filter<'_>, &[IpAddr]) -> Result<AddedTo>,
) -> Result<Added> {
    let mut added = vec![];
    for (filter, ips) in tables {
        added.push(plan(&mut batch, filter, ips)?);
    }
    // The handles are in the order in which the rules were added.
    let mut handles = nft.commit_rules(&batch, ACCEPTING)?.into_iter();
    for part in &mut added {
        part.handles = handles.by_ref().take(part.rules.len() + part.moved).collect();
    }
    Ok(Added(added))
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
/// since.
pub fn verify(handles: &Handles, wish: &Wish, noted: &[RuleHandle]) -> Result<()> {
    let nft = handles.require_nft()?;
    let mut found = ErrorList::default();
    for (filter, ips) in tables(nft, wish, |filter, _| filter.has_chain(FORWARD))? {
        let table = filter.table;
        let is_noted = noted.iter().any(|rule| rule.table == table);
        if !is_noted && filter.passes_without_us(handles, &ips, &wish.admin_chain)? {
            continue;
        }
        let place = format!("table \"{} filter\"", table.family);
        let jumps = [(FORWARD, rules::jump()), (CNI_FORWARD, rules::admin_jump(&wish.admin_chain))];
        for (chain, jump) in jumps {
            if found.push(nft.has_filter_rule(table, chain, &jump)) == Some(false) {
                found.add(rules::not_found(&place, chain, &jump));
            }
        }
        let missing = filter.missing_accepts(wish.rules_of(&ips), noted);
        for rule in found.push(missing).unwrap_or_default() {
            found.add(rules::not_found(&place, CNI_FORWARD, &rule));
        }
    }
    found.finish()
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
            Filter { nft, table: filter_table(family) }
                .plan_remove_all(&mut batch, held, family)?;
        }
        nft.commit(&batch, what)
    })
}

/// Up to this number of rules it costs nothing to read them all, and to see whether other
/// containers' rules are left: besides the rules of addresses there are only jumps, in and out.
const FEW: usize = 32;

/// Returns the table of each family with addresses, if it is wanted.
fn tables<'n>(
    nft: &'n Nft,
    wish: &Wish,
    is_wanted: impl Fn(&Filter<'_>, Family) -> Result<bool>,
) -> Result<Vec<(Filter<'n>, Vec<IpAddr>)>> {
    let mut found = vec![];
    for family in Family::ALL {
        let filter = Filter { nft, table: filter_table(family) };
        let ips = wish.ips_of(family);
        if !ips.is_empty() && is_wanted(&filter, family)? {
            found.push((filter, ips));
        }
    }
    Ok(found)
}

/// Whether everything but the rules of addresses exists: the jump from FORWARD, and the jump to the
/// administrator's chain.
fn are_laid_out(tables: &[(Filter<'_>, Vec<IpAddr>)], admin_chain: &str) -> Result<bool> {
    for (filter, _) in tables {
        let forward = filter.rules(FORWARD)?;
        if !has(&forward, &rules::jump())
            || late_isolation(&forward).is_some()
            || filter.uses(CNI_FORWARD)? < 2
        {
            return Ok(false);
        }
        // The administrator's chain may have rules of its own.
        let uses = filter.uses(admin_chain)?;
        if uses == 0 || uses <= filter.rules(admin_chain)?.len() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the jump to the isolation chains if it does not come before the jump to the accepts. It
/// stays after the last container, so the jump to the accepts may be newer, and the newest rule is
/// in front.
fn late_isolation(forward: &[Listed]) -> Option<(u64, &FilterRule)> {
    let isolation = jump_position(forward, STAGE_1)?;
    if jump_position(forward, CNI_FORWARD).is_some_and(|accepts| isolation < accepts) {
        return None;
    }
    let Listed { handle, rule } = &forward[isolation];
    Some((*handle, rule.as_ref()?))
}

/// Returns the index of the first rule that leads to the chain.
fn jump_position(rules: &[Listed], chain: &str) -> Option<usize> {
    let target = Target::Chain(chain.to_owned());
    rules.iter().position(|listed| listed.rule.as_ref().is_some_and(|rule| rule.target == target))
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
        Ok(self.chain(chain)?.map_or(0, |info| info.uses as usize))
    }

    fn chain(&self, name: &str) -> Result<Option<ChainInfo>> {
        self.nft.chain(self.table.family, self.table.name, name)
    }

    fn has_chain(&self, chain: &str) -> Result<bool> {
        Ok(self.chain(chain)?.is_some())
    }

    /// Whether packets are forwarded through the table, or the administrator expects it.
    fn is_in_use(&self, wish: &Wish) -> Result<bool> {
        Ok(self.has_chain(FORWARD)? || self.has_chain(&wish.admin_chain)?)
    }

    /// Whether FORWARD drops nothing that we would accept, and the administrator drops nothing that
    /// we lead to. A FORWARD that another program has created since ADD may be like that: iptables
    /// creates it when it is first called, and kube-proxy fills it with rules that pass everything.
    fn passes_without_us(
        &self,
        handles: &Handles,
        ips: &[IpAddr],
        admin_chain: &str,
    ) -> Result<bool> {
        if !self.rules(admin_chain)?.is_empty() {
            return Ok(false);
        }
        let is_dropping = self.chain(FORWARD)?.is_some_and(|chain| chain.is_dropping);
        // The jump to the isolation comes before the one to the accepts.
        let is_of_cni = |listed: &Listed| match listed.rule.as_ref().map(|rule| &rule.target) {
            Some(Target::Chain(chain)) => [CNI_FORWARD, STAGE_1].contains(&chain.as_str()),
            Some(Target::Accept) | None => false,
        };
        let is_of_cni_alone = !is_dropping && self.rules(FORWARD)?.iter().all(is_of_cni);
        if is_of_cni_alone { Ok(true) } else { verdict::passes(handles, ips, Kind::Nft) }
    }

    /// Returns those of the wanted rules that are missing; the recorded ones are read first.
    fn missing_accepts(
        &self,
        mut wanted: Vec<FilterRule>,
        noted: &[RuleHandle],
    ) -> Result<Vec<FilterRule>> {
        let noted = self.noted_rules(noted)?;
        let known = rules_of(&noted);
        if !wanted.iter().all(|rule| known.contains(rule)) {
            let all = self.rules(CNI_FORWARD)?;
            let known = rules_of(&all);
            wanted.retain(|rule| !known.contains(rule));
            return Ok(wanted);
        }
        Ok(vec![])
    }

    /// Returns those of the recorded rules that are in this table.
    fn noted_rules(&self, noted: &[RuleHandle]) -> Result<Vec<Listed>> {
        let of_table = noted.iter().filter(|rule| rule.table == self.table);
        let handles: Vec<u64> = of_table.map(|rule| rule.handle).collect();
        let mut rules = vec![];
        if handles.len() >= MANY {
            let handles: HashSet<u64> = handles.into_iter().collect();
            rules = self.rules(CNI_FORWARD)?;
            rules.retain(|listed| handles.contains(&listed.handle));
        } else {
            for handle in handles {
                rules.extend(self.nft.filter_rule(self.table, CNI_FORWARD, handle)?);
            }
        }
        Ok(rules)
    }

    fn plan_accept(&self, batch: &mut Batch, ips: &[IpAddr], wish: &Wish) -> Result<AddedTo> {
        let admin_chain = &wish.admin_chain;
        let inside = self.rules(CNI_FORWARD)?;
        let mut added = AddedTo::new(self.table, inside.clone());
        if !self.has_chain(FORWARD)? {
            // as iptables-nft would make it
            if !self.nft.has_table(self.table)? {
                batch.table(self.table, MADE);
            }
            batch.commented_base_chain(self.table, FORWARD, HOOK, MADE);
        }
        for chain in [CNI_FORWARD, admin_chain] {
            if !self.has_chain(chain)? {
                batch.chain(self.table, chain);
                added.chains.push(chain.to_owned());
            }
        }
        let forward = self.rules(FORWARD)?;
        if !has(&forward, &rules::jump()) {
            added.first(batch, FORWARD, rules::jump());
        }
        if !has(&inside, &rules::admin_jump(admin_chain)) {
            added.first(batch, CNI_FORWARD, rules::admin_jump(admin_chain));
        }
        let known = rules_of(&inside);
        added.accept(batch, wish.rules_of(ips).into_iter().filter(|rule| !known.contains(rule)));
        if !wish.is_published {
            // of an earlier ADD with another configuration
            let published: Vec<FilterRule> =
                ips.iter().map(|ip| rules::of_published_ports(*ip)).collect();
            let outdated = published.iter().collect();
            let outdated = inside.iter().filter(|listed| is_among(listed, &outdated));
            self.plan_deletion(batch, CNI_FORWARD, outdated.collect());
        }
        if let Some((handle, rule)) = late_isolation(&forward) {
            batch.delete_rule(self.table, FORWARD, handle);
            add_rule(batch, self.table, FORWARD, true, rule);
            added.moved += 1;
        }
        Ok(added)
    }

    /// Plans to delete FORWARD, which has this many rules left, and its table, if an ADD has made
    /// them and no other program has put anything there or has set the policy. This many other
    /// chains of the table go with it.
    fn plan_forward_back(&self, batch: &mut Batch, rules: usize, chains: u32) -> Result<()> {
        let made = self.chain(FORWARD)?.filter(|chain| chain.comment == MADE);
        if rules > 0 || made.is_none_or(|chain| chain.is_dropping) {
            return Ok(());
        }
        batch.delete_chain(self.table, FORWARD);
        let table = self.nft.table(self.table)?.filter(|table| table.comment == MADE);
        if table.is_some_and(|table| table.uses == chains + 1) {
            batch.delete_table(self.table);
        }
        Ok(())
    }

    /// Plans to delete our rules of one ADD. If `CNI-FORWARD` has only those and the previous ones, the
    /// jumps go too, and the chains that nothing but our rules uses.
    fn plan_take_back(&self, batch: &mut Batch, part: &AddedTo) -> Result<()> {
        let inside = self.rules(CNI_FORWARD)?;
        let forward = self.rules(FORWARD)?;
        let ours = part.rules_of(CNI_FORWARD);
        let before: HashSet<&Listed> = part.before.iter().collect();
        let is_known = |listed: &Listed| before.contains(listed) || is_among(listed, &ours);
        let is_all_ours = inside.iter().all(is_known) && !rules::others_rely_on_chains();
        self.plan_deletion(batch, CNI_FORWARD, part.ours(CNI_FORWARD, &inside, is_all_ours));
        let jumps = part.ours(FORWARD, &forward, is_all_ours);
        let uses = inside.len() + jumps.len();
        let rules = forward.len() - jumps.len();
        self.plan_deletion(batch, FORWARD, jumps);
        if !is_all_ours {
            return Ok(());
        }
        let mut deleted = 0;
        for chain in &part.chains {
            // One jump leads to an administrator's chain.
            let ours = if chain == CNI_FORWARD { uses } else { 1 };
            if self.chain(chain)?.is_some_and(|info| info.uses as usize == ours) {
                batch.delete_chain(self.table, chain);
                deleted += 1;
            }
        }
        self.plan_forward_back(batch, rules, deleted)
    }

    /// Plans to remove everything of one family that the attachment holds.
    fn plan_remove_all(&self, batch: &mut Batch, held: &Held, family: Family) -> Result<()> {
        let ips = held.ips.iter().filter(|ip| Family::of(**ip) == family);
        let ips: Vec<IpAddr> = ips.copied().collect();
        let theirs: Vec<FilterRule> =
            ips.iter().flat_map(|ip| rules::of_any_address(*ip)).collect();
        if theirs.is_empty() || self.plan_remove_noted(batch, &ips, &theirs, &held.rules)? {
            return Ok(());
        }
        let is_noted = held.is_any_noted(|ip| Family::of(ip) == family);
        self.plan_remove(batch, &theirs, is_noted)
    }

    /// Plans to remove the rules by their handles. Returns false, without a plan, if not all
    /// handles are known, or if the rules may be the last ones.
    fn plan_remove_noted(
        &self,
        batch: &mut Batch,
        ips: &[IpAddr],
        theirs: &[FilterRule],
        noted: &[RuleHandle],
    ) -> Result<bool> {
        let mut known = self.noted_rules(noted)?;
        let wanted: HashSet<&FilterRule> = theirs.iter().collect();
        known.retain(|listed| is_among(listed, &wanted));
        let always: Vec<FilterRule> = ips.iter().flat_map(|ip| rules::of_address(*ip)).collect();
        let found = rules_of(&known);
        let is_all = always.iter().all(|rule| found.contains(rule));
        if !is_all || self.uses(CNI_FORWARD)? <= known.len() + FEW {
            return Ok(false);
        }
        self.plan_deletion(batch, CNI_FORWARD, known.iter().collect());
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
        if jump_position(&forward, STAGE_1).is_some() {
            return Ok(());
        }
        if !self.has_chain(CNI_FORWARD)? {
            return self.plan_forward_back(batch, forward.len(), 0);
        }
        let jump = rules::jump();
        let jumps: Vec<&Listed> = forward.iter().filter(|listed| does(listed, &jump)).collect();
        if self.uses(CNI_FORWARD)? != rules_inside + jumps.len() || rules::others_rely_on_chains() {
            return Ok(()); // another program leads packets there, or is about to
        }
        let rules = forward.len() - jumps.len();
        self.plan_deletion(batch, FORWARD, jumps);
        batch.delete_chain(self.table, CNI_FORWARD);
        // an administrator's chain goes if nothing uses it but the jump
        let mut chains = 1;
        for chain in admin_chains {
            if self.uses(chain)? == 1 {
                batch.delete_chain(self.table, chain);
                chains += 1;
            }
        }
        self.plan_forward_back(batch, rules, chains)
    }

    /// Plans to delete these rules of a chain.
    fn plan_deletion(&self, batch: &mut Batch, chain: &str, rules: Vec<&Listed>) {
        for listed in rules {
            batch.delete_rule(self.table, chain, listed.handle);
        }
    }
}

fn is_among(listed: &Listed, rules: &HashSet<&FilterRule>) -> bool {
    listed.rule.as_ref().is_some_and(|rule| rules.contains(rule))
}

fn has(present: &[Listed], rule: &FilterRule) -> bool {
    present.iter().any(|listed| does(listed, rule))
}

fn does(listed: &Listed, rule: &FilterRule) -> bool {
    listed.rule.as_ref().is_some_and(|found| found.does(rule))
}

/// The existing rules, to look up those without comments.
fn rules_of(listed: &[Listed]) -> HashSet<&FilterRule> {
    listed.iter().filter_map(|listed| listed.rule.as_ref()).collect()
}
