//! The rules of published ports in the reference's words: written, and read as `iptables-save` lists
//! them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::conf::Conf;
use super::mapping::{Forward, Mapping, Protocol, Released};
use super::publication::Publication;
use crate::cni::attachment::{Key, NetworkName, iptables_chain};
use crate::net::iptables::Saved;

pub const DNAT: &str = "CNI-HOSTPORT-DNAT";
const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQ: &str = "CNI-HOSTPORT-MASQ";
pub const POSTROUTING: &str = "POSTROUTING";
/// The prefix of the name of a container's own chain.
pub const DN: &str = "CNI-DN-";
/// The prefix of chains that plugins before 0.7 made.
const OLD_SNAT: &str = "CNI-SN-";
/// The maximum number of ports in xt_multiport.
const PORTS: usize = 15;
/// The maximum length of an xt_comment in bytes. The reference cuts at 253 and adds three dots,
/// which iptables accepts.
const COMMENT_MAX: usize = 255;

/// Returns the container's own chain: 28 letters, the maximum for the name of a chain.
pub fn chain(key: &Key) -> String {
    chain_of(key.network.as_str(), key.container_id.as_str(), DN)
}

/// Returns the chain that plugins before 0.7 made for the container.
pub fn old_chain(key: &Key) -> String {
    chain_of(key.network.as_str(), key.container_id.as_str(), OLD_SNAT)
}

pub fn chain_of(network: &str, container_id: &str, prefix: &str) -> String {
    let hash = iptables_chain(network, container_id);
    format!("{prefix}{}", &hash["CNI-".len()..][..28 - prefix.len()])
}

/// Returns the chains that all containers share, with their rules and the rules that lead to them.
pub fn shared(conf: &Conf) -> (Vec<&'static str>, Vec<(&'static str, String)>) {
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

/// Returns the rules of the container's chain for one family, as `iptables-save` shows them.
pub fn own_rules(ports: &Publication<'_>) -> Vec<String> {
    ports.forwards.iter().flat_map(|forward| rules_of(ports.conf, forward)).collect()
}

/// Returns the rules of one port.
fn rules_of(conf: &Conf, forward: &Forward) -> Vec<String> {
    let base = matches_of(forward);
    let mut rules = marks(conf, forward, &base);
    rules.push(format!("{base} -j DNAT --to-destination {}", destination(forward)));
    rules
}

/// Returns the matches for packets to the forward's port.
fn matches_of(forward: &Forward) -> String {
    let Forward { protocol, host_port, .. } = forward;
    let at = forward.at.map(|ip| format!("-d {} ", IpNet::from(ip))).unwrap_or_default();
    format!("{at}-p {protocol} -m {protocol} --dport {host_port}")
}

/// Returns the rules that mark packets for masquerading: packets of all sources, or of those that the
/// container would answer past the host.
fn marks(conf: &Conf, forward: &Forward, base: &str) -> Vec<String> {
    let target = mark_target(conf);
    let mark = |source: &String| format!("{source}{base} -j {target}");
    masqueraded_sources(conf, forward).iter().map(mark).collect()
}

/// Returns the chain that marks for masquerading.
fn mark_target(conf: &Conf) -> &str {
    match conf.external_set_mark_chain.as_str() {
        "" => SETMARK,
        external => external,
    }
}

/// Returns the matches for the sources to masquerade, each followed by a space.
fn masqueraded_sources(conf: &Conf, forward: &Forward) -> Vec<String> {
    match (conf.snat, conf.masq_all) {
        (false, _) => vec![],
        (true, true) => vec![String::new()],
        (true, false) => {
            let mut sources = vec![format!("-s {} ", forward.to.trunc())];
            sources.extend(forward.to.addr().is_ipv4().then(|| "-s 127.0.0.1/32 ".to_owned()));
            sources
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
pub fn entries(conf: &Conf) -> Vec<Entry> {
    let protocols = [Protocol::Sctp, Protocol::Tcp, Protocol::Udp];
    protocols.into_iter().flat_map(|protocol| entries_of(conf, protocol)).collect()
}

fn entries_of(conf: &Conf, protocol: Protocol) -> Vec<Entry> {
    let ports = host_ports(conf, protocol);
    ports.chunks(PORTS).map(|ports| Entry::new(protocol, ports)).collect()
}

fn host_ports(conf: &Conf, protocol: Protocol) -> Vec<u16> {
    let of_protocol = conf.mappings.iter().filter(|mapping| mapping.protocol() == protocol);
    of_protocol.map(Mapping::host_port).collect()
}

/// A rule that leads to the container's chain.
pub struct Entry {
    pub protocol: Protocol,
    /// The ports, as xt_multiport lists them.
    pub ports: String,
}

impl Entry {
    fn new(protocol: Protocol, ports: &[u16]) -> Entry {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        Entry { protocol, ports: ports.join(",") }
    }

    /// Returns the line that adds it, for a publication of one family.
    pub fn line(&self, of: &Publication<'_>) -> String {
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
    pub fn found_in<'s>(&self, saved: &'s Saved, key: &Key) -> Vec<&'s str> {
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
    if is_plain(word) {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// Whether a word needs no quotes.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic() && !"\"'\\".contains(c))
}

pub fn rules_in<'s>(saved: &'s Saved, chain: &str) -> &'s [String] {
    saved.chain(chain).unwrap_or_default()
}

/// Whether a rule of the container's chain is about the forward's port, or leads to its destination.
pub fn is_of(rule: &str, forward: &Forward) -> bool {
    is_about(rule, forward.protocol, forward.host_port)
        || rule.contains(&format!(" {}", destination(forward)))
}

/// Whether a rule matches this port.
fn is_about(rule: &str, protocol: Protocol, port: u16) -> bool {
    rule.contains(&format!("-p {protocol} "))
        && format!("{rule} ").contains(&format!(" --dport {port} "))
}

/// Returns where the rules of a container's chain led to.
pub fn released_from(chain: &str, saved: &Saved) -> Vec<Released> {
    rules_in(saved, chain).iter().filter_map(|rule| released_by(rule)).collect()
}

fn released_by(rule: &str) -> Option<Released> {
    let (protocol, host_port, _) = redirected(rule)?;
    Some(Released { protocol: Protocol::of(protocol)?, host_port, to: led_to(rule)? })
}

/// Returns the container's address in a rule that redirects.
fn led_to(rule: &str) -> Option<IpAddr> {
    let (_, to) = rule.rsplit_once("--to-destination ")?;
    Some(to.parse::<SocketAddr>().ok()?.ip())
}

/// Returns the forward of the first port that one of these rules redirects.
pub fn first_taken<'p>(ports: &'p Publication<'_>, rules: &[String]) -> Option<&'p Forward> {
    let mut redirected = rules.iter().filter_map(|rule| redirected(rule));
    redirected.find_map(|port| ports.forwards.iter().find(|forward| overlaps(forward, port)))
}

/// Whether a forward is for a port that a rule redirects; see [`redirected`].
fn overlaps(forward: &Forward, (protocol, port, at): (&str, u16, Option<IpAddr>)) -> bool {
    (forward.protocol.as_str(), forward.host_port) == (protocol, port)
        && (forward.at.is_none() || at.is_none() || forward.at == at)
}

/// Returns the protocol, port and address of a rule that redirects.
fn redirected(line: &str) -> Option<(&str, u16, Option<IpAddr>)> {
    let words: Vec<&str> = line.split(' ').collect();
    if value_of(&words, "-j") != Some("DNAT") {
        return None;
    }
    let at = value_of(&words, "-d").and_then(|net| net.split('/').next()?.parse().ok());
    Some((value_of(&words, "-p")?, value_of(&words, "--dport")?.parse().ok()?, at))
}

/// Returns the word after an option.
fn value_of<'l>(words: &[&'l str], option: &str) -> Option<&'l str> {
    words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1])
}

/// Returns the owner of a container's chain, from the comment of the rule that leads to it.
pub fn holder(saved: &Saved, chain: &str) -> String {
    let comment = saved.leading_to(chain).find_map(|(_, rule)| comment_of(rule));
    comment.unwrap_or_else(|| format!("chain {chain}"))
}

fn comment_of(rule: &str) -> Option<String> {
    let (comment, _) = rule.split_once("--comment \"dnat ")?.1.split_once("\" -m")?;
    Some(comment.replace('\\', ""))
}

/// Returns the container's ID from the comment of the first rule that leads to its chain.
pub fn container_of<'s>(chain: &str, saved: &'s Saved) -> Option<&'s str> {
    let jump = format!("-j {chain}");
    id_in(rules_in(saved, DNAT).iter().find(|rule| rule.contains(&jump))?)
}

/// Returns the container's ID in the comment of a rule.
fn id_in(rule: &str) -> Option<&str> {
    rule.split("\\\" id: \\\"").nth(1)?.split('\\').next()
}

/// Returns the lines that remove the rules that lead to a chain.
pub fn removal(chain: &str, saved: &Saved) -> Vec<String> {
    saved.leading_to(chain).map(|(from, rule)| format!("-D {from} {rule}")).collect()
}

/// Returns the chain that an entry leads to, if its comment names this network. Comments truncate
/// long IDs.
pub fn chain_in<'r>(rule: &'r str, network: &NetworkName) -> Option<&'r str> {
    if !names_network(rule, network) {
        return None;
    }
    rule.rsplit_once(" -j ").map(|(_, chain)| chain).filter(|chain| chain.starts_with(DN))
}

fn names_network(rule: &str, network: &NetworkName) -> bool {
    rule.contains(&format!("--comment \"dnat name: \\\"{network}\\\" id: "))
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
