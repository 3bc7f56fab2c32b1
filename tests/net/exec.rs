//! `net exec`: the command's namespace, its exit status, and that nothing is left.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::support::attachment::{for_ours, skip};
use crate::support::call::{Call, Outcome, binary};
use crate::support::netns::Lab;
use crate::support::snapshot::Watch;
use crate::support::synced;

/// A host with the network `pods`, to which a container has been attached before.
fn with_network(case: impl Fn(&Lab)) {
    for_ours("bridge", |lab| {
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.93.0.0/24"}]]});
        let dns = json!({"nameservers": ["10.93.0.53"], "search": ["a.example", "b.example"]});
        let bridge = json!({
            "type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "ipam": ipam,
            "capabilities": {"ips": true}, "dns": dns,
        });
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let first = synced::attach(lab, &[bridge, portmap], "-p 8080:80");
        first.del();
        case(lab);
    });
}

/// Prepares `cni-multi net exec pods OPTIONS -- WORDS`.
fn exec(lab: &Lab, options: &str, words: &[&str]) -> Call {
    let mut call = synced::net(lab, &format!("exec pods {options}"));
    call.args.push("--".to_owned());
    call.args.extend(words.iter().map(|word| (*word).to_owned()));
    call
}

fn script(lab: &Lab, text: &str) -> Outcome {
    exec(lab, "", &["sh", "-c", text]).run()
}

/// Starts a script that prints `ready`.
fn started(lab: &Lab, text: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = exec(lab, "-p 8080:80", &["sh", "-c", text]).spawn();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, stdout)
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[test]
fn a_command_has_the_network_and_nothing_is_left() {
    with_network(|lab| {
        let before = Watch::start(lab, &[]);
        let text = "ip -br -4 address show eth0 | tr -s ' '; ip route get 10.93.0.1 | head -c 9; echo
            ip -br link show lo | grep -o LOWER_UP; ping -c 1 -W 5 10.93.0.1 >/dev/null && echo pong";
        let outcome = exec(lab, "--ip 10.93.0.77", &["sh", "-c", text]).run();
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        assert!(lines[0].ends_with("UP 10.93.0.77/24 "), "{outcome:?}");
        assert_eq!(lines[1..], ["10.93.0.1", "LOWER_UP", "pong"], "{outcome:?}");
        before.assert_unchanged("a command");
    });
}

/// What the mount namespace of the command shows, and that the host's files stay.
#[test]
fn a_command_has_links_and_resolver_of_the_network() {
    with_network(|lab| {
        if !lab.host.try_sh("test -e /etc/resolv.conf").status.success() {
            return skip("/etc/resolv.conf");
        }
        let of_host =
            || lab.host.sh("cat /etc/resolv.conf; cat /proc/self/mountinfo | cut -d' ' -f 4-");
        let before = of_host();
        let outcome = script(lab, "cat /etc/resolv.conf; echo /sys/class/net/eth*");
        let expected = "nameserver 10.93.0.53\nsearch a.example b.example\n/sys/class/net/eth0\n";
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, expected), "{outcome:?}");
        assert_eq!(of_host(), before);
    });
}

#[test]
fn the_exit_status_is_the_command_s_or_says_why_none_ran() {
    with_network(|lab| {
        let before = Watch::start(lab, &[]);
        let cases: [(&str, &[&str], i32, &str); 6] = [
            ("", &["sh", "-c", "exit 7"], 7, ""),
            ("", &["sh", "-c", "kill -TERM $$"], 143, ""),
            ("", &["no-such-command"], 127, "run \"no-such-command\": no such file or directory\n"),
            ("", &["/etc"], 126, "run \"/etc\": permission denied\n"),
            ("--ip 10.94.0.1", &["true"], 125, "plugin type=\"bridge\" failed (add): "),
            ("--mac 02:00:00:00:00:01", &["true"], 125, "--mac: no plugin of network \"pods\""),
        ];
        for (options, words, status, stderr) in cases {
            let outcome = exec(lab, options, words).run();
            assert_eq!((outcome.status, outcome.stdout.as_str()), (status, ""), "{outcome:?}");
            assert!(outcome.stderr.starts_with(stderr), "{outcome:?}");
            assert_eq!(outcome.stderr.is_empty(), stderr.is_empty(), "{outcome:?}");
        }
        before.assert_unchanged("commands that failed");
    });
}

#[test]
fn a_signal_reaches_the_command_and_the_network_goes() {
    with_network(|lab| {
        let before = Watch::start(lab, &[]);
        for (signal, status) in [(Signal::SIGTERM, 3), (Signal::SIGINT, 3), (Signal::SIGUSR1, 3)] {
            let name = signal.as_str();
            let text = format!(
                "trap 'echo {name}; exit 3' {}; echo ready; while :; do sleep 0.02; done",
                name.trim_start_matches("SIG")
            );
            let (child, mut stdout) = started(lab, &text);
            send(&child, signal);
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let outcome = Outcome::of(child);
            assert_eq!((line.trim_end(), outcome.status), (name, status), "{outcome:?}");
        }
        before.assert_unchanged("signals");
    });
}

/// A parent may have left SIGCHLD ignored, and the kernel then says nothing of children.
#[test]
fn the_end_of_a_command_is_seen_with_sigchld_ignored() {
    with_network(|lab| {
        let mut call = exec(lab, "", &["sh", "-c", "exit 7"]);
        let ignoring = ["timeout", "60", "sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"];
        call.wrapper.extend(ignoring.map(String::from));
        assert_eq!(call.run().status, 7);
    });
}

/// They run on, without the network.
#[test]
fn processes_in_the_background_keep_no_network() {
    with_network(|lab| {
        let before = Watch::start(lab, &[]);
        let outcome = script(lab, "sleep 600 </dev/null >/dev/null 2>&1 & echo $!");
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        let pid = outcome.stdout.trim().to_owned();
        let left = lab.host.sh(&format!("nsenter --net=/proc/{pid}/ns/net ip -br link"));
        lab.host.sh(&format!("kill {pid}"));
        assert!(!left.contains("eth0") && left.contains("lo"), "{left}");
        before.assert_unchanged("a command with a process in the background");
    });
}

#[test]
fn gc_takes_what_a_killed_exec_has_left() {
    with_network(|lab| {
        let before = Watch::start(lab, &[]);
        let (mut child, _stdout) = started(lab, "echo ready; exec sleep 600");
        let rows = lab.host.sh(&format!("{} net ps pods", binary().display()));
        assert!(rows.contains(" alive"), "{rows}");
        send(&child, Signal::SIGKILL);
        child.wait().unwrap();
        let collected = synced::net(lab, "gc pods").run();
        assert_eq!(collected.status, 0, "{collected:?}");
        assert!(collected.stdout.starts_with("detached pods exec-"), "{collected:?}");
        assert!(collected.stdout.contains("\ndetached 1; "), "{collected:?}");
        before.assert_unchanged("a killed exec");
    });
}

/// The end of the command would remove what the container has.
#[test]
fn the_id_of_a_live_container_is_refused() {
    with_network(|lab| {
        let synced = synced::attach_another(lab, "--container-id mine");
        let before = Watch::start(lab, &[&synced.container]);
        let outcome = exec(lab, "--container-id mine -i eth1", &["true"]).run();
        let netns = &synced.container.netns;
        let problem = format!(
            "--container-id: container \"mine\" is alive\n\
             eth0 of {netns} is attached to pods; choose another id, or leave the option out\n"
        );
        assert_eq!((outcome.status, outcome.stderr), (125, problem));
        before.assert_unchanged("an exec that was refused");
        synced.container.vanish();
        net_gc(lab);
        assert_eq!(exec(lab, "--container-id mine", &["true"]).run().status, 0);
    });
}

fn net_gc(lab: &Lab) {
    let collected = synced::net(lab, "gc pods").run();
    assert_eq!(collected.status, 0, "{collected:?}");
}

/// A new file would be the host's, so there is nothing to mount on.
#[test]
fn a_command_runs_with_a_dangling_resolv_conf() {
    with_network(|lab| {
        lab.host.sh("mount --bind /etc /etc && mount -t tmpfs none /etc && ln -s /run/nowhere/resolv.conf /etc/resolv.conf");
        let outcome = script(lab, "cat /etc/resolv.conf 2>/dev/null || echo none");
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "none\n"), "{outcome:?}");
        let note = "/etc/resolv.conf does not exist, so the command gets no resolver settings\n";
        assert!(outcome.stderr.ends_with(note), "{outcome:?}");
        lab.host.sh("test ! -e /run/nowhere");
    });
}

/// Another process has the number of a killed one by then, and its file is another namespace.
#[test]
fn a_path_that_leads_to_another_namespace_now_is_gone() {
    with_network(|lab| {
        let (mut child, _stdout) = started(lab, "echo ready; exec sleep 600");
        let file = lab.host.sh("ls -d /var/lib/cni/results/pods-exec-*").trim().to_owned();
        send(&child, Signal::SIGKILL);
        child.wait().unwrap();
        let other = lab.container_of_process();
        synced::net(lab, &format!("add pods {}", other.netns)).run().ok();
        let path = other.netns.replace('/', "[/]").replace("[/]", "\\/");
        lab.host.sh(&format!("sed -i 's/\"netns\":\"[^\"]*\"/\"netns\":\"{path}\"/' {file}"));
        let rows = lab.host.sh(&format!("{} net ps pods", binary().display()));
        let states: Vec<bool> = ["exec-", "cnitool-"]
            .map(|id| rows.lines().any(|row| row.contains(id) && row.trim_end().ends_with("gone")))
            .into();
        assert_eq!(states, [true, false], "{rows}");
        let collected = synced::net(lab, "gc pods").run();
        assert!(collected.stdout.starts_with("detached pods exec-"), "{collected:?}");
        assert!(collected.stdout.contains("\ndetached 1; "), "{collected:?}");
        let check = synced::net(lab, &format!("check pods {}", other.netns)).run();
        assert_eq!((check.status, check.stderr.as_str()), (0, ""));
    });
}
