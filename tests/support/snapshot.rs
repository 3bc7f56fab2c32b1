//! The state of a kernel and of its files, as text that can be compared.
//!
//! Left out: what changes by itself (interface indexes, statistics, timers, neighbours, the DAD
//! state) and what ADD is documented to leave: forwarding switched on, and host-local's `lock` and
//! `last_reserved_ip.N`. The bridge stays after DEL by contract as well, but it is not left out by
//! name: the cases take their first snapshot after ADD and DEL of *another* container, so that the
//! bridge's addresses, MAC and ports are compared too. The first cycle cannot hide a leak of the
//! second, because every leak names its container.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::netns::{Lab, Namespace};
use super::patience;
use super::probe::{SYSCTL_KEYS, states, states_of_host};

/// Sections of the script below are separated by lines that start with this.
const MARK: &str = "@@ ";

/// JSON sections are normalised, one document per title; `text` sections are split into lines.
/// Rules of iptables-nft are part of the nftables ruleset. The script starts as few programs as
/// possible: in the virtual machine starting one takes longer than its work. `route show table all`
/// covers both address families, `rule` does not. Without a bridge and a port of one there is nothing that
/// the program `bridge` knows.
const SCRIPT: &str = r#"
s() { echo "@@ $1"; }
links=$(printf 'link\naddress\nroute show table all\nrule\n' | ip -j -d -batch -) || exit
s link,address,route,rule; printf '%s\n' "$links"
s rule;          ip -6 -j -d rule
case $links in *'"bridge'*)
s port,vlan;     printf 'link\nvlan\n' | bridge -j -d -batch - 2>/dev/null ;;
esac
s qdisc/text;    tc qdisc show
s nft/text;      nft -s list ruleset 2>/dev/null
s legacy/text;   for f in ip ip6; do
    # An ordinary user may not read the names of the tables, and is told nothing about them either.
    [ ! -r /proc/net/${f}_tables_names ] || read name </proc/net/${f}_tables_names && ${f}tables-legacy-save 2>/dev/null
done
s sysctl/text;   cd /proc/sys/net; set --
for k in $keys; do set -- "$@" ipv4/conf/*/$k ipv6/conf/*/$k; done
grep -s '' "$@"; true
"#;

/// The kernel's worker (linkwatch) updates a link's state up to a second after its carrier, and on
/// a machine with many namespaces much later. From 6.8 on, a request for one link does it at once.
const REPORT_CARRIERS: &str = "sed -n 's/^ *\\(.*\\): .*/link show dev \\1/p' /proc/net/dev | ip -force -batch - >/dev/null 2>&1 || :";

/// Files that a plugin may write, with their modes and contents; the mount points of namespaces and
/// the lock of iptables are not state. Empty pages of our host-local index stay, as `lock` does;
/// there are 256 of them.
/// A server of Open vSwitch has its files below /run, and rows instead of files.
/// So do the blocks that cluster-local has claimed, and the id of the boot.
const FILES: &str = r#"
echo "@@ file/text"
find /run /var/lib/cni -path /run/netns -prune -o -path /run/openvswitch -prune -o -type f ! -name xtables.lock ! -name lock ! -name 'last_reserved_ip.*' ! -name 'blocks.*' ! -name boot ! \( -path '*/.cni-multi/*' -empty \) \
    -printf '%m %p\n' -exec grep -H '' {} +
[ ! -S /run/openvswitch/db.sock ] || { echo "@@ ovs/text"
    for table in Port 'Interface name type ofport_request external_ids'; do
        columns='name vlan_mode tag trunks external_ids'; [ "$table" = Port ] || { columns=${table#* }; table=${table%% *}; }
        ovsdb-client --timeout=2 --format=csv --no-headings dump unix:/run/openvswitch/db.sock Open_vSwitch $table $columns 2>/dev/null
    done | sort; }
true
"#;

/// One line per fact, sorted within its section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(Vec<String>);

impl Snapshot {
    pub fn of(namespace: &Namespace) -> Snapshot {
        Snapshot::by("", namespace)
    }

    /// The pretend host, including its files.
    pub fn of_host(lab: &Lab) -> Snapshot {
        Snapshot::by(FILES, &lab.host)
    }

    /// Takes a second snapshot if links of the first have a state that is older than their carrier.
    fn by(more: &str, namespace: &Namespace) -> Snapshot {
        let script = &format!("keys='{SYSCTL_KEYS}'{SCRIPT}{more}");
        let first = Snapshot::parse(&namespace.sh(script));
        if !first.facts("link: ").any(|link| awaits_state(&link)) {
            return first;
        }
        namespace.sh(REPORT_CARRIERS);
        Snapshot::parse(&namespace.sh(script))
    }

    pub fn lines(&self) -> &[String] {
        &self.0
    }

    fn parse(text: &str) -> Snapshot {
        let mut lines = Vec::new();
        for section in text.split(MARK).skip(1) {
            let (titles, body) = section.split_once('\n').unwrap_or((section, ""));
            if let Some(title) = titles.strip_suffix("/text") {
                let facts = body.lines().filter_map(|line| lasting_line(title, line));
                let mut facts: Vec<String> = facts.map(|line| format!("{title}: {line}")).collect();
                if title == "file" {
                    facts.sort(); // the order of files and of lines is not state
                }
                lines.extend(facts);
                continue;
            }
            let documents = serde_json::Deserializer::from_str(body).into_iter::<Value>();
            for (title, document) in titles.split(',').zip(documents) {
                if title == "vlan" && document.is_err() {
                    continue; // incomplete: this kernel's bridges have no VLANs
                }
                let facts = document.unwrap_or_else(|e| panic!("section {title} is {body:?}: {e}"));
                let facts = facts.as_array().unwrap().iter();
                let mut facts: Vec<String> =
                    facts.map(|fact| format!("{title}: {}", lasting(fact))).collect();
                facts.sort();
                lines.extend(facts);
            }
        }
        Snapshot(lines)
    }

    /// How long to wait for changes that the kernel reports late; None if none is expected.
    fn may_change_within(&self) -> Option<Duration> {
        let is_of = |line: &String, kind: &str| line.contains(&format!("\"info_kind\":\"{kind}\""));
        // The address fe80::… of an ifb appears with its routes, a little later than the link.
        let is_late = |line: &String| {
            ["bridge", "macvlan", "ipvlan", "vlan", "ifb"].iter().any(|kind| is_of(line, kind))
        };
        let is_new = |line: &String| {
            // The other end, or the link itself, may just have been set up.
            is_of(line, "veth") && line.contains("\"NO-CARRIER\"")
                || is_late(line) && line.contains("\"operstate\":\"UNKNOWN\"")
        };
        if self.0.iter().any(is_new) {
            return Some(Duration::from_millis(1100));
        }
        (self.0.iter().any(is_late) || self.awaits_something()).then_some(Duration::from_millis(50))
    }

    /// Whether a fact is known to be missing. On a busy machine the kernel's workers run seconds
    /// late: one adds the local route for the IPv6 address of a link with a carrier, another
    /// (linkwatch) updates a link's state to match its carrier.
    fn awaits_something(&self) -> bool {
        let local = |route: Value| (route["type"] == "local").then(|| route["dst"].clone());
        let routes: Vec<Value> = self.facts("route: ").filter_map(local).collect();
        let awaits_route = |link: Value| {
            let addresses = link["addr_info"].as_array().map(Vec::as_slice).unwrap_or_default();
            addresses
                .iter()
                .any(|address| address["family"] == "inet6" && !routes.contains(&address["local"]))
        };
        self.facts("link: ").any(|link| awaits_state(&link))
            || self.facts("address: ").filter(|link| has(link, "LOWER_UP")).any(awaits_route)
    }

    /// The facts of one section, which is written in JSON.
    fn facts(&self, title: &'static str) -> impl Iterator<Item = Value> + '_ {
        self.0.iter().filter_map(move |line| serde_json::from_str(line.strip_prefix(title)?).ok())
    }

    /// The facts in only one of the two, as `-` and `+` lines; empty if they are equal.
    pub fn difference(&self, later: &Snapshot) -> String {
        lines(&self.changes_to(later))
    }

    /// As `difference`, as a list.
    pub fn changes_to(&self, later: &Snapshot) -> Vec<Change> {
        difference(&self.0, &later.0)
    }
}

/// Whether the state of a link does not match its carrier yet.
fn awaits_state(link: &Value) -> bool {
    has(link, "UP") && has(link, "LOWER_UP") == has(link, "NO-CARRIER")
}

fn has(link: &Value, flag: &str) -> bool {
    link["flags"].as_array().is_some_and(|flags| flags.contains(&flag.into()))
}

/// A fact that exists either before or later, but not both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Gone(String),
    New(String),
}

impl Change {
    /// The first word of the fact: `link`, `route`, `nft` and so on.
    pub fn kind(&self) -> &str {
        let (Change::Gone(fact) | Change::New(fact)) = self;
        fact.split([' ', ':']).next().unwrap_or_default()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Gone(fact) => write!(f, "- {fact}"),
            Change::New(fact) => write!(f, "+ {fact}"),
        }
    }
}

/// One change per line.
pub fn lines(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("{change}\n")).collect()
}

/// The facts in only one of the two lists.
pub fn difference(before: &[String], later: &[String]) -> Vec<Change> {
    if before == later {
        return vec![];
    }
    let gone = only_in(before, later).map(|fact| Change::Gone(fact.clone()));
    let new = only_in(later, before).map(|fact| Change::New(fact.clone()));
    gone.chain(new).collect()
}

/// Compares as multisets: a fact counts only as far as it occurs more often than in `others`.
fn only_in<'a>(facts: &'a [String], others: &[String]) -> impl Iterator<Item = &'a String> {
    let mut rest = others.to_vec();
    facts.iter().filter(move |fact| {
        let common = rest.iter().position(|other| other == *fact);
        common.map(|at| rest.swap_remove(at)).is_none()
    })
}

/// The part of a line that does not change by itself, or None if there is none.
fn lasting_line(title: &str, line: &str) -> Option<String> {
    let line = line.trim_end();
    match title {
        _ if line.is_empty() => None,
        // A link's default queue.
        "qdisc" if line.contains(" 0: ") => None,
        "qdisc" => Some(
            line.split(' ')
                .scan(false, |skip, word| {
                    let counts = ["refcnt", "direct_packets_stat"].contains(&word);
                    let shown = !std::mem::replace(skip, counts) && !counts;
                    Some(if shown { word } else { "" })
                })
                .collect::<Vec<_>>()
                .join(" "),
        ),
        // Comments contain the time, and packet counters are not part of a rule.
        "legacy" if line.starts_with('#') => None,
        "legacy" => Some(line.split(" [").next().unwrap_or(line).to_owned()),
        _ => Some(line.to_owned()),
    }
}

/// The part of a fact that does not change by itself.
fn lasting(value: &Value) -> Value {
    const VOLATILE: &str = " ifindex link_index link_netnsid stats stats64 tentative topology_change \
        topology_change_detected root_port root_path_cost no ";
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| !VOLATILE.contains(&format!(" {key} ")) && !key.ends_with("_timer"))
            .map(|(key, value)| (key.clone(), lasting(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(lasting).collect(),
        other => other.clone(),
    }
}

/// The pretend host together with some containers' namespaces.
pub struct Watch<'a> {
    lab: &'a Lab,
    containers: Vec<Namespace>,
    before: Vec<Snapshot>,
    /// The last snapshot of each namespace.
    known: Mutex<Vec<Option<Known>>>,
}

/// A snapshot, and the facts that have not changed while it was taken. As long as the kernel has the same facts, the
/// programs would print the same, and are not started.
struct Known {
    facts: Vec<String>,
    snapshot: Snapshot,
}

impl Known {
    fn is_of(&self, facts: Option<&Vec<String>>) -> bool {
        facts == Some(&self.facts)
    }

    /// The known snapshot if the facts are those that it was taken of, else a new one.
    fn current(
        known: &mut Option<Known>,
        facts: impl Fn() -> Option<Vec<String>>,
        take: impl FnOnce() -> Snapshot,
    ) -> Snapshot {
        let now = facts();
        if let Some(known) = known.as_ref().filter(|known| known.is_of(now.as_ref())) {
            return known.snapshot.clone();
        }
        let snapshot = take();
        let unchanged = facts().filter(|later| now.as_ref() == Some(later));
        *known = unchanged.map(|facts| Known { facts, snapshot: snapshot.clone() });
        snapshot
    }
}

impl<'a> Watch<'a> {
    /// Takes the first snapshot, once the kernel has settled.
    pub fn start(lab: &'a Lab, containers: &[&Namespace]) -> Watch<'a> {
        let known = (0..=containers.len()).map(|_| None).collect();
        let containers = containers.iter().map(|it| (*it).clone()).collect();
        let known = Mutex::new(known);
        let mut watch = Watch { lab, containers, before: vec![], known };
        watch.before = watch.settled();
        watch
    }

    fn now(&self) -> Vec<Snapshot> {
        let mut known = self.known.lock().unwrap();
        let (host, containers) = known.split_first_mut().unwrap();
        let (facts, take) = (|| states_of_host(self.lab), || Snapshot::of_host(self.lab));
        let mut now = vec![Known::current(host, facts, take)];
        for (known, container) in containers.iter_mut().zip(&self.containers) {
            let (facts, take) = (|| states(container), || Snapshot::of(container));
            now.push(Known::current(known, facts, take));
        }
        now
    }

    /// The kernel reports carrier changes of some links late (linkwatch, up to a second). Two equal
    /// snapshots in a row count as settled, unless a fact is known to be missing.
    fn settled(&self) -> Vec<Snapshot> {
        let deadline = Instant::now() + patience(5);
        let mut last = self.now();
        while let Some(pause) = last.iter().filter_map(Snapshot::may_change_within).max() {
            std::thread::sleep(pause);
            let now = self.now();
            let is_whole = !now.iter().any(Snapshot::awaits_something);
            if now == last && is_whole || Instant::now() > deadline {
                return now;
            }
            last = now;
        }
        last
    }

    /// What has changed so far.
    pub fn changes_now(&self) -> String {
        lines(&self.each_change_now())
    }

    /// As `changes_now`, as a list.
    pub fn each_change_now(&self) -> Vec<Change> {
        let now = self.now();
        self.before.iter().zip(&now).flat_map(|(before, now)| before.changes_to(now)).collect()
    }

    /// What has changed, after waiting a little for the previous state to come back.
    pub fn changes(&self) -> String {
        lines(&last_of(Duration::from_millis(50), || self.each_change_now()))
    }

    #[track_caller]
    pub fn assert_unchanged(&self, since: &str) {
        let changes = self.changes();
        assert!(changes.is_empty(), "not as before {since}:\n{changes}");
    }
}

/// The changes that remain in the end: the kernel finishes some work asynchronously. Checks again
/// after each pause.
pub fn last_of(pause: Duration, changes_now: impl Fn() -> Vec<Change>) -> Vec<Change> {
    let deadline = Instant::now() + patience(3);
    loop {
        let changes = changes_now();
        if changes.is_empty() || Instant::now() > deadline {
            return changes;
        }
        std::thread::sleep(pause);
    }
}
