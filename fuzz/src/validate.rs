//! Any bytes as a file for `cni-multi validate`: it reports its findings as text and as JSON, with
//! the same exit status.

use cni_multi::cni::env::Environment;
use cni_multi::cni::json::Value;
use cni_multi::commands::validate;
use cni_multi::terminal::Streams;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let ((status, _), (again, json)) = (look(bytes, "text"), look(bytes, "json"));
    assert!(status == again && status < 2, "{status} and {again}");
    let found = Value::parse(&json).expect("it is JSON");
    let errors = found.get("findings").map(Value::items).unwrap_or_default().iter();
    let is_error = |finding: &Value| finding.get("severity").and_then(Value::as_str) == Some("error");
    assert_eq!(errors.filter(|finding| is_error(finding)).count() > 0, status == 1, "{}", found.to_text());
}

/// Runs the command with a plugin path that does not exist, so that it starts no program.
fn look(mut bytes: &[u8], output: &str) -> (u8, Vec<u8>) {
    let words = ["validate", "-", "--plugin-path", "/nonexistent", "-o", output];
    let command = validate::COMMAND;
    let matches =
        (command.command_line)().try_get_matches_from(words).expect("it is a command line");
    let (mut stdout, mut stderr) = (vec![], vec![]);
    let mut io = Streams { stdin: &mut bytes, stdout: &mut stdout, stderr: &mut stderr };
    ((command.run)(&matches, &Environment::default(), &mut io), stdout)
}
