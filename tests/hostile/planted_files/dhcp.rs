//! Planted files at the DHCP daemon's socket, journal and pidfile, for its clients and for its own
//! start.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{Cell, PLANTS, on_a_field};
use crate::support::call::Call;
use crate::support::netns::Lab;
use crate::support::patience;
use crate::support::table::cells;

/// The plugin asks any process that listens at the socket's path.
#[test]
fn anything_at_the_path_of_the_daemon_s_socket_fails_in_time() {
    on_a_field("dhcp", |lab, field| {
        let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "dhcp", "ipam": {"type": "dhcp", "daemonSocketPath": "/run/dhcp/dhcp.sock"}});
        let attachment =
            lab.attach(&lab.container(), &conf).conf(json!({"cni.dev/valid-attachments": []}));
        for name in ["/dhcp.sock", "/dhcp.leases", "/dhcp.leases/lock", ""] {
            let place = &format!("/run/dhcp{name}");
            for plant in cells(PLANTS) {
                let Some(cell) = field.plant(place, plant) else { continue };
                let result = json!({"cniVersion": "1.1.0"});
                cell.calls(&attachment, "STATUS ADD CHECK GC DEL", &result);
                cell.restore();
                lab.host.sh("rm -rf /run/dhcp");
            }
        }
    });
}

/// Starts the daemon: it listens, or exits with a reason.
fn start(lab: &Lab, cell: &Cell<'_>) {
    let line = "dhcp daemon -socketpath /run/dhcp/dhcp.sock -pidfile /run/dhcp/dhcp.pid";
    let call = super::bounded(Call::cni_multi(&lab.host.enter, line.split(' ')));
    let mut child = call.spawn();
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
    on_a_field("dhcp", |lab, field| {
        for name in ["sock", "pid", "leases", "leases/lock", "leases/x.json"] {
            let place = &format!("/run/dhcp/dhcp.{name}");
            for plant in cells(PLANTS) {
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
    });
}
