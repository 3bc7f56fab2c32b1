//! Tests of ranges and of sets of them.

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// `subnet start end gateway`, with a dash for a missing field.
fn conf(text: &str) -> RangeConf {
    let mut words = text.split(' ').map(|word| (word != "-").then_some(word));
    let mut next = || words.next().flatten();
    RangeConf {
        subnet: next().map(|text| text.parse().unwrap()),
        range_start: next().map(ip),
        range_end: next().map(ip),
        gateway: next().map(ip),
    }
}

fn range(text: &str) -> Result<Range> {
    Range::new(&conf(text), "r")
}

fn set(texts: &[&str]) -> RangeSet {
    RangeSet::new(&texts.iter().map(|text| conf(text)).collect::<Vec<_>>(), "s").unwrap()
}

#[test]
fn defaults_are_the_reference_s() {
    for (text, start, end, gateway) in [
        ("192.0.2.0/24", "192.0.2.1", "192.0.2.254", "192.0.2.1"),
        ("192.0.2.0/25", "192.0.2.1", "192.0.2.126", "192.0.2.1"),
        ("192.0.2.128/25", "192.0.2.129", "192.0.2.254", "192.0.2.129"),
        ("192.0.2.4/30", "192.0.2.5", "192.0.2.6", "192.0.2.5"),
        ("0.0.0.0/0", "0.0.0.1", "255.255.255.254", "0.0.0.1"),
        ("2001:db8:1::/64", "2001:db8:1::1", "2001:db8:1::ffff:ffff:ffff:ffff", "2001:db8:1::1"),
        ("fd00::/126", "fd00::1", "fd00::3", "fd00::1"),
        ("::/0", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"),
        (
            "192.0.2.0/24 192.0.2.40 192.0.2.50 192.0.2.254",
            "192.0.2.40",
            "192.0.2.50",
            "192.0.2.254",
        ),
        ("192.0.2.0/24 192.0.2.0 192.0.2.255 10.0.0.1", "192.0.2.0", "192.0.2.255", "10.0.0.1"),
    ] {
        let range = range(text).unwrap();
        assert_eq!(
            (range.start, range.end, range.gateway),
            (ip(start), ip(end), ip(gateway)),
            "{text}"
        );
    }
}

#[test]
fn mistakes_name_the_field_the_value_and_the_subnet() {
    for (text, msg) in [
        ("-", "IP <nil> not v4 nor v6; r.subnet: missing, expected a subnet as in 10.1.0.0/16"),
        (
            "192.0.2.0/31",
            "Network 192.0.2.0/31 too small to allocate from; r.subnet: 192.0.2.0/31 is too small, expected at least 4 addresses",
        ),
        (
            "192.0.2.0/32",
            "Network 192.0.2.0/32 too small to allocate from; r.subnet: 192.0.2.0/32 is too small, expected at least 4 addresses",
        ),
        (
            "fd00::/127",
            "Network fd00::/127 too small to allocate from; r.subnet: fd00::/127 is too small, expected at least 4 addresses",
        ),
        (
            "192.0.2.12/24",
            "Network has host bits set. For a subnet mask of length 24 the network address is 192.0.2.0; r.subnet: 192.0.2.12/24 has host bits set, expected 192.0.2.0/24",
        ),
        (
            "10.2.0.0/16 10.1.0.5",
            "RangeStart 10.1.0.5 not in network 10.2.0.0/16; r.rangeStart: 10.1.0.5 is outside subnet 10.2.0.0/16",
        ),
        (
            "10.2.0.0/16 fd00::5",
            "RangeStart fd00::5 not in network 10.2.0.0/16; r.rangeStart: fd00::5 is outside subnet 10.2.0.0/16",
        ),
        (
            "10.2.0.0/16 - 10.3.0.5",
            "RangeEnd 10.3.0.5 not in network 10.2.0.0/16; r.rangeEnd: 10.3.0.5 is outside subnet 10.2.0.0/16",
        ),
        (
            "10.2.0.0/16 10.2.0.9 10.2.0.5",
            "RangeStart 10.2.0.9 not in network 10.2.0.0/16; r.rangeEnd: 10.2.0.5 is before the first address 10.2.0.9",
        ),
        (
            "10.2.0.0/16 - 10.2.0.0",
            "RangeEnd 10.2.0.0 not in network 10.2.0.0/16; r.rangeEnd: 10.2.0.0 is before the first address 10.2.0.1",
        ),
        (
            "10.2.0.0/16 10.2.255.255",
            "r.rangeStart: 10.2.255.255 is after the last address 10.2.255.254",
        ),
    ] {
        let error = range(text).unwrap_err();
        assert_eq!((error.code.0, error.to_string().as_str()), (7, msg), "{text}");
    }
}

#[test]
fn a_range_contains_its_ends_and_nothing_outside() {
    let range = range("192.0.2.0/24 192.0.2.40 192.0.2.50").unwrap();
    for (text, contained) in [
        ("192.0.2.39", false),
        ("192.0.2.40", true),
        ("192.0.2.50", true),
        ("192.0.2.51", false),
        ("192.0.3.45", false),
        ("::192.0.2.45", false),
    ] {
        assert_eq!(range.contains(ip(text)), contained, "{text}");
    }
}

#[test]
fn the_overlap_table_of_the_reference() {
    for (a, b, overlap) in [
        ("10.0.0.0/20", "10.1.0.0/20", false),
        ("10.0.0.0/20", "2001:db8:1::/64", false),
        ("2001:db8:1::/64", "2001:db8:2::/64", false),
        ("10.0.0.0/20", "10.0.0.0/20", true),
        ("10.0.0.0/20", "10.0.8.0/24", true),
        ("2001:db8::/32", "2001:db8:1::/64", true),
        ("10.0.0.0/24 10.0.0.10 10.0.0.50", "10.0.0.0/24 10.0.0.51 10.0.0.60", false),
        ("10.0.0.0/24 10.0.0.10 10.0.0.50", "10.0.0.0/24 10.0.0.50 10.0.0.60", true),
        ("10.0.0.0/24 10.0.0.10 10.0.0.50", "10.0.0.0/24 10.0.0.20 10.0.0.30", true),
    ] {
        let a = range(a).unwrap();
        let b = range(b).unwrap();
        assert_eq!((a.overlaps(&b), b.overlaps(&a)), (overlap, overlap), "{a} {b}");
    }
}

#[test]
fn a_set_has_one_family_and_no_address_twice() {
    for (texts, msg) in [
        (&[][..], "empty range set; s: empty, expected at least one range with a subnet"),
        (
            &["10.0.0.0/24", "fd00::/64"],
            "mixed address families; s[1]: 10.0.0.0/24 and fd00::/64 are of two families",
        ),
        (
            &["10.0.0.0/24", "10.1.0.0/24", "10.0.0.0/16"],
            "subnets 10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.255.254 overlap; s[2]: 10.0.0.1-10.0.255.254 overlaps with 10.0.0.1-10.0.0.254",
        ),
        (
            &["10.0.0.0/24", "10.0.0.1/24"],
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0; s[1].subnet: 10.0.0.1/24 has host bits set, expected 10.0.0.0/24",
        ),
    ] {
        let confs: Vec<RangeConf> = texts.iter().map(|text| conf(text)).collect();
        assert_eq!(RangeSet::new(&confs, "s").unwrap_err().to_string(), msg);
    }
}

#[test]
fn size_is_the_number_of_candidates() {
    for (text, size) in [
        ("192.0.2.0/29", 5),
        ("192.0.2.0/29 192.0.2.2 192.0.2.3", 2),
        ("10.0.1.0/29 10.0.1.4 10.0.1.5 10.0.1.4", 1),
        ("10.0.0.0/29 10.0.0.2 10.0.0.2 10.0.0.2", 0),
    ] {
        assert_eq!(range(text).unwrap().size(), size, "{text}");
        assert_eq!(set(&[text]).candidates(None).count() as u64, size, "{text}");
    }
    assert_eq!(range("fd00::/64").unwrap().size(), u64::MAX - 1);
    assert_eq!(range("::/0 :: - -").unwrap().size(), u64::MAX);
}

fn walk(set: &RangeSet, last: Option<&str>) -> Vec<String> {
    set.candidates(last.map(ip))
        .map(|ip| ip.to_string().rsplit_once(['.', ':']).unwrap().1.to_owned())
        .collect()
}

#[test]
fn candidates_go_round_once_from_the_one_after_the_last() {
    let small = set(&["192.0.2.0/29"]); // .1 is the gateway, .2 to .6
    assert_eq!(walk(&small, None), ["2", "3", "4", "5", "6"]);
    assert_eq!(walk(&small, Some("192.0.2.2")), ["3", "4", "5", "6", "2"]);
    assert_eq!(walk(&small, Some("192.0.2.5")), ["6", "2", "3", "4", "5"]);
    assert_eq!(walk(&small, Some("192.0.2.6")), ["2", "3", "4", "5", "6"]);
    assert_eq!(walk(&small, Some("192.0.2.1")), ["2", "3", "4", "5", "6"]);
    assert_eq!(walk(&small, Some("192.0.3.5")), ["2", "3", "4", "5", "6"]);
}

#[test]
fn candidates_go_through_the_ranges_in_a_circle() {
    let many = set(&[
        "10.0.0.0/29 10.0.0.2 10.0.0.3",
        "10.0.1.0/29 10.0.1.4 10.0.1.5 10.0.1.4",
        "10.0.2.0/29 10.0.2.6",
    ]);
    assert_eq!(walk(&many, None), ["2", "3", "5", "6"]);
    assert_eq!(walk(&many, Some("10.0.0.3")), ["5", "6", "2", "3"]);
    assert_eq!(walk(&many, Some("10.0.2.6")), ["2", "3", "5", "6"]);
    assert_eq!(walk(&many, Some("10.0.1.4")), ["5", "6", "2", "3"]);
}

#[test]
fn a_set_of_only_a_gateway_has_no_candidates_and_keeps_its_end() {
    let gateway = set(&["10.0.0.0/29 10.0.0.2 10.0.0.2 10.0.0.2"]);
    assert!(walk(&gateway, None).is_empty() && walk(&gateway, Some("10.0.0.2")).is_empty());
    let single = set(&["10.0.0.0/29 10.0.0.2 10.0.0.2"]);
    let mut candidates = single.candidates(Some(ip("10.0.0.2")));
    assert_eq!(
        (candidates.next(), candidates.next(), candidates.next()),
        (Some(ip("10.0.0.2")), None, None)
    );
}

#[test]
fn the_ends_of_the_address_space_do_not_overflow() {
    let v6 = set(&[
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe",
    ]);
    assert_eq!(walk(&v6, None), ["fffe", "ffff"]);
    let v4 = set(&["255.255.255.248/29 255.255.255.254 255.255.255.255"]);
    assert_eq!(walk(&v4, None), ["254", "255"]);
    assert_eq!(set(&["::/0"]).candidates(None).next(), Some(ip("::2")));
}

#[test]
fn sets_print_as_in_the_reference() {
    assert_eq!(
        set(&["10.0.0.0/30", "10.1.0.0/30"]).to_string(),
        "10.0.0.1-10.0.0.2,10.1.0.1-10.1.0.2"
    );
}
