//! The cost of one attachment on a busy host: the amount read from the kernel does not grow with
//! the number of links, addresses, routes or rules.

use std::time::Instant;

use serde_json::Value;

use super::networks::{Kernel, Member};
use crate::support::attachment::{Attachment, for_ours, skip};
use crate::support::list::List;
use crate::support::netns::Lab;

/// Creates links, half of them with addresses and routes, source rules, and an nftables table with
/// as many elements, chains and rules.
pub fn populate(lab: &Lab, links: usize) {
    let pairs = links / 2;
    let mut batch = String::new();
    for n in 0..pairs {
        let (high, low) = (n / 250, n % 250 + 1);
        batch += &format!(
            "link add many{n} up type veth peer name twin{n}\naddr add 172.16.{high}.{low}/32 dev many{n}\n\
             addr add 2001:db8:aaaa::{n:x}/128 dev many{n} nodad\nroute add 172.17.{high}.{low}/32 dev many{n}\n"
        );
    }
    let rule = |n| format!("rule add from 172.18.0.{n} table 10{n}\n");
    batch.extend((0..pairs.min(100)).map(rule));
    lab.write("/run/many", batch);
    let element = |n| format!("172.16.{}.{}, ", n / 250, n % 250 + 1);
    let elements: String = (0..pairs).map(element).collect();
    let chains: String =
        (0..pairs).map(|n| format!("chain c{n} {{ ip saddr 172.19.0.1 accept; }}\n")).collect();
    let rules = format!(
        "table inet many {{ set s {{ type ipv4_addr; elements = {{ {elements} }}; }}\n{chains}}}\n"
    );
    lab.write("/run/many.nft", rules);
    let started = Instant::now();
    lab.host.sh("ip -batch /run/many && nft -f /run/many.nft && rm /run/many /run/many.nft");
    eprintln!(
        "FIGURES {links} links, with addresses, routes and rules, were made in {:.1} s",
        started.elapsed().as_secs_f64()
    );
}

/// The bytes that a call receives on sockets.
fn received(lab: &Lab, plugin: &Attachment<'_>, command: &str, result: &Value) -> (u64, Value) {
    let mut call = plugin.call(command, Some(result));
    let strace = "strace -f -qq -e trace=recvfrom,recvmsg -o /run/trace";
    call.wrapper.extend(strace.split(' ').map(str::to_owned));
    let answer = call.run().ok();
    let trace = lab.host.sh("cat /run/trace; rm /run/trace");
    let length = |line: &str| line.rsplit_once(" = ")?.1.split(' ').next()?.parse::<u64>().ok();
    (trace.lines().filter_map(length).sum(), answer)
}

/// The bytes received in each plugin's ADD and DEL.
fn all_received(lab: &Lab, chain: &List<'_>) -> Vec<(String, u64)> {
    let mut all = vec![];
    let mut result = Value::Null;
    let what = |command: &str, plugin: &Attachment<'_>| {
        format!("{command} of {}", plugin.conf["type"].as_str().unwrap())
    };
    for plugin in &chain.0 {
        let (bytes, answer) = received(lab, plugin, "ADD", &result);
        all.push((what("ADD", plugin), bytes));
        result = answer;
    }
    for plugin in chain.0.iter().rev() {
        all.push((what("DEL", plugin), received(lab, plugin, "DEL", &result).0));
    }
    all
}

/// A dump of all links, or of anything else here, is about a hundred thousand bytes. The iptables
/// networks are excluded: iptables is not our program.
#[test]
fn no_add_or_del_reads_more_of_a_host_that_has_more() {
    for_ours("bridge", |lab| {
        if !lab.host.try_sh("strace -qq -o /dev/null true").status.success() {
            return skip("strace");
        }
        let member = Member::new(lab, &Kernel::of(lab), 0);
        member.warm_up();
        let starts_programs =
            |chain: &List<'_>| chain.0.iter().any(|plugin| plugin.conf["backend"] == "iptables");
        let networks = || member.networks.iter().filter(|(_, chain)| !starts_programs(chain));
        let read =
            || networks().flat_map(|(_, chain)| all_received(lab, chain)).collect::<Vec<_>>();
        let before = read();
        populate(lab, 400);
        for ((what, few), (_, many)) in before.into_iter().zip(read()) {
            eprintln!("{what}: {few} bytes, then {many}");
            assert!(
                many <= few + 4096,
                "{what} received {few} bytes, and {many} on a host with 400 links more"
            );
        }
    });
}
