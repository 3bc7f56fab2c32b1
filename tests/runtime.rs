//! `cni-multi net …`: whole networks of fake plugins, seen from outside.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::attachment::skip;
use crate::support::call::{Call, Outcome, binary};
use crate::support::scratch::Scratch;

/// What a fake plugin does: it writes down that it was called, with what, and answers what is prepared for it.
const PLUGIN: &str = r#"#!/bin/sh
said=DIR/$CNI_COMMAND-${0##*/}
echo "$CNI_COMMAND ${0##*/}" >>DIR/log
cat >$said.stdin
env | grep '^CNI_' | sort >$said.env
test -e $said.stderr && cat $said.stderr >&2
test -e $said.out && cat $said.out
test -e $said.fails && exit 1
exit 0
"#;

/// A host with networks, plugins and a cache.
struct Host(Scratch);

impl Host {
    /// The network `net` with the version and the plugins `a`, `b` and `c`.
    fn new(version: &str) -> Host {
        let host = Host(Scratch::new());
        for dir in ["net.d", "bin", "cache"] {
            fs::create_dir(host.0.join(dir)).unwrap();
        }
        for name in ["a", "b", "c"] {
            host.plugin(name);
        }
        host.network(&json!({
            "cniVersion": version,
            "name": "net",
            "plugins": [{"type": "a", "capabilities": {"mac": true}}, {"type": "b", "name": "own"}, {"type": "c"}],
        }));
        host
    }

    fn plugin(&self, name: &str) {
        let file = self.0.join("bin").join(name);
        fs::write(&file, PLUGIN.replace("DIR", self.0.text())).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    }

    fn network(&self, list: &Value) {
        fs::write(self.0.join("net.d/10-net.conflist"), list.to_string()).unwrap();
    }

    /// Prepares what a plugin prints on a command, and whether it fails.
    fn answer(&self, command: &str, plugin: &str, stdout: &str, fails: bool) {
        fs::write(self.0.join(&format!("{command}-{plugin}.out")), stdout).unwrap();
        let fails_file = self.0.join(&format!("{command}-{plugin}.fails"));
        let _ = fs::remove_file(&fails_file); // it may not have failed before either
        if fails {
            fs::write(fails_file, "").unwrap();
        }
    }

    /// Lets every ADD succeed.
    fn answer_adds(&self) {
        for plugin in ["a", "b", "c"] {
            self.answer("ADD", plugin, &result("10.0.0.1/24"), false);
        }
    }

    /// `cni-multi net …`, as a call that can still be changed.
    fn call(&self, line: &str) -> Call {
        let at = |name: &str| self.0.join(name).to_str().unwrap().to_owned();
        let options = ["--cache-dir".to_owned(), at("cache")];
        let args = std::iter::once("net").chain(line.split(' ')).map(str::to_owned);
        let args = if line.starts_with("list") { args.collect() } else { args.chain(options).collect() };
        let env = [("NETCONFPATH", at("net.d")), ("CNI_PATH", at("bin"))];
        let env: BTreeMap<_, _> = env.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Call { program: binary(), args, env, stdin: vec![], wrapper: vec![] }
    }

    fn net(&self, line: &str) -> Outcome {
        self.call(line).run()
    }

    /// Which plugins were called since the last time, `ADD a, ADD b`.
    fn calls(&self) -> String {
        let log = self.0.join("log");
        let calls = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log); // nothing was called
        calls.trim_end().replace('\n', ", ")
    }

    /// What a plugin got on stdin.
    fn config(&self, call: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.0.join(&format!("{call}.stdin"))).unwrap()).unwrap()
    }

    fn env(&self, call: &str) -> String {
        fs::read_to_string(self.0.join(&format!("{call}.env"))).unwrap()
    }

    /// The cache file of `ID` at eth0.
    fn cached(&self) -> PathBuf {
        self.0.join("cache/results/net-id-1-eth0")
    }

    fn cached_names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join("cache/results")) else { return vec![] };
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A result of 1.0.0 with one address.
fn result(address: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","ips":[{{"address":"{address}"}}]}}"#)
}

const ID: &str = "--container-id id-1";

#[track_caller]
fn assert_silent(outcome: &Outcome) {
    assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
}

/// A failure is told on stderr: first the message, then the details, where there are any.
#[track_caller]
fn assert_failed(outcome: &Outcome, msg: &str, details: &str) {
    let stderr =
        [msg, details].iter().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect::<String>();
    assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()), (1, "", stderr.as_str()));
}

#[test]
fn add_chains_results_and_prints_and_keeps_the_last() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", &result("10.0.0.1/24"), false);
    host.answer("ADD", "b", &result("10.0.0.2/24"), false);
    host.answer("ADD", "c", r#"{"ips":[{"address":"10.0.0.3/24"}]}"#, false);
    let call = host.call(&format!("add net /run/netns/t {ID} --args K=V;L=W"));
    let outcome =
        call.env("CAP_ARGS", r#"{"mac":"02:00:00:00:00:01","ips":["10.9.9.9"]}"#).env("CNI_CONTAINERID", "stale").run();
    assert_eq!(
        outcome.stdout,
        "{\n    \"cniVersion\": \"1.0.0\",\n    \"ips\": [\n        {\n            \"address\": \"10.0.0.3/24\"\n        }\n    ]\n}"
    );
    assert_eq!((outcome.status, host.calls().as_str()), (0, "ADD a, ADD b, ADD c"));

    let config = |plugin: &str| host.config(&format!("ADD-{plugin}"));
    assert_eq!(config("a")["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}), "declared and supplied");
    assert_eq!((config("a").get("prevResult"), config("b").get("runtimeConfig")), (None, None));
    assert_eq!((&config("b")["name"], &config("b")["cniVersion"]), (&json!("net"), &json!("1.0.0")));
    assert_eq!(config("b")["prevResult"], serde_json::from_str::<Value>(&result("10.0.0.1/24")).unwrap());
    assert_eq!(config("c")["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    let bin = host.0.join("bin");
    let expected = format!(
        "CNI_ARGS=K=V;L=W\nCNI_COMMAND=ADD\nCNI_CONTAINERID=id-1\nCNI_IFNAME=eth0\nCNI_NETNS=/run/netns/t\nCNI_PATH={}\n",
        bin.display()
    );
    assert_eq!((host.env("ADD-a"), host.env("ADD-c")), (expected.clone(), expected));

    let cached: Value = serde_json::from_str(&fs::read_to_string(host.cached()).unwrap()).unwrap();
    assert_eq!(
        (&cached["kind"], &cached["netns"], &cached["cniArgs"]),
        (&json!("cniCacheV1"), &json!("/run/netns/t"), &json!([["K", "V"], ["L", "W"]]))
    );
    assert_eq!(cached["result"], outcome.json());
}

#[test]
fn every_interface_has_its_own_cache_file_and_the_id_is_cnitool_s() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    for line in ["add net /var/run/netns/testing", "add net /var/run/netns/testing -i net1"] {
        assert_eq!(host.net(line).status, 0);
    }
    assert_eq!(host.cached_names(), ["net-cnitool-77383ca0a0715733ca6f-eth0", "net-cnitool-77383ca0a0715733ca6f-net1"]);
}

#[test]
fn a_result_of_another_version_is_converted_for_the_next_plugin() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}"#, false);
    assert_eq!(host.net(&format!("add net /x {ID}")).status, 1, "b printed nothing");
    assert_eq!(host.config("ADD-b")["prevResult"], serde_json::from_str::<Value>(&result("10.0.0.1/24")).unwrap());
}

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
fn a_missing_plugin_shows_before_anything_is_done() {
    let host = Host::new("1.0.0");
    let bin = host.0.join("bin");
    fs::remove_file(bin.join("c")).unwrap();
    let missing = format!("failed to find plugin \"c\" in path [{}]", bin.display());
    assert_failed(&host.net(&format!("add net /x {ID}")), &format!("plugin type=\"c\" failed (add): {missing}"), "");
    assert_failed(&host.net(&format!("del net /x {ID}")), &format!("plugin type=\"c\" failed (delete): {missing}"), "");
    assert_eq!(host.calls(), "");
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

#[test]
fn nothing_on_stdout_of_a_successful_add_is_a_failure() {
    let host = Host::new("1.0.0");
    let outcome = host.net(&format!("add net /x {ID}"));
    assert!(
        outcome.stderr.starts_with("plugin type=\"a\" failed (add): failed to unmarshal raw result: "),
        "{outcome:?}"
    );
}

#[test]
fn check_gives_every_plugin_the_final_result() {
    let host = Host::new("0.4.0");
    for (plugin, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24"), ("c", "10.0.0.3/24")] {
        host.answer("ADD", plugin, &result(address), false);
    }
    assert_eq!(host.net(&format!("add net /x {ID}")).ok()["cniVersion"], "0.4.0");
    host.calls();
    assert_silent(&host.net(&format!("check net /x {ID} --capability-args {{\"mac\":1}}")));
    assert_eq!(host.calls(), "CHECK a, CHECK b, CHECK c");
    for plugin in ["a", "b", "c"] {
        assert_eq!(host.config(&format!("CHECK-{plugin}"))["prevResult"]["ips"][0]["address"], "10.0.0.3/24");
    }
    assert_eq!(host.config("CHECK-a")["runtimeConfig"], json!({"mac": 1}));

    host.answer("CHECK", "b", r#"{"code":103,"msg":"no such rule","details":"add it"}"#, true);
    assert_failed(
        &host.net(&format!("check net /x {ID}")),
        "no such rule",
        "add it; reported by plugin type=\"b\" name=\"own\"",
    );
    assert_eq!(host.calls(), "CHECK a, CHECK b");
}

#[test]
fn check_reads_caches_of_libcni_0_7_and_refuses_corrupt_ones() {
    let host = Host::new("0.4.0");
    fs::create_dir(host.0.join("cache/results")).unwrap();
    fs::write(host.cached(), r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.1/24"}]}"#).unwrap();
    assert_silent(&host.net(&format!("check net /x {ID}")));
    assert_eq!(host.config("CHECK-a")["prevResult"]["cniVersion"], "0.4.0");
    host.calls();
    for (text, msg) in [
        ("{", "decoding version from network config: "),
        (r#"{"cniVersion":"0.4567.0"}"#, "unsupported CNI result version"),
    ] {
        fs::write(host.cached(), text).unwrap();
        let outcome = host.net(&format!("check net /x {ID}"));
        assert!(
            outcome.stderr.starts_with(&format!("failed to get network \"net\" cached result: {msg}")),
            "{outcome:?}"
        );
    }
    fs::remove_file(host.cached()).unwrap();
    assert_eq!(host.calls(), "");
    assert_silent(&host.net(&format!("check net /x {ID}")));
    assert_eq!(host.config("CHECK-a").get("prevResult"), None, "it is for the plugin to miss it");
}

#[test]
fn check_is_refused_before_0_4_0_and_can_be_disabled() {
    let host = Host::new("0.3.1");
    assert_failed(&host.net("check net /x"), "configuration version \"0.3.1\" does not support the CHECK command", "");
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "disableCheck": "TRUE", "plugins": [{"type": "a"}]}));
    assert_silent(&host.net("check net /x"));
    assert_eq!(host.calls(), "");
}

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

        assert_silent(&host.net(&format!("del net /x {ID}")));
        assert_eq!(host.config("DEL-c").get("prevResult"), None);
    }
}

#[test]
fn a_failed_del_stops_and_can_be_repeated() {
    let host = Host::new("1.0.0");
    fs::create_dir(host.0.join("cache/results")).unwrap();
    fs::write(host.cached(), result("10.0.0.1/24")).unwrap();
    host.answer("DEL", "b", r#"{"code":11,"msg":"plugin error: banana"}"#, true);
    let outcome = host.net(&format!("del net /x {ID}"));
    assert_failed(&outcome, "plugin type=\"b\" name=\"own\" failed (delete): plugin error: banana", "");
    assert_eq!((host.calls().as_str(), host.cached().exists()), ("DEL c, DEL b", true));
    host.answer("DEL", "b", "", false);
    assert_silent(&host.net(&format!("del net /x {ID}")));
    assert!(host.config("DEL-a").get("prevResult").is_some() && !host.cached().exists());
}

#[test]
fn del_does_without_a_cache_that_cannot_be_read() {
    let host = Host::new("1.0.0");
    fs::create_dir(host.0.join("cache/results")).unwrap();
    for text in ["", "{", "[]", r#"{"cniVersion":"0.4567.0"}"#, r#"{"kind":"cniCacheV1","result":"x"}"#] {
        fs::write(host.cached(), text).unwrap();
        assert_silent(&host.net(&format!("del net /x {ID}")));
        assert_eq!((host.calls().as_str(), host.cached().exists()), ("DEL c, DEL b, DEL a", false), "{text}");
        assert_eq!(host.config("DEL-a").get("prevResult"), None);
    }
}

#[test]
fn status_stops_at_the_first_plugin_that_is_not_ready() {
    let host = Host::new("1.1.0");
    assert_silent(&host.net("status net"));
    assert_eq!(host.calls(), "STATUS a, STATUS b, STATUS c");
    host.answer("STATUS", "b", r#"{"code":50,"msg":"not ready"}"#, true);
    assert_failed(&host.net("status net"), "not ready", "reported by plugin type=\"b\" name=\"own\"");
    assert_eq!(host.calls(), "STATUS a, STATUS b");
    assert!(
        host.env("STATUS-a").starts_with("CNI_ARGS=\nCNI_COMMAND=STATUS\nCNI_CONTAINERID=\nCNI_IFNAME=\nCNI_NETNS=\n")
    );

    let older = Host::new("1.0.0");
    assert_silent(&older.net("status net"));
    assert_eq!(older.calls(), "", "there is no such question");
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
    assert_silent(&host.net("gc net"));
    assert_eq!(host.calls(), "DEL c, DEL b, DEL a, GC a, GC b, GC c");
    assert!(host.env("DEL-a").starts_with(
        "CNI_ARGS=K=V\nCNI_COMMAND=DEL\nCNI_CONTAINERID=stale\nCNI_IFNAME=eth0\nCNI_NETNS=/nonexistent\n"
    ));
    assert_eq!(host.cached_names(), ["net-live-eth0"]);
    let valid = json!([{"containerID": "live", "ifname": "eth0"}]);
    assert_eq!(
        (&host.config("GC-c")["cni.dev/valid-attachments"], &host.config("GC-c")["cni.dev/attachments"]),
        (&valid, &valid)
    );

    host.answer("GC", "a", r#"{"code":5,"msg":"one"}"#, true);
    host.answer("GC", "c", r#"{"code":5,"msg":"two"}"#, true);
    assert_failed(&host.net("gc net"), "failed to GC plugin a: one", "also: failed to GC plugin c: two");
    assert_eq!(host.calls(), "GC a, GC b, GC c");

    host.network(&json!({"cniVersion": "1.1.0", "name": "net", "disableGC": true, "plugins": [{"type": "a"}]}));
    assert_silent(&host.net("gc net"));
    assert_eq!(host.calls(), "");
}

#[test]
fn what_plugins_say_on_stderr_is_passed_on() {
    let host = Host::new("1.1.0");
    fs::write(host.0.join("STATUS-a.stderr"), "words for people\n").unwrap();
    let outcome = host.net("status net");
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, "words for people\n"));
}

#[test]
fn a_lone_binary_is_its_own_plugins() {
    let host = Host::new("1.0.0");
    let static_ip = json!({"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/24"}]}});
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [static_ip]}));
    for call in [host.call("add net /nonexistent"), host.call("add net /nonexistent").without("CNI_PATH")] {
        assert_eq!(call.run().ok()["ips"][0]["address"], "10.5.0.2/24");
    }
    let wrong = json!({"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/240"}]}});
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [wrong]}));
    let outcome = host.net("add net /nonexistent -i other");
    assert!(outcome.status == 1 && outcome.stderr.starts_with("plugin type=\"static\" failed (add): "), "{outcome:?}");
    assert!(outcome.stdout.is_empty() && outcome.stderr.contains("10.5.0.2/240"), "{outcome:?}");
}

#[test]
fn a_file_of_a_compiled_in_plugin_s_name_is_run_in_its_place() {
    let host = Host::new("1.1.0");
    host.plugin("bridge");
    host.network(&json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bridge"}]}));
    assert_silent(&host.net("status net"));
    assert_eq!(host.calls(), "STATUS bridge");
}

#[test]
fn networks_are_listed_in_the_order_of_the_search() {
    let host = Host::new("1.1.0");
    fs::write(host.0.join("net.d/20-bad.conflist"), "{").unwrap();
    fs::write(host.0.join("net.d/05-single.conf"), r#"{"name":"single","cniVersion":"0.3.1","type":"a"}"#).unwrap();
    let outcome = host.net("list");
    let lines: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let at = |name: &str| format!("{}/net.d/{name}", host.0.text());
    assert_eq!(outcome.status, 0);
    assert_eq!(
        lines,
        [
            ["net", "1.1.0", &at("10-net.conflist")],
            ["-", "-", &at("20-bad.conflist:")],
            ["single", "0.3.1", &at("05-single.conf")]
        ]
    );
}

#[test]
fn mistakes_of_the_operator_run_nothing() {
    let host = Host::new("1.1.0");
    let dir = host.0.join("net.d");
    assert_failed(
        &host.net("add other /x"),
        &format!("no net configuration with name \"other\" in {}", dir.display()),
        "",
    );
    assert_failed(&host.net("add ../net /x"), "invalid characters found in network name", "../net");
    assert_failed(&host.net("del net /x --args oops"), "invalid CNI_ARGS pair \"oops\"", "");
    let nowhere = host.call("add net /x").env("NETCONFPATH", "/nonexistent").run();
    assert_failed(&nowhere, "no net configurations found in /nonexistent", "");
    for line in ["", "add net", "frobnicate net /x", "list net"] {
        let outcome = host.net(line);
        assert!(outcome.status == 2 && outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{line}: {outcome:?}");
    }
    assert_eq!(host.calls(), "");
}
