//! `net exec`: runs a command in a temporary namespace that is attached to a network.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::network;
use super::operator::Operator;
use crate::cni::attachment::{ContainerId, Key, NetworkName};
use crate::cni::result::Dns;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::temporary::Temporary;
use crate::runtime::chain::OnFailure;
use crate::runtime::find;
use crate::runtime::living::is_gone;
use crate::sys::process::{Child, Ended};
use crate::sys::random::Random;
use crate::sys::signals::{ForwardedSignals, Uninterrupted};
use crate::terminal::Streams;
use crate::timing;

/// The exit status if the namespace could not be made, attached or detached. This and the next two
/// are those of env(1) and nohup(1).
pub const FAILED: u8 = 125;
/// The exit status if the command was found and could not be started.
const NOT_STARTED: u8 = 126;
/// The exit status if the command was not found.
const NOT_FOUND: u8 = 127;
/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: u8 = 128;

/// Attaches, runs the command, and detaches whatever has become of it. Returns the exit status.
pub fn run(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<u8> {
    let list = network::of(operator)?;
    let signals = ForwardedSignals::begin()?;
    let netns = Temporary::create()?;
    // No earlier attachment has this id: the record of one may still be there.
    let (process, number) = (std::process::id(), Random::new().number());
    let container_id =
        operator.container_id(|| ContainerId::parse(&format!("exec-{process}-{number:016x}")))?;
    let of_container = (netns.path(), container_id);
    let at = operator.parameters_of(NetworkName::parse(&list.name)?, &list, of_container)?;
    require_free_id(operator, &at.key)?;
    let mut runtime = operator.runtime(io.stderr)?;
    let added = runtime.add(&list, &at, OnFailure::Undo);
    let result = added.map_err(|error| runtime.explain(&list, error))?;
    let mut errors = ErrorList::default();
    let words = operator.matches.get_many("command").unwrap_or_default().collect();
    let command = Started { operator, words, netns: &netns, signals: &signals };
    let ended = errors.push(command.run(result.dns(), runtime.stderr));
    runtime.handles.begin_next(); // the command may have taken hours
    errors.push(runtime.del(&list, &at));
    errors.finish()?;
    Ok(match ended {
        None => FAILED,
        Some(Ended::Exited(status)) => status,
        Some(Ended::Killed(signal)) => BY_SIGNAL + signal as u8,
    })
}

/// Refuses the id of a container that is alive: its leases and rules would be the command's, and
/// the end of the command would remove them.
fn require_free_id(operator: &Operator<'_>, key: &Key) -> Result<()> {
    let all = find::recorded(&operator.caches()?)?;
    let alive = all.into_iter().find(|recorded| {
        recorded.at.key.container_id == key.container_id && !is_gone(&recorded.at.netns)
    });
    let Some(recorded) = alive else { return Ok(()) };
    let Key { network, container_id, ifname } = &recorded.at.key;
    let problem = format!("--container-id: container {:?} is alive", container_id.as_str());
    Err(Error::new(Code::CONFLICT, problem).with_details(format_args!(
        "{ifname} of {} is attached to {network}; choose another id, or leave the option out",
        recorded.at.netns
    )))
}

/// A command in a namespace.
struct Started<'a> {
    operator: &'a Operator<'a>,
    words: Vec<&'a OsString>,
    netns: &'a Temporary,
    signals: &'a ForwardedSignals,
}

impl Started<'_> {
    /// Runs the command, unless a signal has arrived before.
    fn run(&self, dns: &Dns, stderr: &mut dyn Write) -> Result<Ended> {
        let resolv_conf = resolv_conf(dns)?;
        if Uninterrupted::was_interrupted() {
            return Err(Error::new(Code::TRY_AGAIN, "interrupted"));
        }
        let child = Child::start(|| {
            let (error, status) = self.become_command(resolv_conf.as_deref());
            self.operator.complain(&error, stderr);
            status
        })?;
        let _account = timing::open(|| "command".to_owned());
        child.wait_forwarding(self.signals)
    }

    /// Makes this process the command. Returns the error if it could not, with the exit status.
    fn become_command(&self, resolv_conf: Option<&str>) -> (Error, u8) {
        self.signals.unblock();
        if let Err(error) = self.netns.enter(resolv_conf) {
            return (error, FAILED);
        }
        let Some((program, arguments)) = self.words.split_first() else {
            return (Error::new(Code::BUG, "no command"), FAILED); // clap requires one
        };
        let error = Command::new(program).args(arguments).exec();
        let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED };
        (Error::io(format_args!("run {program:?}"), &error), status)
    }
}

/// The text of /etc/resolv.conf for the settings in a result; None if there are none.
fn resolv_conf(dns: &Dns) -> Result<Option<String>> {
    let mut lines = vec![];
    lines.extend(dns.nameservers.iter().map(|server| ("nameserver", server.clone())));
    lines.push(("domain", dns.domain.clone()));
    lines.push(("search", dns.search.join(" ")));
    lines.push(("options", dns.options.join(" ")));
    lines.retain(|(_, value)| !value.is_empty());
    // A value with a line break would add settings that the result does not have.
    if let Some((key, value)) = lines.iter().find(|(_, value)| value.contains(char::is_control)) {
        let problem = format!("dns of the result: {key} {value:?} has control characters");
        return Err(Error::new(Code::DECODE, problem));
    }
    let text: String = lines.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_result_are_lines_of_resolv_conf() {
        let dns = Dns {
            nameservers: vec!["10.1.0.1".into(), "fd00::1".into()],
            domain: "example.com".into(),
            search: vec!["a.example.com".into(), "example.com".into()],
            options: vec!["ndots:5".into(), "edns0".into()],
        };
        let text = "nameserver 10.1.0.1\nnameserver fd00::1\ndomain example.com\n\
                    search a.example.com example.com\noptions ndots:5 edns0\n";
        assert_eq!(resolv_conf(&dns).unwrap().as_deref(), Some(text));
        assert_eq!(resolv_conf(&Dns::default()).unwrap(), None);
    }

    #[test]
    fn a_line_break_in_a_setting_is_an_error() {
        let dns = Dns { domain: "a\nnameserver 192.0.2.1".into(), ..Dns::default() };
        let problem =
            r#"dns of the result: domain "a\nnameserver 192.0.2.1" has control characters"#;
        assert_eq!(resolv_conf(&dns).unwrap_err().msg, problem);
    }
}
