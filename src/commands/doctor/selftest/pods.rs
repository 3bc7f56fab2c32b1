//! Two containers of one network: their traffic, a published port, a limit, DEL; an ADD that fails,
//! and one that is killed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::report::{Report, millis};
use super::snapshot::Snapshot;
use super::traffic::{self, End};
use super::world::{Container, HOST, Network, OUTSIDE, World, addresses, has_ipv6};
use crate::commands::doctor::need::Need;
use crate::error::{Code, Error, Result};
use crate::net::netlink::Watch;
use crate::net::netns::Netns;
use crate::net::private;
use crate::sys::process::{Child, Ended};

/// What the network of both needs.
pub const NEEDS: [Need; 3] = [Need::Link("veth"), Need::Link("bridge"), Need::NfTables];
/// What a limit needs besides.
pub const NEEDS_OF_LIMIT: [Need; 5] =
    [NEEDS[0], NEEDS[1], NEEDS[2], Need::Link("ifb"), Need::Qdisc("tbf")];
/// The second container's address: the second of the range behind the gateway's.
const BLUE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 3));
/// Every address of a container.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// How long the bucket of the limit takes to run empty, at most.
const UNTIL_EMPTY: Duration = Duration::from_millis(100);
/// How long a rate is measured.
const MEASURED: Duration = Duration::from_millis(200);
/// How far the measured rate may be from the configured one: the last datagram of a short
/// measurement may be missing, or one more.
const TOLERANCE: f64 = 0.1;
/// How often it is measured, at most.
const TRIES: usize = 20;

/// Two containers of one network reach each other, and the machine outside.
pub fn two_containers(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let World { red, blue, outside, .. } = world;
    let mut ends = vec![];
    report.check("red and blue are attached to bridge, portmap, firewall", || {
        let begin = Instant::now();
        ends = vec![attach(world, red)?, attach(world, blue)?];
        Ok(format!("{} each", millis(begin.elapsed() / 2)))
    })?;
    let [red_s, blue_s] = &ends[..] else { return Ok(()) };
    for (from, to) in red_s.iter().zip(blue_s) {
        let claim = format!("{from} (red) and {to} (blue) ping each other");
        report.check(&claim, || {
            let there = traffic::ping(&red.netns, *to)?;
            let back = traffic::ping(&blue.netns, *from)?;
            Ok(millis(there.min(back)))
        })?;
    }
    report.check("red pings the machine outside, behind the host's address", || {
        let time = traffic::ping(&red.netns, OUTSIDE)?;
        let address = SocketAddr::new(OUTSIDE, PORT);
        let client = End { netns: &red.netns, address };
        let met = traffic::connect(&client, &End { netns: &outside.netns, address })?;
        traffic::require_client(&met, HOST)?;
        Ok(millis(time))
    })?;
    report.check("CHECK finds both as they were made", || {
        let network = pods()?;
        world.check(&network, blue)?;
        world.check(&published()?, red).map(|()| String::new())
    })
}

/// ADD; the container's addresses. The first container has a published port.
fn attach(world: &World<'_>, container: &Container) -> Result<Vec<IpAddr>> {
    let is_red = container.name == world.red.name;
    let network = if is_red { published()? } else { pods()? };
    addresses(&world.add(&network, container)?)
}

/// The machine outside reaches the first container by a port of the host.
pub fn published_port(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let claim = format!("{HOST}:{HOST_PORT} leads from outside to port {PORT} of red");
    report.check(&claim, || {
        let [known, own] = [(HOST, HOST_PORT), (ANY, PORT)].map(SocketAddr::from);
        let client = End { netns: &world.outside.netns, address: known };
        let met = traffic::connect(&client, &End { netns: &world.red.netns, address: own })?;
        traffic::require_client(&met, OUTSIDE)?;
        Ok(format!("{} for a whole exchange", millis(met.time)))
    })
}

/// A container receives and sends as much as is configured.
pub fn rate_limit(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let claim = format!("bandwidth limits each direction of green to {} Mbit/s", LIMIT / 1_000_000);
    report.check(&claim, || {
        let green = Container::make("green")?;
        let network = limited()?;
        let addresses = addresses(&world.add(&network, &green)?)?;
        let address =
            *addresses.first().ok_or_else(|| Error::check("the result has no address"))?;
        let blue = &world.blue.netns;
        let own = End { netns: &green.netns, address: SocketAddr::new(address, PORT) };
        let other = End { netns: blue, address: SocketAddr::new(BLUE, PORT) };
        let rates =
            measured(blue, &own).and_then(|there| Ok([there, measured(&green.netns, &other)?]));
        world.del(&network, &green)?;
        let [received, sent] = rates?;
        Ok(format!("{} and {} measured", require_rate(received)?, require_rate(sent)?))
    })
}

/// The rate nearest to the limit of a few measurements: a busy machine stops the sender.
fn measured(from: &Netns, to: &End<'_>) -> Result<f64> {
    let mut nearest = f64::INFINITY;
    for _ in 0..TRIES {
        let rate = traffic::rate(from, to, UNTIL_EMPTY, MEASURED)?;
        if distance(rate) < distance(nearest) {
            nearest = rate;
        }
        if distance(nearest) <= TOLERANCE {
            break;
        }
    }
    Ok(nearest)
}

/// How far a rate is from the limit, as a part of it.
fn distance(rate: f64) -> f64 {
    (rate / f64::from(LIMIT) - 1.0).abs()
}

fn require_rate(rate: f64) -> Result<String> {
    let measured = format!("{:.1} Mbit/s", rate / 1e6);
    if distance(rate) <= TOLERANCE {
        return Ok(measured);
    }
    Err(Error::check(format!("{measured} arrived")))
}

/// DEL of both leaves nothing of them.
pub fn detach_both(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    report.check("red and blue are detached; the host is as it was before", || {
        let begin = Instant::now();
        world.del(&published()?, &world.red)?;
        world.del(&pods()?, &world.blue)?;
        let time = begin.elapsed() / 2;
        world.host.netlink()?.delete_link_by_name(BRIDGE)?; // it outlives its containers
        let after = world.snapshot(&[&world.red, &world.blue])?;
        world.untouched.require_same(&after)?;
        Ok(format!("{} each", millis(time)))
    })
}

/// How often an ADD is killed until the kill comes in its middle.
const KILLS: usize = 20;
/// How many times the kernel reports changes of links before the kill.
const EVENTS: usize = 3;
/// How long the first link of an ADD may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The last plugin of a chain fails, and nothing is left of those before.
pub fn failed_add(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let green = Container::make("failing")?;
    let before = world.snapshot(&[&green])?;
    let mut refusal = None;
    report.check("the fourth plugin of a chain fails, and the runtime gets its error", || {
        let changes = Watch::links()?;
        let Err(error) = world.add(&failing()?, &green) else {
            return Err(Error::check("the ADD succeeded"));
        };
        let has_begun = changes.until(Instant::now())?;
        if error.code != Code::INVALID_CONFIG || !has_begun {
            return Err(error);
        }
        let text = format!("code {}", error.code.0);
        refusal = Some(error);
        Ok(text)
    })?;
    if let Some(error) = refusal {
        let quoted = format!("      {}\n", report.style().faint(&error.msg));
        report.print(&quoted)?;
    }
    report.check("nothing is left: links, addresses, routes, rules, leases, files", || {
        before.require_same(&world.snapshot(&[&green])?).map(|()| String::new())
    })
}

/// Kills an ADD in its middle, deletes its container, and requires that GC removes what the ADD has
/// made.
pub fn killed_add(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let yellow = Container::make("killed")?;
    let network = pods()?;
    let before = world.snapshot(&[])?;
    let links = world.host.netlink()?.links()?.len();
    report.check("the ADD is killed while it sets up its links", || {
        let kill = kill_in_the_middle(world, &network, &yellow, &before)?;
        Ok(format!("after {}, objects left: {}", millis(kill.time), kill.left))
    })?;
    report.check("container gone, GC: nothing is left, and red and blue are whole", || {
        remove(world, yellow, links)?;
        world.gc(&network, &[world.red.valid(), world.blue.valid()])?;
        before.require_same(&world.snapshot(&[])?)?;
        world.check(&published()?, &world.red)?;
        world.check(&network, &world.blue).map(|()| String::new())
    })
}

/// Removes a container's namespace, and waits until the host has no more than so many links: the
/// kernel deletes a namespace's links later, and the other ends of veth pairs with them.
fn remove(world: &World<'_>, container: Container, links: usize) -> Result<()> {
    let Container { name, netns, .. } = container;
    let watch = Watch::links()?;
    let end = Instant::now() + PATIENCE;
    drop(netns);
    private::delete_netns(name)?;
    while world.host.netlink()?.links()?.len() > links && watch.until(end)? {}
    Ok(())
}

/// An ADD that was killed.
struct Kill {
    /// The time that it ran.
    time: Duration,
    /// The number of objects of the host that it left.
    left: usize,
}

/// Kills an ADD between the first object that it makes and its end.
fn kill_in_the_middle(
    world: &World<'_>,
    network: &Network,
    container: &Container,
    before: &Snapshot,
) -> Result<Kill> {
    for _ in 0..KILLS {
        let changes = Watch::links()?;
        let begin = Instant::now();
        let add = Child::start(|| u8::from(world.add(network, container).is_err()))?;
        for _ in 0..EVENTS {
            if !changes.until(begin + PATIENCE)? {
                return Err(Error::check(format!("no link changed within {PATIENCE:?}")));
            }
        }
        let time = begin.elapsed();
        let ended = add.kill()?;
        let left = world.snapshot(&[])?.beyond(before).len();
        match ended {
            Ended::Killed(_) if left > 0 => return Ok(Kill { time, left }),
            Ended::Exited(1..) => return Err(Error::check("the ADD failed before the kill")),
            _ => world.del(network, container)?, // the kill came too early, or too late
        }
    }
    Err(Error::check(format!("none of {KILLS} kills came in the middle of an ADD")))
}

/// The bridge of the network of the walk.
pub const BRIDGE: &str = "cni0";
/// The port of the host that leads to the first container.
pub const HOST_PORT: u16 = 8080;
/// A port of the host that no container has.
const OTHER_PORT: u16 = 8081;
/// The port that the container listens on.
pub const PORT: u16 = 80;
/// The limit of what a container receives, and of what it sends, in bits per second.
pub const LIMIT: u32 = 20_000_000;
/// What the limit lets pass at once, in bits: a tenth of a second, so that a busy machine may stop
/// this process for as long without a loss.
const BURST: u32 = LIMIT / 10;

/// Pods as most clusters have them: a bridge with masquerading, published ports, a firewall that
/// lets them pass.
pub fn pods() -> Result<Network> {
    Network::new("pods", &format!("[{}]", plugins()))
}

/// Pods, and a port of the host that leads to the container.
pub fn published() -> Result<Network> {
    pods()?.with_capabilities(&publishing(HOST_PORT))
}

/// Pods that receive and send no more than [`LIMIT`].
pub fn limited() -> Result<Network> {
    let limit = format!(
        r#"{{"type":"bandwidth","ingressRate":{LIMIT},"ingressBurst":{BURST},"egressRate":{LIMIT},"egressBurst":{BURST}}}"#
    );
    Network::new("pods", &format!("[{},{limit}]", plugins()))
}

/// Pods whose last plugin fails: the kernel has no such sysctl.
pub fn failing() -> Result<Network> {
    let tuning = r#"{"type":"tuning","sysctl":{"net.ipv4.conf.eth0.no_such_key":"1"}}"#;
    let plugins = format!("[{},{tuning}]", plugins());
    Network::new("pods", &plugins)?.with_capabilities(&publishing(OTHER_PORT))
}

/// The capability arguments that publish the container's port.
fn publishing(host_port: u16) -> String {
    format!(
        r#"{{"portMappings":[{{"hostPort":{host_port},"containerPort":{PORT},"protocol":"tcp"}}]}}"#
    )
}

/// The plugins of pods, without the list's brackets.
fn plugins() -> String {
    const DUAL_STACK: &str = r#"{"type":"host-local",
        "ranges":[[{"subnet":"10.88.0.0/24"}],[{"subnet":"fd00:88::/64"}]],
        "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}"#;
    const IPV4: &str = r#"{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}"#;
    let ipam = if has_ipv6() { DUAL_STACK } else { IPV4 };
    format!(
        r#"{{"type":"bridge","bridge":"{BRIDGE}","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{ipam}}},
        {{"type":"portmap","capabilities":{{"portMappings":true}}}},
        {{"type":"firewall"}}"#
    )
}
