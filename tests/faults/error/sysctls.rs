//! tuning and transient errors: each call on a file of /proc/sys fails once with EMFILE, ENOMEM or
//! EIO. A value that could not be read once must not be taken for an unreadable one.

use nix::errno::Errno;
use serde_json::json;

use crate::support::attachment::for_ours;
use crate::support::call::{Call, Outcome};
use crate::support::chain::Chain;
use crate::support::netns::Lab;
use crate::support::networks::tuning::{backup_of, chain, has_backup, sysctl};
use crate::support::tracer::{Stop, Then, trace};

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

fn with_fault(call: &Call, point: usize, errno: Errno) -> Outcome {
    let decide = |stop: &Stop| {
        if stop.number == point && is_about_sysctls(stop) { Then::fail(errno) } else { Then::Go }
    };
    trace(call, decide).outcome
}

/// Tries each fault of the call. `before` creates the starting state.
fn for_each_fault(
    attached: &Chain<'_>,
    command: &str,
    before: impl Fn(),
    look: impl Fn(&str, &Outcome),
) {
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

/// A network with one sysctl, and the container's value without it.
struct Tuned<'a> {
    attached: Chain<'a>,
    old: String,
}

impl Tuned<'_> {
    fn value(&self) -> String {
        sysctl(&self.attached.container, NAME)
    }

    #[track_caller]
    fn assert_as_before(&self, what: &str) {
        assert_eq!(self.value(), self.old, "{what}");
    }
}

fn for_tuned(case: impl Fn(&Lab, &Tuned<'_>)) {
    for_ours("tuning", |lab| {
        let attached = chain(lab, json!({"sysctl": {"net.core.somaxconn": SET}}));
        let old = sysctl(&attached.container, NAME);
        case(lab, &Tuned { attached, old });
    });
}

#[test]
fn an_add_that_could_not_read_a_sysctl_gives_it_back() {
    for_tuned(|lab, tuned| {
        let attached = &tuned.attached;
        let nothing = || ();
        for_each_fault(attached, "ADD", nothing, |what, outcome| {
            if outcome.status == 0 {
                assert_eq!(tuned.value(), SET, "{what}");
                attached.del();
            }
            tuned.assert_as_before(what);
            assert!(!has_backup(lab, attached), "{what}: {}", backup_of(attached));
        });
    });
}

#[test]
fn a_repeated_add_that_could_not_read_a_sysctl_gives_it_back() {
    for_tuned(|_, tuned| {
        let attach = || drop(tuned.attached.add());
        for_each_fault(&tuned.attached, "ADD", attach, |what, _| {
            assert_eq!(tuned.value(), SET, "{what}");
            tuned.attached.del();
            tuned.assert_as_before(what);
        });
    });
}

#[test]
fn a_del_that_could_not_reach_a_sysctl_leaves_it_to_the_next() {
    for_tuned(|_, tuned| {
        let attach = || drop(tuned.attached.add());
        for_each_fault(&tuned.attached, "DEL", attach, |what, outcome| {
            assert!(outcome.status != 0 || tuned.value() == tuned.old, "{what}: {}", tuned.value());
            tuned.attached.del();
            tuned.assert_as_before(what);
        });
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
            let is_open = |stop: &Stop| {
                stop.result.is_none()
                    && stop.call == libc::SYS_openat
                    && stop.text(1).ends_with(NAME)
            };
            let decide = |stop: &Stop| if is_open(stop) { Then::fail(errno) } else { Then::Go };
            let error = trace(&attached.call("DEL", None), decide).outcome.err();
            assert!(
                error.text().contains("ip_default_ttl") && error.text().contains("somaxconn"),
                "{error:?}"
            );
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
        for (point, errno) in points.iter().flat_map(|point| PASSING.map(|errno| (*point, errno))) {
            let outcome = with_fault(&call, point, errno);
            assert_ne!(outcome.status, 0, "call {point} with {errno}");
        }
    });
}

/// The kernel has no value before the first write, and reading it gives EIO.
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
