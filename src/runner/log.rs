//! One line for each call of a plugin, to systemd's journal or, where there is none, to stderr:
//! which plugin did what to which attachment, how long it took, and how it ended. Off unless
//! CNI_MULTI_LOG or a file switches it on. A line that cannot be written is lost, never waited for.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::stat::{SFlag, stat};

use self::fields::Fields;
use crate::cni::env::{Command, Environment};
use crate::error::Result;
use crate::service::log::warn_unless_blocked;
use crate::sys::journald::Delivery;

mod fields;
mod traceparent;

/// The variable that switches the log on, if it is `1`, or off, if it is anything else.
pub const VARIABLE: &str = "CNI_MULTI_LOG";

/// The file that switches the log on where the variable is not set. Its content is not read, so its
/// owner does not matter; only root writes to the directory.
pub const FILE: &str = "/etc/cni-multi/log";

/// What an execution has learned by its end.
#[derive(Debug, Default)]
pub struct Facts {
    /// `cniVersion` of the configuration.
    pub config_version: Option<String>,
    /// `name` of the configuration.
    pub network: String,
    /// The addresses of the result.
    pub addresses: Vec<IpAddr>,
}

/// The line of a call, which is written when the call ends.
pub struct Line<'a> {
    plugin: &'static str,
    env: &'a Environment,
    start: Instant,
}

impl Line<'_> {
    /// Begins to log a call; None if the log is off.
    pub fn begin<'a>(plugin: &'static str, env: &'a Environment) -> Option<Line<'a>> {
        is_on(env).then(|| Line { plugin, env, start: Instant::now() })
    }

    /// Writes the line of the call, which ends now.
    pub fn end(&self, facts: &Facts, outcome: &Result<()>) {
        let fields = self.fields(facts, outcome, self.start.elapsed());
        let priority = if outcome.is_ok() { INFO } else { ERROR };
        if fields.to_entry(priority).send() == Delivery::NoJournal {
            warn_unless_blocked(fields.to_line());
        }
    }

    fn fields(&self, facts: &Facts, outcome: &Result<()>, took: Duration) -> Fields {
        let mut fields = Fields::default();
        let op = self.env.get("CNI_COMMAND");
        fields.add("plugin", self.plugin);
        fields.add("op", &op);
        fields.add("net", &facts.network);
        if Command::parse(&op).is_none_or(Command::is_of_attachment) {
            fields.add("id", &self.env.get("CNI_CONTAINERID"));
            fields.add("if", &self.env.get("CNI_IFNAME"));
        }
        fields.add("ms", &format!("{:.1}", took.as_secs_f64() * 1000.0));
        fields.add("code", &outcome.as_ref().map_or_else(|e| e.code.0, |()| 0).to_string());
        fields.add_addresses(&facts.addresses);
        fields.add("traceparent", &traceparent::of(self.env).unwrap_or_default());
        if let Err(error) = outcome {
            fields.add_message(&error.to_string());
        }
        fields
    }
}

/// The priorities of syslog(3).
const INFO: &str = "6";
const ERROR: &str = "3";

fn is_on(env: &Environment) -> bool {
    match env.get(VARIABLE).as_str() {
        // One system call: std's metadata makes two where there is no file.
        "" => stat(FILE).is_ok_and(|it| it.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()),
        word => word == "1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    fn line(env: &[(&str, &str)], facts: &Facts, outcome: &Result<()>) -> String {
        let env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let line = Line { plugin: "bridge", env: &env, start: Instant::now() };
        line.fields(facts, outcome, Duration::from_micros(3_160)).to_line()
    }

    #[test]
    fn a_line_has_the_fields_that_the_call_has() {
        let facts = Facts {
            network: "pods".into(),
            addresses: vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ..Facts::default()
        };
        let add = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
        assert_eq!(
            line(&add, &facts, &Ok(())),
            "plugin=bridge op=ADD net=pods id=c1 if=eth0 ms=3.2 code=0 ip=10.1.0.2,fd00::2"
        );
        let failed = Err(Error::new(Code::KERNEL, "create link \"a\"").with_details("see dmesg"));
        let status = [("CNI_COMMAND", "STATUS"), ("CNI_CONTAINERID", "stale")];
        assert_eq!(
            line(&status, &Facts::default(), &failed),
            r#"plugin=bridge op=STATUS ms=3.2 code=100 msg="create link \"a\"; see dmesg""#
        );
    }

    #[test]
    fn the_variable_alone_decides_where_it_is_set() {
        for (word, on) in [("1", true), ("0", false), ("yes", false)] {
            assert_eq!(is_on(&Environment::default().with(VARIABLE, word)), on, "{word}");
        }
    }
}
