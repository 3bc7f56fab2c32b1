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

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use ipnet::IpNet;

use super::conf::Conf;
use super::mapping::{Forward, Mapping, Protocol, Released};
use super::publication::Publication;
use crate::cni::attachment::{Key, NetworkName, iptables_chain};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;
use crate::net::iptables::{Iptables, Saved};
use crate::plugin::Handles;
use crate::rollback::Rollback;
use crate::sys::process::another_runs;

const NAT: &str = "nat";
const DNAT: &str = "CNI-HOSTPORT-DNAT";
/// The number of jumps to that chain, from PREROUTING and OUTPUT. They stay when the last port is
/// closed.
const JUMPS: u32 = 2;
const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQ: &str = "CNI-HOSTPORT-MASQ";
const POSTROUTING: &str = "POSTROUTING";
/// The prefix of the name of a container's own chain.
const DN: &str = "CNI-DN-";
/// The prefix of chains that plugins before 0.7 made.
const OLD_SNAT: &str = "CNI-SN-";
/// The maximum number of ports in xt_multiport.
const PORTS: usize = 15;
/// The maximum number of ports of a container, which the programs process in a second or two: with
/// so many rules they read all of them for each change.
const MOST: usize = 4000;
/// The maximum length of an xt_comment in bytes. The reference cuts at 253 and adds three dots,
/// which iptables accepts.
const COMMENT_MAX: usize = 255;

/// Requires the external chain, which another program must have created.
fn require_external_chain(conf: &Conf, saved: &Saved) -> Result<()> {
    let chain = &conf.external_set_mark_chain;
    if !conf.snat || chain.is_empty() || saved.chain(chain).is_some() {
        Ok(())
    } else {
        Err(Error::config(
            "externalSetMarkChain",
            format_args!("{chain:?} is not a chain of table nat"),
        )
        .expecting("one that is there"))
    }
}

/// Returns the container's own chain: 28 letters, the maximum for the name of a chain.
pub fn chain(key: &Key) -> String {
    chain_of(key.network.as_str(), key.container_id.as_str(), DN)
}

fn chain_of(network: &str, container_id: &str, prefix: &str) -> String {
    let hash = iptables_chain(network, container_id);
    format!("{prefix}{}", &hash["CNI-".len()..][..28 - prefix.len()])
}

/// Opens the ports. A port of another container is an error with code 102. The previous rules are
/// restored if a later step fails.
pub fn create<'a>(
    handles: &'a Handles,
    ports: &Publication<'a>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    require_not_too_many(ports.conf.mappings.len())?;
    for (address, of_family) in ports.by_family() {
        let iptables = handles.iptables().for_address(address);
        let before = Rc::new(RefCell::new(Saved::default()));
        iptables.change(NAT, &|| {
            let saved = iptables.save(NAT)?;
            refuse_taken_in(&saved, &of_family)?;
            require_external_chain(of_family.conf, &saved)?;
            let shared = shared_rules(of_family.conf, &saved);
            let lines = [shared, own_lines(&of_family, &saved)].concat();
            before.replace(saved);
            Ok(lines)
        })?;
        rb.undo("put back the port rules", move || {
            iptables
                .change(NAT, &|| Ok(lines_back(&of_family, &before.borrow(), &iptables.save(NAT)?)))
        });
    }
    Ok(())
}

fn require_not_too_many(count: usize) -> Result<()> {
    if count <= MOST {
        return Ok(());
    }
    let problem = format_args!("{count} ports, expected at most {MOST} with backend \"iptables\"");
    Err(Error::config("runtimeConfig.portMappings", problem)
        .with_details("backend \"nftables\" takes every port there is"))
}

/// Returns the lines that make the container's chain and the rules that lead to it. Rules of
/// another interface of the container in the same network stay: the name of the chain does not
/// distinguish the interfaces.
fn own_lines(ports: &Publication<'_>, saved: &Saved) -> Vec<String> {
    let chain = chain(ports.key);
    let is_replaced = |rule: &str| ports.forwards.iter().any(|forward| is_of(rule, forward));
    let others = rules_in(saved, &chain).iter().filter(|rule| !is_replaced(rule));
    let rules = own_rules(ports).into_iter().chain(others.cloned());
    let mut lines = vec![format!(":{chain} - [0:0]")];
    lines.extend(rules.map(|rule| format!("-A {chain} {rule}")));
    for entry in entries(ports.conf) {
        let old = entry.found_in(saved, ports.key);
        lines.extend(old.iter().map(|rule| format!("-D {DNAT} {rule}")));
        lines.push(entry.line(ports));
    }
    lines
}

/// Whether a rule of the container's chain is about the forward's port, or leads to its destination.
fn is_of(rule: &str, forward: &Forward) -> bool {
    is_about(rule, forward.protocol, forward.host_port)
        || rule.contains(&format!(" {}", destination(forward)))
}

fn rules_in<'s>(saved: &'s Saved, chain: &str) -> &'s [String] {
    saved.chain(chain).unwrap_or_default()
}

/// Returns the lines that restore everything of ours from `now` to `before`.
fn lines_back(ports: &Publication<'_>, before: &Saved, now: &Saved) -> Vec<String> {
    let chain = chain(ports.key);
    let mut lines = removal(&chain, now);
    if let Some(rules) = before.chain(&chain) {
        lines.push(format!(":{chain} - [0:0]"));
        lines.extend(rules.iter().map(|rule| format!("-A {chain} {rule}")));
        lines.extend(before.leading_to(&chain).map(|(from, rule)| format!("-A {from} {rule}")));
    } else {
        lines.extend(chain_removal(&chain, now));
    }
    let is_own = |rule: &String| rule.ends_with(&format!(" -j {chain}"));
    // A foreign portmap plugin that is running, as in the middle of an upgrade, relies on chains
    // that it has seen.
    if rules_in(now, DNAT).iter().all(is_own) && !another_runs("portmap") {
        lines.extend(shared_lines_back(ports.conf, before, now));
    }
    lines
}

/// Returns the lines that remove a chain to which no rule leads any more.
fn chain_removal(chain: &str, saved: &Saved) -> Vec<String> {
    let lines = || vec![format!("-F {chain}"), format!("-X {chain}")];
    saved.chain(chain).map(|_| lines()).unwrap_or_default()
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

/// Returns what CHECK misses, if anything. Runs no program if the kernel shows that there are no
/// rules.
pub fn missing(handles: &Handles, ports: &Publication<'_>) -> Result<Option<Error>> {
    let chain = chain(ports.key);
    let programs = programs_with(handles, &chain)?;
    for (address, of_family) in ports.by_family() {
        let mut missing = Some(no_chain(&chain));
        for iptables in programs.iter().filter(|iptables| iptables.is_for(address)) {
            if missing.is_some() {
                missing = first_missing(&iptables.save(NAT)?, &of_family);
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
    let chain = chain(ports.key);
    if saved.chain(&chain).is_none() {
        return Some(no_chain(&chain));
    }
    if let Some(rule) = own_rules(ports).iter().find(|rule| !saved.has(&chain, rule)) {
        return Some(no_rule(rule, &chain));
    }
    let is_lost = |entry: &&Entry| entry.found_in(saved, ports.key).is_empty();
    if let Some(Entry { protocol, ports }) = entries(ports.conf).iter().find(is_lost) {
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
    let released = errors.push(delete_chain(handles, &chain(key))).unwrap_or_default();
    errors.push(delete_chain(
        handles,
        &chain_of(key.network.as_str(), key.container_id.as_str(), OLD_SNAT),
    ));
    errors.finish().map(|()| released)
}

fn delete_chain(handles: &Handles, chain: &str) -> Result<Vec<Released>> {
    let mut errors = ErrorList::default();
    let mut all = vec![];
    for iptables in programs_with(handles, chain)? {
        let released = RefCell::new(vec![]);
        errors.push(iptables.change(NAT, &|| {
            let saved = iptables.save(NAT)?;
            released.replace(released_from(chain, &saved));
            Ok([removal(chain, &saved), chain_removal(chain, &saved)].concat())
        }));
        all.append(&mut released.take());
    }
    errors.finish().map(|()| all)
}

/// Returns where the rules of a container's chain led to.
fn released_from(chain: &str, saved: &Saved) -> Vec<Released> {
    let released = |rule: &String| {
        let (protocol, host_port, _) = redirected(rule)?;
        let to = rule.rsplit_once("--to-destination ")?.1.parse::<SocketAddr>().ok()?.ip();
        Some(Released { protocol: Protocol::of(protocol)?, host_port, to })
    };
    rules_in(saved, chain).iter().filter_map(released).collect()
}

/// Closes the ports of this network's containers that have no valid attachment. Comments of rules
/// name the network.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<Vec<Released>> {
    let mut errors = ErrorList::default();
    let mut released = vec![];
    let chains: OnceCell<HashSet<String>> = OnceCell::new();
    let of_valid = || valid.containers().map(|id| chain_of(network.as_str(), id, DN)).collect();
    for iptables in programs_with(handles, DNAT)? {
        let saved = errors.push(iptables.save(NAT)).unwrap_or_default();
        let entries = rules_in(&saved, DNAT).iter();
        let mut stale: Vec<&str> = entries.filter_map(|rule| chain_in(rule, network)).collect();
        stale.retain(|chain| !chains.get_or_init(of_valid).contains(*chain));
        stale.dedup();
        for chain in stale {
            let gone = valid.remove(|| stale_chain(chain, &saved), || delete_chain(handles, chain));
            released.extend(errors.push(gone).unwrap_or_default());
        }
    }
    errors.finish().map(|()| released)
}

/// Describes a container's chain for GC.
fn stale_chain(chain: &str, saved: &Saved) -> Stale {
    let leads_there = |rule: &&String| rule.contains(&format!("-j {chain}"));
    let leading = rules_in(saved, DNAT).iter().find(leads_there);
    let id = leading.and_then(|rule| rule.split("\\\" id: \\\"").nth(1)?.split('\\').next());
    Stale {
        what: format!("chain {chain} of iptables"),
        holder: Holder::of_container(id.unwrap_or_default()),
        addresses: released_from(chain, saved).iter().map(|released| released.to).collect(),
        ..Stale::default()
    }
}

/// Requires that the host's programs can list its rules. Only IPv4 is tried: a host with one family
/// does not need the other's program.
pub fn require(handles: &Handles) -> Result<()> {
    handles.iptables().for_address(IpAddr::from([127, 0, 0, 1])).save(NAT).map(drop)
}

fn programs_with<'h>(handles: &'h Handles, chain: &str) -> Result<Vec<Iptables<'h>>> {
    handles.iptables().with_nat_chain(handles.nft()?, chain)
}

/// Returns the chains that all containers share, with their rules and the rules that lead to them.
fn shared(conf: &Conf) -> (Vec<&'static str>, Vec<(&'static str, String)>) {
    let mark = format!("{:#x}/{:#x}", conf.mark(), conf.mark());
    let jump = format!("-m addrtype --dst-type LOCAL -j {DNAT}");
    let mut chains = vec![DNAT];
    let mut rules = vec![("PREROUTING", jump.clone()), ("OUTPUT", jump)];
    if conf.snat && conf.external_set_mark_chain.is_empty() {
        chains.extend([SETMARK, MASQ]);
        rules.extend([
            (SETMARK, format!("-m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark {mark}")),
            (MASQ, format!("-m mark --mark {mark} -j MASQUERADE")),
            (POSTROUTING, format!("-m comment --comment \"CNI portfwd requiring masquerade\" -j {MASQ}")),
        ]);
    }
    (chains, rules)
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

/// Returns the rules of the container's chain for one family, as `iptables-save` shows them.
fn own_rules(ports: &Publication<'_>) -> Vec<String> {
    let mut rules = vec![];
    for forward in &ports.forwards {
        let at = forward.at.map(|ip| format!("-d {} ", IpNet::from(ip))).unwrap_or_default();
        let base = format!("{at}-p {0} -m {0} --dport {1}", forward.protocol, forward.host_port);
        rules.extend(marks(ports.conf, forward, &base));
        rules.push(format!("{base} -j DNAT --to-destination {}", destination(forward)));
    }
    rules
}

/// A rule that leads to the container's chain.
struct Entry {
    protocol: Protocol,
    /// The ports, as xt_multiport lists them.
    ports: String,
}

impl Entry {
    fn new(protocol: Protocol, ports: &[u16]) -> Entry {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        Entry { protocol, ports: ports.join(",") }
    }

    /// Returns the line that adds it, for a publication of one family.
    fn line(&self, of: &Publication<'_>) -> String {
        let Entry { protocol, ports } = self;
        let chain = chain(of.key);
        let comment = comment(of.key);
        let conditions = conditions(of);
        format!(
            "-A {DNAT} -p {protocol} -m comment --comment {comment} -m multiport --dports {ports} {conditions}-j {chain}"
        )
    }

    /// Returns the existing rules of that kind. Conditions and comments are not listed as they were
    /// written.
    fn found_in<'s>(&self, saved: &'s Saved, key: &Key) -> Vec<&'s str> {
        let of_protocol = format!("-p {} ", self.protocol);
        let has_ports = |rule: &str| rule.split(' ').any(|word| word == self.ports);
        let target = format!(" -j {}", chain(key));
        let mut found: Vec<&str> = rules_in(saved, DNAT).iter().map(String::as_str).collect();
        found.retain(|rule| rule.ends_with(&target) && rule.contains(&of_protocol));
        found.retain(|rule| has_ports(rule));
        found
    }
}

/// Returns the words of the conditions for a publication of one family, each followed by a space.
fn conditions(ports: &Publication<'_>) -> String {
    let family = ports.forwards.first().map(Forward::family).unwrap_or_default();
    ports.conf.conditions_of(family).iter().map(|word| quoted(word) + " ").collect()
}

/// Returns the rules that mark packets for masquerading: from sources whose answers would bypass
/// the host, or from all sources.
fn marks(conf: &Conf, forward: &Forward, base: &str) -> Vec<String> {
    let target = Some(conf.external_set_mark_chain.as_str())
        .filter(|chain| !chain.is_empty())
        .unwrap_or(SETMARK);
    let from = |source: String| format!("{source}{base} -j {target}");
    match (conf.snat, conf.masq_all) {
        (false, _) => vec![],
        (true, true) => vec![from(String::new())],
        (true, false) => {
            let mut rules = vec![from(format!("-s {} ", forward.to.trunc()))];
            rules.extend(forward.to.addr().is_ipv4().then(|| from("-s 127.0.0.1/32 ".to_owned())));
            rules
        }
    }
}

fn destination(forward: &Forward) -> String {
    match forward.to.addr() {
        IpAddr::V4(ip) => format!("{ip}:{}", forward.container_port),
        IpAddr::V6(ip) => format!("[{ip}]:{}", forward.container_port),
    }
}

/// Returns the rules that lead to the container's chain: for each protocol as many as its ports
/// need, with those of the other family too, as in the reference.
fn entries(conf: &Conf) -> Vec<Entry> {
    let mut entries = vec![];
    for protocol in [Protocol::Sctp, Protocol::Tcp, Protocol::Udp] {
        let of_protocol = conf.mappings.iter().filter(|mapping| mapping.protocol() == protocol);
        let ports: Vec<u16> = of_protocol.map(Mapping::host_port).collect();
        entries.extend(ports.chunks(PORTS).map(|ports| Entry::new(protocol, ports)));
    }
    entries
}

fn comment(key: &Key) -> String {
    let mut text = format!("dnat name: \"{}\" id: \"{}\"", key.network, key.container_id);
    if text.len() > COMMENT_MAX {
        text.truncate(COMMENT_MAX - 2);
        text.push_str("...");
    }
    quoted(&text)
}

/// Returns a word as iptables-restore reads it and iptables-save writes it.
fn quoted(word: &str) -> String {
    let is_plain =
        !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic() && !"\"'\\".contains(c));
    if is_plain {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// Returns the lines that remove the rules that lead to a chain.
fn removal(chain: &str, saved: &Saved) -> Vec<String> {
    saved.leading_to(chain).map(|(from, rule)| format!("-D {from} {rule}")).collect()
}

/// Refuses with code 102 a port that a rule of another container leads elsewhere. Runs no program
/// if there is no such rule.
pub fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let programs = handles.iptables().with_nat_chain_in_use(handles.nft()?, DNAT, JUMPS)?;
    for (address, of_family) in ports.by_family() {
        for iptables in programs.iter().filter(|iptables| iptables.is_for(address)) {
            refuse_taken_in(&iptables.save(NAT)?, &of_family)?;
        }
    }
    Ok(())
}

fn refuse_taken_in(saved: &Saved, ports: &Publication<'_>) -> Result<()> {
    let own = chain(ports.key);
    let is_another_s = |chain: &str| chain.starts_with(DN) && chain != own;
    for (chain, rules) in saved.chains().filter(|(chain, _)| is_another_s(chain)) {
        let mut redirected = rules.iter().filter_map(|rule| redirected(rule));
        let taken = |port| ports.forwards.iter().find(|forward| overlaps(forward, port));
        if let Some(forward) = redirected.find_map(taken) {
            return Err(forward.taken(&holder(saved, chain)));
        }
    }
    Ok(())
}

/// Whether a forward is for a port that a rule redirects; see [`redirected`].
fn overlaps(forward: &Forward, (protocol, port, at): (&str, u16, Option<IpAddr>)) -> bool {
    (forward.protocol.as_str(), forward.host_port) == (protocol, port)
        && (forward.at.is_none() || at.is_none() || forward.at == at)
}

/// Returns the owner of a container's chain, from the comment of the rule that leads to it.
fn holder(saved: &Saved, chain: &str) -> String {
    let comment = saved.leading_to(chain).find_map(|(_, rule)| {
        let (comment, _) = rule.split_once("--comment \"dnat ")?.1.split_once("\" -m")?;
        Some(comment.replace('\\', ""))
    });
    comment.unwrap_or_else(|| format!("chain {chain}"))
}

/// Returns the protocol, port and address of a rule that redirects.
fn redirected(line: &str) -> Option<(&str, u16, Option<IpAddr>)> {
    let words: Vec<&str> = line.split(' ').collect();
    let value = |option: &str| words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1]);
    (value("-j") == Some("DNAT")).then_some(())?;
    let at = value("-d").and_then(|net| net.split('/').next()?.parse().ok());
    Some((value("-p")?, value("--dport")?.parse().ok()?, at))
}

/// Returns the chain that an entry leads to, if its comment names this network. Comments truncate
/// long IDs.
fn chain_in<'r>(rule: &'r str, network: &NetworkName) -> Option<&'r str> {
    rule.contains(&format!("--comment \"dnat name: \\\"{network}\\\" id: ")).then_some(())?;
    rule.rsplit_once(" -j ").map(|(_, chain)| chain).filter(|chain| chain.starts_with(DN))
}

/// Whether a rule matches this port.
fn is_about(rule: &str, protocol: Protocol, port: u16) -> bool {
    rule.contains(&format!("-p {protocol} "))
        && format!("{rule} ").contains(&format!(" --dport {port} "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_the_reference_s() {
        assert_eq!(chain_of("net1", "cont-a", "CNI-DN-"), "CNI-DN-a41e7966de45abfd7855c");
        assert_eq!(chain_of("test", "1234", "CNI-DN-").len(), 28);
    }

    #[test]
    fn words_cannot_leave_their_place() {
        assert_eq!(quoted("10.0.0.0/8"), "10.0.0.0/8");
        assert_eq!(quoted("a b\" -j ACCEPT"), "\"a b\\\" -j ACCEPT\"");
        assert_eq!(quoted(""), "\"\"");
    }

    #[test]
    fn a_rule_that_redirects_is_read() {
        let line = "-A CNI-DN-x -d 198.51.100.1/32 -p udp -m udp --dport 8081 -j DNAT --to-destination 10.10.0.2:53";
        assert_eq!(redirected(line), Some(("udp", 8081, "198.51.100.1".parse().ok())));
        assert_eq!(
            redirected("-A CNI-DN-x -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK"),
            None
        );
    }

    #[test]
    fn an_entry_names_its_network() {
        let line = r#"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net1\" id: \"c1..." -m multiport --dports 80 -j CNI-DN-x"#;
        assert_eq!(chain_in(line, &NetworkName::parse("net1").unwrap()), Some("CNI-DN-x"));
        assert_eq!(chain_in(line, &NetworkName::parse("net").unwrap()), None);
        assert_eq!(removal("CNI-DN-x", &Saved::parse(line)), [line.replacen("-A", "-D", 1)]);
    }

    #[test]
    fn a_rule_is_about_one_port() {
        let rule =
            "-d 198.51.100.1/32 -p udp -m udp --dport 808 -j DNAT --to-destination 10.10.0.2:53";
        assert!(is_about(rule, Protocol::Udp, 808));
        assert!(!is_about(rule, Protocol::Udp, 80) && !is_about(rule, Protocol::Tcp, 808));
    }
}
