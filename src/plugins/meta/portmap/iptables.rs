//! Published ports with the host's iptables, under the names of the reference: nerdctl and Nomad
//! read them.
//!
//! ```text
//! -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT          and the same in OUTPUT
//! -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: … id: …" -m multiport --dports 8080 -j CNI-DN-<hash>
//! -A CNI-DN-<hash> -s <network> -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
//! -A CNI-DN-<hash> -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.7:80
//! -A POSTROUTING -j CNI-HOSTPORT-MASQ                                      which masquerades what has the mark
//! ```
//! A change is planned from `iptables-save` and applied by one `iptables-restore` per family.

use std::cell::RefCell;
use std::rc::Rc;

use super::conf::Conf;
use super::mapping::{Forward, Released};
use super::publication::{Held, Publication};
use super::rules::{
    CHAINS, DNAT, Entry, OLD_CHAINS, POSTROUTING, entries, first_taken, holder, is_of, own_rules,
    released_from, shared,
};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Holder;
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;
use crate::net::iptables::Saved;
use crate::plugin::Handles;
use crate::rollback::Rollback;
use crate::steps::rules::{NAT, chain_away, container_of, entrances_away, programs_with};
use crate::sys::process::another_runs;

/// The number of jumps to that chain, from PREROUTING and OUTPUT. They stay when the last port is
/// closed.
const JUMPS: u32 = 2;
/// The maximum number of ports of a container, which the programs process in a second or two: with
/// so many rules they read all of them for each change.
const MOST: usize = 4000;

/// Opens the ports. A port of another container is an error with code 102. The previous rules are
/// restored if a later step fails.
pub fn create<'a>(
    handles: &'a Handles,
    ports: &Publication<'a>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let count = ports.conf.mappings.len();
    if count > MOST {
        let problem =
            format_args!("{count} ports, expected at most {MOST} with backend \"iptables\"");
        return Err(Error::config("runtimeConfig.portMappings", problem)
            .with_details("backend \"nftables\" takes every port there is"));
    }
    for (address, ports) in ports.by_family() {
        let iptables = handles.iptables().for_address(address);
        let before = RefCell::new(Rc::default());
        iptables.change(NAT, &|| {
            let saved = iptables.save(NAT)?;
            let lines = lines(&ports, &saved)?;
            before.replace(saved);
            Ok(lines)
        })?;
        let before = before.into_inner();
        rb.undo("put back the port rules", move || {
            iptables.change(NAT, &|| Ok(lines_back(&ports, &before, &*iptables.save(NAT)?)))
        });
    }
    Ok(())
}

/// Returns the lines that open the ports of one family: the container's chain, and entries in place
/// of the existing ones. Rules of another interface of the container in the same network stay: the
/// name of the chain does not distinguish the interfaces.
fn lines(ports: &Publication<'_>, saved: &Saved) -> Result<Vec<String>> {
    let Publication { key, conf, forwards, .. } = ports;
    refuse_taken_in(saved, ports)?;
    let external = &conf.external_set_mark_chain;
    if conf.snat && !external.is_empty() && saved.chain(external).is_none() {
        let problem = format_args!("{external:?} is not a chain of table nat");
        return Err(Error::config("externalSetMarkChain", problem)
            .expecting("one that is there")
            .with_details("remove the key, or start kube-proxy, which makes KUBE-MARK-MASQ"));
    }
    let mut lines = shared_rules(conf, saved);
    let chain = CHAINS.of(key);
    let is_replaced = |rule: &str| forwards.iter().any(|forward| is_of(rule, forward));
    let others = saved.rules_in(&chain).iter().filter(|rule| !is_replaced(rule));
    let rules = own_rules(ports).into_iter().chain(others.cloned());
    lines.push(format!(":{chain} - [0:0]"));
    lines.extend(rules.map(|rule| format!("-A {chain} {rule}")));
    for entry in entries(conf) {
        let old = entry.found_in(saved, key);
        lines.extend(old.iter().map(|rule| format!("-D {DNAT} {rule}")));
        lines.push(entry.line(ports));
    }
    Ok(lines)
}

/// Returns the lines that restore everything of ours from `now` to `before`.
fn lines_back(ports: &Publication<'_>, before: &Saved, now: &Saved) -> Vec<String> {
    let chain = CHAINS.of(ports.key);
    let mut lines = entrances_away(&chain, now);
    if let Some(rules) = before.chain(&chain) {
        lines.push(format!(":{chain} - [0:0]"));
        lines.extend(rules.iter().map(|rule| format!("-A {chain} {rule}")));
        lines.extend(before.leading_to(&chain).map(|(from, rule)| format!("-A {from} {rule}")));
    } else {
        lines.extend(chain_away(&chain, now));
    }
    let is_own = |rule: &String| rule.ends_with(&format!(" -j {chain}"));
    // What all containers share goes if no other one needs it. A foreign portmap plugin that is
    // running, as in the middle of an upgrade, relies on chains that it has seen.
    if now.rules_in(DNAT).iter().all(is_own) && !another_runs("portmap") {
        lines.extend(shared_lines_back(ports.conf, before, now));
    }
    lines
}

/// Returns the lines that remove what all containers share, as far as it was not there before.
fn shared_lines_back(conf: &Conf, before: &Saved, now: &Saved) -> Vec<String> {
    let (chains, rules) = shared(conf);
    let is_new = |chain: &str, rule: &str| now.has(chain, rule) && !before.has(chain, rule);
    let rules = rules
        .iter()
        .filter(|(chain, rule)| is_new(chain, rule))
        .map(|(chain, rule)| format!("-D {chain} {rule}"));
    let chains =
        chains.iter().filter(|chain| now.chain(chain).is_some() && before.chain(chain).is_none());
    rules.chain(chains.map(|chain| format!("-X {chain}"))).collect()
}

/// Returns what CHECK misses, if anything: one of the programs for each address must have all rules.
/// Runs no program if the kernel shows that there are no rules.
pub fn missing(handles: &Handles, ports: &Publication<'_>) -> Result<Option<Error>> {
    let chain = CHAINS.of(ports.key);
    let programs = programs_with(handles, &chain)?;
    for (address, of_family) in ports.by_family() {
        let mut missing = Some(no_chain(&chain));
        for iptables in programs.iter().filter(|iptables| iptables.is_for(address)) {
            if missing.is_some() {
                missing = first_missing(&*iptables.save(NAT)?, &of_family);
            }
        }
        if let Some(missing) = missing {
            let version = u8::from(Family::of(address));
            return Ok(Some(Error::check(format!("could not check ipv{version} dnat: {missing}"))));
        }
    }
    Ok(None)
}

/// Returns the first thing that the saved rules lack, in the reference's words.
fn first_missing(saved: &Saved, ports: &Publication<'_>) -> Option<String> {
    let chain = CHAINS.of(ports.key);
    if saved.chain(&chain).is_none() {
        return Some(no_chain(&chain));
    }
    if let Some(rule) = own_rules(ports).iter().find(|rule| !saved.has(&chain, rule)) {
        return Some(no_rule(rule, &chain));
    }
    let mut entries = entries(ports.conf).into_iter();
    let missing = entries.find(|entry| entry.found_in(saved, ports.key).is_empty());
    if let Some(Entry { protocol, ports }) = missing {
        return Some(no_rule(&format!("-p {protocol} --dports {ports} -j {chain}"), DNAT));
    }
    let first = shared_rules(ports.conf, saved).into_iter().next();
    first.map(|line| format!("what `{line}` makes not found in table {NAT}"))
}

fn no_chain(chain: &str) -> String {
    format!("chain {chain} not found in iptables table {NAT}")
}

fn no_rule(rule: &str, chain: &str) -> String {
    format!("rule [{rule}] in chain {chain} not found in table {NAT}")
}

/// Closes the ports and returns them. The shared chains stay, as with the reference.
pub fn delete(handles: &Handles, key: &Key) -> Result<Vec<Released>> {
    let mut errors = ErrorList::default();
    let released = errors.push(delete_chain(handles, &CHAINS.of(key), ALWAYS)).unwrap_or_default();
    errors.push(delete_chain(handles, &OLD_CHAINS.of(key), ALWAYS));
    errors.finish().map(|()| released)
}

/// Whether the ports of the chain that is held may be closed, judged under the lock.
type MayGo<'a> = &'a dyn Fn(&Held) -> Result<bool>;

const ALWAYS: MayGo<'_> = &|_| Ok(true);

/// Closes all ports of a container that has one of these, if `is_gone` says that it is gone.
pub fn close_abandoned(
    handles: &Handles,
    ports: &Publication<'_>,
    is_gone: MayGo<'_>,
) -> Result<Option<(Held, Vec<Released>)>> {
    let Some((chain, held)) = first_holder(handles, ports)? else { return Ok(None) };
    let released = delete_chain(handles, &chain, is_gone)?;
    Ok(Some((held, released)).filter(|(_, released)| !released.is_empty()))
}

/// Closes the ports of a container's chain if they may go, and returns them.
fn delete_chain(handles: &Handles, chain: &str, may_go: MayGo<'_>) -> Result<Vec<Released>> {
    let mut errors = ErrorList::default();
    let mut all = vec![];
    for iptables in programs_with(handles, chain)? {
        let released = RefCell::new(vec![]);
        let deleted = iptables.change(NAT, &|| {
            let saved = iptables.save(NAT)?;
            if !may_go(&held(chain, &saved))? {
                released.take();
                return Ok(vec![]);
            }
            released.replace(released_from(chain, &saved));
            Ok([entrances_away(chain, &saved), chain_away(chain, &saved)].concat())
        });
        if errors.push(deleted).is_some() {
            all.extend(released.take());
        }
    }
    errors.finish().map(|()| all)
}

/// Closes the ports of this network's containers that have no valid attachment.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<Vec<Released>> {
    let mut released = vec![];
    CHAINS.collect_garbage(
        handles,
        network,
        valid,
        |iptables| iptables.save(NAT),
        |saved, chain| released_from(chain, saved).iter().map(|released| released.to).collect(),
        |_, chain| delete_chain(handles, chain, ALWAYS).map(|ports| released.extend(ports)),
    )?;
    Ok(released)
}

/// Returns the lines that make what all containers share, as far as it is missing. `-N` fails for a
/// chain that another process has made meanwhile, and the change is planned again; a line `:CHAIN`
/// would empty the chain.
fn shared_rules(conf: &Conf, saved: &Saved) -> Vec<String> {
    let (chains, rules) = shared(conf);
    let chains = chains.into_iter().filter(|chain| saved.chain(chain).is_none());
    let rules = rules.into_iter().filter(|(chain, rule)| !saved.has(chain, rule));
    let rules = rules.map(|(chain, rule)| match chain {
        // Masquerading comes before foreign rules in the chain, as in the reference.
        POSTROUTING => format!("-I {chain} 1 {rule}"),
        _ => format!("-A {chain} {rule}"),
    });
    chains.map(|chain| format!("-N {chain}")).chain(rules).collect()
}

/// Refuses with code 102 a port that a rule of another container leads elsewhere. Runs no program
/// if there is no such rule.
pub fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let programs = handles.iptables().with_nat_chain_in_use(handles.nft()?, DNAT, JUMPS)?;
    for (address, of_family) in ports.by_family() {
        for iptables in programs.iter().filter(|iptables| iptables.is_for(address)) {
            refuse_taken_in(&*iptables.save(NAT)?, &of_family)?;
        }
    }
    Ok(())
}

fn refuse_taken_in(saved: &Saved, ports: &Publication<'_>) -> Result<()> {
    taken_in(saved, ports)
        .map_or(Ok(()), |(chain, forward)| Err(forward.taken(&holder(saved, chain))))
}

/// Returns the chain of another container that redirects one of the ports, and the port.
fn taken_in<'s, 'p>(
    saved: &'s Saved,
    ports: &'p Publication<'_>,
) -> Option<(&'s str, &'p Forward)> {
    let own = CHAINS.of(ports.key);
    let is_another_s = |chain: &str| chain.starts_with(CHAINS.prefix) && chain != own;
    let mut others = saved.chains().filter(|(chain, _)| is_another_s(chain));
    others.find_map(|(chain, rules)| Some((chain, first_taken(ports, rules)?)))
}

/// The first other container that has one of the ports, with its chain.
fn first_holder(handles: &Handles, ports: &Publication<'_>) -> Result<Option<(String, Held)>> {
    for iptables in handles.iptables().with_nat_chain_in_use(handles.nft()?, DNAT, JUMPS)? {
        let saved = iptables.save(NAT)?;
        for (_, of_family) in ports.by_family().iter().filter(|(ip, _)| iptables.is_for(*ip)) {
            if let Some((chain, _)) = taken_in(&saved, of_family) {
                return Ok(Some((chain.to_owned(), held(chain, &saved))));
            }
        }
    }
    Ok(None)
}

/// Who has a container's chain.
fn held(chain: &str, saved: &Saved) -> Held {
    let words = holder(saved, chain);
    let id = container_of(chain, saved).unwrap_or_default();
    let whole = id.trim_end_matches("...");
    Held {
        network: words.split('"').nth(1).unwrap_or_default().to_owned(),
        holder: Holder { is_cut: whole != id, ..Holder::of_container(whole) },
        addresses: released_from(chain, saved).iter().map(|released| released.to).collect(),
        words,
    }
}
