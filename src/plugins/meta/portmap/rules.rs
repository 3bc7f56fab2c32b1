//! The rules of published ports in the reference's words: written, and read as `iptables-save` lists
//! them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::conf::Conf;
use super::mapping::{Forward, Protocol, Released};
use super::publication::Publication;
use crate::cni::attachment::Key;
use crate::family::Family;
use crate::net::iptables::Saved;
use crate::steps::rules::{CniChains, quoted, value_of};

pub const DNAT: &str = "CNI-HOSTPORT-DNAT";
const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQ: &str = "CNI-HOSTPORT-MASQ";
pub const POSTROUTING: &str = "POSTROUTING";
/// The containers' own chains. The reference cuts comments at 253 bytes and adds three dots, which
/// iptables accepts.
pub const CHAINS: CniChains =
    CniChains { prefix: "CNI-DN-", entrance: DNAT, comment: "dnat name: ", cut: (253, "...") };
/// Those that plugins before 0.7 made.
pub const OLD_CHAINS: CniChains = CniChains { prefix: "CNI-SN-", ..CHAINS };
/// The maximum number of ports in xt_multiport.
const PORTS: usize = 15;

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

/// Returns the rules of the container's chain for one family, as `iptables-save` shows them. Those
/// of a port mark packets for masquerading, of all sources or of those that the container would
/// answer past the host, and redirect them.
pub fn own_rules(ports: &Publication<'_>) -> Vec<String> {
    let conf = ports.conf;
    let mark = match conf.external_set_mark_chain.as_str() {
        "" => SETMARK,
        external => external,
    };
    let mut rules = vec![];
    for forward in &ports.forwards {
        let Forward { protocol, host_port, to, .. } = forward;
        let at = forward.at.map(|ip| format!("-d {} ", IpNet::from(ip))).unwrap_or_default();
        let base = format!("{at}-p {protocol} -m {protocol} --dport {host_port}");
        if conf.snat && conf.masq_all {
            rules.push(format!("{base} -j {mark}"));
        } else if conf.snat {
            rules.push(format!("-s {} {base} -j {mark}", to.trunc()));
            if to.addr().is_ipv4() {
                rules.push(format!("-s 127.0.0.1/32 {base} -j {mark}"));
            }
        }
        rules.push(format!("{base} -j DNAT --to-destination {}", destination(forward)));
    }
    rules
}

fn destination(forward: &Forward) -> SocketAddr {
    SocketAddr::new(forward.to.addr(), forward.container_port)
}

/// Returns the rules that lead to the container's chain: for each protocol as many as its ports
/// need, with those of the other family too, as in the reference.
pub fn entries(conf: &Conf) -> Vec<Entry> {
    let mut entries = vec![];
    for protocol in [Protocol::Sctp, Protocol::Tcp, Protocol::Udp] {
        let of_protocol = conf.mappings.iter().filter(|mapping| mapping.protocol == protocol);
        let ports: Vec<String> = of_protocol.map(|mapping| mapping.host_port.to_string()).collect();
        entries.extend(ports.chunks(PORTS).map(|ports| Entry { protocol, ports: ports.join(",") }));
    }
    entries
}

/// A rule that leads to the container's chain.
pub struct Entry {
    pub protocol: Protocol,
    /// The ports, as xt_multiport lists them.
    pub ports: String,
}

impl Entry {
    /// Returns the line that adds it, for a publication of one family.
    pub fn line(&self, of: &Publication<'_>) -> String {
        let Entry { protocol, ports } = self;
        let chain = CHAINS.of(of.key);
        let comment = CHAINS.comment_of(of.key);
        let family = of.forwards.first().map(Forward::family).unwrap_or_default();
        let conditions = match family {
            Family::V4 => &of.conf.conditions_v4,
            Family::V6 => &of.conf.conditions_v6,
        };
        let conditions: String = conditions.iter().map(|word| quoted(word) + " ").collect();
        format!(
            "-A {DNAT} -p {protocol} -m comment --comment {comment} -m multiport --dports {ports} {conditions}-j {chain}"
        )
    }

    /// Returns the existing rules of that kind. Conditions and comments are not listed as they were
    /// written.
    pub fn found_in<'s>(&self, saved: &'s Saved, key: &Key) -> Vec<&'s str> {
        let of_protocol = format!("-p {} ", self.protocol);
        let target = format!(" -j {}", CHAINS.of(key));
        let mut found: Vec<&str> = saved.rules_in(DNAT).iter().map(String::as_str).collect();
        found.retain(|rule| {
            rule.ends_with(&target)
                && rule.contains(&of_protocol)
                && rule.split(' ').any(|word| word == self.ports)
        });
        found
    }
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
    let released = |rule: &String| {
        let (protocol, host_port, _) = redirected(rule)?;
        let to: SocketAddr = value_of(rule, "--to-destination")?.parse().ok()?;
        Some(Released { protocol: Protocol::of(protocol)?, host_port, to: to.ip() })
    };
    saved.rules_in(chain).iter().filter_map(released).collect()
}

/// Returns the forward of the first port that one of these rules redirects.
pub fn first_taken<'p>(ports: &'p Publication<'_>, rules: &[String]) -> Option<&'p Forward> {
    rules.iter().filter_map(|rule| redirected(rule)).find_map(|(protocol, port, at)| {
        ports.forwards.iter().find(|forward| {
            (forward.protocol.as_str(), forward.host_port) == (protocol, port)
                && (forward.at.is_none() || at.is_none() || forward.at == at)
        })
    })
}

/// Returns the protocol, port and address of a rule that redirects.
fn redirected(line: &str) -> Option<(&str, u16, Option<IpAddr>)> {
    let at = value_of(line, "-d").and_then(|net| net.split('/').next()?.parse().ok());
    let port = value_of(line, "--dport")?.parse().ok()?;
    (value_of(line, "-j") == Some("DNAT")).then_some((value_of(line, "-p")?, port, at))
}

/// Returns the owner of a container's chain, from the comment of the rule that leads to it.
pub fn holder(saved: &Saved, chain: &str) -> String {
    let comment = |rule: &str| {
        let (comment, _) = rule.split_once("--comment \"dnat ")?.1.split_once("\" -m")?;
        Some(comment.replace('\\', ""))
    };
    let mut comments = saved.leading_to(chain).filter_map(|(_, rule)| comment(rule));
    comments.next().unwrap_or_else(|| format!("chain {chain}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::attachment::NetworkName;
    use crate::steps::rules::entrances_away;

    #[test]
    fn chains_are_the_reference_s() {
        assert_eq!(CHAINS.name("net1", "cont-a"), "CNI-DN-a41e7966de45abfd7855c");
        assert_eq!(CHAINS.name("test", "1234").len(), 28);
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
        assert_eq!(CHAINS.chain_in(line, &NetworkName::parse("net1").unwrap()), Some("CNI-DN-x"));
        assert_eq!(CHAINS.chain_in(line, &NetworkName::parse("net").unwrap()), None);
        assert_eq!(entrances_away("CNI-DN-x", &Saved::parse(line)), [line.replacen("-A", "-D", 1)]);
    }

    #[test]
    fn a_rule_is_about_one_port() {
        let rule =
            "-d 198.51.100.1/32 -p udp -m udp --dport 808 -j DNAT --to-destination 10.10.0.2:53";
        assert!(is_about(rule, Protocol::Udp, 808));
        assert!(!is_about(rule, Protocol::Udp, 80) && !is_about(rule, Protocol::Tcp, 808));
    }
}
