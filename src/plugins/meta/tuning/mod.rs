//! `tuning`: sysctls of the container, and attributes of its interface.
//! <https://www.cni.dev/plugins/current/meta/tuning/>

mod allowlist;
mod attributes;
pub mod backup;
mod conf;
mod sysctls;

use nix::errno::Errno;

use self::attributes::Attributes;
use self::backup::{Backup, Backups, SavedSysctl};
pub use self::conf::Conf;
use self::sysctls::Change;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result, warn};
use crate::net::netlink::Link;
use crate::net::netns::Netns;
use crate::net::sysctl::Sysctl;
use crate::plain_file;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::rollback::{Rollback, transaction};
use crate::steps::prev_result;
use crate::sys::capabilities::{self, Capability};

/// The plugin.
pub struct Tuning;

impl Plugin for Tuning {
    const NAME: &'static str = "tuning";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "sets sysctls of the container and attributes of its interface";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let mut result = prev_result::require(cx)?;
        at.netns()?;
        allowlist::require(&conf.settings)?;
        let changes = sysctls::survey(at, &conf.settings)?;
        let link = link_if_tuned(at, &conf.attributes)?;
        conf.attributes.validate(&link)?;
        transaction(|rb| {
            back_up(cx, at, conf, &link, &changes, rb)?;
            set_all_but_mtu(at, conf, &link, rb)?;
            sysctls::write(at, &changes, rb)?;
            // The last one: below 1280 the kernel takes IPv6 from the link, and no undo would bring
            // it back.
            if conf.attributes.mtu.is_some() {
                conf.attributes.set_mtu(at.netlink()?, &link)?;
            }
            tell(&conf.attributes, at, &mut result);
            Ok(result)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        prev_result::require(cx)?;
        at.netns()?;
        allowlist::require(&conf.settings)?;
        let gone = |e: Error| e.with_code(Code::CHECK_FAILED);
        let link = link_if_tuned(at, &conf.attributes).map_err(gone)?;
        conf.attributes.verify(&link)?;
        sysctls::verify(&sysctls::survey(at, &conf.settings).map_err(gone)?)
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let Some(backups) = Backups::if_usable(cx.config) else { return Ok(()) };
        if backups.is_in_the_way(&at.key) {
            // An error would be the answer to every DEL.
            warn(format_args!(
                "tuning: a directory is where the backup of {} {} should be",
                at.key.container_id, at.key.ifname
            ));
            return Ok(());
        }
        let mut errors = ErrorList::default();
        let text = match backups.text(&at.key) {
            Err(e) if !plain_file::is_no_file(e.errno) => return Err(e), // the next DEL reads it
            text => errors.push(text).flatten(),
        };
        let backup = text.as_deref().and_then(Backup::understood);
        if backup.as_ref().is_some_and(|backup| !backup.may_be_of(&at.key)) {
            return errors.finish(); // another network's, with a container and an interface of the same names
        }
        if let (Some(backup), Some(netns)) = (&backup, &at.netns)
            && is_of(&backups, backup, netns, &at.key)?
        {
            let restored = restore(backup, netns, at.key.ifname.as_str());
            if restored.as_ref().is_err_and(is_for_another_time) {
                return restored;
            }
            errors.push(restored);
        }
        // Also where something could not be restored, or DEL would fail for as long as the
        // container lives.
        errors.push(backups.remove(&at.key));
        errors.finish()
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        allowlist::require(&conf.settings).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        match conf.settings.is_empty() && conf.attributes.is_empty() {
            true => Ok(()),
            false => Backups::of(cx.config)?.status(),
        }
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        Backups::if_usable(cx.config)
            .map_or(Ok(()), |backups| backups.collect_garbage(&cx.config.name, valid))
    }
}

/// The container's link. Sysctls need none, so where nothing else is tuned there may be none.
fn link_if_tuned(at: &Attachment, attributes: &Attributes) -> Result<Link> {
    match attributes.is_empty() {
        true => Ok(Link::default()),
        false => at.netlink()?.find_link(at.ifname())?.ok_or_else(|| {
            Error::new(
                Code::INVALID_CONFIG,
                format!("Cannot find container link {:?}", at.ifname()),
            )
            .with_details("tuning must come after the plugin that makes it")
        }),
    }
}

/// The ifindex of the container's link, where it or a sysctl of it is tuned.
fn index_of_tuned(at: &Attachment, link: &Link, changes: &[Change]) -> Result<Option<u32>> {
    match Some(link.index).filter(|index| *index != 0) {
        None if changes.iter().any(|change| change.sysctl.is_of_link(at.ifname())) => {
            Ok(at.netlink()?.find_link(at.ifname())?.map(|link| link.index))
        }
        index => Ok(index),
    }
}

/// Writes down how things are.
fn back_up<'a>(
    cx: &Context<'_>,
    at: &'a Attachment,
    conf: &Conf,
    link: &Link,
    changes: &[Change],
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let saved = |change: &Change| {
        let (sysctl, before) = (change.sysctl.clone(), change.to_undo()?.to_owned());
        Some(SavedSysctl { sysctl, before, after: change.after.clone() })
    };
    let mut backup = Backup {
        key: Some(at.key.clone()),
        netns: at.netlink()?.netns_cookie(),
        link: index_of_tuned(at, link, changes)?,
        before: conf.attributes.on(link),
        after: conf.attributes.clone(),
        sysctls: changes.iter().filter_map(saved).collect(),
    };
    let backups = Backups::of(cx.config)?;
    let text = backups.text(&at.key)?;
    let earlier = text.as_deref().and_then(Backup::understood);
    let of = earlier.as_ref().and_then(|earlier| earlier.key.clone());
    if let Some(earlier) =
        earlier.filter(|earlier| earlier.may_be_of(&at.key) && earlier.may_be_in(backup.netns))
    {
        let names: Vec<Sysctl> = earlier.sysctls.iter().map(|saved| saved.sysctl.clone()).collect();
        let (now, values) = (earlier.before.on(link), sysctls::read(at, &names)?);
        backup = backup.after_earlier(earlier, &now, &values);
    }
    if backup.is_empty() {
        return Ok(());
    }
    let is_taken =
        |of: &Key| of.ifname != at.key.ifname && backups.path(of) == backups.path(&at.key);
    if let Some(Key { container_id, ifname, .. }) = of.filter(is_taken) {
        // a_b and c, a and b_c: the reference's file is called the same.
        let problem =
            format!("the backup's file is that of interface {ifname} of container {container_id}");
        return Err(
            Error::new(Code::CONFLICT, problem).with_details("another dataDir keeps them apart")
        );
    }
    backups.write(&at.key, &backup)?;
    rb.undo("put the backup back", move || backups.put_back(&at.key, text.as_deref()));
    Ok(())
}

/// Hardware address, flags and queue length. The kernel sets one after the other, and may refuse
/// the second.
fn set_all_but_mtu<'a>(
    at: &'a Attachment,
    conf: &Conf,
    link: &Link,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let before = Attributes { mtu: None, ..conf.attributes.on(link) };
    if before.is_empty() {
        return Ok(());
    }
    let undone = link.clone();
    rb.undo("restore the interface", move || before.restore(at.netlink()?, &undone));
    conf.attributes.set_all_but_mtu(at.netlink()?, link)
}

/// The container's interface in the result, as it is now. The reference changes the host's too,
/// where it has the name.
fn tell(attributes: &Attributes, at: &Attachment, result: &mut AddResult) {
    let is_ours = |name: &str, sandbox: &str| name == at.ifname() && !sandbox.is_empty();
    for interface in result
        .interfaces
        .iter_mut()
        .filter(|interface| is_ours(&interface.name, &interface.sandbox))
    {
        if let Some(mac) = &attributes.mac {
            interface.mac = mac.to_string();
        }
        if let Some(mtu) = attributes.mtu {
            interface.mtu = mtu.into();
        }
    }
}

/// Whether the backup is of this namespace: CNI_NETNS may lead to another container's by now.
fn is_of(backups: &Backups, backup: &Backup, netns: &Netns, key: &Key) -> Result<bool> {
    let cookie = netns.netlink()?.netns_cookie();
    match backup.netns {
        Some(_) => Ok(backup.may_be_in(cookie)),
        None => Ok(!backups.has_another_in(cookie, key)?),
    }
}

/// Gives back what the backup has. What went with its link is done.
fn restore(backup: &Backup, netns: &Netns, ifname: &str) -> Result<()> {
    let netlink = netns.netlink()?;
    let mut errors = ErrorList::default();
    // A process in the container can give the link's name to another one.
    let link = match backup.link {
        Some(index) => netlink.find_link_by_index(index)?,
        None => netlink.find_link(ifname)?,
    };
    if let Some(link) = link.as_ref().filter(|_| !backup.before.is_empty()) {
        errors.push(backup.before.restore(netlink, link));
    }
    errors.push(sysctls::restore(netns, &values_of(backup, ifname, link.as_ref())));
    errors.finish()
}

/// The sysctls and their values. Those of the link have its name of now, and go with it.
fn values_of(backup: &Backup, ifname: &str, link: Option<&Link>) -> Vec<(Sysctl, String)> {
    let now = |sysctl: &Sysctl| match backup.link.filter(|_| sysctl.is_of_link(ifname)) {
        Some(_) => link.map(|link| sysctl.renamed(&link.name)),
        None => Some(sysctl.clone()),
    };
    backup
        .sysctls
        .iter()
        .filter_map(|saved| Some((now(&saved.sysctl)?, saved.before.clone())))
        .collect()
}

/// A process that lacks the rights could restore nothing, nor one that gets no memory or thread:
/// the backup is for the next DEL. So it is after an error of input or output, of which no sysctl
/// and no link has one for good.
fn is_for_another_time(error: &Error) -> bool {
    let rights = [Capability::NetAdmin, Capability::SysAdmin];
    error.may_pass()
        || error.has_errno(Errno::EIO)
        || error.has_errno(Errno::EPERM) && !capabilities::missing(&rights).is_empty()
}
