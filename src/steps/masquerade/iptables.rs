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

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::net::iptables::{Iptables, Saved};
use crate::plugin::Handles;
use crate::steps::rules::{CniChains, NAT, chain_away, programs_with, value_of};

/// The containers' chains.
const CHAINS: CniChains =
    CniChains { prefix: "CNI-", entrance: "POSTROUTING", comment: "name: ", cut: (255, "") };

/// Lists the addresses on links of the container.
type ReadLinkAddresses<'a> = &'a dyn Fn() -> Result<Vec<IpAddr>>;
/// Finds out the addresses of a container.
type ReadAddresses<'a> = &'a dyn Fn() -> Result<Addresses>;

/// Masquerades these addresses, except for packets to their own networks and to the exempt ones.
/// Removes the rules of an earlier ADD that had no DEL, since its
/// addresses will be unknown to a later DEL. `on_links` lists the addresses in the container,
/// including those of its other interfaces.
pub fn create(
    handles: &Handles,
    key: &Key,
    addresses: &[IpNet],
    exempt: &[IpNet],
    on_links: ReadLinkAddresses<'_>,
) -> Result<()> {
    for rules in Rules::by_family(key, addresses, exempt) {
        let iptables = handles.iptables().for_address(rules.addresses[0].addr());
        iptables.change(NAT, &|| {
            let saved = present(&iptables, &rules.chain)?;
            let mut lines = rules.missing_from(&saved);
            let is_another_s =
                |rule: &str| !rules.addresses.iter().any(|net| is_from(rule, net.addr()));
            let mut others: Vec<(&str, &str)> =
                saved.leading_to(&rules.chain).filter(|(_, rule)| is_another_s(rule)).collect();
            if !others.is_empty() {
                let on_links = on_links()?;
                others.retain(|(_, rule)| !is_from_any(rule, &on_links));
            }
            lines.extend(others.iter().map(|(from, rule)| format!("-D {from} {rule}")));
            Ok(lines)
        })?;
    }
    Ok(())
}

/// Whether every rule is present, by one of the programs. Runs no program if it can see without one
/// that there are no rules.
pub fn is_complete(
    handles: &Handles,
    key: &Key,
    addresses: &[IpNet],
    exempt: &[IpNet],
) -> Result<bool> {
    let programs = programs_with(handles, &CHAINS.of(key))?;
    for rules in Rules::by_family(key, addresses, exempt) {
        let ip = rules.addresses[0].addr();
        let mut are_in_any = false;
        for iptables in programs.iter().filter(|iptables| iptables.is_for(ip)) {
            are_in_any |= rules.missing_from(&present(iptables, &rules.chain)?).is_empty();
        }
        if !are_in_any {
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
        is_from_any(rule, &self.own)
            || match &self.on_links {
                Some(on_links) => !is_from_any(rule, on_links),
                None => self.own.is_empty(),
            }
    }
}

/// Makes those of the chains that are missing, without rules, if the host has the family's program;
/// returns how many.
pub fn make_chains(handles: &Handles, family: Family, names: &BTreeSet<String>) -> Result<usize> {
    let iptables = handles.iptables().for_address(family.unspecified());
    if names.is_empty() || iptables.require().is_err() {
        return Ok(0);
    }
    let made = Cell::new(0);
    iptables.change(NAT, &|| {
        let present = iptables.save(NAT)?;
        let missing = names.iter().filter(|name| present.chain(name).is_none());
        let lines: Vec<String> = missing.map(|name| format!("-N {name}")).collect();
        made.set(lines.len());
        Ok(lines)
    })?;
    Ok(made.get())
}

/// Removes the rules of the attachment, and the chain when no rule leads to it any more. If none of
/// the container's addresses is known, every rule that leads to its chain is removed. `addresses`
/// is called only if there are rules.
pub fn delete(handles: &Handles, key: &Key, addresses: ReadAddresses<'_>) -> Result<()> {
    let chain = CHAINS.of(key);
    let mut errors = ErrorList::default();
    for iptables in programs_with(handles, &chain)? {
        errors.push(delete_from(&iptables, &chain, addresses));
    }
    errors.finish()
}

fn delete_from(iptables: &Iptables<'_>, chain: &str, addresses: ReadAddresses<'_>) -> Result<()> {
    iptables.change(NAT, &|| Ok(removal(chain, &addresses()?, &present(iptables, chain)?)))
}

/// The container's chain and the rules that lead to it from the entrance, and nothing of the rest of a
/// table that may be large.
fn present(iptables: &Iptables<'_>, chain: &str) -> Result<Saved> {
    iptables.chains(NAT, &[chain, CHAINS.entrance])
}

/// The lines that remove the rules for these addresses, and the chain with the last rule that leads
/// to it.
fn removal(chain: &str, addresses: &Addresses, saved: &Saved) -> Vec<String> {
    let leading: Vec<(&str, &str)> = saved.leading_to(chain).collect();
    let gone = leading.iter().filter(|(_, rule)| addresses.let_go_of(rule));
    let mut lines: Vec<String> = gone.map(|(from, rule)| format!("-D {from} {rule}")).collect();
    if lines.len() == leading.len() {
        lines.extend(chain_away(chain, saved));
    }
    lines
}

/// Removes the chains of containers of this network without any valid attachment: the comments of
/// the rules that lead to a chain name its network.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<()> {
    CHAINS.collect_garbage(
        handles,
        network,
        valid,
        |iptables| iptables.chains(NAT, &[CHAINS.entrance]).map(Rc::new),
        |saved, chain| saved.leading_to(chain).filter_map(|(_, rule)| source(rule)).collect(),
        |iptables, chain| delete_from(iptables, chain, &|| Ok(Addresses::default())),
    )
}

/// The rules that the addresses of one family need.
struct Rules {
    chain: String,
    comment: String,
    addresses: Vec<IpNet>,
    /// Networks to which packets keep the container's address.
    exempt: Vec<IpNet>,
}

impl Rules {
    /// The rules for each family that there are addresses of.
    fn by_family(key: &Key, addresses: &[IpNet], exempt: &[IpNet]) -> Vec<Rules> {
        let of_family = |nets: &[IpNet], family| -> Vec<IpNet> {
            nets.iter().copied().filter(|net| Family::of_net(*net) == family).collect()
        };
        let rules = Family::ALL.map(|family| Rules {
            chain: CHAINS.of(key),
            comment: CHAINS.comment_of(key),
            addresses: of_family(addresses, family),
            exempt: of_family(exempt, family),
        });
        rules.into_iter().filter(|rules| !rules.addresses.is_empty()).collect()
    }

    /// The `iptables-restore --noflush` lines that add the missing rules.
    fn missing_from(&self, saved: &Saved) -> Vec<String> {
        let Rules { chain, comment, addresses, exempt } = self;
        let line = |rule: fmt::Arguments<'_>| format!("{rule} -m comment --comment {comment}");
        let rules = saved.rules_in(chain);
        let does = |rule: &str, target| value_of(rule, "-j") == Some(target);
        let mut lines = vec![];
        if saved.chain(chain).is_none() {
            lines.push(format!("-N {chain}"));
        }
        for net in addresses.iter().map(IpNet::trunc).chain(exempt.iter().copied()) {
            let is_to = |rule: &str| value_of(rule, "-d") == Some(&net.to_string());
            if !rules.iter().any(|rule| is_to(rule) && does(rule, "ACCEPT")) {
                // At the front: masquerading comes after the networks of every attachment.
                lines.push(line(format_args!("-I {chain} 1 -d {net} -j ACCEPT")));
            }
        }
        if !rules.iter().any(|rule| does(rule, "MASQUERADE")) {
            let multicast = Family::of_net(addresses[0]).multicast();
            lines.push(line(format_args!("-A {chain} ! -d {multicast} -j MASQUERADE")));
        }
        for ip in addresses.iter().map(IpNet::addr) {
            if !saved.leading_to(chain).any(|(_, rule)| is_from(rule, ip)) {
                lines.push(line(format_args!("-A {} -s {ip} -j {chain}", CHAINS.entrance)));
            }
        }
        lines
    }
}

/// Whether a rule matches packets from exactly this address.
fn is_from(rule: &str, ip: IpAddr) -> bool {
    source(rule) == Some(ip)
}

/// Whether a rule matches packets from exactly one of these addresses.
fn is_from_any(rule: &str, ips: &[IpAddr]) -> bool {
    ips.iter().any(|ip| is_from(rule, *ip))
}

/// The source address that a rule matches.
fn source(rule: &str) -> Option<IpAddr> {
    value_of(rule, "-s")?.split('/').next()?.parse().ok()
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
        let rules = &Rules::by_family(&key(), &["10.1.2.3/24".parse().unwrap()], &[])[0];
        let lines = rules.missing_from(&Saved::default());
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
        let present = Saved::parse(&format!(
            "-A {CHAIN} -d 10.1.2.0/24 -m comment --comment {C} -j ACCEPT\n\
             -A {CHAIN} ! -d 224.0.0.0/4 -m comment --comment {C} -j MASQUERADE\n\
             -A POSTROUTING -s 10.1.2.3/32 -m comment --comment {C} -j {CHAIN}"
        ));
        let lines = |nets: &[&str]| {
            let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
            Rules::by_family(&key(), &nets, &[])[0].missing_from(&present)
        };
        assert!(lines(&["10.1.2.3/24"]).is_empty());
        assert_eq!(lines(&["10.1.2.3/24", "10.9.0.3/16"]).len(), 2);
        assert!(lines(&["10.9.0.3/16"])[0].starts_with(&format!("-I {CHAIN} 1 -d 10.9.0.0/16")));
    }

    #[test]
    fn a_comment_names_its_network() {
        let rule = format!("-A POSTROUTING -s 10.1.2.3/32 -m comment --comment {C} -j {CHAIN}");
        let network = |name: &str| NetworkName::parse(name).unwrap();
        assert_eq!(CHAINS.chain_in(&rule, &network("mynet")), Some(CHAIN));
        assert_eq!(CHAINS.chain_in(&rule, &network("my")), None);
        assert_eq!(CHAINS.chain_in("-A POSTROUTING -j MASQUERADE", &network("mynet")), None);
    }

    #[test]
    fn the_chain_goes_with_the_last_rule_that_leads_to_it() {
        let leading =
            |ip: &str| format!("-A POSTROUTING -s {ip}/32 -m comment --comment {C} -j {CHAIN}");
        let present = Saved::parse(&format!(
            ":{CHAIN} - [0:0]\n{}\n{}",
            leading("10.1.2.3"),
            leading("10.1.2.4")
        ));
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
        assert!(removal(CHAIN, &Addresses::default(), &Saved::default()).is_empty());
    }
}
