//! What a packet costs on a full host: datagrams of established flows, from a container to outside
//! with masquerade, from outside to a published port, and from container to container.
//!
//! A veth hands a datagram on within the sender's system call, so the datagram has passed all of the
//! host's rules when sendto(2) returns. So the duration of the calls contains that of the rules.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, conf};
use crate::cases::{Bench, chained, network};
use crate::connections::{HOST, OUTSIDE, join, raise_file_limit};
use crate::names::{self, Side};
use crate::namespaces::Netns;
use crate::schedule::{Lane, Round};

/// The port of every receiver.
const SINK: u16 = 9000;
/// Container 0 has this port of the host, and the others have the next ones.
const FIRST_PORT: u16 = 20_000;

/// How the reference masquerades and publishes; ours always uses nftables.
#[derive(Clone, Copy)]
enum Backend {
    /// iptables, the default of its bridge, portmap and firewall.
    Iptables,
    /// nftables for bridge and portmap. Its firewall has no such backend and is left out.
    Nftables,
}

/// The reference's default backend.
pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    lanes_with(bench, Backend::Iptables, &["bridge", "host-local", "portmap", "firewall"])
}

/// The reference's other backend.
pub fn lanes_of_nftables(bench: &Bench) -> Result<Vec<Lane>> {
    lanes_with(bench, Backend::Nftables, &["bridge", "host-local", "portmap"])
}

fn lanes_with(bench: &Bench, backend: Backend, wanted: &[&str]) -> Result<Vec<Lane>> {
    raise_file_limit()?;
    let mut lanes = vec![];
    for containers in bench.packet_counts() {
        for plugins in bench.sides(wanted) {
            lanes.push(lane(bench, plugins, backend, containers)?);
        }
    }
    Ok(lanes)
}

fn lane(bench: &Bench, plugins: &Plugins, backend: Backend, count: usize) -> Result<Lane> {
    let (side, plugins) = (plugins.side, plugins.clone());
    let case = match backend {
        Backend::Iptables => names::packets(count),
        Backend::Nftables => names::packets_of_nftables(count),
    };
    let network = network(&plugins, &case.replace([' ', ','], "-"));
    let containers = (0..count).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let outside = Netns::create()?;
    let outside_path = outside.path();
    let mut flows = vec![];
    let act = move |round: &mut Round| {
        if flows.is_empty() {
            let confs = |number| confs(&network, backend, side, number);
            let addresses = fill(round, &plugins, confs, &containers)?;
            flows = open_flows(&containers, &addresses, &outside)?;
        }
        flows.iter().try_for_each(|flow| round.timed_here(flow.operation, || flow.send()))
    };
    let lane = bench.lane(case, side, Box::new(act))?.slow(20);
    join(&lane.host, &outside_path)?;
    Ok(Lane { examined: false, ..lane })
}

/// Attaches the containers; returns their addresses.
fn fill(
    round: &mut Round,
    plugins: &Plugins,
    confs: impl Fn(usize) -> Result<Vec<Value>>,
    containers: &[Netns],
) -> Result<Vec<IpAddr>> {
    let mut addresses = vec![];
    for (number, netns) in containers.iter().enumerate() {
        let container_id = format!("container-{number}");
        let at = Attachment { plugins, netns: netns.path(), container_id };
        let mut result = Value::Null;
        for conf in confs(number)? {
            result = call::result(&round.untimed(&chained(&at, "ADD", &conf, &result))?)?;
        }
        addresses.push(address_in(&result)?);
    }
    Ok(addresses)
}

fn address_in(result: &Value) -> Result<IpAddr> {
    let text = result["ips"][0]["address"].as_str().unwrap_or_default();
    let address = text.split('/').next().unwrap_or_default();
    address.parse().map_err(|e| format!("read the address {text:?} of a result: {e}"))
}

fn confs(network: &str, backend: Backend, side: Side, number: usize) -> Result<Vec<Value>> {
    let mut first = bridge(network);
    first["ipMasq"] = json!(true);
    let port = u16::try_from(number).map_err(|e| format!("port: {e}"))? + FIRST_PORT;
    let mapping = json!({"hostPort": port, "containerPort": SINK, "protocol": "udp"});
    let mut ports =
        conf(network, "portmap", &json!({"runtimeConfig": {"portMappings": [mapping]}}));
    Ok(match backend {
        Backend::Iptables => vec![first, ports, conf(network, "firewall", &json!({}))],
        Backend::Nftables => {
            if side == Side::Reference {
                first["ipMasqBackend"] = json!("nftables");
                ports["backend"] = json!("nftables");
            }
            vec![first, ports]
        }
    })
}

/// A UDP sender and the socket that it sends to. Nobody reads that socket, so the kernel drops
/// datagrams there once the receive buffer is full.
struct Flow {
    operation: &'static str,
    sender: UdpSocket,
    sink: UdpSocket,
}

impl Flow {
    fn open(
        operation: &'static str,
        [from, to]: [&Netns; 2],
        destination: SocketAddr,
    ) -> Result<Flow> {
        let sink = to.udp_socket(SINK)?;
        let sender = from.udp_socket(0)?;
        sender.connect(destination).map_err(|e| format!("connect to {destination}: {e}"))?;
        let flow = Flow { operation, sender, sink };
        flow.require_arrival()?;
        Ok(flow)
    }

    /// The first datagram has to arrive: the figure would be that of a drop otherwise.
    fn require_arrival(&self) -> Result<()> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.operation);
        self.sender.send(b"first").map_err(failed)?;
        self.sink.set_read_timeout(Some(std::time::Duration::from_secs(2))).map_err(failed)?;
        self.sink.recv(&mut [0; 8]).map(drop).map_err(failed)
    }

    fn send(&self) -> Result<()> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.operation);
        (0..names::DATAGRAMS_OF_A_RUN)
            .try_for_each(|_| self.sender.send(&[0; 32]).map(drop).map_err(failed))
    }
}

/// The three flows of the container in the middle: rules may be read in order.
fn open_flows(containers: &[Netns], addresses: &[IpAddr], outside: &Netns) -> Result<Vec<Flow>> {
    let middle = containers.len() / 2;
    let port = FIRST_PORT + u16::try_from(middle).map_err(|e| format!("port: {e}"))?;
    let host: Ipv4Addr = HOST.parse().map_err(|e| format!("{HOST}: {e}"))?;
    let peer: Ipv4Addr = OUTSIDE.parse().map_err(|e| format!("{OUTSIDE}: {e}"))?;
    let container = &containers[middle];
    let mut flows = vec![
        Flow::open(names::TO_OUTSIDE, [container, outside], (peer, SINK).into())?,
        Flow::open(names::TO_PORT, [outside, container], (host, port).into())?,
    ];
    if middle > 0 {
        let neighbour = [container, &containers[0]];
        flows.push(Flow::open(names::TO_NEIGHBOUR, neighbour, (addresses[0], SINK).into())?);
    }
    Ok(flows)
}
