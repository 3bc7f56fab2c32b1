//! ADD that fails halfway, and its rollback.

use std::fs;

use cni_multi::cni::attachment::Key;
use cni_multi::cni::json::Value;
use cni_multi::runtime::chain::OnFailure;
use cni_multi::runtime::parameters::Parameters;
use serde_json::json;

use super::{Host, ID, assert_failed, result};
use crate::protocol::has_user_namespaces;

#[test]
fn a_failed_add_is_undone_in_every_plugin() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", &result("10.0.0.1/24"), false);
    host.answer("ADD", "b", r#"{"code":42,"msg":"plugin error: banana","details":"ripe"}"#, true);
    let msg = "plugin type=\"b\" name=\"own\" failed (add): plugin error: banana";
    let add = || host.net(&format!("add net /x {ID}"));
    assert_failed(&add(), msg, "ripe; what was done has been undone");
    let calls = "ADD a, ADD b, DEL c, DEL b, DEL a";
    assert_eq!(host.calls(), calls);
    let last = host.config("DEL-a")["prevResult"]["ips"][0]["address"].clone();
    assert_eq!(last, "10.0.0.1/24", "the last result there was");
    assert_eq!(host.cached_names(), [""; 0]);

    host.answer("DEL", "c", r#"{"code":43,"msg":"stuck"}"#, true);
    assert_failed(&add(), msg, "ripe; undo: plugin type=\"c\" failed (delete): stuck");
    assert_eq!(host.calls(), calls, "one that fails does not stop the others");

    let older = Host::new("0.3.1");
    older.answer("ADD", "a", r#"{"cniVersion":"0.3.1"}"#, false);
    older.answer("ADD", "b", r#"{"code":42,"msg":"banana"}"#, true);
    assert_eq!(older.net(&format!("add net /x {ID}")).status, 1);
    assert_eq!((older.calls().as_str(), older.config("DEL-a").get("prevResult")), (calls, None));
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
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, ADD a");
    assert_eq!(fs::read(host.cached()).unwrap(), before);
}

#[test]
fn a_failed_add_spares_an_interface_without_a_record() {
    if !has_user_namespaces() {
        return;
    }
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", r#"{"code":102,"msg":"lo exists"}"#, true);
    let call = host.call(&format!("add net {EMPTY} -i lo"));
    let outcome = call.wrapped(&["unshare", "-Urn"].map(str::to_owned)).run();
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
    let begin = "failed to set network \"net\" cached result: ";
    assert!(outcome.status == 1 && outcome.stderr.starts_with(begin), "{outcome:?}");
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, DEL c, DEL b, DEL a");
}

/// libcni leaves the work of a failed ADD until its caller calls DEL; ours does so if the caller
/// asks for it.
#[test]
fn a_failed_add_is_not_undone_on_the_caller_s_request() {
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
        let error =
            host.with_runtime(|runtime, list| runtime.add(list, &at, on_failure)).unwrap_err();
        (error.to_string(), error.code.0, host.calls())
    };
    let msg = "plugin type=\"b\" name=\"own\" failed (add): banana";
    assert_eq!(add(OnFailure::Leave), (msg.into(), 42, "ADD a, ADD b".into()));
    let msg = format!("{msg}; what was done has been undone");
    assert_eq!(add(OnFailure::Undo), (msg, 42, "ADD a, ADD b, DEL c, DEL b, DEL a".into()));
    assert_eq!(host.cached_names(), [""; 0]);
}

/// A namespace with nothing but `lo`, which exists as long as the call.
const EMPTY: &str = "/proc/self/ns/net";

#[test]
fn a_stale_cache_entry_is_not_an_interface_from_before() {
    if !has_user_namespaces() {
        return;
    }
    let host = Host::new("1.0.0");
    host.answer_adds();
    assert_eq!(host.net(&format!("add net /x {ID}")).status, 0);
    let left = fs::read(host.cached()).unwrap();
    host.calls();
    host.answer("ADD", "b", r#"{"code":42,"msg":"banana"}"#, true);
    let call = host
        .call(&format!("add net {EMPTY} {ID}"))
        .wrapped(&["unshare", "-Urn"].map(str::to_owned));
    let details = "what was done has been undone";
    assert_failed(&call.run(), "plugin type=\"b\" name=\"own\" failed (add): banana", details);
    assert_eq!(host.calls(), "ADD a, ADD b, DEL c, DEL b, DEL a");
    let of_this_add = host.config("DEL-a")["prevResult"]["ips"][0]["address"].clone();
    assert_eq!(of_this_add, "10.0.0.1/24");
    assert_eq!(fs::read(host.cached()).unwrap(), left);
}

/// A compiled-in plugin that refuses has made no link, so no other plugin needs a DEL.
#[test]
fn nothing_is_undone_when_our_plugin_is_the_first_to_refuse() {
    let host = Host::new("1.0.0");
    let ptp = json!({"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/24"}]}});
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [ptp, {"type": "a"}]}));
    let outcome = host.net(&format!("add net /nowhere {ID}"));
    let msg = "plugin type=\"ptp\" failed (add): failed to open netns \"/nowhere\": failed to Statfs \"/nowhere\": no such file or \
               directory";
    let details = "CNI_NETNS: open netns \"/nowhere\": no such file or directory; \
                   namespaces in /run/netns: ";
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""));
    assert!(outcome.stderr.starts_with(&format!("{msg}\n{details}")), "{outcome:?}");
    assert_eq!(host.calls(), "");
    // A refused ADD of an external plugin may have left something.
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, ptp]}));
    host.answer("ADD", "a", r#"{"code":42,"msg":"banana"}"#, true);
    assert_eq!(host.net(&format!("add net /nowhere {ID}")).status, 1);
    assert_eq!(host.calls(), "ADD a, DEL a");
}

#[test]
fn the_undo_s_errors_are_reported_once() {
    let host = Host::new("1.0.0");
    let refusal = r#"{"code":1,"msg":"no such version"}"#;
    for plugin in ["a", "b", "c"] {
        host.answer("ADD", plugin, refusal, true);
        host.answer("DEL", plugin, refusal, true);
    }
    host.answer("DEL", "b", r#"{"code":5,"msg":"stuck"}"#, true);
    let undo = "undo: plugin type=\"c\", type=\"a\" failed (delete): no such version; \
                undo: plugin type=\"b\" name=\"own\" failed (delete): stuck";
    let outcome = host.net(&format!("add net /x {ID}"));
    assert_failed(&outcome, "plugin type=\"a\" failed (add): no such version", undo);
}
