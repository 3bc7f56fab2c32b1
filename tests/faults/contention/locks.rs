//! Every lock of cni-multi, held by a process that never releases it: the waiting call fails at its
//! timeout, names the holder and has changed nothing. docs/reliability.md has the table of locks.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cni_multi::deadline::Deadline;
use cni_multi::file_lock::{self, Mode, Patience, Range};
use serde_json::{Value, json};

use super::long_or_short;
use crate::support::attachment::{for_ours, with};
use crate::support::call::{Call, Outcome, binary};
use crate::support::dhcp::{JOURNAL, Process, wait_until};
use crate::support::kernel::has;
use crate::support::netns::Lab;
use crate::support::networks::portmap::{portmap, web};
use crate::support::networks::{bridge, sbr};
use crate::support::patience;
use crate::support::scratch::Scratch;
use crate::support::snapshot::Watch;
use crate::support::tracer::place_in_locks;

/// The lock of iptables-legacy, not one of ours.
const XTABLES_LOCK: &str = "/run/xtables.lock";

/// A process that holds a lock and is stopped by SIGSTOP.
struct Holder {
    process: Process,
    file: String,
    _output: Scratch,
}

impl Holder {
    fn of(lab: &Lab, file: &str) -> Holder {
        let holder = Holder::running(lab, "", file, "10000");
        lab.host.sh(&format!("kill -STOP {}", holder.process.pid()));
        holder
    }

    /// The same with an option of flock, and as long as it runs.
    fn running(lab: &Lab, mode: &str, file: &str, seconds: &str) -> Holder {
        let line = format!("flock --no-fork {mode} {file} sleep {seconds}");
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let output = Scratch::new(); // outside the lab, so that snapshots do not include it
        let process = Process::start(&lab.host, &line, Stdio::null(), output.join("holder"));
        let is_taken =
            || lab.host.try_sh(&format!("flock -n {file} true")).status.code() == Some(1);
        wait_until("the lock is taken", 5, is_taken);
        Holder { process, file: file.to_owned(), _output: output }
    }

    /// How errors name it.
    fn name(&self) -> String {
        format!("process {} (sleep)", self.process.pid())
    }

    /// Asserts that the call waited `seconds` and that its error names the holder.
    #[track_caller]
    fn assert_is_named(&self, call: &Call, seconds: u64) {
        let (outcome, waited) = timed(call);
        let error = outcome.fails(11, &self.name());
        assert!(error.text().contains(&self.file), "{}: {error:?}", self.file);
        assert_waited(waited, seconds);
    }
}

fn timed(call: &Call) -> (Outcome, Duration) {
    let started = Instant::now();
    (call.run(), started.elapsed())
}

#[track_caller]
fn assert_waited(waited: Duration, seconds: u64) {
    let least = Duration::from_secs(seconds);
    assert!(waited >= least && waited < least + patience(10), "{waited:?} is not some {seconds} s");
}

/// Runs the calls at the same time. Each waits for the holder of the one lock.
fn all_name(holder: &Holder, calls: Vec<Call>, seconds: u64) {
    std::thread::scope(|scope| {
        for call in calls {
            scope.spawn(move || holder.assert_is_named(&call, seconds));
        }
    });
}

/// A lab with the networks' tables as the first ADD and DEL leave them.
fn for_locked(case: impl Fn(&Lab)) {
    for_ours("bridge", |lab| {
        bridge::warm_up(lab, &bridge::conf());
        case(lab);
    });
}

#[test]
fn leases_that_stay_locked_are_reported() {
    for_locked(|lab| {
        let (container, other) = (lab.container(), lab.container());
        let there = lab.attach(&other, &bridge::conf());
        let result = there.add();
        let wanted = lab.attach(&container, &bridge::conf());
        let before = Watch::start(lab, &[&container]);
        let holder = Holder::of(lab, "/var/lib/cni/networks/net1/lock");
        // Only host-local is called: a whole DEL or GC would do the rest of its work.
        let alone = there.clone().conf(json!({"type": "host-local"}));
        let keys = json!({"cni.dev/valid-attachments": [], "cniVersion": "1.1.0"});
        let calls = [
            wanted.call("ADD", None), // the undo does not wait a second time
            alone.call("DEL", None),
            alone.call("CHECK", Some(&result)),
            alone.clone().conf(keys.clone()).call("GC", None),
        ];
        all_name(&holder, calls.to_vec(), 30);
        assert_eq!(there.clone().conf(keys).status().ok(), Value::Null, "STATUS takes no lock");
        drop(holder);
        before.assert_unchanged("operations that got no lock");
        wanted.add();
        wanted.del();
        there.del();
    });
}

/// An ADD that joins a bridge waits for a running undo, for seconds, and an undo waits for joining
/// ADDs. It waits once, however many steps there are to undo.
#[test]
fn our_lock_of_bridges_that_stays_held_is_reported() {
    const LOCK: &str = "/run/cni/bridge/lock";
    for_locked(|lab| {
        let (container, other) = (lab.container(), lab.container());
        let [wanted, there] = [&container, &other].map(|it| lab.attach(it, &bridge::conf()));
        let result = there.add();
        assert_eq!(lab.host.sh("stat -c %a /run/cni/bridge /run/cni/bridge/lock"), "700\n600\n");
        let before = Watch::start(lab, &[&container]);
        let holder = Holder::of(lab, LOCK);
        let (outcome, waited) = timed(&wanted.call("ADD", None));
        wanted.check(&outcome.ok()).ok();
        assert!(outcome.stderr.contains(LOCK) && outcome.stderr.contains("going on without it"));
        assert_waited(waited, 5);
        there.check(&result).ok();
        wanted.del();
        before.assert_unchanged("an ADD that got no lock, and its DEL");
        there.del(); // DEL takes no bridge lock
        drop(holder);

        let before = Watch::start(lab, &[&container]);
        let holder = Holder::running(lab, "--shared", LOCK, "10000");
        wanted.add();
        wanted.del();
        let late = json!({"bridge": "br9", "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}});
        let (outcome, waited) = timed(&wanted.clone().conf(late).call("ADD", None));
        outcome.fails(100, "undo: delete bridge \"br9\": lock");
        assert_waited(waited, 30);
        drop(holder);
        lab.host.sh("ip link del br9");
        before.assert_unchanged("an undo that got no lock, but for the bridge");
    });
}

#[test]
fn our_lock_of_iptables_that_stays_held_is_reported() {
    for_locked(|lab| iptables_is_locked(lab, "/run/cni/iptables/lock"));
}

#[test]
fn iptables_own_lock_that_stays_held_is_reported() {
    for_locked(|lab| {
        if iptables_is_legacy(lab) {
            iptables_is_locked(lab, XTABLES_LOCK);
        }
    });
}

fn iptables_is_locked(lab: &Lab, file: &str) {
    let masqueraded = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
    bridge::warm_up(lab, &masqueraded);
    let (container, other) = (lab.container(), lab.container());
    // With masquerading there is a guard of 127.0.0.0/8, which DEL removes before it needs the lock.
    let port = with(&portmap(Some("iptables"), json!([web()])), json!({"snat": false}));
    let published = lab.chain_in(&other, "eth0", &bridge::conf(), &port);
    published.add();
    let wanted = lab.attach(&container, &masqueraded);
    let before = Watch::start(lab, &[&container]);
    let holder = Holder::of(lab, file);
    let calls = vec![wanted.call("ADD", None), published.call("DEL", None)];
    if file == XTABLES_LOCK {
        // Callers waiting for this lock hold our own iptables lock, so concurrent calls would also
        // wait for each other.
        let shown = long_or_short(calls.len(), 1);
        calls.into_iter().take(shown).for_each(|call| holder.assert_is_named(&call, 30));
    } else {
        all_name(&holder, calls, 30);
    }
    drop(holder);
    before.assert_unchanged("operations that got no lock");
    wanted.add();
    wanted.del();
    published.del_all();
}

/// Replaces the host's iptables by iptables-legacy, which has tables and a lock of its own.
fn iptables_is_legacy(lab: &Lab) -> bool {
    let legacy = "iptables-legacy -t nat -S && ip6tables-legacy -t nat -S && for f in iptables ip6tables; do for s in '' -save -restore; do \
                  mount --bind $(command -v $f-legacy$s) $(command -v $f$s); done; done";
    has(&lab.host, "iptables-legacy", legacy)
}

/// Takes the lock on the byte of a namespace. `/proc/locks` does not give the owner of such a lock.
fn lock_namespace(lab: &Lab, path: &str) -> File {
    let inode = std::fs::metadata(lab.path(path)).unwrap().ino();
    let file = File::options().write(true).open(lab.path("/run/cni/netns/lock")).unwrap();
    assert!(Range::byte(inode).try_take(&file, Mode::Exclusive).unwrap());
    file
}

#[test]
fn a_namespace_that_stays_locked_is_reported() {
    for_ours("sbr", |lab| {
        let (container, first, other) = (lab.container(), lab.container(), lab.container());
        let attach = |container| sbr::attach(lab, container, &bridge::conf(), "net1");
        attach(&first).add(); // creates the file
        let (elsewhere, second) = (attach(&other), attach(&container));
        let before = Watch::start(lab, &[&container]);
        let holder = lock_namespace(lab, &container.netns);
        let (outcome, waited) = timed(&second.call("ADD", None));
        let error = outcome.fails(11, "lock netns \"/run/netns/c1\": not free within 20s");
        assert_eq!(error.details, "`fuser -v /run/cni/netns/lock` names its owner");
        assert_waited(waited, 20);
        before.assert_unchanged("an ADD that got no lock");
        elsewhere.add(); // a different namespace, so a different byte
        drop(holder);
        second.add();
        assert_eq!(sbr::rules(&container).len(), 1);
    });
}

/// The reference's sbr locks the namespace file itself while it works.
#[test]
fn the_reference_s_lock_of_a_namespace_is_waited_for_in_brief() {
    for_ours("sbr", |lab| {
        for (seconds, ends) in [("0.4", true), ("10000", false)] {
            let container = lab.container();
            let attached = sbr::attach(lab, &container, &bridge::conf(), "net1");
            let mut holder = Holder::running(lab, "", &container.netns, seconds);
            let (outcome, waited) = timed(&attached.call("ADD", None));
            outcome.ok();
            assert_eq!(holder.process.has_ended(), ends, "ADD was told after {waited:?}");
            assert!(waited < Duration::from_secs(1) + patience(5), "{waited:?}");
        }
    });
}

/// Takes the turns of all namespaces until the file is closed.
fn take_every_turn(lab: &Lab) -> File {
    let file = File::options().write(true).open(lab.path("/run/cni/nftables/lock")).unwrap();
    assert!(Range { start: 0, length: 0 }.try_take(&file, Mode::Exclusive).unwrap());
    file
}

/// The rules of the host, with handles.
fn rules(lab: &Lab) -> String {
    lab.host.sh("nft -a list ruleset")
}

/// ADD and DEL wait while another process has its turn, and commit after a second if that process
/// does not end its turn.
#[test]
fn transactions_of_nftables_take_turns() {
    for_ours("bridge", |lab| {
        let masquerading = json!({"ipMasq": true, "ipMasqBackend": "nftables"});
        let conf = with(&bridge::conf(), masquerading);
        bridge::warm_up(lab, &conf);
        let modes = lab.host.sh("stat -c %a /run/cni/nftables /run/cni/nftables/lock");
        assert_eq!(modes, "700\n600\n");
        let attachment = lab.attach(&lab.container(), &conf);
        let before = rules(lab);
        for command in ["ADD", "DEL"] {
            let turn = take_every_turn(lab);
            let call = attachment.call(command, None);
            std::thread::scope(|scope| {
                let running = scope.spawn(|| timed(&call));
                std::thread::sleep(Duration::from_millis(300));
                drop(turn);
                let (outcome, waited) = running.join().unwrap();
                outcome.ok();
                assert!(waited >= Duration::from_millis(300), "{command} did not wait: {waited:?}");
            });
        }
        assert_eq!(rules(lab), before);

        let turn = take_every_turn(lab);
        for command in ["ADD", "DEL"] {
            let (outcome, waited) = timed(&attachment.call(command, None));
            outcome.ok();
            assert_waited(waited, 1);
        }
        drop(turn);
        assert_eq!(rules(lab), before);
    });
}

/// No daemon listens, so DEL cleans up the leases itself. A starting daemon takes the same lock.
#[test]
fn a_journal_of_dhcp_that_stays_locked_is_reported() {
    for_ours("dhcp", |lab| {
        lab.host.sh(&format!("mkdir -m 700 {JOURNAL} && touch {JOURNAL}/lock"));
        let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "dhcp", "ipam": {"type": "dhcp"}});
        let attachment = lab.attach(&lab.container(), &conf);
        let holder = Holder::of(lab, JOURNAL);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let started = Instant::now();
                let daemon = lab.dhcp(&["daemon"]);
                let is_named = daemon.stderr.contains(&holder.name());
                assert!(daemon.status == 1 && is_named, "{daemon:?}");
                assert_waited(started.elapsed(), 30);
            });
            holder.assert_is_named(&attachment.call("DEL", None), 30);
        });
        drop(holder);
        attachment.del();
    });
}

#[test]
fn a_plugin_directory_that_stays_locked_is_reported() {
    if !long_or_short(true, false) {
        return; // a minute of waiting for code that the other cases cover
    }
    for_ours("bridge", |lab| {
        let lock = "/run/plugins/.cni-multi/lock";
        lab.host.sh(&format!("mkdir -p /run/plugins/.cni-multi && touch {lock}"));
        let holder = Holder::of(lab, lock);
        let install = Call::cni_multi(&lab.host.enter, ["install", "--dir", "/run/plugins"]);
        let (outcome, waited) = timed(&install);
        let told = format!("lock \"{lock}\": not free within 60s; {} has it", holder.name());
        assert!(outcome.status == 1 && outcome.stderr.contains(&told), "{outcome:?}");
        assert_waited(waited, 60);
        let files = lab.host.sh("find /run/plugins -mindepth 1");
        assert_eq!(files, format!("/run/plugins/.cni-multi\n{lock}\n"));
        drop(holder);
        assert_eq!(install.run().status, 0);
    });
}

/// A waiter in a queue that advances does not time out: each holder has the lock for less than the
/// timeout. The queue begins to advance once it is complete.
#[test]
fn a_lock_that_goes_from_hand_to_hand_is_waited_for() {
    let scratch = Scratch::new();
    let path = scratch.join("lock");
    let lock = || File::options().create(true).truncate(false).write(true).open(&path).unwrap();
    let take = || {
        let deadline = Deadline::after(Duration::from_secs(9));
        let patience = Patience { of_one: Duration::from_secs(3), deadline };
        file_lock::take(lock(), &path, Mode::Exclusive, patience).unwrap()
    };
    let first = take();
    let hold = || Command::new("flock").arg(&path).args(["sleep", "1"]).spawn().unwrap();
    let mut line: Vec<_> = (0..4).map(|_| hold()).collect();
    let place = place_in_locks(&lock().metadata().unwrap());
    let in_line = || std::fs::read_to_string("/proc/locks").unwrap().matches(&place).count();
    wait_until("one has the lock and four wait for it", 30, || in_line() == 5);
    let started = Instant::now();
    drop(first);
    wait_until("one of the four has the lock", 30, || (1..=4).contains(&in_line()));
    drop(take());
    assert!(started.elapsed() > Duration::from_secs(3), "the others were there before");
    for holder in &mut line {
        holder.wait().unwrap();
    }
}

/// /proc names no owner for the lock of this holder.
#[test]
fn a_container_that_another_operation_keeps_is_reported() {
    for_ours("bridge", |lab| {
        lab.write("/run/bin/hangs", "#!/bin/sh\nexec sleep 10000\n");
        lab.host.sh("chmod +x /run/bin/hangs");
        let plugins = json!([{"type": "hangs"}]);
        lab.configure(&json!({"cniVersion": "1.0.0", "name": "hanging", "plugins": plugins}));
        let netns = lab.container().netns;
        let line = format!("net add hanging {netns} --conf-dir /run/net.d --plugin-path /run/bin");
        let call = Call::cni_multi(&lab.host.enter, line.split(' '));
        let first = [&[binary().to_str().unwrap().to_owned()][..], &call.args].concat();
        let first = Process::start(&lab.host, &first, Stdio::null(), lab.path("/run/first"));
        let hangs = format!("pgrep -P {} sleep", first.pid());
        wait_until("the plugin hangs", 5, || lab.host.try_sh(&hangs).status.success());
        let (outcome, waited) = timed(&call);
        assert_ne!(outcome.status, 0, "{outcome:?}");
        for told in ["has not ended for 30s", "fuser -v"] {
            assert!(outcome.stderr.contains(told), "{outcome:?}");
        }
        assert_waited(waited, 30);
    });
}
