//! ADD and DEL on a host with thousands of links under constant change, as on a node where pods
//! come and go: interrupted dumps, conflicting transactions and locks held by others fail none of
//! them.

use std::process::Stdio;
use std::sync::Mutex;
use std::time::Instant;

use super::growth::populate;
use super::networks::{Kernel, Member};
use super::{in_turns, long_or_short};
use crate::faults::table::{form, tell};
use crate::support::attachment::for_ours;
use crate::support::dhcp::Process;
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;
use crate::support::snapshot::Watch;

/// The number of runtimes working in parallel.
const WORKERS: usize = 20;

/// The changes: a name for messages, and the command that is repeated.
const CHANGES: [(&str, &str); 4] = [
    ("links, addresses, routes and rules", "ip -force -batch /run/churn.links"),
    ("tables of nftables", "nft -f /run/churn.nft"),
    ("rules of iptables-nft", "f=iptables-nft; $f -w -t nat -A $RULE; $f -w -t nat -D $RULE"),
    ("rules of iptables-legacy", "f=iptables-legacy; $f -w -t nat -A $RULE; $f -w -t nat -D $RULE"),
];

/// The rule of iptables.
const RULE: &str = "RULE='POSTROUTING -s 203.0.113.1 -j RETURN'";

/// The processes that keep changing the host until `end`.
struct Churn<'a> {
    lab: &'a Lab,
    running: Vec<(&'static str, Process)>,
    _outputs: Scratch,
}

impl<'a> Churn<'a> {
    fn start(lab: &'a Lab) -> Churn<'a> {
        let one = |n: usize| {
            format!(
                "link add churn{n} up type veth peer name turn{n}\naddr add 172.20.0.{n}/24 dev churn{n}\n\
                 addr add 2001:db8:bbbb::{n:x}/64 dev churn{n} nodad\nroute add 172.21.{n}.0/24 dev churn{n}\n\
                 rule add from 172.20.1.{n} table 10{n}\nrule del from 172.20.1.{n} table 10{n}\n"
            )
        };
        let made: String = (1..4).map(one).collect();
        let gone: String = (1..4).map(|n| format!("link del churn{n}\n")).collect();
        lab.write("/run/churn.links", made + &gone);
        let elements: Vec<String> = (1..200).map(|n| format!("172.20.2.{n}")).collect();
        let table = format!(
            "add table inet churn
             table inet churn {{ set s {{ type ipv4_addr; elements = {{ {} }}; }}\nchain c {{ ip saddr @s accept; }} }}
             delete table inet churn\n",
            elements.join(", ")
        );
        lab.write("/run/churn.nft", table);
        let outputs = Scratch::new();
        let run = |(number, (name, change)): (usize, &(&'static str, &str))| {
            let script = format!(
                "{RULE}; while ! test -e /run/churn.end; do {change}; printf .; done 2>/dev/null"
            );
            let (line, output) = (["sh", "-c", &script], outputs.join(&number.to_string()));
            (*name, Process::start(&lab.host, &line.map(str::to_owned), Stdio::null(), output))
        };
        let running = CHANGES.iter().enumerate().map(run).collect();
        Churn { lab, running, _outputs: outputs }
    }

    /// The number of times each change was made so far.
    fn rounds(&self) -> Vec<(&'static str, usize)> {
        self.running.iter().map(|(name, process)| (*name, process.output().len())).collect()
    }

    fn end(mut self) {
        self.lab.write("/run/churn.end", "");
        for (_, process) in &mut self.running {
            process.wait();
        }
        self.lab.host.sh(
            "for n in 1 2 3; do ip link del churn$n; ip rule del from 172.20.1.$n; done 2>/dev/null; nft delete table inet churn 2>/dev/null; \
             for f in iptables-nft iptables-legacy; do while $f -w -t nat -D POSTROUTING -s 203.0.113.1 -j RETURN; do :; done; done 2>/dev/null; \
             rm /run/churn.*",
        );
    }
}

#[test]
fn no_add_or_del_fails_where_everything_changes() {
    let (links, attachments) = long_or_short((10_000, 5_000), (200, 140));
    for_ours("bridge", |lab| {
        let kernel = Kernel::of(lab);
        let members: Vec<_> =
            (0..WORKERS).map(|number| Member::new(lab, &kernel, number)).collect();
        members[0].warm_up();
        populate(lab, links);
        CHANGES[2..]
            .iter()
            .for_each(|(_, change)| drop(lab.host.try_sh(&format!("{RULE}; {change}"))));
        let before = Watch::start(lab, &[]);
        let churn = Churn::start(lab);
        let started = Instant::now();
        let free = Mutex::new(members.iter().collect::<Vec<_>>());
        let failures: Vec<String> = in_turns(attachments, WORKERS, |number| {
            let member = free.lock().unwrap().pop().unwrap();
            let (name, chain) = member.network(number);
            // A runtime also calls DEL after a failed ADD.
            let added = chain.try_add();
            let deleted = chain.try_del(added.as_ref().unwrap_or(&serde_json::Value::Null));
            free.lock().unwrap().push(member);
            if number % 500 == 499 {
                let elapsed = started.elapsed().as_secs_f64();
                eprintln!("{} attachments after {elapsed:.0} s", number + 1);
            }
            let errors = added.err().into_iter().chain(deleted.err());
            errors.map(|error| format!("{name}: {error:?}")).collect::<Vec<_>>()
        })
        .concat();
        let adds: usize = (0..attachments).map(|number| members[0].network(number).1.0.len()).sum();
        let (took, rounds) = (started.elapsed().as_secs_f64().round() as usize, churn.rounds());
        churn.end();
        let figures = [
            ("links", links),
            ("attachments", attachments),
            ("ADDs of plugins", adds),
            ("seconds", took),
            ("failures", failures.len()),
        ];
        for (what, number) in figures.into_iter().chain(rounds.iter().copied()) {
            tell("churn", &[&form(), &what, &number]);
        }
        assert!(rounds.iter().all(|(_, rounds)| *rounds > 0), "{rounds:?}");
        let some = failures[..failures.len().min(5)].join("\n");
        assert!(failures.is_empty(), "{} failures, such as\n{some}", failures.len());
        before.assert_unchanged("ADDs and DELs where everything changes");
    });
}
