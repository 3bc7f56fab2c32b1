//! One plugin execution: environment and stdin in, one JSON document and an exit status out. No
//! plugin writes to stdout itself.

use std::io::{self, ErrorKind, IsTerminal as _, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;

use crate::cni::answer::{ErrorObject, Versions};
use crate::cni::attachment::Key;
use crate::cni::conf::{self, Config, ValidAttachments, version_of};
use crate::cni::env::{Command, Environment, Parameters};
use crate::cni::json::{self, Value};
use crate::cni::result::{AddResult, INDENT};
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::net::netns::Netns;
use crate::plain_file::LARGEST_CONFIGURATION;
use crate::plugin::{Attachment, Call, Context, Detachment, Entry, Handles, Kind};
use crate::repair::Repairs;
use crate::steps;
use crate::terminal::{self, Streams};

use self::caught::caught;
use self::log::{Facts, Line};

mod caught;
pub mod counts;
pub mod log;

/// The version of the reference plugins whose behaviour we match.
pub const REFERENCE_VERSION: &str = "1.9.1";

/// The usual upper limit of a configuration's size, used as the buffer's initial capacity.
const USUAL_CONFIG: usize = 8 * 1024;

/// Runs `entry` as the process that a runtime started; returns the exit status.
pub fn run(
    entry: &'static Entry,
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    if env.get("CNI_COMMAND").is_empty() {
        return about(entry, io.stderr);
    }
    u8::from(Execution { entry, plugins, env, handles: &Rc::default() }.run(io).is_err())
}

/// One execution of a plugin, possibly one of several in this process that share their handles.
pub struct Execution<'a> {
    /// The plugin.
    pub entry: &'static Entry,
    /// The plugins that are compiled in.
    pub plugins: &'static [Entry],
    /// The environment.
    pub env: &'a Environment,
    /// The handles to the kernel.
    pub handles: &'a Rc<Handles>,
}

impl Execution<'_> {
    /// Runs the operation that CNI_COMMAND names; returns the error that it has printed.
    pub fn run(&self, io: &mut Streams<'_>) -> Result<()> {
        let mut facts = Facts::default();
        let outcome = self.logged(&mut facts, |facts| self.execute(io, facts));
        counts::add(self.entry.name, &self.env.get("CNI_COMMAND"), &outcome);
        outcome.inspect_err(|error| {
            let version = facts.config_version.as_deref().unwrap_or(version::CURRENT);
            if let Err(failed) = terminal::print(io.stdout, &error_object(error, version)) {
                let _ = writeln!(io.stderr, "{failed}: {error}"); // no other place is left
            }
        })
    }

    /// Runs GC with a list that the caller has read, and that records what is removed. One that only
    /// looks is not logged.
    pub fn collect(&self, config: Vec<u8>, valid: &ValidAttachments) -> Result<()> {
        let facts = &mut Facts::default();
        if valid.is_look() {
            return caught(|| self.collect_stale(config, valid, facts));
        }
        self.logged(facts, |facts| self.collect_stale(config, valid, facts))
    }

    fn collect_stale(
        &self,
        config: Vec<u8>,
        valid: &ValidAttachments,
        facts: &mut Facts,
    ) -> Result<()> {
        let config = Config::parse(config)?;
        facts.network = config.name.to_string();
        require_version(Command::Gc, &config.version, self.entry.versions)?;
        let path = self.env.get("CNI_PATH");
        let cx = self.context(&config, "", &path);
        self.entry.run(&cx, Call::Gc(valid)).map(drop)
    }

    /// Repairs an attachment by its recorded configuration.
    pub fn repair(&self, config: Vec<u8>, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let config = Config::parse(config)?;
        let [args, path] = ["CNI_ARGS", "CNI_PATH"].map(|name| self.env.get(name));
        let cx = self.context(&config, &args, &path);
        caught(|| self.entry.repair(&cx, at, repairs))
    }

    /// Runs the work of a call, and writes its line if the log is on.
    fn logged(&self, facts: &mut Facts, work: impl FnOnce(&mut Facts) -> Result<()>) -> Result<()> {
        let line = Line::begin(self.entry.name, self.env);
        let outcome = caught(|| work(facts));
        if let Some(line) = line {
            line.end(facts, &outcome);
        }
        outcome
    }

    /// Checks in the reference's order: environment, stdin, configuration, command, version. Then
    /// does the work.
    fn execute(&self, io: &mut Streams<'_>, facts: &mut Facts) -> Result<()> {
        let parameters = Parameters::read(self.env)?;
        if parameters.command == Ok(Command::Version) {
            return terminal::print(
                io.stdout,
                &(json::text(&Versions::of(self.entry.versions)) + "\n"),
            );
        }
        let text = read_config(io.stdin)?;
        let document = conf::document(&text)?;
        facts.config_version = version_of(&document).ok();
        facts.network = document.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let config = Config::of(text, document)?;
        let command = parameters.command.as_ref().copied().map_err(|word| {
            Error::new(Code::INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {word}"))
        })?;
        require_version(command, &config.version, self.entry.versions)?;
        // CNI_ARGS belongs to an attachment; for other commands the variable is ignored.
        let args = if parameters.container_id.is_some() { parameters.args.as_str() } else { "" };
        let cx = self.context(&config, args, &parameters.path);
        facts.addresses = perform(self.entry, &cx, &parameters, io.stdout)?;
        Ok(())
    }

    /// The context of this execution; `path` is CNI_PATH.
    fn context<'c>(&'c self, config: &'c Config, args: &'c str, path: &str) -> Context<'c> {
        let path = path.split(':').map(PathBuf::from).collect();
        Context::new(self.plugins, config, self.env, args, path).sharing(self.handles)
    }
}

/// Prints what the plugin is, for a call without CNI_COMMAND. nerdctl reads the rest of the first
/// line as one semantic version, Nomad takes the first word that parses as one: so print the
/// reference's version, with ours as build metadata. The status is the reference's 0, and 2 at a
/// terminal, where a person has made a mistake.
fn about(entry: &Entry, stderr: &mut dyn Write) -> u8 {
    let versions = entry.versions.join(", ");
    let _ = writeln!(
        stderr,
        "CNI {} plugin {}\nCNI protocol versions supported: {versions}",
        entry.name,
        plugin_version()
    );
    if !io::stderr().is_terminal() {
        return 0; // whether the write succeeded or not
    }
    let _ = writeln!(
        stderr,
        "a container runtime runs this plugin: it sets CNI_COMMAND and writes a configuration to stdin\n\
         `cni-multi example {}` prints a network, and `cni-multi net add` attaches a namespace to one",
        entry.name
    ); // the exit status says it too
    2
}

/// The version of the reference plugins we match, with ours as build metadata:
/// `v1.9.1+cni-multi.0.1.0`.
pub fn plugin_version() -> String {
    format!("v{REFERENCE_VERSION}+cni-multi.{}", env!("CARGO_PKG_VERSION"))
}

/// The error object of specification section 5.
pub fn error_object(error: &Error, config_version: &str) -> String {
    json::indented_text(&ErrorObject::of(error, config_version), INDENT)
}

fn read_config(stdin: &mut dyn Read) -> Result<Vec<u8>> {
    // An empty Vec would be filled by reads of 32, 32, 64, 128 … bytes.
    let mut text = Vec::with_capacity(USUAL_CONFIG);
    stdin.take(LARGEST_CONFIGURATION as u64 + 1).read_to_end(&mut text).map_err(unread)?;
    if text.len() > LARGEST_CONFIGURATION {
        let limit = LARGEST_CONFIGURATION >> 20;
        let expected = format!("expected a configuration of at most {limit} MiB");
        return Err(unread(ErrorKind::FileTooLarge.into()).with_details(expected));
    }
    Ok(text)
}

fn unread(error: std::io::Error) -> Error {
    Error::io("error reading from stdin", &error)
}

/// Runs the command; returns the addresses of the result.
fn perform(
    entry: &Entry,
    cx: &Context<'_>,
    parameters: &Parameters,
    stdout: &mut dyn Write,
) -> Result<Vec<IpAddr>> {
    match parameters.command {
        Ok(Command::Add) => return add(entry, cx, &attachment(cx, parameters)?, stdout),
        Ok(Command::Get) => return get(entry, cx, &attachment(cx, parameters)?, stdout),
        Ok(Command::Check) => entry.run(cx, Call::Check(&attachment(cx, parameters)?)).map(drop)?,
        Ok(Command::Del) => entry.run(cx, Call::Del(&detachment(cx, parameters)?)).map(drop)?,
        Ok(Command::Status) => entry.run(cx, Call::Status).map(drop)?,
        // A runtime that sends no list of valid attachments has not declared any of them stale.
        Ok(Command::Gc) => {
            if let Some(valid) = cx.config.valid_attachments()? {
                entry.run(cx, Call::Gc(&valid))?;
            }
        }
        Ok(Command::Version) | Err(_) => {
            return Err(Error::new(Code::BUG, "VERSION was answered before"));
        }
    }
    Ok(vec![])
}

fn addresses(result: &AddResult) -> Vec<IpAddr> {
    result.ips.iter().map(|ip| ip.address.addr()).collect()
}

fn require_version(command: Command, version: &str, supported: &[&str]) -> Result<()> {
    let least = match command {
        Command::Check | Command::Get => version::WITH_CHECK,
        Command::Gc | Command::Status => version::WITH_GC,
        Command::Add | Command::Del | Command::Version => {
            return version::require_supported(version, supported);
        }
    };
    version::require_at_least(least, command.as_str(), version, supported)
}

fn key(cx: &Context<'_>, parameters: &Parameters) -> Result<Key> {
    let (Some(container_id), Some(ifname)) =
        (parameters.container_id.clone(), parameters.ifname.clone())
    else {
        return Err(Error::new(Code::BUG, "an attachment's name was not checked"));
    };
    Ok(Key { network: cx.config.name.clone(), container_id, ifname })
}

fn attachment(cx: &Context<'_>, parameters: &Parameters) -> Result<Attachment> {
    // The plugin decides whether a namespace that cannot be opened matters: an IPAM plugin never
    // enters it.
    let netns = cx.handles().netns(&parameters.netns, |path| Ok(Netns::open(path).ok()))?;
    if parameters.command == Ok(Command::Add) {
        refuse_own(netns.as_deref(), parameters)?;
    }
    Ok(Attachment::new(key(cx, parameters)?, parameters.netns.clone(), netns))
}

fn detachment(cx: &Context<'_>, parameters: &Parameters) -> Result<Detachment> {
    let netns = cx.handles().netns(&parameters.netns, Netns::open_if_there)?;
    refuse_own(netns.as_deref(), parameters)?;
    let prev_result = cx.config.prev_result().ok().flatten(); // helpful if readable, never required
    Ok(Detachment {
        key: key(cx, parameters)?,
        netns_path: parameters.netns.clone(),
        netns,
        prev_result,
    })
}

/// Rejects a container namespace that is the plugin's own. The reference checks this after it has
/// worked there; we check before.
fn refuse_own(netns: Option<&Netns>, parameters: &Parameters) -> Result<()> {
    let Some(netns) = netns.filter(|_| !parameters.netns_override) else { return Ok(()) };
    let own = Netns::current()
        .map_err(|e| e.context("get plugin's netns failed").with_code(Code::INVALID_NETNS))?;
    if !netns.is_same_as(&own)? {
        return Ok(());
    }
    let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
    Err(Error::new(Code::INVALID_NETNS, msg)
        .with_details(format_args!("CNI_NETNS is {:?}", parameters.netns)))
}

/// Runs ADD, which is complete when its result is written: if the write fails, the attachment is
/// undone.
fn add(
    entry: &Entry,
    cx: &Context<'_>,
    at: &Attachment,
    stdout: &mut dyn Write,
) -> Result<Vec<IpAddr>> {
    let result = entry.run(cx, Call::Add(at))?;
    let addresses = addresses(&result);
    print_result(cx, result.clone(), stdout).map_err(|error| {
        let at = Detachment { prev_result: Some(result), ..Detachment::from(at) };
        match entry.run(cx, Call::Del(&at)) {
            Ok(_) => error.undone(),
            Err(failed) => error.with_details(format_args!("undo: {failed}")),
        }
    })?;
    Ok(addresses)
}

fn print_result(cx: &Context<'_>, result: AddResult, stdout: &mut dyn Write) -> Result<()> {
    let version = &cx.config.version;
    let document = result.into_document(version).map_err(|e| {
        Error::new(Code::INVALID_CONFIG, e.to_string())
            .with_details(format_args!("the result has no form in cniVersion {version}"))
    })?;
    terminal::print(stdout, &document.to_text())
}

/// GET of specification 0.4.0-dev: prints the result of ADD again, if the IPAM plugin still holds
/// its addresses.
fn get(
    entry: &Entry,
    cx: &Context<'_>,
    at: &Attachment,
    stdout: &mut dyn Write,
) -> Result<Vec<IpAddr>> {
    let held = match entry.kind {
        Kind::Ipam => entry.run(cx, Call::Check(at)).map(drop),
        Kind::Main | Kind::Meta => steps::ipam::check_if_any(cx, at),
    };
    held.map_err(|e| unknown(at, &e.to_string()))?;
    let missing = "prevResult is missing: there was no ADD, or a DEL since";
    let result = cx.config.prev_result()?.ok_or_else(|| unknown(at, missing))?;
    let addresses = addresses(&result);
    print_result(cx, result, stdout)?;
    Ok(addresses)
}

fn unknown(at: &Attachment, details: &str) -> Error {
    let msg = format!(
        "unknown container {:?}: no attachment {:?} to network {:?}",
        at.key.container_id.as_str(),
        at.ifname(),
        at.key.network.as_str()
    );
    Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(details)
}
