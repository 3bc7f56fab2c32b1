//! The host's allowlist of sysctls that configurations may set: one pattern per line, which must
//! match the whole name as the configuration spells it. Without the file, every network sysctl may
//! be set; an empty file allows none.

use std::io;
use std::path::Path;

use regex_lite::Regex;

use super::sysctls::Setting;
use crate::error::{Code, Error, Result};
use crate::plain_file;

/// Path of the allowlist, as in the reference.
pub const PATH: &str = "/etc/cni/tuning/allowlist.conf";

/// Requires that every setting is allowed, and reports the first that is not.
pub fn require(settings: &[Setting]) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = plain_file::read_configuration(Path::new(PATH))
        .and_then(|text| String::from_utf8(text).map_err(io::Error::other));
    match text {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(format_args!("read {PATH}"), &e)),
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
                format!("{PATH}: line {number}: {line:?} is not a pattern: {problem}"),
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
        let problem = format_args!("no line of {PATH} is a pattern for the whole name");
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
            assert!(error.starts_with(&format!("{PATH}: line {line}: ")), "{error}");
        }
    }
}
