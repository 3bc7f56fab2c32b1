//! Connections from another machine to published ports of a full host. Each begins a flow, and the
//! first packet of a flow passes the rules of all containers.

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, conf};
use crate::cases::{Bench, chained, network};
use crate::names;
use crate::namespaces::Netns;
use crate::schedule::{Lane, Round};

/// The host's address on the wire to the other machine.
pub const HOST: &str = "192.0.2.1";
/// The address of the other machine.
pub const OUTSIDE: &str = "192.0.2.9";
/// The port of every container.
const SERVED: u16 = 8080;
/// Container 0 has this port of the host, and the others have the next ones.
const FIRST_PORT: u16 = 20_000;
/// How many of the containers answer. They are spread evenly, for rules may be read in order.
const SERVERS: usize = 10;

pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    raise_file_limit()?;
    let wanted = ["bridge", "host-local", "portmap", "firewall"];
    bench.sides(&wanted).into_iter().map(|plugins| lane(bench, plugins)).collect()
}

fn lane(bench: &Bench, plugins: &Plugins) -> Result<Lane> {
    let (side, plugins) = (plugins.side, plugins.clone());
    let network = network(&plugins, "connections");
    let containers = (0..bench.full_host()).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let outside = Netns::create()?;
    let outside_path = outside.path();
    let mut is_full = false;
    let act = move |round: &mut Round| {
        if !is_full {
            fill(round, &plugins, &network, &containers)?;
            is_full = true;
        }
        outside.enter()?; // the next round enters the host again
        round.timed_here(names::CONNECTIONS, || connect(containers.len()))
    };
    let lane = bench.lane(names::full_host(bench.full_host()), side, Box::new(act))?.slow(20);
    join(&lane.host, &outside_path)?;
    Ok(Lane { examined: false, ..lane })
}

/// A wire between the host and the other machine.
pub fn join(host: &Netns, outside: &str) -> Result<()> {
    let inside = format!("nsenter --net={outside} ip");
    let commands = [
        format!("ip link add uplink type veth peer name wire netns {outside}"),
        format!("ip address add {HOST}/24 dev uplink"),
        "ip link set uplink up".to_owned(),
        format!("{inside} address add {OUTSIDE}/24 dev wire"),
        format!("{inside} link set wire up"),
    ];
    commands.iter().try_for_each(|command| match host.run(command)? {
        true => Ok(()),
        false => Err(format!("`{command}` failed")),
    })
}

/// Attaches the containers, and starts the servers.
fn fill(round: &mut Round, plugins: &Plugins, network: &str, containers: &[Netns]) -> Result<()> {
    for (number, netns) in containers.iter().enumerate() {
        let container_id = format!("container-{number}");
        let at = Attachment { plugins, netns: netns.path(), container_id };
        let mut result = Value::Null;
        for conf in confs(network, port(number)?) {
            result = call::result(&round.untimed(&chained(&at, "ADD", &conf, &result))?)?;
        }
    }
    servers(containers.len()).try_for_each(|number| containers[number].serve(SERVED))
}

fn confs(network: &str, port: u16) -> [Value; 3] {
    let mut first = bridge(network);
    first["ipMasq"] = json!(true);
    let mapping = json!({"hostPort": port, "containerPort": SERVED, "protocol": "tcp"});
    let ports = json!({"runtimeConfig": {"portMappings": [mapping]}});
    [first, conf(network, "portmap", &ports), conf(network, "firewall", &json!({}))]
}

fn port(container: usize) -> Result<u16> {
    u16::try_from(container).map(|number| FIRST_PORT + number).map_err(|e| format!("port: {e}"))
}

/// The containers that answer: each is in the middle of its part.
fn servers(containers: usize) -> impl Iterator<Item = usize> {
    (0..SERVERS).map(move |server| (2 * server + 1) * containers / (2 * SERVERS))
}

/// One connection after another, to each server in turn.
fn connect(containers: usize) -> Result<()> {
    let ports = servers(containers).map(port).collect::<Result<Vec<_>>>()?;
    for port in ports.iter().cycle().take(names::CONNECTIONS_OF_A_RUN) {
        TcpStream::connect((HOST, *port)).map_err(|e| format!("connect to {HOST}:{port}: {e}"))?;
    }
    Ok(())
}

/// Each container of either side is an open file, and may be another for its server.
pub fn raise_file_limit() -> Result<()> {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let raised =
        getrlimit(RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(RLIMIT_NOFILE, most, most));
    raised.map_err(|e| format!("raise the limit of open files: {e}"))
}
