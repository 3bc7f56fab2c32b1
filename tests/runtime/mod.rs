//! Whole networks of fake plugins, run by `cni-multi net` and through the library.

mod add;
mod cache;
mod check;
mod del;
mod gc;
mod get;
mod mixed;
mod own;
mod same_time;
mod status;
mod undo;
mod versions;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cni_multi::cni::env::Environment;
use cni_multi::registry::PLUGINS;
use cni_multi::runtime::cache::Cache;
use cni_multi::runtime::chain::Runtime;
use cni_multi::runtime::directory;
use cni_multi::runtime::list::NetworkList;
use serde_json::{Value, json};

use crate::support::call::{Call, Outcome, binary};
use crate::support::scratch::Scratch;

/// A fake plugin: it records each call with its input, and gives the prepared answer.
const PLUGIN: &str = r#"#!/bin/sh
said=DIR/$CNI_COMMAND-${0##*/}
echo "$CNI_COMMAND ${0##*/}" >>DIR/log
cat >$said.stdin
env | grep '^CNI_' | sort >$said.env
test -e $said.stderr && cat $said.stderr >&2
test -e $said.does && . $said.does
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

    /// A script that a plugin runs on a command, before it answers.
    fn does(&self, command: &str, plugin: &str, script: &str) {
        fs::write(self.0.join(&format!("{command}-{plugin}.does")), script).unwrap();
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
        let args =
            if line.starts_with("list") { args.collect() } else { args.chain(options).collect() };
        let env = [("NETCONFPATH", at("net.d")), ("CNI_PATH", at("bin"))];
        let env: BTreeMap<_, _> =
            env.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Call { program: binary(), args, env, stdin: vec![], wrapper: vec![] }
    }

    fn net(&self, line: &str) -> Outcome {
        self.call(line).run()
    }

    /// The library on this host with its network, for operations that have no command.
    fn with_runtime<T>(&self, then: impl FnOnce(&mut Runtime<'_>, &NetworkList) -> T) -> T {
        let list = directory::load(&self.0.join("net.d/10-net.conflist")).unwrap();
        let env = Environment::default().with("PATH", std::env::var_os("PATH").unwrap_or_default());
        let (path, cache) =
            (self.0.join("bin").to_str().unwrap().to_owned(), Cache::new(self.0.join("cache")));
        then(
            &mut Runtime {
                plugins: PLUGINS,
                env: &env,
                path,
                cache,
                stderr: &mut std::io::sink(),
                handles: Rc::default(),
                is_traced: false,
            },
            &list,
        )
    }

    /// The plugin calls since the last time, as in `ADD a, ADD b`.
    fn calls(&self) -> String {
        let log = self.0.join("log");
        let calls = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log); // missing if no plugin was called
        calls.trim_end().replace('\n', ", ")
    }

    /// The stdin of a plugin's call.
    fn config(&self, call: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.0.join(&format!("{call}.stdin"))).unwrap())
            .unwrap()
    }

    fn env(&self, call: &str) -> String {
        fs::read_to_string(self.0.join(&format!("{call}.env"))).unwrap()
    }

    /// The cache file of `ID` at eth0.
    fn cached(&self) -> PathBuf {
        self.0.join("cache/results/net-id-1-eth0")
    }

    /// Puts a file into the cache, as some runtime left it.
    fn cache(&self, name: &str, text: &str) {
        let _ = fs::create_dir(self.0.join("cache/results")); // it may be there
        fs::write(self.0.join("cache/results").join(name), text).unwrap();
    }

    fn cached_names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join("cache/results")) else { return vec![] };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A result of 1.0.0 with one address.
fn result(address: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","ips":[{{"address":"{address}"}}]}}"#)
}

const ID: &str = "--container-id id-1";

/// A call in a mount namespace where `dir` is an empty file system of this size.
fn with_small_disk(call: Call, dir: &Path, size: &str) -> Call {
    let script = format!("mount -t tmpfs -o size={size} small {} && exec \"$@\"", dir.display());
    let wrapper = ["unshare", "-Urm", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    let wrapper = [wrapper, call.wrapper.clone()].concat();
    call.wrapped(&wrapper)
}

#[track_caller]
fn assert_silent(outcome: &Outcome) {
    outcome.assert_is(0, "", "");
}

/// It succeeds, and says that there was no record.
#[track_caller]
fn assert_unrecorded(outcome: &Outcome, network: &str) {
    let said =
        format!("no attachment of eth0 of /x to {network} was recorded; recorded: nothing\n");
    outcome.assert_is(0, "", &said);
}

/// A failure is reported on stderr: the message, then the details if there are any.
#[track_caller]
pub fn assert_failed(outcome: &Outcome, msg: &str, details: &str) {
    let lines = [msg, details].into_iter().filter(|line| !line.is_empty());
    let stderr: String = lines.map(|line| format!("{line}\n")).collect();
    outcome.assert_is(1, "", &stderr);
}
