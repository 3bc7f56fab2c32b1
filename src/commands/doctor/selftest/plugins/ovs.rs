//! What ovs needs: a database with a bridge. Packets would need vswitchd, which is the machine's.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::super::world::{Attached, Running, World};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::plugins::main::ovs::ovsdb::insert;
use crate::plugins::main::ovs::ovsdb::values::{named_uuid, set};
use crate::plugins::main::ovs::ovsdb::{Address, Database};
use crate::plugins::main::ovs::port::{self, Wanted};
use crate::sys::process::Child;

/// The server, and the program that makes its file.
pub const SERVER: &str = "ovsdb-server";
/// See [`SERVER`].
pub const TOOL: &str = "ovsdb-tool";
const SOCKET: &str = "/run/selftest-ovs.sock";
const FILE: &str = "/run/selftest-ovs.db";
const LOCK: &str = "/run/.selftest-ovs.db.~lock~";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Starts an ovsdb-server, and creates the bridge in its database.
pub fn prepare(_: &World<'_>) -> Result<Running> {
    let made = quiet(TOOL).args(["create", FILE, SCHEMA]).status();
    if !made.map_err(|e| Error::io(format_args!("run {TOOL}"), &e))?.success() {
        return Err(Error::new(Code::HOST_PROGRAM, format!("{TOOL} made no database of {SCHEMA}")));
    }
    let server = Child::start(|| {
        let remote = format!("--remote=punix:{SOCKET}");
        let mut command = quiet(SERVER);
        command.args([FILE, &remote, "--unixctl=none", "-vsyslog:off"]);
        let _ = command.exec(); // returns only if it fails
        1
    })?;
    let bridges = set([named_uuid("bridge")]);
    connect()?.read(vec![
        insert("Open_vSwitch", "node", vec![("bridges", bridges)]),
        insert("Bridge", "bridge", vec![("name", Value::text("selftest0"))]),
    ])?;
    Ok(vec![server])
}

/// Removes the server's files.
pub fn clean_up(_: &World<'_>) -> Result<()> {
    for path in [SOCKET, FILE, LOCK] {
        let _ = fs::remove_file(path); // one may be missing after a failure
    }
    Ok(())
}

/// The database has the attachment's port.
pub fn has_port(at: &Attached<'_>) -> Result<()> {
    let network = NetworkName::parse("ovs")?;
    let ports = port::find(&connect()?, Wanted::OfNetwork(&network))?;
    let host = at.world.host.netlink()?;
    match ports.as_slice() {
        [port] => host.link(&port.name).map(drop),
        _ => Err(Error::check(format!("{} ports in the database, expected 1", ports.len()))),
    }
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Connects once the server listens.
fn connect() -> Result<Database> {
    let end = Instant::now() + PATIENCE;
    let address = Address::Unix(Path::new(SOCKET).into());
    loop {
        match Database::connect(&address, Deadline::default()) {
            Err(_) if Instant::now() < end => std::thread::sleep(PAUSE),
            connected => return connected,
        }
    }
}
