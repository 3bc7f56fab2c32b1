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

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeSet, HashSet};
use std::fmt;
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
    let rules = Rules::by_family(key, addresses, exempt);
    rules.iter().try_for_each(|rules| rules.write(handles, on_links))
}

/// Whether every rule is present. Runs no program if it can see without one that there are no
/// rules.
pub fn is_complete(
    handles: &Handles,
    key: &Key,
    addresses: &[IpNet],
    exempt: &[IpNet],
) -> Result<bool> {
    let programs = programs_with(handles, &key.iptables_chain())?;
    for rules in Rules::by_family(key, addresses, exempt) {
        if !rules.are_in_any(&programs)? {
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
    iptables.change("nat", &|| {
        let present = iptables.save("nat")?;
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
    let chain = key.iptables_chain();
    let mut errors = ErrorList::default();
    for iptables in programs_with(handles, &chain)? {
        errors.push(delete_from(&iptables, &chain, addresses));
    }
    errors.finish()
}

fn delete_from(iptables: &Iptables<'_>, chain: &str, addresses: ReadAddresses<'_>) -> Result<()> {
    iptables.change("nat", &|| {
        let present = Present::read(iptables, chain)?;
        Ok(removal(chain, &addresses()?, &present))
    })
}

/// Removes the chains of containers of this network without any valid attachment: the comments of
/// the rules that lead to a chain name its network. Runs no program on a host without iptables.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<()> {
    let chains = Chains { network, valid, of_valid: OnceCell::new() };
    let mut errors = ErrorList::default();
    for iptables in programs_with(handles, POSTROUTING)? {
        chains.delete_stale(&iptables, &mut errors);
    }
    errors.finish()
}

/// The chains of a network.
struct Chains<'a> {
    network: &'a NetworkName,
    valid: &'a ValidAttachments,
    /// The names of the chains that are not stale, computed only if there is a chain.
    of_valid: OnceCell<HashSet<String>>,
}

impl Chains<'_> {
    fn delete_stale(&self, iptables: &Iptables<'_>, errors: &mut ErrorList) {
        let rules = errors.push(iptables.chain("nat", POSTROUTING)).flatten().unwrap_or_default();
        for chain in self.stale_in(&rules) {
            let delete = || delete_from(iptables, chain, &|| Ok(Addresses::default()));
            errors.push(self.valid.remove(|| stale_chain(chain, &rules), delete));
        }
    }

    /// The stale chains that rules lead to.
    fn stale_in<'r>(&self, rules: &'r [String]) -> Vec<&'r str> {
        let chains = rules.iter().filter_map(|rule| chain_in(rule, self.network));
        let mut stale: Vec<&str> = chains.filter(|chain| !self.is_valid(chain)).collect();
        stale.dedup();
        stale
    }

    fn is_valid(&self, chain: &str) -> bool {
        self.of_valid.get_or_init(|| self.names_of_valid()).contains(chain)
    }

    fn names_of_valid(&self) -> HashSet<String> {
        let network = self.network.as_str();
        self.valid.containers().map(|id| chain_of(network, id)).collect()
    }
}

/// Describes a chain, with the rules that lead to it, as something that GC removes.
fn stale_chain(chain: &str, rules: &[String]) -> Stale {
    let leading: Vec<&String> = rules.iter().filter(|rule| has(rule, "-j", chain)).collect();
    let id = leading.iter().find_map(|rule| container_in(rule));
    Stale {
        what: format!("chain {chain} of iptables"),
        holder: Holder::of_container(id.unwrap_or_default()),
        addresses: leading.iter().filter_map(|rule| source(rule)).collect(),
        ..Stale::default()
    }
}

/// The container that a rule's comment names.
fn container_in(rule: &str) -> Option<&str> {
    rule.split("\\\" id: \\\"").nth(1)?.split('\\').next()
}

/// The chain that a rule leads to, if its comment names this network. Long ids are truncated in
/// comments.
fn chain_in<'r>(rule: &'r str, network: &NetworkName) -> Option<&'r str> {
    if !is_of_network(rule, network) {
        return None;
    }
    rule.split(" -j ").nth(1)?.split(' ').next().filter(|chain| chain.starts_with("CNI-"))
}

fn is_of_network(rule: &str, network: &NetworkName) -> bool {
    rule.contains(&format!("--comment \"name: \\\"{network}\\\" id: "))
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
        Ok(Present { chain: Some(chain), leading: leading_to(iptables, name)? })
    }

    fn leads_from(&self, ip: IpAddr) -> bool {
        self.leading.iter().any(|rule| is_from(rule, ip))
    }

    /// The lines that delete the rules which lead from these addresses.
    fn deletions(&self, addresses: &Addresses) -> Vec<String> {
        let to_go = self.leading.iter().filter(|rule| addresses.let_go_of(rule));
        to_go.map(|rule| deletion(rule)).collect()
    }
}

fn leading_to(iptables: &Iptables<'_>, chain: &str) -> Result<Vec<String>> {
    let mut leading = iptables.chain("nat", POSTROUTING)?.unwrap_or_default();
    leading.retain(|line| has(line, "-j", chain));
    Ok(leading)
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
        let of = |family| Rules::of(key, &of_family(addresses, family), &of_family(exempt, family));
        let families = Family::ALL.into_iter().map(of);
        families.filter(|rules| !rules.addresses.is_empty()).collect()
    }

    fn of(key: &Key, addresses: &[IpNet], exempt: &[IpNet]) -> Rules {
        let (addresses, exempt) = (addresses.to_vec(), exempt.to_vec());
        Rules { chain: key.iptables_chain(), comment: comment(key), addresses, exempt }
    }

    /// Adds the missing rules, and deletes those for addresses which no link of the container has.
    fn write(&self, handles: &Handles, on_links: ReadLinkAddresses<'_>) -> Result<()> {
        let iptables = handles.iptables().for_address(self.addresses[0].addr());
        iptables.change("nat", &|| self.changes(&iptables, on_links))
    }

    fn changes(
        &self,
        iptables: &Iptables<'_>,
        on_links: ReadLinkAddresses<'_>,
    ) -> Result<Vec<String>> {
        let present = Present::read(iptables, &self.chain)?;
        let mut lines = self.missing_from(&present);
        lines.extend(self.deletions_of_others(&present, on_links)?);
        Ok(lines)
    }

    /// Whether one of the programs lists all of them.
    fn are_in_any(&self, programs: &[Iptables<'_>]) -> Result<bool> {
        let ip = self.addresses[0].addr();
        let mut is_complete = false;
        for iptables in programs.iter().filter(|iptables| iptables.is_for(ip)) {
            is_complete |= self.are_in(iptables)?;
        }
        Ok(is_complete)
    }

    fn are_in(&self, iptables: &Iptables<'_>) -> Result<bool> {
        let present = Present::read(iptables, &self.chain)?;
        Ok(self.missing_from(&present).is_empty())
    }

    /// The `iptables-restore --noflush` lines that add the missing rules.
    fn missing_from(&self, present: &Present) -> Vec<String> {
        let mut lines = vec![];
        if present.chain.is_none() {
            lines.push(format!("-N {}", self.chain));
        }
        self.fill_chain(present.chain.as_deref().unwrap_or_default(), &mut lines);
        self.lead_to_chain(present, &mut lines);
        lines
    }

    fn lead_to_chain(&self, present: &Present, lines: &mut Vec<String>) {
        for ip in self.addresses.iter().map(IpNet::addr) {
            if !present.leads_from(ip) {
                lines.push(self.leading_from(ip));
            }
        }
    }

    /// Adds the lines for the rules that the chain lacks.
    fn fill_chain(&self, rules: &[String], lines: &mut Vec<String>) {
        for net in self.addresses.iter().map(IpNet::trunc).chain(self.exempt.iter().copied()) {
            if !rules.iter().any(|rule| accepts(rule, net)) {
                lines.push(self.accepting(net));
            }
        }
        if !rules.iter().any(|rule| has(rule, "-j", "MASQUERADE")) {
            lines.push(self.masquerading());
        }
    }

    /// At the front: masquerading comes after the networks of every attachment.
    fn accepting(&self, net: IpNet) -> String {
        self.line(format_args!("-I {} 1 -d {net} -j ACCEPT", self.chain))
    }

    fn masquerading(&self) -> String {
        let multicast = Family::of_net(self.addresses[0]).multicast();
        self.line(format_args!("-A {} ! -d {multicast} -j MASQUERADE", self.chain))
    }

    /// The rule that leads to the chain from this address.
    fn leading_from(&self, ip: IpAddr) -> String {
        self.line(format_args!("-A POSTROUTING -s {ip} -j {}", self.chain))
    }

    /// The line that adds a rule, with the comment that names its container.
    fn line(&self, rule: fmt::Arguments<'_>) -> String {
        format!("{rule} -m comment --comment {}", self.comment)
    }

    /// The lines that delete rules for addresses which no link of the container has.
    fn deletions_of_others(
        &self,
        present: &Present,
        on_links: ReadLinkAddresses<'_>,
    ) -> Result<Vec<String>> {
        let mut others = present.leading.clone();
        others.retain(|rule| !self.has(rule));
        if others.is_empty() {
            return Ok(others);
        }
        let on_links = on_links()?;
        others.retain(|rule| !is_from_any(rule, &on_links));
        Ok(others.iter().map(|rule| deletion(rule)).collect())
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
    let mut lines = present.deletions(addresses);
    if lines.len() == present.leading.len() {
        lines.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    lines
}

/// The line that removes a rule, from the line that lists it.
fn deletion(rule: &str) -> String {
    rule.replacen("-A ", "-D ", 1)
}

fn of_family(addresses: &[IpNet], family: Family) -> Vec<IpNet> {
    addresses.iter().copied().filter(|net| Family::of_net(*net) == family).collect()
}

/// Whether an `-S` line has an option with this value.
fn has(line: &str, option: &str, value: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    words.windows(2).any(|pair| pair == [option, value])
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
    value_of("-s", rule)?.split('/').next()?.parse().ok()
}

/// The word behind the option in an `-S` line.
fn value_of<'l>(option: &str, line: &'l str) -> Option<&'l str> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == option)?;
    words.next()
}

/// `name: "<network>" id: "<container>"`, quoted for iptables-restore. The names contain no quotes.
fn comment(key: &Key) -> String {
    let text = format!("name: \"{}\" id: \"{}\"", key.network, key.container_id);
    let end = text.len().min(COMMENT_MAX);
    format!("\"{}\"", text[..end].replace('"', "\\\""))
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
        let rules = Rules::of(&key(), &["10.1.2.3/24".parse().unwrap()], &[]);
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
            Rules::of(&key(), &nets, &[]).missing_from(&present)
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
