//! The daemon's capabilities and system calls, and its messages if a capability is missing.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::network;
use crate::docs::{Page, code_spans};
use crate::support::attachment::{Attachment, for_ours, skip};
use crate::support::call::ErrorObject;
use crate::support::dhcp::Daemon;
use crate::support::netns::{Lab, is_root};
use crate::support::networks::dhcp::conf;
use crate::support::patience;
use crate::support::peers::each_case;

/// The numbers of the capabilities in linux/capability.h.
pub const NUMBERS: [(&str, u32); 6] = [
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
];

/// The capabilities that SECURITY.md says the daemon keeps, and whether it starts without each.
fn table() -> Vec<(String, bool)> {
    let rows = Page::read("SECURITY.md").rows(Some("The DHCP daemon"));
    let row =
        |row: Vec<String>| (code_spans(&row[0])[0].clone(), row[2].starts_with("does not start"));
    let table: Vec<(String, bool)> = rows.into_iter().map(row).collect();
    let names: BTreeSet<&str> = table.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NUMBERS.iter().map(|(name, _)| *name).collect());
    table
}

/// `setpriv` with every capability of the table except one.
fn all_but(dropped: &str) -> String {
    let kept = table().into_iter().filter(|(name, _)| name != dropped);
    let kept =
        kept.map(|(name, _)| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()));
    format!("-all{}", kept.collect::<String>())
}

/// The command line of a daemon that lacks one.
fn without(bounding: &str) -> [&str; 4] {
    ["setpriv", "--bounding-set", bounding, "--"]
}

/// A line of `/proc/PID/status` or `/proc/PID/limits`.
fn proc(daemon: &Daemon<'_>, file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", daemon.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
}

/// A daemon that has given up what it does not need, which it does when its socket is there already.
fn confined(lab: &Lab) -> Daemon<'_> {
    let daemon = Daemon::start(lab);
    let deadline = Instant::now() + patience(10);
    while proc(&daemon, "status", "Seccomp:") == "0" && Instant::now() < deadline {
        sleep(Duration::from_millis(5));
    }
    daemon
}

fn the_daemon_has_the_capabilities_of_the_table_and_no_others(lab: &Lab) {
    let daemon = confined(lab);
    let bits = NUMBERS.iter().fold(0u64, |bits, (_, number)| bits | 1 << number);
    let (all, none) = (format!("{bits:016x}"), "0".repeat(16));
    let has = |key: &str| proc(&daemon, "status", key);
    assert_eq!(["CapPrm:", "CapEff:", "CapBnd:"].map(has), [&*all, &all, &all]);
    assert_eq!(["CapInh:", "CapAmb:"].map(has), [&*none, &none]);
    assert_eq!(["NoNewPrivs:", "Umask:"].map(has), ["1", "0077"]);
    // No memory is written to a file.
    assert!(proc(&daemon, "limits", "Max core file size").starts_with("0 "));
    // Every test of the plugin runs with the filter, so the system calls that the daemon needs
    // pass it. Refused system calls are tested beside the filter (`sys::seccomp`).
    assert_eq!(has("Seccomp:"), "2", "{}", daemon.log());
    assert!(!daemon.log().contains("restricted"), "{}", daemon.log());
}

fn daemon_refuses_to_start_and_names_what_it_lacks(lab: &Lab) {
    let needed: Vec<_> = table().into_iter().filter(|(_, is_needed)| *is_needed).collect();
    assert_eq!(needed.len(), 3);
    for (name, _) in needed {
        let (status, log) = Daemon::refused(lab, &without(&all_but(&name)));
        assert_eq!(status, 1, "{name}: {log}");
        assert!(log.contains(&format!("start the DHCP daemon: it lacks {name};")), "{log}");
        assert_eq!(lab.host.sh("ls -A /run/cni"), "", "nothing is left");
    }
}

/// A lease can still be acquired and released.
fn without_what_is_of_use_it_starts_and_says_what_will_not_be(lab: &Lab) {
    let _server = network(lab, json!({}));
    for (name, _) in table().into_iter().filter(|(_, is_needed)| !is_needed) {
        let mut daemon = Daemon::wrapped(lab, &without(&all_but(&name)));
        let log = daemon.log();
        for lacks in [&format!("without {name}: "), "without CAP_"] {
            assert_eq!(log.matches(lacks).count(), 1, "{log}");
        }
        lab.added(&conf()).1.del();
        assert_eq!(daemon.end_by("TERM"), 0);
    }
}

/// ADD fails while the daemon lacks the capability, and succeeds with it; returns the error.
fn add_without(lab: &Lab, capability: &str, attachment: &Attachment<'_>) -> ErrorObject {
    let mut lacking = Daemon::wrapped(lab, &without(&all_but(capability)));
    let error = attachment.try_add().err();
    lacking.kill();
    let _daemon = Daemon::start(lab);
    attachment.add();
    attachment.del();
    error
}

fn a_namespace_that_is_named_by_a_process_takes_cap_sys_ptrace(lab: &Lab) {
    let _server = network(lab, json!({}));
    let container = lab.container_of_process();
    let error = add_without(lab, "CAP_SYS_PTRACE", &lab.attach(&container, &conf()));
    let says = |words| error.text().contains(words);
    assert!(says("open netns \"/proc/") && says("permission denied"), "{error:?}");
}

/// A rootless engine keeps its namespaces in a directory of its user.
#[test]
fn a_namespace_in_a_private_directory_needs_dac_read_search() {
    if !is_root() {
        return skip("root, for a directory of another user");
    }
    for_ours("dhcp", |lab| {
        let _server = network(lab, json!({}));
        let (container, attachment) = lab.place(&conf());
        lab.host.sh(&format!(
            "mkdir -m 700 /run/theirs && touch /run/theirs/ns && mount --bind {} /run/theirs/ns && chown 1000 /run/theirs",
            container.netns
        ));
        let attachment = attachment.netns(Some("/run/theirs/ns"));
        let error = add_without(lab, "CAP_DAC_READ_SEARCH", &attachment);
        let said = "open netns \"/run/theirs/ns\": permission denied";
        assert!(error.msg.ends_with(said), "{error:?}");
    });
}

each_case! { |case| for_ours("dhcp", case);
    the_daemon_has_the_capabilities_of_the_table_and_no_others
    daemon_refuses_to_start_and_names_what_it_lacks
    without_what_is_of_use_it_starts_and_says_what_will_not_be
    a_namespace_that_is_named_by_a_process_takes_cap_sys_ptrace
}
