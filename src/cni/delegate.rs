//! Finding a plugin in CNI_PATH and running it as a process: what a runtime does for every plugin
//! of a list, and what a plugin does for its IPAM (specification, sections 3 and 4).

use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::answer::{ErrorObject, Versions};
use super::conversation::{Manner, Output, converse};
use super::decode;
use super::env::Environment;
use super::json::Value;
use super::result::Document;
use super::version;
use crate::deadline::{Clock, Deadline};
use crate::error::{Code, Error, Result, errno_text};
use crate::plain_file::identity;
use crate::timing::{self, Wait};

/// Finds a plugin by name: in the first directory of `path` whose entry is a regular file, symlinks
/// followed. Whether it is executable shows when it is executed.
///
/// An empty element, from an extra `:`, is ignored. The reference takes it for the working
/// directory, which an author of CNI_PATH does not expect.
pub fn find(name: &str, path: &[PathBuf]) -> Result<PathBuf> {
    if name.is_empty() {
        return Err(Error::new(Code::INVALID_CONFIG, "no plugin name provided"));
    }
    if name.contains('/') {
        return Err(Error::new(Code::INVALID_CONFIG, format!("invalid plugin name: {name}")));
    }
    let mut dirs = path.iter().filter(|dir| !dir.as_os_str().is_empty()).peekable();
    if dirs.peek().is_none() {
        return Err(Error::new(Code::DELEGATE, "no paths provided"));
    }
    let mut programs = dirs.map(|dir| dir.join(name));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        let dirs: Vec<_> = path.iter().map(|dir| dir.to_string_lossy()).collect();
        let msg = format!("failed to find plugin {name:?} in path [{}]", dirs.join(" "));
        Error::new(Code::DELEGATE, msg)
    })
}

/// Whether the file is this binary, under any name; false if that cannot be determined.
pub fn is_this_binary(program: &Path) -> bool {
    static OWN: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let own = *OWN.get_or_init(|| identity("/proc/self/exe"));
    own.is_some() && identity(program) == own
}

/// Runs a plugin with `stdin` and then end of file, and exactly the variables of `env`; returns its
/// stdout. Its stderr is always copied to ours.
///
/// The error object of a failed plugin becomes the error, with its code. Without one the code is
/// 104, or 11 if the file stays open for writing. There is no timeout, as the state that a killed
/// plugin leaves behind is unknown: the time it takes is not time that `clock` has lost.
pub fn exec(program: &Path, env: &Environment, stdin: &[u8], clock: &Clock) -> Result<Vec<u8>> {
    let _account = timing::open(|| format!("{} {}", env.get("CNI_COMMAND"), program.display()));
    let child = spawn(program, &mut command(program, env), clock.deadline())?;
    let output = clock
        .outside(|| timing::waiting(Wait::Programs, || converse(child, stdin, &Manner::Patient)))
        .map_err(|e| streams_failed(program, &e))?;
    stdout_of(program, output)
}

/// The error for a plugin with failed streams.
fn streams_failed(program: &Path, error: &io::Error) -> Error {
    Error::io(format_args!("run plugin {program:?}"), error).with_code(Code::DELEGATE)
}

/// The stdout of a plugin, or the error if it failed.
fn stdout_of(program: &Path, output: Output) -> Result<Vec<u8>> {
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(parse_error(program, &output.stdout, &output.stderr, &reason(output.status)))
    }
}

/// The result on a plugin's stdout, in the version that it names, else in the configuration's.
pub fn parse_result(stdout: &[u8], config_version: &str) -> Result<Document> {
    let value = Value::parse(stdout).map_err(|e| e.to_string()).and_then(Value::into_object);
    let value = value.map_err(|problem| {
        Error::new(Code::DECODE, format!("failed to unmarshal raw result: {problem}"))
    })?;
    Document::parse(&value, config_version).map_err(|e| Error::new(Code::DECODE, e.to_string()))
}

/// The error of a failed plugin: the error object on its stdout, else the reference's words for a
/// missing one and the program's path. `reason` says how it ended.
pub fn parse_error(program: &Path, stdout: &[u8], stderr: &[u8], reason: &str) -> Error {
    let stdout = String::from_utf8_lossy(stdout);
    let stderr = String::from_utf8_lossy(stderr);
    let object = match stdout.trim() {
        "" => Ok(ErrorObject::default()),
        text => Value::parse(text.as_bytes()).and_then(|value| decode::from_value(&value)),
    };
    let how = match object {
        Ok(object) if object.code != 0 || !object.msg.is_empty() => {
            let code = if object.code == 0 { Code::DELEGATE } else { Code(object.code) };
            return Error::new(code, object.msg).with_details(object.details);
        }
        Ok(_) if stderr.is_empty() => format!(" with no error message: {reason}"),
        Ok(_) => format!(": {stderr:?}: {reason}"),
        Err(error) => format!(" but error parsing its diagnostic message {stdout:?}: {error}"),
    };
    Error::new(Code::DELEGATE, format!("netplugin failed{how}"))
        .with_details(format_args!("the plugin is {}", program.display()))
}

/// Asks a plugin for the versions that it supports.
///
/// A plugin that does not know VERSION is of 0.1.0. The dummy values are for plugins of that age,
/// which require every variable for any command.
pub fn versions(program: &Path, env: &Environment) -> Result<Vec<String>> {
    let (env, stdin) = version_request(env);
    read_answer(exec(program, &env, &stdin, &Clock::default()))
}

/// As [`versions`], with a timeout. The plugin's stderr is kept for the error message.
pub fn versions_within(
    program: &Path,
    env: &Environment,
    patience: Duration,
) -> Result<Vec<String>> {
    let (env, stdin) = version_request(env);
    let mut command = command(program, &env);
    let child = spawn(program, command.process_group(0), Deadline::after(patience))?;
    let stdout = match converse(child, &stdin, &Manner::Within(patience)) {
        Ok(output) => stdout_of(program, output),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            Err(Error::new(Code::TRY_AGAIN, format!("no answer in {} s", patience.as_secs()))
                .with_details(format_args!("the plugin is {}", program.display())))
        }
        Err(error) => Err(streams_failed(program, &error)),
    };
    read_answer(stdout)
}

/// The environment and the stdin of VERSION.
fn version_request(env: &Environment) -> (Environment, Vec<u8>) {
    let asked = [
        ("CNI_COMMAND", "VERSION"),
        ("CNI_CONTAINERID", ""),
        ("CNI_NETNS", "dummy"),
        ("CNI_IFNAME", "dummy"),
        ("CNI_ARGS", ""),
        ("CNI_PATH", "dummy"),
    ];
    let env = asked.iter().fold(env.clone(), |env, (name, value)| env.with(name, *value));
    let stdin = Value::object([("cniVersion", Value::text(version::CURRENT))]);
    (env, stdin.to_text().into_bytes())
}

fn read_answer(answered: Result<Vec<u8>>) -> Result<Vec<String>> {
    match answered {
        Ok(stdout) => parse_versions(&stdout),
        Err(error) if error.msg == "unknown CNI_COMMAND: VERSION" => {
            Ok(vec![version::ABSENT.to_owned()])
        }
        Err(error) => Err(error),
    }
}

/// Parses the answer to VERSION. One of 0.2.0 needs no list: only 0.1.0 and itself existed.
pub fn parse_versions(stdout: &[u8]) -> Result<Vec<String>> {
    let answer = Value::parse(stdout).and_then(|value| decode::from_value::<Versions>(&value));
    let answer = answer.map_err(|e| invalid_versions(&e.to_string()))?;
    match (answer.cni_version.as_str(), answer.supported_versions.is_empty()) {
        ("", _) => Err(invalid_versions("missing field cniVersion")),
        (_, false) => Ok(answer.supported_versions),
        ("0.2.0", true) => Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]),
        (_, true) => Err(invalid_versions("missing field supportedVersions")),
    }
}

fn invalid_versions(problem: &str) -> Error {
    Error::new(Code::DECODE, format!("decoding version info: {problem}"))
}

/// How long to wait for a file that is open for writing, as during an upgrade.
const BUSY_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5000 });
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Starts the plugin, with retries while its file is open for writing. The reference also means to
/// retry, but then fails with "exec: already started".
fn spawn(program: &Path, command: &mut Command, deadline: Deadline) -> Result<Child> {
    let end = deadline.of_wait(BUSY_PATIENCE);
    loop {
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() != ErrorKind::ExecutableFileBusy => {
                return Err(not_started(program, &error).with_code(Code::DELEGATE));
            }
            Err(error) if Instant::now() >= end => {
                return Err(not_started(program, &error).with_code(Code::TRY_AGAIN));
            }
            Err(_) => thread::sleep(BUSY_PAUSE),
        }
    }
}

fn command(program: &Path, env: &Environment) -> Command {
    // argv[0] selects the plugin in a multicall binary. `.` prevents a PATH lookup of a bare name.
    let mut command = Command::new(Path::new(".").join(program));
    command
        .arg0(program)
        .env_clear()
        .envs(env.iter())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn not_started(program: &Path, error: &io::Error) -> Error {
    let reason = error.raw_os_error().map_or_else(|| error.to_string(), errno_text);
    Error::new(
        Code::DELEGATE,
        format!(
            "netplugin failed with no error message: fork/exec {}: {reason}",
            program.display()
        ),
    )
}

/// The reason for the plugin's end, as Go spells it.
fn reason(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => {
            let core = if status.core_dumped() { " (core dumped)" } else { "" };
            match SIGNALS.iter().find(|(known, _)| *known as i32 == signal) {
                Some((_, name)) => format!("signal: {name}{core}"),
                None => format!("signal: signal {signal}{core}"),
            }
        }
        (None, None) => status.to_string(),
    }
}

/// The signals that end plugins in practice, as Go names them; all others have only a number.
const SIGNALS: [(Signal, &str); 10] = [
    (Signal::SIGHUP, "hangup"),
    (Signal::SIGINT, "interrupt"),
    (Signal::SIGILL, "illegal instruction"),
    (Signal::SIGABRT, "aborted"),
    (Signal::SIGBUS, "bus error"),
    (Signal::SIGFPE, "floating point exception"),
    (Signal::SIGKILL, "killed"),
    (Signal::SIGSEGV, "segmentation fault"),
    (Signal::SIGPIPE, "broken pipe"),
    (Signal::SIGTERM, "terminated"),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A directory of plugins that are shell scripts.
    struct Plugins(PathBuf);

    impl Plugins {
        fn new(test: &str) -> Plugins {
            let dir = std::env::temp_dir()
                .join(format!("cni-multi-delegate-{test}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Plugins(dir)
        }

        fn script(&self, name: &str, body: &str) -> PathBuf {
            let program = self.0.join(name);
            fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            program
        }
    }

    impl Drop for Plugins {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn env(pairs: &[(&str, &str)]) -> Environment {
        let path = [("PATH", "/usr/bin:/bin")];
        path.iter().chain(pairs).map(|(key, value)| (key.into(), value.into())).collect()
    }

    fn exec(program: &Path, env: &Environment, stdin: &[u8]) -> Result<Vec<u8>> {
        super::exec(program, env, stdin, &Clock::default())
    }

    #[test]
    fn answers_to_version_are_read_as_in_libcni() {
        let read =
            |text: &str| parse_versions(text.as_bytes()).map_err(|e| (e.code.0, e.msg.clone()));
        let list = |versions: &[&str]| {
            Ok(versions.iter().map(|version| (*version).to_owned()).collect::<Vec<_>>())
        };
        let missing =
            |field: &str| Err((6, format!("decoding version info: missing field {field}")));
        assert_eq!(
            read(r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#),
            list(&["0.4.0", "1.0.0"])
        );
        assert_eq!(read(r#"{"cniVersion":"0.2.0"}"#), list(&["0.1.0", "0.2.0"]));
        assert_eq!(read(r#"{"supportedVersions":["0.4.0"]}"#), missing("cniVersion"));
        assert_eq!(read(r#"{"cniVersion":"1.0.0"}"#), missing("supportedVersions"));
        assert_eq!(
            read("garbage")
                .map_err(|(code, msg)| (code, msg.starts_with("decoding version info: "))),
            Err((6, true))
        );
    }

    #[test]
    fn a_plugin_is_asked_for_its_versions_as_the_oldest_understand() {
        let plugins = Plugins::new("versions");
        let told = plugins.0.join("told");
        let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
        let variables = "$CNI_COMMAND,$CNI_CONTAINERID,$CNI_NETNS,$CNI_IFNAME,$CNI_ARGS,$CNI_PATH";
        let body = format!("echo \"{variables} $(cat)\" > {}; echo '{answer}'", told.display());
        let asked = versions(
            &plugins.script("new", &body),
            &env(&[("CNI_COMMAND", "ADD"), ("CNI_ARGS", "A=b")]),
        );
        assert_eq!(asked.unwrap(), ["1.0.0"]);
        let expected = "VERSION,,dummy,dummy,,dummy {\"cniVersion\":\"1.1.0\"}\n";
        assert_eq!(fs::read_to_string(told).unwrap(), expected);

        let old = plugins
            .script("old", r#"echo '{"code":100,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1"#);
        assert_eq!(versions(&old, &env(&[])).unwrap(), ["0.1.0"]);
        let broken = plugins.script("broken", r#"echo '{"code":42,"msg":"banana"}'; exit 1"#);
        assert_eq!(
            versions(&broken, &env(&[])).map_err(|e| (e.code.0, e.msg.clone())),
            Err((42, "banana".to_owned()))
        );
    }

    #[test]
    fn the_first_directory_with_a_regular_file_has_the_plugin() {
        let plugins = Plugins::new("find");
        let a = plugins.0.join("a");
        let b = plugins.0.join("b");
        fs::create_dir_all(a.join("x")).unwrap(); // a directory of that name is not a plugin
        fs::create_dir_all(&b).unwrap();
        fs::write(b.join("x"), "").unwrap();
        std::os::unix::fs::symlink(b.join("x"), b.join("y")).unwrap();
        std::os::unix::fs::symlink("/nowhere", a.join("y")).unwrap();
        let path = [PathBuf::from("/nonexistent"), a, b.clone()];
        assert_eq!(find("x", &path).unwrap(), b.join("x"));
        assert_eq!(
            find("y", &path).unwrap(),
            b.join("y"),
            "a link stays a link: its name says which plugin it is"
        );
    }

    #[test]
    fn a_plugin_that_is_nowhere_is_told_in_the_reference_s_words() {
        let dirs = ["/nonexistent".into(), "/dev".into()];
        let cases: [(&str, &[PathBuf], &str); 5] = [
            ("", &dirs, "no plugin name provided"),
            ("../x", &dirs, "invalid plugin name: ../x"),
            ("x", &[], "no paths provided"),
            ("..", &dirs, "failed to find plugin \"..\" in path [/nonexistent /dev]"),
            ("null", &dirs, "failed to find plugin \"null\" in path [/nonexistent /dev]"),
        ];
        for (name, path, msg) in cases {
            assert_eq!(find(name, path).unwrap_err().to_string(), msg);
        }
    }

    #[test]
    fn this_binary_is_known_by_any_name() {
        let plugins = Plugins::new("own");
        let link = plugins.0.join("bridge");
        std::os::unix::fs::symlink("/proc/self/exe", &link).unwrap();
        assert!(is_this_binary(&link));
        assert!(
            !is_this_binary(Path::new("/bin/sh")) && !is_this_binary(Path::new("/nonexistent"))
        );
    }

    #[test]
    fn a_delegate_gets_stdin_the_environment_and_nothing_else() {
        let plugins = Plugins::new("pass");
        let program = plugins.script(
            "echo",
            r#"echo "$0|$CNI_COMMAND|$FOO|$HOME|$(cat)"; echo words for people >&2"#,
        );
        let stdout = exec(
            &program,
            &env(&[("CNI_COMMAND", "ADD"), ("FOO", "first"), ("FOO", "bar")]),
            b"{\"a\": 1}",
        )
        .unwrap();
        assert_eq!(
            String::from_utf8(stdout).unwrap(),
            format!("{}|ADD|bar||{{\"a\": 1}}\n", program.display())
        );
    }

    #[test]
    fn nobody_waits_for_anybody() {
        let plugins = Plugins::new("pipes");
        let much = vec![b'x'; 1 << 20];
        let talks_first = plugins.script(
            "talk",
            "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2 2>/dev/null; cat >/dev/null",
        );
        assert_eq!(exec(&talks_first, &env(&[]), &much).unwrap().len(), 300_000);
        let never_reads = plugins.script("deaf", "exit 0");
        assert_eq!(exec(&never_reads, &env(&[]), &much).unwrap(), b"");
    }

    #[test]
    fn an_error_object_is_adopted_and_its_absence_told() {
        let plugins = Plugins::new("errors");
        let cases = [
            (
                r#"echo '{"cniVersion":"1.0.0","code":42,"msg":"banana","details":"ripe"}'; exit 1"#,
                42,
                "banana; ripe",
            ),
            (r#"echo '{"Msg":"banana"}'; echo noise >&2; exit 2"#, 104, "banana"),
            (r#"echo '{"code":7}'; exit 1"#, 7, ""),
            (
                "exit 1",
                104,
                "netplugin failed with no error message: exit status 1; the plugin is PROGRAM",
            ),
            (
                "printf 'some stderr message' >&2; exit 1",
                104,
                "netplugin failed: \"some stderr message\": exit status 1; the plugin is PROGRAM",
            ),
            (
                "echo '{}'; exit 3",
                104,
                "netplugin failed with no error message: exit status 3; the plugin is PROGRAM",
            ),
            (
                "kill -9 $$",
                104,
                "netplugin failed with no error message: signal: killed; the plugin is PROGRAM",
            ),
            (
                "kill -10 $$",
                104,
                "netplugin failed with no error message: signal: signal 10; the plugin is PROGRAM",
            ),
        ];
        for (body, code, text) in cases {
            let program = plugins.script("fails", body);
            let error = exec(&program, &env(&[]), b"{}").unwrap_err();
            assert_eq!(
                (error.code.0, error.to_string()),
                (code, text.replace("PROGRAM", &program.to_string_lossy())),
                "{body}"
            );
        }
        for body in ["echo oops; exit 1", r#"echo '{"code":"x"}'; exit 1"#, "echo '[]'; exit 1"] {
            let error = exec(&plugins.script("fails", body), &env(&[]), b"{}").unwrap_err();
            assert!(
                error
                    .msg
                    .starts_with("netplugin failed but error parsing its diagnostic message \""),
                "{body}: {error}"
            );
        }
    }

    #[test]
    fn a_plugin_that_cannot_start_is_named() {
        let plugins = Plugins::new("start");
        let program = plugins.script("x", "exit 0");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        let error = exec(&program, &env(&[]), b"").unwrap_err();
        let text = format!(
            "netplugin failed with no error message: fork/exec {}: permission denied",
            program.display()
        );
        assert_eq!((error.code, error.to_string()), (Code::DELEGATE, text));
        let error = exec(Path::new("sh"), &env(&[]), b"").unwrap_err();
        assert!(
            error.msg.ends_with("fork/exec sh: no such file or directory"),
            "a bare name is not looked up in PATH: {error}"
        );
    }

    #[test]
    fn a_file_open_for_writing_is_tried_again_and_never_a_success() {
        let plugins = Plugins::new("busy");
        let program = plugins.script("x", "echo '{}'");
        let open = fs::File::options().append(true).open(&program).unwrap();
        let error = exec(&program, &env(&[]), b"").unwrap_err();
        assert_eq!(
            (error.code, error.msg.ends_with("text file busy")),
            (Code::TRY_AGAIN, true),
            "{error}"
        );
        let closer = thread::spawn(move || {
            thread::sleep(BUSY_PAUSE);
            drop(open);
        });
        assert_eq!(exec(&program, &env(&[]), b"").unwrap(), b"{}\n");
        closer.join().unwrap();
    }

    #[test]
    fn a_result_has_its_own_version_or_the_configuration_s() {
        let version = |stdout: &str, config: &str| {
            parse_result(stdout.as_bytes(), config).map(|result| result.cni_version().to_owned())
        };
        assert_eq!(version(r#"{"cniVersion":"0.4.0"}"#, "1.0.0").unwrap(), "0.4.0");
        assert_eq!(version(r#"{"cniVersion":""}"#, "1.0.0").unwrap(), "1.0.0");
        assert_eq!(version("{}", "0.3.1").unwrap(), "0.3.1");
        assert_eq!(version("null", "").unwrap(), "0.1.0");
        let error = |stdout: &str| version(stdout, "1.0.0").unwrap_err();
        assert_eq!(
            error(r#"{"cniVersion":"0.4567.0"}"#).to_string(),
            "unsupported CNI result version \"0.4567.0\""
        );
        for text in ["", "[]", "{"] {
            let error = error(text);
            assert!(
                error.code == Code::DECODE
                    && error.msg.starts_with("failed to unmarshal raw result: "),
                "{error}"
            );
        }
    }
}
