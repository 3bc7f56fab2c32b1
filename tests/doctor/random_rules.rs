//! Small rule sets by chance: the verdict of the walk is what happens to packets.

use std::env;
use std::net::IpAddr;

use cni_multi::net::nft::drops::{Hook, Packet, Passage, Port, Ruleset, Verdict};

use super::road::Road;
use crate::support::attachment::skip;
use crate::support::netns::{Namespace, is_root};

/// The container's address.
const CONTAINER: &str = "10.198.1.2";
/// When this variable is set, the first test below prints a verdict: this test program, run again
/// in the namespace of the host.
const ROLE: &str = "CNI_LAB_VERDICT_ABOUT";
const ROLE_TEST: &str = "doctor::random_rules::a_verdict_of_the_rules_is_printed";
/// Of this many verdicts one may be unknown.
const KNOWN: usize = 3;

/// xorshift64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 8) as usize % limit
    }

    fn one<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }
}

const CONDITIONS: [&str; 34] = [
    "ip saddr 10.198.1.2",
    "ip saddr 10.198.0.0/16",
    "ip saddr != 10.198.1.2",
    "ip saddr 192.0.2.0/24",
    "ip daddr 10.198.1.2",
    "ip daddr != 10.198.1.0/24",
    "ip daddr 192.0.2.7",
    "ip daddr != 192.0.2.7",
    "ip saddr 10.198.1.2 ip daddr 192.0.2.7",
    "ip saddr { 10.198.1.0/24, 192.0.2.0/24 }",
    "ip daddr != { 192.0.2.1, 192.0.2.9 }",
    "iifname \"pods0\"",
    "iifname \"uplink\"",
    "iifname \"po*\"",
    "iifname != \"pods0\"",
    "ct state new",
    "ct state established,related",
    "ct state invalid",
    "ct state { new, untracked }",
    "ct status snat",
    "ct status & dnat == 0",
    "meta mark 1",
    "meta mark & 2 == 2",
    "meta mark != 1",
    "meta mark { 1, 3, 5 }",
    "tcp dport 22",
    "tcp dport != 22",
    "tcp sport 8443",
    "meta l4proto { udp, sctp }",
    "meta l4proto { tcp, udp }",
    "fib daddr type local",
    "fib daddr type unicast",
    "limit rate 100000/second",
    "counter",
];

const ACTIONS: [&str; 15] = [
    "accept",
    "accept",
    "drop",
    "drop",
    "reject",
    "return",
    "meta mark set 1",
    "meta mark set 2",
    "meta mark set meta mark or 2",
    "meta mark set ct mark",
    "jump own",
    "goto own",
    "ip daddr vmap { 192.0.2.7 : drop, * : jump own }",
    "ip saddr vmap { 10.198.1.2 : continue, * : accept }",
    "meta mark set ip saddr map { 10.198.1.2 : 3, * : 1 }",
];

/// The base chains: hook and priority.
const CHAINS: [(&str, i32); 7] = [
    ("prerouting", -300),
    ("prerouting", -150),
    ("prerouting", 0),
    ("forward", 0),
    ("forward", 10),
    ("postrouting", -150),
    ("postrouting", 300),
];

const TRANSLATIONS: [&str; 4] =
    ["masquerade", "snat to 198.51.100.1", "ip saddr 192.0.2.0/24 masquerade", "accept"];

/// The action is possible at the hook.
fn is_possible(hook: &str, action: &str) -> bool {
    hook == "forward" || action != "reject"
}

fn rule(chance: &mut Chance, hook: &str, has_jumps: bool) -> String {
    let mut rule = String::new();
    for _ in 0..=chance.below(2) {
        rule += chance.one(&CONDITIONS);
        rule.push(' ');
    }
    loop {
        let action = chance.one(&ACTIONS);
        if is_possible(hook, action) && (has_jumps || !action.contains("own")) {
            return rule + &action.replace("own", &format!("to-{hook}"));
        }
    }
}

fn rules(chance: &mut Chance, hook: &str, has_jumps: bool) -> String {
    (0..chance.below(3)).map(|_| rule(chance, hook, has_jumps) + "\n").collect()
}

/// A table by chance.
fn table(chance: &mut Chance) -> String {
    let mut text = "table ip f {\n".to_owned();
    for hook in ["prerouting", "forward", "postrouting"] {
        text += &format!("chain to-{hook} {{\n{}}}\n", rules(chance, hook, false));
    }
    for (number, (hook, priority)) in CHAINS.iter().enumerate() {
        let policy = if chance.below(14) == 0 { "drop" } else { "accept" };
        let rules = rules(chance, hook, true);
        text += &format!(
            "chain c{number} {{\ntype filter hook {hook} priority {priority}; policy {policy};\n{rules}}}\n"
        );
    }
    let translation = chance.one(&TRANSLATIONS);
    text + &format!(
        "chain nat {{\ntype nat hook postrouting priority srcnat;\n{translation}\n}}\n}}\n"
    )
}

fn port(name: &str) -> Option<Port> {
    let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?;
    Some(Port { index: index.trim().parse().ok()?, name: name.to_owned() })
}

/// What becomes of a connection of the container.
fn verdict(container: IpAddr) -> Verdict {
    let packet = |is_sent: bool| {
        let (from, to) = if is_sent { ("pods0", "uplink") } else { ("uplink", "pods0") };
        Packet {
            container,
            peer: None,
            is_sent,
            is_reply: !is_sent,
            is_to_host: false,
            mac: None,
            from: port(from),
            to: port(to),
        }
    };
    let before = |is_sent| Packet { to: None, ..packet(is_sent) };
    let found = Ruleset::look(|ruleset| {
        let mut verdicts = vec![];
        let mut sent = Passage::of(ruleset, before(true));
        walk(&mut sent, packet(true), &mut verdicts)?;
        let mut answer = sent.answer(before(false));
        walk(&mut answer, packet(false), &mut verdicts)?;
        Ok(verdicts)
    });
    let verdicts = found.unwrap();
    let certain = verdicts.iter().find(|verdict| matches!(verdict, Verdict::Dropped(_)));
    let unknown = verdicts.iter().find(|verdict| **verdict == Verdict::Unknown);
    certain.or(unknown).cloned().unwrap_or(Verdict::Passes)
}

fn walk(
    passage: &mut Passage<'_>,
    packet: Packet,
    verdicts: &mut Vec<Verdict>,
) -> cni_multi::error::Result<()> {
    verdicts.push(passage.at(Hook::Prerouting)?);
    passage.take(packet.clone());
    verdicts.push(passage.at(Hook::Forward)?);
    passage.take(Packet { from: None, ..packet });
    verdicts.push(passage.at(Hook::Postrouting)?);
    Ok(())
}

/// Not a test by itself, see [`ROLE`].
#[test]
fn a_verdict_of_the_rules_is_printed() {
    if let Ok(container) = env::var(ROLE) {
        eprintln!("verdict {:?}", verdict(container.parse().unwrap()));
    }
}

/// The verdict about the rules of the namespace.
fn verdict_in(host: &Namespace) -> String {
    let program = env::current_exe().unwrap();
    let mut command = host.command(program.to_str().unwrap());
    command.args([ROLE_TEST, "--exact", "--nocapture"]).env(ROLE, CONTAINER);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let line = stderr.lines().find_map(|line| line.strip_prefix("verdict "));
    line.unwrap_or_else(|| panic!("{stderr}")).to_owned()
}

/// `CNI_RULE_SETS` is how many, `CNI_SEED` the first seed; each has its own, which is printed.
#[test]
fn verdicts_about_random_rules_are_what_happens() {
    if !is_root() {
        return skip("root");
    }
    let number =
        |name: &str, usual: u64| env::var(name).map_or(usual, |number| number.parse().unwrap());
    let (count, first) = (number("CNI_RULE_SETS", 60), number("CNI_SEED", 1));
    let road = Road::of_bridge(198);
    let host = &road.site.lab.host;
    road.assert_healthy("no rules");
    let (mut known, mut unknown, mut refused) = ([0, 0], 0, 0);
    for seed in first..first + count {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let table = table(&mut chance);
        let load = format!("nft -f - <<'END'\n{table}\nEND");
        if !host.try_sh(&load).status.success() {
            refused += 1; // two conditions of a rule name different protocols
            continue;
        }
        let verdict = verdict_in(host);
        match verdict.as_str() {
            "Passes" => {
                assert!(road.is_open(), "CNI_SEED={seed}: passes, but is dropped by\n{table}");
                known[0] += 1;
            }
            "Unknown" => unknown += 1,
            dropped => {
                assert!(road.is_shut(), "CNI_SEED={seed}: {dropped}, but passes\n{table}");
                known[1] += 1;
            }
        }
        host.sh("nft flush ruleset");
    }
    eprintln!(
        "rule sets from seed {first}: {} pass, {} drop, {unknown} unknown",
        known[0], known[1]
    );
    assert!(refused * 2 < count, "nft refuses {refused} of {count}");
    assert!(unknown * KNOWN <= count as usize, "{unknown} of {count} are unknown");
    assert!(known.iter().all(|count| *count > 0), "{known:?}");
}
