//! What a packet costs on a full host: datagrams of established flows, new connections and streams
//! of TCP, from a container to outside with masquerade, from outside to a published port, and from
//! container to container.
//!
//! A veth hands a datagram on within the sender's system call, so the datagram has passed all of the
//! host's rules when sendto(2) returns. So the duration of the calls contains that of the rules.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, conf};
use crate::cases::{Bench, chained, network};
use crate::connections::{HOST, OUTSIDE, join, raise_file_limit};
use crate::names::{self, Side};
use crate::namespaces::Netns;
use crate::netavark;
use crate::schedule::{Lane, Round};

/// The UDP port of every receiver.
const SINK: u16 = 9000;
/// The TCP port of every receiver.
const SERVED: u16 = 8080;
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

/// Attaches the containers and returns their addresses.
type Fill = Box<dyn Fn(&mut Round, &[Netns]) -> Result<Vec<IpAddr>>>;

/// The reference's default backend.
pub fn lanes(bench: &Bench) -> Result<Vec<Lane>> {
    let wanted = ["bridge", "host-local", "portmap", "firewall"];
    lanes_with(bench, Backend::Iptables, names::packets, &bench.sides(&wanted))
}

/// The reference's other backend.
pub fn lanes_of_nftables(bench: &Bench) -> Result<Vec<Lane>> {
    let wanted = ["bridge", "host-local", "portmap"];
    lanes_with(bench, Backend::Nftables, names::packets_of_nftables, &bench.sides(&wanted))
}

/// netavark in place of the reference.
pub fn lanes_of_netavark(bench: &Bench) -> Result<Vec<Lane>> {
    let ours = bench.sides(&["bridge", "host-local", "portmap", "firewall"]);
    let ours: Vec<&Plugins> = ours.into_iter().filter(|of| of.side == Side::Ours).collect();
    let case = names::packets_beside_netavark;
    let mut lanes = lanes_with(bench, Backend::Iptables, case, &ours)?;
    let program = netavark::find().ok_or("find netavark")?;
    for (count, host) in hosts(bench) {
        let program = program.clone();
        let fill: Fill = Box::new(move |round, containers| {
            let state = format!("{count}-{host}");
            netavark::attach(round, &program, &state, containers, mappings)
        });
        lanes.push(lane(bench, case(count), Side::Reference, count, fill)?);
    }
    Ok(lanes)
}

/// Ours with `fastPath`, and ours without it in place of the reference.
pub fn lanes_of_fast_path(bench: &Bench) -> Result<Vec<Lane>> {
    let wanted = ["bridge", "host-local", "portmap", "firewall"];
    let Some(ours) = bench.sides(&wanted).into_iter().find(|of| of.side == Side::Ours) else {
        return Ok(vec![]);
    };
    let mut lanes = vec![];
    for count in bench.fast_path_counts() {
        for (side, is_fast) in [(Side::Ours, true), (Side::Reference, false)] {
            let case = names::packets_with_fast_path(count);
            let network = format!("fast-path-{count}-{}", side.name());
            let plugins = ours.clone();
            let fill: Fill = Box::new(move |round, containers| {
                let confs = |number| {
                    let mut confs = confs(&network, Backend::Iptables, Side::Ours, number)?;
                    confs[0]["fastPath"] = json!(is_fast);
                    Ok(confs)
                };
                attach(round, &plugins, confs, containers)
            });
            let lane = lane(bench, case, side, count, fill)?;
            // `fastPath` takes the links of the default routes.
            if !lane.host.ip(&format!("route add default via {OUTSIDE}"))? {
                return Err("the default route could not be added".to_owned());
            }
            lanes.push(lane);
        }
    }
    Ok(lanes)
}

/// The number of containers of each host of a side, and the host's number.
fn hosts(bench: &Bench) -> impl Iterator<Item = (usize, usize)> {
    bench
        .packet_hosts()
        .into_iter()
        .flat_map(|(count, hosts)| (0..hosts).map(move |host| (count, host)))
}

fn lanes_with(
    bench: &Bench,
    backend: Backend,
    case: fn(usize) -> String,
    sides: &[&Plugins],
) -> Result<Vec<Lane>> {
    let mut lanes = vec![];
    for (count, host) in hosts(bench) {
        for plugins in sides.iter().copied() {
            let (side, plugins) = (plugins.side, plugins.clone());
            let is_of_none = |c: char| !c.is_ascii_alphanumeric();
            let name = case(count).replace(is_of_none, "-");
            let network = network(&plugins, &format!("{name}-{host}"));
            let fill: Fill = Box::new(move |round, containers| {
                let confs = |number| confs(&network, backend, side, number);
                attach(round, &plugins, confs, containers)
            });
            lanes.push(lane(bench, case(count), side, count, fill)?);
        }
    }
    Ok(lanes)
}

fn lane(bench: &Bench, case: String, side: Side, count: usize, fill: Fill) -> Result<Lane> {
    raise_file_limit()?;
    // The last one is the machine outside.
    let machines = (0..=count).map(|_| Netns::create()).collect::<Result<Vec<_>>>()?;
    let outside_path = machines[count].path();
    let mut flows = vec![];
    let act = move |round: &mut Round| {
        if flows.is_empty() {
            let addresses = fill(round, &machines[..count])?;
            flows = open_flows(&machines, &addresses)?;
        }
        flows.iter().try_for_each(|flow| flow.measure(round, &machines))
    };
    let lane = bench.lane(case, side, Box::new(act))?.slow(20);
    join(&lane.host, &outside_path)?;
    Ok(Lane { examined: false, ..lane })
}

fn attach(
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
    let mut ports =
        conf(network, "portmap", &json!({"runtimeConfig": {"portMappings": mappings(number)?}}));
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

/// The published ports of the container with this number.
fn mappings(number: usize) -> Result<Value> {
    let port = u16::try_from(number).map_err(|e| format!("port: {e}"))? + FIRST_PORT;
    Ok(json!([
        {"hostPort": port, "containerPort": SINK, "protocol": "udp"},
        {"hostPort": port, "containerPort": SERVED, "protocol": "tcp"},
    ]))
}

/// Traffic from one machine to another. The receiver does not read its UDP socket, so the kernel drops
/// datagrams there once the receive buffer is full.
struct Flow {
    way: &'static names::Way,
    /// The sender's place among the machines.
    from: usize,
    sender: UdpSocket,
    sink: UdpSocket,
    /// The sender, as the receiver sees it.
    seen: SocketAddr,
    /// Where connections go to.
    served: (IpAddr, u16),
}

impl Flow {
    /// `ports` are those that the sender sees, of UDP and TCP.
    fn open(
        way: &'static names::Way,
        machines: &[Netns],
        [from, to]: [usize; 2],
        destination: IpAddr,
        [udp, tcp]: [u16; 2],
    ) -> Result<Flow> {
        let sink = machines[to].udp_socket(SINK)?;
        machines[to].receive(SERVED)?;
        let sender = machines[from].udp_socket(0)?;
        sender
            .connect((destination, udp))
            .map_err(|e| format!("connect to {destination}:{udp}: {e}"))?;
        let failed = |e: std::io::Error| format!("{}: {e}", way.datagrams);
        let patience = Some(std::time::Duration::from_secs(2));
        sink.set_read_timeout(patience).map_err(failed)?;
        sender.set_read_timeout(patience).map_err(failed)?;
        let seen = arrive(&sender, &sink).map_err(failed)?;
        Ok(Flow { way, from, sender, sink, seen, served: (destination, tcp) })
    }

    /// Exchanges two datagrams. Only an answer adds a flow to the fast path, and between two runs
    /// the kernel may have forgotten the flow.
    fn answer(&self) -> Result<()> {
        let failed = |e: std::io::Error| format!("answer {}: {e}", self.way.datagrams);
        self.sender.send(b"again").map_err(failed)?;
        self.sink.send_to(b"answer", self.seen).map_err(failed)?;
        self.sender.recv(&mut [0; 8]).map(drop).map_err(failed)
    }

    fn measure(&self, round: &mut Round, machines: &[Netns]) -> Result<()> {
        self.answer()?;
        round.timed_here(self.way.datagrams, || self.send())?;
        machines[self.from].enter()?; // the next round enters the host again
        let failed = |e: std::io::Error| format!("connect to {:?}: {e}", self.served);
        round.timed_here(self.way.connections, || self.connect().map_err(failed))?;
        round.timed_here(self.way.stream, || self.stream().map_err(failed))
    }

    fn send(&self) -> Result<()> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.way.datagrams);
        (0..names::DATAGRAMS_OF_A_RUN)
            .try_for_each(|_| self.sender.send(&[0; 32]).map(drop).map_err(failed))
    }

    fn connect(&self) -> std::io::Result<()> {
        (0..names::CONNECTIONS_OF_A_RUN).try_for_each(|_| TcpStream::connect(self.served).map(drop))
    }

    /// Sends a stream, and waits for the answer to its end.
    fn stream(&self) -> std::io::Result<()> {
        const PIECE: usize = 128 << 10;
        let mut stream = TcpStream::connect(self.served)?;
        let piece = vec![0; PIECE];
        for _ in 0..names::OCTETS_OF_A_STREAM / PIECE {
            stream.write_all(&piece)?;
        }
        stream.shutdown(Shutdown::Write)?;
        stream.read_exact(&mut [0])
    }
}

/// Sends datagrams until one arrives; returns its sender as the receiver sees it. The figure would
/// be that of a drop otherwise. On a host with 1000 containers the first one may be lost.
fn arrive(sender: &UdpSocket, sink: &UdpSocket) -> std::io::Result<SocketAddr> {
    const TRIES: usize = 10;
    let mut arrived = Err(std::io::ErrorKind::TimedOut.into());
    for _ in 0..TRIES {
        sender.send(b"first")?;
        arrived = sink.recv_from(&mut [0; 8]).map(|(_, seen)| seen);
        if arrived.is_ok() {
            break;
        }
    }
    arrived
}

/// The three flows of the container in the middle: rules may be read in order.
fn open_flows(machines: &[Netns], addresses: &[IpAddr]) -> Result<Vec<Flow>> {
    let (outside, middle) = (addresses.len(), addresses.len() / 2);
    let port = FIRST_PORT + u16::try_from(middle).map_err(|e| format!("port: {e}"))?;
    let parsed = |text: &str| text.parse::<Ipv4Addr>().map_err(|e| format!("{text}: {e}"));
    let (host, peer) = (parsed(HOST)?.into(), parsed(OUTSIDE)?.into());
    let open = |way, ends, destination, ports| Flow::open(way, machines, ends, destination, ports);
    let mut flows = vec![
        open(&names::TO_OUTSIDE, [middle, outside], peer, [SINK, SERVED])?,
        open(&names::TO_PORT, [outside, middle], host, [port, port])?,
    ];
    if middle > 0 {
        flows.push(open(&names::TO_NEIGHBOUR, [middle, 0], addresses[0], [SINK, SERVED])?);
    }
    Ok(flows)
}
