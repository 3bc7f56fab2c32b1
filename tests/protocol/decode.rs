//! Configurations are decoded as Go decodes them, and an undecodable value is named by its path.

use serde_json::json;

use super::{assert_error, conf, static_conf};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::peers;
use crate::support::scratch::Scratch;
use crate::support::table::cells;

peers! {
    what_is_not_one_json_object_is_refused,
    null_is_an_empty_configuration,
    white_space_around_the_configuration_is_fine,
    keys_match_in_any_case,
    last_duplicate_wins_whatever_its_spelling,
    null_is_absent,
    unknown_keys_are_ignored,
    wrong_type_is_a_decoding_error_with_its_path,
    text_that_does_not_parse_is_an_error_with_its_path,
    invalid_range_is_a_configuration_error_with_its_path,
    integers_beyond_a_double_are_exact,
    invalid_unicode_is_replaced,
    deep_nesting_ends_in_an_answer,
    null_in_a_list_ends_in_an_answer,
}

fn add(peer: &Peer, plugin: &str, conf: impl AsRef<[u8]>) -> Outcome {
    Call::new(peer, plugin, "ADD", conf).run()
}

fn what_is_not_one_json_object_is_refused(peer: &Peer) {
    let valid = static_conf("1.1.0");
    for text in [
        "",
        " \n",
        "x",
        "{",
        "}",
        "[]",
        "[{}]",
        "5",
        "true",
        r#""text""#,
        "{}x",
        "{} {}",
        "{}\u{0}",
        "nul",
        "{'name':'net-1'}",
        "{name:\"net-1\"}",
        r#"{"name":"net-1",}"#,
        r#"{"name" "net-1"}"#,
        r#"{"name":"net-1"} // a comment"#,
        r#"/* a comment */ {"name":"net-1"}"#,
        r#"{"name":"net-1","n":01}"#,
        r#"{"name":"net-1","n":+1}"#,
        r#"{"name":"net-1","n":.5}"#,
        r#"{"name":"net-1","n":NaN}"#,
        r#"{"name":"net-1","l":[1,]}"#,
        r#"{"name":"net-1","s":"\x"}"#,
        r#"{"name":"net-1","s":"\u12"}"#,
        r#"{"name":"net-1","s":"#,
        "{\"name\":\"net-1\",\"s\":\"a\nb\"}",
        &format!("\u{feff}{valid}"),
        &format!("{valid}{valid}"),
        &valid[..valid.len() - 1],
    ] {
        for command in ["ADD", "CHECK", "DEL", "GC", "STATUS"] {
            let outcome = Call::new(peer, "static", command, text).run();
            let error = outcome.err();
            assert_eq!((outcome.status, error.code), (1, 6), "{text:?}: {outcome:?}");
            assert_ne!(error.msg, "");
            let is_json = serde_json::from_str::<serde_json::Value>(text).is_ok();
            if *peer == Peer::Ours && !is_json {
                assert_eq!(
                    outcome.json()["cniVersion"],
                    "1.1.0",
                    "what cannot be read has no version: {text:?}"
                );
            }
        }
    }
}

fn null_is_an_empty_configuration(peer: &Peer) {
    let outcome = add(peer, "static", "null");
    assert_error(peer, &outcome, "0.1.0", 7, "missing network name", "");
}

fn white_space_around_the_configuration_is_fine(peer: &Peer) {
    add(peer, "static", format!(" \t\r\n{}\n\n ", static_conf("1.1.0"))).ok();
}

fn keys_match_in_any_case(peer: &Peer) {
    let everything = json!({
        "cniVersion": "1.1.0",
        "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}],
        "routes": [{"dst": "10.0.0.0/8", "gw": "10.1.2.9", "mtu": 1400}],
        "dns": {"nameservers": ["1.1.1.1"], "domain": "a.example"},
    });
    for spell in [str::to_owned, str::to_uppercase, capitalised] as [fn(&str) -> String; 3] {
        // `static` decodes a key spelled exactly `Address` into something else, so this key keeps
        // its case.
        let conf = format!(
            r#"{{"{}":"1.1.0","{}":"net-1","{}":{{"type":"static",
                "{}":[{{"address":"10.1.2.3/24","{}":"10.1.2.1"}}],
                "{}":[{{"{}":"10.0.0.0/8","{}":"10.1.2.9","{}":1400}}],
                "{}":{{"{}":["1.1.1.1"],"{}":"a.example"}}}}}}"#,
            spell("cniVersion"),
            spell("name"),
            spell("ipam"),
            spell("addresses"),
            spell("gateway"),
            spell("routes"),
            spell("dst"),
            spell("gw"),
            spell("mtu"),
            spell("dns"),
            spell("nameservers"),
            spell("domain"),
        );
        assert_eq!(add(peer, "static", &conf).ok(), everything, "{conf}");

        for (name, value) in [
            ("runtimeConfig", r#"{"IPS":["10.7.7.7/24"]}"#),
            ("args", r#"{"CNI":{"Ips":["10.7.7.7/24"]}}"#),
        ] {
            let conf =
                static_conf("1.1.0").replacen('{', &format!(r#"{{"{}":{value},"#, spell(name)), 1);
            let added = add(peer, "static", &conf).ok();
            assert_eq!(added["ips"][0]["address"], "10.7.7.7/24", "{conf}");
        }

        let data = Scratch::new();
        let conf = format!(
            r#"{{"cniVersion":"1.1.0","name":"net-1","{}":{{"{}":"{}",
                "{}":[[{{"{}":"10.1.2.0/24","{}":"10.1.2.10","{}":"10.1.2.11","{}":"10.1.2.254"}}]]}}}}"#,
            spell("ipam"),
            spell("dataDir"),
            data.text(),
            spell("ranges"),
            spell("subnet"),
            spell("rangeStart"),
            spell("rangeEnd"),
            spell("gateway"),
        );
        let ips = json!([{"address": "10.1.2.10/24", "gateway": "10.1.2.254"}]);
        assert_eq!(add(peer, "host-local", &conf).ok()["ips"], ips, "{conf}");
        assert!(data.join("net-1/10.1.2.10").exists());
    }
}

fn capitalised(key: &str) -> String {
    let (head, tail) = key.split_at(1);
    head.to_uppercase() + tail
}

fn last_duplicate_wins_whatever_its_spelling(peer: &Peer) {
    let ipam = r#""ipam":{"type":"static","addresses":[{"address":"10.1.2.3/24"}]}"#;
    for (versions, wins) in [
        (r#""cniVersion":"1.0.0","CNIVersion":"0.4.0""#, "0.4.0"),
        (r#""CNIVersion":"0.4.0","cniVersion":"1.0.0""#, "1.0.0"),
        (r#""cniVersion":"1.0.0","cniVersion":"0.4.0""#, "0.4.0"),
        (r#""CNIVERSION":"9.9.9","cniversion":"1.1.0""#, "1.1.0"),
        (r#""cniVersion":"1.0.0","cniVersion":null"#, "1.0.0"),
    ] {
        let result = add(peer, "static", format!(r#"{{{versions},"name":"net-1",{ipam}}}"#)).ok();
        assert_eq!(result["cniVersion"], wins, "{versions}");
    }
    let names = r#""name":"te%%st","NAME":"net-1""#;
    add(peer, "static", format!(r#"{{"cniVersion":"1.1.0",{names},{ipam}}}"#)).ok();

    let twice = r#"[{"address":"10.1.2.3/24","gateway":"10.1.2.1","GATEWAY":"10.1.2.2"}]"#;
    let conf = format!(
        r#"{{"cniVersion":"1.1.0","name":"net-1","ipam":{{"type":"static","addresses":{twice}}}}}"#
    );
    assert_eq!(add(peer, "static", conf).ok()["ips"][0]["gateway"], "10.1.2.2");
}

fn null_is_absent(peer: &Peer) {
    let conf = r#"{"cniVersion":"1.1.0","name":"net-1","args":null,"runtimeConfig":null,"prevResult":null,"dns":null,
        "capabilities":null,"ipam":{"type":null,"routes":null,"dns":null,
        "addresses":[{"address":"10.1.2.3/24","gateway":null}]}}"#;
    let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.3/24"}]});
    assert_eq!(add(peer, "static", conf).ok(), result);

    let data = Scratch::new();
    let conf = format!(
        r#"{{"cniVersion":"1.1.0","name":"net-1","runtimeConfig":{{"ips":null,"ipRanges":null}},"args":{{"cni":null}},
        "ipam":{{"type":"host-local","subnet":"10.1.2.0/24","rangeStart":null,"rangeEnd":null,"gateway":null,
        "ranges":null,"routes":null,"resolvConf":null,"dataDir":"{}"}}}}"#,
        data.text()
    );
    assert_eq!(add(peer, "host-local", conf).ok()["ips"][0]["address"], "10.1.2.2/24");
}

fn unknown_keys_are_ignored(peer: &Peer) {
    let conf = r#"{"cniVersion":"1.1.0","name":"net-1","x":{"deep":[1,{"y":null}]},"":"",
        "cni.dev/valid-attachments":[],"cni.dev/attachments":null,"capabilities":{"ips":true},
        "ipam":{"type":"static","x":1e300,"addresses":[{"address":"10.1.2.3/24","x":[]}],"routes":[{"dst":"::/0","x":true}]}}"#;
    let ips = json!([{"address": "10.1.2.3/24"}]);
    let result = json!({"cniVersion": "1.1.0", "ips": ips, "routes": [{"dst": "::/0"}]});
    assert_eq!(add(peer, "static", conf).ok(), result);
}

fn with_keys(keys: &str) -> String {
    conf("1.1.0").replacen('}', &format!(",{keys}}}"), 1)
}

/// A row has the plugin, the command, the keys in addition to `cniVersion` and `name`, and the path of the mistake.
fn wrong_type_is_a_decoding_error_with_its_path(peer: &Peer) {
    const WRONG: &str = r#"
static | ADD | "name":5 | name
static | ADD | "name":{} | name
static | ADD | "cniVersion":5 | cniVersion
static | CHECK | "cniVersion":["1.1.0"] | cniVersion
static | ADD | "ipam":5 | ipam
static | ADD | "ipam":[] | ipam
static | ADD | "ipam":{"addresses":{}} | ipam.addresses
static | ADD | "ipam":{"addresses":[5]} | ipam.addresses[0]
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.3/24"},{"address":5}]} | ipam.addresses[1].address
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.3/24","gateway":5}]} | ipam.addresses[0].gateway
static | ADD | "IPAM":{"Routes":[{"DST":5}]} | ipam.routes[0].dst
static | ADD | "ipam":{"routes":[{"dst":"::/0"},{"dst":"::/0","mtu":"1400"}]} | ipam.routes[1].mtu
static | ADD | "ipam":{"routes":[{"dst":"::/0","mtu":1400.0}]} | ipam.routes[0].mtu
static | ADD | "ipam":{"routes":[{"dst":"::/0","advmss":1e3}]} | ipam.routes[0].advmss
static | ADD | "ipam":{"routes":[{"dst":"::/0","table":"main"}]} | ipam.routes[0].table
static | ADD | "ipam":{"routes":[{"dst":"::/0","priority":18446744073709551616}]} | ipam.routes[0].priority
static | ADD | "ipam":{"dns":{"nameservers":"1.1.1.1"}} | ipam.dns.nameservers
static | ADD | "ipam":{"dns":{"search":["a",5]}} | ipam.dns.search[1]
static | ADD | "ipam":{},"runtimeConfig":{"ips":"10.1.2.3/24"} | runtimeConfig.ips
static | ADD | "ipam":{},"args":{"cni":{"ips":[5]}} | args.cni.ips[0]
host-local | ADD | "ipam":{"ranges":{}} | ipam.ranges
host-local | ADD | "ipam":{"ranges":[{"subnet":"10.1.2.0/24"}]} | ipam.ranges[0]
host-local | ADD | "ipam":{"ranges":[[{"subnet":5}]]} | ipam.ranges[0][0].subnet
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24","rangeStart":5}]]} | ipam.ranges[0][0].rangeStart
host-local | ADD | "ipam":{"subnet":["10.1.2.0/24"]} | ipam.subnet
host-local | ADD | "ipam":{"subnet":"10.1.2.0/24","dataDir":5} | ipam.dataDir
host-local | ADD | "ipam":{"subnet":"10.1.2.0/24","resolvConf":false} | ipam.resolvConf
host-local | ADD | "ipam":{"subnet":"10.1.2.0/24"},"runtimeConfig":{"ipRanges":[5]} | runtimeConfig.ipRanges[0]
bridge | STATUS | "mtu":"1500" | mtu
bridge | STATUS | "mtu":1.5 | mtu
bridge | STATUS | "isGateway":"true" | isGateway
bridge | STATUS | "IPMASQ":1 | ipMasq
bridge | STATUS | "bridge":5 | bridge
bridge | STATUS | "vlan":"5" | vlan
bridge | STATUS | "vlanTrunk":[{"id":"x"}] | vlanTrunk[0].id
bridge | STATUS | "ipam":{"type":5} | ipam.type
bridge | STATUS | "runtimeConfig":{"mac":5} | runtimeConfig.mac
ptp | STATUS | "mtu":true | mtu
ptp | STATUS | "ipMasq":"yes" | ipMasq
"#;
    refused_with_path(peer, WRONG, &[6], (&[6, 999], "json: cannot unmarshal"));
}

/// The case leaves open whether text that is not an address fails in decoding or in validation.
fn text_that_does_not_parse_is_an_error_with_its_path(peer: &Peer) {
    const WRONG: &str = r#"
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.3"}]} | ipam.addresses[0].address
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.3/33"}]} | ipam.addresses[0].address
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.03/24"}]} | ipam.addresses[0].address
static | ADD | "ipam":{"addresses":[{"address":"1.2.3/45"}]} | ipam.addresses[0].address
static | ADD | "ipam":{"addresses":[{"address":" 10.1.2.3/24"}]} | ipam.addresses[0].address
static | ADD | "ipam":{"addresses":[{"address":"fe80::1%eth0/64"}]} | ipam.addresses[0].address
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.3/24","gateway":"1.2.3.x"}]} | ipam.addresses[0].gateway
static | ADD | "ipam":{"addresses":[{"address":"10.1.2.3/24","gateway":"10.1.2.1/24"}]} | ipam.addresses[0].gateway
static | ADD | "ipam":{"routes":[{"dst":"10.0.0.0"}]} | ipam.routes[0].dst
static | ADD | "ipam":{"routes":[{"dst":"1.2.3.4/99"}]} | ipam.routes[0].dst
static | ADD | "ipam":{"routes":[{"dst":"::/0","gw":"1.2.3.x"}]} | ipam.routes[0].gw
static | ADD | "ipam":{},"runtimeConfig":{"ips":["10.1.2.3"]} | runtimeConfig.ips[0]
static | ADD | "ipam":{},"args":{"cni":{"ips":["10.1.2.3/24","x"]}} | args.cni.ips[1]
host-local | ADD | "ipam":{"subnet":"10.1.2.0"} | ipam.subnet
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"x"}]]} | ipam.ranges[1][0].subnet
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24","rangeEnd":"x"}]]} | ipam.ranges[0][0].rangeEnd
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24","gateway":"10.1.2"}]]} | ipam.ranges[0][0].gateway
host-local | ADD | "ipam":{"subnet":"10.1.2.0/24"},"runtimeConfig":{"ips":["x"]} | runtimeConfig.ips[0]
host-local | ADD | "ipam":{"subnet":"10.1.2.0/24"},"args":{"cni":{"ips":[""]}} | args.cni.ips[0]
"#;
    refused_with_path(peer, WRONG, &[6, 7], (&[999], ""));
}

fn invalid_range_is_a_configuration_error_with_its_path(peer: &Peer) {
    const WRONG: &str = r#"
host-local | ADD | "ipam":{} | ipam.ranges
host-local | ADD | "ipam":{"ranges":[]} | ipam.ranges
host-local | ADD | "ipam":{"ranges":[[]]} | ipam.ranges[0]
host-local | ADD | "ipam":{"ranges":[[{}]]} | ipam.ranges[0][0].subnet
host-local | ADD | "ipam":{"subnet":"10.1.2.0/31"} | ipam.subnet
host-local | ADD | "ipam":{"ranges":[[{"subnet":"fd00::/127"}]]} | ipam.ranges[0][0].subnet
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.3/24"}]]} | ipam.ranges[0][0].subnet
host-local | ADD | "ipam":{"subnet":"10.1.2.0/24","rangeStart":"10.1.3.1"} | ipam.rangeStart
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.3.1"}]]} | ipam.ranges[0][0].rangeStart
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24","rangeEnd":"10.1.3.1"}]]} | ipam.ranges[0][0].rangeEnd
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"fd00::/64"}]]} | ipam.ranges[0]
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"10.1.0.0/16"}]]} | ipam.ranges[0]
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"10.1.0.0/16"}]]} | ipam.ranges
host-local | ADD | "ipam":{"ranges":[[{"subnet":"10.1.2.0/24"}]]},"runtimeConfig":{"ipRanges":[[{"subnet":"10.9.9.9/24"}]]} | runtimeConfig.ipRanges[0][0].subnet
"#;
    refused_with_path(peer, WRONG, &[7], (&[999], ""));
}

/// Each call fails: ours with one of these codes and the path, the reference with one of its own and these words.
#[track_caller]
fn refused_with_path(peer: &Peer, wrong: &'static str, codes: &[u64], theirs: (&[u64], &str)) {
    for [plugin, command, keys, path] in cells(wrong) {
        let outcome = Call::new(peer, plugin, command, with_keys(keys)).run();
        let error = outcome.err();
        let text = format!(": {}", error.text());
        let end = if matches!(codes, [6]) { ": " } else { "" };
        let (codes, is_said) = match peer {
            Peer::Ours => (codes, text.contains(&format!(": {path}{end}"))),
            Peer::Reference(_) => (theirs.0, error.msg.contains(theirs.1)),
        };
        assert!(codes.contains(&error.code) && is_said, "{keys}: expected {path}: {outcome:?}");
        assert_eq!(outcome.status, 1);
    }
}

/// The reference prints a 1.x result through doubles; its older families are exact.
fn integers_beyond_a_double_are_exact(peer: &Peer) {
    for (version, is_exact) in [("0.4.0", true), ("1.1.0", *peer == Peer::Ours)] {
        for priority in [i64::MAX, (1 << 53) + 1] {
            let keys = format!(r#""ipam":{{"routes":[{{"dst":"::/0","priority":{priority}}}]}}"#);
            let conf = conf(version).replacen('}', &format!(",{keys}}}"), 1);
            let outcome = add(peer, "static", conf);
            outcome.ok();
            let printed = format!(r#""priority": {priority}"#);
            assert_eq!(outcome.stdout.contains(&printed), is_exact, "{outcome:?}");
        }
    }
}

fn invalid_unicode_is_replaced(peer: &Peer) {
    let domain = |text: &[u8]| {
        let begin = br#"{"cniVersion":"1.1.0","name":"net-1","ipam":{"dns":{"domain":""#;
        let conf = [begin, text, br#""}}}"#].concat();
        add(peer, "static", conf).ok()["dns"]["domain"].clone()
    };
    assert_eq!(domain(b"a\xffb"), "a\u{fffd}b");
    assert_eq!(domain(br"a\ud83d\ude00b"), "a\u{1f600}b");
}

/// Go accepts 10,000 levels. Ours stops earlier, as no real configuration is that deep. Neither may
/// crash.
fn deep_nesting_ends_in_an_answer(peer: &Peer) {
    let nested = |depth: usize| {
        let keys = format!(
            r#""x":{}{},"ipam":{{"addresses":[{{"address":"10.1.2.3/24"}}]}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        );
        add(peer, "static", with_keys(&keys))
    };
    nested(100).ok();
    let outcome = nested(200);
    if *peer == Peer::Ours {
        assert_eq!((outcome.status, outcome.err().code), (1, 6), "{outcome:?}");
    } else {
        outcome.ok();
    }
    let outcome = nested(100_000);
    assert_eq!((outcome.status, outcome.err().code), (1, 6), "{outcome:?}");
}

/// The reference panics when it uses such an address.
fn null_in_a_list_ends_in_an_answer(peer: &Peer) {
    for (list, path) in [
        (r#""runtimeConfig":{"ips":[null]}"#, "runtimeConfig.ips[0]"),
        (r#""args":{"cni":{"ips":[null]}}"#, "args.cni.ips[0]"),
    ] {
        let data = Scratch::new();
        let keys =
            format!(r#"{list},"ipam":{{"subnet":"10.1.2.0/24","dataDir":"{}"}}"#, data.text());
        let outcome = add(peer, "host-local", with_keys(&keys));
        if *peer == Peer::Ours {
            let error = outcome.err();
            assert_eq!(outcome.status, 1);
            assert!([6, 7].contains(&error.code) && error.text().contains(path), "{outcome:?}");
        } else {
            assert!(outcome.status == 2 && outcome.stderr.contains("panic: "), "{outcome:?}");
        }
    }
    // In a list of objects a null is an object without keys, on both sides.
    let outcome = add(peer, "static", with_keys(r#""ipam":{"addresses":[null]}"#));
    assert_eq!(outcome.status, 1);
    outcome.err();
}
