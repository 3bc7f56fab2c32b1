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
        let Named { path, name, kind } = *named;
        let compiled_in = cx.plugins.iter().find(|entry| entry.name == name);
        let by = match (delegate::find(name, &cx.path), compiled_in) {
            (Ok(program), own) if delegate::is_this_binary(&program) => {
                let own = own.or_else(|| Entry::of_link(cx.plugins, &program));
                own.map_or(By::Program(program), By::Ourselves)
            }
            (Ok(program), _) => By::Program(program),
            (Err(_), Some(entry)) => By::Ourselves(entry),
            (Err(error), None) => {
                let problem = "is not a plugin of ours, and not in a directory of CNI_PATH";
                let not_found = Error::config(path, format_args!("{name:?} {problem}"))
                    .with_code(error.code)
                    .with_details(error.details())
                    .saying(&error.msg);
                let ours = cx.plugins.iter().filter(|entry| entry.kind == kind);
                return Err(match nearest(name, ours.map(|entry| entry.name)) {
                    Some(near) => not_found.with_details(format_args!("did you mean {near:?}?")),
                    None => not_found,
                });
            }
        };
        match by {
            By::Ourselves(entry) if entry.kind != kind => {
                let problem = format!("{:?} is a {} plugin", entry.name, entry.kind.as_str());
                let article = if kind == Kind::Ipam { "an" } else { "a" };
                Err(Error::config(path, problem)
                    .expecting(format_args!("{article} {} plugin", kind.as_str())))
            }
            by => Ok(Delegate { kind, by }),
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
                let stdout = execute(cx, program, Call::Add(at))?;
                let document = delegate::parse_result(&stdout, &cx.config.version);
                let result = document.and_then(|document| {
                    document.into_add_result().map_err(|e| {
                        let msg = format!("read the delegated plugin's result: {e}");
                        Error::new(Code::DECODE, msg)
                    })
                });
                result.map_err(|e| e.context(format_args!("result of plugin {program:?}")))
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
            By::Program(program) => {
                let run = || execute(cx, program, call).map(drop);
                match call {
                    Call::Gc(valid) => valid.call(program, run), // only the plugin knows what it removes
                    _ => run(),
                }
            }
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

/// Runs another program; returns its stdout.
fn execute(cx: &Context<'_>, program: &Path, call: Call<'_>) -> Result<Vec<u8>> {
    let env = cx.env.with("CNI_COMMAND", call.command().as_str());
    delegate::exec(program, &env, &cx.config.text, cx.handles().clock())
}
