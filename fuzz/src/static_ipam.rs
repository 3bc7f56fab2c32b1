//! Any configuration and CNI_ARGS in a whole execution of the static plugin, which uses no kernel
//! interface: its output is one JSON document, a result of the configuration's version or an error
//! object, and never that of a panic.
//!
//! The input is the configuration, a line of three hyphens, CNI_ARGS.

use cni_multi::cni::env::Environment;
use cni_multi::cni::json::Value;
use cni_multi::cni::result::Document;
use cni_multi::error::Code;
use cni_multi::registry::{PLUGINS, find};
use cni_multi::runner;
use cni_multi::terminal::Streams;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let [config, args] = crate::parts(bytes);
    for command in ["ADD", "CHECK", "GET", "DEL", "STATUS", "GC", "VERSION"] {
        require_answer(command, &call("static", command, "one", config, &String::from_utf8_lossy(args)));
    }
}

/// The exit status and stdout of a call for a namespace that does not exist.
pub fn call(plugin: &str, command: &str, id: &str, mut config: &[u8], args: &str) -> (u8, Vec<u8>) {
    let env: Environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", id),
        ("CNI_NETNS", "/nonexistent/netns"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", args),
        ("CNI_PATH", "/nonexistent/bin"),
    ]
    .into_iter()
    .map(|(name, value)| (name.into(), value.into()))
    .collect();
    let (mut stdout, mut stderr) = (vec![], vec![]);
    let mut io = Streams { stdin: &mut config, stdout: &mut stdout, stderr: &mut stderr };
    let entry = find(plugin).expect("it is compiled in");
    let status = runner::run(entry, PLUGINS, &env, &mut io);
    assert!(stderr.is_empty(), "{command}: {:?}", String::from_utf8_lossy(&stderr));
    (status, stdout)
}

/// Checks that the output is valid for any plugin. Returns the result of a successful ADD.
pub fn require_answer(command: &str, (status, stdout): &(u8, Vec<u8>)) -> Option<Document> {
    let said = || format!("{command}: {status}, {}", String::from_utf8_lossy(stdout));
    if *status == 0 && !["ADD", "GET", "VERSION"].contains(&command) {
        assert!(stdout.is_empty(), "{}", said());
        return None;
    }
    let value = Value::parse(stdout).unwrap_or_else(|error| panic!("{error}: {}", said()));
    match (status, command) {
        (0, "VERSION") => None,
        (0, _) => Some(Document::parse(&value, "").unwrap_or_else(|error| panic!("{error}: {}", said()))),
        _ => {
            let code = value.get("code").and_then(Value::as_u64);
            assert!(code.is_some_and(|code| code != u64::from(Code::BUG.0)), "{}", said());
            assert!(value.get("msg").and_then(Value::as_str).is_some_and(|msg| !msg.is_empty()), "{}", said());
            None
        }
    }
}
