//! Sysctls of the container: what they were, set, compared, and given back.

use nix::errno::Errno;

use super::conf::Setting;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netns::Netns;
use crate::net::sysctl::Sysctl;
use crate::plugin::Attachment;
use crate::rollback::Rollback;

/// What stands for the link's name in configurations.
pub const PLACEHOLDER: &str = "IFNAME";

/// A sysctl that is set, and what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where the configuration has it.
    path: String,
    /// The sysctl.
    pub sysctl: Sysctl,
    /// The value before; None where no process may read it, as that of `net/ipv4/route/flush`.
    pub before: Option<String>,
    /// The value that is asked for.
    pub after: String,
}

impl Change {
    /// What is to be given back: nothing where nothing changes.
    pub fn to_undo(&self) -> Option<&str> {
        self.before.as_deref().filter(|before| !same(before, &self.after))
    }
}

/// The kernel writes lists with tabs and reads them with any white space, and reads numbers as C
/// does: 0x10 is 16.
pub fn same(one: &str, other: &str) -> bool {
    let meaning = |word| number(word).ok_or(word);
    one.split_whitespace().map(meaning).eq(other.split_whitespace().map(meaning))
}

fn number(word: &str) -> Option<i64> {
    let digits = word.trim_start_matches('-');
    let (radix, digits) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => (16, hex),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let number = i64::from_str_radix(digits, radix).ok()?;
    Some(if word.starts_with('-') { -number } else { number })
}

/// Looks at what is to be set, before anything is. What disables IPv6 is the last: the kernel takes
/// the addresses away and no undo would bring them back.
pub fn survey(at: &Attachment, settings: &[Setting]) -> Result<Vec<Change>> {
    if settings.is_empty() {
        return Ok(vec![]);
    }
    let ifname = at.ifname();
    let changes: Vec<Change> =
        at.run(|| settings.iter().map(|setting| look(setting, ifname)).collect())?;
    let is_last = |change: &Change| change.sysctl.to_string().ends_with("/disable_ipv6");
    let (last, mut changes): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(is_last);
    changes.extend(last);
    Ok(changes)
}

fn look(setting: &Setting, ifname: &str) -> Result<Change> {
    let sysctl = setting.sysctl.of_link(PLACEHOLDER, ifname);
    // A link cannot have settings by these names: they are those of all links, or of those to come.
    let text = sysctl.to_string();
    let written = setting.sysctl.to_string();
    if text
        .split('/')
        .zip(written.split('/'))
        .any(|(now, was)| now != was && matches!(now, "all" | "default"))
    {
        let problem = format!("IFNAME is {ifname:?}, expected the name of a link");
        return Err(Error::config(&setting.path, problem)
            .with_details(format_args!("{sysctl} is not of one link")));
    }
    if !sysctl.exists()? {
        return Err(Error::config(
            &setting.path,
            format_args!("{sysctl} is not a setting of the container"),
        ));
    }
    let path = setting.path.clone();
    let after = setting.value.clone();
    Ok(Change { path, before: sysctl.read_if_readable()?, sysctl, after })
}

/// Sets them in their order.
pub fn write<'a>(at: &'a Attachment, changes: &[Change], rb: &mut Rollback<'a>) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let (tried, outcome) = at.run(|| {
        let mut errors = changes
            .iter()
            .map(write_one)
            .zip(1..)
            .filter_map(|(set, tried)| Some((tried, set.err()?)));
        Ok(errors.next().map_or((changes.len(), Ok(())), |(tried, error)| (tried, Err(error))))
    })?;
    // The one that was refused, too: the kernel writes a list number by number, up to the one that
    // it cannot read.
    let undone: Vec<(Sysctl, String)> = changes[..tried]
        .iter()
        .filter_map(|change| Some((change.sysctl.clone(), change.to_undo()?.to_owned())))
        .collect();
    rb.undo("give sysctls back", move || restore(at.netns()?, &undone));
    outcome
}

fn write_one(change: &Change) -> Result<()> {
    match change.sysctl.write(&change.after) {
        // A /proc/sys that is read-only and has the value already is good enough.
        Err(_) if change.before.is_some() && change.to_undo().is_none() => Ok(()),
        // There is such a setting, so what is not there is what the value names: an algorithm, say.
        Err(e) if e.is_errno(Errno::EINVAL) || e.is_not_found() => Err(e
            .context(&change.path)
            .with_code(Code::INVALID_CONFIG)
            .with_details("the kernel refuses the value")),
        written => written.map_err(|e| e.context(&change.path)),
    }
}

/// Gives values back, the last one first; one that went with its link is done, and so is one that
/// has its value.
pub fn restore(netns: &Netns, values: &[(Sysctl, String)]) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    netns.run(|| {
        let mut errors = ErrorList::default();
        for (sysctl, value) in
            values.iter().rev().filter(|(sysctl, _)| sysctl.exists() != Ok(false))
        {
            errors.push(sysctl.ensure(value));
        }
        errors.finish()
    })
}

/// The values of these sysctls, in their order; None for one that is gone or that no process may
/// read.
pub fn read(at: &Attachment, sysctls: &[Sysctl]) -> Result<Vec<Option<String>>> {
    let read =
        |sysctl: &Sysctl| if sysctl.exists()? { sysctl.read_if_readable() } else { Ok(None) };
    if sysctls.is_empty() { Ok(vec![]) } else { at.run(|| sysctls.iter().map(read).collect()) }
}

/// Compares all that were set with the kernel. One that cannot be read cannot be compared.
pub fn verify(changes: &[Change]) -> Result<()> {
    match changes.iter().find_map(|change| Some((change, change.to_undo()?))) {
        Some((change, found)) => Err(Error::check(format!(
            "Error: Tuning configured value of {} is {}, current value is {found}",
            change.sysctl, change.after
        ))),
        None => Ok(()),
    }
}
