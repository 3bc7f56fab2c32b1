//! One transient error, such as EMFILE, where state is read: the call fails instead of taking what it could not read
//! for nothing, and the next call completes the work. Files of plugins, and tuning's of /proc/sys.

use nix::errno::Errno;
use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::{Call, Outcome};
use crate::support::networks::stacked::{MACVLAN, hasty_container};
use crate::support::networks::tuning::{backup_of, chain, has_backup, sysctl, tuning};
use crate::support::networks::{bridge, sbr};
use crate::support::tracer::{Stop, Then, trace};

/// Runs the call and fails the first system call matched by `is_it` with `errno`. Also returns whether there was one.
fn try_failing(
    call: &Call,
    errno: Errno,
    is_it: impl Fn(&Stop) -> bool + Send + Sync,
) -> (Outcome, bool) {
    let mut has_failed = false;
    let traced = trace(call, |stop| {
        let fails = !has_failed && stop.result.is_none() && is_it(stop);
        has_failed |= fails;
        if fails { Then::fail(errno) } else { Then::Go }
    });
    (traced.outcome, has_failed)
}

/// The same for a call that makes such a system call.
#[track_caller]
fn run_failing(call: &Call, errno: Errno, is_it: impl Fn(&Stop) -> bool + Send + Sync) -> Outcome {
    let (outcome, has_failed) = try_failing(call, errno, is_it);
    assert!(has_failed, "no system call of {call:?} is the one that fails");
    outcome
}

fn opens(stop: &Stop, part: &str) -> bool {
    stop.call == libc::SYS_openat && stop.text(1).contains(part) && stop.text(1).ends_with(".json")
}

fn reads(stop: &Stop, part: &str) -> bool {
    stop.call == libc::SYS_read && stop.descriptor(0).contains(part)
}

fn lists(stop: &Stop, part: &str) -> bool {
    stop.call == libc::SYS_getdents64 && stop.descriptor(0).contains(part)
}

/// Whether a system call is a certain kind of read below a path.
type IsIt = fn(&Stop, &str) -> bool;

/// The transient errors in reading a plugin's state below `part`.
const WAYS: [(Errno, IsIt); 3] =
    [(Errno::EMFILE, opens), (Errno::EIO, reads), (Errno::ENOMEM, opens)];

/// Each error fails the call with a message that names the path. `is_done` shows that the failed
/// call has not done the work and that the next call has.
fn assert_told_and_done_later(
    call: &Call,
    part: &str,
    is_done: impl Fn() -> bool,
    made_again: impl Fn(),
) {
    for (errno, is_it) in WAYS {
        made_again();
        assert!(!is_done(), "{errno}: there is nothing to be done");
        let error = run_failing(call, errno, |stop| is_it(stop, part)).err();
        assert!(error.text().contains(part), "{errno}: {error:?}");
        assert!(!is_done(), "{errno}: it has been done nevertheless");
        assert_eq!(call.run().ok(), Value::Null);
        assert!(is_done(), "{errno}: the next call has not done it");
    }
}

#[test]
fn del_of_a_link_reads_its_record_or_fails() {
    MACVLAN.for_ours(|lab| {
        let container = hasty_container(lab);
        let attachment = lab.attach(&container, &MACVLAN.conf());
        assert_told_and_done_later(
            &attachment.call("DEL", None),
            "/run/cni/macvlan",
            || container.link("eth0").is_none(),
            || drop(attachment.add()),
        );
    });
}

#[test]
fn del_of_loopback_reads_its_record_or_fails() {
    for_ours("loopback", |lab| {
        let container = lab.container();
        let conf = json!({"cniVersion": "1.1.0", "name": "lo", "type": "loopback"});
        let attachment = lab.attach(&container, &conf).ifname("lo");
        assert_told_and_done_later(
            &attachment.call("DEL", None),
            "/run/cni/loopback",
            || container.link("lo").unwrap()["operstate"] == "DOWN",
            || drop(attachment.add()),
        );
    });
}

#[test]
fn del_of_sbr_reads_records_of_others_or_fails() {
    for_ours("sbr", |lab| {
        let (container, attachment) = sbr::two_uplinks(lab, json!({}));
        attachment.add();
        let other = attachment.clone().id("another");
        let own = lab.host.sh("ls /run/cni/sbr/*.json");
        // Another attachment of this namespace has recorded the same rules, so they belong to it
        // too.
        let key = cni_multi::cni::attachment::Key::parse("net2", "another", "net1").unwrap();
        lab.host.sh(&format!(
            r#"cd /run/cni/sbr; sed 's/"container_id":"[^"]*"/"container_id":"another"/' *.json >{0}; mv {0} {0}.json"#,
            key.identity()
        ));
        let is_of_other = |stop: &Stop| opens(stop, &key.identity());
        let del = attachment.clone().conf(json!({"prevResult": null})).call("DEL", None);
        let rules = sbr::rules(&container);
        assert!(!rules.is_empty());
        for errno in [Errno::EMFILE, Errno::EIO] {
            run_failing(&del, errno, is_of_other).err();
            assert_eq!(sbr::rules(&container), rules, "{errno}: of another attachment");
            assert!(lab.path(own.trim()).exists());
        }
        del.run().ok();
        assert_eq!(sbr::rules(&container), rules, "they are the other's");
        other.conf(json!({"prevResult": null})).del();
        assert!(sbr::rules(&container).is_empty());
    });
}

#[test]
fn gc_reads_records_and_backups_or_fails() {
    let version = json!({"name": "net1", "cniVersion": "1.1.0"});
    let tuning = with(&tuning(json!({"sysctl": {"net.core.somaxconn": "517"}})), version.clone());
    for (dir, conf) in [("/run/cni/macvlan", MACVLAN.conf()), ("/run/cni/tuning", tuning)] {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            if conf["type"] == "macvlan" && !MACVLAN.prepare(lab) {
                return;
            }
            let conf = with(&conf, version.clone());
            let attach = || {
                let container = hasty_container(lab);
                // A chained plugin needs a result, and a main plugin gets none.
                let previous = if dir.ends_with("tuning") {
                    json!({"cniVersion": "1.1.0"})
                } else {
                    Value::Null
                };
                lab.attach(&container, &conf).call("ADD", Some(&previous)).run().ok();
                container.vanish();
            };
            let no_attachment = with(&conf, json!({"cni.dev/valid-attachments": []}));
            let gc = lab.attach_at("none", "/run/netns/none", &no_attachment).call("GC", None);
            let is_done = || lab.host.sh(&format!("ls {dir}")).is_empty();
            assert_told_and_done_later(&gc, dir, is_done, attach);
            attach();
            let error = run_failing(&gc, Errno::EIO, |stop| lists(stop, dir)).err();
            assert!(error.text().contains(dir) && !is_done(), "{error:?}");
            gc.run().ok();
            assert!(is_done());
        });
    }
}

/// The container's addresses select the iptables rules to delete. Without them DEL would delete all
/// rules of the container, including those of another interface.
#[test]
fn del_looks_at_the_container_s_addresses_or_fails() {
    for_ours("bridge", |lab| {
        let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
        let container = hasty_container(lab);
        let [goes, stays] =
            ["eth0", "net1"].map(|ifname| lab.attach(&container, &conf).ifname(ifname));
        goes.add();
        stays.add();
        let leading = || lab.host.sh("iptables -t nat -S POSTROUTING").matches("-j CNI-").count();
        assert_eq!(leading(), 2);
        let is_it = |stop: &Stop| stop.call == libc::SYS_setns;
        let error = run_failing(&goes.call("DEL", None), Errno::EMFILE, is_it).err();
        assert_eq!(leading(), 2, "{error:?}");
        goes.del();
        assert_eq!(leading(), 1);
        stays.del();
        assert_eq!(leading(), 0);
    });
}

/// The legacy tables in the kernel decide whether the iptables-legacy programs are queried.
#[test]
fn del_looks_for_tables_of_iptables_legacy_or_fails() {
    for_ours("bridge", |lab| {
        let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "nftables"}));
        let attachment = lab.attach(&hasty_container(lab), &conf);
        attachment.add();
        let is_it = |stop: &Stop| {
            stop.call == libc::SYS_openat && stop.text(1).ends_with("ip_tables_names")
        };
        let error = run_failing(&attachment.call("DEL", None), Errno::EMFILE, is_it).err();
        assert!(error.text().contains("ip_tables_names"), "{error:?}");
        attachment.del();
    });
}

// --- sysctls: a value that could not be read once is not taken for an unreadable one ---

const NAME: &str = "core/somaxconn";
const SET: &str = "517";
const PASSING: [Errno; 3] = [Errno::EMFILE, Errno::ENOMEM, Errno::EIO];

/// Whether the call concerns a sysctl and can fail; close(2) releases the descriptor regardless.
fn is_about_sysctls(stop: &Stop) -> bool {
    let about = match stop.call {
        libc::SYS_openat | libc::SYS_newfstatat => stop.text(1),
        libc::SYS_statx if stop.text(1).is_empty() => stop.descriptor(0),
        libc::SYS_statx => stop.text(1),
        libc::SYS_read | libc::SYS_write | libc::SYS_fstat | libc::SYS_lseek => stop.descriptor(0),
        _ => String::new(),
    };
    stop.result.is_none() && about.starts_with("/proc/sys/net/")
}

/// The numbers of the calls that concern sysctls.
fn points(call: &Call) -> Vec<usize> {
    let mut points = vec![];
    let traced = trace(call, |stop| {
        points.extend(is_about_sysctls(stop).then_some(stop.number));
        Then::Go
    });
    assert!(traced.outcome.status == 0 && !points.is_empty(), "{:?}", traced.outcome);
    points
}

/// Each of these calls with each of these errors, and their outcomes.
fn with_each_fault(
    call: &Call,
    points: &[usize],
    before: impl Fn(),
    look: impl Fn(&str, &Outcome),
) {
    for (point, errno) in points.iter().flat_map(|point| PASSING.map(|errno| (*point, errno))) {
        before();
        let is_it = |stop: &Stop| stop.number == point && is_about_sysctls(stop);
        let (outcome, _) = try_failing(call, errno, is_it);
        look(&format!("{:?}, call {point} with {errno}: {outcome:?}", call.env), &outcome);
    }
}

/// An ADD of what was not attached, or was; and a DEL, which leaves to the next what it could not reach.
#[test]
fn what_could_not_reach_a_sysctl_gives_it_back_in_the_end() {
    for_ours("tuning", |lab| {
        let attached = chain(lab, json!({"sysctl": {"net.core.somaxconn": SET}}));
        let value = || sysctl(&attached.container, NAME);
        let old = value();
        for (command, is_attached) in [("ADD", false), ("ADD", true), ("DEL", true)] {
            let before = || drop(is_attached.then(|| attached.add()));
            before();
            let call = attached.call(command, None);
            let points = points(&call);
            attached.del();
            with_each_fault(&call, &points, before, |what, outcome| {
                match (command, is_attached, outcome.status) {
                    ("ADD", true, _) | ("ADD", false, 0) => assert_eq!(value(), SET, "{what}"),
                    ("ADD", false, _) => {
                        assert_eq!(value(), old, "{what}");
                        assert!(!has_backup(lab, &attached), "{what}: {}", backup_of(&attached));
                    }
                    _ => assert!(outcome.status != 0 || value() == old, "{what}: {}", value()),
                }
                attached.del();
                assert_eq!(value(), old, "{what}");
                assert!(!has_backup(lab, &attached), "{what}: {}", backup_of(&attached));
            });
        }
    });
}

/// DEL restores the last sysctl first. The kernel refuses that one permanently, and the other could
/// not be opened.
#[test]
fn a_refused_sysctl_hides_none_that_could_not_be_reached() {
    for_ours("tuning", |lab| {
        let keys = json!({"sysctl": {"net.core.somaxconn": SET, "net.ipv4.ip_default_ttl": "33"}});
        let attached = chain(lab, keys);
        let old = sysctl(&attached.container, NAME);
        for errno in PASSING {
            attached.container.sh("echo 77 >/proc/sys/net/ipv4/ip_default_ttl");
            attached.add();
            lab.host.sh(&format!("sed -i 's/\"77\"/\"no\"/' {}", backup_of(&attached)));
            let opens = |stop: &Stop| stop.call == libc::SYS_openat && stop.text(1).ends_with(NAME);
            let error = run_failing(&attached.call("DEL", None), errno, opens).err();
            let are_named = ["ip_default_ttl", "somaxconn"].map(|name| error.text().contains(name));
            assert_eq!(are_named, [true; 2], "{error:?}");
            assert!(has_backup(lab, &attached), "{error:?}");
            let error = attached.try_del().err();
            assert!(!error.text().contains("somaxconn"), "{error:?}");
            assert_eq!(sysctl(&attached.container, NAME), old);
            attached.del();
        }
    });
}

#[test]
fn a_check_that_could_not_read_a_sysctl_is_no_success() {
    for_ours("tuning", |lab| {
        let attached = chain(lab, json!({"sysctl": {"net.core.somaxconn": SET}}));
        let call = attached.call("CHECK", None);
        attached.add();
        let points = points(&call);
        attached.container.sh("echo 99 >/proc/sys/net/core/somaxconn");
        let fails = |what: &str, outcome: &Outcome| assert_ne!(outcome.status, 0, "{what}");
        with_each_fault(&call, &points, || (), fails);
    });
}

/// The kernel has no value before the first write, and reading it gives EIO.
#[test]
fn a_secret_that_was_never_set_is_set() {
    for_ours("tuning", |lab| {
        let secret = "2001:0db8:0000:0000:0000:0000:0000:0001";
        let keys = json!({"sysctl": {"net.ipv6.conf.IFNAME.stable_secret": secret}});
        let attached = chain(lab, keys);
        let result = attached.add();
        assert_eq!(attached.check(&result).status, 0);
        attached.del();
    });
}
