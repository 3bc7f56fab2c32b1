//! The version of a document.

use super::*;

#[test]
fn version_chooses_the_shape() {
    for (version, shape) in [
        ("", Some(Shape::V02)),
        ("0.1.0", Some(Shape::V02)),
        ("0.2.0", Some(Shape::V02)),
        ("0.3.0", Some(Shape::V04)),
        ("0.3.1", Some(Shape::V04)),
        ("0.4.0", Some(Shape::V04)),
        ("1.0.0", Some(Shape::V1)),
        ("1.1.0", Some(Shape::V1)),
        ("0.4", None),
        ("1.0.1", None),
        ("1.2.0", None),
    ] {
        assert_eq!(Shape::of(version), shape, "{version}");
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
        (
            json!({"routes": [{"dst": "::/0", "gw": "1.2.3.x"}]}),
            "1.0.0",
            "invalid IP address: 1.2.3.x",
        ),
    ] {
        assert_eq!(Document::parse(&document, assumed).unwrap_err().to_string(), message);
    }
}

// Each row was verified with the reference `portmap` plugin.
#[test]
fn prev_result_is_of_the_shape_of_the_configuration() {
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
fn prev_result_of_another_shape_fails_as_in_the_reference() {
    for (config_version, version, shapes) in [
        ("1.0.0", "0.4.0", "[1.0.0 1.1.0]"),
        ("1.0.0", "0.2.0", "[1.0.0 1.1.0]"),
        ("1.0.0", "5678.456", "[1.0.0 1.1.0]"),
        ("1.0.0", "", "[1.0.0 1.1.0]"),
        ("0.4.0", "1.0.0", "[0.3.0 0.3.1 0.4.0]"),
        ("0.4.0", "", "[0.3.0 0.3.1 0.4.0]"),
        ("0.2.0", "1.0.0", "[ 0.1.0 0.2.0]"),
    ] {
        let expected = format!(
            "could not parse prevResult: result type supports {shapes} but unmarshalled CNIVersion is {version:?}"
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
    let document =
        json!({"cniVersion": "1.0.0", "ips": [{"version": "6", "address": "10.1.2.3/24"}]});
    let result = prev_result("1.0.0", &document).unwrap().into_add_result().unwrap();
    assert_eq!(result.ips, [IpConfig::new(cidr("10.1.2.3/24"))]);
}
