//! Kills and power losses while host-local writes leases, cursor and index; and while cluster-local
//! writes the same with the scope `machine`, where leases end with the boot.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde_json::json;

use super::disk::Disk;
use super::losses::{Depth, State};
use super::recording::Recording;
use super::{Verdict, assert_is_evidence, depth, require, succeeds, sweep};
use crate::support::attachment::ips;
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::tests;
use crate::support::scratch::Scratch;

/// The number of addresses.
const SIZE: usize = 3;

/// What stays in the directory of a network without attachments.
const KEPT: [&str; 4] = ["lock", "last_reserved_ip.0", "last_reserved_ip.10.1.2.2", "boot"];

/// Container IDs as runtimes generate them. The operation under test is that of C.
const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const C: &str = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

/// A data directory of a network with `SIZE` addresses.
struct Store {
    plugin: &'static str,
    scratch: Scratch,
}

impl Store {
    fn new(plugin: &'static str) -> Store {
        Store { plugin, scratch: Scratch::new() }
    }

    fn path(&self) -> &Path {
        Path::new(self.scratch.text())
    }

    /// The directory of the leases.
    fn leases(&self) -> &'static Path {
        Path::new(if self.plugin == "host-local" { "net" } else { ".machine/default" })
    }

    fn call(&self, command: &str, id: &str, valid: &[&str]) -> Call {
        let valid: Vec<_> =
            valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        let range =
            json!({"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.4"});
        let ipam = json!({"type": self.plugin, "scope": "machine", "dataDir": self.scratch.text(), "ranges": [[range]]});
        let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": self.plugin,
            "cni.dev/valid-attachments": valid, "ipam": ipam});
        Call::new(&Peer::Ours, self.plugin, command, conf.to_string()).env("CNI_CONTAINERID", id)
    }

    fn run(&self, command: &str, id: &str) -> Outcome {
        self.call(command, id, &[]).run()
    }

    /// ADD; None if no address is free.
    fn add(&self, id: &str) -> Result<Option<String>, String> {
        let outcome = self.run("ADD", id);
        if outcome.status != 0 && outcome.err().code == 101 {
            return Ok(None);
        }
        succeeds("ADD", &outcome)?;
        Ok(Some(ips(&outcome.json())[0].clone()))
    }

    fn del(&self, id: &str) -> Verdict {
        succeeds(&format!("DEL of {id}"), &self.run("DEL", id))
    }

    fn check(&self, id: &str) -> Verdict {
        succeeds(&format!("CHECK of {id}"), &self.run("CHECK", id))
    }

    fn gc(&self, valid: &[&str]) -> Verdict {
        succeeds("GC", &self.call("GC", "", valid).run())
    }

    /// STATUS succeeds, and warns when no address is free.
    fn status(&self, free: usize) -> Verdict {
        let outcome = self.run("STATUS", "");
        let warns = outcome.stderr.contains("no IP addresses available in range set");
        let told = || format!("STATUS with {free} addresses: {outcome:?}");
        require(outcome.status == 0 && warns == (free == 0), told)
    }

    /// Allocates all free addresses and requires their number.
    fn fill(&self, expected: usize) -> Verdict {
        let mut given = vec![];
        while let Some(ip) = self.add(&format!("filler-{}", given.len()))? {
            require(!given.contains(&ip) && given.len() < SIZE, || format!("{ip} is given twice"))?;
            given.push(ip);
        }
        let told = || format!("{expected} addresses are free, and {given:?} were given");
        require(given.len() == expected, told)
    }

    /// No lease, draft or page of the index is left: all addresses are free again. Blocks stay.
    fn is_empty(&self) -> Verdict {
        let disk = Disk::read(self.path());
        disk.has_only("", |name| {
            let own = name.strip_prefix(self.leases());
            own.is_ok_and(|name| KEPT.contains(&name.to_str().unwrap()))
        })
    }
}

/// The leases on a disk by address, with their owner text. Empty ones are free, and so are those of
/// another boot, which is what a torn file `boot` says.
fn leases(store: &Store, disk: &Disk) -> BTreeMap<String, String> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    if disk.file(&store.leases().join("boot")).is_some_and(|then| *then != boot) {
        return BTreeMap::new();
    }
    let lease = |name: &Path| {
        let ip = name.strip_prefix(store.leases()).ok()?.to_str()?.parse::<IpAddr>().ok()?;
        let owner = String::from_utf8(disk.file(name)?.to_vec()).unwrap();
        (!owner.trim_matches('\0').is_empty()).then_some((ip.to_string(), owner))
    };
    disk.files().into_iter().filter_map(lease).collect()
}

/// The number of leases with a truncated owner.
fn torn(leases: &BTreeMap<String, String>) -> usize {
    let is_whole =
        |owner: &&String| owner.ends_with("\r\neth0") || owner.ends_with("\r\neth0\r\nnet");
    leases.values().filter(|owner| !is_whole(owner)).count()
}

/// No attachment in `living` loses its address. The attachments in `dead` get their DEL, or
/// never do.
fn try_state(store: &Store, state: &State, living: &[&str], dead: &[&str]) -> Verdict {
    let held = leases(store, &state.disk);
    let (free, torn) = (SIZE - held.len(), torn(&held));
    state.disk.write(store.path());
    store.status(free)?;
    let mut new = store.add("new")?;
    let told = || format!("{free} addresses are free, and ADD gives {new:?}");
    require(new.is_some() == (free > 0), told)?;
    dead.iter().try_for_each(|id| store.del(id))?;
    if new.is_none() {
        new = store.add("new")?;
    }
    let given = usize::from(new.is_some());
    if let Some(ip) = &new {
        let is_its = |owner: &String| dead.iter().any(|id| owner.starts_with(id));
        require(held.get(ip).is_none_or(is_its), || {
            format!("{ip} is given, which {:?} has", held.get(ip))
        })?;
        store.check("new")?;
    }
    living.iter().try_for_each(|id| store.check(id))?;
    // A lease without a valid owner waits for GC.
    store.fill(SIZE - given - torn - living.len())?;
    store.gc(living)?;
    living.iter().try_for_each(|id| store.check(id).and_then(|()| store.del(id)))?;
    store.is_empty()?;

    state.disk.write(store.path());
    store.gc(living)?;
    living.iter().try_for_each(|id| store.check(id))?;
    require(store.add("new")?.is_some(), || "no address is free after GC".to_owned())?;
    store.del("new")?;
    living.iter().try_for_each(|id| store.del(id))?;
    store.is_empty()
}

/// An operation, and the state before it.
struct Operation {
    /// Its name in the table.
    name: &'static str,
    /// The containers that are attached before.
    before: &'static [&'static str],
    /// What else happens before.
    prepare: fn(&Store),
    call: fn(&Store) -> Call,
}

/// Tries the disks that an operation after the ADDs of `before` may leave.
fn try_operation(plugin: &'static str, operation: &Operation) {
    let Operation { name, before, prepare, call } = operation;
    let store = Store::new(plugin);
    before.iter().for_each(|id| assert!(store.add(id).unwrap().is_some())); // nothing is synced
    prepare(&store);
    let recording = Recording::of(&call(&store), None, store.scratch.text(), store.path());
    let states = [recording.killed(), recording.without_power(depth(Depth::Usual))];
    let living: Vec<&str> = before.iter().copied().filter(|id| *id != C).collect();
    let places = vec![Store::new(plugin), Store::new(plugin)];
    let what = [plugin, name];
    let row = sweep(what, &recording, states, places, |store, state, has_power| match has_power {
        true => try_state(store, state, &living, &[C]),
        false => try_state(store, state, &[], &[A, B, C]),
    });
    assert_is_evidence(&row);
}

fn nothing(_: &Store) {}

const FIRST_ADD: Operation = Operation {
    name: "first ADD",
    before: &[],
    prepare: nothing,
    call: |store| store.call("ADD", C, &[]),
};
const ADD: Operation = Operation { name: "ADD", before: &[A, B], ..FIRST_ADD };
const ADD_WITHOUT_INDEX: Operation = Operation {
    name: "ADD after the reference",
    prepare: |store| std::fs::remove_dir_all(store.path().join(".cni-multi")).unwrap(),
    ..ADD
};
const DEL: Operation = Operation {
    name: "DEL",
    before: &[A, B, C],
    prepare: nothing,
    call: |store| store.call("DEL", C, &[]),
};
const GC: Operation = Operation { name: "GC", call: |store| store.call("GC", "", &[A, B]), ..DEL };

tests! {
    a_first_add_of_host_local_loses_no_address = try_operation("host-local", &FIRST_ADD);
    an_add_of_host_local_loses_no_address = try_operation("host-local", &ADD);
    add_of_host_local_that_rebuilds_the_index_loses_no_address = try_operation("host-local", &ADD_WITHOUT_INDEX);
    a_del_of_host_local_loses_no_address = try_operation("host-local", &DEL);
    a_gc_of_host_local_loses_no_address = try_operation("host-local", &GC);
    a_first_add_of_cluster_local_loses_no_address = try_operation("cluster-local", &FIRST_ADD);
    an_add_of_cluster_local_loses_no_address = try_operation("cluster-local", &ADD);
    a_del_of_cluster_local_loses_no_address = try_operation("cluster-local", &DEL);
    a_gc_of_cluster_local_loses_no_address = try_operation("cluster-local", &GC);
}
