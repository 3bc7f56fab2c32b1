//! Tests of the arithmetic on blocks.

use super::super::pool::BlockSize;
use super::*;
use crate::steps::allocation::ranges::{RangeConf, RangeSet};

fn block(prefix: &str) -> Block {
    let net: ipnet::IpNet = prefix.parse().unwrap();
    Block::around(net.addr(), net.prefix_len()).unwrap()
}

fn blocks(prefixes: &[&str]) -> Vec<Block> {
    prefixes.iter().map(|prefix| block(prefix)).collect()
}

fn pool(subnet: &str) -> Pool {
    let conf = RangeConf { subnet: Some(subnet.parse().unwrap()), ..RangeConf::default() };
    let set = RangeSet::new(&[conf], "ranges[0]").unwrap();
    Pool::new(&set, &[], BlockSize::Auto).unwrap()
}

fn text(found: Option<Block>) -> String {
    found.map_or("none".to_owned(), |block| block.prefix().to_string())
}

#[test]
fn a_whole_block_comes_before_a_part_of_one() {
    let pool = pool("10.1.0.0/24"); // blocks of four addresses
    for (claimed, found) in [
        (&[][..], "10.1.0.0/30"),
        (&["10.1.0.0/30"], "10.1.0.4/30"),
        (&["10.1.0.1/32"], "10.1.0.4/30"),
        (&["10.1.0.0/25", "10.1.0.128/26"], "10.1.0.192/30"),
        (&["10.1.0.0/16"], "none"),
        (
            &[
                "10.1.0.0/25",
                "10.1.0.128/26",
                "10.1.0.192/27",
                "10.1.0.224/28",
                "10.1.0.240/29",
                "10.1.0.248/30",
                "10.1.0.253/32",
            ],
            "10.1.0.254/31",
        ),
        (
            &[
                "10.1.0.2/31",
                "10.1.0.4/30",
                "10.1.0.8/29",
                "10.1.0.16/28",
                "10.1.0.32/27",
                "10.1.0.64/26",
                "10.1.0.128/25",
            ],
            "none",
        ),
        (&["10.0.0.0/16", "fd00::/64"], "10.1.0.0/30"),
    ] {
        assert_eq!(text(unclaimed(&pool, &blocks(claimed))), found, "{claimed:?}");
    }
    assert_eq!(text(unclaimed(&self::pool("fd00::/64"), &[])), "fd00::/122");
}

#[test]
fn the_block_around_an_address_is_as_large_as_can_be() {
    let pool = pool("10.1.0.0/24");
    let ip = "10.1.0.130".parse().unwrap();
    for (claimed, found) in [
        (&[][..], "10.1.0.128/30"),
        (&["10.1.0.128/32"], "10.1.0.130/31"),
        (&["10.1.0.131/32"], "10.1.0.130/32"),
        (&["10.1.0.130/32"], "none"),
        (&["10.1.0.0/16"], "none"),
    ] {
        let claimed = blocks(claimed);
        assert_eq!(text(unclaimed_around(&pool, ip, &claimed)), found, "{claimed:?}");
        let mut disjoint = Disjoint::new(claimed.iter().rev().copied());
        assert_eq!(text(disjoint.claim_around(&pool, ip)), found, "{claimed:?}");
        assert_eq!(disjoint.claim_around(&pool, ip), None, "it is claimed now");
        let is_free = found == "none" && !claimed.iter().any(|block| block.contains(ip));
        assert_eq!(disjoint.has(ip), !is_free, "{claimed:?}");
    }
}

#[test]
fn the_largest_part_without_a_lease_is_given_up() {
    let pool = pool("10.1.0.0/24");
    for (held, leases, found) in [
        ("10.1.0.0/26", &[][..], "10.1.0.0/26"),
        ("10.1.0.0/26", &["10.1.0.9"], "10.1.0.32/27"),
        ("10.1.0.0/26", &["10.1.0.9", "10.1.0.40"], "10.1.0.16/28"),
        ("10.1.0.8/31", &["10.1.0.9"], "10.1.0.8/32"),
        ("10.1.0.8/31", &["10.1.0.9", "10.1.0.8"], "none"),
        ("10.1.0.0/31", &[], "none"), // the network's address and the gateway
    ] {
        let leased = Leased::new(leases.iter().map(|ip| ip.parse().unwrap()));
        assert_eq!(text(unused(block(held), &pool, &leased)), found, "{held} {leases:?}");
    }
}

#[test]
fn a_block_is_its_parts_and_pairs_are_blocks() {
    let rest = rest(block("10.1.0.0/28"), block("10.1.0.4/30"));
    let texts: Vec<String> = rest.iter().map(|block| block.prefix().to_string()).collect();
    assert_eq!(texts, ["10.1.0.8/29", "10.1.0.0/30"]);
    let all = [&rest[..], &[block("10.1.0.4/30"), block("10.1.0.32/30")]].concat();
    let mut merged = merged(all);
    merged.sort_unstable();
    assert_eq!(merged, blocks(&["10.1.0.0/28", "10.1.0.32/30"]));
}

#[test]
fn the_round_robin_continues_after_the_last_address() {
    let spans: Vec<Span> =
        ["10.1.0.8-10.1.0.9", "10.1.0.2-10.1.0.4"].map(|text| text.parse().unwrap()).to_vec();
    for (last, order) in [
        (None, [2, 3, 4, 8, 9]),
        (Some("10.1.0.2"), [3, 4, 8, 9, 2]),
        (Some("10.1.0.4"), [8, 9, 2, 3, 4]),
        (Some("10.1.0.6"), [8, 9, 2, 3, 4]),
        (Some("10.1.0.9"), [2, 3, 4, 8, 9]),
    ] {
        let last = last.map(|last: &str| last.parse().unwrap());
        let found: Vec<String> = candidates(spans.clone(), last).map(|ip| ip.to_string()).collect();
        assert_eq!(found, order.map(|number| format!("10.1.0.{number}")), "{last:?}");
    }
}
