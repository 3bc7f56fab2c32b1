//! Masquerading by the host's iptables, with the reference's names: nerdctl and Nomad search for
//! them.
//!
//! ```text
//! -A CNI-<hash> -d <network> -j ACCEPT
//! -A CNI-<hash> ! -d 224.0.0.0/4 -j MASQUERADE
//! -A POSTROUTING -s <address> -j CNI-<hash>
//! ```
//! There is one chain per container and network, whatever the interface: two attachments share it.
//! The reference then masquerades between the two networks, and removes the rules of both with the
//! first attachment. We accept all of the networks before the other rules, and keep the chain as
//! long as any rule leads to it.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::attachment::{Key, NetworkName, iptables_chain as chain_of};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::net::iptables::Iptables;
use crate::plugin::Handles;

/// The chain with the rules that lead to the containers' chains.
const POSTROUTING: &str = "POSTROUTING";
/// xt_comment takes 255 bytes.
const COMMENT_MAX: usize = 255;

/// Masquerades these addresses. Removes the rules of an earlier ADD that had no DEL, since its
/// addresses will be unknown to a later DEL. `on_links` lists the addresses in the container,
/// including those of its other interfaces.
pub fn create(
    handles: &Handles,
    key: &Key,
    addresses: &[IpNet],
    on_links: &dyn Fn() -> Result<Vec<IpAddr>>,
) -> Result<()> {
    for of_family in by_family(addresses) {
        let iptables = handles.iptables().for_address(of_family[0].addr());
        let wanted = Rules::of(key, &of_family);
        iptables.change("nat", &|| {
            let present = Present::read(&iptables, &wanted.chain)?;
            let mut lines = wanted.missing_from(&present);
            lines.extend(wanted.deletions_of_others(&present, on_links)?);
            Ok(lines)
        })?;
    }
    Ok(())
}

/// Whether every rule is present. Runs no program if it can see without one that there are no
/// rules.
pub fn is_complete(handles: &Handles, key: &Key, addresses: &[IpNet]) -> Result<bool> {
    let chain = key.iptables_chain();
    let programs = programs_with(handles, &chain)?;
    for of_family in by_family(addresses) {
        if !Rules::of(key, &of_family).are_in_any(&programs)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The known addresses of a container whose rules are to be removed.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The addresses of the attachment, as far as they are known.
    pub own: Vec<IpAddr>,
    /// All addresses on the container's links, if they can be read.
    pub on_links: Option<Vec<IpAddr>>,
}

impl Addresses {
    /// Whether a rule does not belong to another interface of the container. A rule for an address
    /// that no link has is from an ADD that had no DEL before the next one.
    fn let_go_of(&self, rule: &str) -> bool {
        let is_from_any = |ips: &[IpAddr]| ips.iter().any(|ip| is_from(rule, *ip));
        match &self.on_links {
            Some(on_links) => is_from_any(&self.own) || !is_from_any(on_links),
            None => is_from_any(&self.own) || self.own.is_empty(),
        }
    }
}

/// Removes the rules of the attachment, and the chain when no rule leads to it any more. If none of
/// the container's addresses is known, every rule that leads to its chain is removed. `addresses`
/// is called only if there are rules.
pub fn delete(
    handles: &Handles,
    key: &Key,
    addresses: &dyn Fn() -> Result<Addresses>,
) -> Result<()> {
    let chain = key.iptables_chain();
    let mut errors = ErrorList::default();
    for iptables in programs_with(handles, &chain)? {
        errors.push(iptables.change("nat", &|| {
            let present = Present::read(&iptables, &chain)?;
            Ok(removal(&chain, &addresses()?, &present))
        }));
    }
    errors.finish()
}

/// Removes the chains of containers of this network without any valid attachment: the comments of
/// the rules that lead to a chain name its network. Runs no program on a host without iptables.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<()> {
    let mut errors = ErrorList::default();
    let chains: OnceCell<HashSet<String>> = OnceCell::new();
    let of_valid = || valid.containers().map(|id| chain_of(network.as_str(), id)).collect();
    for iptables in programs_with(handles, POSTROUTING)? {
        let rules = errors.push(iptables.chain("nat", POSTROUTING)).flatten().unwrap_or_default();
        let mut stale: Vec<&str> =
            rules.iter().filter_map(|rule| chain_in(rule, network)).collect();
        stale.retain(|chain| !chains.get_or_init(of_valid).contains(*chain));
        stale.dedup();
        let of_nobody = Addresses::default();
        for chain in stale {
            let remove = || {
                iptables.change("nat", &|| {
                    Ok(removal(chain, &of_nobody, &Present::read(&iptables, chain)?))
                })
            };
            errors.push(valid.remove(|| stale_chain(chain, &rules), remove));
        }
    }
    errors.finish()
}

/// Describes a chain, with the rules that lead to it, as something that GC removes.
fn stale_chain(chain: &str, rules: &[String]) -> Stale {
    let leading: Vec<&String> = rules.iter().filter(|rule| has(rule, "-j", chain)).collect();
    let id = leading.iter().find_map(|rule| rule.split("\\\" id: \\\"").nth(1)?.split('\\').next());
    Stale {
        what: format!("chain {chain} of iptables"),
        holder: Holder::of_container(id.unwrap_or_default()),
        addresses: leading.iter().filter_map(|rule| source(rule)).collect(),
        ..Stale::default()
    }
}

/// The chain that a rule leads to, if its comment names this network. Long ids are truncated in
/// comments.
fn chain_in<'r>(rule: &'r str, network: &NetworkName) -> Option<&'r str> {
    rule.contains(&format!("--comment \"name: \\\"{network}\\\" id: ")).then_some(())?;
    rule.split(" -j ").nth(1)?.split(' ').next().filter(|chain| chain.starts_with("CNI-"))
}

/// Whether the host's programs can list its rules. A host with one address family does not need the
/// program for the other.
pub fn require(handles: &Handles) -> Result<()> {
    handles.iptables().for_address(IpAddr::from([0, 0, 0, 0])).save("nat").map(drop)
}

/// The programs that may have a chain of this name.
fn programs_with<'h>(handles: &'h Handles, chain: &str) -> Result<Vec<Iptables<'h>>> {
    handles.iptables().with_nat_chain(handles.nft()?, chain)
}

/// What the kernel has: the chain, and the rules that lead to it.
#[derive(Default)]
struct Present {
    chain: Option<Vec<String>>,
    leading: Vec<String>,
}

impl Present {
    fn read(iptables: &Iptables<'_>, name: &str) -> Result<Present> {
        let Some(chain) = iptables.chain("nat", name)? else { return Ok(Present::default()) };
        let mut leading = iptables.chain("nat", POSTROUTING)?.unwrap_or_default();
        leading.retain(|line| has(line, "-j", name));
        Ok(Present { chain: Some(chain), leading })
    }
}

/// The rules that the addresses of one family need.
struct Rules {
    chain: String,
    comment: String,
    addresses: Vec<IpNet>,
}

impl Rules {
    fn of(key: &Key, addresses: &[IpNet]) -> Rules {
        Rules { chain: key.iptables_chain(), comment: comment(key), addresses: addresses.to_vec() }
    }

    /// Whether one of the programs lists all of them.
    fn are_in_any(&self, programs: &[Iptables<'_>]) -> Result<bool> {
        let ip = self.addresses[0].addr();
        let mut is_complete = false;
        for iptables in programs.iter().filter(|iptables| iptables.is_for(ip)) {
            let present = Present::read(iptables, &self.chain)?;
            is_complete |= self.missing_from(&present).is_empty();
        }
        Ok(is_complete)
    }

    /// The `iptables-restore --noflush` lines that add the missing rules.
    fn missing_from(&self, present: &Present) -> Vec<String> {
        let mut lines = self.missing_from_chain(present.chain.as_deref());
        let Rules { chain, comment, .. } = self;
        for ip in self.addresses.iter().map(IpNet::addr) {
            if !present.leading.iter().any(|rule| is_from(rule, ip)) {
                lines.push(format!(
                    "-A POSTROUTING -s {ip} -j {chain} -m comment --comment {comment}"
                ));
            }
        }
        lines
    }

    fn missing_from_chain(&self, present: Option<&[String]>) -> Vec<String> {
        let Rules { chain, comment, .. } = self;
        let rules = present.unwrap_or_default();
        let mut lines = vec![];
        if present.is_none() {
            lines.push(format!("-N {chain}"));
        }
        for net in self.addresses.iter().map(IpNet::trunc) {
            if !rules.iter().any(|rule| accepts(rule, net)) {
                // At the front: masquerading comes after the networks of every attachment.
                lines.push(format!(
                    "-I {chain} 1 -d {net} -j ACCEPT -m comment --comment {comment}"
                ));
            }
        }
        if !rules.iter().any(|rule| has(rule, "-j", "MASQUERADE")) {
            let multicast = Family::of_net(self.addresses[0]).multicast();
            lines.push(format!(
                "-A {chain} ! -d {multicast} -j MASQUERADE -m comment --comment {comment}"
            ));
        }
        lines
    }

    /// The lines that delete rules for addresses which no link of the container has.
    fn deletions_of_others(
        &self,
        present: &Present,
        on_links: &dyn Fn() -> Result<Vec<IpAddr>>,
    ) -> Result<Vec<String>> {
        let mut others: Vec<&String> =
            present.leading.iter().filter(|rule| !self.has(rule)).collect();
        if !others.is_empty() {
            let on_links = on_links()?;
            others.retain(|rule| !on_links.iter().any(|ip| is_from(rule, *ip)));
        }
        Ok(others.into_iter().map(|rule| deletion(rule)).collect())
    }

    /// Whether this rule leads to the chain from one of the addresses.
    fn has(&self, leading: &str) -> bool {
        self.addresses.iter().any(|net| is_from(leading, net.addr()))
    }
}

fn accepts(rule: &str, net: IpNet) -> bool {
    has(rule, "-d", &net.to_string()) && has(rule, "-j", "ACCEPT")
}

/// The lines that remove those rules in `present` that are to be removed.
fn removal(chain: &str, addresses: &Addresses, present: &Present) -> Vec<String> {
    if present.chain.is_none() {
        return vec![];
    }
    let to_go = present.leading.iter().filter(|rule| addresses.let_go_of(rule));
    let mut lines: Vec<String> = to_go.map(|rule| deletion(rule)).collect();
    if lines.len() == present.leading.len() {
        lines.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    lines
}

/// The line that removes a rule, from the line that lists it.
fn deletion(rule: &str) -> String {
    rule.replacen("-A ", "-D ", 1)
}

fn by_family(addresses: &[IpNet]) -> Vec<Vec<IpNet>> {
    let of =
        |family| addresses.iter().copied().filter(|net| Family::of_net(*net) == family).collect();
    Family::ALL.into_iter().map(of).filter(|nets: &Vec<_>| !nets.is_empty()).collect()
}

/// Whether an `-S` line has an option with this value.
fn has(line: &str, option: &str, value: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).any(|pair| pair == [option, value])
}

/// Whether a rule matches packets from exactly this address.
fn is_from(rule: &str, ip: IpAddr) -> bool {
    source(rule) == Some(ip)
}

/// The source address that a rule matches.
fn source(rule: &str) -> Option<IpAddr> {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let source = words.windows(2).find(|pair| pair[0] == "-s").map(|pair| pair[1])?;
    source.split('/').next()?.parse().ok()
}

/// `name: "<network>" id: "<container>"`, quoted for iptables-restore. The names contain no quotes.
fn comment(key: &Key) -> String {
    let text = format!("name: \"{}\" id: \"{}\"", key.network, key.container_id);
    let text = if text.len() > COMMENT_MAX { &text[..COMMENT_MAX] } else { &text };
    format!("\"{}\"", text.replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::parse("mynet", "cid1", "eth0").unwrap()
    }

    const C: &str = r#""name: \"mynet\" id: \"cid1\"""#;
    const CHAIN: &str = "CNI-a631aa8e1549a3b129110fd2";

    #[test]
    fn the_rules_are_the_reference_s() {
        let rules = Rules::of(&key(), &["10.1.2.3/24".parse().unwrap()]);
        let lines = rules.missing_from(&Present { chain: None, leading: vec![] });
        let expected = [
            format!("-N {CHAIN}"),
            format!("-I {CHAIN} 1 -d 10.1.2.0/24 -j ACCEPT -m comment --comment {C}"),
            format!("-A {CHAIN} ! -d 224.0.0.0/4 -j MASQUERADE -m comment --comment {C}"),
            format!("-A POSTROUTING -s 10.1.2.3 -j {CHAIN} -m comment --comment {C}"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn existing_rules_are_kept_and_a_second_network_s_come_first() {
        let present = Present {
            chain: Some(vec![
                format!("-A {CHAIN} -d 10.1.2.0/24 -m comment --comment {C} -j ACCEPT"),
                format!("-A {CHAIN} ! -d 224.0.0.0/4 -m comment --comment {C} -j MASQUERADE"),
            ]),
            leading: vec![format!(
                "-A POSTROUTING -s 10.1.2.3/32 -m comment --comment {C} -j {CHAIN}"
            )],
        };
        let lines = |nets: &[&str]| {
            let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
            Rules::of(&key(), &nets).missing_from(&present)
        };
        assert!(lines(&["10.1.2.3/24"]).is_empty());
        assert_eq!(lines(&["10.1.2.3/24", "10.9.0.3/16"]).len(), 2);
        assert!(lines(&["10.9.0.3/16"])[0].starts_with(&format!("-I {CHAIN} 1 -d 10.9.0.0/16")));
    }

    #[test]
    fn a_comment_names_its_network() {
        let rule = format!("-A POSTROUTING -s 10.1.2.3/32 -m comment --comment {C} -j {CHAIN}");
        let network = |name: &str| NetworkName::parse(name).unwrap();
        assert_eq!(chain_in(&rule, &network("mynet")), Some(CHAIN));
        assert_eq!(chain_in(&rule, &network("my")), None);
        assert_eq!(chain_in("-A POSTROUTING -j MASQUERADE", &network("mynet")), None);
    }

    #[test]
    fn the_chain_goes_with_the_last_rule_that_leads_to_it() {
        let leading =
            |ip: &str| format!("-A POSTROUTING -s {ip}/32 -m comment --comment {C} -j {CHAIN}");
        let present = Present {
            chain: Some(vec![]),
            leading: vec![leading("10.1.2.3"), leading("10.1.2.4")],
        };
        let of = |own: &[&str], on_links: Option<&[&str]>| {
            let parse = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
            removal(CHAIN, &Addresses { own: parse(own), on_links: on_links.map(parse) }, &present)
        };
        let one = [leading("10.1.2.3").replace("-A P", "-D P")];
        assert_eq!(of(&["10.1.2.3"], None), one);
        assert_eq!(of(&["10.1.2.3"], Some(&["10.1.2.3", "10.1.2.4"])), one);
        assert_eq!(
            of(&["10.1.2.5"], Some(&["10.1.2.5", "10.1.2.4"])),
            one,
            "no link has the first any more"
        );
        assert!(of(&["fd00::7"], None).is_empty());
        assert_eq!(of(&["fd00::7"], Some(&["fd00::7"])).len(), 4);
        assert_eq!(of(&[], None).len(), 4);
        assert_eq!(of(&[], Some(&["10.1.2.4"])), one, "the other interface is still there");
        assert!(
            removal(CHAIN, &Addresses::default(), &Present { chain: None, leading: vec![] })
                .is_empty()
        );
    }
}
