//! Networks of one realm: overlapping ranges, and every address reachable.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Net, subnet};
use crate::support::attachment::ips;
use crate::support::call::Outcome;
use crate::support::scratch::Scratch;

fn address(outcome: &Outcome) -> Option<String> {
    (outcome.status == 0).then(|| ips(&outcome.json())[0].split('/').next().unwrap().to_owned())
}

#[test]
fn overlapping_ranges_share_every_address_and_give_none_twice() {
    let data = Scratch::new();
    let part = json!({"ranges": [[{"subnet": "10.1.0.32/27", "gateway": "10.1.0.1"}]]});
    let nets = [("a", subnet("10.1.0.0/26")), ("b", subnet("10.1.0.0/26")), ("c", part)]
        .map(|(name, ipam)| Net::new(&data, name, ipam));
    let mut given = BTreeSet::new();
    for turn in 0.. {
        let outcomes = nets.each_ref().map(|net| net.try_add(&format!("c{turn}")));
        let found: Vec<String> = outcomes.iter().filter_map(address).collect();
        for ip in &found {
            assert!(given.insert(ip.clone()), "{ip} was given twice");
        }
        if found.is_empty() {
            break;
        }
    }
    // .0, .1 and .63 are the network's, the gateway and the last one of the large range; .32 and .63
    // are no addresses of the small one.
    assert_eq!(given.len(), 61, "{given:?}");
    let leases: usize = nets.iter().map(|net| net.leases().len()).sum();
    assert_eq!(leases, 61);
}

#[test]
fn a_freed_address_goes_to_the_network_that_needs_it() {
    let data = Scratch::new();
    let [a, b] = ["a", "b"].map(|name| Net::new(&data, name, subnet("10.1.0.0/28")));
    for id in 0..13 {
        a.add(&format!("c{id}"));
    }
    assert_eq!(b.try_add("b").err().code, 101);
    a.del("c5");
    assert_eq!(b.add("b"), "10.1.0.7");
    assert_eq!(a.try_add("late").err().code, 101);
    b.del("b");
    assert_eq!(a.add("late"), "10.1.0.7");
    // An address is requested that the other network holds, but does not use.
    a.del("late");
    let wanted = json!({"runtimeConfig": {"ips": ["10.1.0.7"]}});
    let result = b.call_with("ADD", "b", wanted).run().ok();
    assert_eq!(ips(&result), ["10.1.0.7"]);
}

#[test]
fn realms_do_not_know_each_other() {
    let data = Scratch::new();
    let with_realm = |realm: &str| json!({"ranges": [[{"subnet": "10.1.0.0/24"}]], "realm": realm});
    let a = Net::new(&data, "a", with_realm("one"));
    let b = Net::new(&data, "b", with_realm("two"));
    assert_eq!((a.add("x"), b.add("x")), ("10.1.0.2".to_owned(), "10.1.0.2".to_owned()));
    let moved = Net::new(&data, "a", with_realm("two"));
    assert_eq!(moved.add("y"), "10.1.0.3", "the first address is the other network's");
    moved.del("x");
    assert_eq!((a.leases().len(), moved.leases().len()), (0, 1), "DEL knows every realm");
}

#[test]
fn twenty_at_once_in_two_networks_get_different_addresses() {
    let data = Scratch::new();
    let nets = ["a", "b"].map(|name| Net::new(&data, name, subnet("10.1.0.0/27")));
    let calls: Vec<_> = (0..20).map(|id| nets[id % 2].call("ADD", &format!("c{id}"))).collect();
    let children: Vec<_> = calls.iter().map(|call| call.spawn()).collect();
    let outcomes: Vec<Outcome> = children.into_iter().map(Outcome::of).collect();
    let given: BTreeSet<String> = outcomes.iter().filter_map(address).collect();
    assert_eq!(given.len(), 20, "{outcomes:?}");
}

/// The round robin is that of a range: addresses of two ranges in turn are not given again at once.
#[test]
fn networks_with_other_ranges_have_other_turns() {
    let data = Scratch::new();
    let [a, b] = [("a", "10.1.0.0/24"), ("b", "10.2.0.0/24")]
        .map(|(name, range)| Net::new(&data, name, subnet(range)));
    for last in 2..6 {
        for (net, octet) in [(&a, 1), (&b, 2)] {
            assert_eq!(net.add("x"), format!("10.{octet}.0.{last}"));
            net.del("x");
        }
    }
}
