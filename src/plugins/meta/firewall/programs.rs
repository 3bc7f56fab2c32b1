//! The rules through the host's iptables programs: per family, one that lists and one that writes.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use super::conf::{Isolation, Policy, Wish};
use super::rules::{self, CNI_FORWARD, FORWARD, STAGE_1, STAGE_2};
use super::table::Held;
use super::verdict::{self, Kind};
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::iptables::{Iptables, Saved};
use crate::plugin::Handles;

pub const FILTER: &str = "filter";

/// Returns the programs for these addresses: the host's default `iptables`, once per family.
pub fn of_host<'h>(handles: &'h Handles, ips: &[IpAddr]) -> Vec<Iptables<'h>> {
    let first = |family| ips.iter().copied().find(|ip| Family::of(*ip) == family);
    Family::ALL.into_iter().filter_map(first).map(|ip| handles.iptables().for_address(ip)).collect()
}

/// Returns the programs of iptables-legacy for these addresses, if it has tables that packets are
/// forwarded through. A host that lacks the programs can have no rules of ours there.
pub fn of_legacy<'h>(handles: &'h Handles, ips: &[IpAddr]) -> Result<Vec<Iptables<'h>>> {
    let has_any = |iptables: &Iptables<'_>| ips.iter().any(|ip| iptables.is_for(*ip));
    let mut programs = legacy(handles)?;
    programs.retain(|iptables| has_any(iptables) && iptables.require().is_ok());
    Ok(programs)
}

/// Returns the same for an ADD, with the host's own programs: their table is made now, so that a
/// policy that is set later finds the accepts. A kernel without such tables drops nothing there.
pub fn to_accept_by_legacy<'h>(handles: &'h Handles, ips: &[IpAddr]) -> Result<Vec<Iptables<'h>>> {
    let mut programs = of_legacy(handles, ips)?;
    for family in Family::ALL {
        let is_missing = !programs.iter().any(|iptables| iptables.family() == family);
        let own = handles.iptables().legacy_of_host(family).filter(|_| is_missing);
        let has_any = ips.iter().any(|ip| Family::of(*ip) == family);
        let Some(own) = own.filter(|_| has_any) else { continue };
        match own.save(FILTER) {
            Ok(_) => programs.push(own),
            Err(error) if error.code == Code::TRY_AGAIN || error.may_pass() => return Err(error),
            Err(_) => (), // the kernel lacks the table
        }
    }
    Ok(programs)
}

/// Returns the programs of iptables-legacy whose tables packets are forwarded through, whether the
/// host has the programs or not.
pub fn legacy(handles: &Handles) -> Result<Vec<Iptables<'_>>> {
    let with_filter = |family| handles.iptables().legacy_with(FILTER, family).transpose();
    Family::ALL.into_iter().filter_map(with_filter).collect()
}

/// Adds the rules, and the isolation of bridges if it is requested. Returns what was added.
pub fn accept(
    iptables: &Iptables<'_>,
    wish: &Wish,
    isolation: Option<&Isolation>,
) -> Result<Added> {
    let wanted = wanted(iptables, wish, isolation);
    let added = RefCell::default();
    iptables.change(FILTER, &|| {
        let missing = missing(iptables.save(FILTER)?, &wanted, wish, isolation);
        let mut lines = missing.lines();
        if !wish.is_published {
            // of an earlier ADD with another configuration
            let published = wish.ips.iter().map(|ip| rules::of_published_ports(*ip).to_string());
            let outdated = published.filter(|rule| missing.before.has(CNI_FORWARD, rule));
            lines.extend(outdated.map(|rule| format!("-D {CNI_FORWARD} {rule}")));
        }
        added.replace(missing);
        Ok(lines)
    })?;
    Ok(added.into_inner())
}

/// Reverts what `accept` has added. Chains, and the jumps to them, stay if other rules have come to
/// need them.
pub fn take_back(iptables: &Iptables<'_>, added: &Added) -> Result<()> {
    iptables.change(FILTER, &|| Ok(added.taken_back(&*iptables.save(FILTER)?)))
}

/// Verifies what `accept` makes in tables of iptables-legacy. A table that was created since ADD,
/// as `iptables-legacy -L` does, needs none of it unless it drops the packets.
pub fn verify_legacy(handles: &Handles, programs: &[Iptables<'_>], wish: &Wish) -> Result<()> {
    ErrorList::of(programs.iter().map(|iptables| {
        let verified = verify_table(iptables, wish, None);
        let is_needed = || -> Result<bool> {
            let saved = iptables.save(FILTER)?;
            let is_administered = saved.chain(&wish.admin_chain).is_some_and(|it| !it.is_empty());
            let ips = wish.ips_of(iptables.family());
            Ok(is_administered || !verdict::passes(handles, &ips, Kind::Legacy)?)
        };
        if verified.is_ok() || is_needed()? { verified } else { Ok(()) }
    }))
}

/// Verifies what `accept` makes, in the tables of each program.
pub fn verify(programs: &[Iptables<'_>], wish: &Wish, isolation: Option<&Isolation>) -> Result<()> {
    ErrorList::of(programs.iter().map(|iptables| verify_table(iptables, wish, isolation)))
}

fn verify_table(iptables: &Iptables<'_>, wish: &Wish, isolation: Option<&Isolation>) -> Result<()> {
    let saved = iptables.save(FILTER)?;
    let wanted = wanted(iptables, wish, isolation);
    let mut found = ErrorList::default();
    for missing in wanted.iter().filter(|wanted| !wanted.is_in(&saved)) {
        let error = rules::not_found(iptables.name(), missing.chain, &missing.rule);
        found.add(error);
    }
    if isolation.is_some() && !isolation_to_front(&saved).is_empty() {
        let name = iptables.name();
        let what = format!("{name}: in {FORWARD}, {CNI_FORWARD} comes before {STAGE_1}");
        found.add(Error::check(what).with_details(
            "containers are accepted before bridges are kept apart; another ADD puts them in order",
        ));
    }
    found.finish()
}

/// Removes the rules of the addresses from the tables of iptables-legacy, and with the last rules
/// the jumps to them. The isolation of bridges stays, as with the reference: nothing names its
/// owner.
pub fn remove_of_legacy(handles: &Handles, held: &Held) -> Result<()> {
    let mut errors = ErrorList::default();
    for iptables in of_legacy(handles, &held.ips)? {
        let ips = held.ips.iter().copied().filter(|ip| iptables.is_for(*ip));
        let rules: Vec<String> =
            ips.flat_map(rules::of_any_address).map(|rule| rule.to_string()).collect();
        let is_noted = held.is_any_noted(|ip| iptables.is_for(ip));
        errors.push(
            iptables.change(FILTER, &|| Ok(removal(&*iptables.save(FILTER)?, &rules, is_noted))),
        );
    }
    errors.finish()
}

/// A rule that a chain should have, before or after the existing rules.
#[derive(Clone, Debug)]
struct Wanted {
    chain: &'static str,
    is_first: bool,
    rule: String,
}

impl Wanted {
    fn first(chain: &'static str, rule: impl ToString) -> Wanted {
        Wanted { chain, is_first: true, rule: rule.to_string() }
    }

    fn last(chain: &'static str, rule: impl ToString) -> Wanted {
        Wanted { chain, is_first: false, rule: rule.to_string() }
    }

    fn is_in(&self, saved: &Saved) -> bool {
        saved.has(self.chain, &self.rule)
    }

    /// Returns the line by which `iptables-save` lists it.
    fn listed(&self) -> String {
        format!("-A {} {}", self.chain, self.rule)
    }
}

fn wanted(iptables: &Iptables<'_>, wish: &Wish, isolation: Option<&Isolation>) -> Vec<Wanted> {
    let mut wanted = vec![
        Wanted::first(FORWARD, rules::jump()),
        Wanted::first(CNI_FORWARD, rules::admin_jump(&wish.admin_chain)),
    ];
    let ips = wish.ips_of(iptables.family());
    wanted.extend(wish.rules_of(&ips).iter().map(|rule| Wanted::last(CNI_FORWARD, rule)));
    wanted.extend(isolation.map(isolating).unwrap_or_default());
    wanted
}

/// Returns the rules that isolate bridges from each other.
fn isolating(Isolation { bridge, policy }: &Isolation) -> Vec<Wanted> {
    let bridge = bridge.as_str();
    let comment = |policy: &str| {
        format!("-m comment --comment \"CNI firewall plugin rules (ingressPolicy: {policy})\"")
    };
    let shared = comment("same-bridge|isolated");
    let own = comment(policy.as_str());
    let mut wanted = vec![
        Wanted::first(FORWARD, format!("{shared} -j {STAGE_1}")),
        Wanted::first(STAGE_1, format!("-i {bridge} ! -o {bridge} {own} -j {STAGE_2}")),
    ];
    if *policy == Policy::Isolated {
        wanted.push(Wanted::first(STAGE_1, format!("-i {bridge} -o {bridge} {own} -j DROP")));
    }
    wanted.push(Wanted::last(STAGE_1, format!("{shared} -j RETURN")));
    wanted.push(Wanted::first(STAGE_2, format!("-o {bridge} {shared} -j DROP")));
    wanted.push(Wanted::last(STAGE_2, format!("{shared} -j RETURN")));
    wanted
}

/// What one ADD has added to a table, and the previous rules.
#[derive(Debug, Default)]
pub struct Added {
    before: Rc<Saved>,
    chains: Vec<String>,
    rules: Vec<Wanted>,
}

/// Returns the wanted rules and chains that are missing.
fn missing(
    before: impl Into<Rc<Saved>>,
    wanted: &[Wanted],
    wish: &Wish,
    isolation: Option<&Isolation>,
) -> Added {
    let before = before.into();
    let mut chains = vec![CNI_FORWARD.to_owned(), wish.admin_chain.clone()];
    if isolation.is_some() {
        chains.extend([STAGE_1, STAGE_2].map(str::to_owned));
    }
    chains.retain(|chain| before.chain(chain).is_none());
    let rules = wanted.iter().filter(|wanted| !wanted.is_in(&before)).cloned().collect();
    Added { before, chains, rules }
}

impl Added {
    /// Returns the lines of `iptables-restore --noflush` that add it.
    fn lines(&self) -> Vec<String> {
        let chains = self.chains.iter().map(|chain| format!("-N {chain}"));
        let rules = self.rules.iter().map(|wanted| match wanted {
            Wanted { chain, is_first: true, rule } => format!("-I {chain} 1 {rule}"),
            last => last.listed(),
        });
        chains.chain(rules).chain(isolation_to_front(&self.before)).collect()
    }

    /// Returns the lines that remove it again: all of it if no other rule was added since, else
    /// only the rules of addresses.
    fn taken_back(&self, now: &Saved) -> Vec<String> {
        let is_all_ours = self.is_all_ours(now) && !rules::others_rely_on_chains();
        let is_accept = |wanted: &Wanted| wanted.chain == CNI_FORWARD && !wanted.is_first;
        let goes = |wanted: &&Wanted| (is_all_ours || is_accept(wanted)) && wanted.is_in(now);
        let rules = self.rules.iter().filter(goes);
        let rules = rules.map(|Wanted { chain, rule, .. }| format!("-D {chain} {rule}"));
        let chains = self.chains.iter().filter(|chain| is_all_ours && now.chain(chain).is_some());
        rules.chain(chains.map(|chain| format!("-X {chain}"))).collect()
    }

    /// Whether the changed chains have no rules but the previous ones and ours, and no other rule
    /// leads to them.
    fn is_all_ours(&self, now: &Saved) -> bool {
        let ours: Vec<String> = self.rules.iter().map(Wanted::listed).collect();
        let ours = Saved::parse(&ours.join("\n"));
        let is_known =
            |chain: &str, rule: &str| self.before.has(chain, rule) || ours.has(chain, rule);
        let of_rules = self.rules.iter().map(|wanted| wanted.chain);
        of_rules.chain(self.chains.iter().map(String::as_str)).all(|chain| {
            now.rules_in(chain).iter().all(|rule| is_known(chain, rule))
                && now.leading_to(chain).all(|(from, rule)| is_known(from, rule))
        })
    }
}

/// Returns the lines that move the isolation of bridges before the accepts of containers. The
/// isolation stays after the last container, so the jump to the accepts may be newer, and the
/// newest rule is in front.
fn isolation_to_front(saved: &Saved) -> Vec<String> {
    let forward = saved.rules_in(FORWARD);
    let jump = |chain| forward.iter().position(|rule| rule.ends_with(&format!("-j {chain}")));
    match (jump(STAGE_1), jump(CNI_FORWARD)) {
        (Some(isolation), accepts) if accepts.is_none_or(|accepts| isolation > accepts) => {
            let rule = &forward[isolation];
            vec![format!("-D {FORWARD} {rule}"), format!("-I {FORWARD} 1 {rule}")]
        }
        _ => vec![],
    }
}

/// Returns the lines that remove these rules, and the jumps to them if no other rules are left.
/// `is_noted` means that an ADD of ours made them: then the chains are there for them, even if the
/// rules were flushed.
fn removal(saved: &Saved, rules: &[String], is_noted: bool) -> Vec<String> {
    let Some(inside) = saved.chain(CNI_FORWARD) else { return vec![] };
    let (theirs, others): (Vec<&String>, Vec<&String>) =
        inside.iter().partition(|rule| rules.contains(rule));
    let mut lines: Vec<String> =
        theirs.iter().map(|rule| format!("-D {CNI_FORWARD} {rule}")).collect();
    let jump = rules::jump().to_string();
    let jumps = saved.rules_in(FORWARD).iter().filter(|rule| **rule == jump).count();
    // An ADD of the reference would put a new jump before the isolation.
    let is_isolating = saved.leading_to(STAGE_1).next().is_some();
    if lines.is_empty() && !is_noted
        || others.iter().any(|rule| admin_chain(rule).is_none())
        || saved.leading_to(CNI_FORWARD).count() != jumps
        || is_isolating
        || rules::others_rely_on_chains()
    {
        return lines;
    }
    lines.extend(vec![format!("-D {FORWARD} {jump}"); jumps]);
    // Delete rule by rule instead of flushing the chain: if another process has added a rule in
    // between, the chain cannot be deleted, and nothing changes.
    lines.extend(others.iter().map(|rule| format!("-D {CNI_FORWARD} {rule}")));
    lines.push(format!("-X {CNI_FORWARD}"));
    for chain in others.iter().filter_map(|rule| admin_chain(rule)) {
        // An administrator's chain goes if it has no rules, and only our jump leads to it.
        if saved.chain(chain).is_some_and(<[_]>::is_empty) && saved.leading_to(chain).count() == 1 {
            lines.push(format!("-X {chain}"));
        }
    }
    lines
}

/// Returns the chain that a listed rule leads to, if the rule is the jump to an administrator's
/// chain.
fn admin_chain(rule: &str) -> Option<&str> {
    let chain = rule.rsplit(' ').next()?;
    (rules::admin_jump(chain).to_string() == rule).then_some(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::attachment::IfName;
    use crate::net::iptables::Programs;

    fn wish(ips: &[&str]) -> Wish {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Wish { ips, admin_chain: "CNI-ADMIN".into(), isolation: None, is_published: false }
    }

    fn lines(saved: &Saved, wish: &Wish, isolation: Option<&Isolation>) -> Vec<String> {
        missing(
            saved.clone(),
            &wanted(&Programs::default().for_address(wish.ips[0]), wish, isolation),
            wish,
            isolation,
        )
        .lines()
    }

    /// Returns what the kernel would have after these lines.
    fn after(lines: &[String]) -> Saved {
        let mut rules = vec![];
        for line in lines {
            match line.strip_prefix("-I ") {
                Some(first) => rules.insert(0, format!("-A {}", first.replacen(" 1 ", " ", 1))),
                None if line.starts_with("-A ") => rules.push(line.clone()),
                None => (),
            }
        }
        let chains = lines
            .iter()
            .filter_map(|line| line.strip_prefix("-N "))
            .map(|chain| format!(":{chain} - [0:0]"));
        Saved::parse(&chains.chain(rules).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn the_rules_are_the_reference_s_and_made_once() {
        let wish = wish(&["10.1.0.7", "fd00::7"]);
        let lines_of_first = lines(&Saved::default(), &wish, None);
        let expected = [
            "-N CNI-FORWARD",
            "-N CNI-ADMIN",
            "-I FORWARD 1 -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD",
            "-I CNI-FORWARD 1 -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN",
            "-A CNI-FORWARD -d 10.1.0.7/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A CNI-FORWARD -s 10.1.0.7/32 -j ACCEPT",
        ];
        assert_eq!(lines_of_first, expected);
        assert!(lines(&after(&lines_of_first), &wish, None).is_empty());
    }

    #[test]
    fn what_is_isolated_is_dropped_before_it_is_let_out() {
        let isolation =
            Isolation { bridge: IfName::parse("br0").unwrap(), policy: Policy::Isolated };
        let wish = wish(&["10.1.0.7"]);
        let lines_of_first = lines(&Saved::default(), &wish, Some(&isolation));
        let at = |text: &str| lines_of_first.iter().position(|line| line.contains(text)).unwrap();
        assert!(at("-i br0 ! -o br0") < at("-i br0 -o br0"), "the later one is put in front");
        assert!(at("-j CNI-FORWARD") < at("-j CNI-ISOLATION-STAGE-1"));
        assert!(lines(&after(&lines_of_first), &wish, Some(&isolation)).is_empty());
    }

    #[test]
    fn what_leads_to_the_rules_goes_with_the_last() {
        let wish = wish(&["10.1.0.7", "10.1.0.8"]);
        let saved = after(&lines(&Saved::default(), &wish, None));
        let rules = |ips: &[&str]| -> Vec<String> {
            ips.iter()
                .flat_map(|ip| rules::of_address(ip.parse().unwrap()))
                .map(|rule| rule.to_string())
                .collect()
        };
        assert_eq!(removal(&saved, &rules(&["10.1.0.7"]), true).len(), 2);
        let all = removal(&saved, &rules(&["10.1.0.7", "10.1.0.8"]), true);
        assert_eq!(all[all.len() - 2..], ["-X CNI-FORWARD", "-X CNI-ADMIN"]);
        assert!(
            !all.iter().any(|line| line.starts_with("-F")),
            "another's rule may have come: {all:?}"
        );
        assert!(removal(&saved, &rules(&["10.1.0.9"]), true).is_empty());
    }

    #[test]
    fn flushed_chains_go_with_a_noted_address_unless_they_isolate() {
        let flushed = ":CNI-FORWARD - [0:0]\n-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD";
        let isolating = format!("{flushed}\n-A FORWARD -j CNI-ISOLATION-STAGE-1");
        let of = |text: &str, is_noted| removal(&Saved::parse(text), &[], is_noted).len();
        assert_eq!(
            [of(flushed, true), of(flushed, false), of(&isolating, true), of("", true)],
            [2, 0, 0, 0]
        );
    }

    #[test]
    fn isolation_that_comes_too_late_is_put_in_front() {
        let lines = |text: &str| isolation_to_front(&Saved::parse(text)).len();
        let accepts = "-A FORWARD -j CNI-FORWARD\n";
        let isolation = "-A FORWARD -j CNI-ISOLATION-STAGE-1\n";
        let cases =
            [[accepts, isolation], [isolation, accepts], [accepts, ""], [isolation, ""], ["", ""]];
        assert_eq!(cases.map(|case| lines(&case.concat())), [2, 0, 0, 2, 0]);
    }

    #[test]
    fn undo_removes_what_was_added_unless_others_need_it() {
        let wish = wish(&["10.1.0.7"]);
        let wanted = wanted(&Programs::default().for_address(wish.ips[0]), &wish, None);
        let added = missing(Saved::default(), &wanted, &wish, None);
        let lines = added.lines();
        let back = added.taken_back(&after(&lines));
        assert_eq!(back.len(), lines.len(), "{back:?}");
        assert_eq!(back[back.len() - 2..], ["-X CNI-FORWARD", "-X CNI-ADMIN"]);
        for others in [
            "-A CNI-FORWARD -s 10.1.0.8/32 -j ACCEPT",
            "-A CNI-ADMIN -j DROP",
            "-A OUTPUT -j CNI-FORWARD",
        ] {
            let lines: Vec<String> = lines.iter().cloned().chain([others.to_owned()]).collect();
            assert_eq!(added.taken_back(&after(&lines)).len(), 2, "{others}");
        }
        let again = missing(after(&lines), &wanted, &wish, None);
        assert!(again.lines().is_empty() && again.taken_back(&after(&lines)).is_empty());
    }
}
