//! The translation, with configurations in the shape of the original's pages and tests.

use std::os::unix::fs::MetadataExt as _;

use super::super::cluster_local::conf as shared;
use super::conf::Conf;
use crate::cni::conf::Config;
use crate::cni::env::Environment;
use crate::error::Error;
use crate::plugin::{Context, PluginConf as _};
use crate::scratch::Scratch;

/// The configuration with these members of `ipam`, and CNI_ARGS.
fn with_args(members: &str, args: &str) -> Result<Conf, Error> {
    let separator = if members.is_empty() { "" } else { "," };
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"n","ipam":{{"type":"whereabouts"{separator}{members}}}}}"#
    );
    let config = Config::parse(text.into_bytes()).unwrap();
    let env = Environment::default();
    let mut conf = Conf::default();
    conf.validate(&Context::new(&[], &config, &env, args, vec![])).map(|()| conf)
}

fn of(members: &str) -> Result<Conf, Error> {
    with_args(members, "")
}

/// The allocatable addresses of each set.
fn spans(members: &str) -> String {
    let conf = of(members).unwrap();
    let pools = conf.parts[0].terms.pools.iter();
    let texts = pools.map(|pool| {
        let spans: Vec<String> = pool.spans().iter().map(ToString::to_string).collect();
        spans.join(" ")
    });
    texts.collect::<Vec<_>>().join("; ")
}

fn single(range: &str, start: &str, end: &str) -> String {
    spans(&format!(r#""range":"{range}","range_start":"{start}","range_end":"{end}""#))
}

/// What the original's unit tests expect of the same ranges.
#[test]
fn first_and_last_addresses_are_those_of_the_original() {
    for (range, start, end, expected) in [
        ("192.168.2.225/28", "", "", "192.168.2.225-192.168.2.238"),
        ("192.168.21.100/30", "", "", "192.168.21.101-192.168.21.102"),
        ("192.168.2.200/24", "192.168.2.23", "", "192.168.2.23-192.168.2.254"),
        ("192.168.2.200/27", "", "", "192.168.2.193-192.168.2.222"),
        ("10.0.0.0/24", "10.0.0.10", "10.0.0.200", "10.0.0.10-10.0.0.200"),
        ("10.0.0.0/24", "10.0.1.1", "", "10.0.0.1-10.0.0.254"),
        ("10.0.0.0/24", "", "10.0.1.1", "10.0.0.1-10.0.0.254"),
        ("10.0.0.0/24", "10.0.0.0", "10.0.0.255", "10.0.0.1-10.0.0.254"),
        ("10.0.0.0/24", "10.0.0.100", "10.0.0.99", "10.0.0.100-10.0.0.254"),
        ("10.0.0.0/24", "fd00::1", "", "10.0.0.1-10.0.0.254"),
        ("010.000.0.00/24", "10.00.0.010", "", "10.0.0.10-10.0.0.254"),
        ("0.0.0.0/0", "", "", "0.0.0.1-255.255.255.254"),
        ("255.255.255.252/30", "", "", "255.255.255.253-255.255.255.254"),
        ("2001::0/116", "", "", "2001::1-2001::ffe"),
        ("fd:db8:abcd:0012::0/96", "", "", "fd:db8:abcd:12::1-fd:db8:abcd:12::ffff:fffe"),
        ("100::2:1/126", "", "", "100::2:1-100::2:2"),
        ("::1/126", "", "", "::1-::2"),
        ("::/0", "", "", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"),
        ("::ffff:10.0.0.0/120", "", "", "10.0.0.1-10.0.0.254"),
        ("192.168.1.5-192.168.1.25/24", "", "", "192.168.1.5-192.168.1.25"),
        ("192.168.1.5-192.168.1.25/24", "192.168.1.9", "192.168.1.10", "192.168.1.5-192.168.1.25"),
        ("192.168.1.0-192.168.1.255/24", "", "", "192.168.1.1-192.168.1.254"),
        ("192.168.1.25-192.168.1.5/24", "", "", "192.168.1.25-192.168.1.254"),
        ("fd00::5-fd00::9/64", "", "", "fd00::5-fd00::9"),
    ] {
        assert_eq!(single(range, start, end), expected, "{range} {start} {end}");
    }
}

#[test]
fn exclusions_are_subnets_with_any_host_bits_and_addresses() {
    let excluding =
        |range: &str, list: &str| spans(&format!(r#""range":"{range}","exclude":[{list}]"#));
    let of_readme = excluding("192.168.2.225/28", r#""192.168.2.229/30","192.168.2.236/32""#);
    assert_eq!(
        of_readme,
        "192.168.2.225-192.168.2.227 192.168.2.232-192.168.2.235 192.168.2.237-192.168.2.238"
    );
    assert_eq!(
        excluding("192.168.0.0/29", r#""192.168.0.0/30","192.168.0.06""#),
        "192.168.0.4-192.168.0.5"
    );
    assert_eq!(
        excluding(
            "192.168.0.0/28",
            r#""192.168.0.0/30","192.168.0.6/31","192.168.0.8/31","192.168.0.4/30""#
        ),
        "192.168.0.10-192.168.0.14"
    );
    assert_eq!(excluding("100::2:1/125", r#""100::2:1/126""#), "100::2:4-100::2:6");
}

#[test]
fn each_range_is_a_set_and_range_comes_first() {
    let members = r#""ipRanges":[{"range":"192.168.10.1/24","exclude":["192.168.10.0/25"]},
        {"range":"176.168.10.1/16","range_start":"176.168.200.1","range_end":"176.168.200.2"}],
        "range":"abcd::1/64","exclude":["abcd::/65"]"#;
    assert_eq!(
        spans(members),
        "abcd::8000:0:0:0-abcd::ffff:ffff:ffff:fffe; 192.168.10.128-192.168.10.254; 176.168.200.1-176.168.200.2"
    );
}

#[test]
fn the_gateway_is_of_one_family_and_never_allocated() {
    let members =
        r#""range":"10.1.0.0/29","ipRanges":[{"range":"fd00::/64"}],"gateway":"10.1.0.1""#;
    assert_eq!(spans(members), "10.1.0.2-10.1.0.6; fd00::1-fd00::ffff:ffff:ffff:fffe");
    let conf = of(members).unwrap();
    assert_eq!(conf.gateway_of("10.1.0.2/29".parse().unwrap()), Some("10.1.0.1".parse().unwrap()));
    assert_eq!(conf.gateway_of("fd00::1/64".parse().unwrap()), None);
    let outside = r#""range":"192.168.2.225/28","gateway":"192.168.2.1""#;
    assert_eq!(spans(outside), "192.168.2.225-192.168.2.238");
}

#[test]
fn assigned_addresses_come_from_configuration_and_arguments() {
    let members = r#""range":"10.1.0.0/29","addresses":[{"address":"10.1.0.3/29"},
        {"address":"10.9.0.3/24","gateway":"10.9.0.1"}]"#;
    let args =
        "IP=10.1.0.5/29,fd00::5/64;GATEWAY=10.1.0.6;K8S_POD_NAME=till;K8S_POD_NAMESPACE=shop";
    let conf = with_args(members, args).unwrap();
    let words: Vec<String> =
        conf.assigned.iter().map(|ip| format!("{} {:?}", ip.address, ip.gateway)).collect();
    assert_eq!(
        words,
        [
            "10.1.0.3/29 Some(10.1.0.6)",
            "10.9.0.3/24 Some(10.9.0.1)",
            "10.1.0.5/29 Some(10.1.0.6)",
            "fd00::5/64 None"
        ]
    );
    let pool = &conf.parts[0].terms.pools[0];
    let left: Vec<String> = pool.spans().iter().map(ToString::to_string).collect();
    assert_eq!(left.join(" "), "10.1.0.1-10.1.0.2 10.1.0.4-10.1.0.4 10.1.0.6-10.1.0.6");
}

#[test]
fn network_name_and_ranges_make_the_realm() {
    let realm = |members: &str| {
        let conf = of(&format!(r#""range":"10.1.2.3/24"{members}"#)).unwrap();
        conf.parts[0].terms.realm.as_str().to_owned()
    };
    assert_eq!(realm(""), "default");
    assert_eq!(realm(r#","enable_overlapping_ranges":true"#), "default");
    assert_eq!(realm(r#","network_name":"blue""#), "blue");
    assert_eq!(realm(r#","network_name":"Blue Net_1/x""#), "blue-net-1-x");
    assert_eq!(realm(r#","enable_overlapping_ranges":false"#), "default.range-10.1.2.0-24");
    let both = r#","network_name":"blue","enable_overlapping_ranges":false"#;
    assert_eq!(realm(both), "blue.range-10.1.2.0-24");
    let v6 = of(r#""range":"::1/64","enable_overlapping_ranges":false"#).unwrap();
    assert_eq!(v6.parts[0].terms.realm.as_str(), "default.range----64");
}

/// Ranges of one subnet are in one realm; in a cluster all of a network are.
#[test]
fn ranges_that_may_overlap_are_in_realms_of_their_own() {
    let parts = |scope: &str, network: &str, ranges: [&str; 2]| {
        let [first, second] = ranges;
        let conf = of(&format!(
            r#""range":"{first}","ipRanges":[{{"range":"{second}"}}],"scope":"{scope}",
            "network_name":"{network}","enable_overlapping_ranges":false"#
        ));
        let of_part = |part: &shared::Conf| {
            let counts = (part.allocation.sets.len(), part.terms.pools.len());
            (part.terms.realm.to_string(), counts)
        };
        conf.unwrap().parts.iter().map(of_part).collect::<Vec<_>>()
    };
    let ranges = ["10.1.2.0/24", "fd00::/64"];
    let expected = ["default.range-10.1.2.0-24", "default.range-fd00---64"];
    assert_eq!(parts("machine", "", ranges), expected.map(|realm| (realm.to_owned(), (1, 1))));
    let halves = ["10.1.2.1-10.1.2.99/24", "10.1.2.101-10.1.2.200/24"];
    assert_eq!(parts("machine", "", halves), [(expected[0].to_owned(), (2, 2))]);
    let common = parts("cluster", "", ranges);
    assert!(common[0].0.starts_with("default.ranges-") && common[0].1 == (2, 2), "{common:?}");
    assert_eq!(parts("cluster", "default", ["fd00::/64", "10.1.2.0/24"]), common);
    assert_ne!(parts("cluster", "", ["10.1.2.0/24", "fd01::/64"]), common);
    let long = ["a", "b"].map(|end| parts("cluster", &format!("{}{end}", "n".repeat(62)), ranges));
    assert!(long[0] != long[1] && long.iter().all(|it| it[0].0.len() == 63), "{long:?}");
}

#[test]
fn a_slice_is_the_size_of_blocks() {
    let length = |members: &str| {
        let conf = of(members).unwrap();
        conf.parts[0]
            .terms
            .pools
            .iter()
            .map(super::super::cluster_local::pool::Pool::length)
            .collect::<Vec<_>>()
    };
    for (range, slice, expected) in [
        ("10.5.0.0/20", "/24", 26),
        ("10.5.0.0/20", "26", 26),
        ("10.5.0.0/20", "/27", 29),
        ("10.5.0.0/20", "/29", 29),
        ("10.5.0.0/20", "/30", 32),
        ("10.5.0.0/20", "/32", 32),
        ("fd00::/112", "/120", 122),
        ("fd00::/112", "/124", 125),
        ("10.5.0.0/16", "", 29),
    ] {
        let members = format!(r#""range":"{range}","node_slice_size":"{slice}""#);
        assert_eq!(length(&members), [expected], "{members}");
    }
}

#[test]
fn each_mistake_names_path_value_and_expectation() {
    for (members, expected) in [
        ("", "ipam.range: there is none, expected a subnet as in 10.1.0.0/16, or ipam.ipRanges"),
        (
            r#""range":"10.1.0.0""#,
            r#"ipam.range: "10.1.0.0" is not a range, expected a subnet as in 10.1.0.0/16, or a range as in"#,
        ),
        (r#""range":"10.1.0.9-x/16""#, r#"ipam.range: "10.1.0.9-x/16" is not a range"#),
        (
            r#""range":"10.2.0.9-10.1.0.99/16""#,
            "ipam.range: 10.2.0.9 is outside subnet 10.1.0.0/16",
        ),
        (
            r#""range":"10.1.0.0/31""#,
            "ipam.range: 10.1.0.0/31 is too small, expected at least 4 addresses",
        ),
        (r#""ipRanges":[{"range":"10.1.0.0/16"},{}]"#, "ipam.ipRanges[1].range: missing"),
        (
            r#""ipRanges":[{"range":"fd00::/127"}]"#,
            "ipam.ipRanges[0].range: fd00::/127 is too small",
        ),
        (
            r#""ipRanges":[{"range":"10.1.0.0/16","range_end":"x"}]"#,
            r#"ipam.ipRanges[0].range_end: "x" is not an IP address, expected one as in 10.1.0.9 or fd00::9"#,
        ),
        (
            r#""range":"10.1.0.0/16","range_start":"10.1.0.256""#,
            r#"ipam.range_start: "10.1.0.256" is not an IP address"#,
        ),
        (
            r#""range":"10.1.0.0/16","exclude":["10.1.0.1","a"]"#,
            r#"ipam.exclude[1]: "a" is neither an address nor a subnet"#,
        ),
        (
            r#""range":"10.1.0.0/16","exclude":["10.1.0.0/16"]"#,
            "ipam.exclude: every address of 10.1.0.1-10.1.255.254 is excluded",
        ),
        (
            r#""range":"10.1.0.0/16","ipRanges":[{"range":"10.1.9.0/24"}]"#,
            "ipam.ipRanges[0]: 10.1.9.1-10.1.9.254 overlaps with 10.1.0.1-10.1.255.254 of ipam",
        ),
        (
            r#""range":"10.1.0.0/16","gateway":"router""#,
            r#"ipam.gateway: "router" is not an IP address"#,
        ),
        (r#""range":"10.1.0.0/16","network_name":"_""#, "ipam.network_name: "),
        (
            r#""range":"10.1.0.0/16","node_slice_size":"/15""#,
            r#"ipam.node_slice_size: "/15" is no slice of 10.1.0.0/16, expected a prefix length from /16 to /32"#,
        ),
        (
            r#""range":"10.1.0.0/16","node_slice_size":"many""#,
            "ipam.node_slice_size: \"many\" is no slice",
        ),
        (
            r#""range":"10.1.0.0/16","addresses":[{"address":"10.1.0.1"}]"#,
            "ipam.addresses[0].address: \"10.1.0.1\" is not understood",
        ),
        (r#""range":"10.1.0.0/16","enable_l3":true"#, "ipam.enable_l3: true is not supported"),
        (
            r#""range":"10.1.0.0/16","configuration_path":"whereabouts.conf""#,
            r#"ipam.configuration_path: "whereabouts.conf" is not absolute"#,
        ),
        (r#""range":7"#, "ipam.range: "),
    ] {
        let error = of(members).unwrap_err();
        let text = if error.msg.starts_with("ipam") { error.msg.clone() } else { error.details() };
        assert!(text.starts_with(expected), "{members}: {error:?}");
    }
    let args = with_args(r#""range":"10.1.0.0/16""#, "IP=10.1.0.1").unwrap_err();
    assert!(args.msg.contains("CIDR notation, got: '10.1.0.1'"), "{args:?}");
}

#[test]
fn a_flat_file_supplies_what_is_not_written() {
    let dir = Scratch::new();
    dir.write(
        "flat.conf",
        r#"{"type":"other","range":"10.7.0.0/16","gateway":"10.7.0.1","exclude":["10.7.0.0/24"],"log_file":"/x",
            "dns":{"domain":"flat","nameservers":["10.7.0.2"]},"network_name":"flat","enable_overlapping_ranges":false,
            "kubernetes":{"kubeconfig":"/x"}}"#,
    );
    let path = dir.path().join("flat.conf");
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), 0, "the tests run as root");
    let with = |members: &str| {
        of(&format!(r#""configuration_path":"{}"{members}"#, path.display())).unwrap()
    };
    let conf = with("");
    assert_eq!(conf.parts[0].allocation.sets[0].to_string(), "10.7.0.1-10.7.255.254");
    assert_eq!(conf.parts[0].terms.pools[0].spans()[0].to_string(), "10.7.1.0-10.7.255.254");
    assert_eq!(conf.parts[0].terms.realm.as_str(), "flat.range-10.7.0.0-16");
    let own = with(
        r#","range":"10.8.0.0/16","gateway":"","exclude":[],"network_name":"own","dns":{"domain":"own"},
            "enable_overlapping_ranges":true"#,
    );
    assert_eq!(own.parts[0].allocation.sets[0].to_string(), "10.8.0.1-10.8.255.254");
    assert_eq!(own.gateway_of("10.8.0.9/16".parse().unwrap()), Some("10.7.0.1".parse().unwrap()));
    assert_eq!(own.parts[0].terms.realm.as_str(), "own");
    assert_eq!((own.dns.domain.as_str(), own.dns.nameservers.len()), ("own", 1));
}

#[test]
fn a_missing_flat_file_is_none_and_a_wrong_one_is_refused() {
    let dir = Scratch::new();
    let with = |path: &str| of(&format!(r#""range":"10.1.0.0/16","configuration_path":"{path}""#));
    let place = |name: &str| dir.path().join(name).display().to_string();
    assert!(with(&place("absent")).is_ok());
    assert!(with(&place("absent/absent")).is_ok());
    dir.write("torn", "{\"range\":");
    dir.write("list", "[]");
    dir.write("large", &" ".repeat((1 << 20) + 1));
    dir.write("of-another", "{}");
    std::os::unix::fs::chown(dir.path().join("of-another"), Some(7), None).unwrap();
    std::os::unix::fs::symlink(dir.path().join("list"), dir.path().join("link")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, reason) in [
        ("torn", "it is not JSON"),
        ("list", "expected an object, found array"),
        ("large", "file too large"),
        ("of-another", "it belongs to uid 7"),
        ("link", "not a regular file"),
        ("fifo", "not a regular file"),
        ("", "not a regular file"),
    ] {
        let error = with(&place(name)).unwrap_err();
        let start = format!("ipam.configuration_path: {:?} cannot be read: ", place(name));
        assert!(error.msg.starts_with(&start) && error.msg.contains(reason), "{:?}", error.msg);
        assert!(error.msg.contains("expected a JSON object in a regular file of root"));
    }
    dir.write("wrong", r#"{"gateway":"router"}"#);
    let error = with(&place("wrong")).unwrap_err();
    assert!(error.msg.starts_with("ipam.gateway: \"router\""), "{error:?}");
    assert!(error.details().contains(&place("wrong")), "{error:?}");
}

#[test]
fn results_of_old_versions_have_one_address_of_each_family() {
    let valid = |version: &str, members: &str| {
        let text = format!(
            r#"{{"cniVersion":"{version}","name":"n","ipam":{{"type":"whereabouts","range":"10.1.0.0/16",{members}}}}}"#
        );
        let config = Config::parse(text.into_bytes()).unwrap();
        let env = Environment::default();
        Conf::default().validate(&Context::new(&[], &config, &env, "", vec![]))
    };
    let static_too = r#""addresses":[{"address":"10.9.0.1/16"}]"#;
    assert!(valid("0.2.0", r#""ipRanges":[{"range":"fd00::/64"}]"#).is_ok());
    assert!(valid("0.3.0", static_too).is_ok());
    let error = valid("0.2.0", static_too).unwrap_err();
    assert!(error.msg.contains("does not support more than 1 address per family"), "{error:?}");
}
