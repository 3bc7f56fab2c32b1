//! `cni-multi net …` from the outside: its output and its errors.

mod capability;
mod check;
mod exec;
mod gc;
mod inspect;
mod kernel;
mod list;
mod manual;
mod names;
mod output;
mod ps;
mod sync;
mod timings;
mod trace;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::runtime::assert_failed;
use crate::support::call::{Call, Outcome, binary};
use crate::support::scratch::Scratch;

/// The fake plugin `slow`: its DEL takes 30 ms. If the file `interrupt` exists, each call sends the
/// signal named in it to the parent process. If the file `fails` exists, DEL fails.
const PLUGIN: &str = r#"#!/bin/sh
cat >DIR/$CNI_COMMAND-$CNI_CONTAINERID.stdin
test ! -e DIR/interrupt || kill -$(cat DIR/interrupt) $PPID
case $CNI_COMMAND in
  ADD) printf '{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}]}' ;;
  DEL) sleep 0.03; test ! -e DIR/fails || { echo '{"code":11,"msg":"busy"}'; exit 1; } ;;
esac
"#;

/// A scratch directory with directories of networks, plugins and results.
struct Site(Scratch);

impl Site {
    fn new() -> Site {
        let site = Site(Scratch::new());
        for dir in ["net.d", "bin", "cache/results"] {
            fs::create_dir_all(site.0.join(dir)).unwrap();
        }
        let plugin = site.0.join("bin/slow");
        fs::write(&plugin, PLUGIN.replace("DIR", site.0.text())).unwrap();
        fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
        site
    }

    /// A site with the network `lab` of one built-in plugin that changes nothing.
    fn with_lab() -> Site {
        let site = Site::new();
        site.network("10-lab.conflist", &static_network("lab"));
        site
    }

    fn network(&self, file: &str, list: &Value) {
        fs::write(self.0.join("net.d").join(file), list.to_string()).unwrap();
    }

    /// Writes a cache file in libcni's format.
    fn attached(&self, network: &str, id: &str, netns: &str, result: &Value) {
        let config =
            // The network `lab` with the plugin `slow`.
            "eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoibGFiIiwicGx1Z2lucyI6W3sidHlwZSI6InNsb3cifV19";
        let record = json!({
            "kind": "cniCacheV1", "containerId": id, "config": config, "ifName": "eth0", "networkName": network,
            "netns": netns, "cniArgs": [["A", "1"]], "capabilityArgs": {"mac": "02:00:00:00:00:01"}, "result": result,
        });
        self.cached(&format!("{network}-{id}-eth0"), &record.to_string());
    }

    fn cached(&self, name: &str, text: &str) {
        fs::write(self.0.join("cache/results").join(name), text).unwrap();
    }

    fn cached_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.join("cache/results")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Prepares `cni-multi net LINE`.
    fn call(&self, line: &str) -> Call {
        self.call_with(&line.split_whitespace().collect::<Vec<_>>())
    }

    fn call_with(&self, words: &[&str]) -> Call {
        let mut args: Vec<String> =
            std::iter::once("net").chain(words.iter().copied()).map(str::to_owned).collect();
        if !matches!(words[0], "list" | "status") {
            args.extend(["--cache-dir".to_owned(), self.at("cache")]);
        }
        let env = [("NETCONFPATH", self.at("net.d")), ("CNI_PATH", self.at("bin"))];
        let env: BTreeMap<_, _> =
            env.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Call { program: binary(), args, env, stdin: vec![], wrapper: vec![] }
    }

    fn net(&self, line: &str) -> Outcome {
        self.call(line).run()
    }

    /// The stdout of a successful call, without the path of the site.
    #[track_caller]
    fn prints(&self, line: &str) -> String {
        let outcome = self.net(line);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{line}");
        outcome.stdout.replace(self.0.text(), "")
    }

    /// The JSON output of a successful call, without the path of the site.
    #[track_caller]
    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.prints(&format!("{line} -o json"))).unwrap()
    }
}

fn static_network(name: &str) -> Value {
    let plugin = json!({"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/24"}]}});
    json!({"cniVersion": "1.1.0", "name": name, "plugins": [plugin]})
}

fn slow_network(name: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "slow"}]})
}

fn result(addresses: &[&str]) -> Value {
    let ips: Vec<Value> = addresses.iter().map(|address| json!({"address": address})).collect();
    json!({"cniVersion": "1.1.0", "ips": ips})
}
