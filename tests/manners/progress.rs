//! A counter on the terminal during anything that takes longer than a moment, and none in a pipe.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{on_terminal, run};
use crate::support::call::binary;
use crate::support::scratch::Scratch;

/// What precedes each update: the line is written again.
const ANEW: &str = "\r\u{1b}[K";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The numbers of all in updates such as `3/12` behind the text.
fn totals<'t>(shown: &'t str, before: &str) -> Vec<&'t str> {
    let start = [ANEW, before].concat();
    let updates = shown.split(&start).skip(1);
    let total = |update: &'t str| {
        let (done, rest) = update.split_once('/')?;
        done.parse::<usize>().ok()?;
        rest.split(|c: char| !c.is_ascii_digit()).next()
    };
    updates.filter_map(total).collect()
}

/// Each of twelve networks has a plugin of its own, which reports its versions after 0.1 s.
#[test]
fn validate_counts_files_on_a_terminal() {
    let dir = Scratch::new();
    for number in 10..22 {
        let name = format!("slow{number}");
        let plugin = dir.join(&name);
        let script = "#!/bin/sh\nsleep 0.1\necho '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.1.0\"]}'\n";
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [{"type": name}]});
        fs::create_dir_all(dir.join("net.d")).unwrap();
        fs::write(dir.join(&format!("net.d/{name}.conflist")), list.to_string()).unwrap();
    }
    let line = format!("validate {0}/net.d --plugin-path {0}", dir.text());
    let Some((shown, status)) = on_terminal(&binary(), &line, "") else { return };
    assert!(totals(&shown, "").contains(&"12"), "{shown:?}");
    let rest = shown.rsplit(ANEW).next().unwrap();
    let piped = run(&words(&line));
    assert_eq!((rest.as_bytes(), &b""[..]), (&*piped.stdout, &*piped.stderr), "no counter stays");
    assert_eq!(piped.status.code(), Some(status));
}

/// A record that takes long to read, under more and more names until all take two seconds: on a
/// terminal the counting begins after one.
#[test]
fn ps_counts_records_on_a_terminal() {
    let dir = Scratch::new();
    let results = dir.join("results");
    fs::create_dir(&results).unwrap();
    let ips: Vec<Value> = (0..4000).map(|_| json!({"address": "10.0.0.1/8"})).collect();
    let record = json!({"kind": "cniCacheV1", "containerId": "id", "config": "e30=", "ifName": "eth0",
        "networkName": "net", "netns": "/x", "result": {"cniVersion": "1.1.0", "ips": ips}});
    let mut count = 16;
    let name = |number: usize| results.join(format!("net-id{number}-eth0"));
    fs::write(name(0), record.to_string()).unwrap();
    (1..count).for_each(|number| fs::hard_link(name(0), name(number)).unwrap());
    let line = format!("net ps --conf-dir {0} --cache-dir {0}", dir.text());
    let patience = Duration::from_secs(2);
    loop {
        let begin = Instant::now();
        let piped = run(&words(&line));
        assert!(piped.status.success() && piped.stderr.is_empty(), "{piped:?}");
        if begin.elapsed() > patience {
            break;
        }
        (count..2 * count).for_each(|number| fs::hard_link(name(0), name(number)).unwrap());
        count *= 2;
    }
    let Some((shown, status)) = on_terminal(&binary(), &line, "") else { return };
    let last = &shown[shown.len().saturating_sub(200)..];
    assert_eq!(
        (status, totals(&shown, "").last().copied()),
        (0, Some(&*count.to_string())),
        "{last:?}"
    );
    assert!(shown.rsplit(ANEW).next().unwrap().starts_with("NAME "), "the last one is deleted");
}

/// The second network is locked for a while, as by an ADD, after which its counter appears.
#[test]
fn import_counts_leases_on_a_terminal() {
    let dir = Scratch::new();
    let mut sections = vec![];
    for name in ["one", "two"] {
        let ranges = json!([[{"subnet": "10.9.0.0/24"}]]);
        let ipam = json!({"type": "host-local", "dataDir": dir.text(), "ranges": ranges});
        let plugin = json!({"type": "bridge", "ipam": ipam});
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [plugin]});
        fs::write(dir.join(&format!("{name}.conflist")), list.to_string()).unwrap();
        let lease = json!({"address": "10.9.0.2", "containerId": "c1", "ifname": "eth0"});
        sections.push(json!({"network": name, "ipam": "host-local", "leases": [lease]}));
    }
    let document = json!({"cniMultiLeases": 1, "networks": sections});
    fs::write(dir.join("leases.json"), document.to_string()).unwrap();
    fs::create_dir(dir.join("two")).unwrap();
    let hold = format!("exec flock {}/two/lock sh -c 'echo held; sleep 1.5'", dir.text());
    let mut holder = Command::new("sh").args(["-c", &hold]).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    let line = format!("ipam import {0}/leases.json --conf-dir {0} --cache-dir {0}", dir.text());
    let shown = on_terminal(&binary(), &line, "");
    holder.wait().unwrap();
    let Some((shown, status)) = shown else { return };
    assert_eq!((status, totals(&shown, "two: ")), (0, vec!["1"]), "{shown:?}");
    let report = "one: imported 1, already there 0\ntwo: imported 1, already there 0\n";
    assert!(shown.ends_with(&[ANEW, report].concat()), "{shown:?}");
}
