//! The plugin trait: six operations, none with a default, over a typed configuration.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::ArgMatches;
use serde::de::DeserializeOwned;

use crate::cni::attachment::Key;
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::delegate;
use crate::cni::env::{Command, Environment};
use crate::cni::result::AddResult;
use crate::deadline::Deadline;
use crate::error::{Code, Result, errno_text};
use crate::net::netlink::Netlink;
use crate::net::netns::Netns;
use crate::repair::Repairs;
use crate::terminal::Streams;
use crate::terminal::manual::Manual;
use crate::timing;

pub mod handles;
pub mod leases;
pub mod owned;
pub mod part;
mod postponed;
pub use self::handles::Handles;
use self::handles::get_or_try_init;
use self::leases::LeaseStore;

/// The plugin groups of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Creates an interface.
    Main,
    /// Allocates addresses; called by another plugin.
    Ipam,
    /// Changes what another plugin created.
    Meta,
}

impl Kind {
    /// The group's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Main => "main",
            Kind::Ipam => "ipam",
            Kind::Meta => "meta",
        }
    }
}

/// A plugin's typed configuration: every key the plugin reads, with `#[serde(default)]`. DEL and GC
/// use the default value if the configuration does not decode.
pub trait PluginConf: DeserializeOwned + Default {
    /// What each key means: rows `key | type | default | meaning` in Markdown, one a line. The
    /// plugin's page, `cni-multi schema`, `--help` and the manual have it from here.
    const KEYS: &'static [&'static str];

    /// Checks what the types cannot express; no kernel access. Not called for DEL and GC, which
    /// must work with whatever configuration is left.
    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        Ok(())
    }

    /// Checks what only ADD refuses and CHECK and STATUS accept; no kernel access.
    fn validate_add(&self, _cx: &Context<'_>) -> Result<()> {
        Ok(())
    }

    /// Checks what ADD leaves to the kernel, as far as the configuration alone shows it: for
    /// `cni-multi validate`, which changes nothing.
    fn validate_alone(&self) -> Result<()> {
        Ok(())
    }
}

/// A plugin. All operations are required: an optional operation is forgotten.
pub trait Plugin {
    /// The `type` in configurations and the name of the symlink.
    const NAME: &'static str;
    /// The plugin's group.
    const KIND: Kind;
    /// One line for `cni-multi list --long` and the README.
    const ABOUT: &'static str;
    /// The specification versions that the plugin supports.
    const VERSIONS: &'static [&'static str] = crate::cni::version::ALL;
    /// Whether releasing an address requires the interface, because the plugin sends packets over
    /// it.
    const NEEDS_LINK: bool = false;
    /// The operator commands that the plugin defines.
    const COMMANDS: &'static [OperatorCommand] = &[];
    /// The leases that the plugin keeps, for operators.
    const LEASES: Option<&'static dyn LeaseStore> = None;
    /// Whether it takes the place of another program of its name, which does other work: an
    /// installation leaves that program alone.
    const IS_ALIAS: bool = false;
    /// Its configuration.
    type Conf: PluginConf;

    /// Attaches the container. A failure leaves nothing behind.
    fn add(cx: &Context<'_>, conf: &Self::Conf, at: &Attachment) -> Result<AddResult>;
    /// Compares what ADD created, as prevResult describes it, with the kernel.
    fn check(cx: &Context<'_>, conf: &Self::Conf, at: &Attachment) -> Result<()>;
    /// Detaches the container: does all it can and treats "not there" as done.
    fn del(cx: &Context<'_>, conf: &Self::Conf, at: &Detachment) -> Result<()>;
    /// Whether ADD can be served now; codes 50 and 51.
    fn status(cx: &Context<'_>, conf: &Self::Conf) -> Result<()>;
    /// Removes everything that belongs to this network and to no valid attachment.
    fn gc(cx: &Context<'_>, conf: &Self::Conf, valid: &ValidAttachments) -> Result<()>;
    /// Makes again what ADD made on the host and is missing, by the configuration and the prevResult
    /// of the attachment's record. Running it twice changes nothing more. It leaves everything in
    /// the container as it is, and allocates no address. No runtime calls it: `cni-multi net sync`
    /// does, in process.
    fn repair(
        cx: &Context<'_>,
        conf: &Self::Conf,
        at: &Attachment,
        repairs: &Repairs,
    ) -> Result<()>;
}

/// An operation with its subject.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    /// ADD.
    Add(&'a Attachment),
    /// CHECK.
    Check(&'a Attachment),
    /// DEL.
    Del(&'a Detachment),
    /// STATUS.
    Status,
    /// GC.
    Gc(&'a ValidAttachments),
}

impl Call<'_> {
    /// CNI_COMMAND of the operation.
    pub fn command(&self) -> Command {
        match self {
            Call::Add(_) => Command::Add,
            Call::Check(_) => Command::Check,
            Call::Del(_) => Command::Del,
            Call::Status => Command::Status,
            Call::Gc(_) => Command::Gc,
        }
    }
}

/// A plugin's command for the operator: `cni-multi <name> …`.
pub struct OperatorCommand {
    /// The name. If it is the plugin's own, the name alone is the plugin, as a runtime calls it,
    /// and the name with a word behind it is the command.
    pub name: &'static str,
    /// The command line.
    pub command_line: fn() -> clap::Command,
    /// Runs it; returns the exit status.
    pub run: fn(&ArgMatches, &Environment, &mut Streams<'_>) -> u8,
    /// The sections of the page about a subcommand, or about the command for an empty name.
    pub manual: fn(&str) -> Manual,
}

/// The name of an [`OperatorCommand`] whose subcommands are subcommands of `cni-multi ipam`.
pub const IPAM: &str = "ipam";

impl OperatorCommand {
    /// Whether the command line knows the word that follows the name.
    pub fn knows(&self, word: &str) -> bool {
        word.starts_with('-')
            || word == "help"
            || (self.command_line)().get_subcommands().any(|command| command.get_name() == word)
    }
}

/// A plugin's line in the registry.
#[derive(Clone, Copy)]
pub struct Entry {
    /// See [`Plugin::NAME`].
    pub name: &'static str,
    /// See [`Plugin::KIND`].
    pub kind: Kind,
    /// See [`Plugin::ABOUT`].
    pub about: &'static str,
    /// See [`Plugin::VERSIONS`].
    pub versions: &'static [&'static str],
    /// See [`Plugin::NEEDS_LINK`].
    pub needs_link: bool,
    /// See [`Plugin::COMMANDS`].
    pub commands: &'static [OperatorCommand],
    /// See [`Plugin::LEASES`].
    pub leases: Option<&'static dyn LeaseStore>,
    /// See [`Plugin::IS_ALIAS`].
    pub is_alias: bool,
    keys: &'static [&'static str],
    run: fn(&Context<'_>, Call<'_>) -> Result<AddResult>,
    validate: fn(&Context<'_>) -> Result<()>,
    repair: fn(&Context<'_>, &Attachment, &Repairs) -> Result<()>,
}

impl Entry {
    /// The entry of a plugin.
    pub const fn of<P: Plugin>() -> Entry {
        Entry {
            name: P::NAME,
            kind: P::KIND,
            about: P::ABOUT,
            versions: P::VERSIONS,
            needs_link: P::NEEDS_LINK,
            commands: P::COMMANDS,
            leases: P::LEASES,
            is_alias: P::IS_ALIAS,
            keys: P::Conf::KEYS,
            run: dispatch::<P>,
            validate: |cx| validated::<P>(cx, true)?.validate_alone(),
            repair: |cx, at, repairs| P::repair(cx, &validated::<P>(cx, false)?, at, repairs),
        }
    }

    /// The plugin that a program with another name leads to as a link.
    pub fn of_link(plugins: &'static [Entry], program: &Path) -> Option<&'static Entry> {
        let target = fs::read_link(program).ok()?; // `cnv-bridge` may be a link to `bridge`
        let name = target.file_name()?;
        plugins.iter().find(|entry| name == entry.name)
    }

    /// The plugin of this name, or that a program of this name in `dirs` leads to as a link.
    pub fn named(
        plugins: &'static [Entry],
        name: &str,
        dirs: &[PathBuf],
    ) -> Option<&'static Entry> {
        plugins
            .iter()
            .find(|entry| entry.name == name)
            .or_else(|| Entry::of_link(plugins, &delegate::find(name, dirs).ok()?))
    }

    /// The rows of [`PluginConf::KEYS`].
    pub fn rows(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.iter().flat_map(|rows| rows.lines()).map(str::trim)
    }

    /// The keys of `ipam` that are accepted without effect, for the sake of another program's
    /// configurations: their rows say so. `cni-multi validate` reports them.
    pub fn no_effect(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.rows().filter_map(|row| {
            let (key, rest) = row.strip_prefix("ipam.")?.split_once(" | ")?;
            (!key.contains('.') && rest.contains(" | No effect:")).then_some(key)
        })
    }

    /// The specification versions that the plugin supports, as owned texts.
    pub fn version_list(&self) -> Vec<String> {
        self.versions.iter().map(|&version| version.to_owned()).collect()
    }

    /// The command that has the plugin's own name, if there is one.
    pub fn own_command(&self) -> Option<&'static OperatorCommand> {
        self.commands.iter().find(|command| command.name == self.name)
    }

    /// Reports the configuration mistakes that ADD would report, without doing anything.
    pub fn validate(&self, cx: &Context<'_>) -> Result<()> {
        (self.validate)(cx)
    }

    /// Runs one operation. The returned result is meaningful for ADD only.
    pub fn run(&self, cx: &Context<'_>, call: Call<'_>) -> Result<AddResult> {
        let _account = timing::open(|| format!("{} {}", call.command().as_str(), self.name));
        (self.run)(cx, call)
    }

    /// Repairs the host's side of an attachment, or looks what is missing there.
    pub fn repair(&self, cx: &Context<'_>, at: &Attachment, repairs: &Repairs) -> Result<()> {
        (self.repair)(cx, at, repairs)
    }
}

/// Not inlined, so that each plugin has it once: it contains the whole decoder of the
/// configuration.
#[inline(never)]
fn validated<P: Plugin>(cx: &Context<'_>, is_for_add: bool) -> Result<P::Conf> {
    let mut conf: P::Conf = cx.config.decode()?;
    conf.validate(cx)?;
    if is_for_add {
        conf.validate_add(cx)?;
    }
    Ok(conf)
}

/// The result of an operation that has none.
fn nothing((): ()) -> AddResult {
    AddResult::default()
}

fn dispatch<P: Plugin>(cx: &Context<'_>, call: Call<'_>) -> Result<AddResult> {
    let conf = match call {
        // Whatever was attached must be removed, even when ADD would now refuse its configuration.
        Call::Del(_) | Call::Gc(_) => cx.config.decode().unwrap_or_default(),
        Call::Add(_) => validated::<P>(cx, true)?,
        Call::Check(_) => validated::<P>(cx, false)?,
        // libcni leaves `capabilities` in the configuration, and sends `runtimeConfig` with ADD
        // alone. The reference's STATUS asks for none of its values.
        Call::Status => match validated::<P>(cx, false) {
            Err(mistake) if cx.config.is_supplied_later(&mistake) => cx.config.decode()?,
            outcome => outcome?,
        },
    };
    match call {
        Call::Add(at) => P::add(cx, &conf, at),
        Call::Check(at) => P::check(cx, &conf, at).map(nothing),
        Call::Del(at) => P::del(cx, &conf, at).map(nothing),
        Call::Status => P::status(cx, &conf).map(nothing),
        Call::Gc(valid) => P::gc(cx, &conf, valid).map(nothing),
    }
}

/// The inputs of a call other than its subject.
pub struct Context<'a> {
    /// The plugins that are compiled in; delegation looks here, so plugins never import the
    /// registry.
    pub plugins: &'static [Entry],
    /// The configuration on stdin.
    pub config: &'a Config,
    /// The environment, which delegated plugins inherit.
    pub env: &'a Environment,
    /// CNI_ARGS.
    pub args: &'a str,
    /// The directories of CNI_PATH.
    pub path: Vec<PathBuf>,
    handles: Rc<Handles>,
}

impl<'a> Context<'a> {
    /// Creates a context with handles of its own.
    pub fn new(
        plugins: &'static [Entry],
        config: &'a Config,
        env: &'a Environment,
        args: &'a str,
        path: Vec<PathBuf>,
    ) -> Context<'a> {
        Context { plugins, config, env, args, path, handles: Rc::default() }
    }

    /// Shares the handles of other calls.
    pub fn sharing(self, handles: &Rc<Handles>) -> Context<'a> {
        Context { handles: Rc::clone(handles), ..self }
    }

    /// The same call with another configuration: that of a plugin which this one runs.
    pub fn with_config<'b>(&'b self, config: &'b Config) -> Context<'b> {
        let path = self.path.clone();
        Context::new(self.plugins, config, self.env, self.args, path).sharing(&self.handles)
    }

    /// The handles of this call.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }

    /// The deadline of this operation; calls within it inherit the rest.
    pub fn deadline(&self) -> Deadline {
        self.handles.deadline()
    }

    /// The netlink socket of the current namespace, the host's.
    pub fn host(&self) -> Result<&Netlink> {
        self.handles.host()
    }
}

/// A container's interface to create or check.
pub struct Attachment {
    /// What identifies it.
    pub key: Key,
    /// CNI_NETNS as given: `sandbox` in results repeats it.
    pub netns_path: String,
    netns: OnceCell<Rc<Netns>>,
}

impl Attachment {
    /// Creates an attachment whose namespace is opened on first use: IPAM plugins never open it.
    pub fn new(key: Key, netns_path: String, opened: Option<Rc<Netns>>) -> Attachment {
        Attachment { key, netns_path, netns: opened.map(OnceCell::from).unwrap_or_default() }
    }

    /// The container's namespace.
    pub fn netns(&self) -> Result<&Netns> {
        let path = &self.netns_path;
        let open = || {
            Netns::open(path).map(Rc::new).map_err(|error| {
                // It is a mistake in the variable.
                let why = match error.errno {
                    Some(errno) => format!("failed to Statfs {path:?}: {}", errno_text(errno)),
                    None => format!("unknown FS magic on {path:?}"),
                };
                let error = error.context("CNI_NETNS").with_code(Code::INVALID_ENVIRONMENT);
                error.saying(format_args!("failed to open netns {path:?}: {why}"))
            })
        };
        get_or_try_init(&self.netns, open).map(Rc::as_ref)
    }

    /// Runs `work` inside the container's namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.netns()?.run(work)
    }

    /// A netlink socket in the container's namespace.
    pub fn netlink(&self) -> Result<&Netlink> {
        self.netns()?.netlink()
    }

    /// The name of the interface in the container.
    pub fn ifname(&self) -> &str {
        self.key.ifname.as_str()
    }
}

impl From<&Attachment> for Detachment {
    /// The detachment that undoes an ADD that failed or whose result was lost. A namespace that ADD
    /// did not open contains nothing of it.
    fn from(at: &Attachment) -> Detachment {
        let netns = at.netns.get().cloned();
        Detachment {
            key: at.key.clone(),
            netns_path: at.netns_path.clone(),
            netns,
            prev_result: None,
        }
    }
}

/// A container's interface to remove. Its namespace may be gone already.
pub struct Detachment {
    /// What identifies it.
    pub key: Key,
    /// CNI_NETNS as given, perhaps empty.
    pub netns_path: String,
    /// The container's namespace, if it still exists.
    pub netns: Option<Rc<Netns>>,
    /// The result of ADD, if the runtime sent it and it could be read.
    pub prev_result: Option<AddResult>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::Clock;

    #[test]
    fn a_nested_call_inherits_the_deadline() {
        let config = Config::parse(br#"{"cniVersion":"1.1.0","name":"n"}"#.to_vec()).unwrap();
        let env = Environment::default();
        let handles = Rc::new(Handles::with(Clock::new(Deadline::after(Duration::ZERO))));
        let context = || Context::new(&[], &config, &env, "", vec![]);
        let patience = Duration::from_secs(30);
        assert_eq!(context().deadline().limit(patience), patience);
        assert!(context().sharing(&handles).deadline().limit(patience) < patience);
    }
}
