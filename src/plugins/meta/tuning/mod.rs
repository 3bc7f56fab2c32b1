//! `tuning`: sets sysctls of the container, and attributes of its interface.
//! <https://www.cni.dev/plugins/current/meta/tuning/>

mod attributes;
pub mod backup;
mod backups;
mod conf;
mod sysctls;

use nix::errno::Errno;

use self::attributes::Attributes;
use self::backup::{Backup, SavedSysctl};
use self::backups::Backups;
pub use self::conf::Conf;
use self::sysctls::Change;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::net::netlink::Link;
use crate::net::netns::{Mark, Netns};
use crate::net::sysctl::Sysctl;
use crate::plain_file;
use crate::plugin::part::{Parts, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::prev_result;
use crate::sys::capabilities::{self, Capability};

/// The capabilities that restoring needs.
const TO_RESTORE: [Capability; 2] = [Capability::NetAdmin, Capability::SysAdmin];

/// The `tuning` plugin.
pub struct Tuning;

impl Plugin for Tuning {
    const NAME: &'static str = "tuning";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "sets sysctls of the container and attributes of its interface";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let mut result = prev_result::require(cx)?;
        at.netns()?;
        sysctls::require_allowed(&conf.settings)?;
        let changes = sysctls::survey(at, &conf.settings)?;
        let attributes = &conf.attributes;
        let link = link_if_tuned(at, attributes)?;
        attributes.validate(&link)?;
        let tuned = Tuned { at, link: &link, attributes, changes: &changes };
        transaction(|rb| tuned.tune(cx, rb))?;
        report(attributes, at, &mut result);
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        prev_result::require(cx)?;
        at.netns()?;
        sysctls::require_allowed(&conf.settings)?;
        let gone = |e: Error| e.with_code(Code::CHECK_FAILED);
        let mut found = ErrorList::default();
        if let Some(link) = found.push(link_if_tuned(at, &conf.attributes).map_err(gone)) {
            found.push(conf.attributes.verify(&link));
        }
        if let Some(changes) = found.push(sysctls::survey(at, &conf.settings).map_err(gone)) {
            found.push(parts(&changes).compare(Target { cx, at }));
        }
        found.finish()
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let Some(backups) = Backups::if_usable(cx.config) else { return Ok(()) };
        let key = &at.key;
        if backups.is_in_the_way(key) {
            // With an error, every DEL of this attachment would fail.
            let Key { container_id, ifname, .. } = key;
            warn(format_args!(
                "tuning: a directory is where the backup of {container_id} {ifname} should be"
            ));
            return Ok(());
        }
        let mut errors = ErrorList::default();
        // A failure that may pass is an error, so that the next DEL reads the backup and restores it;
        // others are reported at the end.
        let text = match backups.text(key) {
            Err(e) if !plain_file::is_no_file(e.errno) => return Err(e),
            text => errors.push(text).flatten(),
        };
        if let Some(backup) = text.as_deref().and_then(Backup::understood) {
            if !backup.may_be_of(key) {
                return errors.finish(); // another network's backup, with the same container ID and interface name
            }
            if let Some(netns) = &at.netns
                && is_of(&backups, &backup, netns, key)?
            {
                match restore(&backup, netns, key.ifname.as_str()) {
                    Err(error) if is_for_another_time(&error) => return Err(error),
                    restored => errors.push(restored),
                };
            }
        }
        // Remove the backup even if something could not be restored, or DEL would fail for as long
        // as the container lives.
        errors.push(backups.remove(key));
        errors.finish()
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        sysctls::require_allowed(&conf.settings).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        if conf.is_empty() { Ok(()) } else { Backups::of(cx.config)?.status() }
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        Backups::if_usable(cx.config)
            .map_or(Ok(()), |backups| backups.collect_garbage(&cx.config.name, valid))
    }

    /// Sets again the sysctls that differ. Attributes of the interface stay: a hardware address
    /// that changes breaks the container's connections, and so may an MTU or a queue.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        prev_result::require(cx)?;
        sysctls::require_allowed(&conf.settings)?;
        let changes = sysctls::survey(at, &conf.settings)?;
        let gone = |e: Error| e.with_code(Code::CHECK_FAILED);
        let link = link_if_tuned(at, &conf.attributes).map_err(gone);
        let compared = link.and_then(|link| conf.attributes.verify(&link));
        ErrorList::of([repairs.leave(compared), parts(&changes).repair(Target { cx, at }, repairs)])
    }
}

fn parts<'p, 'a>(changes: &'p [Change]) -> Parts<'p, 'a> {
    let mut parts = Parts::default();
    parts.extend("sysctl", changes);
    parts
}

/// Returns the container's link. Sysctls need no link, so without attributes it may be missing, and
/// an empty one is returned.
fn link_if_tuned(at: &Attachment, attributes: &Attributes) -> Result<Link> {
    if attributes.is_empty() {
        return Ok(Link::default());
    }
    find_link(at)?.ok_or_else(|| {
        Error::new(Code::INVALID_CONFIG, format!("Cannot find container link {:?}", at.ifname()))
            .with_details("tuning must come after the plugin that makes it")
    })
}

fn find_link(at: &Attachment) -> Result<Option<Link>> {
    at.netlink()?.find_link(at.ifname())
}

/// A container's interface, the attributes to set, and the sysctls that change.
struct Tuned<'a> {
    at: &'a Attachment,
    link: &'a Link,
    attributes: &'a Attributes,
    changes: &'a [Change],
}

impl<'a> Tuned<'a> {
    /// The refusal of an MTU, with the link below: a macvlan and a VLAN cannot exceed its MTU, which
    /// the limits that the kernel reports for them do not include.
    fn explain_mtu(&self, cx: &Context<'_>, mtu: u32, error: Error) -> Error {
        let is_of_value = error.is_errno(Errno::EINVAL) || error.is_errno(Errno::ERANGE);
        let Some(index) = self.link.lower.filter(|_| is_of_value) else { return error };
        let beside = if self.link.lower_is_elsewhere() { cx.host() } else { self.at.netlink() };
        let lower = beside.and_then(|netlink| netlink.find_link_by_index(index));
        let Ok(Some(lower)) = lower else { return error };
        if lower.mtu >= mtu {
            return error;
        }
        let Link { name, min_mtu, .. } = self.link;
        let master = &lower.name;
        let problem = format_args!("{mtu} is above the MTU of {master:?}, the master of {name:?}");
        Error::config("mtu", problem)
            .expecting(i64::from(*min_mtu)..=i64::from(lower.mtu))
            .with_details(format_args!("raise that of {master:?} first, or that of the network"))
    }

    /// Sets everything, after a backup.
    fn tune(&self, cx: &Context<'_>, rb: &mut Rollback<'a>) -> Result<()> {
        let Tuned { at, link, attributes, .. } = *self;
        self.back_up(cx, rb)?;
        let before = Attributes { mtu: None, ..attributes.on(link) };
        if !before.is_empty() {
            // The kernel sets them one by one, and may set the first and refuse the second.
            rb.undo("restore the interface", move || before.restore(at.netlink()?, link));
            Attributes { mtu: None, ..attributes.clone() }.set(at.netlink()?, link)?;
        }
        sysctls::write(at, self.changes, rb)?;
        // The MTU comes last: below 1280 the kernel removes IPv6 from the link, and no undo would
        // restore it.
        if let Some(mtu) = attributes.mtu {
            let of_mtu = Attributes { mtu: Some(mtu), ..Attributes::default() };
            let set = of_mtu.set(at.netlink()?, link);
            set.map_err(|error| self.explain_mtu(cx, mtu, error))?;
        }
        Ok(())
    }

    /// Writes the current state to the backup, merged with an earlier one that may be of this
    /// interface.
    fn back_up(&self, cx: &Context<'_>, rb: &mut Rollback<'a>) -> Result<()> {
        let key = &self.at.key;
        let netns = self.at.netns()?.mark()?;
        let mut backup = self.backup(netns)?;
        let backups = Backups::of(cx.config)?;
        let text = backups.text(key)?;
        let earlier = text.as_deref().and_then(Backup::understood);
        let of = earlier.as_ref().and_then(|earlier| earlier.key.clone());
        if let Some(earlier) = earlier.filter(|it| it.may_be_of(key) && it.may_be_in(netns)) {
            let attributes = earlier.before.on(self.link);
            let values = sysctls::read(self.at, &earlier.names())?;
            backup = backup.after_earlier(earlier, &attributes, &values);
        }
        if backup.is_empty() {
            return Ok(());
        }
        // Container a_b with interface c and container a with interface b_c have one file name, as in
        // the reference.
        if let Some(of) = of.filter(|of| of.ifname != key.ifname)
            && backups.path(&of) == backups.path(key)
        {
            let Key { container_id, ifname, .. } = of;
            let problem = format!(
                "the backup's file is that of interface {ifname} of container {container_id}"
            );
            return Err(Error::new(Code::CONFLICT, problem)
                .with_details("another dataDir keeps them apart"));
        }
        backups.write(key, &backup)?;
        rb.undo("put the backup back", move || backups.put_back(key, text.as_deref()));
        Ok(())
    }

    /// The current state of what ADD changes. It has the container's link if ADD tunes the link or a
    /// sysctl of it.
    fn backup(&self, netns: Mark) -> Result<Backup> {
        let Tuned { at, link, attributes, changes } = *self;
        let is_of_link = |change: &Change| change.sysctl.is_of_link(at.ifname());
        let link_index = match link.index {
            0 if changes.iter().any(is_of_link) => find_link(at)?.map(|link| link.index),
            0 => None,
            index => Some(index),
        };
        let saved = |change: &Change| {
            let before = change.to_undo()?.to_owned();
            let Change { sysctl, after, .. } = change.clone();
            Some(SavedSysctl { sysctl, before, after })
        };
        Ok(Backup {
            key: Some(at.key.clone()),
            netns: Some(netns),
            link: link_index,
            before: attributes.on(link),
            after: attributes.clone(),
            sysctls: changes.iter().filter_map(saved).collect(),
        })
    }
}

/// Reports the new attributes of the container's interface in the result. The reference also
/// changes the host's interface if it has the same name.
fn report(attributes: &Attributes, at: &Attachment, result: &mut AddResult) {
    let is_own = |it: &&mut Interface| it.name == at.ifname() && !it.sandbox.is_empty();
    for interface in result.interfaces.iter_mut().filter(is_own) {
        if let Some(mac) = &attributes.mac {
            interface.mac = mac.to_string();
        }
        if let Some(mtu) = attributes.mtu {
            interface.mtu = mtu.into();
        }
    }
}

/// Whether the backup is of this namespace: CNI_NETNS may lead to another container by now.
fn is_of(backups: &Backups, backup: &Backup, netns: &Netns, key: &Key) -> Result<bool> {
    let here = netns.mark()?;
    match backup.netns {
        Some(_) => Ok(backup.may_be_in(here)),
        None => Ok(!backups.has_another_in(here, key)?),
    }
}

/// Restores the values of the backup. Values that went away with their link need no restoring.
fn restore(backup: &Backup, netns: &Netns, ifname: &str) -> Result<()> {
    let netlink = netns.netlink()?;
    // A process in the container can give the link's name to another link, so its ifindex takes
    // precedence.
    let link = match backup.link {
        Some(index) => netlink.find_link_by_index(index)?,
        None => netlink.find_link(ifname)?,
    };
    let mut errors = ErrorList::default();
    if let Some(link) = link.as_ref().filter(|_| !backup.before.is_empty()) {
        errors.push(backup.before.restore(netlink, link));
    }
    // Sysctls of the link get its current name; if the link is gone, they are gone too.
    let now = |sysctl: &Sysctl| match backup.link {
        Some(_) if sysctl.is_of_link(ifname) => Some(sysctl.renamed(&link.as_ref()?.name)),
        _ => Some(sysctl.clone()),
    };
    let value = |saved: &SavedSysctl| Some((now(&saved.sysctl)?, saved.before.clone()));
    let values: Vec<(Sysctl, String)> = backup.sysctls.iter().filter_map(value).collect();
    errors.push(sysctls::restore(netns, &values));
    errors.finish()
}

/// Whether the next DEL may succeed, so that the backup must stay: the process lacks capabilities,
/// memory or threads, or there was an I/O error, which no sysctl and no link returns permanently.
fn is_for_another_time(error: &Error) -> bool {
    error.may_pass()
        || error.has_errno(Errno::EIO)
        || error.has_errno(Errno::EPERM) && !capabilities::missing(&TO_RESTORE).is_empty()
}
