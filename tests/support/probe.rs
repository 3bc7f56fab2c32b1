//! A snapshot cheap enough for a sweep to take at each of thousands of points: the facts of
//! `snapshot`, read from the kernel without starting a program.
//!
//! It uses raw netlink dumps, not our own `net`, which is under test, in a thread that enters the
//! namespace. Facts are raw attributes, shown by number. They leave out more than a `Watch` does of what the kernel
//! updates late: carriers, states of links and of bridge ports. A sweep therefore ends with a
//! `Watch`. If a thread may not enter a namespace (an ordinary user outside a user namespace of
//! their own), a `Watch` takes the probe's place.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use self::dump::Socket;
use self::route::AWAITED;
use super::attachment::skip;
use super::kernel::has;
use super::netns::{Lab, Namespace};
use super::patience;
use super::snapshot::{Change, Snapshot, Watch, difference, last_of, lines};
use super::table::cells;

mod dump;
mod nft;
mod route;
mod rows;

/// How long the facts have to stay equal before a sweep relies on them.
const AT_REST: Duration = Duration::from_millis(1300);

/// The scopes of sysctls that belong to no single link; those of a link are among its attributes.
const SYSCTLS: [&str; 2] = ["all", "default"];
pub const SYSCTL_KEYS: &str = "arp_notify route_localnet proxy_arp rp_filter accept_local arp_ignore arp_announce \
    accept_ra accept_dad enhanced_dad disable_ipv6 keep_addr_on_down ndisc_notify";

/// How much of a namespace's state is facts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// What stays the same while the kernel settles.
    Lasting,
    /// Also what the kernel updates late: everything that a snapshot shows.
    States,
}

/// The facts of a namespace in the kernel's order, among them all that a snapshot shows. None if a thread may not
/// enter the namespace, and if it has legacy iptables rules, of which netlink has no dump.
pub fn states(namespace: &Namespace) -> Option<Vec<String>> {
    let facts = facts_in(namespace, Detail::States)?;
    (!facts.iter().any(|fact| fact.starts_with("legacy "))).then_some(facts)
}

/// The same of the pretend host, with its files and the rows of its Open vSwitch.
pub fn states_of_host(lab: &Lab) -> Option<Vec<String>> {
    let mut facts = states(&lab.host)?;
    outside_the_kernel(lab, &mut facts);
    Some(facts)
}

/// The facts of a namespace; None if a thread may not enter it.
fn facts_in(namespace: &Namespace, detail: Detail) -> Option<Vec<String>> {
    let path = namespace.path();
    let read = move || {
        enter(&path).ok()?;
        let (route, netfilter) = (Socket::open(dump::ROUTE), Socket::open(dump::NETFILTER));
        Some(facts(&route.ok()?, &netfilter.ok()?, detail))
    };
    std::thread::scope(|scope| scope.spawn(read).join().unwrap())
}

/// The facts that last, sorted.
fn lasting(namespace: &Namespace) -> Option<Vec<String>> {
    let mut facts = facts_in(namespace, Detail::Lasting)?;
    facts.sort();
    // Legacy iptables rules are rare, and netlink has no dump of them.
    if facts.iter().any(|fact| fact.starts_with("legacy ")) {
        let saved = namespace.sh("iptables-legacy-save; ip6tables-legacy-save");
        facts.push(saved.replace(char::is_numeric, ""));
    }
    Some(facts)
}

/// The thread stays in the namespace until it ends.
#[allow(clippy::disallowed_methods)]
fn enter(path: &str) -> Result<(), nix::Error> {
    let namespace = fs::File::open(path).map_err(|_| nix::errno::Errno::ENOENT)?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)
}

fn facts(route: &Socket, netfilter: &Socket, detail: Detail) -> Vec<String> {
    let mut facts = route::facts(route, detail);
    facts.extend(nft::facts(netfilter, detail));
    for scope in SYSCTLS {
        for key in SYSCTL_KEYS.split_whitespace() {
            let name = |family| format!("{family}/conf/{scope}/{key}");
            for name in ["ipv4", "ipv6"].map(name) {
                let value = fs::read_to_string(format!("/proc/sys/net/{name}"));
                facts.extend(value.map(|value| format!("sysctl {name}: {value}")));
            }
        }
    }
    for family in ["ip", "ip6"] {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names"))
            .unwrap_or_default();
        facts.extend(names.lines().map(|name| format!("legacy {family} {name}")));
    }
    facts
}

/// The pretend host's files, and the rows of its Open vSwitch.
fn outside_the_kernel(lab: &Lab, facts: &mut Vec<String>) {
    for dir in ["/run", "/var/lib/cni"] {
        files(&lab.path(dir), dir, facts);
    }
    facts.extend(rows::of(&lab.path("/run/openvswitch/db.sock")));
}

/// The files of the pretend host, as in `snapshot`, and also directories, links and sockets.
fn files(dir: &Path, name: &str, facts: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let base = entry.file_name().to_string_lossy().into_owned();
        let name = format!("{name}/{base}");
        let Ok(about) = fs::symlink_metadata(&path) else { continue }; // deleted meanwhile
        let is_empty_index = name.contains("/.cni-multi/") && about.is_file() && about.len() == 0;
        let is_kept = ["xtables.lock", "lock", "boot"].contains(&&*base)
            || ["last_reserved_ip.", "blocks."].iter().any(|begin| base.starts_with(begin));
        let is_elsewhere = ["/run/netns", "/run/openvswitch"].contains(&&*name);
        if is_empty_index || is_kept || is_elsewhere {
            continue;
        }
        facts.push(format!("file {name} {:o}", about.permissions().mode()));
        let content = if about.is_file() { fs::read(&path).unwrap_or_default() } else { vec![] };
        // The order of lines is not state.
        let content = String::from_utf8_lossy(&content);
        facts.extend(content.lines().map(|line| format!("file {name}: {line}")));
        if about.is_dir() {
            files(&path, &name, facts);
        }
    }
}

/// The pretend host together with some containers' namespaces; used like `Watch`.
pub struct Probe<'a> {
    lab: &'a Lab,
    namespaces: Vec<&'a Namespace>,
    before: Vec<Vec<String>>,
    instead: Option<Watch<'a>>,
}

impl<'a> Probe<'a> {
    /// Takes the first snapshot, once the kernel has settled.
    pub fn start(lab: &'a Lab, containers: &[&'a Namespace]) -> Probe<'a> {
        let namespaces = std::iter::once(&lab.host).chain(containers.iter().copied());
        let mut probe =
            Probe { lab, namespaces: namespaces.collect(), before: vec![], instead: None };
        if lasting(&lab.host).is_none() {
            probe.namespaces.clear();
            probe.instead = Some(Watch::start(lab, containers));
        }
        probe.before = probe.settled();
        probe
    }

    fn settled(&self) -> Vec<Vec<String>> {
        let deadline = Instant::now() + patience(10);
        let (mut last, mut since) = (self.raw(), Instant::now());
        while since.elapsed() < AT_REST && Instant::now() < deadline && !self.namespaces.is_empty()
        {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.raw();
            if now != last || now.iter().flatten().any(|fact| fact.starts_with(AWAITED)) {
                (last, since) = (now, Instant::now());
            }
        }
        without_awaited(last)
    }

    fn now(&self) -> Vec<Vec<String>> {
        without_awaited(self.raw())
    }

    /// One list of facts per namespace; that of the pretend host includes its files.
    fn raw(&self) -> Vec<Vec<String>> {
        let of = |namespace: &&Namespace| lasting(namespace).expect("a thread entered it before");
        let mut all: Vec<Vec<String>> = self.namespaces.iter().map(of).collect();
        if let Some(host) = all.first_mut() {
            outside_the_kernel(self.lab, host);
            host.sort();
        }
        all
    }

    /// What has changed so far.
    pub fn changes_now(&self) -> Vec<Change> {
        if let Some(watch) = &self.instead {
            return watch.each_change_now();
        }
        let now = self.now();
        self.before.iter().zip(&now).flat_map(|(before, now)| difference(before, now)).collect()
    }

    /// What has changed, after waiting a little for the previous state to come back.
    pub fn changes(&self) -> Vec<Change> {
        last_of(Duration::from_millis(5), || self.changes_now())
    }

    #[track_caller]
    pub fn assert_unchanged(&self, since: &str) {
        let changes = self.changes();
        assert!(changes.is_empty(), "not as before {since}:\n{}", lines(&changes));
    }
}

fn without_awaited(mut facts: Vec<Vec<String>>) -> Vec<Vec<String>> {
    facts.iter_mut().for_each(|facts| facts.retain(|fact| !fact.starts_with(AWAITED)));
    facts
}

/// The section of the snapshot and the kind of fact that show a change, `-` for none, and the change.
const CHANGES: &str = r"
link | link | ip link add one type veth peer name two
link | link | ip link set one mtu 1400
link | link | ip link set one alias net1/container-1
link | link | ip link set one allmulticast on
link | link | ip link set one promisc on
link | link | ip link set one txqueuelen 55
link | link | ip link set one address 02:00:00:00:00:77
link | link | ip link property add dev one altname another
address | address | ip addr add 10.0.0.1/24 dev one
route | route | ip link set one up; ip link set two up; ip route add 10.9.0.0/16 dev one table 77
route | route | ip -6 route add 2001:db8:9::/48 dev one
rule | rule | ip rule add from 10.0.0.1 table 77
rule | rule | ip -6 rule add from 2001:db8::1 table 77
port | link | ip link add br9 type bridge; ip link set two master br9
port | link | bridge link set dev two hairpin on
link | link | ip link set br9 type bridge ageing_time 5000
qdisc | qdisc | tc qdisc add dev one root tbf rate 1mbit burst 10kb latency 25ms
qdisc | qdisc | tc qdisc add dev one ingress
- | filter | tc filter add dev one parent ffff: protocol all u32 match u32 0 0 flowid 1:1
nft | nft | nft add table inet leak
nft | nft | nft 'add set inet leak s { type ipv4_addr; }'
nft | nft | nft 'add element inet leak s { 10.0.0.1 }'
nft | nft | nft 'add chain inet leak c; add rule inet leak c limit rate 9/second'
nft | nft | nft 'insert rule inet leak c counter drop'
nft | nft | nft 'add rule inet leak c tcp dport 99 counter drop'
nft | nft | nft 'add rule inet leak c tcp dport 99 counter drop'
nft | nft | nft 'add chain inet leak d { type filter hook input priority 0; }'
nft | nft | nft 'chain inet leak d { policy drop; }'
nft | nft | iptables -t nat -A POSTROUTING -s 10.0.0.1 -m comment --comment leak -j MASQUERADE
link | link | ip link set two down; until ip link show one |grep -q 'state [DL]'; do sleep 0.01; done
link | link | ip link set br9 type bridge stp_state 1; ip link set br9 up
address | address | ip addr change 10.0.0.1/24 dev one valid_lft 100 preferred_lft 50
legacy | legacy | iptables-legacy -t nat -A POSTROUTING -j MASQUERADE
sysctl | link | echo 1 > /proc/sys/net/ipv4/conf/one/route_localnet
sysctl | link | echo 0 > /proc/sys/net/ipv6/conf/one/accept_ra
sysctl | sysctl | echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
- | file | mkdir -p /var/lib/cni/deep
file | file | echo x > /var/lib/cni/deep/file
file | file | echo y > /var/lib/cni/deep/file
file | file | touch /run/cni/state
ovs | ovs | ovs-vsctl --no-wait add-port ovs0 one
ovs | ovs | ovs-vsctl --no-wait set port one tag=7
ovs | ovs | ovs-vsctl --no-wait set interface one ofport_request=7
";

/// The snapshot detects everything that an ADD may change, and so do the probe and the facts that may take the
/// snapshot's place; otherwise "nothing is left" would prove nothing.
#[test]
fn a_snapshot_and_a_probe_see_every_kind_of_change() {
    let lab = Lab::new(super::call::Peer::Ours);
    let has_switch = super::networks::ovs::node(&lab);
    let namespaces = vec![&lab.host];
    let mut probe =
        lasting(&lab.host).map(|_| Probe { lab: &lab, namespaces, before: vec![], instead: None });
    if probe.is_none() {
        skip("the right to enter a namespace from a thread");
    }
    for [section, kind, script] in cells(CHANGES) {
        probe.iter_mut().for_each(|probe| probe.before = probe.now());
        // A user namespace may have legacy rules without permission to list the tables. Listing them makes the table.
        let sees_legacy = "iptables-legacy -t nat -S && cat /proc/net/ip_tables_names";
        if section == "ovs" && !has_switch
            || section == "legacy" && !has(&lab.host, "iptables-legacy", sees_legacy)
        {
            continue;
        }
        let (before, facts) = (Snapshot::of_host(&lab), states_of_host(&lab));
        lab.host.sh(script);
        let difference = before.difference(&Snapshot::of_host(&lab));
        if section != "-" {
            // Of legacy rules there are no facts.
            assert!(
                facts.is_none() || facts != states_of_host(&lab),
                "`{script}` changes no facts"
            );
            let shown = difference.contains(&format!("+ {section}: "));
            assert!(shown, "`{script}` is not seen in\n{difference}");
        }
        if let Some(probe) = &probe {
            let changes = lines(&probe.changes_now());
            assert!(changes.contains(&format!("+ {kind} ")), "no {kind} by `{script}`:\n{changes}");
        }
    }
}

/// What a `Watch` ignores, the probe ignores as well: traffic, time, and an attachment that was
/// added and deleted.
#[test]
fn a_probe_sees_no_change_where_there_is_none() {
    let lab = Lab::new(super::call::Peer::Ours);
    let conf = crate::support::networks::bridge::dual_stack();
    let (container, other) = (lab.container(), lab.container());
    lab.attach(&other, &conf).add();
    lab.host.sh(
        "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c counter'",
    );
    let probe = Probe::start(&lab, &[&container, &other]);
    lab.host
        .sh("ping -c 1 -W 1 198.51.100.2 >/dev/null; ping -c 1 -W 1 2001:db8:ffff::2 >/dev/null");
    let attachment = lab.attach(&container, &conf);
    attachment.add();
    assert!(!probe.changes_now().is_empty());
    attachment.del();
    probe.assert_unchanged("an attachment");
}
