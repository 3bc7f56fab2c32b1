//! Conversion between versions: what is kept and what is lost.

use super::*;

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
fn conversion_within_a_shape_loses_nothing() {
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
    let Document::V04(result) = full_result().into_document("0.4.0").unwrap() else {
        panic!("not 0.4")
    };
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

// Verified with the reference `static` plugin too.
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
fn document_without_version_has_the_newest_of_its_shape() {
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
        assert_eq!(
            err.to_string(),
            format!("no converter for CNI result version 1.1.0 to {version}")
        );
    }
    let unknown =
        Document::V1(v1::Result { cni_version: "1.0.1".to_owned(), ..v1::Result::default() });
    let message = "no converter for CNI result version 1.0.1 to 0.4.0";
    assert_eq!(unknown.clone().convert("0.4.0").unwrap_err().to_string(), message);
    assert!(unknown.into_add_result().is_err());
}
