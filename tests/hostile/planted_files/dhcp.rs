//! Planted files at the DHCP daemon's socket, journal and pidfile, for its clients and for its own
//! start.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{Cell, Field, PLANTS};
use crate::support::attachment::for_ours;
use crate::support::call::{Call, binary};
use crate::support::netns::Lab;
use crate::support::patience;

/// The plugin asks any process that listens at the socket's path.
#[test]
fn anything_at_the_path_of_the_daemon_s_socket_fails_in_time() {
    for_ours("dhcp", |lab| {
        let field = Field::new(lab);
        let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "dhcp", "ipam": {"type": "dhcp", "daemonSocketPath": "/run/dhcp/dhcp.sock"}});
        let container = lab.container();
        let attachment = lab.attach(&container, &conf);
        for place in [
            "/run/dhcp/dhcp.sock",
            "/run/dhcp/dhcp.leases",
            "/run/dhcp/dhcp.leases/lock",
            "/run/dhcp",
        ] {
            for plant in PLANTS {
                let Some(cell) = field.plant(place, plant) else { continue };
                for command in ["STATUS", "ADD", "CHECK", "GC", "DEL"] {
                    let attachment =
                        attachment.clone().conf(json!({"cni.dev/valid-attachments": []}));
                    cell.call(
                        command,
                        attachment.call(command, Some(&json!({"cniVersion": "1.1.0"}))),
                    );
                }
                cell.restore();
                lab.host.sh("rm -rf /run/dhcp");
            }
        }
        field.assert_nothing_was_wrong();
    });
}

const FLAGS: [&str; 4] = ["-socketpath", "/run/dhcp/dhcp.sock", "-pidfile", "/run/dhcp/dhcp.pid"];

/// Starts the daemon: it listens, or exits with a reason.
fn start(lab: &Lab, cell: &Cell<'_>) {
    let call = Call::new(&lab.peer, "dhcp", "", "").without("CNI_COMMAND").wrapped(&lab.host.enter);
    let mut call = super::bounded(call);
    call.program = binary();
    call.args = ["dhcp", "daemon"].into_iter().chain(FLAGS).map(str::to_owned).collect();
    let mut line = call.wrapper.clone();
    line.push(call.program.to_str().unwrap().to_owned());
    line.extend(call.args.iter().cloned());
    let mut child = std::process::Command::new(&line[0])
        .args(&line[1..])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + patience(15);
    let mut listens = false;
    while !listens && child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            cell.expect(false, "the daemon", &"it neither listens nor ends");
            break;
        }
        listens = UnixStream::connect(lab.path("/run/dhcp/dhcp.sock")).is_ok();
        std::thread::sleep(Duration::from_millis(20));
    }
    // `timeout` forwards the signal.
    let _ = kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM); // it may have ended
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    cell.expect(listens || !said.trim().is_empty(), "the daemon ends without a word", &output);
    cell.expect(!said.contains(super::SECRET), "the daemon reads it out", &said);
}

#[test]
fn foreign_files_at_the_daemon_s_paths_survive_its_start() {
    for_ours("dhcp", |lab| {
        let field = Field::new(lab);
        for place in [
            "/run/dhcp/dhcp.sock",
            "/run/dhcp/dhcp.pid",
            "/run/dhcp/dhcp.leases",
            "/run/dhcp/dhcp.leases/lock",
            "/run/dhcp/dhcp.leases/x.json",
        ] {
            for plant in PLANTS {
                lab.host.sh("rm -rf /run/dhcp; mkdir -p -m 0700 /run/dhcp");
                if place.contains("leases/") {
                    lab.host.sh("mkdir -m 0700 /run/dhcp/dhcp.leases");
                }
                let Some(cell) = field.plant(place, plant) else { continue };
                let before = super::outside(lab);
                start(lab, &cell);
                cell.expect_unchanged("the daemon", &before);
            }
        }
        field.assert_nothing_was_wrong();
    });
}
