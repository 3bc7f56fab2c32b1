//! The return of a recorded device to the host.

use std::thread;
use std::time::{Duration, Instant};

use super::device_records;
use super::identity::{Identity, Links};
use super::link_state::LinkState;
use super::moving::{bring, unmoved};
use crate::cni::attachment::Key;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
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
            // Where a namespace has no cookie, it may have succeeded that of this attachment, and the
            // device may have come to a container there with a later one.
            if netns.may_be_a_successor()? && device_records::has_later(self.identity, plugin, key)?
            {
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
        let others = device_records::others_of(self.identity, self.at.plugin, self.at.key)?;
        Ok(!others.is_empty() || self.host.prove_gone(self.identity)?)
    }
}
