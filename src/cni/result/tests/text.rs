//! The printed text, by version.

use super::*;

// One result in each of the three shapes.
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

/// The documents require `version` up to 0.4.0, and have none from 1.0.0 on.
#[test]
fn one_result_prints_as_documented_in_each_shape() {
    for text in [EXAMPLE_1_1_0, EXAMPLE_0_4_0, EXAMPLE_0_2_0] {
        assert_eq!(parse(text).to_text(), text);
    }
    for (version, text) in
        [("1.1.0", EXAMPLE_1_1_0), ("0.4.0", EXAMPLE_0_4_0), ("0.2.0", EXAMPLE_0_2_0)]
    {
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

// What follows up to `reference_*` is the output of the reference `static` plugin, Debian sid, for
// the results built here (0.3.0 and 0.3.1 differ from 0.4.0 only in the version, as do 0.1.0 from
// 0.2.0 and 1.0.0 from 1.1.0).
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

/// The input of the reference for [`REFERENCE_0_4`] and [`REFERENCE_1`].
fn reference_input() -> AddResult {
    let mut input = common_result();
    input.ips.push(IpConfig::new(cidr("::ffff:10.0.0.2/120")));
    input.routes[1] = Route {
        mtu: 1500,
        advmss: 1340,
        priority: 100,
        table: Some(0),
        scope: Some(0),
        ..input.routes[1].clone()
    };
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
