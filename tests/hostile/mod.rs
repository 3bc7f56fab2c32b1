//! Hostile input in names, configurations, results, streams and directories. docs/security-tests.md
//! lists the attacks.

mod cves;
mod forged_peer;
mod lying_prev_result;
mod names;
mod own_netns;
mod planted_files;
mod program_path;
mod renamed_links;
mod reused_path;
mod stdin;

use serde_json::Value;

use crate::support::call::{Call, Outcome};
use crate::support::patience;

/// In bytes. Only a plugin that reads an endless file to its end needs more.
const MEMORY: u64 = 1 << 30;

/// The call with limits of time and memory: exit status 124 means a hang; a call beyond the memory
/// limit ends without an answer.
fn bounded(call: Call) -> Call {
    let seconds = patience(20).as_secs();
    let words = format!("timeout -k 1 {seconds} prlimit --as={MEMORY}");
    under(call, &words.split(' ').collect::<Vec<_>>())
}

/// The call under another program.
fn under(mut call: Call, words: &[&str]) -> Call {
    call.wrapper.extend(words.iter().map(|word| (*word).to_owned()));
    call
}

/// The call with this working directory.
fn in_directory(call: Call, directory: &str) -> Call {
    under(call, &["sh", "-c", &format!("cd {directory} && exec \"$@\""), "sh"])
}

/// Whether the call succeeded, or printed its reason in one error object.
fn is_answer(outcome: &Outcome) -> bool {
    let json = serde_json::from_str::<Value>(&outcome.stdout);
    match outcome.status {
        0 => outcome.stdout.is_empty() || json.is_ok(),
        1 => json.is_ok_and(|object| {
            object["code"].is_u64() && object["msg"].as_str().is_some_and(|msg| !msg.is_empty())
        }),
        _ => false, // killed by a signal, or by `timeout`
    }
}
