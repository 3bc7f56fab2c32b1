//! Two containers of one network: their traffic, a published port, a limit, DEL.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::networks::{self, BRIDGE, HOST_PORT, LIMIT, PORT};
use super::report::{Report, millis};
use super::traffic::{self, End};
use super::world::{Container, HOST, OUTSIDE, World, addresses};
use crate::commands::doctor::need::{self, Need};
use crate::error::{Error, Result};
use crate::net::netns::Netns;

/// What the network of both needs.
pub const NEEDS: [Need; 3] = [Need::Link("veth"), Need::Link("bridge"), Need::NfTables];
/// What a limit needs besides.
const NEEDS_OF_LIMIT: [Need; 5] =
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
    report.chapter("Two containers on a bridge")?;
    if let Some(lack) = need::lacking(&NEEDS, world.host.netlink()?)? {
        return report.miss("bridge, portmap, firewall", &lack);
    }
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
        let network = networks::pods()?;
        world.check(&network, blue)?;
        world.check(&networks::published()?, red).map(|()| String::new())
    })?;
    Ok(())
}

/// ADD; the container's addresses. The first container has a published port.
fn attach(world: &World<'_>, container: &Container) -> Result<Vec<IpAddr>> {
    let is_red = container.name == world.red.name;
    let network = if is_red { networks::published()? } else { networks::pods()? };
    addresses(&world.add(&network, container)?)
}

/// The machine outside reaches the first container by a port of the host.
pub fn published_port(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    report.chapter("A published port")?;
    if let Some(lack) = need::lacking(&NEEDS, world.host.netlink()?)? {
        return report.miss("portmap", &lack);
    }
    let claim = format!("{HOST}:{HOST_PORT} leads from outside to port {PORT} of red");
    report.check(&claim, || {
        let [known, own] = [(HOST, HOST_PORT), (ANY, PORT)].map(SocketAddr::from);
        let client = End { netns: &world.outside.netns, address: known };
        let met = traffic::connect(&client, &End { netns: &world.red.netns, address: own })?;
        traffic::require_client(&met, OUTSIDE)?;
        Ok(format!("{} for a whole exchange", millis(met.time)))
    })?;
    Ok(())
}

/// A container receives and sends as much as is configured.
pub fn rate_limit(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    report.chapter("A rate limit")?;
    if let Some(lack) = need::lacking(&NEEDS_OF_LIMIT, world.host.netlink()?)? {
        return report.miss("bandwidth", &lack);
    }
    let claim = format!("bandwidth limits each direction of green to {} Mbit/s", LIMIT / 1_000_000);
    report.check(&claim, || {
        let green = Container::make("green")?;
        let network = networks::limited()?;
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
    })?;
    Ok(())
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
    report.chapter("DEL")?;
    if let Some(lack) = need::lacking(&NEEDS, world.host.netlink()?)? {
        return report.miss("DEL", &lack);
    }
    report.check("red and blue are detached; the host is as it was before", || {
        let begin = Instant::now();
        world.del(&networks::published()?, &world.red)?;
        world.del(&networks::pods()?, &world.blue)?;
        let time = begin.elapsed() / 2;
        world.host.netlink()?.delete_link_by_name(BRIDGE)?; // it outlives its containers
        let after = world.snapshot(&[&world.red, &world.blue])?;
        world.untouched.require_same(&after)?;
        Ok(format!("{} each", millis(time)))
    })?;
    Ok(())
}
