//! The changes between two looks at a replica, in words: the imperative, with the object's name, as
//! a repair names its changes.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Facts, Network};
use crate::net::netlink::Link;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `host`, `container` or `disk`.
    pub place: &'static str,
    /// What is done.
    pub what: String,
}

/// Everything that has changed.
pub fn between(before: &Facts, after: &Facts) -> Vec<Change> {
    let moves = moves(before, after);
    let gone: Vec<u32> = moves.iter().map(|(from, _)| from.index).collect();
    let arrived: Vec<u32> = moves.iter().map(|(_, to)| to.index).collect();
    let mut host: Vec<String> = moves.iter().map(|(from, to)| moving(from, to)).collect();
    host.extend(of_network(&before.host, &after.host, &gone, &after.host));
    let container = of_network(&before.container, &after.container, &arrived, &after.host);
    let files = of_files(before, after);
    let places = [("host", host), ("container", container), ("disk", files)];
    let changes = places
        .into_iter()
        .flat_map(|(place, texts)| texts.into_iter().map(move |what| Change { place, what }));
    changes.collect()
}

/// The links of the host that are in the container now, as they were and as they are.
fn moves<'a>(before: &'a Facts, after: &'a Facts) -> Vec<(&'a Link, &'a Link)> {
    let gone =
        before.host.links.values().filter(|link| !after.host.links.contains_key(&link.index));
    let with_new = gone.filter_map(|link| {
        let mut arrived = new_links(&before.container, &after.container);
        arrived.find(|other| other.mac == link.mac).map(|other| (link, other))
    });
    with_new.collect()
}

fn moving(from: &Link, to: &Link) -> String {
    let state = if to.up { "up" } else { "down" };
    format!("move link {:?} to the container as {:?}, mtu {}, {state}", from.name, to.name, to.mtu)
}

fn new_links<'a>(before: &'a Network, after: &'a Network) -> impl Iterator<Item = &'a Link> {
    after.links.values().filter(|link| !before.links.contains_key(&link.index))
}

/// The changes of one namespace, without the links that were moved. `host` has the links below
/// those of a container.
fn of_network(before: &Network, after: &Network, moved: &[u32], host: &Network) -> Vec<String> {
    let is_moved = |link: &&Link| moved.contains(&link.index);
    let new = new_links(before, after).filter(|link| !is_moved(link));
    let mut texts: Vec<String> = new.map(|link| creation(link, after, host)).collect();
    for link in after.links.values() {
        if let Some(old) = before.links.get(&link.index) {
            texts.extend(changes_of_link(old, link, after));
        }
    }
    let gone = before.links.values().filter(|link| !after.links.contains_key(&link.index));
    let gone = gone.filter(|link| !is_moved(link));
    texts.extend(gone.map(|link| format!("delete link {:?}", link.name)));
    texts.extend(after.objects.difference(&before.objects).map(|object| format!("add {object}")));
    texts.extend(lost(before, after));
    texts.extend(of_sysctls(before, after));
    texts.extend(of_rules(&before.rules, &after.rules));
    texts
}

/// Objects that are gone, apart from those of links that are gone.
fn lost<'a>(before: &'a Network, after: &'a Network) -> impl Iterator<Item = String> + 'a {
    let gone: Vec<String> = before
        .links
        .values()
        .filter(|link| !after.links.contains_key(&link.index))
        .map(|link| format!("{:?}", link.name))
        .collect();
    let objects = before.objects.difference(&after.objects);
    let lasting =
        objects.filter(move |object| !gone.iter().any(|name| object.ends_with(name.as_str())));
    lasting.map(|object| format!("delete {object}"))
}

fn creation(link: &Link, network: &Network, host: &Network) -> String {
    let mut text = format!("create link {:?} ({})", link.name, link.kind_text());
    let lower = match link.lower {
        Some(index) if !link.lower_is_elsewhere() => network.name(index),
        Some(index) if link.kind != "veth" => host.name(index),
        _ => "",
    };
    if !lower.is_empty() {
        text += &format!(" on {lower:?}");
    }
    text += &format!(", mtu {}", link.mtu);
    if let Some(master) = link.master {
        text += &format!(", port of {:?}", network.name(master));
    }
    text + if link.up { ", up" } else { ", down" }
}

/// What an administrator would set of a link.
fn changes_of_link(old: &Link, new: &Link, network: &Network) -> Vec<String> {
    let name = &new.name;
    let mut texts = vec![];
    let mut add = |has_changed: bool, what: String| texts.extend(has_changed.then_some(what));
    add(old.name != *name, format!("rename link {:?} to {name:?}", old.name));
    add(old.mtu != new.mtu, format!("set the mtu of {name:?} to {}", new.mtu));
    add(old.up != new.up, format!("set {name:?} {}", if new.up { "up" } else { "down" }));
    let master =
        new.master.map_or_else(|| "none".to_owned(), |index| format!("{:?}", network.name(index)));
    add(old.master != new.master, format!("set the master of {name:?} to {master}"));
    add(old.promisc != new.promisc, format!("set promiscuous mode of {name:?} to {}", new.promisc));
    add(
        old.group_fwd_mask != new.group_fwd_mask,
        format!("set group_fwd_mask of {name:?} to {:#x}", new.group_fwd_mask),
    );
    add(
        old.allmulti != new.allmulti,
        format!("set all-multicast mode of {name:?} to {}", new.allmulti),
    );
    add(old.txqlen != new.txqlen, format!("set the queue length of {name:?} to {}", new.txqlen));
    // The kernel gives a bridge the address of a port.
    let is_of_bridge = new.kind == "bridge";
    add(
        old.mac != new.mac && !is_of_bridge,
        format!("set the hardware address of {name:?} to {}", new.mac()),
    );
    texts
}

/// Settings that differ from before. Those of a new link are compared with what new links get.
fn of_sysctls(before: &Network, after: &Network) -> Vec<String> {
    let changed = after.sysctls.iter().filter(|(name, value)| {
        !is_derived(name) && usual(before, name).is_some_and(|usual| usual != *value)
    });
    let changed =
        changed.filter(|(name, value)| !(name.ends_with("/accept_dad") && *value == "-1"));
    changed.map(|(name, value)| format!("set sysctl {name} = {value}")).collect()
}

/// The value without the change.
fn usual<'a>(before: &'a Network, name: &str) -> Option<&'a String> {
    before.sysctls.get(name).or_else(|| before.sysctls.get(&of_new_links(name)?))
}

/// `net/ipv4/conf/default/x` for `net/ipv4/conf/LINK/x`.
fn of_new_links(name: &str) -> Option<String> {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [net, family, group @ ("conf" | "neigh"), _, setting] => {
            Some([net, family, group, "default", setting].join("/"))
        }
        _ => None,
    }
}

/// Whether the kernel sets it when another setting changes or a link comes, or counts with it.
fn is_derived(name: &str) -> bool {
    let setting = name.rsplit('/').next().unwrap_or_default();
    let is_of_all = name == "net/ipv6/conf/all/forwarding";
    let is_forwarding = matches!(setting, "forwarding" | "mc_forwarding") && !is_of_all;
    is_forwarding
        || matches!(setting, "mtu" | "stable_secret" | "nf_conntrack_count")
        || name.starts_with("net/ipv4/conf/all/accept_redirects")
        || name == "net/ipv4/conf/default/forwarding"
}

/// Changes of the ruleset: a new table counts as a whole.
fn of_rules(before: &[String], after: &[String]) -> Vec<String> {
    let known: BTreeSet<&String> = before.iter().collect();
    let new = after.iter().filter(|line| !known.contains(line));
    let new: Vec<Object<'_>> = new.filter_map(|line| Object::of(line)).collect();
    let tables: BTreeSet<&str> =
        new.iter().filter(|object| object.kind == Kind::Table).map(|object| object.table).collect();
    let mut counts: BTreeMap<&Object<'_>, usize> = BTreeMap::new();
    for object in &new {
        let is_whole = matches!(object.kind, Kind::Table | Kind::Element | Kind::Link);
        if is_whole || !tables.contains(object.table) {
            *counts.entry(object).or_default() += 1;
        }
    }
    counts.into_iter().map(|(object, count)| object.creation(count)).collect()
}

/// The kinds of objects, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Table,
    Chain,
    Set,
    Rule,
    Element,
    /// A link of a flowtable.
    Link,
}

/// A line of the ruleset: `inet element TABLE SET KEY`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object<'a> {
    table: &'a str,
    family: &'a str,
    kind: Kind,
    name: &'a str,
}

impl<'a> Object<'a> {
    fn of(line: &'a str) -> Option<Object<'a>> {
        let mut words = line.split(' ');
        let family = words.next()?;
        let kind = match words.next()? {
            "table" => Kind::Table,
            "chain" => Kind::Chain,
            "set" => Kind::Set,
            "rule" => Kind::Rule,
            "link" => Kind::Link,
            _ => Kind::Element,
        };
        Some(Object { family, kind, table: words.next()?, name: words.next().unwrap_or_default() })
    }

    fn creation(&self, count: usize) -> String {
        let Object { table, family, kind, name } = self;
        match kind {
            Kind::Table => format!("add table {family} {table}"),
            Kind::Chain => format!("add chain {name} to table {family} {table}"),
            Kind::Set => format!("add set {name} to table {family} {table}"),
            Kind::Rule => {
                format!("add {} to chain {name} of table {family} {table}", several(count, "rule"))
            }
            Kind::Element => {
                format!("add {} to {name} of table {family} {table}", several(count, "element"))
            }
            Kind::Link => {
                let links = several(count, "link");
                format!("add {links} to flowtable {name} of table {family} {table}")
            }
        }
    }
}

fn several(count: usize, what: &str) -> String {
    if count == 1 { format!("one {what}") } else { format!("{count} {what}s") }
}

fn of_files(before: &Facts, after: &Facts) -> Vec<String> {
    let mut texts = vec![];
    for (path, time) in &after.files {
        match before.files.get(path) {
            None => texts.push(format!("create {}", path.display())),
            Some(old) if old != time => texts.push(format!("change {}", path.display())),
            Some(_) => (),
        }
    }
    let gone = before.files.keys().filter(|path| !after.files.contains_key(*path));
    texts.extend(gone.map(|path| format!("delete {}", path.display())));
    texts
}
