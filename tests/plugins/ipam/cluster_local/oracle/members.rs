//! What happens to members of etcd, one thing after another.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{World, below};
use crate::support::etcd::Etcd;
use crate::support::extent::is_long;

/// A name, what begins it and what heals it, of the member with this number.
type Fault = (&'static str, fn(&mut Etcd, usize), fn(&mut Etcd, usize));

/// What can happen. Faults that are alike do not follow each other.
const FAULTS: [Fault; 12] = [
    // The member reaches nobody, and nobody reaches it.
    ("CutOff", |etcd, number| etcd.cut(number), |etcd, number| etcd.connect(number)),
    // SIGKILL, and it starts again with its data.
    ("Killed", |etcd, number| signal(etcd, number, Signal::SIGKILL), Etcd::restart),
    // Machines do not hear the member, which hears them: outcomes are unknown.
    (
        "Mute",
        |etcd, number| drop_packets(etcd, number, NOTHING, "oifname eth0 ip daddr 10.78.0.0/24"),
        drop_none,
    ),
    (
        "Stopped",
        |etcd, number| signal(etcd, number, Signal::SIGSTOP),
        |etcd, number| signal(etcd, number, Signal::SIGCONT),
    ),
    // The member does not hear the others, which hear it.
    ("Deaf", |etcd, number| drop_packets(etcd, number, OF_MEMBERS, NOTHING), drop_none),
    // The history is gone: watches end.
    ("Compacted", |etcd, number| compact(etcd, number), |_, _| ()),
    // Its link has a low rate and a long queue.
    (
        "Slow",
        |etcd, number| {
            sh(etcd, number, "tc qdisc add dev eth0 root tbf rate 100kbit burst 2kb latency 2s")
        },
        |etcd, number| sh(etcd, number, "tc qdisc del dev eth0 root"),
    ),
    ("LeaderMoved", |etcd, number| etcd.move_leader(number), |_, _| ()),
    // The member and the others do not reach each other; machines reach it.
    (
        "Apart",
        |etcd, number| drop_packets(etcd, number, OF_MEMBERS, "oifname eth0 ip daddr 10.77.0.0/29"),
        drop_none,
    ),
    // Two members are stopped.
    (
        "NoMajority",
        |etcd, number| of_two(etcd, number, Signal::SIGSTOP),
        |etcd, number| of_two(etcd, number, Signal::SIGCONT),
    ),
    // Its link loses one packet in five.
    (
        "Lossy",
        |etcd, number| {
            let [received, sent] =
                ["iifname", "oifname"].map(|end| format!("{end} eth0 numgen random mod 100 < 20"));
            drop_packets(etcd, number, &received, &sent);
        },
        drop_none,
    ),
    // No machine reaches any member.
    (
        "AllCutOff",
        |etcd, _| drop(etcd.lab.host.sh("ip link set nodes down")),
        |etcd, _| drop(etcd.lab.host.sh("ip link set nodes up")),
    ),
];

/// What a member receives from others, and what matches no packet.
const OF_MEMBERS: &str = "iifname eth0 ip saddr 10.77.0.0/29";
const NOTHING: &str = "meta mark 1";

/// Lets one thing after another go wrong and heals it, until the time is over.
pub fn go_wrong(world: &World, etcd: &mut Etcd) {
    let mut random = world.random(1);
    // A short run has some of them: another seed begins elsewhere.
    let first = below(&mut random, FAULTS.len() as u64) as usize;
    let longest = Duration::from_secs(if is_long() { 15 } else { 3 });
    for (name, begin, heal) in FAULTS.iter().cycle().skip(first) {
        let pause = random.below(Duration::from_secs(2));
        world.sleep(pause);
        if world.is_over() {
            break;
        }
        // A member; often the one that leads.
        let any = below(&mut random, 3) as usize + 1;
        let leader = (below(&mut random, 2) == 1).then(|| etcd.find_leader()).flatten();
        let number = leader.unwrap_or(any);
        begin(etcd, number);
        world.history.count(*name);
        let lasts = random.below(longest) + Duration::from_millis(500);
        world.sleep(lasts);
        heal(etcd, number);
    }
}

fn signal(etcd: &Etcd, number: usize, signal: Signal) {
    etcd.members[number - 1].signal(signal);
}

fn of_two(etcd: &Etcd, number: usize, of_each: Signal) {
    signal(etcd, number, of_each);
    signal(etcd, number % 3 + 1, of_each);
}

fn sh(etcd: &Etcd, number: usize, script: &str) {
    etcd.members[number - 1].sh(script);
}

/// Drops what the member receives and what it sends, by these matches.
fn drop_packets(etcd: &Etcd, number: usize, received: &str, sent: &str) {
    let table = format!(
        "nft -f - <<END
         table inet faults {{
             chain received {{ type filter hook input priority 0; {received} drop; }}
             chain sent {{ type filter hook output priority 0; {sent} drop; }}
         }}\nEND"
    );
    sh(etcd, number, &table);
}

fn drop_none(etcd: &mut Etcd, number: usize) {
    sh(etcd, number, "nft delete table inet faults");
}

/// Drops the history up to now. It may have been dropped already, or the members may be in disarray.
fn compact(etcd: &Etcd, number: usize) {
    let script = "export ETCDCTL_API=3 E='etcdctl --command-timeout 2s --endpoints 127.0.0.1:2379'
        at=$($E get /nothing -w fields | sed -n 's/^\"Revision\" : //p'); $E compact $at || true";
    etcd.members[number - 1].sh(script);
}
