//! Plugins that another plugin runs (specification, section 4).
//!
//! The plugin is looked up in CNI_PATH. If the file found is this very binary, or if there is no
//! file and the plugin is compiled in, it runs in this process; any other file is executed.

use std::path::{Path, PathBuf};

use crate::cni::delegate;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, Result};
use crate::plugin::{Attachment, Call, Context, Detachment, Entry, Kind};
use crate::repair::Repairs;
use crate::rollback::Rollback;
use crate::terminal::nearest::nearest;

/// A plugin as a configuration names it.
pub struct Named<'n> {
    /// The key.
    pub path: &'static str,
    /// Its value.
    pub name: &'n str,
    /// The group that the plugin has to be of, if it is ours.
    pub kind: Kind,
}

/// A plugin that another one runs.
#[derive(Clone)]
pub struct Delegate {
    kind: Kind,
    by: By,
}

#[derive(Clone)]
enum By {
    Ourselves(&'static Entry),
    Program(PathBuf),
}

impl Delegate {
    /// The plugin of this name. Refuses one of ours that is of another kind.
    pub fn find(cx: &Context<'_>, named: &Named<'_>) -> Result<Delegate> {
        let by = By::find(cx, named)?;
        match by {
            By::Ourselves(entry) if entry.kind != named.kind => Err(of_other_kind(entry, named)),
            by => Ok(Delegate { kind: named.kind, by }),
        }
    }

    /// Checks the configuration early, if the plugin is ours.
    pub fn validate(&self, cx: &Context<'_>) -> Result<()> {
        match &self.by {
            By::Ourselves(entry) => entry.validate(cx),
            By::Program(_) => Ok(()),
        }
    }

    /// ADD, which is undone if a later step fails.
    pub fn add<'a>(
        &self,
        cx: &'a Context<'a>,
        at: &'a Attachment,
        rb: &mut Rollback<'a>,
    ) -> Result<AddResult> {
        match &self.by {
            By::Ourselves(entry) => {
                // Our plugins undo their own failures, and a DEL after one could release the
                // addresses of an earlier ADD.
                let result = entry.run(cx, Call::Add(at))?;
                self.undo(cx, at, rb);
                Ok(result)
            }
            By::Program(program) => {
                self.undo(cx, at, rb);
                add_by(program, cx, at)
            }
        }
    }

    fn undo<'a>(&self, cx: &'a Context<'a>, at: &'a Attachment, rb: &mut Rollback<'a>) {
        let what = match self.kind {
            Kind::Ipam => "release the addresses",
            Kind::Main | Kind::Meta => "detach",
        };
        let again = self.clone();
        rb.undo(what, move || again.run(cx, Call::Del(&Detachment::from(at))));
    }

    /// Runs an operation without a result.
    pub fn run(&self, cx: &Context<'_>, call: Call<'_>) -> Result<()> {
        match &self.by {
            By::Ourselves(entry) => entry.run(cx, call).map(drop),
            By::Program(program) => run_program(program, cx, call),
        }
    }

    /// Repairs what is on the host, if the plugin is ours.
    pub fn repair(&self, cx: &Context<'_>, at: &Attachment, repairs: &Repairs) -> Result<()> {
        match &self.by {
            By::Ourselves(entry) => entry.repair(cx, at, repairs),
            By::Program(program) => {
                repairs.skip(program.display());
                Ok(())
            }
        }
    }

    /// Whether the plugin is ours.
    pub fn is_ours(&self) -> bool {
        matches!(self.by, By::Ourselves(_))
    }

    /// Whether DEL and GC of the plugin run before the link is deleted. For programs we do not know
    /// we do as the reference does.
    pub fn needs_link(&self) -> bool {
        match &self.by {
            By::Ourselves(entry) => entry.needs_link,
            By::Program(_) => true,
        }
    }

    /// The plugin, in the words of an error.
    pub fn name(&self) -> String {
        match &self.by {
            By::Ourselves(entry) => format!("{:?} of cni-multi", entry.name),
            By::Program(program) => format!("{program:?}"),
        }
    }
}

impl By {
    fn find(cx: &Context<'_>, named: &Named<'_>) -> Result<By> {
        let compiled_in = cx.plugins.iter().find(|entry| entry.name == named.name);
        match (delegate::find(named.name, &cx.path), compiled_in) {
            (Ok(program), own) if delegate::is_this_binary(&program) => {
                let own = own.or_else(|| Entry::of_link(cx.plugins, &program));
                Ok(own.map_or(By::Program(program), By::Ourselves))
            }
            (Ok(program), _) => Ok(By::Program(program)),
            (Err(_), Some(entry)) => Ok(By::Ourselves(entry)),
            (Err(error), None) => Err(not_found(cx, named, &error)),
        }
    }
}

fn run_program(program: &Path, cx: &Context<'_>, call: Call<'_>) -> Result<()> {
    let run = || execute(cx, program, call).map(drop);
    match call {
        Call::Gc(valid) => valid.call(program, run), // only the plugin knows what it removes
        _ => run(),
    }
}

/// Runs another program; returns its stdout.
fn execute(cx: &Context<'_>, program: &Path, call: Call<'_>) -> Result<Vec<u8>> {
    let env = cx.env.with("CNI_COMMAND", call.command().as_str());
    delegate::exec(program, &env, &cx.config.text, cx.handles().clock())
}

fn of_other_kind(entry: &Entry, named: &Named<'_>) -> Error {
    let problem = format!("{:?} is a {} plugin", entry.name, entry.kind.as_str());
    let article = if named.kind == Kind::Ipam { "an" } else { "a" };
    let expected = format!("{article} {} plugin", named.kind.as_str());
    Error::config(named.path, problem).expecting(format_args!("{expected}"))
}

fn not_found(cx: &Context<'_>, named: &Named<'_>, error: &Error) -> Error {
    let name = named.name;
    let not_found = Error::config(
        named.path,
        format_args!("{name:?} is not a plugin of ours, and not in a directory of CNI_PATH"),
    )
    .with_code(error.code)
    .with_details(error.details())
    .saying(&error.msg);
    let ours = cx.plugins.iter().filter(|entry| entry.kind == named.kind);
    match nearest(name, ours.map(|entry| entry.name)) {
        Some(near) => not_found.with_details(format_args!("did you mean {near:?}?")),
        None => not_found,
    }
}

/// ADD of another program.
fn add_by(program: &Path, cx: &Context<'_>, at: &Attachment) -> Result<AddResult> {
    let stdout = execute(cx, program, Call::Add(at))?;
    let result = read_result(&stdout, &cx.config.version);
    result.map_err(|e| e.context(format_args!("result of plugin {program:?}")))
}

fn read_result(stdout: &[u8], config_version: &str) -> Result<AddResult> {
    let document = delegate::parse_result(stdout, config_version)?;
    document
        .into_add_result()
        .map_err(|e| Error::new(Code::DECODE, format!("read the delegated plugin's result: {e}")))
}
