//! The files that are written, and their modes under any umask of the caller.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::json;

use crate::docs::{Page, code_spans};
use crate::plugins::ipam::cluster_local::cluster::Held;
use crate::plugins::main::bridge;
use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::call::{Peer, binary};
use crate::support::dhcp::scripted::Scripted;
use crate::support::dhcp::{Daemon, Kind};
#[cfg(feature = "cluster")]
use crate::support::etcd::Etcd;
use crate::support::netns::Lab;
use crate::support::networks::flannel;
use crate::support::networks::host_device;
use crate::support::networks::portmap::{portmap, web};
use crate::support::networks::tuning::tuning;
#[cfg(feature = "cluster")]
use crate::support::node::Node;

/// The table of SECURITY.md: the pattern of a path, where `*` is part of a name, the file's kind
/// and its mode.
fn table() -> Vec<(String, char, u32)> {
    let rows = Page::read("SECURITY.md").rows(Some("Files"));
    let row = |row: Vec<String>| {
        let path = code_spans(&row[0])[0].clone();
        let kind = if path.ends_with('/') { 'd' } else { row[2].chars().next().unwrap() };
        (
            path.trim_end_matches('/').to_owned(),
            kind,
            u32::from_str_radix(&code_spans(&row[1])[0], 8).unwrap(),
        )
    };
    rows.into_iter().map(row).collect()
}

/// Matches as a shell does: a star matches neither a slash nor a leading dot.
fn is_like(pattern: &str, path: &str) -> bool {
    let (patterns, names): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), path.split('/').collect());
    let hides = |pattern: &str, name: &str| pattern.starts_with('*') && name.starts_with('.');
    patterns.len() == names.len()
        && patterns.iter().zip(names).all(|(p, name)| !hides(p, name) && is_name(p, name))
}

fn is_name(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, rest)) => name.strip_prefix(begin).is_some_and(|name| {
            name.char_indices().any(|(at, c)| is_name(rest, &name[at + c.len_utf8()..]))
        }),
    }
}

#[test]
fn patterns_are_a_shell_s() {
    const LIKE: &str = "/a/* /a/b, /a/*.* /a/1.2, /a/b.* /a/b.c, /a/*/c /a/b/c, /a /a";
    const UNLIKE: &str = "/a/* /a/.b, /a/* /a/b/c, /a/*.* /a/b, /a/* /a, /a /ab";
    for (pairs, is_so) in [(LIKE, true), (UNLIKE, false)] {
        for pair in pairs.split(", ") {
            let (pattern, path) = pair.split_once(' ').unwrap();
            assert_eq!(is_like(pattern, path), is_so, "{pattern} {path}");
        }
    }
}

/// Every path below the directories that hold our files, with its kind and mode.
fn files(lab: &Lab) -> BTreeMap<String, (char, u32)> {
    let found = lab.host.sh(
        "find /run /var/lib/cni \\( -path /run/netns -o -path /run/net.d -o -name xtables.lock \\) -prune -o -printf '%y %m %p\\n'",
    );
    let entry = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (kind, mode) = (words.next().unwrap(), words.next().unwrap());
        let mode = u32::from_str_radix(mode, 8).unwrap();
        (words.next().unwrap().to_owned(), (kind.chars().next().unwrap(), mode))
    };
    found.lines().map(entry).collect()
}

/// Calls everything that writes files under this umask, passes the new files to `look`, deletes all
/// attachments, and passes on what is left.
fn for_files_under(umask: &str, look: impl Fn(&str, &BTreeMap<String, (char, u32)>)) {
    for_ours("bridge", |lab| {
        if umask == "0" {
            lab.host.sh("rmdir /run/cni"); // with umask 0777 it would be closed to the daemon
        }
        flannel::node(lab);
        let before = files(lab);
        let wrapper = ["sh", "-c", &format!("umask {umask}; exec \"$@\""), "sh"].map(str::to_owned);
        let plugins = json!([
            with(&bridge::del::everything("iptables"), json!({"cniVersion": null, "name": null})),
            with(&portmap(Some("iptables"), json!([web()])), json!({"runtimeConfig": null, "capabilities": {"portMappings": true}})),
            {"type": "firewall"},
            tuning(json!({"sysctl": {"net.core.somaxconn": "517"}, "mtu": 1400})),
            {"type": "sbr"},
        ]);
        let list = json!({"cniVersion": "1.1.0", "name": "net1", "plugins": plugins});
        lab.configure(&list);
        let container = lab.container();
        let binary = binary();
        let run_binary =
            |line: &str| lab.host.sh(&format!("umask {umask}; {} {line}", binary.display()));
        let net = |what: &str| {
            let (netns, plugins) = (&container.netns, Peer::Ours.dir().display());
            run_binary(&format!(
                "net {what} net1 {netns} --conf-dir /run/net.d --plugin-path {plugins}"
            ))
        };
        run_binary("metrics --count start");
        net("add --publish 8080:80");

        host_device::device(lab);
        let device = lab.attach(&lab.container(), &host_device::leased());
        let sets = json!([[{"subnet": "10.49.0.0/24"}], [{"subnet": "fd00:49::/64"}]]);
        let of_scope = |scope: &str| {
            let ipam = json!({"type": "cluster-local", "scope": scope, "sticky": "arg:VM", "ranges": sets});
            json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": ipam})
        };
        let local = lab.attach(&lab.container(), &of_scope("machine"));
        let held = Held::of(lab, with(&of_scope("cluster"), json!({"ipam": {"sticky": "none"}})));
        let shared = held.attachment("shared");
        let keys = json!({"cniVersion": "1.1.0", "name": "cbr0", "delegate": {"bridge": "pods0"}});
        let delegated = lab.attach(&lab.container(), &with(&flannel::conf(), keys));
        let run = |attachment: &Attachment<'_>, command: &str| {
            let mut call = attachment.call(command, None).env("CNI_ARGS", "IgnoreUnknown=1;VM=one");
            call.wrapper.extend(wrapper.clone());
            call.run()
        };
        let call = |command: &str| {
            for attachment in [&device, &shared, &local, &delegated] {
                run(attachment, command).ok();
            }
        };
        // Without a daemon: it writes what is configured.
        assert_eq!(run(&shared, "ADD").err().code, 11);
        let blocks = ["4-0a310002-32", "6-fd000049000000000000000000000000-122"];
        held.hold(&blocks.map(|block| (block, json!({}))));
        lab.confirm();
        call("ADD");

        lab.lan(Kind::Macvlan);
        let _server = Scripted::start(lab, json!({}));
        let line = format!("umask {umask}; exec \"$@\" -pidfile /run/dhcp.pid");
        let mut daemon = Daemon::wrapped(lab, &["sh", "-c", &line, "sh"]);
        let leased = lab.attach(&lab.container(), &Kind::Macvlan.conf());
        leased.add();

        run_binary("install --dir /run/opt/cni/bin");
        lab.host.sh(&format!(
            "umask {umask}; /run/opt/cni/bin/cni-multi install --dir /run/opt/cni/bin"
        ));
        // A different build in its place, so that install keeps a backup.
        lab.host.sh("echo >>/run/opt/cni/bin/cni-multi");
        run_binary("install --dir /run/opt/cni/bin");

        let mut made = files(lab);
        made.retain(|path, _| !before.contains_key(path));
        look("made", &made);

        leased.del();
        assert_eq!(daemon.end_by("TERM"), 0);
        call("DEL");
        net("del");
        run_binary("metrics --count stop");
        let mut left = files(lab);
        left.retain(|path, (kind, _)| !before.contains_key(path) && *kind != 'd');
        look("left", &left);
    });
}

/// The files of the IPAM daemon; None without etcd.
#[cfg(feature = "cluster")]
fn of_the_ipam_daemon() -> Option<BTreeMap<String, (char, u32)>> {
    let etcd = Etcd::one_with("")?;
    let node = Node::configured(&etcd, 1, json!({}));
    node.lab.host.sh("mkdir -p /var/lib/cni/cluster-local"); // as a plugin does
    let before = files(&node.lab);
    let anew = r#"rm -r /run/cni-multi; umask 0; exec "$@""#;
    node.start_by(&["sh", "-c", anew, "sh"]);
    node.wait_until(|node| node.lab.path("/run/cni-multi/ipam-confirmed.json").exists());
    let mut files = files(&node.lab);
    files.retain(|path, _| path.starts_with("/run/cni-multi") || !before.contains_key(path));
    Some(files)
}

#[cfg(not(feature = "cluster"))]
fn of_the_ipam_daemon() -> Option<BTreeMap<String, (char, u32)>> {
    crate::support::attachment::skip("feature cluster");
    None
}

#[test]
fn every_file_has_the_mode_of_the_table_where_no_umask_helps() {
    let table = table();
    let seen = RefCell::new(vec![false; table.len()]);
    let look = |when: &str, files: &BTreeMap<String, (char, u32)>| {
        for (path, (kind, mode)) in files.iter().filter(|(_, (kind, _))| *kind != 'l') {
            let row =
                table.iter().position(|(pattern, of, _)| of == kind && is_like(pattern, path));
            let row = row.unwrap_or_else(|| {
                panic!("{when}: no row for {kind} {mode:o} {path} among {files:#?}")
            });
            assert_eq!(*mode, table[row].2, "{when}: {path} has mode {mode:o}");
            seen.borrow_mut()[row] = true;
        }
    };
    for_files_under("0", look);
    let by_daemon = of_the_ipam_daemon();
    by_daemon.iter().for_each(|files| look("by the IPAM daemon", files));
    let is_its = |path: &str| path.ends_with("/.node/lock") || path.ends_with("/ipam.sock");
    let rows = table.iter().zip(seen.into_inner()).filter(|(_, seen)| !seen);
    let mut unseen: Vec<&String> = rows.map(|(row, _)| &row.0).collect();
    unseen.retain(|path| by_daemon.is_some() || !is_its(path));
    assert!(unseen.is_empty(), "in the table, and never seen: {unseen:?}");
}

/// A umask that masks every permission bit does not stop root.
#[test]
fn a_umask_that_takes_all_away_stops_nothing_and_leaves_no_more() {
    let left = RefCell::new(vec![]);
    for umask in ["022", "0777"] {
        for_files_under(umask, |when, files| {
            if when == "left" {
                left.borrow_mut().push(files.keys().cloned().collect::<Vec<String>>());
            } else {
                let is_closed = files.values().any(|(_, mode)| *mode == 0);
                assert!(umask != "0777" || is_closed, "the umask was there: {files:?}");
            }
        });
    }
    let left = left.borrow();
    assert_eq!(left[0], left[1]);
}
