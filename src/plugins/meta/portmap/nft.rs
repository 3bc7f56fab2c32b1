//! Published ports with nftables.
//!
//! ```text
//! table inet cni_multi_portmap {
//!   map port4 { type inet_proto . inet_service : ipv4_addr . inet_service; elements = { tcp . 8080 comment "…" : 10.1.0.7 . 80 } }
//!   map hostport4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; … }
//!   map snat4 { type ipv4_addr : verdict; elements = { 10.1.0.7 : goto net-10.1.0.0/24 } }
//!   … the same for IPv6, and the ports that have conditions
//!   map known4 { type inet_proto . inet_service : verdict; … }    # see services.rs
//!   set attachments { … }                       # the owner of each element
//!   chain admin { }                             # the administrator's: we only jump to it
//!   chain prerouting {
//!     type nat hook prerouting priority dstnat + 1; policy accept;
//!     jump admin
//!     ip daddr 127.0.0.0/8 return               # the host's own, even if sent from outside
//!     fib daddr type local fib daddr . iif type local goto ports
//!     fib daddr type local goto elsewhere
//!   }
//!   chain output { … the first rule and the last, for packets that the host itself sends … }
//!   chain elsewhere { jump known; goto ports }
//!   chain known { meta l4proto . th dport vmap @known4; … }
//!   chain known4-… { ip daddr 198.51.100.1 return; …; accept }
//!   chain ports {
//!     dnat ip to ip daddr . meta l4proto . th dport map @hostport4
//!     dnat ip to meta l4proto . th dport map @port4
//!     …
//!   }
//!   chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     ct status dnat ct original ip daddr . meta l4proto . ct original proto-dst map @hostport4 … ip daddr vmap @snat4
//!     ct status dnat meta l4proto . ct original proto-dst map @port4 … ip daddr vmap @snat4
//!     …
//!   }
//!   chain net-10.1.0.0/24 { ip saddr 10.1.0.0/24 masquerade; ip saddr 127.0.0.0/8 masquerade }
//!   set localnet { type ifname; elements = { "br0" comment "shared" } }
//!   chain guard {                               # see localnet.rs
//!     type filter hook prerouting priority raw; policy accept;
//!     ip saddr 127.0.0.0/8 iifname @localnet drop
//!     ip daddr 127.0.0.0/8 iifname @localnet drop
//!   }
//! }
//! ```
//! A packet costs a few lookups, however many ports there are. The hooks come after foreign ones at
//! the usual priority, so that a foreign service at the same port is not taken over
//! (CVE-2019-9946), and only packets addressed to the host are considered (CVE-2025-67499).

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::slice;

use ipnet::IpNet;

use super::localnet::{self, Localnet};
use super::mapping::{Forward, Protocol, Released};
use super::of_reference;
use super::publication::{Held, Publication};
use crate::cni::attachment::{Key, NetworkName, hash8, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Holder;
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::attr::read_text;
use crate::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use crate::net::nft::expr::{Connection, Expressions, Header, Meta, Register, Verdict, WORD};
use crate::net::nft::owned::{
    self, Layout, Owned, OwnedElement, Owner, Rival, Search, SharedChain, Taken,
};
use crate::net::nft::wire::{octets, read_ip};
use crate::net::nft::{NfFamily, Nft};
use crate::plugin::Handles;
use crate::steps::backend::Backend;
use crate::steps::nft_owner;

/// The layout of the table.
pub const LAYOUT: Layout = Layout {
    table: Table { family: NfFamily::Inet, name: "cni_multi_portmap" },
    comment: "cni-multi: published ports of containers",
    sets: &[
        &V4.at_address,
        &V4.at_all,
        &V4.conditional_at_address,
        &V4.conditional_at_all,
        &V4.snat,
        &V4.known,
        &V6.at_address,
        &V6.at_all,
        &V6.conditional_at_address,
        &V6.conditional_at_all,
        &V6.snat,
        &V6.known,
        &localnet::LINKS,
    ],
    lay_out,
    reliance: Some(localnet::RELIANCE),
};

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";
const GUARD: &str = "guard";
const PORTS: &str = "ports";
/// Packets to an address of the host that is not one of the link they arrive by.
const ELSEWHERE: &str = "elsewhere";
const KNOWN: &str = "known";

/// NF_INET_PRE_ROUTING, at raw: the link is the one that the packet arrives on, also in a VRF, and
/// answers through a port do not have the address 127.0.0.1 yet.
const AT_GUARD: Hook = Hook { kind: "filter", number: 0, priority: -300 };
/// NF_INET_PRE_ROUTING, after dstnat of nft(8).
const AT_PREROUTING: Hook = Hook { kind: "nat", number: 0, priority: -99 };
/// NF_INET_LOCAL_OUT.
const AT_OUTPUT: Hook = Hook { kind: "nat", number: 3, priority: -99 };
/// NF_INET_POST_ROUTING, at srcnat.
const AT_POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };

/// RTN_LOCAL of linux/rtnetlink.h.
const LOCAL: u32 = 2;
/// IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const DST_NAT: u32 = 1 << 5;

/// The sets and rules of one address family.
struct OfFamily {
    ip: Family,
    /// Bytes of an address.
    length: u32,
    /// The offset of the source address in the header; the destination follows.
    source: u32,
    /// Ports at one address of the host.
    at_address: Set,
    /// Ports at all addresses of the host.
    at_all: Set,
    /// The same two for ports with conditions; the values are the chains with the conditions.
    conditional_at_address: Set,
    conditional_at_all: Set,
    /// Containers that see a source address other than the client's.
    snat: Set,
    /// Ports at all addresses of which some may be those of services.
    known: Set,
    /// The host's own network.
    loopback: IpNet,
}

use KeyType::{Ipv4, Ipv6, Protocol as L4Proto, Service};

static V4: OfFamily = OfFamily {
    ip: Family::V4,
    length: 4,
    source: 12,
    at_address: Set {
        name: "hostport4",
        key: &[Ipv4, L4Proto, Service],
        holds: Holds::Values(&[Ipv4, Service]),
    },
    at_all: Set { name: "port4", key: &[L4Proto, Service], holds: Holds::Values(&[Ipv4, Service]) },
    conditional_at_address: Set {
        name: "conditional_hostport4",
        key: &[Ipv4, L4Proto, Service],
        holds: Holds::Verdicts,
    },
    conditional_at_all: Set {
        name: "conditional_port4",
        key: &[L4Proto, Service],
        holds: Holds::Verdicts,
    },
    snat: Set { name: "snat4", key: &[Ipv4], holds: Holds::Verdicts },
    known: Set { name: "known4", key: &[L4Proto, Service], holds: Holds::Verdicts },
    loopback: IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
};

static V6: OfFamily = OfFamily {
    ip: Family::V6,
    length: 16,
    source: 8,
    at_address: Set {
        name: "hostport6",
        key: &[Ipv6, L4Proto, Service],
        holds: Holds::Values(&[Ipv6, Service]),
    },
    at_all: Set { name: "port6", key: &[L4Proto, Service], holds: Holds::Values(&[Ipv6, Service]) },
    conditional_at_address: Set {
        name: "conditional_hostport6",
        key: &[Ipv6, L4Proto, Service],
        holds: Holds::Verdicts,
    },
    conditional_at_all: Set {
        name: "conditional_port6",
        key: &[L4Proto, Service],
        holds: Holds::Verdicts,
    },
    snat: Set { name: "snat6", key: &[Ipv6], holds: Holds::Verdicts },
    known: Set { name: "known6", key: &[L4Proto, Service], holds: Holds::Verdicts },
    loopback: IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
};

impl OfFamily {
    fn of(forward: &Forward) -> &'static OfFamily {
        match forward.family() {
            Family::V4 => &V4,
            Family::V6 => &V6,
        }
    }

    /// Returns the register after an address in the first one.
    fn after_address(&self) -> Register {
        WORD + self.length / 4
    }
}

/// Opens the ports, all or none. A port of another attachment is an error with code 102.
/// With another backend, it has only the guard.
pub fn create(
    handles: &Handles,
    ports: &Publication<'_>,
    backend: Backend,
    localnet: Option<&Localnet>,
) -> Result<()> {
    let nft = handles.require_nft()?;
    let owner = nft_owner::of(ports.key);
    let mut elements = if backend == Backend::Nftables { elements(ports) } else { vec![] };
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

fn refuse(taken: Option<Taken>, forwards: &[Forward]) -> Result<()> {
    taken.map_or(Ok(()), |taken| Err(explain(&taken, forwards)))
}

/// Requires that ports can be opened.
pub fn require(handles: &Handles) -> Result<()> {
    let nft = handles.require_nft()?;
    LAYOUT.on(nft).require()
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
    if !missing.is_empty() && of_reference::is_complete(nft, ports)? {
        return Ok(());
    }
    let missing = missing.into_iter().map(|element| {
        let (port, set) = (port_of(element), element.set);
        Err(rules_missing(format!("{port} is not published: no element in map {set:?}")))
    });
    let damage = damage.map(|damage| Err(rules_missing(damage)));
    ErrorList::of(missing.chain(damage).chain([verify_link(nft, ports.key, localnet)]))
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

/// Returns an error in the reference's words, which name the chain that it has in place of our
/// maps.
fn rules_missing(what: String) -> Error {
    Error::check(what).saying("missing hostport rules in \"hostports\" chain")
}

/// Closes the ports of an attachment, and returns its elements; the table is deleted with the last
/// of all.
pub fn delete(handles: &Handles, key: &Key) -> Result<Vec<owned::Released>> {
    nft_owner::release(handles, &LAYOUT, &nft_owner::of(key), Search::Ledger)
}

/// Closes the ports of this network's stale attachments.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<Vec<Released>> {
    let released = nft_owner::release_invalid(handles, &LAYOUT, network, valid)?;
    Ok(closed(&released))
}

/// Returns the ports among the elements.
pub fn closed(elements: &[owned::Released]) -> Vec<Released> {
    elements.iter().filter_map(released).collect()
}

fn released(element: &owned::Released) -> Option<Released> {
    if !is_map_of_ports(&element.set) {
        return None;
    }
    let (protocol, host_port) = protocol_and_port(&element.key)?;
    let (address, _port) = element.value.split_last_chunk::<4>()?;
    Some(Released { protocol, host_port, to: read_ip(address)? })
}

fn is_map_of_ports(name: &str) -> bool {
    [&V4, &V6].iter().any(|family| [family.at_address.name, family.at_all.name].contains(&name))
}

/// Parses the end of a key: `inet_proto . inet_service`.
fn protocol_and_port(key: &[u8]) -> Option<(Protocol, u16)> {
    let [protocol, _, _, _, high, low, _, _] = *key.last_chunk()?;
    Some((Protocol::of_number(protocol)?, u16::from_be_bytes([high, low])))
}

/// Names the owner of the port in words that an operator can search for. The elements of ports come
/// first, one per forward.
fn explain(taken: &Taken, forwards: &[Forward]) -> Error {
    let holder = holder(taken);
    match forwards.get(taken.element) {
        Some(forward) => forward.taken(holder),
        None => Error::new(Code::CONFLICT, format!("what the ports need is taken by {holder}")),
    }
}

/// Returns the words after the owner's identity.
fn holder(taken: &Taken) -> &str {
    taken.by.split_once(", ").map_or(taken.by.as_str(), |(_, words)| words)
}

/// Returns `8080/tcp`, with the host's address if the element has one.
fn port_of(element: &OwnedElement) -> String {
    let Some((protocol, port)) = protocol_and_port(&element.key) else {
        return format!("in {:?}", element.set);
    };
    match read_ip(&element.key[..element.key.len() - 8]) {
        Some(ip) => format!("{port}/{protocol} of {ip}"),
        None => format!("{port}/{protocol}"),
    }
}

fn elements(ports: &Publication<'_>) -> Vec<OwnedElement> {
    let mut elements = port_elements(&ports.forwards);
    elements.extend(conditional_elements(ports));
    elements.extend(snat_elements(ports));
    elements.extend(known_elements(ports));
    elements
}

/// Returns one element per port.
fn port_elements(forwards: &[Forward]) -> Vec<OwnedElement> {
    forwards.iter().map(port_element).collect()
}

fn port_element(forward: &Forward) -> OwnedElement {
    let OfFamily { at_address, at_all, .. } = OfFamily::of(forward);
    OwnedElement {
        set: if forward.at.is_some() { at_address.name } else { at_all.name },
        key: key_of(forward),
        value: Some(destination(forward)),
        rivals: vec![rival(forward)],
        ..OwnedElement::default()
    }
}

/// Returns the container's address and port.
fn destination(forward: &Forward) -> Vec<u8> {
    [octets(forward.to.addr()), padded(forward.container_port).to_vec()].concat()
}

/// Returns the element that would have the same port: at all addresses, or at any one.
fn rival(forward: &Forward) -> Rival {
    let OfFamily { at_address, at_all, .. } = OfFamily::of(forward);
    let port = port_key(forward);
    match forward.at {
        Some(_) => Rival::Key { set: at_all.name, key: port },
        None => Rival::Suffix { set: at_address.name, suffix: port },
    }
}

/// Returns `[daddr .] inet_proto . inet_service`.
fn key_of(forward: &Forward) -> Vec<u8> {
    [forward.at.map(octets).unwrap_or_default(), port_key(forward)].concat()
}

fn port_key(forward: &Forward) -> Vec<u8> {
    [[forward.protocol as u8, 0, 0, 0], padded(forward.host_port)].concat()
}

/// If there are conditions, returns one more element per port, which leads to the chain with the
/// conditions.
fn conditional_elements(ports: &Publication<'_>) -> Vec<OwnedElement> {
    let element = |forward| conditional_element(ports, forward);
    ports.forwards.iter().filter_map(element).collect()
}

fn conditional_element(ports: &Publication<'_>, forward: &Forward) -> Option<OwnedElement> {
    let family = OfFamily::of(forward);
    let set = match forward.at {
        Some(_) => family.conditional_at_address.name,
        None => family.conditional_at_all.name,
    };
    let chain = Some(conditional_chain(ports, family)?);
    Some(OwnedElement { set, key: key_of(forward), chain, ..OwnedElement::default() })
}

/// If some addresses of the host may be those of services, returns one more element per port at all
/// addresses, which leads to the chain with the others.
fn known_elements(ports: &Publication<'_>) -> Vec<OwnedElement> {
    let mut elements = vec![];
    for family in [&V4, &V6] {
        let Some(known) = known_chain(ports, family) else { continue };
        let at_all = ports.of_family(family.ip).filter(|forward| forward.at.is_none());
        elements.extend(at_all.map(|forward| OwnedElement {
            set: family.known.name,
            key: key_of(forward),
            chain: Some(known.clone()),
            ..OwnedElement::default()
        }));
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
    let mut rules: Vec<Expressions> =
        networks.iter().map(|network| return_to(family, *network)).collect();
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

fn return_to(family: &OfFamily, network: IpNet) -> Expressions {
    let mut rule = Expressions::default();
    rule.family(family.ip);
    is_in(load_destination(&mut rule, family), network).verdict(&Verdict::Return);
    rule
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
        let published = OwnedElement { set: at_all.name, key, ..OwnedElement::default() };
        if !spares && ours.absent(&[published])?.is_empty() {
            let what = format!("port {forward} takes the packets of services on {link:?}");
            return Err(Error::check(what).with_details("`cni-multi net sync` spares them"));
        }
    }
    Ok(())
}

/// A port as a field: in network byte order, padded to a word.
fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// Returns one element per address of the container.
fn snat_elements(ports: &Publication<'_>) -> Vec<OwnedElement> {
    let mut elements: Vec<OwnedElement> = vec![];
    for forward in ports.forwards.iter().filter(|_| ports.conf.snat) {
        let element = snat_element(forward, ports.conf.masq_all);
        if !elements.iter().any(|other| other.key == element.key) {
            elements.push(element);
        }
    }
    elements
}

fn snat_element(forward: &Forward, masq_all: bool) -> OwnedElement {
    let family = OfFamily::of(forward);
    let chain = if masq_all { everyone() } else { neighbours(family, forward.to.trunc()) };
    let key = octets(forward.to.addr());
    OwnedElement { set: family.snat.name, key, chain: Some(chain), ..OwnedElement::default() }
}

/// Masquerades the sources whose answers would bypass the host: the container's own network with
/// the container itself, and the host's 127.0.0.1, which the container cannot answer at all.
fn neighbours(family: &OfFamily, net: IpNet) -> SharedChain {
    let rules = vec![masquerade_from(family, net), masquerade_from(family, family.loopback)];
    SharedChain { name: name_of_neighbours(net), rules }
}

/// Returns the name of a network's chain.
fn name_of_neighbours(net: IpNet) -> String {
    format!("net-{}", net.to_string().replace(':', "-"))
}

fn masquerade_from(family: &OfFamily, net: IpNet) -> Expressions {
    let mut rule = Expressions::default();
    rule.family(family.ip);
    is_in(load_source(&mut rule, family), net).masquerade();
    rule
}

/// Matches if the loaded address is in the network.
fn is_in(rule: &mut Expressions, net: IpNet) -> &mut Expressions {
    rule.mask(1, &octets(net.netmask())).equal(1, &octets(net.network()))
}

fn everyone() -> SharedChain {
    let mut all = Expressions::default();
    let mut rest = Expressions::default();
    all.masquerade();
    rest.verdict(&Verdict::Return);
    SharedChain { name: "everyone".to_owned(), rules: vec![all, rest] }
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
    let redirects: [Statement; 2] = [to_value_at_address, to_value_at_all];
    for redirect in redirects {
        for mut rule in met.iter().cloned() {
            redirect(&mut rule, family);
            rules.push(rule);
        }
    }
    let name = format!("if{}-{}", u8::from(family.ip), ports.key.identity());
    Some(SharedChain { name, rules })
}

/// Writes a part of a rule for one family.
type Statement = fn(&mut Expressions, &OfFamily);

fn lay_out(batch: &mut Batch, table: Table) {
    // In the order of a packet's path, in which damage is reported.
    lay_out_guard(batch, table);
    batch.base_chain(table, PREROUTING, AT_PREROUTING).flush_chain(table, PREROUTING);
    batch.base_chain(table, OUTPUT, AT_OUTPUT).flush_chain(table, OUTPUT);
    owned::jump_to_admin(batch, table, PREROUTING);
    owned::jump_to_admin(batch, table, OUTPUT);
    batch.chain(table, PORTS).flush_chain(table, PORTS);
    for family in [&V4, &V6] {
        lay_out_ports(batch, table, family);
    }
    lay_out_elsewhere(batch, table);
    batch.rule(table, PREROUTING, |rule| {
        is_to_loopback(rule).verdict(&Verdict::Return);
    });
    batch.rule(table, PREROUTING, |rule| {
        let to = Verdict::Goto(PORTS.to_owned());
        // The second condition alone is true of an address of the link's VRF as well.
        rule.type_of_destination(false, 1).equal(1, &LOCAL.to_ne_bytes());
        rule.type_of_destination(true, 1).equal(1, &LOCAL.to_ne_bytes()).verdict(&to);
    });
    for chain in [PREROUTING, OUTPUT] {
        batch.rule(table, chain, |rule| {
            let to = Verdict::Goto(ELSEWHERE.to_owned());
            rule.type_of_destination(false, 1).equal(1, &LOCAL.to_ne_bytes()).verdict(&to);
        });
    }
    lay_out_postrouting(batch, table);
}

/// Leads to the ports unless the destination may be a service's.
fn lay_out_elsewhere(batch: &mut Batch, table: Table) {
    batch.chain(table, KNOWN).flush_chain(table, KNOWN);
    for family in [&V4, &V6] {
        batch.rule(table, KNOWN, |rule| {
            rule.family(family.ip);
            load_port(rule, 1, WORD + 1);
            rule.verdict_of(family.known.name, 1);
        });
    }
    batch.chain(table, ELSEWHERE).flush_chain(table, ELSEWHERE);
    for verdict in [Verdict::Jump(KNOWN.to_owned()), Verdict::Goto(PORTS.to_owned())] {
        batch.rule(table, ELSEWHERE, |rule| {
            rule.verdict(&verdict);
        });
    }
}

fn lay_out_postrouting(batch: &mut Batch, table: Table) {
    batch.base_chain(table, POSTROUTING, AT_POSTROUTING).flush_chain(table, POSTROUTING);
    for family in [&V4, &V6] {
        lay_out_snat(batch, table, family, came_by_address);
        lay_out_snat(batch, table, family, came_by_port);
    }
}

/// Masquerades redirected connections according to the container's address.
fn lay_out_snat(batch: &mut Batch, table: Table, family: &OfFamily, came_by: Statement) {
    batch.rule(table, POSTROUTING, |rule| {
        rule.family(family.ip);
        came_by(is_redirected(rule), family);
        load_destination(rule, family);
        rule.verdict_of(family.snat.name, 1);
    });
}

/// Matches connections that began at a port which we forward at one address. Other programs
/// redirect to containers as well.
fn came_by_address(rule: &mut Expressions, family: &OfFamily) {
    let protocol = family.after_address();
    rule.original_destination(family.ip, 1);
    rule.meta(Meta::L4Proto, protocol).original_port(protocol + 1);
    rule.value_of(family.at_address.name, 1, 1);
}

/// The same for ports at all addresses.
fn came_by_port(rule: &mut Expressions, family: &OfFamily) {
    rule.meta(Meta::L4Proto, 1).original_port(WORD + 1);
    rule.value_of(family.at_all.name, 1, 1);
}

fn lay_out_ports(batch: &mut Batch, table: Table, family: &OfFamily) {
    let redirects: [Statement; 4] =
        [to_chain_at_address, to_value_at_address, to_chain_at_all, to_value_at_all];
    for redirect in redirects {
        batch.rule(table, PORTS, |rule| {
            rule.family(family.ip);
            redirect(rule, family);
        });
    }
}

/// `ip daddr . meta l4proto . th dport vmap @conditional_hostport4`.
fn to_chain_at_address(rule: &mut Expressions, family: &OfFamily) {
    load_address_and_port(rule, family);
    rule.verdict_of(family.conditional_at_address.name, 1);
}

/// `meta l4proto . th dport vmap @conditional_port4`.
fn to_chain_at_all(rule: &mut Expressions, family: &OfFamily) {
    load_port(rule, 1, WORD + 1);
    rule.verdict_of(family.conditional_at_all.name, 1);
}

/// `dnat to ip daddr . meta l4proto . th dport map @hostport4`.
fn to_value_at_address(rule: &mut Expressions, family: &OfFamily) {
    load_address_and_port(rule, family);
    translate_to_value(rule.value_of(family.at_address.name, 1, 1), family);
}

/// `dnat to meta l4proto . th dport map @port4`.
fn to_value_at_all(rule: &mut Expressions, family: &OfFamily) {
    load_port(rule, 1, WORD + 1);
    translate_to_value(rule.value_of(family.at_all.name, 1, 1), family);
}

/// `dnat to` the address and the port that were looked up.
fn translate_to_value(rule: &mut Expressions, family: &OfFamily) {
    rule.destination_nat(family.ip, 1, family.after_address());
}

fn load_address_and_port(rule: &mut Expressions, family: &OfFamily) {
    let protocol = family.after_address();
    load_destination(rule, family);
    load_port(rule, protocol, protocol + 1);
}

/// `ip saddr`.
fn load_source<'r>(rule: &'r mut Expressions, family: &OfFamily) -> &'r mut Expressions {
    rule.payload(Header::Network, family.source, family.length, 1)
}

/// `ip daddr`.
fn load_destination<'r>(rule: &'r mut Expressions, family: &OfFamily) -> &'r mut Expressions {
    rule.payload(Header::Network, family.source + family.length, family.length, 1)
}

/// `meta l4proto . th dport`.
fn load_port(rule: &mut Expressions, protocol: Register, port: Register) {
    rule.meta(Meta::L4Proto, protocol).payload(Header::Transport, 2, 2, port);
}

/// `ct status dnat`.
fn is_redirected(rule: &mut Expressions) -> &mut Expressions {
    rule.connection(Connection::Status, 1).mask(1, &DST_NAT.to_ne_bytes()).not_equal(1, &[0; 4])
}

/// `ip daddr 127.0.0.0/8`. The kernel itself refuses packets to ::1 that come from elsewhere.
fn is_to_loopback(rule: &mut Expressions) -> &mut Expressions {
    rule.family(Family::V4);
    is_in(load_destination(rule, &V4), V4.loopback)
}

/// Drops packets from and to 127.0.0.0/8 that arrive on a link of the set, as the kernel does while
/// the link's setting is off.
fn lay_out_guard(batch: &mut Batch, table: Table) {
    batch.base_chain(table, GUARD, AT_GUARD).flush_chain(table, GUARD);
    for load in [load_source, load_destination] {
        batch.rule(table, GUARD, |rule| {
            rule.family(Family::V4);
            is_in(load(rule, &V4), V4.loopback).meta(Meta::IifName, 1);
            rule.in_set(localnet::LINKS.name, 1, false).verdict(&Verdict::Drop);
        });
    }
}
