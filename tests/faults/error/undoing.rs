//! Reads that decide what is undone: a transient read error fails the call instead of being taken
//! for "nothing is there", and the next call completes the work.

use nix::errno::Errno;
use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::call::{Call, Outcome};
use crate::support::netns::Lab;
use crate::support::networks::stacked::{MACVLAN, hasty_container};
use crate::support::networks::{bridge, sbr, tuning};
use crate::support::tracer::{Stop, Then, trace};

/// Runs the call and fails the first system call matched by `is_it` with `errno`. Panics if there
/// is none.
#[track_caller]
fn run_failing(call: &Call, errno: Errno, is_it: impl Fn(&Stop) -> bool + Send + Sync) -> Outcome {
    let mut has_failed = false;
    let traced = trace(call, |stop| {
        let fails = !has_failed && stop.result.is_none() && is_it(stop);
        has_failed |= fails;
        if fails { Then::fail(errno) } else { Then::Go }
    });
    assert!(
        has_failed,
        "no system call of {} {:?} is the one that fails",
        call.program.display(),
        call.env["CNI_COMMAND"]
    );
    traced.outcome
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

fn files(lab: &Lab, dir: &str) -> usize {
    std::fs::read_dir(lab.path(dir)).map_or(0, Iterator::count)
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
        let other: Attachment<'_> = attachment.clone().id("another");
        let own = std::fs::read_dir(lab.path("/run/cni/sbr"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .file_name();
        // Another attachment of this namespace has recorded the same rules, so they belong to it
        // too.
        lab.host.sh(
            "cd /run/cni/sbr; sed 's/\"container_id\":\"[^\"]*\"/\"container_id\":\"another\"/' *.json >/run/other",
        );
        let key = cni_multi::cni::attachment::Key::parse("net2", "another", "net1").unwrap();
        lab.host.sh(&format!("cp /run/other /run/cni/sbr/{}.json", key.identity()));
        let is_of_other = |stop: &Stop| opens(stop, &key.identity());
        let del = attachment.clone().conf(json!({"prevResult": null})).call("DEL", None);
        let rules = sbr::rules(&container);
        assert!(!rules.is_empty());
        for errno in [Errno::EMFILE, Errno::EIO] {
            run_failing(&del, errno, is_of_other).err();
            assert_eq!(
                sbr::rules(&container),
                rules,
                "{errno}: rules of another attachment are gone"
            );
            assert!(lab.path("/run/cni/sbr").join(&own).exists());
        }
        del.run().ok();
        assert_eq!(sbr::rules(&container), rules, "they are the other's");
        other.conf(json!({"prevResult": null})).del();
        assert!(sbr::rules(&container).is_empty());
    });
}

#[test]
fn gc_reads_records_or_fails() {
    MACVLAN.for_ours(|lab| {
        let conf = with(&MACVLAN.conf(), json!({"cniVersion": "1.1.0"}));
        let attach = || {
            let container = hasty_container(lab);
            lab.attach(&container, &conf).add();
            container.vanish();
        };
        let no_attachment = with(&conf, json!({"cni.dev/valid-attachments": []}));
        let gc = lab.attach_at("none", "/run/netns/none", &no_attachment).call("GC", None);
        let is_done = || files(lab, "/run/cni/macvlan") == 0;
        assert_told_and_done_later(&gc, "/run/cni/macvlan", is_done, attach);
        attach();
        let error = run_failing(&gc, Errno::EIO, |stop| lists(stop, "/run/cni/macvlan")).err();
        assert!(error.text().contains("/run/cni/macvlan") && !is_done(), "{error:?}");
        gc.run().ok();
        assert!(is_done());
    });
}

#[test]
fn gc_of_tuning_reads_backups_or_fails() {
    for_ours("tuning", |lab| {
        let conf = tuning::tuning(
            json!({"cniVersion": "1.1.0", "name": "net1", "sysctl": {"net.core.somaxconn": "517"}}),
        );
        let previous = json!({"cniVersion": "1.1.0"});
        let attach = || {
            let container = lab.container();
            lab.attach(&container, &conf).call("ADD", Some(&previous)).run().ok();
            container.vanish();
        };
        let no_attachment = with(&conf, json!({"cni.dev/valid-attachments": []}));
        let gc = lab.attach_at("none", "/run/netns/none", &no_attachment).call("GC", None);
        let is_done = || files(lab, "/run/cni/tuning") == 0;
        assert_told_and_done_later(&gc, "/run/cni/tuning", is_done, attach);
        attach();
        run_failing(&gc, Errno::EIO, |stop| lists(stop, "/run/cni/tuning")).err();
        assert!(!is_done());
        gc.run().ok();
        assert!(is_done());
    });
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
        let leading = || {
            lab.host
                .sh("iptables -t nat -S POSTROUTING | grep -c -- '-j CNI-' || true")
                .trim()
                .to_owned()
        };
        assert_eq!(leading(), "2");
        let error = run_failing(&goes.call("DEL", None), Errno::EMFILE, |stop| {
            stop.call == libc::SYS_setns
        })
        .err();
        assert_eq!(leading(), "2", "{error:?}");
        goes.del();
        assert_eq!(leading(), "1");
        stays.del();
        assert_eq!(leading(), "0");
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
