//! GC of a whole network.

use std::fs;

use serde_json::json;

use super::{Host, result};
use cni_multi::cni::conf::ValidAttachment;

/// The output of `net gc`: what it detached, the GC calls of other programs, and the summary.
fn told(host: &Host, lines: &str, called: &str, detached: usize) -> String {
    let call = |plugin: char| {
        format!("called GC of {}\n", host.0.join("bin").join(plugin.to_string()).display())
    };
    let calls: String = called.chars().map(call).collect();
    format!("{lines}{calls}detached {detached}; without a record: removed 0, spared 0\n")
}

#[test]
fn gc_detaches_what_has_no_namespace() {
    let host = Host::new("1.1.0");
    host.answer_adds();
    let netns = host.0.join("netns");
    fs::write(&netns, "").unwrap();
    assert_eq!(host.net(&format!("add net {} --container-id live", netns.display())).status, 0);
    assert_eq!(host.net("add net /nonexistent --container-id stale --args K=V").status, 0);
    host.calls();
    host.net("gc net").assert_is(0, &told(&host, "detached net stale eth0\n", "abc", 1), "");
    assert_eq!(host.calls(), "DEL c, DEL b, DEL a, GC a, GC b, GC c");
    assert!(host.env("DEL-a").starts_with(
        "CNI_ARGS=K=V\nCNI_COMMAND=DEL\nCNI_CONTAINERID=stale\nCNI_IFNAME=eth0\nCNI_NETNS=/nonexistent\n"
    ));
    assert_eq!(host.cached_names(), ["net-live-eth0"]);
    let valid = json!([{"containerID": "live", "ifname": "eth0"}]);
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(host.config("GC-c")[key], valid, "{key}");
    }

    host.answer("GC", "a", r#"{"code":5,"msg":"one"}"#, true);
    host.answer("GC", "c", r#"{"code":5,"msg":"two"}"#, true);
    let said = "failed to GC plugin a: one\nalso: failed to GC plugin c: two\n";
    host.net("gc net").assert_is(1, &told(&host, "", "b", 0), said);
    assert_eq!(host.calls(), "GC a, GC b, GC c");

    host.network(&json!({"cniVersion": "1.1.0", "name": "net", "disableGC": true, "plugins": [{"type": "a"}]}));
    host.net("gc net").assert_is(0, &told(&host, "", "", 0), "");
    assert_eq!(host.calls(), "");
}

/// The caller's list, as libcni passes it on: missing, empty, or with an attachment.
#[test]
fn gc_spares_the_attachments_on_its_list() {
    let host = Host::new("1.1.0");
    let gc = |valid: Option<&[ValidAttachment]>| {
        for id in ["one", "two"] {
            host.cache(&format!("net-{id}-eth0"), &recorded("net", id, "/proc"));
        }
        host.cache("other-one-eth0", &recorded("other", "one", "/proc"));
        host.with_runtime(|runtime, list| runtime.gc(list, valid)).unwrap();
        (host.calls(), host.cached_names().join(" "))
    };
    let one = ValidAttachment { container_id: "one".into(), ifname: "eth0".into() };
    let all_del = "DEL c, DEL b, DEL a, DEL c, DEL b, DEL a, GC a, GC b, GC c".to_owned();

    let one_del = "DEL c, DEL b, DEL a, GC a, GC b, GC c".to_owned();
    let spared = gc(Some(std::slice::from_ref(&one)));
    assert_eq!(spared, (one_del, "net-one-eth0 other-one-eth0".into()));
    assert!(host.env("DEL-a").contains("CNI_CONTAINERID=two\n"));
    let valid = json!([{"containerID": "one", "ifname": "eth0"}]);
    let expected = json!({"cni.dev/attachments": valid, "cni.dev/valid-attachments": valid,
        "cniVersion": "1.1.0", "name": "net", "type": "b"});
    assert_eq!(host.config("GC-b"), expected);

    assert_eq!(gc(Some(&[])), (all_del.clone(), "other-one-eth0".into()));
    assert_eq!(host.config("GC-b")["cni.dev/valid-attachments"], json!([]));

    assert_eq!(gc(None), (all_del, "other-one-eth0".into()));
    let list = host.config("GC-b").get("cni.dev/valid-attachments").cloned();
    assert_eq!(list, None, "the caller has no list");
}

/// A cache file as ADD writes it.
fn recorded(network: &str, id: &str, netns: &str) -> String {
    json!({"kind": "cniCacheV1", "containerId": id, "ifName": "eth0", "networkName": network, "netns": netns})
        .to_string()
}

#[test]
fn gc_before_1_1_0_is_del_alone() {
    let host = Host::new("1.0.0");
    host.cache("net-one-eth0", &recorded("net", "one", "/nowhere"));
    host.net("gc net").assert_is(0, &told(&host, "detached net one eth0\n", "", 1), "");
    assert_eq!(host.calls(), "DEL c, DEL b, DEL a");
}

#[test]
fn gc_goes_on_after_an_attachment_that_cannot_be_detached() {
    let host = Host::new("1.1.0");
    for id in ["one", "two"] {
        host.cache(&format!("net-{id}-eth0"), &recorded("net", id, "/nowhere"));
    }
    host.answer("DEL", "b", r#"{"code":5,"msg":"stuck"}"#, true);
    host.answer("GC", "b", r#"{"code":5,"msg":"stuck too"}"#, true);
    let one = "failed to delete stale attachment one eth0: plugin type=\"b\" name=\"own\" failed (delete): stuck";
    let two = one.replace("one eth0", "two eth0");
    let said = format!("{one}\nalso: {two}; also: failed to GC plugin b: stuck too\n");
    host.net("gc net").assert_is(1, &told(&host, "", "ac", 0), &said);
    assert_eq!(host.calls(), "DEL c, DEL b, DEL c, DEL b, GC a, GC b, GC c");
    assert_eq!(host.cached_names(), ["net-one-eth0", "net-two-eth0"], "so that it can be repeated");
}

/// A live attachment with an unreadable file must not count as stale: the file may belong to a real
/// runtime's container.
#[test]
fn gc_spares_whatever_a_file_may_be_of_that_cannot_be_read() {
    let host = Host::new("1.1.0");
    host.cache("net-torn-id-eth0", "{");
    host.cache("net-bare-eth0", &result("10.0.0.1/24"));
    host.cache("other-torn-eth0", "");
    let outcome = host.net("gc net");
    let dir = host.0.join("cache/results");
    let left_alone = "left alone, because nothing tells which namespace it is of";
    let torn = format!(
        "read {}/net-torn-id-eth0: EOF while parsing an object at line 1 column 1",
        dir.display()
    );
    assert_eq!(outcome.stderr, format!("{left_alone}: {}/net-bare-eth0\n{torn}\n", dir.display()));
    assert_eq!((outcome.status, host.calls().as_str()), (1, "GC a, GC b, GC c"));
    let spared = json!([
        {"containerID": "bare", "ifname": "eth0"},
        {"containerID": "torn", "ifname": "id-eth0"},
        {"containerID": "torn-id", "ifname": "eth0"},
    ]);
    assert_eq!(host.config("GC-a")["cni.dev/valid-attachments"], spared);
    assert_eq!(host.cached_names().len(), 3);
}

/// cnitool ignores such records.
#[test]
fn gc_takes_what_libcni_0_7_recorded_and_has_no_namespace() {
    let host = Host::new("1.1.0");
    let bare = |netns: &str| {
        format!(r#"{{"cniVersion":"0.4.0","interfaces":[{{"name":"eth0","sandbox":"{netns}"}}]}}"#)
    };
    host.cache("net-dead-eth0", &bare("/nowhere"));
    host.cache("net-live-eth0", &bare("/proc"));
    host.net("gc net").assert_is(0, &told(&host, "detached net dead eth0\n", "abc", 1), "");
    assert_eq!(
        (host.calls().as_str(), host.cached_names()),
        ("DEL c, DEL b, DEL a, GC a, GC b, GC c", vec!["net-live-eth0".into()])
    );
    assert!(
        host.env("DEL-a").contains("CNI_CONTAINERID=dead\nCNI_IFNAME=eth0\nCNI_NETNS=/nowhere\n")
    );
    assert_eq!(host.config("DEL-a")["prevResult"]["cniVersion"], "1.1.0");
    assert_eq!(
        host.config("GC-a")["cni.dev/valid-attachments"],
        json!([{"containerID": "live", "ifname": "eth0"}])
    );
}

/// The valid attachments are in the cache: if it cannot be read, none is known to be stale.
#[test]
fn gc_does_nothing_where_the_cache_cannot_be_read() {
    let host = Host::new("1.1.0");
    std::fs::write(host.0.join("cache/results"), "").unwrap();
    let outcome = host.net("gc net");
    let expected = format!("open {}: not a directory\n", host.0.join("cache/results").display());
    assert_eq!((outcome.status, outcome.stderr, host.calls().as_str()), (1, expected.clone(), ""));
    // A caller that lists the valid attachments does not need the cache for that.
    let error = host.with_runtime(|runtime, list| runtime.gc(list, Some(&[]))).unwrap_err();
    assert_eq!((format!("{error}\n"), host.calls().as_str()), (expected, "GC a, GC b, GC c"));
}

#[test]
fn gc_reports_a_missing_plugin_and_runs_the_others() {
    let host = Host::new("1.1.0");
    std::fs::remove_file(host.0.join("bin/b")).unwrap();
    let missing = format!(
        "failed to GC plugin b: failed to find plugin \"b\" in path [{}]",
        host.0.join("bin").display()
    );
    host.net("gc net").assert_is(1, &told(&host, "", "ac", 0), &format!("{missing}\n"));
    assert_eq!(host.calls(), "GC a, GC c");
}
