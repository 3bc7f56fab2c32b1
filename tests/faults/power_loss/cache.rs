//! Kills and power losses while `net add` and `net del` write the cache of results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::disk::Disk;
use super::losses::{Depth, State};
use super::recording::Recording;
use super::{Verdict, assert_is_evidence, depth, require, succeeds, sweep};
use crate::support::call::{Call, binary, farm};
use crate::support::scratch::Scratch;

/// A network with a plugin that keeps no state, and a cache.
struct Site(Scratch);

impl Site {
    fn new() -> Site {
        let site = Site(Scratch::new());
        std::fs::create_dir(site.0.join("cache")).unwrap();
        let addresses = json!([{"address": "10.1.2.3/24"}]);
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [
            {"type": "static", "ipam": {"type": "static", "addresses": addresses}},
        ]});
        std::fs::create_dir(site.0.join("net.d")).unwrap();
        std::fs::write(site.0.join("net.d/10-net.conflist"), list.to_string()).unwrap();
        site
    }

    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    /// `cni-multi net LINE`. The namespaces do not exist any more, as after a power loss.
    fn call(&self, line: &str) -> Call {
        let mut args: Vec<String> =
            std::iter::once("net").chain(line.split(' ')).map(str::to_owned).collect();
        args.extend(["--cache-dir".to_owned(), self.cache().to_str().unwrap().to_owned()]);
        let conf = self.0.join("net.d").to_str().unwrap().to_owned();
        let env = [("NETCONFPATH", conf), ("CNI_PATH", farm().to_str().unwrap().to_owned())];
        let env: BTreeMap<_, _> =
            env.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Call { program: binary(), args, env, stdin: vec![], wrapper: vec![] }
    }

    fn on(&self, verb: &str, id: &str) -> Call {
        self.call(&format!("{verb} net /nonexistent/{id} --container-id {id}"))
    }

    fn run(&self, verb: &str, id: &str) -> Verdict {
        succeeds(&format!("{verb} {id}"), &self.on(verb, id).run())
    }

    fn gc(&self) -> Verdict {
        succeeds("gc", &self.call("gc net").run())
    }

    fn is_empty(&self) -> Verdict {
        let disk = Disk::read(&self.cache());
        let left: Vec<&Path> =
            disk.files().into_iter().filter(|name| *name != Path::new("lock")).collect();
        require(left.is_empty(), || format!("left: {left:?}"))
    }

    fn recording(&self, verb: &str, id: &str, before: Option<&Recording>) -> Recording {
        let cache = self.cache();
        Recording::of(&self.on(verb, id), before, cache.to_str().unwrap(), &cache)
    }
}

fn try_state(site: &Site, state: &State) -> Verdict {
    state.disk.write(&site.cache());
    site.run("add", "new")?;
    ["a", "c", "new"].iter().try_for_each(|id| site.run("del", id))?;
    site.is_empty()?;

    state.disk.write(&site.cache());
    site.gc()?;
    site.is_empty()?;
    site.run("add", "c")?;
    site.run("del", "c")?;
    site.is_empty()
}

#[test]
fn net_add_and_net_del_leave_a_cache_that_can_be_used() {
    let site = Site::new();
    let before = site.recording("add", "a", None);
    let add = site.recording("add", "c", Some(&before));
    let again = site.recording("add", "c", Some(&add));
    let del = site.recording("del", "c", Some(&again));
    for (operation, recording) in
        [("first ADD", before), ("ADD", add), ("ADD again", again), ("DEL", del)]
    {
        let states = [recording.killed(), recording.without_power(depth(Depth::Usual))];
        let row = sweep(
            "cache of results",
            operation,
            &recording,
            states,
            vec![Site::new(), Site::new()],
            |site, state, _| try_state(site, state),
        );
        assert_is_evidence(&row);
    }
}
