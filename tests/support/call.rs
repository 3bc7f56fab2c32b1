//! One execution of one plugin, as a runtime would do it: environment and stdin in; stdout, stderr
//! and status out.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::entrance;

/// The plugins that a case runs. Ours and the reference are compared by running the same case on
/// both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The symlink farm of the binary under test.
    Ours,
    /// A directory of the reference plugins.
    Reference(PathBuf),
}

impl Peer {
    /// The directory that goes into CNI_PATH.
    pub fn dir(&self) -> &Path {
        match self {
            Peer::Ours => farm(),
            Peer::Reference(dir) => dir,
        }
    }

    /// The reference plugins, if they are installed: `CNI_REFERENCE` names their directory
    /// (tests/run sets it).
    pub fn reference() -> Option<Peer> {
        let dir = PathBuf::from(std::env::var_os("CNI_REFERENCE")?);
        dir.join("bridge").exists().then_some(Peer::Reference(dir))
    }

    /// Ours, and the reference where it is installed.
    pub fn all() -> Vec<Peer> {
        std::iter::once(Peer::Ours).chain(Peer::reference()).collect()
    }
}

/// The binary under test: `CNI_MULTI` if it is set, as it is for the release build, else the one
/// that cargo built for this run.
pub fn binary() -> PathBuf {
    std::env::var_os("CNI_MULTI")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_cni-multi")), PathBuf::from)
}

/// A directory of symlinks, one per plugin, as install.sh makes it; created once per test process.
pub fn farm() -> &'static Path {
    static FARM: OnceLock<PathBuf> = OnceLock::new();
    FARM.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("cni-multi-farm-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let listed = Command::new(binary()).arg("list").output().unwrap();
        for name in String::from_utf8(listed.stdout).unwrap().lines() {
            let link = dir.join(name);
            let _ = std::fs::remove_file(&link); // an earlier process may have had the same id
            std::os::unix::fs::symlink(binary(), link).unwrap();
        }
        dir
    })
}

/// The result of one execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Waits for the process to end.
    pub fn of(child: Child) -> Outcome {
        let output = child.wait_with_output().unwrap();
        Outcome {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("stdout is not one JSON value ({e}): {self:?}"))
    }

    /// The result of a successful call; an empty stdout is null.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 0, "the call failed: {self:?}");
        if self.stdout.is_empty() { Value::Null } else { self.json() }
    }

    /// The error object of a failed call.
    #[track_caller]
    pub fn err(&self) -> ErrorObject {
        assert_ne!(self.status, 0, "the call succeeded: {self:?}");
        let object = self.json();
        ErrorObject {
            code: object["code"].as_u64().unwrap_or_else(|| panic!("no code: {self:?}")),
            msg: object["msg"].as_str().unwrap_or_default().to_owned(),
            details: object["details"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// As `err`, of this code and with these words in its text.
    #[track_caller]
    pub fn fails(&self, code: u64, words: &str) -> ErrorObject {
        let error = self.err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.text().contains(words), "no {words:?} in {error:?}");
        error
    }

    /// All that a call leaves to its caller.
    #[track_caller]
    pub fn assert_is(&self, status: i32, stdout: &str, stderr: &str) {
        let is = (self.status, self.stdout.as_str(), self.stderr.as_str());
        assert_eq!(is, (status, stdout, stderr));
    }
}

/// The error object of the specification, section 5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorObject {
    pub code: u64,
    pub msg: String,
    pub details: String,
}

impl ErrorObject {
    /// Message and details: all the text that an operator sees.
    pub fn text(&self) -> String {
        format!("{}: {}", self.msg, self.details)
    }
}

/// A call to be made. `new` fills in what every runtime sends; a case changes the part it is about.
#[derive(Clone, Debug)]
pub struct Call {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: Vec<u8>,
    /// A command line put before the program, to run it in a namespace (`nsenter …`).
    pub wrapper: Vec<String>,
}

impl Call {
    pub fn new(peer: &Peer, plugin: &str, command: &str, stdin: impl AsRef<[u8]>) -> Call {
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "container-1"),
            ("CNI_NETNS", "/run/netns/nowhere"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", peer.dir().to_str().unwrap()),
        ];
        Call {
            program: peer.dir().join(plugin),
            args: vec![],
            env: env.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            stdin: stdin.as_ref().to_vec(),
            wrapper: vec![],
        }
    }

    /// `cni-multi WORDS` under this wrapper, without the variables of a runtime.
    pub fn cni_multi<W: AsRef<str>>(
        wrapper: &[String],
        words: impl IntoIterator<Item = W>,
    ) -> Call {
        let args = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let (env, wrapper) = (BTreeMap::new(), wrapper.to_vec());
        Call { program: binary(), args, env, stdin: vec![], wrapper }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<str>) -> Call {
        self.env.insert(name.to_owned(), value.as_ref().to_owned());
        self
    }

    /// Puts this directory of the host first in PATH.
    pub fn with_programs(mut self, dir: &str) -> Call {
        let path = std::env::var("PATH").unwrap_or_default();
        self.wrapper.extend(["env".to_owned(), format!("PATH={dir}:{path}")]);
        self
    }

    pub fn without(mut self, name: &str) -> Call {
        self.env.remove(name);
        self
    }

    pub fn wrapped(mut self, wrapper: &[String]) -> Call {
        self.wrapper = wrapper.to_vec();
        self
    }

    pub fn run(&self) -> Outcome {
        Outcome::of(self.spawn())
    }

    /// Starts the process and writes its stdin.
    pub fn spawn(&self) -> Child {
        let line: Vec<String> = self
            .wrapper
            .iter()
            .cloned()
            .chain(std::iter::once(self.program.to_str().unwrap().to_owned()))
            .chain(self.args.iter().cloned())
            .collect();
        let mut child = entrance::start(&line, |command| {
            command
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                .envs(&self.env)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        });
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(&self.stdin); // a plugin may end without reading it
        child
    }
}
