//! The environment of a call (specification, section 2, "Parameters"), checked in the order of the
//! reference.

use std::ffi::{OsStr, OsString};

use super::attachment::{ContainerId, IfName};
use crate::error::{Code, Error, Result};

/// The operation that a plugin is to perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach a container to a network.
    Add,
    /// Verify an attachment.
    Check,
    /// Detach.
    Del,
    /// Print the result of an attachment again: specification 0.4.0-dev, replaced by CHECK.
    Get,
    /// Remove everything that belongs to no valid attachment.
    Gc,
    /// Report whether ADD can be served.
    Status,
    /// Print the supported versions.
    Version,
}

impl Command {
    /// The word in CNI_COMMAND.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Check => "CHECK",
            Command::Del => "DEL",
            Command::Get => "GET",
            Command::Gc => "GC",
            Command::Status => "STATUS",
            Command::Version => "VERSION",
        }
    }

    /// The operation of this word in CNI_COMMAND.
    pub fn parse(word: &str) -> Option<Command> {
        use Command::*;
        [Add, Check, Del, Get, Gc, Status, Version]
            .into_iter()
            .find(|command| command.as_str() == word)
    }

    /// Whether the operation is about an attachment, which CNI_CONTAINERID and CNI_IFNAME name.
    pub fn is_of_attachment(self) -> bool {
        matches!(self, Command::Add | Command::Check | Command::Del | Command::Get)
    }
}

/// All variables of the process. Delegated plugins inherit every one of them.
#[derive(Clone, Debug, Default)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Environment {
        std::env::vars_os().collect()
    }

    /// The variable's text, empty if unset: the protocol does not distinguish the two.
    pub fn get(&self, name: &str) -> String {
        let found = self.0.iter().rev().find(|(key, _)| key == OsStr::new(name));
        found.map(|(_, value)| value.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The same environment with one variable set.
    #[must_use]
    pub fn with(&self, name: &str, value: impl Into<OsString>) -> Environment {
        let others = self.0.iter().filter(|(key, _)| key != OsStr::new(name)).cloned();
        others.chain(std::iter::once((name.into(), value.into()))).collect()
    }

    /// Every pair.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(key, value)| (key.as_os_str(), value.as_os_str()))
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(pairs: I) -> Environment {
        Environment(pairs.into_iter().collect())
    }
}

/// The parameters of a call. Parameters that the command does not require may be empty.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// CNI_COMMAND.
    pub command: Result<Command, String>,
    /// CNI_CONTAINERID, checked.
    pub container_id: Option<ContainerId>,
    /// CNI_NETNS as given: results repeat it verbatim.
    pub netns: String,
    /// CNI_IFNAME, checked.
    pub ifname: Option<IfName>,
    /// CNI_ARGS.
    pub args: String,
    /// CNI_PATH.
    pub path: String,
    /// CNI_NETNS_OVERRIDE: the container's namespace may be the plugin's own.
    pub netns_override: bool,
}

impl Parameters {
    /// Reads and checks the variables in the reference's order: the first invalid one is an error
    /// at once, missing ones are collected.
    ///
    /// An unknown word in CNI_COMMAND is kept, because the configuration is checked before it is
    /// refused.
    pub fn read(env: &Environment) -> Result<Parameters> {
        let mut reader = Reader { env, missing: vec![] };
        let word = reader.read("CNI_COMMAND", true);
        let command = Command::parse(&word).ok_or(word);
        let of_attachment = command.as_ref().is_ok_and(|c| c.is_of_attachment());
        let id = reader.read("CNI_CONTAINERID", of_attachment);
        let container_id =
            (of_attachment && !id.is_empty()).then(|| ContainerId::parse(&id)).transpose()?;
        let netns = reader.read("CNI_NETNS", of_attachment && command != Ok(Command::Del));
        let name = reader.read("CNI_IFNAME", of_attachment);
        let ifname =
            (of_attachment && !name.is_empty()).then(|| IfName::parse(&name)).transpose()?;
        let args = reader.read("CNI_ARGS", false);
        let path = reader.read("CNI_PATH", command.as_ref().is_ok_and(|c| *c != Command::Version));
        if !reader.missing.is_empty() {
            let msg = format!("required env variables [{}] missing", reader.missing.join(","));
            return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
        }
        let netns_override = env.has_netns_override();
        Ok(Parameters { command, container_id, netns, ifname, args, path, netns_override })
    }
}

impl Environment {
    /// Whether CNI_NETNS_OVERRIDE allows the container's namespace to be the plugin's own.
    pub fn has_netns_override(&self) -> bool {
        matches!(self.get("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true")
    }
}

/// Reads variables, and collects the names of missing ones.
struct Reader<'a> {
    env: &'a Environment,
    missing: Vec<&'static str>,
}

impl Reader<'_> {
    fn read(&mut self, name: &'static str, required: bool) -> String {
        let value = self.env.get(name);
        if value.is_empty() && required {
            self.missing.push(name);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Parameters, (u32, String)> {
        let env = pairs.iter().map(|(key, value)| (key.into(), value.into())).collect();
        Parameters::read(&env).map_err(|e| (e.code.0, e.msg.clone()))
    }

    #[test]
    fn missing_variables_are_listed_in_order() {
        let missing = |list: &str| Err((4, format!("required env variables [{list}] missing")));
        assert_eq!(
            read(&[("CNI_COMMAND", "ADD")]).map(|_| ()),
            missing("CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH")
        );
        assert_eq!(
            read(&[("CNI_COMMAND", "DEL"), ("CNI_PATH", "/")]).map(|_| ()),
            missing("CNI_CONTAINERID,CNI_IFNAME")
        );
        assert_eq!(read(&[("CNI_COMMAND", "GC")]).map(|_| ()), missing("CNI_PATH"));
        assert_eq!(read(&[("CNI_COMMAND", "")]).map(|_| ()), missing("CNI_COMMAND"));
        assert!(read(&[("CNI_COMMAND", "VERSION")]).is_ok());
        assert_eq!(read(&[("CNI_COMMAND", "NOPE")]).unwrap().command, Err("NOPE".into()));
    }

    #[test]
    fn an_invalid_id_is_told_before_a_missing_path() {
        let error = read(&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "some-%%id")]).unwrap_err();
        assert_eq!(error, (4, "invalid characters in containerID".into()));
        assert!(
            read(&[("CNI_COMMAND", "GC"), ("CNI_CONTAINERID", "%"), ("CNI_PATH", "/")]).is_ok()
        );
    }

    #[test]
    fn the_override_is_1_or_true_in_any_case() {
        for (text, on) in [("1", true), ("TRUE", true), ("true", true), ("yes", false), ("", false)]
        {
            let read = read(&[("CNI_COMMAND", "VERSION"), ("CNI_NETNS_OVERRIDE", text)]).unwrap();
            assert_eq!(read.netns_override, on, "{text}");
        }
    }
}
