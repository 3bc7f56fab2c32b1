//! tuning and the errors that pass: each call on a file of /proc/sys fails once with EMFILE, ENOMEM and EIO. A value that could not be
//! read in that moment is no value that cannot be read.

use nix::errno::Errno;
use serde_json::json;

use crate::plugins::meta::tuning::{backup_of, chain, has_backup, sysctl};
use crate::support::attachment::for_ours;
use crate::support::call::{Call, Outcome};
use crate::support::chain::Chain;
use crate::support::tracer::{Stop, Then, trace};

const NAME: &str = "core/somaxconn";
const SET: &str = "517";
const PASSING: [Errno; 3] = [Errno::EMFILE, Errno::ENOMEM, Errno::EIO];

/// Whether the call is about a sysctl, and may fail: what is closed is closed.
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

/// The numbers of these calls.
fn points(call: &Call) -> Vec<usize> {
    let mut points = vec![];
    let traced = trace(call, |stop| {
        points.extend(is_about_sysctls(stop).then_some(stop.number));
        Then::Go
    });
    assert!(traced.outcome.status == 0 && !points.is_empty(), "{:?}", traced.outcome);
    points
}

fn with_fault(call: &Call, point: usize, errno: Errno) -> Outcome {
    let decide =
        |stop: &Stop| if stop.number == point && is_about_sysctls(stop) { Then::fail(errno) } else { Then::Go };
    trace(call, decide).outcome
}

/// Each fault of the call. `before` makes what it is about.
fn for_each_fault(attached: &Chain<'_>, command: &str, before: impl Fn(), look: impl Fn(&str, &Outcome)) {
    before();
    let call = attached.call(command, None);
    let points = points(&call);
    attached.del();
    for (point, errno) in points.iter().flat_map(|point| PASSING.map(|errno| (*point, errno))) {
        before();
        let outcome = with_fault(&call, point, errno);
        look(&format!("{command}, call {point} with {errno}: {outcome:?}"), &outcome);
        attached.del();
    }
}

#[test]
fn an_add_that_could_not_read_a_sysctl_gives_it_back() {
    for_ours("tuning", |lab| {
        let attached = chain(lab, json!({"sysctl": {"net.core.somaxconn": SET}}));
        let value = || sysctl(&attached.container, NAME);
        let old = value();
        for_each_fault(
            &attached,
            "ADD",
            || (),
            |what, outcome| {
                if outcome.status == 0 {
                    assert_eq!(value(), SET, "{what}");
                    attached.del();
                }
                assert_eq!(value(), old, "{what}");
                assert!(!has_backup(lab, &attached), "{what}: {}", backup_of(&attached));
            },
        );
    });
}

#[test]
fn a_repeated_add_that_could_not_read_a_sysctl_gives_it_back() {
    for_ours("tuning", |lab| {
        let attached = chain(lab, json!({"sysctl": {"net.core.somaxconn": SET}}));
        let value = || sysctl(&attached.container, NAME);
        let old = value();
        let attach = || drop(attached.add());
        for_each_fault(&attached, "ADD", attach, |what, _| {
            assert_eq!(value(), SET, "{what}");
            attached.del();
            assert_eq!(value(), old, "{what}");
        });
    });
}

#[test]
fn a_del_that_could_not_reach_a_sysctl_leaves_it_to_the_next() {
    for_ours("tuning", |lab| {
        let attached = chain(lab, json!({"sysctl": {"net.core.somaxconn": SET}}));
        let value = || sysctl(&attached.container, NAME);
        let old = value();
        for_each_fault(
            &attached,
            "DEL",
            || drop(attached.add()),
            |what, outcome| {
                assert!(outcome.status != 0 || value() == old, "{what}: {}", value());
                attached.del();
                assert_eq!(value(), old, "{what}");
            },
        );
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
        for (point, errno) in points.iter().flat_map(|point| PASSING.map(|errno| (*point, errno))) {
            let outcome = with_fault(&call, point, errno);
            assert_ne!(outcome.status, 0, "call {point} with {errno}");
        }
    });
}

/// It has no value before the first one is written, and reading it is EIO then.
#[test]
fn a_secret_that_was_never_set_is_set() {
    for_ours("tuning", |lab| {
        let attached = chain(
            lab,
            json!({"sysctl": {"net.ipv6.conf.IFNAME.stable_secret": "2001:0db8:0000:0000:0000:0000:0000:0001"}}),
        );
        let result = attached.add();
        assert_eq!(attached.check(&result).status, 0);
        attached.del();
    });
}
