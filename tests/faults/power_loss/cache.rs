//! Kills and power losses while `net add` and `net del` write the cache of results.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::disk::Disk;
use super::losses::{Depth, State};
use super::recording::Recording;
use super::{Verdict, assert_is_evidence, depth, succeeds, sweep};
use crate::support::call::{Call, farm};
use crate::support::scratch::Scratch;

/// A network with a plugin that keeps no state, and a cache.
struct Site(Scratch);

impl Site {
    fn new() -> Site {
        let site = Site(Scratch::new());
        for name in ["cache", "net.d"] {
            std::fs::create_dir(site.0.join(name)).unwrap();
        }
        let ipam = json!({"type": "static", "addresses": [{"address": "10.1.2.3/24"}]});
        let plugins = json!([{"type": "static", "ipam": ipam}]);
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
        std::fs::write(site.0.join("net.d/10-net.conflist"), list.to_string()).unwrap();
        site
    }

    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    /// `cni-multi net LINE`. The namespaces do not exist any more, as after a power loss.
    fn call(&self, line: &str) -> Call {
        let (here, plugins) = (self.0.text(), farm().display());
        let dirs =
            format!("--cache-dir {here}/cache --conf-dir {here}/net.d --plugin-path {plugins}");
        Call::cni_multi(&[], format!("net {line} {dirs}").split(' '))
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
        Disk::read(&self.cache()).has_only("", |name| name == Path::new("lock"))
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
        let (what, sites) = (["cache of results", operation], vec![Site::new(), Site::new()]);
        let row = sweep(what, &recording, states, sites, |site, state, _| try_state(site, state));
        assert_is_evidence(&row);
    }
}
