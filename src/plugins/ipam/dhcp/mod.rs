//! `dhcp` leases a container's address from a DHCP server on its network; a daemon keeps the lease.
//!
//! The plugin sends a request ([`wire`]) to the daemon. The daemon acquires a lease ([`v4`],
//! [`v6`]), renews it while the container lives, and journals it in a file ([`daemon`]).
//!
//! <https://www.cni.dev/plugins/current/ipam/dhcp/>

pub mod client;
mod conf;
pub mod daemon;
mod domains;
mod family;
mod leases;
mod operator;
mod reader;
mod times;
pub mod v4;
pub mod v6;
pub mod wire;

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

pub use self::conf::DEFAULT_SOCKET;
use self::conf::{Conf, socket_path};
use self::daemon::orphans::{self, stale_lease};
use self::v6::client::Mode;
use self::wire::{Described, Peer, Request, Terms, Wish, family_of, is_not_running};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::json::Value;
use crate::cni::result::{AddResult, Document};
use crate::cni::valid::Stale;
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

/// How long a daemon may take to exit or to start while a lease is released.
const RESTART_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two attempts to reach the daemon.
const RESTART_PAUSE: Duration = Duration::from_millis(2);

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
        let daemon = peer(cx)?;
        daemon.ask::<()>(&Request::Status)?; // before any change, and before the wait for the carrier
        set_up(cx, conf, at)?;
        let secluded = secluded(cx, at)?;
        let wishes = wishes(conf, at)?;
        let error = match leased(&daemon, &wishes) {
            Ok(Ok(result)) => return Ok(result),
            // the daemon has released what it requested
            Ok(Err(error)) if wishes.len() == 1 => return Err(explained(error, secluded)),
            Ok(Err(error)) | Err(error) => explained(error, secluded),
        };
        Err(release_after(error, &daemon, &at.key))
    }

    /// Checks the lease that the daemon has. The reference looks for a lease where there never is
    /// one.
    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = cx.config.prev_result()?.unwrap_or_default();
        let daemon = peer(cx)?;
        conf.leases.iter().try_for_each(|v6| {
            let request = Request::Check { key: at.key.clone(), family: family_of(*v6) };
            verify(&daemon.ask(&request)?, &result)
        })
    }

    /// Releases the leases, without a daemon too. The reference fails without one, and the
    /// container cannot be removed.
    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        release(&any_peer(cx), &at.key)
    }

    fn status(cx: &Context<'_>, _: &Conf) -> Result<()> {
        let answer = peer(cx)?.ask(&Request::Status);
        answer.map_err(|e| e.with_code(Code::NOT_AVAILABLE))
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        let daemon = any_peer(cx);
        let network = &cx.config.name;
        let stale = match gc_by_daemon(&daemon, network, valid) {
            Err(error) if is_not_running(&error) => {
                let done = orphans::gc(&daemon.socket, network, valid);
                return done.map_err(|e| e.with_details(&error.msg));
            }
            stale => stale?,
        };
        stale.into_iter().try_for_each(|stale| valid.remove(|| stale, || Ok(())))
    }

    /// Nothing: the daemon has its leases in its journal, and a lost one can only be allocated anew.
    fn repair(_: &Context<'_>, _: &Conf, _: &Attachment, _: &Repairs) -> Result<()> {
        Ok(())
    }
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

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn explained(error: Error, secluded: Option<String>) -> Error {
    match secluded {
        Some(why) => error.with_details(why),
        None => error,
    }
}

/// The requests for the leases of the configuration.
fn wishes(conf: &Conf, at: &Attachment) -> Result<Vec<Request>> {
    let netns = absolute_netns(at)?;
    let wish = |v6| Wish { key: at.key.clone(), netns: netns.clone(), terms: terms(conf, v6) };
    Ok(conf.leases.iter().map(|v6| Request::Add(wish(*v6))).collect())
}

fn absolute_netns(at: &Attachment) -> Result<String> {
    let netns = std::path::absolute(&at.netns_path).map_err(|e| Error::io("CNI_NETNS", &e))?;
    Ok(netns.to_string_lossy().into_owned())
}

fn terms(conf: &Conf, v6: Option<Mode>) -> Terms {
    Terms {
        provide: conf.provide.clone(),
        request: conf.request.clone(),
        priority: conf.priority,
        v6,
    }
}

/// Releases the leases of a failed ADD now, while the interface still exists to send from: a daemon
/// that died may have left a request behind, and the other family may have a lease.
fn release_after(error: Error, daemon: &Peer, key: &Key) -> Error {
    match release(daemon, key) {
        Ok(()) => error,
        Err(failed) => error.with_details(format_args!("undo: {failed}")),
    }
}

/// Lets the daemon release the stale leases, unless this is only a look. Returns them if they are
/// to be reported.
fn gc_by_daemon(
    daemon: &Peer,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<Vec<Stale>> {
    let mut listed = vec![];
    if valid.is_watched() {
        listed = stale(daemon.ask(&Request::Leases)?, network, valid);
    }
    if !valid.is_look() {
        daemon.ask::<()>(&Request::gc(network, valid))?;
    }
    Ok(listed)
}

/// The daemon's leases that its GC would release, from the daemon's list of leases.
fn stale(leases: Vec<Described>, network: &NetworkName, valid: &ValidAttachments) -> Vec<Stale> {
    let of_lease = |lease: Described| {
        let key = lease.attachment().filter(|key| valid.is_stale(network, key))?;
        let address = lease.net().map(|net| net.addr());
        Some(stale_lease(&key, address, lease.namespace))
    };
    leases.into_iter().filter_map(of_lease).collect()
}

/// Releases the leases of an attachment: through the daemon, or from its journal if no daemon runs.
fn release(daemon: &Peer, key: &Key) -> Result<()> {
    let deadline = daemon.deadline.of_wait(RESTART_PATIENCE);
    loop {
        let again = match attempt_release(daemon, key) {
            Ok(done) => return done,
            Err(again) => again,
        };
        if Instant::now() > deadline {
            return Err(again);
        }
        thread::sleep(RESTART_PAUSE); // a killed daemon closes its socket first and releases its lock last
    }
}

/// The outcome of a release; the outer error is one that a retry may avoid: the daemon may exit
/// during the request, and may start during the work on its journal.
fn attempt_release(daemon: &Peer, key: &Key) -> Result<Result<()>> {
    let del = Request::Del(key.clone());
    match daemon.begin_to_ask(&del).and_then(|asked| asked.answer()) {
        Ok(answer) => Ok(answer),
        Err(error) if is_not_running(&error) => match orphans::del(&daemon.socket, key) {
            Err(error) if error.code == Code::CONFLICT => Err(error),
            done => Ok(done),
        },
        Err(error) if error.code == Code::TRY_AGAIN => Err(error),
        Err(error) => Ok(Err(error)),
    }
}

/// The daemon of the configuration.
fn peer(cx: &Context<'_>) -> Result<Peer> {
    Ok(Peer { socket: socket_path(cx.config)?, deadline: cx.deadline() })
}

/// The daemon for DEL and GC: with an invalid `daemonSocketPath`, ADD cannot have succeeded, so the
/// default socket will do.
fn any_peer(cx: &Context<'_>) -> Peer {
    peer(cx).unwrap_or_else(|_| Peer { socket: DEFAULT_SOCKET.into(), deadline: cx.deadline() })
}

/// The daemon's answers to `wishes`, which it works on in parallel. The two results are those of
/// [`Asked::answer`](crate::service::wire::Asked::answer).
fn leased(daemon: &Peer, wishes: &[Request]) -> Result<Result<AddResult>> {
    let asked: Result<Vec<_>> = wishes.iter().map(|wish| daemon.begin_to_ask(wish)).collect();
    let mut all = AddResult::default();
    for asked in asked? {
        match asked.answer()? {
            Ok(answer) => merge(&mut all, read_result(&answer)?),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(all))
}

/// Adds the result of another family.
fn merge(all: &mut AddResult, mut result: AddResult) {
    all.ips.append(&mut result.ips);
    all.routes.append(&mut result.routes);
    all.dns.nameservers.append(&mut result.dns.nameservers);
    all.dns.domain.push_str(&result.dns.domain); // IPv6 has none
    add_new(&mut all.dns.search, result.dns.search);
}

fn add_new(domains: &mut Vec<String>, more: Vec<String>) {
    for domain in more {
        if !domains.contains(&domain) {
            domains.push(domain);
        }
    }
}

fn read_result(answer: &Value) -> Result<AddResult> {
    let document =
        Document::parse(answer, wire::RESULT_VERSION).and_then(Document::into_add_result);
    document
        .map_err(|e| Error::new(Code::DECODE, format!("read the answer of the DHCP daemon: {e}")))
}

/// Enables IPv6 on the interface. Router advertisements are left to the daemon: the kernel would
/// add addresses and routes that are not in the result.
fn enable_ipv6(at: &Attachment) -> Result<()> {
    let ifname = at.ifname();
    at.run(|| {
        let _ = Sysctl::ipv6_conf(ifname, "accept_ra").write("0"); // without IPv6 there is no such sysctl; the next line reports that
        addresses::enable_ipv6(ifname)
    })
}

/// Sets the interface up and waits for its carrier.
fn set_up(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
    if conf.leases.iter().any(Option::is_some) {
        enable_ipv6(at)?;
    }
    let link = at.netlink()?.link(at.ifname()).map_err(explain_missing_link)?;
    let deadline = cx.deadline().of_wait(CARRIER_PATIENCE);
    if !link.up || !carries(&link) {
        set_link_up(at, &link, deadline)?;
    }
    await_other_end(cx, at, &link, deadline)
}

fn explain_missing_link(error: Error) -> Error {
    if !error.is_errno(Errno::ENODEV) {
        return error;
    }
    error.with_details(
        "the server is asked over the interface: ptp, which makes it later, cannot have dhcp",
    )
}

/// Sets the link up, and waits for its carrier.
fn set_link_up(at: &Attachment, link: &Link, deadline: Instant) -> Result<()> {
    let container = at.netlink()?;
    let watch = at.run(Watch::links)?;
    container.change_link(link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
    if carries(&container.link(at.ifname())?) {
        return Ok(());
    }
    watch.until_operational(container, at.ifname(), deadline).map(drop)
}

/// Waits for the carrier of the host's end of a veth pair: a bridge forwards nothing until that end
/// has carrier too, which the kernel may notice a moment later.
fn await_other_end(
    cx: &Context<'_>,
    at: &Attachment,
    link: &Link,
    deadline: Instant,
) -> Result<()> {
    match veth::other_end(cx.host()?, at.netns()?, link)? {
        Some(end) if !carries(&end) => {
            Watch::links()?.until_operational(cx.host()?, &end.name, deadline).map(drop)
        }
        _ => Ok(()),
    }
}

/// Whether the link has carrier. Some kinds of links never report it and count as having it.
fn carries(link: &Link) -> bool {
    link.is_operational() || link.operstate_text() == "unknown"
}

/// Checks that the lease is held and that its address is in the container's result.
fn verify(lease: &Described, result: &AddResult) -> Result<()> {
    if lease.state == "expired" {
        return Err(expired(lease));
    }
    let held = lease.net();
    let is_known = result.ips.iter().any(|ip| Some(ip.address) == held);
    if is_known { Ok(()) } else { Err(unknown_address(lease, result)) }
}

fn expired(lease: &Described) -> Error {
    let address = lease.address.as_deref().unwrap_or_default();
    Error::check(format!("lease {} is {}", lease.key, lease.state))
        .with_details(format_args!("{address} is not the container's any more"))
}

fn unknown_address(lease: &Described, result: &AddResult) -> Error {
    let key = &lease.key;
    let address = lease.address.as_deref().unwrap_or_default();
    Error::check(format!("lease {key} is {address}, which prevResult does not have"))
        .with_details(format_args!("it has {}", addresses_of(result)))
}

fn addresses_of(result: &AddResult) -> String {
    let texts: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    texts.join(", ")
}
