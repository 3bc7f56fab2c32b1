//! Locks of an unprivileged user: flock on every file and directory that it can open in our lock
//! and state directories blocks no plugin and no installation.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::{Call, Outcome, binary};
use crate::support::dhcp::{JOURNAL, Process, wait_until};
use crate::support::list::List;
use crate::support::netns::{Lab, is_root};
use crate::support::networks::portmap::portmap;
use crate::support::networks::tuning::tuning;
use crate::support::networks::{bridge, vrf};
use crate::support::patience;
use crate::support::peers::tests;
use crate::support::scratch::Scratch;

/// Runs a command as an unprivileged user without supplementary groups.
const STRANGER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

/// Takes and keeps an exclusive lock on each of the given paths that it can open.
const LOCK_ALL: &str = r#"
for path in "$@"; do flock --no-fork "$path" sleep 10000 & done
wait
"#;

/// The parent of the processes that hold the locks.
struct Stranger {
    process: Process,
    paths: Vec<String>,
    _output: Scratch,
}

impl Stranger {
    /// Locks everything readable below these directories.
    fn of(lab: &Lab, dirs: &[&str]) -> Stranger {
        let find = format!(
            "{STRANGER} find {} \\( -type d -o -type f \\) -readable 2>/dev/null",
            dirs.join(" ")
        );
        let found = String::from_utf8(lab.host.try_sh(&find).stdout).unwrap();
        let paths: Vec<String> = found.lines().map(str::to_owned).collect();
        let line = STRANGER.split(' ').chain(["sh", "-c", LOCK_ALL, "sh"]).map(str::to_owned);
        let line: Vec<String> = line.chain(paths.clone()).collect();
        let output = Scratch::new(); // outside the lab, so that snapshots do not include it
        let process = Process::start(&lab.host, &line, Stdio::null(), output.join("stranger"));
        let is_locked = |path: &String| {
            lab.host.try_sh(&format!("flock -n {path} true")).status.code() == Some(1)
        };
        wait_until("all are locked", 20, || paths.iter().all(is_locked));
        Stranger { process, paths, _output: output }
    }

    #[track_caller]
    fn assert_has(&self, paths: &[&str]) {
        for path in paths {
            let is_locked = self.paths.iter().any(|locked| locked == path);
            assert!(is_locked, "{path} is not among {:?}", self.paths);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.process.pid()));
        let _ = std::process::Command::new("kill")
            .args(children.unwrap_or_default().split_whitespace())
            .status(); // a failure is harmless: the lab's end kills them too
    }
}

/// Asserts that `work` is not delayed by the held locks.
#[track_caller]
fn in_time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_secs(5) + patience(5), "{what} took {elapsed:?}");
    done
}

fn installation(lab: &Lab, line: &str) -> Outcome {
    Call::cni_multi(&lab.host.enter, line.split(' ')).run()
}

/// A chain that includes every plugin with files on the host.
fn plugins(last: &str, port: u16) -> Vec<Value> {
    vec![
        with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"})),
        portmap(Some("iptables"), json!([{"hostPort": port, "containerPort": 80}])),
        json!({"type": "firewall", "backend": "iptables"}),
        tuning(json!({"sysctl": {"net.core.somaxconn": "517"}, "mtu": 1400})),
        json!({"type": "bandwidth", "ingressRate": 1_000_000, "ingressBurst": 1_000_000}),
        json!({"type": last, "vrfname": "blue"}),
    ]
}

fn a_stranger_holds_up_nothing_of(last: &str) {
    if !is_root() {
        return; // a user namespace maps no other user
    }
    for_ours(last, |lab| {
        lab.host.sh("mkdir -p -m 755 /run/plugins");
        assert_eq!(installation(lab, "install --dir /run/plugins").status, 0);
        let (there, container) = (lab.container(), lab.container());
        if last == "vrf" && !vrf::has_vrf(&container) {
            return;
        }
        let chain = List::of(lab, &there, &plugins(last, 8080));
        let two = List::of(lab, &container, &plugins(last, 8081));
        let result = chain.add();
        let stranger =
            Stranger::of(lab, &["/run/cni", "/var/lib/cni", "/run/plugins", "/run/netns", JOURNAL]);
        stranger.assert_has(&[
            "/run/cni",
            "/var/lib/cni",
            "/run/plugins",
            "/run/netns/c1",
            "/run/netns/c2",
        ]);
        let added = in_time("ADD", || two.add());
        in_time("CHECK", || two.check(&added));
        in_time("DEL", || two.del(&added));
        in_time("DEL of what was there before", || chain.del(&result));
        in_time("GC", || chain.0[0].gc(&[])).ok();
        for line in ["install --dir /run/plugins", "install --uninstall --dir /run/plugins"] {
            let done = in_time("install", || installation(lab, line));
            assert_eq!(done.status, 0, "{line}: {done:?}");
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/install.sh --dir /run/plugins");
        for rest in [format!("--binary {}", binary().display()), "--uninstall".to_owned()] {
            in_time("install.sh", || lab.host.sh(&format!("{script} {rest} </dev/null")));
        }
    });
}

tests! {
    a_stranger_s_locks_hold_up_no_sbr_and_no_install = a_stranger_holds_up_nothing_of("sbr");
    a_stranger_s_locks_hold_up_no_vrf = a_stranger_holds_up_nothing_of("vrf");
}
