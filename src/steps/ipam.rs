//! Addresses from the IPAM plugin that `ipam.type` names (specification, section 4).
//!
//! The plugin is looked up in CNI_PATH. If the file found is this very binary, or if there is no
//! file and the plugin is compiled in, it runs in this process; any other file is executed.

use std::path::{Path, PathBuf};

use crate::cni::conf::ValidAttachments;
use crate::cni::delegate;
use crate::cni::result::AddResult;
use crate::cni::version;
use crate::error::{Code, Error, ErrorList, Result};
use crate::plugin::{Attachment, Call, Context, Detachment, Entry, Kind};
use crate::repair::Repairs;
use crate::rollback::Rollback;
use crate::terminal::nearest::nearest;

/// The IPAM plugin of a configuration.
pub struct Ipam<'a> {
    cx: &'a Context<'a>,
    delegate: Delegate,
}

#[derive(Clone)]
enum Delegate {
    Ourselves(&'static Entry),
    Program(PathBuf),
}

impl<'a> Ipam<'a> {
    /// The plugin that `ipam.type` names; None where the configuration names no plugin.
    pub fn find(cx: &'a Context<'a>) -> Result<Option<Ipam<'a>>> {
        let name = cx.config.ipam_type()?;
        if name.is_empty() {
            return Ok(None);
        }
        let delegate = Delegate::find(cx, &name)?;
        delegate.require_ipam()?;
        Ok(Some(Ipam { cx, delegate }))
    }

    /// The plugin that `ipam.type` names, which is required.
    pub fn require(cx: &'a Context<'a>) -> Result<Ipam<'a>> {
        require_type(cx)?;
        Ipam::find(cx)?.ok_or_else(missing)
    }

    /// For ADD: the plugin that `ipam.type` names, which is required and must accept the
    /// configuration before anything is changed.
    pub fn require_valid(cx: &'a Context<'a>) -> Result<Ipam<'a>> {
        let ipam = Ipam::require(cx)?;
        ipam.validate()?;
        Ok(ipam)
    }

    /// For ADD: as [`Ipam::require_valid`], but without `ipam.type` the network is a layer 2
    /// network, see [`require_type_or_layer_two`].
    pub fn find_unless_layer_two(cx: &'a Context<'a>) -> Result<Option<Ipam<'a>>> {
        let ipam = Ipam::find(cx)?;
        ipam.as_ref().map_or(Ok(()), Ipam::validate)?;
        Ok(ipam)
    }

    /// Checks the configuration early, if the plugin is ours.
    fn validate(&self) -> Result<()> {
        match &self.delegate {
            Delegate::Ourselves(entry) => entry.validate(self.cx),
            Delegate::Program(_) => Ok(()),
        }
    }

    /// ADD: allocates at least one address, which is released if a later step fails.
    pub fn add(&self, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<AddResult>
    where
        Self: 'a,
    {
        let result = match &self.delegate {
            Delegate::Ourselves(entry) => {
                // Our plugins undo their own failures, and a DEL after one could release the
                // addresses of an earlier ADD.
                let result = entry.run(self.cx, Call::Add(at))?;
                self.release_on_failure(at, rb);
                result
            }
            Delegate::Program(program) => {
                self.release_on_failure(at, rb);
                add_by(program, self.cx, at)?
            }
        };
        if result.ips.is_empty() { Err(self.without_addresses()) } else { Ok(result) }
    }

    fn release_on_failure(&self, at: &'a Attachment, rb: &mut Rollback<'a>)
    where
        Self: 'a,
    {
        let again = Ipam { cx: self.cx, delegate: self.delegate.clone() };
        rb.undo("release the addresses", move || again.del(&Detachment::from(at)));
    }

    fn without_addresses(&self) -> Error {
        Error::new(Code::ADDRESS_UNAVAILABLE, "IPAM plugin returned missing IP config")
            .with_details(format_args!("the plugin is {}", self.name()))
    }

    /// CHECK.
    pub fn check(&self, at: &Attachment) -> Result<()> {
        self.delegate.run(self.cx, Call::Check(at))
    }

    /// DEL.
    pub fn del(&self, at: &Detachment) -> Result<()> {
        self.delegate.run(self.cx, Call::Del(at))
    }

    /// STATUS.
    pub fn status(&self) -> Result<()> {
        self.delegate.run(self.cx, Call::Status)
    }

    /// GC.
    pub fn gc(&self, valid: &ValidAttachments) -> Result<()> {
        self.delegate.run(self.cx, Call::Gc(valid))
    }

    /// Repairs the lease, if the plugin is ours.
    pub fn repair(&self, at: &Attachment, repairs: &Repairs) -> Result<()> {
        match &self.delegate {
            Delegate::Ourselves(entry) => entry.repair(self.cx, at, repairs),
            Delegate::Program(program) => {
                repairs.skip(program.display());
                Ok(())
            }
        }
    }

    /// Whether DEL and GC of the plugin run before the link is deleted. For programs we do not know
    /// we do as the reference does.
    fn needs_link(&self) -> bool {
        match &self.delegate {
            Delegate::Ourselves(entry) => entry.needs_link,
            Delegate::Program(_) => true,
        }
    }

    /// The call that the plugin was found in.
    pub fn context(&self) -> &'a Context<'a> {
        self.cx
    }

    fn name(&self) -> String {
        match &self.delegate {
            Delegate::Ourselves(entry) => format!("{:?} of cni-multi", entry.name),
            Delegate::Program(program) => format!("{program:?}"),
        }
    }
}

impl Delegate {
    fn find(cx: &Context<'_>, name: &str) -> Result<Delegate> {
        let compiled_in = cx.plugins.iter().find(|entry| entry.name == name);
        match (delegate::find(name, &cx.path), compiled_in) {
            (Ok(program), None) => Ok(Delegate::Program(program)),
            (Ok(program), Some(entry)) => Ok(Delegate::of_both(program, entry)),
            (Err(_), Some(entry)) => Ok(Delegate::Ourselves(entry)),
            (Err(error), None) => Err(not_found(cx, name, &error)),
        }
    }

    fn of_both(program: PathBuf, entry: &'static Entry) -> Delegate {
        if delegate::is_this_binary(&program) {
            Delegate::Ourselves(entry)
        } else {
            Delegate::Program(program)
        }
    }

    /// Refuses a plugin of ours that is of another kind.
    fn require_ipam(&self) -> Result<()> {
        match self {
            Delegate::Ourselves(entry) if entry.kind != Kind::Ipam => Err(of_other_kind(entry)),
            _ => Ok(()),
        }
    }

    /// Runs an operation without a result.
    fn run(&self, cx: &Context<'_>, call: Call<'_>) -> Result<()> {
        match self {
            Delegate::Ourselves(entry) => entry.run(cx, call).map(drop),
            Delegate::Program(program) => run_program(program, cx, call),
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

fn of_other_kind(entry: &Entry) -> Error {
    let problem = format!("{:?} is a {} plugin", entry.name, entry.kind.as_str());
    Error::config("ipam.type", problem).expecting("an ipam plugin")
}

fn not_found(cx: &Context<'_>, name: &str, error: &Error) -> Error {
    let not_found = Error::config(
        "ipam.type",
        format_args!("{name:?} is not a plugin of ours, and not in a directory of CNI_PATH"),
    )
    .with_code(error.code)
    .with_details(error.details())
    .saying(&error.msg);
    let ours = cx.plugins.iter().filter(|entry| entry.kind == Kind::Ipam);
    match nearest(name, ours.map(|entry| entry.name)) {
        Some(near) => not_found.with_details(format_args!("did you mean {near:?}?")),
        None => not_found,
    }
}

fn missing() -> Error {
    Error::missing("ipam.type", "the name of an ipam plugin").saying("no plugin name provided")
}

/// Requires the configuration to name an IPAM plugin.
pub fn require_type(cx: &Context<'_>) -> Result<()> {
    if cx.config.ipam_type()?.is_empty() { Err(missing()) } else { Ok(()) }
}

/// For ADD: without an IPAM plugin the network is a layer 2 network, whose result the oldest
/// versions cannot express.
pub fn require_type_or_layer_two(cx: &Context<'_>) -> Result<()> {
    if cx.config.ipam_type()?.is_empty() { require_layer_two(&cx.config.version) } else { Ok(()) }
}

fn require_layer_two(version: &str) -> Result<()> {
    if version::Number::parse(version)? >= version::WITH_MANY_ADDRESSES {
        return Ok(());
    }
    Err(without_form(version))
}

fn without_form(version: &str) -> Error {
    Error::new(Code::INVALID_CONFIG, "cannot convert: no valid IP addresses").with_details(
        format_args!("a result without addresses has no form in cniVersion {version}"),
    )
}

/// CHECK of the IPAM plugin, if the configuration names one.
pub fn check_if_any(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.check(at))
}

/// Repairs the lease of the IPAM plugin, if the configuration names one.
pub fn repair_if_any(cx: &Context<'_>, at: &Attachment, repairs: &Repairs) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.repair(at, repairs))
}

/// Repairs the lease, if the configuration names an IPAM plugin, and then the rest. If the address has
/// another owner by now, skips the rest: it would connect two containers with one address.
pub fn repair_before(
    cx: &Context<'_>,
    at: &Attachment,
    repairs: &Repairs,
    rest: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match repair_if_any(cx, at, repairs) {
        Err(error) if error.code == Code::CONFLICT => Err(error),
        lease => ErrorList::of([lease, rest()]),
    }
}

/// What deletes a link, or links.
type Delete<'a> = &'a mut dyn FnMut() -> Result<()>;

/// DEL of the IPAM plugin, if any, and of the link. The link is deleted first, since the next ADD
/// may be allocated the same addresses; unless the plugin needs the link to release them.
pub fn del_with_link(cx: &Context<'_>, at: &Detachment, delete_link: Delete<'_>) -> Result<()> {
    around(Ipam::find(cx), &|ipam| ipam.del(at), delete_link)
}

/// GC of the IPAM plugin, if any, and of links, in the order of [`del_with_link`].
pub fn gc_with_links(
    cx: &Context<'_>,
    valid: &ValidAttachments,
    delete_links: Delete<'_>,
) -> Result<()> {
    around(Ipam::find(cx), &|ipam| ipam.gc(valid), delete_links)
}

fn around(
    ipam: Result<Option<Ipam<'_>>>,
    release: &dyn Fn(&Ipam<'_>) -> Result<()>,
    delete: Delete<'_>,
) -> Result<()> {
    let mut errors = ErrorList::default();
    match errors.push(ipam).flatten() {
        Some(ipam) if ipam.needs_link() => {
            errors.push(release(&ipam));
            errors.push(delete());
        }
        Some(ipam) => {
            errors.push(delete());
            errors.push(release(&ipam));
        }
        None => {
            errors.push(delete());
        }
    }
    errors.finish()
}

/// STATUS of the IPAM plugin, if any.
pub fn status_if_any(cx: &Context<'_>) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.status())
}

/// GC of the IPAM plugin, if any, for plugins whose links disappear with their namespaces.
pub fn gc_if_any(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.gc(valid))
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
        .map_err(|e| Error::new(Code::DECODE, format!("read the IPAM plugin's result: {e}")))
}
