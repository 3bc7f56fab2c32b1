//! What a person meets at the command line, and what a program does that reads it: suggestions, what
//! is in a pipe only or on a terminal only. Terminals are those of script(1).

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::attachment::skip;
use crate::support::call::{binary, farm};
use crate::support::scratch::Scratch;

fn run(args: &[&str]) -> Output {
    Command::new(binary()).args(args).env_remove("CNI_COMMAND").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The output of a command on a terminal with its exit status; None, after a skip, without
/// script(1).
fn on_terminal(program: &Path, args: &str, no_color: &str) -> Option<(String, i32)> {
    if Command::new("script").arg("--version").output().is_err() {
        skip("script(1)");
        return None;
    }
    let output = Command::new("script")
        .args(["-qec", &format!("{} {args}", program.display()), "/dev/null"])
        .env_remove("CNI_COMMAND")
        .env("TERM", "xterm")
        .env("NO_COLOR", no_color)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
    Some((text, output.status.code().unwrap()))
}

#[test]
fn a_wrong_word_is_answered_with_the_probable_one() {
    for (args, said) in [
        (&["brigde"][..], "did you mean \"bridge\"?"),
        (&["validat"], "did you mean \"validate\"?"),
        (&["no-such-thing"], "`cni-multi help` lists the commands"),
        (&["net", "inspekt"], "'inspect'"),
        (&["net", "delete", "lab", "red"], "'del'"),
        (&["net", "detach", "lab", "red"], "'del'"),
        (&["net", "show", "lab"], "'inspect'"),
        (&["net", "ps", "--json"], "'--output json'"),
        (&["ipam", "ls", "--json"], "'--output json'"),
        (&["validate", "--json"], "'--output json'"),
        (&["net", "add", "--dry-rum"], "unexpected argument '--dry-rum'"),
        (&["net", "gc", "--dry-rum"], "'--dry-run'"),
        (&["example", "portmop"], "did you mean \"portmap\"?"),
        (&["doctor", ""], "empty"),
        (&["doctor", "--selftest", "-o", "yaml"], "[possible values: text, json]"),
        (&["doctor", "--selftest", "red"], "cannot be used with"),
        (&["doctor", "--explain", "D331", "red"], "cannot be used with"),
        (&["doctor", "--explain", "D999"], "such as D331 or overlap"),
    ] {
        let output = run(args);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
        let text = stderr(&output);
        assert!(text.contains(said) && text.ends_with('\n'), "{args:?}: {text}");
    }
}

#[test]
fn help_of_every_command_is_plain_in_a_pipe() {
    fn below(command: &clap::Command, path: &[&str]) {
        if path == ["dhcp", "daemon"] {
            return; // its help is that of the reference's, on stderr
        }
        let output = run(&[path, &["--help"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{path:?}");
        assert!(text.ends_with('\n') && !text.contains('\u{1b}'), "{path:?}: {text:?}");
        for sub in command.get_subcommands() {
            below(sub, &[path, &[sub.get_name()]].concat());
        }
    }
    below(&cni_multi::cli::commands(), &[]);
}

/// Programs read lines without colours, people read columns. nerdctl and Nomad read the text of a plugin from a pipe, with
/// the status 0.
#[test]
fn output_is_one_line_in_a_pipe_and_indented_on_a_terminal() {
    let dir = Scratch::new();
    let plugin = json!({"type": "static", "ipam": {"type": "static"}});
    let network = json!({"cniVersion": "1.1.0", "name": "n", "plugins": [plugin]});
    std::fs::write(dir.join("n.conflist"), network.to_string()).unwrap();
    std::fs::write(dir.join("x.json"), "{,}").unwrap();
    let dir = dir.text();
    let words = format!("validate {dir}/x.json");
    let plain = run(&words.split(' ').collect::<Vec<_>>());
    assert!(plain.stderr.is_empty() && !plain.stdout.contains(&0x1b), "{plain:?}");
    let Some((shown, status)) = on_terminal(&binary(), &words, "") else { return };
    assert_eq!((shown.contains("\u{1b}[31merror"), Some(status)), (true, plain.status.code()));
    let shown = on_terminal(&binary(), &words, "1").unwrap().0;
    assert_eq!(shown.as_bytes(), plain.stdout, "NO_COLOR");
    let (text, status) = on_terminal(&farm().join("bridge"), "", "").unwrap();
    assert!(
        status == 2 && text.starts_with("CNI bridge plugin v") && text.ends_with('\n'),
        "{text}"
    );
    for line in [format!("net list -o json --conf-dir {dir}"), format!("validate -o json {dir}")] {
        let piped = run(&line.split(' ').collect::<Vec<_>>()).stdout;
        let piped = String::from_utf8(piped).unwrap();
        assert_eq!((piped.lines().count(), piped.ends_with('\n')), (1, true), "{line}: {piped}");
        let (shown, _) = on_terminal(&binary(), &line, "").unwrap();
        assert!(shown.lines().count() > 3 && shown.ends_with('\n'), "{line}: {shown}");
        let [piped, shown] =
            [piped, shown].map(|text| serde_json::from_str::<Value>(&text).unwrap());
        assert_eq!(piped, shown, "{line}");
    }
}
