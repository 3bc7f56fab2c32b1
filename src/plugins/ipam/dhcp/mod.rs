//! `dhcp` leases a container's address from a DHCP server on its network; a daemon keeps the lease.
//!
//! The plugin sends a request ([`wire`]) to the daemon. The daemon acquires a lease ([`v4`],
//! [`v6`]), renews it while the container lives, and journals it in a file ([`daemon`]).
//!
//! <https://www.cni.dev/plugins/current/ipam/dhcp/>

pub mod client;
mod conf;
pub mod daemon;
mod leases;
mod operator;
mod reader;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod times;
pub mod v4;
pub mod v6;
pub mod wire;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use self::conf::Conf;
pub use self::wire::DEFAULT_SOCKET;
use self::wire::{Described, Peer, Request, Terms, Wish};
use crate::cni::conf::ValidAttachments;
use crate::cni::json::Value;
use crate::cni::result::{AddResult, Document};
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkChange, Watch};
use crate::net::sysctl::Sysctl;
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, OperatorCommand, Plugin};
use crate::repair::Repairs;
use crate::steps::{addresses, link_alias, veth};

/// How long to wait for the interface's carrier before the first message: messages sent earlier are
/// lost, and the next retry is seconds away. An interface without carrier by then may have an
/// unplugged cable.
const CARRIER_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait for a port of the bridge that leads to a server.
const UPLINK_PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two looks whether the bridge has an address.
const ADDRESS_PAUSE: Duration = Duration::from_millis(500);

/// The `dhcp` plugin.
pub struct Dhcp;

impl Plugin for Dhcp {
    const NAME: &'static str = operator::NAME;
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "addresses of the network's DHCP server, which a daemon keeps";
    const NEEDS_LINK: bool = true;
    const COMMANDS: &'static [OperatorCommand] = &[operator::COMMAND];
    const LEASES: Option<&'static dyn LeaseStore> = Some(&leases::Leases);
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let daemon = Peer::of(cx)?;
        daemon.ask::<()>(&Request::Status)?; // before any change, and before the wait for the carrier
        set_up(cx, conf, at)?;
        let secluded = secluded(cx, at)?;
        let explained = |error: Error| match &secluded {
            Some(why) => error.with_details(why),
            None => error,
        };
        let wishes = wishes(conf, at)?;
        let error = match leased(&daemon, &wishes) {
            Ok(Ok(result)) => return Ok(result),
            // the daemon has released what it requested
            Ok(Err(error)) if wishes.len() == 1 => return Err(explained(error)),
            Ok(Err(error)) | Err(error) => explained(error),
        };
        // Release now, while the interface still exists to send from: a daemon that died may have
        // left a request behind, and the other family may have a lease.
        Err(match leases::release(&daemon, &at.key) {
            Ok(()) => error,
            Err(failed) => error.with_details(format_args!("undo: {failed}")),
        })
    }

    /// Checks the lease that the daemon has. The reference looks for a lease where there never is
    /// one.
    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = cx.config.prev_result()?.unwrap_or_default();
        let daemon = Peer::of(cx)?;
        conf.leases.iter().try_for_each(|terms| {
            let request = Request::Check { key: at.key.clone(), family: terms.family() };
            verify(&daemon.ask(&request)?, &result)
        })
    }

    /// Releases the leases, without a daemon too. The reference fails without one, and the
    /// container cannot be removed.
    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        leases::release(&any_peer(cx), &at.key)
    }

    fn status(cx: &Context<'_>, _: &Conf) -> Result<()> {
        let answer = Peer::of(cx)?.ask(&Request::Status);
        answer.map_err(|e| e.with_code(Code::NOT_AVAILABLE))
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        leases::gc(&any_peer(cx), &cx.config.name, valid)
    }

    /// Nothing: the daemon has its leases in its journal, and a lost one can only be allocated anew.
    fn repair(_: &Context<'_>, _: &Conf, _: &Attachment, _: &Repairs) -> Result<()> {
        Ok(())
    }
}

/// The daemon for DEL and GC: with an invalid `daemonSocketPath`, ADD cannot have succeeded, so the
/// default socket will do.
fn any_peer(cx: &Context<'_>) -> Peer {
    let default = |_| Peer { socket: DEFAULT_SOCKET.into(), deadline: cx.deadline() };
    Peer::of(cx).unwrap_or_else(default)
}

/// Sets the interface up and waits for its carrier.
fn set_up(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
    let ifname = at.ifname();
    if conf.leases.iter().any(|terms| terms.v6.is_some()) {
        at.run(|| {
            // Router advertisements are left to the daemon: the kernel would add addresses and
            // routes that are not in the result. Without IPv6 there is no such sysctl; the next
            // line reports that.
            let _ = Sysctl::ipv6_conf(ifname, "accept_ra").write("0");
            addresses::enable_ipv6(ifname)
        })?;
    }
    let container = at.netlink()?;
    let link = container.link(ifname).map_err(|error| {
        if !error.is_errno(Errno::ENODEV) {
            return error;
        }
        error.with_details(
            "the server is asked over the interface: ptp, which makes it later, cannot have dhcp",
        )
    })?;
    let deadline = cx.deadline().of_wait(CARRIER_PATIENCE);
    if !link.up || !carries(&link) {
        let watch = at.run(Watch::links)?;
        container.change_link(&link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
        if !carries(&container.link(ifname)?) {
            watch.until_operational(container, ifname, deadline)?;
        }
    }
    // A bridge forwards nothing until the host's end of a veth pair has carrier too, which the
    // kernel may notice a moment later.
    if let Some(end) = veth::other_end(cx.host()?, at.netns()?, &link)?
        && !carries(&end)
    {
        Watch::links()?.until_operational(cx.host()?, &end.name, deadline)?;
    }
    Ok(())
}

/// Whether the link has carrier. Some kinds of links never report it and count as having it.
fn carries(link: &Link) -> bool {
    link.is_operational() || link.operstate_text() == "unknown"
}

/// Says of the bridge of the container that it has no port but containers', if that is so: the server
/// is one of them, or there is none. If this container is the only one, waits for another port, which
/// at boot may come after the container, and fails without one.
fn secluded(cx: &Context<'_>, at: &Attachment) -> Result<Option<String>> {
    let host = cx.host()?;
    let end = veth::other_end(host, at.netns()?, &at.netlink()?.link(at.ifname())?)?;
    let Some((end, index)) = end.and_then(|end| Some((end.index, end.master?))) else {
        return Ok(None);
    };
    let watch = Watch::links()?;
    let deadline = cx.deadline().of_wait(UPLINK_PATIENCE);
    let mut is_first = true;
    loop {
        let Some(bridge) = host.find_link_by_index(index)?.filter(|link| link.kind == "bridge")
        else {
            return Ok(None);
        };
        let mut others = host.ports(&bridge)?;
        others.retain(|port| port.index != end);
        if let Some(uplink) = others.iter().find(|port| !link_alias::is_of_any(&port.alias)) {
            if is_first {
                return Ok(None);
            }
            // What is sent before its carrier is there is lost.
            match watch.until_operational(host, &uplink.name, deadline) {
                Err(error) if error.is_not_found() => continue, // renamed, or gone again
                waited => return waited.map(|_| None),
            }
        }
        // With an address, the host itself may be the server.
        let addresses = host.addresses(&bridge)?;
        let is_link_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let has_server = addresses.iter().any(|address| !is_link_local(address.net.addr()))
            || host.links()?.iter().any(|link| link.lower == Some(bridge.index)); // a VLAN on it
        if has_server {
            return Ok(None);
        }
        let msg = format!("bridge {:?} has no port but containers'", bridge.name);
        if !others.is_empty() {
            return Ok(Some(msg));
        }
        if Instant::now() >= deadline {
            return Err(Error::new(Code::ADDRESS_UNAVAILABLE, msg).with_details(
                "no DHCP server can be behind it: make the LAN's link a port of it",
            ));
        }
        watch.until(deadline.min(Instant::now() + ADDRESS_PAUSE))?;
        is_first = false;
    }
}

/// The requests for the leases of the configuration.
fn wishes(conf: &Conf, at: &Attachment) -> Result<Vec<Request>> {
    let netns = std::path::absolute(&at.netns_path).map_err(|e| Error::io("CNI_NETNS", &e))?;
    let wish = |terms: &Terms| Wish {
        key: at.key.clone(),
        netns: netns.to_string_lossy().into_owned(),
        terms: terms.clone(),
    };
    Ok(conf.leases.iter().map(wish).map(Request::Add).collect())
}

/// The daemon's answers to `wishes`, which it works on in parallel. The two results are those of
/// [`Asked::answer`](crate::service::wire::Asked::answer).
fn leased(daemon: &Peer, wishes: &[Request]) -> Result<Result<AddResult>> {
    let asked: Result<Vec<_>> = wishes.iter().map(|wish| daemon.begin_to_ask(wish)).collect();
    let mut all = AddResult::default();
    for asked in asked? {
        let answer: Value = match asked.answer()? {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        let document =
            Document::parse(&answer, wire::RESULT_VERSION).and_then(Document::into_add_result);
        let result = document.map_err(|e| {
            Error::new(Code::DECODE, format!("read the answer of the DHCP daemon: {e}"))
        })?;
        all.ips.extend(result.ips);
        all.routes.extend(result.routes);
        all.dns.nameservers.extend(result.dns.nameservers);
        all.dns.domain.push_str(&result.dns.domain); // IPv6 has none
        for domain in result.dns.search {
            if !all.dns.search.contains(&domain) {
                all.dns.search.push(domain);
            }
        }
    }
    Ok(Ok(all))
}

/// Checks that the lease is held and that its address is in the container's result.
fn verify(lease: &Described, result: &AddResult) -> Result<()> {
    let Described { key, state, .. } = lease;
    let address = lease.address.as_deref().unwrap_or_default();
    if state == "expired" {
        return Err(Error::check(format!("lease {key} is {state}"))
            .with_details(format_args!("{address} is not the container's any more")));
    }
    let held = lease.net();
    if result.ips.iter().any(|ip| Some(ip.address) == held) {
        return Ok(());
    }
    let known: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    Err(Error::check(format!("lease {key} is {address}, which prevResult does not have"))
        .with_details(format_args!("it has {}", known.join(", "))))
}
