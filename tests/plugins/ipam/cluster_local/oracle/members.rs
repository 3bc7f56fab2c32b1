//! What happens to members of etcd, one thing after another.

use std::time::Duration;

use cni_multi::sys::random::Random;
use nix::sys::signal::Signal;

use super::{World, below};
use crate::support::etcd::Etcd;
use crate::support::extent::is_long;

/// What can happen.
const FAULTS: [Fault; 12] = [
    Fault::CutOff,
    Fault::Killed,
    Fault::Mute,
    Fault::Stopped,
    Fault::Deaf,
    Fault::Compacted,
    Fault::Slow,
    Fault::LeaderMoved,
    Fault::Apart,
    Fault::NoMajority,
    Fault::Lossy,
    Fault::AllCutOff,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The member reaches nobody, and nobody reaches it.
    CutOff,
    /// No machine reaches any member.
    AllCutOff,
    /// The member and the others do not reach each other; machines reach it.
    Apart,
    /// The member does not hear the others, which hear it.
    Deaf,
    /// Machines do not hear the member, which hears them: outcomes are unknown.
    Mute,
    /// SIGSTOP.
    Stopped,
    /// Two members are stopped.
    NoMajority,
    /// SIGKILL, and it starts again with its data.
    Killed,
    /// Its link has a low rate and a long queue.
    Slow,
    /// Its link loses packets.
    Lossy,
    /// Another member leads.
    LeaderMoved,
    /// The history is gone: watches end.
    Compacted,
}

/// Lets one thing after another go wrong and heals it, until the time is over.
pub fn go_wrong(world: &World, etcd: &mut Etcd) {
    let mut random = world.random(1);
    // A short run has some of them: another seed begins elsewhere.
    let mut next = below(&mut random, FAULTS.len() as u64) as usize;
    let longest = Duration::from_secs(if is_long() { 15 } else { 3 });
    while !world.is_over() {
        let pause = random.below(Duration::from_secs(2));
        world.sleep(pause);
        let fault = FAULTS[next % FAULTS.len()];
        next += 1;
        let number = member(etcd, &mut random);
        begin(fault, number, etcd);
        world.history.count(format!("{fault:?}"));
        let lasts = random.below(longest) + Duration::from_millis(500);
        world.sleep(lasts);
        heal(fault, number, etcd);
    }
}

/// A member; often the one that leads.
fn member(etcd: &Etcd, random: &mut Random) -> usize {
    let any = below(random, 3) as usize + 1;
    if below(random, 2) == 0 { any } else { etcd.find_leader().unwrap_or(any) }
}

fn another(number: usize) -> usize {
    number % 3 + 1
}

fn begin(fault: Fault, number: usize, etcd: &mut Etcd) {
    let member = &etcd.members[number - 1];
    match fault {
        Fault::CutOff => etcd.cut(number),
        Fault::AllCutOff => drop(etcd.lab.host.sh("ip link set nodes down")),
        Fault::Apart => drop_packets(
            etcd,
            number,
            "iifname eth0 ip saddr 10.77.0.0/29",
            "oifname eth0 ip daddr 10.77.0.0/29",
        ),
        Fault::Deaf => {
            drop_packets(etcd, number, "iifname eth0 ip saddr 10.77.0.0/29", "meta mark 1")
        }
        Fault::Mute => {
            drop_packets(etcd, number, "meta mark 1", "oifname eth0 ip daddr 10.78.0.0/24")
        }
        Fault::Lossy => {
            let one_in_five = "numgen random mod 100 < 20";
            drop_packets(
                etcd,
                number,
                &format!("iifname eth0 {one_in_five}"),
                &format!("oifname eth0 {one_in_five}"),
            );
        }
        Fault::Slow => {
            member.sh("tc qdisc add dev eth0 root tbf rate 100kbit burst 2kb latency 2s");
        }
        Fault::Stopped => member.signal(Signal::SIGSTOP),
        Fault::NoMajority => {
            member.signal(Signal::SIGSTOP);
            etcd.members[another(number) - 1].signal(Signal::SIGSTOP);
        }
        Fault::Killed => member.signal(Signal::SIGKILL),
        Fault::LeaderMoved => etcd.move_leader(number),
        Fault::Compacted => compact(etcd, number),
    }
}

fn heal(fault: Fault, number: usize, etcd: &mut Etcd) {
    let member = &etcd.members[number - 1];
    match fault {
        Fault::CutOff => etcd.connect(number),
        Fault::AllCutOff => drop(etcd.lab.host.sh("ip link set nodes up")),
        Fault::Apart | Fault::Deaf | Fault::Mute | Fault::Lossy => {
            member.sh("nft delete table inet faults");
        }
        Fault::Slow => drop(member.sh("tc qdisc del dev eth0 root")),
        Fault::Stopped => member.signal(Signal::SIGCONT),
        Fault::NoMajority => {
            member.signal(Signal::SIGCONT);
            etcd.members[another(number) - 1].signal(Signal::SIGCONT);
        }
        Fault::Killed => etcd.restart(number),
        Fault::LeaderMoved | Fault::Compacted => (),
    }
}

/// Drops what the member receives and what it sends, by these matches.
fn drop_packets(etcd: &Etcd, number: usize, received: &str, sent: &str) {
    etcd.members[number - 1].sh(&format!(
        "nft -f - <<END
         table inet faults {{
             chain received {{ type filter hook input priority 0; {received} drop; }}
             chain sent {{ type filter hook output priority 0; {sent} drop; }}
         }}\nEND"
    ));
}

/// Drops the history up to now. It may have been dropped already, or the members may be in disarray.
fn compact(etcd: &Etcd, number: usize) {
    let script = "export ETCDCTL_API=3 E='etcdctl --command-timeout 2s --endpoints 127.0.0.1:2379'
        at=$($E get /nothing -w fields | sed -n 's/^\"Revision\" : //p'); $E compact $at || true";
    etcd.members[number - 1].sh(script);
}
