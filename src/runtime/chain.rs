//! Operations on a network: its plugins run one after the other, as libcni runs them
//! (specification, section 3).
//!
//! Beyond libcni: a failed ADD is undone, operations on one container wait for each other, and a
//! plugin that is compiled in runs in this process.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use super::cache::{Cache, DEFAULT_DIR};
use super::derive;
use super::list::{NetworkList, PluginConfig};
use super::lock::Held;
use super::parameters::Parameters;
use super::trace;
use crate::cni::delegate;
use crate::cni::env::{Command, Environment};
use crate::cni::result::Document;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::file_lock::Patience;
use crate::net::netns::Netns;
use crate::plugin::{Entry, Handles};
use crate::runner::Execution;
use crate::sys::signals::Uninterrupted;
use crate::terminal::Streams;

/// What operations need besides the network and the attachment.
pub struct Runtime<'a> {
    /// The plugins that are compiled in.
    pub plugins: &'static [Entry],
    /// The environment, which plugins inherit.
    pub env: &'a Environment,
    /// The search path for plugins, in the form of CNI_PATH.
    pub path: String,
    /// Where results are kept.
    pub cache: Cache,
    /// The stderr of plugins that run in this process; other plugins write to the process's own.
    pub stderr: &'a mut dyn Write,
    /// The handles that plugins in this process open, shared by all of them.
    pub handles: Rc<Handles>,
    /// Whether each call of a plugin is reported to `stderr`.
    pub is_traced: bool,
}

/// The program that runs for a plugin's name.
pub(super) enum Program {
    /// Code of this binary, run in this process.
    Own(&'static Entry),
    /// Another program.
    File(PathBuf),
}

impl Program {
    /// For a report.
    pub(super) fn to_text(&self) -> Cow<'_, str> {
        match self {
            Program::Own(_) => "compiled in".into(),
            Program::File(program) => program.to_string_lossy(),
        }
    }
}

/// A command for the plugins of a network, about one attachment.
#[derive(Clone, Copy)]
pub(super) struct Operation<'a> {
    pub command: Command,
    pub list: &'a NetworkList,
    pub at: &'a Parameters,
}

/// What happens after an ADD that fails half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// DEL for every plugin, so that nothing is left.
    Undo,
    /// Everything stays until the caller runs DEL, as with libcni.
    Leave,
}

/// The details of an error whose undo has left nothing behind.
const UNDONE: &str = "what was done has been undone";

impl<'a> Runtime<'a> {
    /// A runtime with the usual cache, without a search path.
    pub fn of(
        plugins: &'static [Entry],
        env: &'a Environment,
        stderr: &'a mut dyn Write,
    ) -> Runtime<'a> {
        let (path, cache, handles) = (String::new(), Cache::new(DEFAULT_DIR), Rc::default());
        Runtime { plugins, env, path, cache, stderr, handles, is_traced: false }
    }
}

impl Runtime<'_> {
    /// ADD: each plugin gets the result of the one before it; the last result is cached and
    /// returned.
    ///
    /// With [`OnFailure::Undo`] a failure is followed by DEL for every plugin, unless the interface
    /// existed before. The error's details report the outcome.
    pub fn add(
        &mut self,
        list: &NetworkList,
        at: &Parameters,
        on_failure: OnFailure,
    ) -> Result<Document> {
        for plugin in &list.plugins {
            // A missing program fails before anything is done.
            self.find(&plugin.kind).map_err(|error| failed(error, plugin, "add"))?;
        }
        self.cache.require_keepable(&at.key)?;
        let held = self.hold(Some(at))?;
        let mut alone = self.within(&held.env);
        let _uninterrupted = Uninterrupted::begin(); // SIGINT etc. take effect between plugins
        let was_there = alone.was_there(at)?;
        let mut result = None;
        let add = Operation { command: Command::Add, list, at };
        alone.add_all(add, &mut result).map_err(|error| match on_failure {
            OnFailure::Leave => error,
            // DEL would remove an interface that existed before, which may be in use, and by another
            // owner.
            OnFailure::Undo if was_there => error.with_details(format_args!(
                "not undone, because {:?} was there before; `net del` removes it",
                at.key.ifname.as_str()
            )),
            OnFailure::Undo => alone.undo_add(add, result.as_ref(), error),
        })
    }

    /// Whether the attachment was there before this ADD. If the namespace is gone, its record tells: an
    /// undo would delete it.
    fn was_there(&self, at: &Parameters) -> Result<bool> {
        match self.has_interface(at)? {
            Some(has_interface) => Ok(has_interface),
            None => self.cache.contains(&at.key),
        }
    }

    /// GET, which the drafts of 0.4.0 had in place of CHECK: ADD's result, reported again by
    /// plugins that check what they hold. The result goes from plugin to plugin as in ADD,
    /// beginning with the cached one, and is cached again.
    pub fn get(&mut self, list: &NetworkList, at: &Parameters) -> Result<Document> {
        require_check(list, "GET")?;
        let held = self.hold(Some(at))?;
        let mut result = self.cached_result(list, at)?;
        let get = Operation { command: Command::Get, list, at };
        self.within(&held.env).add_all(get, &mut result)
    }

    /// DEL: in reverse order, each plugin with the result that ADD returned, as far as it can be
    /// read. The cached result is removed after the last plugin, and one that stays is an error; the
    /// first failure ends the DEL and keeps the result. Returns whether the attachment had a file in the cache.
    pub fn del(&mut self, list: &NetworkList, at: &Parameters) -> Result<bool> {
        let held = self.hold(Some(at))?;
        let was_there = self.cache.contains(&at.key)?;
        self.within(&held.env).del_all(list, at)?;
        Ok(was_there)
    }

    pub(super) fn del_all(&mut self, list: &NetworkList, at: &Parameters) -> Result<()> {
        let _uninterrupted = Uninterrupted::begin();
        let kept =
            if has_check(list)? { self.cache.result(&at.key, &list.version) } else { Ok(None) };
        // DEL does without a result that cannot be read.
        let result = kept.unwrap_or_else(|error| {
            if error.code != Code::IO {
                let _ = self.cache.delete(&at.key); // never usable, it could only disturb a later call
            }
            None
        });
        let del = Operation { command: Command::Del, list, at };
        let handles = Rc::clone(&self.handles);
        handles.together(|| {
            list.plugins.iter().rev().try_for_each(|plugin| {
                let done = self.run_attached(del, plugin, result.as_ref());
                done.map(drop).map_err(|error| failed(error, plugin, "delete"))
            })
        })?;
        self.cache.delete(&at.key).map_err(|error| {
            error.with_details("it is detached; another del removes the file, too")
        })
    }

    /// STATUS: returns the error of the first plugin that cannot serve ADD. Versions before 1.1.0
    /// have no STATUS.
    pub fn status(&mut self, list: &NetworkList) -> Result<()> {
        if !version::Number::parse(&list.version).is_ok_and(|number| number >= version::WITH_GC) {
            return Ok(());
        }
        let env = self.environment(Command::Status, None);
        list.plugins.iter().try_for_each(|plugin| {
            let ready = self.run(&plugin.kind, &env, &derive::for_status(list, plugin));
            ready.map(drop).map_err(|error| reported_by(plugin, error))
        })
    }

    pub(super) fn cached_result(
        &self,
        list: &NetworkList,
        at: &Parameters,
    ) -> Result<Option<Document>> {
        self.cache.result(&at.key, &list.version).map_err(|error| without_result(list, error))
    }

    /// Runs ADD or GET; `result` receives the last successful plugin's result, even if a later one
    /// fails. Each is converted to the network's version, since the next plugin may refuse any
    /// other.
    fn add_all(
        &mut self,
        operation: Operation<'_>,
        result: &mut Option<Document>,
    ) -> Result<Document> {
        let Operation { command, list, at } = operation;
        let what = if command == Command::Add { "add" } else { "get" };
        for plugin in &list.plugins {
            let added = self.run_attached(operation, plugin, result.as_ref()).and_then(|stdout| {
                let result = delegate::parse_result(&stdout, &list.version)?;
                let converted = result.convert(&list.version);
                converted.map_err(|e| Error::new(Code::DECODE, e.to_string()))
            });
            *result = Some(added.map_err(|error| failed(error, plugin, what))?);
            if Uninterrupted::was_interrupted() {
                return Err(Error::new(Code::TRY_AGAIN, "interrupted"));
            }
        }
        let result = result
            .clone()
            .ok_or_else(|| Error::new(Code::INVALID_CONFIG, "no plugin configs found"))?;
        self.cache.write(at, &list.document, &result).map_err(|error| {
            error.context(format_args!("failed to set network {:?} cached result", list.name))
        })?;
        Ok(result)
    }

    /// Undoes an ADD, unless its only plugin has done so: DEL for all plugins, including those that
    /// ADD did not reach, whether or not one fails. Returns its error with what failed, or as it is
    /// if there was nothing to undo.
    fn undo_add(&mut self, add: Operation<'_>, result: Option<&Document>, error: Error) -> Error {
        // If the ADD of a first plugin that is compiled in fails, it has undone its own changes, and
        // no other plugin has run.
        let is_own = |first: &PluginConfig| matches!(self.find(&first.kind), Ok(Program::Own(_)));
        let is_undone_already = result.is_none() && add.list.plugins.first().is_some_and(is_own);
        let mut failures: Vec<(String, Error)> = vec![]; // plugins that fail alike are reported once
        if !is_undone_already {
            let del = Operation { command: Command::Del, ..add };
            let result = result.filter(|_| has_check(add.list).unwrap_or(false));
            for plugin in add.list.plugins.iter().rev() {
                let Err(failure) = self.run_attached(del, plugin, result) else { continue };
                match failures.iter_mut().find(|(_, known)| *known == failure) {
                    Some((plugins, _)) => *plugins += &[", ", &describe(plugin)].concat(),
                    None => failures.push((describe(plugin), failure)),
                }
            }
        }
        let _ = Uninterrupted::was_interrupted(); // drop the signal: report the undo first
        if is_undone_already && !error.was_undone {
            return error;
        }
        if failures.is_empty() {
            return error.with_details(UNDONE);
        }
        failures.into_iter().fold(error, |error, (plugins, failure)| {
            error.with_details(format_args!("undo: plugin {plugins} failed (delete): {failure}"))
        })
    }

    pub(super) fn run_attached(
        &mut self,
        operation: Operation<'_>,
        plugin: &PluginConfig,
        result: Option<&Document>,
    ) -> Result<Vec<u8>> {
        let Operation { command, list, at } = operation;
        let config = derive::for_attachment(list, plugin, result, &at.capability_args);
        self.run(&plugin.kind, &self.environment(command, Some(at)), &config)
    }

    /// One plugin execution, in this process or another; returns its stdout.
    pub(super) fn run(&mut self, kind: &str, env: &Environment, config: &[u8]) -> Result<Vec<u8>> {
        let program = self.find(kind)?;
        let start = Instant::now();
        let answer = self.execute(&program, env, config);
        if self.is_traced {
            let call = trace::Call { kind, program: &program.to_text(), env, config };
            call.report(&answer, start.elapsed(), self.stderr);
        }
        answer
    }

    /// Runs a program. An error of CHECK by a plugin in this process keeps its parts, so that each
    /// difference can be reported by itself; the error object that the plugin prints joins them.
    fn execute(&mut self, program: &Program, env: &Environment, config: &[u8]) -> Result<Vec<u8>> {
        let entry = match program {
            Program::File(program) => {
                return delegate::exec(program, env, config, self.handles.clock());
            }
            Program::Own(entry) => *entry,
        };
        let (mut stdin, mut stdout) = (config, vec![]);
        let mut io = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: self.stderr };
        let (plugins, handles) = (self.plugins, &self.handles);
        let Err(error) = (Execution { entry, plugins, env, handles }).run(&mut io) else {
            return Ok(stdout);
        };
        if env.get("CNI_COMMAND") == Command::Check.as_str() {
            return Err(error);
        }
        let printed = delegate::parse_error(Path::new(entry.name), &stdout, b"", "exit status 1");
        Err(if error.was_undone { printed.undone() } else { printed })
    }

    /// Whether the container has an interface of that name; None if the namespace does not exist.
    /// It decides whether a failed ADD is undone, so a failed lookup is an error.
    fn has_interface(&self, at: &Parameters) -> Result<Option<bool>> {
        let Some(netns) = self.handles.netns(&at.netns, Netns::open_if_there)? else {
            return Ok(None);
        };
        Ok(Some(netns.netlink()?.find_link(at.key.ifname.as_str())?.is_some()))
    }

    /// Waits until no other operation is running on this container, or with None on any container.
    pub(super) fn hold(&self, at: Option<&Parameters>) -> Result<Held> {
        self.cache.lock(Patience::of_operation(self.handles.deadline()), at, self.env)
    }

    /// The same runtime, with this environment for its plugins.
    pub(super) fn within<'b>(&'b mut self, env: &'b Environment) -> Runtime<'b> {
        Runtime {
            plugins: self.plugins,
            env,
            path: self.path.clone(),
            cache: self.cache.clone(),
            stderr: &mut *self.stderr,
            handles: Rc::clone(&self.handles),
            is_traced: self.is_traced,
        }
    }

    /// The process's environment with all six variables of the protocol, which are empty if the
    /// command has no attachment.
    pub(super) fn environment(&self, command: Command, at: Option<&Parameters>) -> Environment {
        let of = |text: fn(&Parameters) -> String| at.map(text).unwrap_or_default();
        self.env
            .with("CNI_COMMAND", command.as_str())
            .with("CNI_CONTAINERID", of(|at| at.key.container_id.to_string()))
            .with("CNI_NETNS", of(|at| at.netns.clone()))
            .with("CNI_ARGS", of(Parameters::joined_args))
            .with("CNI_IFNAME", of(|at| at.key.ifname.to_string()))
            .with("CNI_PATH", &self.path)
    }
}

/// The error of a result that cannot be used for this network.
pub(super) fn without_result(list: &NetworkList, error: Error) -> Error {
    error.context(format_args!("failed to get network {:?} cached result", list.name))
}

/// Whether the network's version has CHECK and GET, which came with 0.4.0; its plugins then expect
/// `prevResult` with DEL.
pub(super) fn has_check(list: &NetworkList) -> Result<bool> {
    Ok(version::Number::parse(&list.version)? >= version::WITH_CHECK)
}

/// Fails unless the network's version has CHECK and GET.
pub(super) fn require_check(list: &NetworkList, command: &str) -> Result<()> {
    if has_check(list)? {
        return Ok(());
    }
    let version = &list.version;
    let msg = format!("configuration version {version:?} does not support the {command} command");
    Err(Error::new(Code::INCOMPATIBLE_VERSION, msg))
}

fn failed(error: Error, plugin: &PluginConfig, what: &str) -> Error {
    error.context(format_args!("plugin {} failed ({what})", describe(plugin)))
}

/// The error with details that name the plugin. libcni returns the errors of CHECK and STATUS
/// unchanged, so the message stays the plugin's.
pub(super) fn reported_by(plugin: &PluginConfig, error: Error) -> Error {
    error.with_details(format_args!("reported by plugin {}", describe(plugin)))
}

fn describe(plugin: &PluginConfig) -> String {
    match plugin.name.as_str() {
        "" => format!("type={:?}", plugin.kind),
        name => format!("type={:?} name={name:?}", plugin.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::attachment::Key;
    use crate::cni::json::Value;
    use crate::registry::PLUGINS;
    use crate::scratch::Scratch;

    fn parameters() -> Parameters {
        Parameters {
            key: Key::parse("n", "id", "eth0").unwrap(),
            netns: "/run/netns/t".into(),
            args: vec![("A".into(), "1".into()), ("A".into(), "2".into())],
            capability_args: Value::Object(vec![]),
        }
    }

    fn with_runtime<T>(env: &[(&str, &str)], path: &str, then: impl FnOnce(Runtime<'_>) -> T) -> T {
        let env = env.iter().map(|(key, value)| (key.into(), value.into())).collect();
        let mut stderr = std::io::sink();
        let usual = Runtime::of(PLUGINS, &env, &mut stderr);
        then(Runtime { path: path.into(), cache: Cache::new("/nonexistent"), ..usual })
    }

    #[test]
    fn all_six_variables_are_set_once_and_the_others_inherited() {
        let inherited = [
            ("CNI_COMMAND", "OLD"),
            ("CNI_COMMAND", "OLDER"),
            ("CNI_ARGS", "X=1"),
            ("TRACEPARENT", "t"),
            ("TRACESTATE", "s"),
            ("BAGGAGE", "b"),
            ("CNI_NETNS", "/old"),
        ];
        with_runtime(&inherited, "/a:/b", |runtime| {
            let at = parameters();
            let pairs = |at| {
                let env = runtime.environment(Command::Add, at);
                let mut pairs: Vec<String> = env
                    .iter()
                    .map(|(k, v)| format!("{}={}", k.to_string_lossy(), v.to_string_lossy()))
                    .collect();
                pairs.sort();
                pairs.join(" ")
            };
            assert_eq!(
                pairs(Some(&at)),
                "BAGGAGE=b CNI_ARGS=A=1;A=2 CNI_COMMAND=ADD CNI_CONTAINERID=id CNI_IFNAME=eth0 CNI_NETNS=/run/netns/t CNI_PATH=/a:/b TRACEPARENT=t TRACESTATE=s"
            );
            assert_eq!(
                pairs(None),
                "BAGGAGE=b CNI_ARGS= CNI_COMMAND=ADD CNI_CONTAINERID= CNI_IFNAME= CNI_NETNS= CNI_PATH=/a:/b TRACEPARENT=t TRACESTATE=s"
            );
        });
    }

    #[test]
    fn foreign_file_precedes_compiled_in_plugin_and_ours_runs_here() {
        let dir = Scratch::new();
        dir.write("other/bridge", "");
        std::fs::create_dir(dir.path().join("own")).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", dir.path().join("own/bridge")).unwrap();
        let find = |path: &str, kind: &str| {
            with_runtime(&[], path, |runtime| {
                runtime.find(kind).map(|program| match program {
                    Program::Own(entry) => entry.name.to_owned(),
                    Program::File(file) => file.to_string_lossy().into_owned(),
                })
            })
        };
        let at = |name: &str| format!("{}/{name}", dir.path().display());
        assert_eq!(find(&at("other"), "bridge").unwrap(), at("other/bridge"));
        assert_eq!(find(&at("own"), "bridge").unwrap(), "bridge");
        assert_eq!(find("/nonexistent", "bridge").unwrap(), "bridge", "a lone binary works");
        assert_eq!(find("", "bridge").unwrap(), "bridge");
        assert_eq!(
            find("/nonexistent", "nope").unwrap_err().msg,
            "failed to find plugin \"nope\" in path [/nonexistent]"
        );
        assert_eq!(find("", "nope").unwrap_err().msg, "no paths provided");
        assert_eq!(find("/", "../bridge").unwrap_err().msg, "invalid plugin name: ../bridge");
    }

    #[test]
    fn a_plugin_is_named_by_type_and_its_own_name() {
        let plugin = |text: &str| describe(&PluginConfig::parse(text.as_bytes()).unwrap());
        assert_eq!(plugin(r#"{"type":"noop"}"#), "type=\"noop\"");
        assert_eq!(plugin(r#"{"type":"noop","name":"x"}"#), "type=\"noop\" name=\"x\"");
    }
}
