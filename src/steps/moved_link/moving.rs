//! The move of a device between the host and a container, and the return of a recorded one.

use std::thread;
use std::time::{Duration, Instant};

use super::identity::{Identity, Links};
use super::link_state::{self, LinkState, drop_alternative_names, refuse_taken_name, unmoved};
use crate::cni::attachment::Key;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::netns::Netns;
use crate::steps::link_record;

/// Kinds of links that stay on their lower link when it moves to another namespace, and send and
/// receive there.
const UPPER_KINDS: [&str; 6] = ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec"];

/// How often a move is tried while processes in the container set names on the device that conflict
/// with names on the host.
const MOVE_TRIES: usize = 5;

/// The names that a device gets with a move.
pub struct Naming<'a> {
    /// Its name in the other namespace.
    pub name: &'a str,
    /// Its alias there.
    pub alias: &'a str,
}

impl Naming<'_> {
    /// The move.
    fn in_netns(&self, netns: &Netns) -> LinkChange<'_> {
        LinkChange {
            netns: Some(netns.fd()),
            name: Some(self.name),
            alias: Some(self.alias),
            ..LinkChange::default()
        }
    }
}

/// Moves a device of the host into the container, where it is down and has this name. Its alias
/// there is its name on the host.
pub fn move_in(host: &Netlink, netns: &Netns, device: &Link, name: &str) -> Result<()> {
    let naming = Naming { name, alias: &device.name };
    host.change_link(device, &naming.in_netns(netns))
}

/// Moves the device of a record to the host.
pub(super) fn bring(
    host: &Links<'_>,
    netns: &Netns,
    link: &Link,
    name: &str,
    identity: &Identity,
) -> Result<Link> {
    // The alias marks a device whose state is not restored yet.
    let moved = move_out(host, netns, link, &Naming { name, alias: name })?;
    match host.find(identity, name)? {
        Some(device) if device.index == moved.index => Ok(device),
        _ => Err(send_back(host, netns, &moved)),
    }
}

/// Moves a device without a record to the host.
pub fn bring_unrecorded(
    host: &Links<'_>,
    netns: &Netns,
    link: &Link,
    naming: &Naming<'_>,
    identity: &Identity,
) -> Result<()> {
    let device = move_out(host, netns, link, naming)?;
    if host.identify(&device)?.is_same_as(identity) {
        Ok(())
    } else {
        Err(send_back(host, netns, &device))
    }
}

/// Moves a link from the container to the host, without the altnames and the upper links that the
/// container added; returns the link on the host.
fn move_out(host: &Links<'_>, netns: &Netns, link: &Link, naming: &Naming<'_>) -> Result<Link> {
    refuse_taken_name(host.netlink(), link, naming.name)?;
    let container = netns.netlink()?;
    // The links on top of the device would continue to send and receive through it on the host.
    for upper in container.links()? {
        if upper.lower == Some(link.index)
            && !upper.lower_is_elsewhere()
            && UPPER_KINDS.contains(&upper.kind.as_str())
        {
            link_record::delete_link(container, upper.index)?;
        }
    }
    let here = Netns::current()?;
    let change = naming.in_netns(&here);
    for tries_left in (0..MOVE_TRIES).rev() {
        drop_alternative_names(container, link)?;
        match container.change_link(link, &change) {
            // The container has just added a conflicting name.
            Err(e) if e.is_exists() && tries_left > 0 => (),
            moved => {
                moved?;
                break;
            }
        }
    }
    host.netlink().link(naming.name)
}

/// Sends back a link that arrived in the device's place: the container exchanged the two, with the
/// same ifindex, during the move.
fn send_back(host: &Links<'_>, netns: &Netns, arrived: &Link) -> Error {
    let error = unmoved(Code::TRY_AGAIN, &arrived.name, "another link arrived");
    let back = LinkChange { netns: Some(netns.fd()), ..LinkChange::default() };
    error.with_details(match host.netlink().change_link(arrived, &back) {
        Ok(()) => "it is in the container again; the container exchanged the two".to_owned(),
        Err(e) => format!("it is on the host: {}", e.msg),
    })
}

/// How long the kernel may take to return hardware after its namespace is deleted.
const RETURN_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two searches for it.
const RETURN_PAUSE: Duration = Duration::from_millis(50);

/// Where a device is recorded, and where it went.
#[derive(Clone, Copy)]
pub struct RecordedAt<'a> {
    /// The directory of the record below /run/cni.
    pub plugin: &'static str,
    /// The attachment.
    pub key: &'a Key,
    /// CNI_NETNS of its ADD.
    pub netns_path: &'a str,
    /// The name that it got in the container.
    pub name_inside: &'a str,
}

/// The return of a device of known identity.
pub struct DeviceReturn<'a> {
    /// The links of the host.
    pub host: &'a Links<'a>,
    /// Its record.
    pub at: RecordedAt<'a>,
    /// Its state on the host.
    pub kept: &'a LinkState,
    /// Its identity.
    pub identity: &'a Identity,
    /// The namespace of its ADD, if that can be reached.
    pub netns: Option<&'a Netns>,
    /// How long the return may take.
    pub deadline: Deadline,
}

impl DeviceReturn<'_> {
    /// Returns the device from the container, or finishes its return if it is on the host already.
    /// Fails if it may be elsewhere.
    pub fn run(&self) -> Result<()> {
        let RecordedAt { plugin, key, netns_path, name_inside } = self.at;
        let LinkState { device, mac, .. } = self.kept;
        if let Some(netns) = self.netns
            && let Some(link) = Links::of_netns(netns)?.find(self.identity, device)?
        {
            // Where a namespace has no cookie (before Linux 5.14), it may have succeeded that of this
            // attachment, and the device may have come to a container there with a later one.
            let may_be_a_successor = netns.netlink()?.netns_cookie().is_none();
            if may_be_a_successor && link_state::has_later(self.identity, plugin, key)? {
                return Ok(());
            }
            let device = bring(self.host, netns, &link, device, self.identity)?;
            return self.kept.restore(self.host.netlink(), &device);
        }
        // The kernel returned it when the container's namespace was deleted, or a DEL that was killed
        // moved it. Waits for hardware of a namespace that was just deleted.
        let is_coming = self.netns.is_none() && self.identity.returns_by_itself();
        let end = self.deadline.of_wait(RETURN_PATIENCE);
        let is_gone = loop {
            if let Some(link) = self.host.find(self.identity, device)? {
                return self.kept.settle_unfinished(self.host.netlink(), link).map(drop);
            }
            let is_gone = self.is_known_to_be_gone()?;
            if is_gone || !is_coming || Instant::now() >= end {
                break is_gone;
            }
            thread::sleep(RETURN_PAUSE);
        };
        // It is neither in its namespace nor on the host: it certainly does not exist any more, or was
        // deleted with the namespace, or else may be elsewhere.
        let Some(netns) = self.netns.filter(|_| !is_gone) else {
            if is_gone || !is_coming {
                return Ok(());
            }
            let error = unmoved(Code::TRY_AGAIN, device, "it is not there yet");
            return Err(error.with_details(format_args!(
                "netns {netns_path:?} is gone, and the kernel gives its device with address {mac} to the host when no process uses it any more; \
                 repeat then; its record stays in /run/cni/{plugin}"
            )));
        };
        let instead = match netns.netlink()?.find_link(name_inside)? {
            Some(other) => {
                format!("{name_inside:?} there is another link, with address {}", other.mac())
            }
            None => format!("no link there is named {name_inside:?}"),
        };
        let kind = self.identity.kind();
        let msg = format!("failed to find {name_inside:?} in containerNS: Link not found");
        Err(Error::new(Code::TRY_AGAIN, msg).with_details(format_args!(
            "the {kind} {device:?} with address {mac} went into netns {netns_path:?} and is neither there nor on the host; {instead}; \
             move it back into that namespace, or delete the namespace, and repeat; its record stays in /run/cni/{plugin}"
        )))
    }

    /// Whether the device is gone, or has moved to another attachment since.
    fn is_known_to_be_gone(&self) -> Result<bool> {
        let others = link_state::others_of(self.identity, self.at.plugin, self.at.key)?;
        Ok(!others.is_empty() || self.host.prove_gone(self.identity)?)
    }
}
