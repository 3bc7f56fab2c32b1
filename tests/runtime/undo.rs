//! An ADD that fails half-way.

use std::fs;
use std::process::Command;

use cni_multi::cni::attachment::Key;
use cni_multi::cni::json::Value;
use cni_multi::runtime::chain::OnFailure;
use cni_multi::runtime::parameters::Parameters;

use super::{Host, ID, assert_failed, result};
use crate::support::attachment::skip;

#[test]
fn a_failed_add_is_undone_in_every_plugin() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", &result("10.0.0.1/24"), false);
    host.answer("ADD", "b", r#"{"code":42,"msg":"plugin error: banana","details":"ripe"}"#, true);
    let outcome = host.net(&format!("add net /x {ID}"));
    assert_failed(
        &outcome,
        "plugin type=\"b\" name=\"own\" failed (add): plugin error: banana",
        "ripe; what was done has been undone",
    );
    assert_eq!(host.calls(), "ADD a, ADD b, DEL c, DEL b, DEL a");
    assert_eq!(host.config("DEL-a")["prevResult"]["ips"][0]["address"], "10.0.0.1/24", "the last result there was");
    assert_eq!(host.cached_names(), [""; 0]);

    host.answer("DEL", "c", r#"{"code":43,"msg":"stuck"}"#, true);
    let outcome = host.net(&format!("add net /x {ID}"));
    let details = "ripe; undo: plugin type=\"c\" failed (delete): stuck";
    assert_failed(&outcome, "plugin type=\"b\" name=\"own\" failed (add): plugin error: banana", details);
    assert_eq!(host.calls(), "ADD a, ADD b, DEL c, DEL b, DEL a", "one that fails does not stop the others");
}

#[test]
fn a_failed_second_add_leaves_the_first_alone() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    assert_eq!(host.net(&format!("add net /x {ID}")).status, 0);
    let before = fs::read(host.cached()).unwrap();
    host.answer("ADD", "a", r#"{"code":102,"msg":"eth0 exists"}"#, true);
    let outcome = host.net(&format!("add net /x {ID}"));
    let details = "not undone, because \"eth0\" was there before; `net del` removes it";
    assert_failed(&outcome, "plugin type=\"a\" failed (add): eth0 exists", details);
    assert_eq!((host.calls().as_str(), fs::read(host.cached()).unwrap()), ("ADD a, ADD b, ADD c, ADD a", before));
}

#[test]
fn a_failed_add_leaves_an_interface_alone_that_nobody_recorded() {
    let wrapper = ["unshare", "-Urn"].map(str::to_owned);
    if !Command::new("unshare").args(["-Urn", "true"]).status().is_ok_and(|status| status.success()) {
        return skip("user namespaces");
    }
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", r#"{"code":102,"msg":"lo exists"}"#, true);
    let outcome = host.call("add net /proc/self/ns/net -i lo").wrapped(&wrapper).run();
    let details = "not undone, because \"lo\" was there before; `net del` removes it";
    assert_failed(&outcome, "plugin type=\"a\" failed (add): lo exists", details);
    assert_eq!(host.calls(), "ADD a");
}

#[test]
fn an_attachment_that_cannot_be_recorded_is_undone() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    fs::write(host.0.join("cache/results"), "").unwrap();
    let outcome = host.net(&format!("add net /x {ID}"));
    assert!(
        outcome.status == 1 && outcome.stderr.starts_with("failed to set network \"net\" cached result: "),
        "{outcome:?}"
    );
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, DEL c, DEL b, DEL a");
}

/// libcni leaves what was done until its caller calls DEL, and so does who asks for that.
#[test]
fn a_failed_add_is_left_to_the_caller_who_wants_it() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", &result("10.0.0.1/24"), false);
    host.answer("ADD", "b", r#"{"code":42,"msg":"banana"}"#, true);
    let at = Parameters {
        key: Key::parse("net", "id-1", "eth0").unwrap(),
        netns: "/x".into(),
        args: vec![],
        capability_args: Value::Object(vec![]),
    };
    let add = |on_failure| {
        let error = host.with_runtime(|runtime, list| runtime.add(list, &at, on_failure)).unwrap_err();
        (error.to_string(), error.code.0, host.calls())
    };
    let msg = "plugin type=\"b\" name=\"own\" failed (add): banana";
    assert_eq!(add(OnFailure::Leave), (msg.into(), 42, "ADD a, ADD b".into()));
    assert_eq!(
        add(OnFailure::Undo),
        (format!("{msg}; what was done has been undone"), 42, "ADD a, ADD b, DEL c, DEL b, DEL a".into())
    );
    assert_eq!(host.cached_names(), [""; 0]);
}

#[test]
fn an_undo_before_0_4_0_has_no_result() {
    let host = Host::new("0.3.1");
    host.answer("ADD", "a", r#"{"cniVersion":"0.3.1"}"#, false);
    host.answer("ADD", "b", r#"{"code":42,"msg":"banana"}"#, true);
    assert_eq!(host.net(&format!("add net /x {ID}")).status, 1);
    assert_eq!(
        (host.calls().as_str(), host.config("DEL-a").get("prevResult")),
        ("ADD a, ADD b, DEL c, DEL b, DEL a", None)
    );
}
