//! An ADD that fails, and one that is killed: what is left of them.

use std::time::{Duration, Instant};

use super::networks;
use super::pods;
use super::report::{Report, millis};
use super::snapshot::Snapshot;
use super::world::{Container, Network, World};
use crate::commands::doctor::need;
use crate::error::{Code, Error, Result};
use crate::net::netlink::Watch;
use crate::net::private;
use crate::sys::child::{Child, Ended};

/// How often an ADD is killed until the kill comes in its middle.
const TRIES: usize = 20;
/// How many times the kernel reports changes of links before the kill.
const EVENTS: usize = 3;
/// How long the first link of an ADD may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The last plugin of a chain fails, and nothing is left of those before.
pub fn failed_add(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    report.chapter("An ADD that fails")?;
    if let Some(lack) = need::lacking(&pods::NEEDS, world.host.netlink()?)? {
        return report.miss("a failed ADD", &lack);
    }
    let green = Container::make("failing")?;
    let before = world.snapshot(&[&green])?;
    let mut refusal = None;
    report.check("the fourth plugin of a chain fails, and the runtime gets its error", || {
        let changes = Watch::links()?;
        let Err(error) = world.add(&networks::failing()?, &green) else {
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
    })?;
    Ok(())
}

/// Kills an ADD in its middle, deletes its container, and requires that GC removes what the ADD has
/// made.
pub fn killed_add(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    report.chapter("kill -9 in the middle of an ADD")?;
    if let Some(lack) = need::lacking(&pods::NEEDS, world.host.netlink()?)? {
        return report.miss("a killed ADD", &lack);
    }
    let yellow = Container::make("killed")?;
    let network = networks::pods()?;
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
        world.check(&networks::published()?, &world.red)?;
        world.check(&network, &world.blue).map(|()| String::new())
    })?;
    Ok(())
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
    for _ in 0..TRIES {
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
    Err(Error::check(format!("none of {TRIES} kills came in the middle of an ADD")))
}
