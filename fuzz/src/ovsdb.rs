//! Any bytes as the answers of OVSDB: every question returns ports or an error, and never waits for
//! more.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use cni_multi::cni::attachment::Key;
use cni_multi::deadline::Deadline;
use cni_multi::plugins::main::ovs::Conf;
use cni_multi::plugins::main::ovs::ovsdb::Database;
use cni_multi::plugins::main::ovs::port::{self, Wanted};

/// The most that the socket takes at once.
const LONGEST: usize = 64 * 1024;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let (ours, mut server) = UnixStream::pair().expect("there are sockets");
    server.write_all(&bytes[..bytes.len().min(LONGEST)]).expect("it fits");
    server.shutdown(Shutdown::Write).expect("it is open");
    let database = Database::over(ours.into(), Deadline::default());
    let key = Key::parse("net1", "one", "eth0").expect("names");
    let conf: Conf = serde_json::from_str(r#"{"bridge": "ovs0"}"#).expect("it has one key");
    // All must return, with any result; the answers have the numbers 1, 2 and so on.
    if let Ok(ports) = port::find(&database, Wanted::OfNetwork(&key.network)) {
        ports.iter().for_each(|port| drop(port.key()));
    }
    let _ = port::require_bridge(&database, &conf, &key);
    let _ = port::verify(&database, &conf, (&key, "veth0"));
    let _ = port::delete(&database, Wanted::Of(&key));
}
