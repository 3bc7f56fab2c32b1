//! The daemon's flags, socket and process.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use serde_json::{Value, json};

use super::confinement::NUMBERS;
use super::{network, on_a_lan, plugged, short};
use crate::support::attachment::{Attachment, for_each_peer, for_ours, with};
use crate::support::call::binary;
use crate::support::dhcp::scripted::{RELEASE, REQUEST};
use crate::support::dhcp::{Daemon, JOURNAL, SOCKET, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::{conf, journal};
use crate::support::peers::each_case;

fn mode(lab: &Lab, path: &str) -> u32 {
    lab.path(path).metadata().unwrap().permissions().mode() & 0o7777
}

/// Runs a daemon that exits by itself; returns its status and its log.
fn assert_refused(lab: &Lab, flags: &[&str], expected: i32, words: &[&str]) {
    let mut daemon = Daemon::launch(lab, flags, Stdio::null());
    let (status, log) = (daemon.wait(), daemon.log());
    assert_eq!(status, expected, "{flags:?}: {log}");
    assert!(words.iter().all(|word| log.contains(word)), "{flags:?}: {log}");
}

// --- socket and files ---

fn socket_and_files_of_leases_are_root_s_only(lab: &Lab) {
    lab.host.sh("rmdir /run/cni");
    let _server = network(lab, json!({}));
    let _daemon = Daemon::start(lab);
    assert!(lab.path(SOCKET).metadata().unwrap().file_type().is_socket());
    assert_eq!(mode(lab, SOCKET), 0o600);
    assert_eq!(mode(lab, "/run/cni"), 0o700);
    assert_eq!(mode(lab, JOURNAL) & 0o077, 0);
    lab.added(&conf());
    let modes = lab.host.sh(&format!("find {JOURNAL} -type f -printf '%m\\n' | sort -u"));
    assert_eq!(modes, "600\n");
}

/// The file at the socket's path may be another file than a stale socket.
fn a_file_that_is_no_socket_is_left_alone(lab: &Lab) {
    lab.host.sh(&format!("echo precious >{SOCKET}"));
    assert_refused(lab, &[], 1, &[SOCKET]);
    assert_eq!(lab.host.sh(&format!("cat {SOCKET}")), "precious\n");
}

fn bad_flags_are_reported_with_the_usage(lab: &Lab) {
    for flags in [&["-nonsense"][..], &["-timeout", "10"], &["-broadcast=maybe"]] {
        assert_refused(lab, flags, 2, &["-resendtimeout"]);
    }
    assert_refused(lab, &["-pidfile", "dhcp.pid"], 1, &["dhcp.pid", "not absolute"]);
    assert!(!lab.path(SOCKET).exists());
}

#[test]
fn a_second_daemon_is_refused_and_the_first_works_on() {
    on_a_lan(json!({}), |lab, _, first| {
        assert_refused(lab, &[], 1, &[&first.pid().to_string()]); // who has it
        lab.added(&conf());
    });
}

#[test]
fn daemons_of_two_sockets_are_two() {
    let conf = with(&conf(), json!({"ipam": {"daemonSocketPath": "/run/second/dhcp.sock"}}));
    on_a_lan(json!({}), |lab, _, _| {
        let second = Daemon::with_flags(lab, &["-socketpath", "/run/second/dhcp.sock"]);
        lab.added(&conf);
        let beside = lab.host.sh("find /run/second/dhcp.leases -type f ! -name '*lock'");
        assert_ne!(beside, "", "its journal is beside it");
        assert!(second.log().contains("state=bound"), "{}", second.log());
    });
}

fn the_end_by_a_signal_is_a_clean_one(lab: &Lab) {
    for signal in ["TERM", "INT"] {
        let mut daemon = Daemon::with_flags(lab, &["-pidfile", "/run/dhcp.pid"]);
        assert_eq!(lab.host.sh("cat /run/dhcp.pid"), daemon.pid().to_string());
        assert_eq!(mode(lab, "/run/dhcp.pid"), 0o644);
        assert_eq!(daemon.end_by(signal), 0);
        assert!(!lab.path(SOCKET).exists());
        assert!(!lab.path("/run/dhcp.pid").exists());
    }
}

/// For a daemon in a container that has the root of the host mounted below a directory. The prefix
/// does not apply to the pidfile.
fn the_host_may_be_below_a_prefix(lab: &Lab) {
    let _server = network(lab, json!({}));
    let container = lab.container();
    lab.host.sh("mkdir /run/host; mount --rbind / /run/host");
    let flags = ["-hostprefix", "/run/host", "-pidfile", "/run/dhcp.pid"];
    let mut daemon = Daemon::with_flags(lab, &flags);
    assert!(lab.path("/run/dhcp.pid").exists());
    add_and_del(&plugged(lab, &container));
    assert_eq!(daemon.end_by("TERM"), 0);
}

// --- systemd ---

/// The socket belongs to systemd: it exists before the daemon and outlives it.
fn systemd_may_have_made_the_socket(lab: &Lab) {
    let _server = network(lab, json!({}));
    let listener = UnixListener::bind(lab.path(SOCKET)).unwrap();
    let mut daemon = Daemon::activated(lab, listener.try_clone().unwrap().into(), &[]);
    let (_, attachment, result) = lab.added(&conf());
    attachment.check(&result).ok();
    assert_eq!(daemon.end_by("TERM"), 0);
}

/// A connection waits in the backlog of the socket until the daemon has started.
fn a_call_starts_the_daemon_and_waits_for_it(lab: &Lab) {
    let _server = network(lab, json!({}));
    let listener = UnixListener::bind(lab.path(SOCKET)).unwrap();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| drop(lab.added(&conf())));
        std::thread::sleep(std::time::Duration::from_millis(300)); // startup delay of systemd
        let mut daemon = Daemon::activated(lab, listener.into(), &[]);
        adding.join().unwrap();
        assert_eq!(daemon.end_by("TERM"), 0);
    });
}

fn systemd_s_descriptor_may_be_no_listener(lab: &Lab) {
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut daemon = Daemon::activated(lab, file.into(), &[]);
    assert_eq!(daemon.wait(), 1, "{}", daemon.log());
    assert!(daemon.log().contains("socket"), "{}", daemon.log());
}

fn systemd_may_pass_one_descriptor_only(lab: &Lab) {
    let program = lab.peer.dir().join("dhcp");
    let output = lab.host.try_sh(&format!(
        "export LISTEN_PID=$$ LISTEN_FDS=2; exec {} daemon 3</dev/null 4</dev/null",
        program.display()
    ));
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("Too many (2) FDs passed through socket activation"), "{log}");
}

/// LISTEN_PID names another process, so LISTEN_FDS is ignored.
fn descriptors_for_another_process_are_none(lab: &Lab) {
    let mut daemon = Daemon::start(lab);
    assert_eq!(daemon.end_by("TERM"), 0);
    let program = lab.peer.dir().join("dhcp");
    lab.host.sh(&format!(
        "LISTEN_PID=1 LISTEN_FDS=1 timeout -s TERM 1 {} daemon 2>/run/log & \
         for i in $(seq 100); do [ -S {SOCKET} ] && exit 0; sleep 0.01; done; cat /run/log; exit 1",
        program.display()
    ));
}

/// The unit's restrictions leave the daemon the capabilities it needs, including those for a
/// namespace named by a process.
#[test]
fn the_capabilities_of_the_unit_suffice() {
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd/cni-dhcp");
    let value = |unit: &str, key: &str| {
        let text = std::fs::read_to_string(format!("{units}.{unit}")).unwrap();
        let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next().unwrap_or_else(|| panic!("no {key} in the {unit}")).to_owned()
    };
    assert_eq!(value("socket", "ListenStream"), SOCKET);
    assert_eq!(value("socket", "SocketMode"), "0600");
    assert!(value("service", "ExecStart").ends_with("/dhcp daemon"));
    // systemd limits the bounding set before the daemon starts, so that the daemon does not need
    // CAP_SETPCAP.
    let bounding = value("service", "CapabilityBoundingSet");
    assert_eq!(bounding.split(' ').collect::<BTreeSet<_>>(), NUMBERS.map(|(name, _)| name).into());
    let bounding =
        format!("-all,{}", bounding.to_lowercase().replace("cap_", "+").replace(' ', ","));
    for_ours("dhcp", |lab| {
        let server = network(lab, short());
        let wrapper = ["setpriv", "--no-new-privs", "--bounding-set", &bounding, "--"];
        let mut daemon = Daemon::wrapped(lab, &wrapper);
        for container in [lab.container(), lab.container_of_process()] {
            let attachment = lab.attach(&container, &conf());
            let result = attachment.add();
            server.wait_for(REQUEST, server.heard_of(REQUEST).len() + 1, 5);
            attachment.check_and_del(&result);
        }
        assert_eq!(daemon.end_by("TERM"), 0);
    });
}

// --- other clients ---

/// Sends a line and returns the line of the answer.
fn say(lab: &Lab, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(lab.path(SOCKET)).unwrap();
    stream.set_read_timeout(Some(crate::support::patience(5))).unwrap();
    let _ = stream.write_all(line); // the daemon may close the connection early
    let mut answer = String::new();
    let _ = BufReader::new(stream).read_line(&mut answer); // the connection may be reset
    answer
}

fn add_and_del(attachment: &Attachment) {
    attachment.add();
    attachment.del();
}

#[test]
fn other_protocols_get_an_answer_that_names_the_service() {
    let long = [vec![b'x'; 3 << 20], vec![b'\n']].concat();
    let lines = [
        &b"\n"[..],
        b"hello\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b"{}\n",
        b"{\"protocol\":1,\"op\":\"fly\"}\n",
        b"no newline",
        &long,
    ];
    on_a_lan(json!({}), |lab, _, daemon| {
        let answer: Value =
            serde_json::from_str(&say(lab, b"{\"protocol\":99,\"op\":\"status\"}\n")).unwrap();
        assert!(answer["error"]["msg"].as_str().unwrap().contains("99"), "{answer}");
        let http = say(lab, b"CONNECT /_goRPC_ HTTP/1.0\n\n");
        assert!(http.starts_with("HTTP/1.") && http.contains("cni-multi"), "{http}");
        for line in lines {
            let answer = if line.ends_with(b"\n") { say(lab, line) } else { String::new() };
            assert!(!answer.contains("\"answer\""), "{answer}");
            let mut hasty = UnixStream::connect(lab.path(SOCKET)).unwrap();
            let _ = hasty.write_all(line); // and hang up; the daemon may close the connection early
        }
        assert!(!daemon.has_ended());
        add_and_del(&lab.place(&conf()).1);
    });
}

/// Clients connect, send the start of a request and then stay silent.
#[test]
fn silent_clients_do_not_delay_others() {
    on_a_lan(json!({}), |lab, _, _| {
        let mut silent: Vec<UnixStream> =
            (0..100).map(|_| UnixStream::connect(lab.path(SOCKET)).unwrap()).collect();
        silent.iter_mut().for_each(|stream| stream.write_all(b"{\"protocol\":1,").unwrap());
        add_and_del(&lab.place(&conf()).1);
    });
}

/// A network without a server does not delay containers of another network.
fn one_exchange_keeps_no_other_waiting(lab: &Lab) {
    let _server = network(lab, json!({}));
    lab.host.sh(
        "ip link add dead type veth peer name alive; ip link set dead up; ip link set alive up",
    );
    let flags = ["-timeout", "2s", "-resendmax", "4s", "-resendtimeout", "6s"];
    let _daemon = Daemon::with_flags(lab, &flags);
    let (_, dead) = lab.place(&with(&conf(), json!({"master": "dead"})));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| dead.try_add());
        // By now the first ADD is waiting for an answer.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let start = std::time::Instant::now();
        add_and_del(&lab.place(&conf()).1);
        assert!(start.elapsed() < crate::support::patience(2), "{:?}", start.elapsed());
        waiting.join().unwrap().err();
    });
}

// --- `cni-multi dhcp leases`, `release` and `metrics`, and the log ---

fn succeed(lab: &Lab, args: &[&str]) -> String {
    let outcome = lab.dhcp(args);
    assert_eq!(outcome.status, 0, "{args:?}: {outcome:?}");
    outcome.stdout
}

#[test]
fn leases_are_listed() {
    on_a_lan(json!({"lease": 600}), |lab, _, _| {
        let listed = || lab.dhcp(&["leases", "-o", "json"]).ok();
        assert_eq!(listed(), json!([]));
        lab.added(&conf());
        lab.place(&conf()).1.ifname("net0").add();
        let expected = [
            ("container-1/net1/eth0", "10.60.0.50/24"),
            ("container-2/net1/net0", "10.60.0.51/24"),
        ];
        let text = succeed(lab, &["leases"]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows.len(), 2, "{text}");
        for (at, (key, address)) in expected.into_iter().enumerate() {
            let row = rows[at];
            assert!(row.contains(key) && row.contains(address) && row.contains("bound"), "{row}");
            let lease = &listed()[at];
            for (name, value) in
                [("key", key), ("address", address), ("server", "10.60.0.1"), ("state", "bound")]
            {
                assert_eq!(lease[name], value);
            }
        }
    });
}

#[test]
fn a_lease_is_released_by_its_key() {
    on_a_lan(json!({"lease": 600}), |lab, server, _| {
        let (container, attachment, result) = lab.added(&conf());
        let error = lab.dhcp(&["release", "container-9/net1/eth0"]);
        assert_ne!(error.status, 0);
        assert!(error.stderr.contains("container-9/net1/eth0"), "{error:?}");
        succeed(lab, &["release", "container-1/net1/eth0"]);
        assert_eq!(server.wait_for(RELEASE, 1, 5)[0]["ciaddr"], "10.60.0.50");
        assert_eq!(container.addresses("eth0"), [""; 0], "the address may be another's soon");
        assert_eq!(journal(lab), [""; 0]);
        attachment.check(&result).err();
        attachment.del();
        assert_eq!(server.heard_of(RELEASE).len(), 1);
    });
}

/// The value of a metric; the name includes its labels as printed.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_count() {
    on_a_lan(json!({"lease": 600}), |lab, server, _| {
        lab.added(&conf());
        server.change(json!({"before": ["garbage", "short"]}));
        lab.added(&conf()).1.del();
        let text = succeed(lab, &["metrics"]);
        for line in text.lines() {
            let is_a_sample =
                line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
            assert!(line.starts_with("# ") || is_a_sample, "{line:?} is not of the format");
        }
        for (name, value) in [
            ("leases{state=\"bound\"}", 1.0),
            ("packets_sent_total", 5.0),
            ("packets_received_total", 4.0),
            ("acquire_failures_total", 0.0),
        ] {
            assert_eq!(metric(&text, &format!("cni_dhcp_{name}")), Some(value), "{text}");
        }
        let malformed = metric(&text, "cni_dhcp_packets_malformed_total");
        assert!(malformed.is_some_and(|count| count >= 2.0), "{text}");
    });
}

fn without_a_daemon_the_error_names_the_socket(lab: &Lab) {
    for args in [&["leases"][..], &["metrics"], &["release", "a/b/c"]] {
        let outcome = lab.dhcp(args);
        assert_eq!((outcome.status, &*outcome.stdout), (1, ""), "{outcome:?}");
        let says = |words| outcome.stderr.contains(words);
        assert!(says(SOCKET) && says("cni-dhcp.service"), "{outcome:?}");
    }
}

/// `cni-multi dhcp daemon` is the same as `dhcp daemon`.
fn the_daemon_starts_by_either_name(lab: &Lab) {
    let output = lab.host.try_sh(&format!("{} dhcp daemon -nonsense", binary().display()));
    assert_eq!(output.status.code(), Some(2));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("-resendtimeout"), "{log}");
}

/// One line for each transition, in a format that programs can parse.
#[test]
fn each_transition_is_a_line_of_the_log() {
    on_a_lan(short(), |lab, server, daemon| {
        let (_, attachment, _) = lab.added(&conf());
        server.wait_for(REQUEST, 2, 5);
        attachment.del();
        let line_of = |log: &str, state: &str| {
            let is_its =
                |line: &str| line.contains("lease=container-1/net1/eth0") && line.contains(state);
            log.lines().position(is_its)
        };
        wait_until("the end is told", 3, || line_of(&daemon.log(), "state=released").is_some());
        let log = daemon.log();
        let at =
            ["bound", "renewing", "released"].map(|state| line_of(&log, &format!("state={state}")));
        assert!(at[0].is_some() && at.is_sorted(), "{log}");
        let bound = log.lines().nth(at[0].unwrap()).unwrap();
        assert!(
            bound.contains("address=10.60.0.50/24") && bound.contains("server=10.60.0.1"),
            "{bound}"
        );
    });
}

each_case! { |case| for_ours("dhcp", case);
    socket_and_files_of_leases_are_root_s_only
    a_file_that_is_no_socket_is_left_alone
    a_call_starts_the_daemon_and_waits_for_it
    systemd_s_descriptor_may_be_no_listener
    one_exchange_keeps_no_other_waiting
    without_a_daemon_the_error_names_the_socket
    the_daemon_starts_by_either_name
}

each_case! { |case| for_each_peer("dhcp", case);
    bad_flags_are_reported_with_the_usage
    the_end_by_a_signal_is_a_clean_one
    the_host_may_be_below_a_prefix
    systemd_may_have_made_the_socket
    systemd_may_pass_one_descriptor_only
    descriptors_for_another_process_are_none
}
