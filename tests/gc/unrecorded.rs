//! `net gc` of attachments without a record: living ones are spared and reported, stale ones are
//! removed, and a dry run reports what the run does.

use serde_json::{Value, json};

use crate::faults::lives::chance::Chance;
use crate::support::attachment::{for_ours, reference_with};
use crate::support::call::{Call, Peer};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::snapshot::Watch;
use crate::support::synced;

/// The cache of a runtime that keeps its records outside /var/lib/cni.
const ELSEWHERE: &str = "/run/elsewhere";

/// `block` is an address block of the test's own: GC looks at the addresses of every namespace on
/// the machine.
fn list(network: u8, block: u8) -> Value {
    let ipam = json!({"type": "host-local", "subnet": format!("10.{block}.{network}.0/24")});
    json!({"cniVersion": "1.1.0", "name": format!("net{network}"), "plugins": [
        {"type": "bridge", "bridge": format!("br{network}"), "isDefaultGateway": true, "ipMasq": true,
         "ipMasqBackend": "nftables", "macspoofchk": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"},
        {"type": "tuning", "mtu": 1400},
    ]})
}

/// Writes the configurations of two networks in the test's own address block.
pub fn configure(lab: &Lab, block: u8) {
    [1, 2].iter().for_each(|network| lab.configure(&list(*network, block)));
}

/// Runs a command of `cni-multi net` with our plugins or those of the reference, and returns its stdout.
fn net(lab: &Lab, line: &str, by: &Peer) -> String {
    let line = format!("net {line} --conf-dir /run/net.d --plugin-path {}", by.dir().display());
    let outcome = Call::cni_multi(&lab.host.enter, line.split(' ')).run();
    assert_eq!(outcome.status, 0, "{line}: {outcome:?}");
    outcome.stdout
}

fn ours(lab: &Lab, line: &str) -> String {
    net(lab, line, &Peer::Ours)
}

/// A command on an attachment of a container.
fn on(verb: &str, network: u8, container: &Container, cache: &str) -> String {
    let Container { id, netns, .. } = container;
    format!("{verb} net{network} {netns} --container-id {id} --cache-dir {cache}")
}

pub fn add(lab: &Lab, network: u8, container: &Container, cache: &str, by: &Peer) {
    let number: u16 = container.id.trim_start_matches("container-").parse().unwrap();
    let port = 8000 + 100 * u16::from(network) + number;
    net(lab, &format!("{} -p {port}:80", on("add", network, container, cache)), by);
}

fn check(lab: &Lab, network: u8, container: &Container, cache: &str) {
    ours(lab, &on("check", network, container, cache));
}

const OWN: &str = "/var/lib/cni";

/// Destroys a container without a DEL and waits for the kernel to delete its links: until then the
/// container counts as alive.
fn vanish(lab: &Lab, container: &Container) {
    let count = "ip -br link show type veth | wc -l";
    let before: usize = lab.host.sh(count).trim().parse().unwrap();
    container.vanish();
    lab.host.sh(&format!(
        "for _ in $(seq 200); do [ $({count}) -lt {before} ] && exit 0; sleep 0.1; done; exit 1"
    ));
}

/// The output of a dry run, with its verbs changed to those of a run.
pub fn as_done(dry: &str) -> String {
    let verbs =
        [("detach", "detached"), ("remove", "removed"), ("spare", "spared"), ("call", "called")];
    verbs
        .iter()
        .fold(dry.to_owned(), |text, (verb, done)| text.replace(&format!("would {verb}"), done))
}

#[test]
fn net_gc_spares_a_container_recorded_elsewhere() {
    for_ours("bridge", |lab| {
        configure(lab, 211);
        let [elsewhere, lost, gone] = [lab.container(), lab.container(), lab.container()];
        add(lab, 1, &elsewhere, ELSEWHERE, &Peer::Ours);
        add(lab, 1, &lost, OWN, &Peer::Ours);
        lab.host.sh(&format!("rm {OWN}/results/*"));
        let before = Watch::start(lab, &[&elsewhere, &lost]);
        add(lab, 1, &gone, ELSEWHERE, &Peer::Ours);
        lab.host.sh(&format!("rm {ELSEWHERE}/results/*{}*", gone.id));
        vanish(lab, &gone);
        let dry = ours(lab, "gc net1 --dry-run");
        let told = ours(lab, "gc net1");
        assert_eq!(as_done(&dry), told);
        for container in [&elsewhere, &lost] {
            let begin = format!("spared net1 {} eth0: ", container.id);
            let line = told.lines().find(|line| line.starts_with(&begin));
            let line = line.unwrap_or_else(|| panic!("{told}"));
            for part in ["link veth", "lease 10.211.1.", "cni_multi_portmap"] {
                assert!(line.contains(part), "{line}");
            }
            assert!(line.ends_with("; its container lives"), "{line}");
        }
        assert!(told.contains(&format!("removed net1 {} eth0: ", gone.id)), "{told}");
        assert!(told.ends_with("detached 0; without a record: removed 1, spared 2\n"), "{told}");
        before.assert_unchanged("a container that is gone, collected without a record");
        check(lab, 1, &elsewhere, ELSEWHERE);

        let taken = ours(lab, "gc net1 --unrecorded");
        assert!(taken.ends_with("detached 0; without a record: removed 2, spared 0\n"), "{taken}");
        assert_eq!(lab.host.sh("ls /var/lib/cni/networks/net1"), "last_reserved_ip.0\nlock\n");
    });
}

/// A plugin that cannot read its state removes nothing: the state may belong to a living container.
#[test]
fn net_gc_removes_nothing_that_it_could_not_look_at() {
    for_ours("bridge", |lab| {
        configure(lab, 214);
        let container = lab.container();
        add(lab, 1, &container, ELSEWHERE, &Peer::Ours);
        lab.host.sh("cd /var/lib/cni/networks && mv net1 away && ln -s net1 net1");
        let before = Watch::start(lab, &[&container]);
        let outcome = synced::net(lab, "gc net1").run();
        let told = "failed to GC plugin bridge: open /var/lib/cni/networks/net1: ";
        assert!(outcome.status == 1 && outcome.stderr.contains(told), "{outcome:?}");
        before.assert_unchanged("a GC that cannot read the leases");
    });
}

/// The reference's veth does not name its owner. The lease does, and its address is in a living
/// namespace.
#[test]
fn net_gc_spares_what_the_reference_attached_without_a_record() {
    let Some(reference) = reference_with("bridge") else { return };
    for_ours("bridge", |lab| {
        configure(lab, 212);
        let [living, gone] = [lab.container(), lab.container()];
        add(lab, 1, &living, ELSEWHERE, &reference);
        add(lab, 1, &gone, ELSEWHERE, &reference);
        vanish(lab, &gone);
        let told = ours(lab, "gc net1");
        for (what, lease) in [
            (format!("spared net1 {} eth0: ", living.id), "lease 10.212.1.2"),
            (format!("removed net1 {} eth0: ", gone.id), "lease 10.212.1.3"),
        ] {
            assert!(told.lines().any(|it| it.starts_with(&what) && it.contains(lease)), "{told}");
        }
        let files = lab.host.sh("ls /var/lib/cni/networks/net1");
        assert_eq!(files, "10.212.1.2\nlast_reserved_ip.0\nlock\n");
    });
}

#[test]
fn net_gc_dry_run_says_exactly_what_the_run_does() {
    for seed in 0..3 {
        for_ours("bridge", |lab| random_world(lab, &mut Chance::new(seed, 0)));
    }
}

fn random_world(lab: &Lab, chance: &mut Chance) {
    configure(lab, 213);
    let (mut living, mut gone) = (vec![], vec![]);
    for _ in 0..8 {
        let (network, cache) = ([1, 2][chance.below(2)], [OWN, ELSEWHERE][chance.below(2)]);
        let (is_lost, is_gone) = (chance.one_in(3), chance.one_in(2));
        let container = lab.container();
        add(lab, network, &container, cache, &Peer::Ours);
        if is_lost {
            lab.host.sh(&format!("rm {cache}/results/net{network}-{}-eth0", container.id));
        }
        if is_gone {
            vanish(lab, &container);
            gone.push(container);
        } else {
            living.push((network, container, cache, is_lost));
        }
    }
    let watched: Vec<&Namespace> = living.iter().map(|(_, container, ..)| &**container).collect();
    let before = Watch::start(lab, &watched);
    let dry = ours(lab, "gc --dry-run");
    before.assert_unchanged("a dry run");
    let told = ours(lab, "gc");
    assert_eq!(as_done(&dry), told);
    for (network, container, cache, is_lost) in &living {
        if !is_lost {
            check(lab, *network, container, cache);
        }
    }
    let look = "nft list ruleset; grep -rs . /var/lib/cni/networks; ls /run/cni/tuning; ip -d link";
    let left = lab.host.sh(look);
    for container in gone {
        let is_there = |line: &str| {
            line.contains(&format!("{}\"", container.id)) || line.ends_with(&container.id)
        };
        assert!(!left.lines().any(is_there), "{}\n{told}\n{left}", container.id);
    }
    let again = ours(lab, "gc");
    assert!(again.contains("detached 0; without a record: removed 0, "), "{again}");
}
