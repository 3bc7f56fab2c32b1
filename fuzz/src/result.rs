//! Any bytes as a result and as a `prevResult`: it is unchanged when printed and parsed again, in
//! every version, and conversion to a newer version and back loses nothing.

use std::net::IpAddr;

use cni_multi::cni::json::Value;
use cni_multi::cni::result::{Document, Shape, v02};

/// All versions, oldest first.
fn versions() -> impl Iterator<Item = &'static str> {
    [Shape::V02, Shape::V04, Shape::V1].into_iter().flat_map(Shape::versions).copied()
}

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let Ok(value) = Value::parse(bytes) else { return };
    for assumed in versions() {
        let _ = Document::parse_as_shape_of(&value, assumed).map(require_stable);
        if let Ok(document) = Document::parse(&value, assumed) {
            require_stable(document.clone());
            require_conversions(&document);
        }
    }
}

/// Checks that a document is unchanged when printed, on one line or several, and parsed again.
fn require_stable(document: Document) {
    let again = |text: String| {
        let value = Value::parse(text.as_bytes()).expect("what is printed is JSON");
        Document::parse(&value, document.cni_version()).expect("what is printed is a result")
    };
    assert_eq!(again(document.to_text()).to_text(), document.to_text());
    assert_eq!(again(document.to_compact_text()).to_text(), document.to_text());
}

fn require_conversions(document: &Document) {
    let own = document.cni_version();
    let place = |version: &str| Shape::of(version).map(|shape| shape as u8);
    for version in versions() {
        let Ok(converted) = document.clone().convert(version) else {
            assert!(place(version) < place(own), "{own} to {version} loses nothing, so it cannot fail");
            continue;
        };
        require_stable(converted.clone());
        let Ok(back) = converted.clone().convert(own) else {
            assert_eq!(Shape::of(own), Some(Shape::V02), "only 0.2 has to have an address");
            continue;
        };
        // A member that an older version lacks is lost once.
        if families_are_named_rightly(document) {
            assert_eq!(back.clone().convert(version).as_ref(), Ok(&converted), "{own} to {version}, back and there");
        }
        if Shape::of(own) == Shape::of(version) {
            assert_eq!(back.to_text(), document.to_text(), "{own} to {version} and back");
        }
    }
    let plain = document.clone().into_add_result().expect("any result is one of the newest version");
    assert_eq!(plain.clone().into_document("1.1.0").and_then(Document::into_add_result), Ok(plain));
}

/// 0.2 stores an address and its routes under the name of their family. If that name is wrong,
/// newer versions take a route's family from its destination, as the reference does, and the
/// conversion back separates address and route.
fn families_are_named_rightly(document: &Document) -> bool {
    let Document::V02(result) = document else { return true };
    let is_of = |ip: &Option<v02::IpConfig>, family: fn(&IpAddr) -> bool| {
        let addresses = |ip: &v02::IpConfig| {
            let routes = ip.routes.iter().map(|route| route.dst.addr());
            routes.chain([ip.ip.addr()]).all(|address| family(&address))
        };
        ip.as_ref().is_none_or(addresses)
    };
    is_of(&result.ip4, IpAddr::is_ipv4) && is_of(&result.ip6, IpAddr::is_ipv6)
}
