//! `net gc` of attachments without a record: living ones are spared and reported, stale ones are
//! removed, and a dry run reports what the run does.

use std::fs;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, reference_with};
use crate::support::call::{binary, farm};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::snapshot::Watch;

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
    lab.host.sh("mkdir -p /run/net.d");
    for network in [1, 2] {
        let file = lab.path(&format!("/run/net.d/net{network}.conflist"));
        fs::write(file, list(network, block).to_string()).unwrap();
    }
}

/// Runs a command of `cni-multi net` and returns its stdout.
pub fn net(lab: &Lab, line: &str, path: &str) -> String {
    lab.host.sh(&format!(
        "{} net {line} --conf-dir /run/net.d --plugin-path {path}",
        binary().display()
    ))
}

fn ours(lab: &Lab, line: &str) -> String {
    net(lab, line, &farm().display().to_string())
}

pub fn add(lab: &Lab, network: u8, container: &Container, cache: &str, path: &str) {
    let port = 8000
        + 100 * u16::from(network)
        + container.id.trim_start_matches("container-").parse::<u16>().unwrap();
    let line = format!(
        "add net{network} {} --container-id {} --cache-dir {cache} -p {port}:80",
        container.netns, container.id
    );
    net(lab, &line, path);
}

fn check(lab: &Lab, network: u8, container: &Container, cache: &str) {
    ours(
        lab,
        &format!(
            "check net{network} {} --container-id {} --cache-dir {cache}",
            container.netns, container.id
        ),
    );
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
fn as_done(dry: &str) -> String {
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
        let path = farm().display().to_string();
        let [elsewhere, lost, gone] = [lab.container(), lab.container(), lab.container()];
        add(lab, 1, &elsewhere, ELSEWHERE, &path);
        add(lab, 1, &lost, OWN, &path);
        lab.host.sh(&format!("rm {OWN}/results/*"));
        let before = Watch::start(lab, &[&elsewhere, &lost]);
        add(lab, 1, &gone, ELSEWHERE, &path);
        lab.host.sh(&format!("rm {ELSEWHERE}/results/*{}*", gone.id));
        vanish(lab, &gone);
        let dry = ours(lab, "gc net1 --dry-run");
        let told = ours(lab, "gc net1");
        assert_eq!(as_done(&dry), told);
        for container in [&elsewhere, &lost] {
            let line = told
                .lines()
                .find(|line| line.starts_with(&format!("spared net1 {} eth0: ", container.id)));
            let line = line.unwrap_or_else(|| panic!("{told}"));
            assert!(
                line.contains("link veth")
                    && line.contains("lease 10.211.1.")
                    && line.contains("cni_multi_portmap")
            );
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
        add(lab, 1, &container, ELSEWHERE, &farm().display().to_string());
        lab.host.sh("cd /var/lib/cni/networks && mv net1 away && ln -s net1 net1");
        let before = Watch::start(lab, &[&container]);
        let line = format!(
            "{} net gc net1 --conf-dir /run/net.d --plugin-path {}",
            binary().display(),
            farm().display()
        );
        let told = lab.host.sh(&format!("{line} 2>&1; [ $? = 1 ]"));
        assert!(
            told.contains("failed to GC plugin bridge: open /var/lib/cni/networks/net1: "),
            "{told}"
        );
        before.assert_unchanged("a GC that cannot read the leases");
    });
}

/// The reference's veth does not name its owner. The lease does, and its address is in a living
/// namespace.
#[test]
fn net_gc_spares_what_the_reference_attached_without_a_record() {
    if reference_with("bridge").is_none() {
        return;
    }
    for_ours("bridge", |lab| {
        configure(lab, 212);
        let path = std::env::var("CNI_REFERENCE").unwrap_or_default();
        let [living, gone] = [lab.container(), lab.container()];
        add(lab, 1, &living, ELSEWHERE, &path);
        add(lab, 1, &gone, ELSEWHERE, &path);
        vanish(lab, &gone);
        let told = ours(lab, "gc net1");
        for (what, lease) in [
            (format!("spared net1 {} eth0: ", living.id), "lease 10.212.1.2"),
            (format!("removed net1 {} eth0: ", gone.id), "lease 10.212.1.3"),
        ] {
            assert!(told.lines().any(|it| it.starts_with(&what) && it.contains(lease)), "{told}");
        }
        assert_eq!(
            lab.host.sh("ls /var/lib/cni/networks/net1"),
            "10.212.1.2\nlast_reserved_ip.0\nlock\n"
        );
    });
}

/// A pseudorandom generator with the same sequence in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn net_gc_dry_run_says_exactly_what_the_run_does() {
    for seed in 0..3 {
        for_ours("bridge", |lab| random_world(lab, &mut Dice(seed)));
    }
}

fn random_world(lab: &Lab, dice: &mut Dice) {
    configure(lab, 213);
    let path = farm().display().to_string();
    let mut living = vec![];
    let mut gone = vec![];
    for _ in 0..8 {
        let network = 1 + u8::from(dice.below(2) == 1);
        let (cache, is_lost, is_gone) =
            ([OWN, ELSEWHERE][dice.below(2) as usize], dice.below(3) == 0, dice.below(2) == 0);
        let container = lab.container();
        add(lab, network, &container, cache, &path);
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
    let left = lab
        .host
        .sh("nft list ruleset; grep -rs . /var/lib/cni/networks; ls /run/cni/tuning; ip -d link");
    for container in gone {
        let is_there = |line: &str| {
            line.contains(&format!("{}\"", container.id)) || line.ends_with(&container.id)
        };
        assert!(!left.lines().any(is_there), "{}\n{told}\n{left}", container.id);
    }
    let again = ours(lab, "gc");
    assert!(again.contains("detached 0; without a record: removed 0, "), "{again}");
}
