//! Output and failures that all commands have in common.

use std::fs;

use serde_json::{Value, json};

use super::{Site, assert_failed, result, slow_network};
use crate::support::call::Outcome;

#[test]
fn a_reader_that_has_gone_is_an_error_and_no_panic() {
    let site = Site::with_lab();
    site.attached("lab", "one", "/nonexistent", &result(&["10.1.2.3/24"]));
    for line in [
        "list",
        "list -o json",
        "ps",
        "inspect lab",
        "status lab -o json",
        "add lab red",
        "gc lab -o json",
    ] {
        let call = site.call(line);
        // The pipe's reader exits before the first write.
        let script = "exec 3>&1; { sleep 0.2; \"$@\" 2>&3; echo $? >&3; } | :";
        let outcome = call.wrapped(&["sh", "-c", script, "sh"].map(str::to_owned)).run();
        assert!(
            outcome.stdout.contains("write to stdout: broken pipe")
                && outcome.stdout.ends_with("1\n"),
            "{line}: {outcome:?}"
        );
        assert!(!outcome.stdout.contains("panic"), "{line}: {outcome:?}");
    }
}

#[test]
fn with_json_a_failure_is_the_error_object_on_one_line() {
    let site = Site::with_lab();
    for line in ["add labb red", "check labb red", "del labb red", "gc labb", "status labb"] {
        let outcome = site.net(&format!("{line} -o json"));
        let msg = format!("no net configuration with name \"labb\" in {}", site.at("net.d"));
        let expected = json!({"cniVersion": "1.1.0", "code": 7, "msg": msg, "details": "available networks: lab"});
        let is = (outcome.status, outcome.stdout.as_str(), outcome.stderr.lines().count());
        assert_eq!(is, (1, "", 1), "{line}: {outcome:?}");
        assert_eq!(serde_json::from_str::<Value>(&outcome.stderr).unwrap(), expected, "{line}");
    }
}

/// Remarks about what is not recorded, not configured or not readable.
#[test]
fn with_json_each_line_of_stderr_is_json() {
    let site = Site::with_lab();
    site.network("20-slow.conflist", &slow_network("slow"));
    site.attached("lab", "one", "/nonexistent", &result(&["10.1.2.3/24"]));
    let lines = |line: &str| -> Vec<Value> {
        let outcome = site.net(&format!("{line} -o json"));
        let stderr = outcome.stderr.lines();
        stderr.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let about = |note: &str| {
        let whole = format!("no attachment of eth0 of red to {note} was recorded; recorded: ");
        move |line: &Value| line["note"].as_str().is_some_and(|it| it.starts_with(&whole))
    };
    let checked = lines("check lab red");
    assert!(about("lab")(&checked[0]) && checked[1]["code"] == 7, "{checked:?}");
    let detached = lines("del slow red");
    assert!(about("slow")(&detached[0]) && detached.len() == 1, "{detached:?}");
    fs::write(site.0.join("net.d/10-lab.conflist"), "{").unwrap();
    let collected = lines("gc --dry-run");
    let note = "networks without a configuration are skipped, because a file cannot be read";
    assert_eq!(collected[0], json!({"note": note}));
    fs::remove_file(site.0.join("net.d/10-lab.conflist")).unwrap();
    let forgotten = lines("del lab /nonexistent --container-id one");
    assert!(forgotten[0]["note"].as_str().unwrap().contains("detaching by the one recorded"));
}

#[test]
fn a_network_that_is_ready_says_so_to_programs_only() {
    let site = Site::with_lab();
    assert_eq!(site.prints("status lab"), "");
    assert_eq!(site.json("status lab"), json!({"network": "lab", "ready": true}));
}

#[test]
fn what_cannot_be_read_is_status_2() {
    let site = Site::with_lab();
    for line in [
        "",
        "ps lab extra",
        "inspect",
        "gc --all",
        "add lab",
        "status",
        "frobnicate lab /x",
        "list lab",
        "list -o xml",
        "add lab /nonexistent --output JSON",
        // A script passes an empty argument if its variable is unset.
        "add lab ",
        "check lab ",
        "del lab ",
        "inspect lab ",
    ] {
        let outcome = site.call_with(&line.split(' ').collect::<Vec<_>>()).run();
        assert!(
            outcome.status == 2 && outcome.stdout.is_empty() && !outcome.stderr.is_empty(),
            "{line}: {outcome:?}"
        );
    }
    assert_eq!(site.prints("list -o table"), site.prints("list"));
    assert_eq!(site.cached_names(), [""; 0]);
}

/// Without a printed result the caller does not know of the attachment; `--no-undo` keeps it on
/// request.
#[test]
fn an_add_is_undone_when_its_result_cannot_be_written() {
    let site = Site::new();
    site.network("10-lab.conflist", &slow_network("lab"));
    let full = |line: &str| {
        let script = "exec \"$@\" >/dev/full";
        site.call(line).wrapped(&["sh", "-c", script, "sh"].map(str::to_owned)).run()
    };
    let msg = "write to stdout: no space left on device";
    assert_failed(&full("add lab /x --container-id one"), msg, "what was done has been undone");
    assert!(site.cached_names().is_empty() && site.has("DEL-one.stdin"));
    assert_failed(&full("add lab /x --container-id two --no-undo"), msg, "it is attached");
    assert_eq!(site.cached_names(), ["lab-two-eth0"]);
    assert!(!site.has("DEL-two.stdin"));
}

/// Runs the command with default signal handling: tests started by nohup(1) or a shell's `&` pass
/// ignored signals on to their child processes.
fn interruptible(site: &Site, line: &str) -> Outcome {
    site.call(line).wrapped(&["env", "--default-signal=HUP,INT,TERM"].map(str::to_owned)).run()
}

/// Includes a second interruption during the undo.
#[test]
fn an_add_that_is_interrupted_is_undone() {
    let site = Site::new();
    let wrong = json!({"type": "static", "addresses": [{"address": "x"}]});
    let plugins = json!([{"type": "slow"}, {"type": "static", "ipam": wrong}]);
    let list = json!({"cniVersion": "1.0.0", "name": "lab", "plugins": plugins});
    site.network("10-lab.conflist", &list);
    for signal in ["INT", "TERM", "HUP"] {
        fs::write(site.at("interrupt"), signal).unwrap();
        let outcome = interruptible(&site, &format!("add lab /x --container-id one{signal}"));
        assert_failed(&outcome, "interrupted", "what was done has been undone");
        assert!(site.cached_names().is_empty() && site.has(&format!("DEL-one{signal}.stdin")));
    }
    let kept = interruptible(&site, "add lab /x --container-id two --no-undo");
    assert_failed(&kept, "interrupted", "");
    assert!(!site.has("DEL-two.stdin"));
}

/// nohup(1) and a shell's background jobs start programs with signals ignored.
#[test]
fn an_add_that_is_to_ignore_a_signal_goes_on() {
    let site = Site::new();
    site.network("10-lab.conflist", &slow_network("lab"));
    for signal in ["INT", "TERM", "HUP"] {
        fs::write(site.at("interrupt"), signal).unwrap();
        let script = format!("trap '' {signal}; exec \"$@\"");
        let call = site.call(&format!("add lab /x --container-id {signal}"));
        call.wrapped(&["sh", "-c", &script, "sh"].map(str::to_owned)).run().ok();
    }
    assert_eq!(site.cached_names(), ["lab-HUP-eth0", "lab-INT-eth0", "lab-TERM-eth0"]);
}

#[test]
fn a_del_that_is_interrupted_is_done_first() {
    let site = Site::new();
    site.network("10-lab.conflist", &slow_network("lab"));
    for signal in ["INT", "TERM", "HUP"] {
        site.net(&format!("add lab /x --container-id {signal}")).ok();
        fs::write(site.at("interrupt"), signal).unwrap();
        let outcome = interruptible(&site, &format!("del lab /x --container-id {signal}"));
        assert_eq!((outcome.status, outcome.stderr.as_str()), (-1, ""), "the signal ends it then");
        assert_eq!(site.cached_names(), [""; 0]);
        fs::remove_file(site.at("interrupt")).unwrap();
    }
    for id in ["one", "two"] {
        site.net(&format!("add lab /gone --container-id {id}")).ok();
    }
    fs::write(site.at("interrupt"), "TERM").unwrap();
    assert_eq!(interruptible(&site, "gc lab").status, -1);
    assert_eq!(site.cached_names(), ["lab-two-eth0"]);
}

/// Control characters in file names and plugin output must not reach the terminal.
#[test]
fn foreign_text_does_not_control_the_terminal() {
    let site = Site::new();
    site.network("10-\u{1b}[31mred\u{202e}.conflist", &slow_network("a\u{9b}b"));
    site.network("20.conflist", &json!({"name": 5}));
    for line in ["list", "add lab /x", "gc", "ps"] {
        let outcome = site.net(line);
        let told = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!told.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{line}: {told:?}");
    }
}

/// DEL has succeeded, and `ps` would show the attachment for ever.
#[test]
fn a_result_file_that_stays_is_reported_by_del_and_gc() {
    let site = Site::new();
    site.network("10-lab.conflist", &slow_network("lab"));
    site.attached("lab", "one", "/nonexistent", &result(&["10.1.2.3/24"]));
    let read_only = r#"mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@""#;
    let results = site.at("cache/results");
    let wrapper = ["unshare", "-rm", "sh", "-c", read_only, &results].map(str::to_owned);
    for line in ["del lab /nonexistent --container-id one", "gc lab"] {
        let outcome = site.call(line).wrapped(&wrapper).run();
        assert_eq!(outcome.status, 1, "{line}: {outcome:?}");
        assert!(site.has("DEL-one.stdin"), "{line}");
        let advice = "it is detached; another del removes the file, too";
        for part in ["lab-one-eth0", "read-only file system", advice] {
            assert!(outcome.stderr.contains(part), "{line}: {part}: {outcome:?}");
        }
    }
    assert_eq!(site.net("del lab /nonexistent --container-id one").status, 0);
    assert_eq!(site.cached_names(), [""; 0]);
}
