//! The return of a recorded device to the host.

use std::thread;
use std::time::{Duration, Instant};

use super::belongings::Belongings;
use super::identity::{Identity, Links};
use super::loans;
use super::passage::{bring, unmoved};
use super::settling::settle_unfinished;
use crate::cni::attachment::Key;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::net::netlink::Link;
use crate::net::netns::Netns;

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
pub struct Homecoming<'a> {
    /// The links of the host.
    pub host: &'a Links<'a>,
    /// Its record.
    pub at: RecordedAt<'a>,
    /// Its state on the host.
    pub kept: &'a Belongings,
    /// Its identity.
    pub identity: &'a Identity,
    /// The namespace of its ADD, if that can be reached.
    pub netns: Option<&'a Netns>,
    /// How long the return may take.
    pub deadline: Deadline,
}

impl Homecoming<'_> {
    /// Returns the device from the container, or finishes its return if it is on the host already.
    /// Fails if it may be elsewhere.
    pub fn run(&self) -> Result<()> {
        if let Some(netns) = self.netns
            && let Some(link) = Links::of_netns(netns)?.find(self.identity, &self.kept.device)?
        {
            if self.has_moved_on_to(netns)? {
                return Ok(());
            }
            let device = bring(self.host, netns, &link, self.kept, self.identity)?;
            return self.kept.restore(self.host.netlink(), &device);
        }
        match self.await_return()? {
            Some(link) => settle_unfinished(self.host.netlink(), link, self.kept).map(drop),
            None => self.require_gone(),
        }
    }

    /// Whether it came to a container in this namespace with a later attachment. Where a namespace
    /// has no cookie, it may have succeeded that of this attachment.
    fn has_moved_on_to(&self, netns: &Netns) -> Result<bool> {
        Ok(netns.may_be_a_successor()?
            && loans::has_later(self.identity, self.at.plugin, self.at.key)?)
    }

    /// The device if it is already on the host: the kernel returned it when the container's
    /// namespace was deleted, or a DEL that was killed moved it. Waits for hardware of a namespace
    /// that was just deleted.
    fn await_return(&self) -> Result<Option<Link>> {
        let end = self.deadline.of_wait(RETURN_PATIENCE);
        loop {
            let device = self.host.find(self.identity, &self.kept.device)?;
            let may_come = self.is_coming() && Instant::now() < end;
            if device.is_some() || !may_come || self.is_known_to_be_gone()? {
                return Ok(device);
            }
            thread::sleep(RETURN_PAUSE);
        }
    }

    /// Whether the kernel gives the device to the host by itself, now that its namespace is gone.
    fn is_coming(&self) -> bool {
        self.netns.is_none() && self.identity.returns_by_itself()
    }

    /// Whether the device is gone, or has moved to another attachment since.
    fn is_known_to_be_gone(&self) -> Result<bool> {
        let has_moved_on = loans::has_another(self.identity, self.at.plugin, self.at.key)?;
        Ok(has_moved_on || self.host.prove_gone(self.identity)?)
    }

    /// For a device that is neither in its namespace nor on the host: fails unless the device
    /// certainly does not exist any more, or was deleted with the namespace.
    fn require_gone(&self) -> Result<()> {
        match self.netns {
            _ if self.is_known_to_be_gone()? => Ok(()),
            Some(netns) => Err(missing_inside(self.at, self.kept, netns, self.identity.kind())?),
            None if self.is_coming() => Err(self.not_yet_back()),
            None => Ok(()),
        }
    }

    fn not_yet_back(&self) -> Error {
        let RecordedAt { plugin, netns_path, .. } = self.at;
        let Belongings { device, mac, .. } = self.kept;
        unmoved(Code::TRY_AGAIN, device, "it is not there yet").with_details(format_args!(
            "netns {netns_path:?} is gone, and the kernel gives its device with address {mac} to the host when no process uses it any more; \
             repeat then; its record stays in /run/cni/{plugin}"
        ))
    }
}

/// The error for a device that is neither in its namespace nor on the host.
fn missing_inside(
    at: RecordedAt<'_>,
    kept: &Belongings,
    netns: &Netns,
    kind: &str,
) -> Result<Error> {
    let RecordedAt { plugin, netns_path, name_inside, .. } = at;
    let Belongings { device, mac, .. } = kept;
    let instead = describe_substitute(name_inside, netns.netlink()?.find_link(name_inside)?);
    let msg = format!("failed to find {name_inside:?} in containerNS: Link not found");
    Ok(Error::new(Code::TRY_AGAIN, msg).with_details(format_args!(
        "the {kind} {device:?} with address {mac} went into netns {netns_path:?} and is neither there nor on the host; {instead}; \
         move it back into that namespace, or delete the namespace, and repeat; its record stays in /run/cni/{plugin}"
    )))
}

/// Describes the link in the device's place.
fn describe_substitute(ifname: &str, link: Option<Link>) -> String {
    match link {
        Some(link) => format!("{ifname:?} there is another link, with address {}", link.mac()),
        None => format!("no link there is named {ifname:?}"),
    }
}
