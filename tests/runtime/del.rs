//! DEL of a whole network.

use std::fs;

use serde_json::json;

use super::{Host, ID, assert_failed, assert_silent, assert_unrecorded, result};

#[test]
fn del_goes_in_reverse_and_forgets() {
    for (version, has_result) in [("0.3.1", false), ("0.4.0", true), ("1.1.0", true)] {
        let host = Host::new(version);
        host.answer_adds();
        assert_eq!(host.net(&format!("add net /x {ID}")).status, 0);
        host.calls();
        assert_silent(&host.net(&format!("del net /x {ID}")));
        assert_eq!(host.calls(), "DEL c, DEL b, DEL a");
        assert_eq!(host.config("DEL-c").get("prevResult").is_some(), has_result, "{version}");
        assert_eq!(host.cached_names(), [""; 0]);

        assert_unrecorded(&host.net(&format!("del net /x {ID}")), "net");
        assert_eq!(host.config("DEL-c").get("prevResult"), None);
    }
}

#[test]
fn a_failed_del_stops_and_can_be_repeated() {
    let host = Host::new("1.0.0");
    host.cache("net-id-1-eth0", &result("10.0.0.1/24"));
    host.answer("DEL", "b", r#"{"code":11,"msg":"plugin error: banana"}"#, true);
    let msg = "plugin type=\"b\" name=\"own\" failed (delete): plugin error: banana";
    assert_failed(&host.net(&format!("del net /x {ID}")), msg, "");
    assert_eq!((host.calls().as_str(), host.cached().exists()), ("DEL c, DEL b", true));
    host.answer("DEL", "b", "", false);
    assert_silent(&host.net(&format!("del net /x {ID}")));
    assert!(host.config("DEL-a").get("prevResult").is_some() && !host.cached().exists());
}

#[test]
fn del_does_without_a_cache_that_cannot_be_read() {
    let host = Host::new("1.0.0");
    let of_unknown = r#"{"cniVersion":"0.4567.0"}"#;
    for text in ["", "{", "[]", of_unknown, r#"{"kind":"cniCacheV1","result":"x"}"#] {
        host.cache("net-id-1-eth0", text);
        assert_silent(&host.net(&format!("del net /x {ID}")));
        assert_eq!(host.calls(), "DEL c, DEL b, DEL a", "{text}");
        assert!(!host.cached().exists(), "{text}");
        assert_eq!(host.config("DEL-a").get("prevResult"), None);
    }
}

/// `a-b` and `c` make the same file name as `a` and `b-c`. cnitool replaces and removes the other's
/// record.
#[test]
fn del_leaves_the_record_of_another_attachment_alone() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    let other = json!({"cniVersion": "1.0.0", "name": "net-b", "plugins": [{"type": "a"}]});
    fs::write(host.0.join("net.d/20-other.conflist"), other.to_string()).unwrap();
    assert_eq!(host.net("add net /x --container-id b-c").status, 0);
    host.calls();
    assert_unrecorded(&host.net("del net-b /x --container-id c"), "net-b");
    assert_eq!((host.calls().as_str(), host.config("DEL-a").get("prevResult")), ("DEL a", None));
    assert_eq!(host.cached_names(), ["net-b-c-eth0"]);
    let msg = "the result of another attachment is kept under the same name, net-b-c-eth0";
    let details = "expected another container id or network";
    assert_failed(&host.net("add net-b /x --container-id c"), msg, details);
    assert_eq!(host.calls(), "", "nothing that could not be kept");
    assert_silent(&host.net("del net /x --container-id b-c"));
    assert_eq!(host.cached_names(), [""; 0]);
}
