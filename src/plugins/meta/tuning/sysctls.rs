//! Sysctls of the container: survey, set, compare and restore.
//!
//! The host's allowlist has the sysctls that configurations may set: one pattern per line, which must
//! match the whole name as the configuration spells it. Without the file, every network sysctl may
//! be set; an empty file allows none.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use regex_lite::Regex;

use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netns::Netns;
use crate::net::sysctl::Sysctl;
use crate::plain_file;
use crate::plugin::Attachment;
use crate::plugin::part::{Part, Target};
use crate::rollback::Rollback;

/// The placeholder for the link's name in configurations.
pub const PLACEHOLDER: &str = "IFNAME";

/// A sysctl to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its path in the configuration, for errors.
    pub path: String,
    /// The name as the configuration spells it, which the allowlist must match.
    pub name: String,
    /// The sysctl, still with the placeholder for the link's name.
    pub sysctl: Sysctl,
    /// Its new value.
    pub value: String,
}

/// A sysctl to set, with its previous value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The setting's path in the configuration, for errors.
    path: String,
    /// The sysctl.
    pub sysctl: Sysctl,
    /// The previous value; `None` if no process may read it, as with `net/ipv4/route/flush`.
    pub before: Option<String>,
    /// The requested value.
    pub after: String,
}

impl Change {
    /// Returns the value to restore; `None` if the value does not change or cannot be read.
    pub fn to_undo(&self) -> Option<&str> {
        self.before.as_deref().filter(|before| !same(before, &self.after))
    }
}

/// Whether two values mean the same. The kernel writes lists with tabs and accepts any white space,
/// and parses numbers as C does: 0x10 is 16.
pub fn same(one: &str, other: &str) -> bool {
    let number = |word: &str| {
        let digits = word.trim_start_matches('-');
        let (radix, digits) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hex) => (16, hex),
            None if digits.starts_with('0') => (8, digits),
            None => (10, digits),
        };
        let magnitude = i64::from_str_radix(digits, radix).ok()?;
        Some(if word.starts_with('-') { -magnitude } else { magnitude })
    };
    let meaning = |word| number(word).ok_or(word);
    one.split_whitespace().map(meaning).eq(other.split_whitespace().map(meaning))
}

/// Reads every sysctl before any is set. The one that disables IPv6 comes last: the kernel removes
/// the addresses, and no undo would restore them.
pub fn survey(at: &Attachment, settings: &[Setting]) -> Result<Vec<Change>> {
    if settings.is_empty() {
        return Ok(vec![]);
    }
    let ifname = at.ifname();
    let changes: Vec<Change> =
        at.run(|| settings.iter().map(|setting| look(setting, ifname)).collect())?;
    let (last, mut changes): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|it| it.sysctl.to_string().ends_with("/disable_ipv6"));
    changes.extend(last);
    Ok(changes)
}

fn look(setting: &Setting, ifname: &str) -> Result<Change> {
    let sysctl = setting.sysctl.of_link(PLACEHOLDER, ifname);
    let path = &setting.path;
    let (name, was) = (sysctl.to_string(), setting.sysctl.to_string());
    // A name that no link can have stands for all links, or for future ones.
    let mut steps = name.split('/').zip(was.split('/'));
    if steps.any(|(now, was)| now != was && matches!(now, "all" | "default")) {
        let problem = format!("IFNAME is {ifname:?}, expected the name of a link");
        return Err(
            Error::config(path, problem).with_details(format_args!("{sysctl} is not of one link"))
        );
    }
    if !sysctl.exists()? {
        let problem = format_args!("{sysctl} is not a setting of the container");
        let error = Error::config(path, problem);
        let steps: Vec<&str> = name.split('/').collect();
        let is_of_another_link =
            matches!(steps[..], ["net", _, "conf" | "neigh", link, ..] if link != ifname);
        return Err(if is_of_another_link {
            error.with_details(format_args!("IFNAME in its name stands for {ifname:?}"))
        } else {
            error
        });
    }
    let before = sysctl.read_if_readable()?;
    Ok(Change { path: path.clone(), before, sysctl, after: setting.value.clone() })
}

/// Sets the sysctls in order.
pub fn write<'a>(at: &'a Attachment, changes: &[Change], rb: &mut Rollback<'a>) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let (tried, outcome) = at.run(|| {
        for (tried, change) in (1..).zip(changes) {
            if let Err(error) = write_one(change) {
                return Ok((&changes[..tried], Err(error)));
            }
        }
        Ok((changes, Ok(())))
    })?;
    // Undo the refused one too: the kernel writes a list number by number, up to the one that it
    // cannot parse.
    let undone = |change: &Change| Some((change.sysctl.clone(), change.to_undo()?.to_owned()));
    let undone: Vec<(Sysctl, String)> = tried.iter().filter_map(undone).collect();
    rb.undo("give sysctls back", move || restore(at.netns()?, &undone));
    outcome
}

fn write_one(change: &Change) -> Result<()> {
    match change.sysctl.write(&change.after) {
        // A read-only /proc/sys is good enough if it has the value already.
        Err(_) if change.before.is_some() && change.to_undo().is_none() => Ok(()),
        // The sysctl exists, so "not found" is about the value: an unknown algorithm, say.
        Err(error) if error.is_errno(Errno::EINVAL) || error.is_not_found() => Err(error
            .context(&change.path)
            .with_code(Code::INVALID_CONFIG)
            .with_details("the kernel refuses the value")),
        written => written.map_err(|error| error.context(&change.path)),
    }
}

/// Restores values, the last one first. One that went away with its link, or that is unchanged,
/// needs no restoring.
pub fn restore(netns: &Netns, values: &[(Sysctl, String)]) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    netns.run(|| {
        let mut errors = ErrorList::default();
        let is_there = |(sysctl, _): &&(Sysctl, String)| sysctl.exists() != Ok(false);
        for (sysctl, value) in values.iter().rev().filter(is_there) {
            errors.push(sysctl.ensure(value));
        }
        errors.finish()
    })
}

/// Returns the values of these sysctls, in order; `None` for one that is gone or that no process
/// may read.
pub fn read(at: &Attachment, sysctls: &[Sysctl]) -> Result<Vec<Option<String>>> {
    if sysctls.is_empty() {
        return Ok(vec![]);
    }
    let read = |sysctl: &Sysctl| match sysctl.exists()? {
        true => sysctl.read_if_readable(),
        false => Ok(None),
    };
    at.run(|| sysctls.iter().map(read).collect())
}

/// ADD makes all at once, by [`write`]; its survey is what is compared.
impl<'a> Part<'a> for &Change {
    fn what(&self) -> String {
        format!("set sysctl {} to {} in the container", self.sysctl, self.after)
    }

    fn make(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        on.at.run(|| write_one(self))
    }

    /// One that cannot be read is not compared.
    fn compare(&self, _: Target<'a>) -> Result<()> {
        let (Change { sysctl, after, .. }, Some(found)) = (self, self.to_undo()) else {
            return Ok(());
        };
        Err(Error::check(format!(
            "Error: Tuning configured value of {sysctl} is {after}, current value is {found}"
        )))
    }
}

/// Path of the allowlist, as in the reference.
pub const ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

/// Requires that every setting is allowed, and reports the first that is not.
pub fn require_allowed(settings: &[Setting]) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = plain_file::read_configuration(Path::new(ALLOWLIST))
        .and_then(|text| String::from_utf8(text).map_err(io::Error::other));
    match text {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(format_args!("read {ALLOWLIST}"), &e)),
        Ok(text) => Allowlist::parse(&text)?.require(settings),
    }
}

struct Allowlist<'a>(Vec<(&'a str, Regex)>);

impl<'a> Allowlist<'a> {
    /// Parses the file. A malformed pattern is an error even if another one allows the sysctl: its
    /// intent is unknown.
    fn parse(text: &'a str) -> Result<Allowlist<'a>> {
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
        let pattern = |(number, line)| match whole_name(line) {
            Ok(whole) => Ok((line, whole)),
            Err(problem) => Err(Error::new(
                Code::INVALID_CONFIG,
                format!("{ALLOWLIST}: line {number}: {line:?} is not a pattern: {problem}"),
            )),
        };
        lines.map(pattern).collect::<Result<_>>().map(Allowlist)
    }

    fn require(&self, settings: &[Setting]) -> Result<()> {
        let allows = |name: &str| self.0.iter().any(|(_, pattern)| pattern.is_match(name));
        let Some(Setting { path, name, .. }) = settings.iter().find(|it| !allows(&it.name)) else {
            return Ok(());
        };
        let lines: Vec<&str> = self.0.iter().map(|(line, _)| *line).collect();
        let lines = lines.join(" ");
        let problem = format_args!("no line of {ALLOWLIST} is a pattern for the whole name");
        Err(Error::config(path, problem).saying(format_args!(
            "Sysctl {name} is not allowed. Only the following sysctls are allowed: [{lines}]"
        )))
    }
}

/// Compiles a pattern that must match the whole name. The reference searches for it anywhere in the
/// name, so `net.core.x` would allow `net.core.xyz`.
fn whole_name(pattern: &str) -> Result<Regex, regex_lite::Error> {
    Regex::new(pattern)?; // on its own first: `a)|(b` would close the group below
    Regex::new(&format!(r"\A(?:{pattern})\z"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::sysctl::Sysctl;

    fn refused(list: &str, names: &[&str]) -> Option<String> {
        let setting = |name: &&str| Setting {
            path: format!("sysctl.{name}"),
            name: (*name).to_owned(),
            sysctl: Sysctl::parse(name).unwrap(),
            value: String::new(),
        };
        let settings: Vec<Setting> = names.iter().map(setting).collect();
        Allowlist::parse(list)
            .and_then(|list| list.require(&settings))
            .map_err(|e| e.msg.clone())
            .err()
    }

    #[test]
    fn the_whole_name_matches_one_of_the_patterns() {
        let list = "^net.ipv4.conf.IFNAME.[a-z_]*$\n\n  net\\.core\\.somaxconn  \nnet.a|net.b\n";
        let allowed = ["net.ipv4.conf.IFNAME.arp_filter", "net.core.somaxconn", "net.a", "net.b"];
        assert_eq!(refused(list, &allowed), None);
        for bad in [
            "net.core.somaxconn2",
            "net.core.netdev",
            "net.ab",
            "net.ipv4.conf.IFNAME.arp_filter.x",
            "net.x.net.b",
        ] {
            assert!(
                refused(list, &["net.a", bad])
                    .unwrap()
                    .contains(&format!("Sysctl {bad} is not allowed")),
                "{bad}"
            );
        }
        assert!(refused("", &["net.a"]).unwrap().ends_with("allowed: []"));
    }

    #[test]
    fn a_pattern_that_is_none_is_named_and_allows_nothing() {
        for (list, line) in [("net.a\n(", 2), ("net.a)|(net.b", 1), ("\n[", 2), ("net.a(?x)#", 1)] {
            let error = refused(list, &["net.a"]).unwrap();
            assert!(error.starts_with(&format!("{ALLOWLIST}: line {line}: ")), "{error}");
        }
    }
}
