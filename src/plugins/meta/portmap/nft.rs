//! Published ports with nftables: the elements of the table.
//!
//! Also the rules of published ports that the reference plugin made with nftables. They name the
//! container's ID and nothing else.

use std::collections::BTreeSet;
use std::slice;

use ipnet::IpNet;

use super::localnet::Localnet;
use super::mapping::{Forward, Protocol, Released};
use super::publication::{Held, Publication};
use super::table::{LAYOUT, OfFamily, V4, V6, redirect};
use crate::cni::attachment::{Key, hash8, hex};
use crate::cni::valid::Holder;
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::attr::read_text;
use crate::net::nft::batch::Table;
use crate::net::nft::expr::{Expressions, Verdict};
use crate::net::nft::owned::{self, Owned, OwnedElement, Owner, Rival, Search, SharedChain, Taken};
use crate::net::nft::wire::{octets, read_ip};
use crate::net::nft::{NfFamily, Nft, RuleInfo};
use crate::plugin::Handles;
use crate::steps::nft_owner;
use crate::steps::rules::ReferenceRules;

/// Opens the ports, all or none. A port of another attachment is an error with code 102.
pub fn open(handles: &Handles, ports: &Publication<'_>, localnet: Option<&Localnet>) -> Result<()> {
    take(handles, ports, elements(ports), localnet)
}

/// Guards the link: for another backend, which opens the ports itself.
pub fn set_guard(
    handles: &Handles,
    ports: &Publication<'_>,
    localnet: Option<&Localnet>,
) -> Result<()> {
    take(handles, ports, vec![], localnet)
}

fn take(
    handles: &Handles,
    ports: &Publication<'_>,
    mut elements: Vec<OwnedElement>,
    localnet: Option<&Localnet>,
) -> Result<()> {
    let nft = handles.require_nft()?;
    let owner = nft_owner::of(ports.key);
    elements.extend(localnet.map(|localnet| localnet.element.clone()));
    let taken = LAYOUT.on(nft).of(&owner).take_free(&elements)?;
    refuse(taken, &ports.forwards)
}

/// Refuses with code 102 a port that an element of another attachment leads elsewhere.
pub fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let owner = nft_owner::of(ports.key);
    let taken = LAYOUT.on(nft).of(&owner).first_taken(&port_elements(&ports.forwards))?;
    refuse(taken, &ports.forwards)
}

/// Closes all ports of an attachment that has one of these, if `is_gone` says that its container is
/// gone. An ADD of that container changes the ruleset, and then it is judged again.
pub fn close_abandoned(
    handles: &Handles,
    ports: &Publication<'_>,
    is_gone: &dyn Fn(&Held) -> Result<bool>,
) -> Result<Option<(Held, Vec<Released>)>> {
    let Some((owner, held)) = first_holder(handles, ports)? else { return Ok(None) };
    let may_go = || match first_holder(handles, ports)? {
        Some((first, held)) if first == owner => is_gone(&held),
        _ => Ok(false),
    };
    let ours = LAYOUT.on(handles.require_nft()?);
    let elements = ours.of(&owner).release_if(Search::Comments, &may_go)?;
    Ok(Some((held, closed(&elements))).filter(|(_, released)| !released.is_empty()))
}

/// The first other attachment that has one of the ports.
fn first_holder(handles: &Handles, ports: &Publication<'_>) -> Result<Option<(Owner, Held)>> {
    let Some(nft) = handles.nft()? else { return Ok(None) };
    let ours = LAYOUT.on(nft);
    let own = nft_owner::of(ports.key);
    let Some(taken) = ours.of(&own).first_taken(&port_elements(&ports.forwards))? else {
        return Ok(None);
    };
    let found = ours.holdings(None)?.into_iter().find(|held| held.comment == taken.by);
    let Some(Owned { id, comment, elements }) = found else { return Ok(None) };
    let words = holder(&taken).to_owned();
    let network = words.strip_prefix("net: ").and_then(|rest| rest.split(", ").next());
    let held = Held {
        network: network.unwrap_or_default().to_owned(),
        holder: Holder::of_comment(&comment),
        addresses: closed(&elements).iter().map(|released| released.to).collect(),
        words,
    };
    Ok(Some((Owner { id, comment }, held)))
}

/// Names the owner of the port in words that an operator can search for. The elements of ports come
/// first, one per forward.
fn refuse(taken: Option<Taken>, forwards: &[Forward]) -> Result<()> {
    let Some(taken) = taken else { return Ok(()) };
    let holder = holder(&taken);
    Err(match forwards.get(taken.element) {
        Some(forward) => forward.taken(holder),
        None => Error::new(Code::CONFLICT, format!("what the ports need is taken by {holder}")),
    })
}

/// Returns the words after the owner's identity.
fn holder(taken: &Taken) -> &str {
    taken.by.split_once(", ").map_or(taken.by.as_str(), |(_, words)| words)
}

/// Verifies that the kernel has every element.
pub fn verify(
    handles: &Handles,
    ports: &Publication<'_>,
    localnet: Option<&Localnet>,
) -> Result<()> {
    let nft = handles.require_nft()?;
    let elements = elements(ports);
    let ours = LAYOUT.on(nft);
    let damage = ours.damage()?;
    let missing = ours.of(&nft_owner::of(ports.key)).missing(&elements)?;
    if !missing.is_empty() && is_complete_of_reference(nft, ports)? {
        return Ok(());
    }
    let missing = missing.into_iter().map(|OwnedElement { set, key, .. }| {
        let port = match (protocol_and_port(key), read_ip(&key[..key.len().saturating_sub(8)])) {
            (Some((protocol, port)), Some(ip)) => format!("{port}/{protocol} of {ip}"),
            (Some((protocol, port)), None) => format!("{port}/{protocol}"),
            (None, _) => format!("in {set:?}"),
        };
        format!("{port} is not published: no element in map {set:?}")
    });
    // The reference's sentence names the chain that it has in place of our maps.
    let faults = missing.chain(damage).map(|what| {
        Err(Error::check(what).saying("missing hostport rules in \"hostports\" chain"))
    });
    ErrorList::of(faults.chain([verify_link(nft, ports.key, localnet)]))
}

/// Verifies the guard of an attachment whose ports another backend has.
pub fn verify_guard(handles: &Handles, key: &Key, localnet: Option<&Localnet>) -> Result<()> {
    let localnet = localnet.filter(|localnet| localnet.is_guarded);
    let Some(nft) = handles.nft()?.filter(|_| localnet.is_some()) else { return Ok(()) };
    ErrorList::of([LAYOUT.on(nft).verify(), verify_link(nft, key, localnet)])
}

/// Verifies that packets from and to 127.0.0.0/8 that arrive on the link are dropped.
fn verify_link(nft: &Nft, key: &Key, localnet: Option<&Localnet>) -> Result<()> {
    let Some(Localnet { element, .. }) = localnet else { return Ok(()) };
    let owner = nft_owner::of(key);
    match LAYOUT.on(nft).of(&owner).missing(slice::from_ref(element))?.first() {
        Some(_) => {
            let (link, set) = (read_text(&element.key), element.set);
            Err(Error::check(format!("127.0.0.0/8 is open to {link:?}: it is not in set {set:?}")))
        }
        None => Ok(()),
    }
}

/// Closes the ports of an attachment, and returns its elements; the table is deleted with the last
/// of all.
pub fn delete(handles: &Handles, key: &Key) -> Result<Vec<owned::Released>> {
    nft_owner::release(handles, &LAYOUT, &nft_owner::of(key), Search::Ledger)
}

/// Returns the ports among the elements.
pub fn closed(elements: &[owned::Released]) -> Vec<Released> {
    let ports = [&V4, &V6].map(|family| family.maps().map(|maps| maps.ports.name)).concat();
    let released = |element: &owned::Released| {
        let (protocol, host_port) = protocol_and_port(&element.key)?;
        let (address, _port) = element.value.split_last_chunk::<4>()?;
        Some(Released { protocol, host_port, to: read_ip(address)? })
    };
    let of_ports = elements.iter().filter(|element| ports.contains(&element.set.as_str()));
    of_ports.filter_map(released).collect()
}

/// Parses the end of a key: `inet_proto . inet_service`.
fn protocol_and_port(key: &[u8]) -> Option<(Protocol, u16)> {
    let [protocol, _, _, _, high, low, _, _] = *key.last_chunk()?;
    Some((Protocol::of_number(protocol)?, u16::from_be_bytes([high, low])))
}

/// Returns an element per port, a second one if the attachment has conditions, one per address of the
/// container, and those of [`known_elements`].
fn elements(ports: &Publication<'_>) -> Vec<OwnedElement> {
    let mut elements = port_elements(&ports.forwards);
    for forward in &ports.forwards {
        let family = OfFamily::of(forward);
        if let Some(chain) = conditional_chain(ports, family) {
            let map = &family.maps_of(forward).conditional;
            elements.push(OwnedElement::of(map, key_of(forward)).leading_to(chain));
        }
    }
    for family in [&V4, &V6] {
        let to = ports.of_family(family.ip).filter(|_| ports.conf.snat).map(|forward| forward.to);
        for to in to.collect::<BTreeSet<IpNet>>() {
            let chain = masquerading(family, to.trunc(), ports.conf.masq_all);
            elements.push(OwnedElement::of(&family.snat, octets(to.addr())).leading_to(chain));
        }
    }
    elements.extend(known_elements(ports));
    elements
}

/// Returns one element per port. Its rival would have the same port: at all addresses, or at any
/// one.
fn port_elements(forwards: &[Forward]) -> Vec<OwnedElement> {
    let element = |forward: &Forward| {
        let family = OfFamily::of(forward);
        let port = port_key(forward);
        let rival = match forward.at {
            Some(_) => Rival::Key { set: family.at_all.ports.name, key: port },
            None => Rival::Suffix { set: family.at_address.ports.name, suffix: port },
        };
        let to = [octets(forward.to.addr()), padded(forward.container_port).to_vec()].concat();
        let map = &family.maps_of(forward).ports;
        OwnedElement {
            value: Some(to),
            rivals: vec![rival],
            ..OwnedElement::of(map, key_of(forward))
        }
    };
    forwards.iter().map(element).collect()
}

/// Returns `[daddr .] inet_proto . inet_service`.
fn key_of(forward: &Forward) -> Vec<u8> {
    [forward.at.map(octets).unwrap_or_default(), port_key(forward)].concat()
}

fn port_key(forward: &Forward) -> Vec<u8> {
    [[forward.protocol as u8, 0, 0, 0], padded(forward.host_port)].concat()
}

/// A port as a field: in network byte order, padded to a word.
fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// If some addresses of the host may be those of services, returns one more element per port at all
/// addresses, which leads to the chain with the others.
fn known_elements(ports: &Publication<'_>) -> Vec<OwnedElement> {
    let mut elements = vec![];
    for family in [&V4, &V6] {
        let Some(known) = known_chain(ports, family) else { continue };
        let at_all = ports.of_family(family.ip).filter(|forward| forward.at.is_none());
        let to_known = |forward| OwnedElement::of(&family.known, key_of(forward));
        elements.extend(at_all.map(|forward| to_known(forward).leading_to(known.clone())));
    }
    elements
}

/// Returns the chain that leaves the packets to the host's known addresses to the ports, and those
/// of services to nobody; a service's address may still be the `hostIP` of a port.
fn known_chain(ports: &Publication<'_>, family: &OfFamily) -> Option<SharedChain> {
    let of_ports = ports.forwards.iter().filter_map(|forward| forward.at).map(IpNet::from);
    let all = ports.known.as_ref()?.iter().copied().chain(of_ports).chain([family.loopback]);
    let networks: BTreeSet<IpNet> =
        all.filter(|network| Family::of_net(*network) == family.ip).collect();
    let mut rules: Vec<Expressions> = vec![];
    for network in &networks {
        let mut rule = Expressions::default();
        rule.family(family.ip).destination(family.ip).is_in(*network).verdict(&Verdict::Return);
        rules.push(rule);
    }
    rules.push(to_services());
    let hash = hex(&hash8(&format!("{networks:?}")));
    Some(SharedChain { name: format!("known{}-{hash}", u8::from(family.ip)), rules })
}

/// Leaves packets to the rules of services.
fn to_services() -> Expressions {
    let mut rest = Expressions::default();
    rest.verdict(&Verdict::Accept);
    rest
}

/// Verifies that ports at all addresses, if they are in nftables, spare those of services, which
/// are on this link. Which addresses the host had at ADD is no matter: the chain of any of them
/// ends for services.
pub fn verify_spared(handles: &Handles, ports: &Publication<'_>, link: &str) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let ours = LAYOUT.on(nft);
    for forward in ports.forwards.iter().filter(|forward| forward.at.is_none()) {
        let OfFamily { at_all, known, .. } = OfFamily::of(forward);
        let key = key_of(forward);
        let spares = ours.leads_to_end(known.name, &key, &to_services())?;
        let published = OwnedElement::of(&at_all.ports, key);
        if !spares && ours.absent(&[published])?.is_empty() {
            let what = format!("port {forward} takes the packets of services on {link:?}");
            return Err(Error::check(what).with_details("`cni-multi net sync` spares them"));
        }
    }
    Ok(())
}

/// Returns the chain of a container's address. It masquerades all sources, or those whose answers
/// would bypass the host: the container's own network with the container itself, and the host's
/// 127.0.0.1, which the container cannot answer at all.
fn masquerading(family: &OfFamily, net: IpNet, all: bool) -> SharedChain {
    if all {
        let [mut all, mut rest] = [Expressions::default(), Expressions::default()];
        all.masquerade();
        rest.verdict(&Verdict::Return);
        return SharedChain { name: "everyone".to_owned(), rules: vec![all, rest] };
    }
    let mut rules = vec![];
    for net in [net, family.loopback] {
        let mut rule = Expressions::default();
        rule.family(family.ip).source(family.ip).is_in(net).masquerade();
        rules.push(rule);
    }
    SharedChain { name: format!("net-{}", net.to_string().replace(':', "-")), rules }
}

/// If the attachment has conditions, returns its own chain, which redirects the packets that meet
/// them.
fn conditional_chain(ports: &Publication<'_>, family: &OfFamily) -> Option<SharedChain> {
    let conditions = &ports.conf.conditions[family.ip as usize];
    if conditions.is_empty() {
        return None;
    }
    let mut begin = Expressions::default();
    // Without this, nft(8) lists the conditions as raw bytes, and cannot read its own listing.
    begin.family(family.ip);
    let (long, short): (Vec<_>, Vec<_>) = conditions.iter().partition(|one| one.is_long());
    let mut rules = vec![];
    for mut unmet in short.iter().flat_map(|condition| condition.unmet(&begin)) {
        unmet.verdict(&Verdict::Return);
        rules.push(unmet);
    }
    let met = long.first().map_or(vec![begin.clone()], |condition| condition.of_each(&begin));
    for maps in family.maps() {
        for mut rule in met.iter().cloned() {
            redirect(&mut rule, family, maps);
            rules.push(rule);
        }
    }
    let name = format!("if{}-{}", u8::from(family.ip), ports.key.identity());
    Some(SharedChain { name, rules })
}

const fn rules_of_reference(family: NfFamily, chain: &'static str, jumps: u32) -> ReferenceRules {
    ReferenceRules {
        table: Table { family, name: "cni_hostport" },
        chain,
        jumps,
        deletion: "delete a port rule of the reference plugins",
    }
}

/// The rules that redirect, of each family.
const REFERENCE_PORTS: [ReferenceRules; 2] = [
    rules_of_reference(NfFamily::Ip, "hostports", 1),
    rules_of_reference(NfFamily::Ip6, "hostports", 1),
];
/// Those at one address of the host, and those that masquerade.
const REFERENCE_OTHERS: [ReferenceRules; 4] = [
    rules_of_reference(NfFamily::Ip, "hostip_hostports", 0),
    rules_of_reference(NfFamily::Ip, "masquerading", 0),
    rules_of_reference(NfFamily::Ip6, "hostip_hostports", 0),
    rules_of_reference(NfFamily::Ip6, "masquerading", 0),
];

/// Whether the reference made as many rules as there are ports: its rules name the container's ID
/// only.
pub fn is_complete_of_reference(nft: &Nft, ports: &Publication<'_>) -> Result<bool> {
    let id = ports.key.container_id.as_str();
    for (rules, family) in REFERENCE_PORTS.iter().zip(Family::ALL) {
        if rules.find(nft, |comment| comment == id)?.len() < ports.of_family(family).count() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses with code 102 a port that a rule of the reference leads elsewhere.
pub fn refuse_taken_by_reference(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let id = ports.key.container_id.as_str();
    for (rules, family) in REFERENCE_PORTS.iter().zip(Family::ALL) {
        let others = rules.find(nft, |comment| comment != id)?;
        for forward in ports.of_family(family) {
            if let Some(rule) = others.iter().find(|rule| redirects_of_reference(rule, forward)) {
                return Err(forward.taken(&format!("container {}", rule.comment)));
            }
        }
    }
    Ok(())
}

/// Whether a rule of the reference matches the forward's port. The rule is `[ip daddr A] tcp dport
/// P dnat to …`.
fn redirects_of_reference(rule: &RuleInfo, forward: &Forward) -> bool {
    let has = |value: &[u8]| rule.compared.iter().any(|compared| compared == value);
    let at = rule.compared.iter().find_map(|compared| read_ip(compared));
    has(&[forward.protocol as u8])
        && has(&forward.host_port.to_be_bytes())
        && (at.is_none() || forward.at.is_none() || at == forward.at)
}

/// Removes the rules that the reference made for the same container.
pub fn delete_of_reference(handles: &Handles, key: &Key) -> Result<()> {
    let id = key.container_id.as_str();
    let all = REFERENCE_PORTS.iter().chain(&REFERENCE_OTHERS);
    ErrorList::of(all.map(|rules| rules.delete_all(handles, |comment| comment == id)))
}
