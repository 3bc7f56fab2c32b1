//! `net gc` reports what it does.

use std::fs;
use std::process::Command;

use base64::Engine as _;
use serde_json::json;

use super::{Site, assert_failed, result, slow_network, static_network};
use crate::support::attachment::with;
use crate::support::call::Outcome;

const GONE: &str = "/nonexistent";
const HERE: &str = "/proc/self/ns/net";

fn attach(site: &Site, network: &str, ids: impl IntoIterator<Item = impl AsRef<str>>, netns: &str) {
    ids.into_iter().for_each(|id| site.attached(network, id.as_ref(), netns, &result(&[])));
}

/// The expected output: the lines of the attachments, then the summary.
fn done(lines: &str, detached: usize) -> String {
    format!("{lines}detached {detached}; without a record: removed 0, spared 0\n")
}

fn looked(lines: &str, detached: usize) -> String {
    format!("{lines}would detach {detached}; without a record: would remove 0, would spare 0\n")
}

/// Expects a failure with a summary of zero detached attachments.
#[track_caller]
fn assert_fails_in_the_end(outcome: &Outcome, stderr: &str) {
    outcome.assert_is(1, &done("", 0), stderr);
}

#[test]
fn each_attachment_that_is_detached_is_reported() {
    let site = Site::with_lab();
    attach(&site, "lab", ["a", "b"], GONE);
    attach(&site, "lab", ["here"], HERE);
    attach(&site, "other", ["c"], GONE);
    assert_eq!(
        site.prints("gc lab --dry-run"),
        looked("would detach lab a eth0\nwould detach lab b eth0\n", 2)
    );
    assert_eq!(site.cached_names().len(), 4, "nothing was done");
    assert!(!site.has("cache/lock"), "not even a lock was taken");
    let all = "would detach lab a eth0\nwould detach lab b eth0\nwould detach other c eth0\n";
    assert_eq!(site.prints("gc --dry-run"), looked(all, 3));
    assert!(!site.has("cache/lock"));
    let detach = |id: &str| json!({"action": "detach", "network": "lab", "containerId": id, "ifname": "eth0", "netns": GONE});
    assert_eq!(site.json("gc lab --dry-run"), json!([detach("a"), detach("b")]));
    assert_eq!(site.prints("gc lab"), done("detached lab a eth0\ndetached lab b eth0\n", 2));
    attach(&site, "lab", ["a"], GONE);
    assert_eq!(site.json("gc lab"), json!([detach("a")]));
    assert_eq!(site.cached_names(), ["lab-here-eth0", "other-c-eth0"]);
    assert_eq!(site.prints("gc lab"), done("", 0));
    assert_eq!(site.prints("gc lab --dry-run"), looked("", 0));
    assert_eq!(site.json("gc lab"), json!([]));
}

#[test]
fn gc_of_all_collects_networks_without_a_configuration_too() {
    let site = Site::with_lab();
    site.network("20-mynet.conflist", &static_network("mynet"));
    site.network("30-lab.conflist", &slow_network("lab"));
    for network in ["lab", "mynet", "removed"] {
        attach(&site, network, ["a"], GONE);
        attach(&site, network, ["here"], HERE);
    }
    let lines =
        |verb: &str| format!("{verb} lab a eth0\n{verb} mynet a eth0\n{verb} removed a eth0\n");
    assert_eq!(site.prints("gc --dry-run"), looked(&lines("would detach"), 3));
    assert_eq!(site.prints("gc"), done(&lines("detached"), 3));
    assert!(site.has("DEL-a.stdin"), "by the configuration that it had");
    assert_eq!(site.cached_names(), ["lab-here-eth0", "mynet-here-eth0", "removed-here-eth0"]);
}

#[test]
fn what_fails_keeps_nothing_else_from_being_done() {
    let site = Site::with_lab();
    site.network("20-slow.conflist", &slow_network("slow"));
    fs::write(site.at("net.d/30-torn.conflist"), "{").unwrap();
    fs::write(site.at("fails"), "").unwrap();
    attach(&site, "lab", ["a"], GONE);
    attach(&site, "slow", ["b", "c"], GONE);
    site.cached(
        "removed-d-eth0",
        r#"{"kind":"cniCacheV1","containerId":"d","ifName":"eth0","networkName":"removed","netns":"/nonexistent"}"#,
    );
    let outcome = site.net("gc");
    let busy = |id: &str| {
        format!(
            "failed to delete stale attachment {id} eth0: plugin type=\"slow\" failed (delete): busy"
        )
    };
    let torn = format!(
        "error parsing configuration list: EOF while parsing an object at line 1 column 1; the file is {}",
        site.at("net.d/30-torn.conflist")
    );
    let left_alone = "networks without a configuration are skipped, because a file cannot be read";
    let stderr = format!("{left_alone}\n{}\nalso: {}; also: {torn}\n", busy("b"), busy("c"));
    outcome.assert_is(1, &done("detached lab a eth0\n", 1), &stderr);
    assert_eq!(site.cached_names(), ["removed-d-eth0", "slow-b-eth0", "slow-c-eth0"]);
}

/// Records an attachment of a network that lost its configuration after ADD.
fn of_forgotten(site: &Site, id: &str, document: &serde_json::Value) {
    let config = base64::engine::general_purpose::STANDARD.encode(document.to_string());
    let record = json!({
        "kind": "cniCacheV1", "containerId": id, "config": config, "ifName": "eth0", "networkName": "removed",
        "netns": GONE,
    });
    site.cached(&format!("removed-{id}-eth0"), &record.to_string());
}

/// The cached configuration does not include the plugin files in the directory of its network.
#[test]
fn gc_without_configuration_uses_the_network_s_plugin_directory() {
    let site = Site::with_lab();
    of_forgotten(&site, "a", &json!({"cniVersion": "1.0.0", "name": "removed"}));
    let msg = "network \"removed\" has no configuration any more: no plugin configs found";
    assert_fails_in_the_end(&site.net("gc"), &format!("{msg}\n"));
    assert_eq!(site.cached_names(), ["removed-a-eth0"], "so that it can be repeated");
    fs::create_dir(site.at("net.d/removed")).unwrap();
    fs::write(site.at("net.d/removed/10-slow.conf"), r#"{"type":"slow"}"#).unwrap();
    assert_eq!(site.prints("gc"), done("detached removed a eth0\n", 1));
    assert!(site.has("DEL-a.stdin"));
    assert_eq!(site.cached_names(), [""; 0]);
}

#[test]
fn gc_without_configuration_spares_a_network_with_gc_disabled() {
    let site = Site::with_lab();
    of_forgotten(&site, "a", &with(&slow_network("removed"), json!({"disableGC": true})));
    let why = "its network has disableGC; `cni-multi net del` detaches it";
    let summaries = [
        "would detach 0, would spare 1; without a record: would remove 0, would spare 0\n",
        "detached 0, spared 1; without a record: removed 0, spared 0\n",
    ];
    let expected = [
        format!("would spare removed a eth0: {why}\n{}", summaries[0]),
        format!("spared removed a eth0: {why}\n{}", summaries[1]),
    ];
    assert_eq!([site.prints("gc --dry-run"), site.prints("gc")], expected);
    assert_eq!(site.cached_names(), ["removed-a-eth0"]);
    assert!(!site.has("DEL-a.stdin"));
}

/// What stays is named, and why; a living attachment is none of GC's business.
#[test]
fn gc_disabled_names_what_it_leaves() {
    let site = Site::with_lab();
    site.network("20-kept.conflist", &with(&slow_network("kept"), json!({"disableGC": true})));
    attach(&site, "kept", ["a"], GONE);
    attach(&site, "kept", ["here"], HERE);
    let why = "its network has disableGC; `cni-multi net del` detaches it";
    let line = format!("spared kept a eth0: {why}\n");
    let summary = "detached 0, spared 1; without a record: removed 0, spared 0\n";
    assert_eq!(site.prints("gc kept"), format!("{line}{summary}"));
    assert_eq!(site.prints("gc"), format!("{line}{summary}"));
    assert!(!site.has("DEL-a.stdin") && site.cached_names().len() == 2);
    let told = json!([{"action": "spare", "network": "kept", "containerId": "a", "ifname": "eth0", "netns": GONE, "why": why}]);
    assert_eq!(site.json("gc kept"), told);
}

/// A symbolic link, a FIFO or a directory may belong to a living container. cnitool waits for a
/// FIFO, and ignores the rest.
#[test]
fn what_is_no_file_in_the_cache_is_shown_and_spared() {
    let site = Site::with_lab();
    let results = site.at("cache/results");
    fs::create_dir(format!("{results}/lab-dir-eth0")).unwrap();
    let fifo = Command::new("mkfifo").arg(format!("{results}/lab-fifo-eth0")).status();
    assert!(fifo.unwrap().success());
    std::os::unix::fs::symlink("nowhere", format!("{results}/lab-link-eth0")).unwrap();
    let names = ["lab-dir-eth0", "lab-fifo-eth0", "lab-link-eth0"];
    let reasons = ["not a regular file", "not a regular file", "too many levels of symbolic links"];
    let problem = |at: usize| format!("read {results}/{}: {}", names[at], reasons[at]);
    let problems = [0, 1, 2].map(problem);
    let shown = site.net("ps -o json").ok();
    let told = shown.as_array().unwrap().iter().map(|row| row["problem"].as_str().unwrap());
    assert_eq!(told.collect::<Vec<_>>(), problems);
    let stderr = format!("{}\nalso: {}; also: {}\n", problems[0], problems[1], problems[2]);
    assert_fails_in_the_end(&site.net("gc lab"), &stderr);
    assert_eq!(site.cached_names(), names);
    let unread = format!("failed to get network \"lab\" cached result: {}", problems[1]);
    assert_failed(&site.net("check lab /x --container-id fifo"), &unread, "");
}

#[test]
fn a_lock_that_is_no_file_is_not_waited_for_or_followed() {
    let site = Site::with_lab();
    let lock = site.at("cache/lock");
    assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
    assert_eq!(site.prints("gc lab"), done("", 0));
    fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink(site.at("target"), &lock).unwrap();
    assert_eq!(site.prints("gc lab"), done("", 0));
    assert!(!site.has("target"));
}

#[test]
fn a_closed_reader_does_not_stop_the_detaching() {
    let site = Site::with_lab();
    attach(&site, "lab", ["a", "b", "c"], GONE);
    let call =
        site.call("gc lab").wrapped(&["sh", "-c", "\"$@\" >/dev/full", "sh"].map(str::to_owned));
    assert_failed(&call.run(), "write to stdout: no space left on device", "");
    assert_eq!(site.cached_names(), [""; 0]);
}

#[test]
fn three_hundred_attachments_are_collected() {
    let site = Site::with_lab();
    let ids: Vec<String> = (100..400).map(|number| format!("c{number}")).collect();
    attach(&site, "lab", &ids, GONE);
    attach(&site, "lab", ["here"], HERE);
    let expected: String = ids.iter().map(|id| format!("detached lab {id} eth0\n")).collect();
    assert_eq!(site.prints("gc lab"), done(&expected, 300), "and no progress without a terminal");
    assert_eq!(site.cached_names(), ["lab-here-eth0"]);
}
