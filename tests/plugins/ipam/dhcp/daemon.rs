//! The daemon's flags, socket and process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use serde_json::{Value, json};

use super::{network, on_a_lan, plugged};
use crate::support::attachment::{Attachment, for_each_peer, for_ours, with};
use crate::support::dhcp::scripted::REQUEST;
use crate::support::dhcp::{Daemon, JOURNAL, SOCKET};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::conf;

fn mode(lab: &Lab, path: &str) -> u32 {
    lab.path(path).metadata().unwrap().permissions().mode() & 0o7777
}

/// Runs a daemon that exits by itself; returns its status and its log.
fn refused(lab: &Lab, flags: &[&str]) -> (i32, String) {
    let mut daemon = Daemon::launch(lab, flags, Stdio::null());
    let status = daemon.wait();
    (status, daemon.log())
}

// --- socket and files ---

#[test]
fn socket_and_files_of_leases_are_root_s_only() {
    for_ours("dhcp", |lab| {
        lab.host.sh("rmdir /run/cni");
        let _server = network(lab);
        let _daemon = Daemon::start(lab);
        assert!(lab.path(SOCKET).metadata().unwrap().file_type().is_socket());
        assert_eq!(mode(lab, SOCKET), 0o600);
        assert_eq!(mode(lab, "/run/cni"), 0o700);
        assert_eq!(mode(lab, JOURNAL) & 0o077, 0);
        lab.attach(&lab.container(), &conf()).add();
        let modes = lab.host.sh(&format!("find {JOURNAL} -type f -printf '%m\\n' | sort -u"));
        assert_eq!(modes, "600\n");
    });
}

/// The file at the socket's path may be another file than a stale socket.
#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    for_ours("dhcp", |lab| {
        lab.host.sh(&format!("echo precious >{SOCKET}"));
        let (status, log) = refused(lab, &[]);
        assert_eq!(status, 1, "{log}");
        assert!(log.contains(SOCKET), "{log}");
        assert_eq!(lab.host.sh(&format!("cat {SOCKET}")), "precious\n");
    });
}

#[test]
fn bad_flags_are_reported_with_the_usage() {
    for_each_peer("dhcp", |lab| {
        for flags in [&["-nonsense"][..], &["-timeout", "10"], &["-broadcast=maybe"]] {
            let (status, log) = refused(lab, flags);
            assert!(status == 2 && log.contains("-resendtimeout"), "{flags:?}: {log}");
        }
    });
}

#[test]
fn a_second_daemon_is_refused_and_the_first_works_on() {
    for_ours("dhcp", |lab| {
        let _server = network(lab);
        let first = Daemon::start(lab);
        let (status, log) = refused(lab, &[]);
        assert_eq!(status, 1, "{log}");
        assert!(log.contains(&first.pid().to_string()), "who has it: {log}");
        lab.attach(&lab.container(), &conf()).add();
    });
}

#[test]
fn daemons_of_two_sockets_are_two() {
    for_ours("dhcp", |lab| {
        let _server = network(lab);
        let _first = Daemon::start(lab);
        let second = Daemon::with_flags(lab, &["-socketpath", "/run/second/dhcp.sock"]);
        let conf = with(&conf(), json!({"ipam": {"daemonSocketPath": "/run/second/dhcp.sock"}}));
        lab.attach(&lab.container(), &conf).add();
        assert_ne!(
            lab.host.sh("find /run/second/dhcp.leases -type f ! -name '*lock'"),
            "",
            "its journal is beside it"
        );
        assert!(second.log().contains("state=bound"), "{}", second.log());
    });
}

#[test]
fn the_end_by_a_signal_is_a_clean_one() {
    for_each_peer("dhcp", |lab| {
        for signal in ["TERM", "INT"] {
            let mut daemon = Daemon::with_flags(lab, &["-pidfile", "/run/dhcp.pid"]);
            assert_eq!(lab.host.sh("cat /run/dhcp.pid"), daemon.pid().to_string());
            assert_eq!(mode(lab, "/run/dhcp.pid"), 0o644);
            assert_eq!(daemon.end_by(signal), 0);
            assert!(!lab.path(SOCKET).exists());
            assert!(!lab.path("/run/dhcp.pid").exists());
        }
    });
}

#[test]
fn the_pidfile_s_path_is_absolute() {
    for_each_peer("dhcp", |lab| {
        let (status, log) = refused(lab, &["-pidfile", "dhcp.pid"]);
        assert_eq!(status, 1, "{log}");
        assert!(log.contains("dhcp.pid") && log.contains("not absolute"), "{log}");
        assert!(!lab.path(SOCKET).exists());
    });
}

/// For a daemon in a container that has the root of the host mounted below a directory. The prefix
/// does not apply to the pidfile.
#[test]
fn the_host_may_be_below_a_prefix() {
    for_each_peer("dhcp", |lab| {
        let _server = network(lab);
        let container = lab.container();
        lab.host.sh("mkdir /run/host; mount --rbind / /run/host");
        let mut daemon =
            Daemon::with_flags(lab, &["-hostprefix", "/run/host", "-pidfile", "/run/dhcp.pid"]);
        assert!(lab.path("/run/dhcp.pid").exists());
        let attachment = plugged(lab, &container);
        attachment.add();
        attachment.del();
        assert_eq!(daemon.end_by("TERM"), 0);
    });
}

// --- systemd ---

/// The socket belongs to systemd: it exists before the daemon and outlives it.
#[test]
fn systemd_may_have_made_the_socket() {
    for_each_peer("dhcp", |lab| {
        let _server = network(lab);
        let listener = UnixListener::bind(lab.path(SOCKET)).unwrap();
        let mut daemon = Daemon::activated(lab, listener.try_clone().unwrap().into(), &[]);
        let attachment = lab.attach(&lab.container(), &conf());
        let result = attachment.add();
        attachment.check(&result).ok();
        assert_eq!(daemon.end_by("TERM"), 0);
    });
}

/// A connection waits in the backlog of the socket until the daemon has started.
#[test]
fn a_call_starts_the_daemon_and_waits_for_it() {
    for_ours("dhcp", |lab| {
        let _server = network(lab);
        let listener = UnixListener::bind(lab.path(SOCKET)).unwrap();
        let container = lab.container();
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| lab.attach(&container, &conf()).add());
            std::thread::sleep(std::time::Duration::from_millis(300)); // startup delay of systemd
            let mut daemon = Daemon::activated(lab, listener.into(), &[]);
            adding.join().unwrap();
            assert_eq!(daemon.end_by("TERM"), 0);
        });
    });
}

#[test]
fn systemd_s_descriptor_may_be_no_listener() {
    for_ours("dhcp", |lab| {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut daemon = Daemon::activated(lab, file.into(), &[]);
        assert_eq!(daemon.wait(), 1, "{}", daemon.log());
        assert!(daemon.log().contains("socket"), "{}", daemon.log());
    });
}

#[test]
fn systemd_may_pass_one_descriptor_only() {
    for_each_peer("dhcp", |lab| {
        let program = lab.peer.dir().join("dhcp");
        let output = lab.host.try_sh(&format!(
            "export LISTEN_PID=$$ LISTEN_FDS=2; exec {} daemon 3</dev/null 4</dev/null",
            program.display()
        ));
        assert_eq!(output.status.code(), Some(1));
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("Too many (2) FDs passed through socket activation"), "{log}");
    });
}

/// LISTEN_PID names another process, so LISTEN_FDS is ignored.
#[test]
fn descriptors_for_another_process_are_none() {
    for_each_peer("dhcp", |lab| {
        let mut daemon = Daemon::start(lab);
        assert_eq!(daemon.end_by("TERM"), 0);
        let program = lab.peer.dir().join("dhcp");
        lab.host.sh(&format!(
            "LISTEN_PID=1 LISTEN_FDS=1 timeout -s TERM 1 {} daemon 2>/run/log & \
             for i in $(seq 100); do [ -S {SOCKET} ] && exit 0; sleep 0.01; done; cat /run/log; exit 1",
            program.display()
        ));
    });
}

/// The unit's restrictions leave the daemon the capabilities it needs, including those for a
/// namespace named by a process.
#[test]
fn the_capabilities_of_the_unit_suffice() {
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd/cni-dhcp");
    let value = |unit: &str, key: &str| {
        let text = std::fs::read_to_string(format!("{units}.{unit}")).unwrap();
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned));
        found.unwrap_or_else(|| panic!("no {key} in the {unit}"))
    };
    assert_eq!(value("socket", "ListenStream"), SOCKET);
    assert_eq!(value("socket", "SocketMode"), "0600");
    assert!(value("service", "ExecStart").ends_with("/dhcp daemon"));
    let capabilities = value("service", "CapabilityBoundingSet")
        .to_lowercase()
        .replace("cap_", "+")
        .replace(' ', ",");
    for_ours("dhcp", |lab| {
        let server = network(lab);
        server.change(json!({"lease": 8, "t1": 1, "t2": 6}));
        let wrapper =
            ["setpriv", "--no-new-privs", "--bounding-set", &format!("-all,{capabilities}"), "--"];
        let mut daemon = Daemon::wrapped(lab, &wrapper);
        for container in [lab.container(), lab.container_of_process()] {
            let attachment = lab.attach(&container, &conf());
            let result = attachment.add();
            let before = server.heard_of(REQUEST).len();
            server.wait_for(REQUEST, before + 1, 5);
            attachment.check(&result).ok();
            attachment.del();
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
    on_a_lan(json!({}), |lab, _, daemon| {
        let answer: Value =
            serde_json::from_str(&say(lab, b"{\"protocol\":99,\"op\":\"status\"}\n")).unwrap();
        assert!(answer["error"]["msg"].as_str().unwrap().contains("99"), "{answer}");
        let http = say(lab, b"CONNECT /_goRPC_ HTTP/1.0\n\n");
        assert!(http.starts_with("HTTP/1.") && http.contains("cni-multi"), "{http}");
        let long = [vec![b'x'; 3 << 20], vec![b'\n']].concat();
        for line in [
            &b"\n"[..],
            b"hello\n",
            b"\xff\xfe\n",
            b"[1]\n",
            b"{}\n",
            b"{\"protocol\":1,\"op\":\"fly\"}\n",
            b"no newline",
            &long,
        ] {
            let answer = if line.ends_with(b"\n") { say(lab, line) } else { String::new() };
            assert!(!answer.contains("\"answer\""), "{answer}");
            drop(say_and_hang_up(lab, line));
        }
        assert!(!daemon.has_ended());
        add_and_del(&lab.attach(&lab.container(), &conf()));
    });
}

fn say_and_hang_up(lab: &Lab, line: &[u8]) -> std::io::Result<()> {
    UnixStream::connect(lab.path(SOCKET))?.write_all(line)
}

/// Clients connect, send the start of a request and then stay silent.
#[test]
fn silent_clients_do_not_delay_others() {
    on_a_lan(json!({}), |lab, _, _| {
        let mut silent: Vec<UnixStream> =
            (0..100).map(|_| UnixStream::connect(lab.path(SOCKET)).unwrap()).collect();
        silent.iter_mut().for_each(|stream| stream.write_all(b"{\"protocol\":1,").unwrap());
        add_and_del(&lab.attach(&lab.container(), &conf()));
    });
}

/// A network without a server does not delay containers of another network.
#[test]
fn one_exchange_keeps_no_other_waiting() {
    for_ours("dhcp", |lab| {
        let _server = network(lab);
        lab.host.sh(
            "ip link add dead type veth peer name alive; ip link set dead up; ip link set alive up",
        );
        let _daemon = Daemon::with_flags(
            lab,
            &["-timeout", "2s", "-resendmax", "4s", "-resendtimeout", "6s"],
        );
        let (dead, container) = (lab.container(), lab.container());
        std::thread::scope(|scope| {
            let waiting = scope
                .spawn(|| lab.attach(&dead, &with(&conf(), json!({"master": "dead"}))).try_add());
            // By now the first ADD is waiting for an answer.
            std::thread::sleep(std::time::Duration::from_millis(500));
            let start = std::time::Instant::now();
            add_and_del(&lab.attach(&container, &conf()));
            assert!(start.elapsed() < crate::support::patience(2), "{:?}", start.elapsed());
            waiting.join().unwrap().err();
        });
    });
}
