//! Results of every version, read and written.

use serde_json::{Value, json};

use super::*;

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

impl Source for Value {
    fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(without_nulls(self)).map_err(|err| err.to_string())
    }
}

/// Does what [`Source`] asks of a decoder: a null field is an absent one.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(set.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}

fn parse(json: &str) -> Document {
    Document::parse(&serde_json::from_str::<Value>(json).unwrap(), "").unwrap()
}

fn prev_result(config_version: &str, json: &Value) -> Result<Document, String> {
    Document::parse_as_family_of(json, config_version).map_err(|err| err.to_string())
}

fn cidr(text: &str) -> IpNet {
    addr::parse_cidr(text).unwrap()
}

fn ip(text: &str) -> Option<IpAddr> {
    addr::parse_ip(text).unwrap()
}

/// A result every version can express: one address per family, routes grouped by family.
fn common_result() -> AddResult {
    AddResult {
        interfaces: Vec::new(),
        ips: vec![
            IpConfig { gateway: ip("10.1.2.1"), ..IpConfig::new(cidr("10.1.2.3/24")) },
            IpConfig { gateway: ip("fd00::1"), ..IpConfig::new(cidr("fd00::5/64")) },
        ],
        routes: vec![
            Route::to(cidr("0.0.0.0/0")),
            Route { gw: ip("10.1.2.254"), ..Route::to(cidr("10.9.0.7/16")) },
            Route { gw: ip("fd00::1"), ..Route::to(cidr("::/0")) },
        ],
        dns: Dns { nameservers: vec!["10.1.2.1".to_owned()], domain: "a<b>&c".to_owned(), ..Dns::default() },
    }
}

/// A result with every field there is.
fn full_result() -> AddResult {
    let mut full = common_result();
    full.interfaces = vec![
        Interface { name: "br0".to_owned(), ..Interface::default() },
        Interface {
            name: "eth0".to_owned(),
            mac: "0a:58:0a:01:02:03".to_owned(),
            mtu: 1500,
            sandbox: "/run/netns/x".to_owned(),
            socket_path: "/p".to_owned(),
            pci_id: "0000:00:02.0".to_owned(),
        },
    ];
    full.ips[0].interface = Some(0);
    full.ips[1].interface = Some(1);
    full.ips.push(IpConfig::new(cidr("10.0.0.2/24")));
    full.routes[1] = Route {
        gw: ip("10.1.2.254"),
        mtu: 1500,
        advmss: 1340,
        priority: 100,
        table: Some(50),
        scope: Some(253),
        ..Route::to(cidr("10.9.0.0/16"))
    };
    full
}

// The three columns of protocol.md 1.3.
const EXAMPLE_1_1_0: &str = r#"{
    "cniVersion": "1.1.0",
    "interfaces": [
        {
            "mac": "0a:00:00:00:00:01",
            "name": "eth0",
            "sandbox": "/run/netns/x"
        }
    ],
    "ips": [
        {
            "address": "10.1.2.3/24",
            "gateway": "10.1.2.1",
            "interface": 0
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        }
    ]
}"#;
const EXAMPLE_0_4_0: &str = r#"{
    "cniVersion": "0.4.0",
    "interfaces": [
        {
            "name": "eth0",
            "mac": "0a:00:00:00:00:01",
            "sandbox": "/run/netns/x"
        }
    ],
    "ips": [
        {
            "version": "4",
            "interface": 0,
            "address": "10.1.2.3/24",
            "gateway": "10.1.2.1"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        }
    ],
    "dns": {}
}"#;
const EXAMPLE_0_2_0: &str = r#"{
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.1.2.3/24",
        "gateway": "10.1.2.1",
        "routes": [
            {
                "dst": "0.0.0.0/0"
            }
        ]
    },
    "dns": {}
}"#;

#[test]
fn one_result_prints_as_documented_in_each_family() {
    for text in [EXAMPLE_1_1_0, EXAMPLE_0_4_0, EXAMPLE_0_2_0] {
        assert_eq!(parse(text).to_text(), text);
    }
    for (version, text) in [("1.1.0", EXAMPLE_1_1_0), ("0.4.0", EXAMPLE_0_4_0), ("0.2.0", EXAMPLE_0_2_0)] {
        assert_eq!(parse(EXAMPLE_1_1_0).convert(version).unwrap().to_text(), text);
        assert_eq!(parse(EXAMPLE_0_4_0).convert(version).unwrap().to_text(), text);
    }
}

#[test]
fn compact_text_is_the_same_document() {
    let document = parse(EXAMPLE_0_2_0);
    assert_eq!(
        document.to_compact_text(),
        r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.2.3/24","gateway":"10.1.2.1","routes":[{"dst":"0.0.0.0/0"}]},"dns":{}}"#
    );
    assert_eq!(parse(&document.to_compact_text()), document);
}

// What follows up to `reference_*` is the output of the reference `static` plugin, Debian sid, for the
// results built here (0.3.0 and 0.3.1 differ from 0.4.0 in the version only, 0.1.0 from 0.2.0, 1.0.0 from 1.1.0).
const REFERENCE_0_2: &str = r#"{
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.1.2.3/24",
        "gateway": "10.1.2.1",
        "routes": [
            {
                "dst": "0.0.0.0/0"
            },
            {
                "dst": "10.9.0.7/16",
                "gw": "10.1.2.254"
            }
        ]
    },
    "ip6": {
        "ip": "fd00::5/64",
        "gateway": "fd00::1",
        "routes": [
            {
                "dst": "::/0",
                "gw": "fd00::1"
            }
        ]
    },
    "dns": {
        "nameservers": [
            "10.1.2.1"
        ],
        "domain": "a\u003cb\u003e\u0026c"
    }
}"#;
const REFERENCE_0_4: &str = r#"{
    "cniVersion": "0.4.0",
    "ips": [
        {
            "version": "4",
            "address": "10.1.2.3/24",
            "gateway": "10.1.2.1"
        },
        {
            "version": "6",
            "address": "fd00::5/64",
            "gateway": "fd00::1"
        },
        {
            "version": "4",
            "address": "10.0.0.2/24"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "10.9.0.7/16",
            "gw": "10.1.2.254",
            "mtu": 1500,
            "advmss": 1340,
            "priority": 100,
            "table": 0,
            "scope": 0
        },
        {
            "dst": "::/0",
            "gw": "fd00::1",
            "table": 50,
            "scope": 253
        }
    ],
    "dns": {
        "nameservers": [
            "10.1.2.1"
        ],
        "domain": "a\u003cb\u003e\u0026c",
        "search": [
            "x\u2028y",
            "é"
        ],
        "options": [
            "ndots:5"
        ]
    }
}"#;
const REFERENCE_1: &str = r#"{
    "cniVersion": "1.1.0",
    "dns": {
        "domain": "a\u003cb\u003e\u0026c",
        "nameservers": [
            "10.1.2.1"
        ],
        "options": [
            "ndots:5"
        ],
        "search": [
            "x\u2028y",
            "é"
        ]
    },
    "ips": [
        {
            "address": "10.1.2.3/24",
            "gateway": "10.1.2.1"
        },
        {
            "address": "fd00::5/64",
            "gateway": "fd00::1"
        },
        {
            "address": "10.0.0.2/24"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "advmss": 1340,
            "dst": "10.9.0.7/16",
            "gw": "10.1.2.254",
            "mtu": 1500,
            "priority": 100,
            "scope": 0,
            "table": 0
        },
        {
            "dst": "::/0",
            "gw": "fd00::1",
            "scope": 253,
            "table": 50
        }
    ]
}"#;
// The reference `portmap` plugin, which prints its prevResult when there are no mappings.
const REFERENCE_INTERFACES: &str = r#"{
    "cniVersion": "1.0.0",
    "interfaces": [
        {
            "mac": "0a:58:0a:01:02:03",
            "mtu": 1500,
            "name": "eth0",
            "pciID": "0000:00:02.0",
            "sandbox": "/run/netns/x",
            "socketPath": "/p"
        },
        {
            "name": "br0"
        }
    ],
    "ips": [
        {
            "address": "10.1.2.3/24",
            "gateway": "10.1.2.1",
            "interface": 0
        },
        {
            "address": "fd00::5/64",
            "interface": -1
        }
    ],
    "routes": [
        {
            "advmss": 1340,
            "dst": "0.0.0.0/0",
            "mtu": 1500,
            "priority": 100,
            "scope": 253,
            "table": 0
        }
    ]
}"#;

/// What the reference was given for [`REFERENCE_0_4`] and [`REFERENCE_1`].
fn reference_input() -> AddResult {
    let mut input = common_result();
    input.ips.push(IpConfig::new(cidr("::ffff:10.0.0.2/120")));
    input.routes[1] =
        Route { mtu: 1500, advmss: 1340, priority: 100, table: Some(0), scope: Some(0), ..input.routes[1].clone() };
    input.routes[2] = Route { table: Some(50), scope: Some(253), ..input.routes[2].clone() };
    input.dns.search = vec!["x\u{2028}y".to_owned(), "é".to_owned()];
    input.dns.options = vec!["ndots:5".to_owned()];
    input
}

#[test]
fn reference_text_is_reproduced_for_each_version() {
    for (versions, printed_as, input, reference) in [
        (&VERSIONS[0..2], "0.2.0", common_result(), REFERENCE_0_2),
        (&VERSIONS[2..5], "0.4.0", reference_input(), REFERENCE_0_4),
        (&VERSIONS[5..7], "1.1.0", reference_input(), REFERENCE_1),
    ] {
        for version in versions {
            let expected = reference.replace(printed_as, version);
            assert_eq!(input.clone().into_document(version).unwrap().to_text(), expected);
            assert_eq!(parse(&expected).to_text(), expected);
        }
    }
}

#[test]
fn reference_text_of_interfaces_is_reproduced() {
    assert_eq!(parse(REFERENCE_INTERFACES).to_text(), REFERENCE_INTERFACES);
}

#[test]
fn empty_results_print_dns_below_1_0_0_only() {
    for (version, text) in [
        ("0.3.0", "{\n    \"cniVersion\": \"0.3.0\",\n    \"dns\": {}\n}"),
        ("0.4.0", "{\n    \"cniVersion\": \"0.4.0\",\n    \"dns\": {}\n}"),
        ("1.0.0", "{\n    \"cniVersion\": \"1.0.0\"\n}"),
        ("1.1.0", "{\n    \"cniVersion\": \"1.1.0\"\n}"),
    ] {
        assert_eq!(AddResult::default().into_document(version).unwrap().to_text(), text);
    }
    for version in ["", "0.1.0", "0.2.0"] {
        assert_eq!(AddResult::default().into_document(version), Err(ResultError::NoAddress));
    }
    assert_eq!(ResultError::NoAddress.to_string(), "cannot convert: no valid IP addresses");
}

#[test]
fn version_chooses_the_family() {
    for (version, family) in [
        ("", Some(Family::V02)),
        ("0.1.0", Some(Family::V02)),
        ("0.2.0", Some(Family::V02)),
        ("0.3.0", Some(Family::V04)),
        ("0.3.1", Some(Family::V04)),
        ("0.4.0", Some(Family::V04)),
        ("1.0.0", Some(Family::V1)),
        ("1.1.0", Some(Family::V1)),
        ("0.4", None),
        ("1.0.1", None),
        ("1.2.0", None),
    ] {
        assert_eq!(Family::of(version), family, "{version}");
    }
}

#[test]
fn parse_goes_by_own_version_then_by_the_assumed_one() {
    for (document, assumed, version) in [
        (json!({"cniVersion": "0.4.0"}), "1.1.0", "0.4.0"),
        (json!({"cniVersion": ""}), "1.0.0", "1.0.0"),
        (json!({"cniVersion": null}), "0.3.1", "0.3.1"),
        (json!({}), "0.2.0", "0.2.0"),
        (json!({}), "", "0.1.0"),
    ] {
        let parsed = Document::parse(&document, assumed).unwrap();
        assert_eq!(parsed.cni_version(), version, "{document} {assumed}");
    }
    for (document, assumed, message) in [
        (json!({"cniVersion": "1.0.1"}), "1.0.0", r#"unsupported CNI result version "1.0.1""#),
        (json!({}), "5678.456", r#"unsupported CNI result version "5678.456""#),
        (json!({"ips": [{"address": "1.2.3/45"}]}), "1.0.0", "invalid CIDR address: 1.2.3/45"),
        (json!({"ips": [{}]}), "1.0.0", "missing field `address`"),
        (json!({"routes": [{"gw": "1.2.3.4"}]}), "1.0.0", "missing field `dst`"),
        (json!({"routes": [{"dst": "::/0", "gw": "1.2.3.x"}]}), "1.0.0", "invalid IP address: 1.2.3.x"),
    ] {
        assert_eq!(Document::parse(&document, assumed).unwrap_err().to_string(), message);
    }
}

// Each row was given to the reference `portmap` plugin.
#[test]
fn prev_result_is_of_the_family_of_the_configuration() {
    for (config_version, document, version) in [
        ("1.1.0", json!({"cniVersion": "1.0.0"}), "1.0.0"),
        ("1.0.0", json!({}), "1.0.0"),
        ("1.0.0", json!({"cniVersion": null}), "1.0.0"),
        ("0.3.1", json!({"cniVersion": "0.4.0"}), "0.4.0"),
        ("0.2.0", json!({"cniVersion": ""}), "0.1.0"),
        ("0.2.0", json!({}), "0.2.0"),
        ("", json!({}), "0.1.0"),
    ] {
        let parsed = prev_result(config_version, &document).unwrap();
        assert_eq!(parsed.cni_version(), version, "{config_version} {document}");
    }
}

#[test]
fn prev_result_of_another_family_is_refused_in_the_words_of_the_reference() {
    for (config_version, version, families) in [
        ("1.0.0", "0.4.0", "[1.0.0 1.1.0]"),
        ("1.0.0", "0.2.0", "[1.0.0 1.1.0]"),
        ("1.0.0", "5678.456", "[1.0.0 1.1.0]"),
        ("1.0.0", "", "[1.0.0 1.1.0]"),
        ("0.4.0", "1.0.0", "[0.3.0 0.3.1 0.4.0]"),
        ("0.4.0", "", "[0.3.0 0.3.1 0.4.0]"),
        ("0.2.0", "1.0.0", "[ 0.1.0 0.2.0]"),
    ] {
        let expected = format!(
            "could not parse prevResult: result type supports {families} but unmarshalled CNIVersion is {version:?}"
        );
        assert_eq!(prev_result(config_version, &json!({"cniVersion": version})), Err(expected));
    }
    assert_eq!(
        prev_result("1.0.1", &json!({})),
        Err(r#"could not parse prevResult: unsupported CNI result version "1.0.1""#.to_owned())
    );
}

#[test]
fn stray_version_of_an_address_is_ignored_in_1_x() {
    let document = json!({"cniVersion": "1.0.0", "ips": [{"version": "6", "address": "10.1.2.3/24"}]});
    let result = prev_result("1.0.0", &document).unwrap().into_add_result().unwrap();
    assert_eq!(result.ips, [IpConfig::new(cidr("10.1.2.3/24"))]);
}

#[test]
fn every_pair_of_versions_round_trips_what_both_can_express() {
    for from in VERSIONS {
        let document = common_result().into_document(from).unwrap();
        assert_eq!(document.cni_version(), from);
        assert_eq!(document.clone().into_add_result(), Ok(common_result()), "{from}");
        for to in VERSIONS {
            let converted = document.clone().convert(to).unwrap();
            assert_eq!(converted, common_result().into_document(to).unwrap(), "{from} to {to}");
            assert_eq!(converted.convert(from), Ok(document.clone()), "{from} to {to} and back");
        }
    }
}

#[test]
fn round_trip_without_gateways() {
    let document = parse(
        r#"{"cniVersion":"0.2.0","ip4":{"ip":"1.2.3.30/24","routes":[{"dst":"15.5.6.0/24"}]},"ip6":{"ip":"abcd::30/64","routes":[{"dst":"1111::/60"}]}}"#,
    );
    assert_eq!(document.clone().convert("0.4.0").unwrap().convert("0.2.0"), Ok(document));
}

#[test]
fn conversion_within_a_family_loses_nothing() {
    for (own, others) in [("0.4.0", &VERSIONS[2..5]), ("1.1.0", &VERSIONS[5..7])] {
        let document = full_result().into_document(own).unwrap();
        for other in others {
            assert_eq!(document.clone().convert(other).unwrap().convert(own), Ok(document.clone()));
        }
    }
    assert_eq!(full_result().into_document("1.0.0").unwrap().into_add_result(), Ok(full_result()));
}

#[test]
fn routes_keep_all_fields_within_0_1_and_0_2() {
    let json = r#"{"cniVersion":"0.1.0","ip4":{"ip":"10.1.2.3/24","routes":[{"dst":"0.0.0.0/0","mtu":7,"table":0}]},"dns":{}}"#;
    let converted = parse(json).convert("0.2.0").unwrap();
    assert_eq!(converted.to_compact_text(), json.replace("0.1.0", "0.2.0"));
    let up = converted.into_add_result().unwrap();
    assert_eq!(up.routes, [Route { mtu: 7, table: Some(0), ..Route::to(cidr("0.0.0.0/0")) }]);
}

#[test]
fn down_to_0_4_loses_mtu_socket_and_pci_address_only() {
    let mut expected = full_result();
    for interface in &mut expected.interfaces {
        interface.mtu = 0;
        interface.socket_path.clear();
        interface.pci_id.clear();
    }
    for version in &VERSIONS[2..5] {
        let document = full_result().into_document(version).unwrap();
        assert_eq!(document.into_add_result(), Ok(expected.clone()));
    }
}

#[test]
fn address_versions_come_from_the_address_going_down() {
    let Document::V04(result) = full_result().into_document("0.4.0").unwrap() else { panic!("not 0.4") };
    let versions: Vec<&str> = result.ips.iter().map(|ip| ip.version.as_str()).collect();
    assert_eq!(versions, ["4", "6", "4"]);
}

#[test]
fn down_to_0_2_keeps_first_addresses_and_plain_routes() {
    let mut expected = common_result();
    expected.routes[1].dst = cidr("10.9.0.0/16");
    for version in ["0.1.0", "0.2.0"] {
        for via in &VERSIONS[2..7] {
            let document = full_result().into_document(via).unwrap().convert(version).unwrap();
            assert_eq!(document.cni_version(), version);
            assert_eq!(document.into_add_result(), Ok(expected.clone()));
        }
    }
}

// Given to the reference `static` plugin too.
#[test]
fn route_of_a_family_without_address_is_dropped() {
    let result = AddResult {
        ips: vec![IpConfig::new(cidr("fd00::5/64"))],
        routes: vec![Route::to(cidr("::/0")), Route::to(cidr("0.0.0.0/0"))],
        ..AddResult::default()
    };
    assert_eq!(
        result.into_document("0.2.0").unwrap().to_compact_text(),
        r#"{"cniVersion":"0.2.0","ip6":{"ip":"fd00::5/64","routes":[{"dst":"::/0"}]},"dns":{}}"#
    );
}

#[test]
fn from_0_4_to_0_2_the_version_of_the_address_is_believed() {
    let document = parse(
        r#"{"cniVersion":"0.4.0","ips":[{"address":"10.0.0.1/8"},{"version":"6","address":"10.1.2.3/24"}],"routes":[{"dst":"::/0"}]}"#,
    );
    assert_eq!(
        document.convert("0.2.0").unwrap().to_compact_text(),
        r#"{"cniVersion":"0.2.0","ip6":{"ip":"10.1.2.3/24","routes":[{"dst":"::/0"}]},"dns":{}}"#
    );
    let unversioned = parse(r#"{"cniVersion":"0.4.0","ips":[{"address":"10.0.0.1/8"}]}"#);
    assert_eq!(unversioned.convert("0.1.0"), Err(ResultError::NoAddress));
}

#[test]
fn no_version_means_0_1_0_as_a_target() {
    for version in VERSIONS {
        let document = common_result().into_document(version).unwrap().convert("").unwrap();
        assert_eq!(document.cni_version(), "0.1.0");
    }
}

#[test]
fn document_without_label_is_of_the_newest_version_of_its_family() {
    let v02 = Document::V02(v02::Result::default());
    assert_eq!(v02.convert("0.2.0").unwrap().cni_version(), "0.2.0");
    let v04 = Document::V04(v04::Result::default());
    assert_eq!(v04.cni_version(), "0.4.0");
    let v1 = Document::V1(v1::Result::default());
    assert_eq!(v1.cni_version(), "1.1.0");
}

#[test]
fn unknown_versions_have_no_converter() {
    for version in ["1.0.1", "0.4", "5678.456"] {
        let err = full_result().into_document(version).unwrap_err();
        assert_eq!(err.to_string(), format!("no converter for CNI result version 1.1.0 to {version}"));
    }
    let unknown = Document::V1(v1::Result { cni_version: "1.0.1".to_owned(), ..v1::Result::default() });
    let message = "no converter for CNI result version 1.0.1 to 0.4.0";
    assert_eq!(unknown.clone().convert("0.4.0").unwrap_err().to_string(), message);
    assert!(unknown.into_add_result().is_err());
}

#[test]
fn interface_index_0_is_printed_and_a_missing_one_is_not() {
    for version in ["0.3.1", "1.1.0"] {
        let mut result = common_result();
        result.ips[0].interface = Some(0);
        let document = result.clone().into_document(version).unwrap();
        assert_eq!(document.to_compact_text().matches(r#""interface":0"#).count(), 1);
        assert_eq!(document.to_compact_text().matches(r#""interface""#).count(), 1);
        assert_eq!(parse(&document.to_text()).into_add_result(), Ok(result));
    }
}

#[test]
fn route_round_trips_with_every_field() {
    let json = r#"{"dst":"1.2.3.0/24","gw":"1.2.3.1","mtu":1500,"advmss":1340,"priority":100,"table":50,"scope":253}"#;
    let route: Route = serde_json::from_str(json).unwrap();
    assert_eq!((route.mtu, route.advmss, route.priority), (1500, 1340, 100));
    assert_eq!((route.table, route.scope), (Some(50), Some(253)));
    assert_eq!(route.to_json().to_compact_text(), json);
}

#[test]
fn route_keeps_an_explicit_zero_of_table_and_scope_only() {
    let json = r#"{"dst":"::/0","gw":"","mtu":0,"advmss":0,"priority":0,"table":0,"scope":0}"#;
    let route: Route = serde_json::from_str(json).unwrap();
    assert_eq!(route.to_json().to_compact_text(), r#"{"dst":"::/0","table":0,"scope":0}"#);
}

#[test]
fn numbers_must_be_integers() {
    for json in [r#"{"dst":"::/0","mtu":1.0}"#, r#"{"dst":"::/0","mtu":1e3}"#, r#"{"dst":"::/0","mtu":"1"}"#] {
        assert!(serde_json::from_str::<Route>(json).is_err(), "{json}");
    }
}

// Go runtimes send null for an empty list.
#[test]
fn null_fields_are_absent_fields() {
    let nulls = r#"{"interfaces":null,"ips":null,"routes":null,"dns":null}"#;
    assert_eq!(parse(&nulls.replace('{', r#"{"cniVersion":"1.0.0","#)), parse(r#"{"cniVersion":"1.0.0"}"#));
}

#[test]
fn dns_is_empty_when_all_four_are() {
    assert!(Dns::default().is_empty());
    for json in
        [r#"{"nameservers":["1.1.1.1"]}"#, r#"{"domain":"a"}"#, r#"{"search":["a"]}"#, r#"{"options":["ndots:5"]}"#]
    {
        let dns: Dns = serde_json::from_str(json).unwrap();
        assert!(!dns.is_empty());
        assert_eq!(dns.to_json().to_compact_text(), json);
    }
}
