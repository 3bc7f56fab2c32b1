//! `cni-multi validate`: each folder of tests/fixtures/validate is a directory of configurations,
//! and its file `expected` has the output for it, with the exit status below. The plugins are ours
//! and those in `bin` of the folder.

mod definitions;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cni_multi::commands::fault::Fault;
use cni_multi::commands::validate::FAULTS;
use serde_json::{Value, json};

use crate::support::call::{Outcome, binary, farm};
use crate::support::patience;
use crate::support::scratch::Scratch;
use crate::support::table::cells;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/validate")
}

/// All fixture folders, sorted by name.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// Runs `cni-multi validate` in a directory.
fn validate(dir: &Path, args: &[&str], stdin: &[u8]) -> Outcome {
    outcome(Command::new(binary()), dir, args, stdin)
}

/// As `validate`, with this command as the program.
fn outcome(mut command: Command, dir: &Path, args: &[&str], stdin: &[u8]) -> Outcome {
    let mut child = command
        .arg("validate")
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("CNI_PATH", format!("{}:./bin", farm().display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), stdin); // it need not read it
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap().replace(farm().to_str().unwrap(), "FARM")
    };
    Outcome {
        status: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// A scratch directory with one network configuration.
fn scratch(name: &str, text: &str) -> Scratch {
    let dir = Scratch::new();
    fs::write(dir.join(name), text).unwrap();
    dir
}

/// A script in the folder of plugins of such a directory.
fn plugin(dir: &Scratch, name: &str, body: &str) {
    fs::create_dir_all(dir.join("bin")).unwrap();
    let program = dir.join("bin").join(name);
    fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// A further name of a plugin, and of its IPAM plugin.
#[test]
fn an_alias_is_checked_as_the_plugin_that_it_is() {
    let text = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "cnv-bridge", "isGatway": true,
        "ipam": {"type": "cnv-ipam", "rnges": [[{"subnet": "10.0.0.0/99"}]]}}, {"type": "cnv-bridge"}]}"#;
    let dir = scratch("10-pods.conflist", text);
    let path = format!("--plugin-path={}:.", farm().display());
    let unknown = validate(Path::new(dir.text()), &[&path, "10-pods.conflist"], b"");
    assert!(unknown.stdout.contains("failed to find plugin"), "{unknown:?}");
    for (alias, plugin) in [("cnv-bridge", "bridge"), ("cnv-ipam", "host-local")] {
        symlink(farm().join(plugin), dir.join(alias)).unwrap();
    }
    let outcome = validate(Path::new(dir.text()), &[&path, "10-pods.conflist"], b"");
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(!outcome.stdout.contains("failed to find plugin"), "{outcome:?}");
    for found in ["isGateway", "ranges", "creates the interface that bridge has created"] {
        assert!(outcome.stdout.contains(found), "{found}: {outcome:?}");
    }
    // The checks that are made of plugins with this name alone.
    let text = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "cnv-bridge", "isGateway": true,
        "ipam": {"type": "cnv-ipam", "ranges": [[{"subnet": "10.0.0.0/24", "gateway": "10.0.0.255"}]]}}]}"#;
    fs::write(dir.join("10-pods.conflist"), text).unwrap();
    let flannel = r#"{"cniVersion": "1.1.0", "name": "f", "plugins": [{"type": "flannel",
        "delegate": {"type": "cnv-bridge", "mtu": "x"}}, {"type": "cnv-bridge", "ipam": {"type": "cnv-bridge"}}]}"#;
    fs::write(dir.join("20-f.conflist"), flannel).unwrap();
    let outcome = validate(Path::new(dir.text()), &[&path, "."], b"");
    for found in ["10.0.0.255 is the broadcast", "delegate.mtu", "bridge is a main plugin"] {
        assert!(outcome.stdout.contains(found), "{found}: {outcome:?}");
    }
}

#[test]
fn every_fixture_is_reported_as_expected() {
    for folder in folders() {
        let outcome = validate(&folder, &["."], b"");
        assert_eq!(outcome.stderr, "", "{folder:?}");
        let printed = format!("{}status {}\n", outcome.stdout, outcome.status);
        let expected = fs::read_to_string(folder.join("expected")).unwrap_or_default();
        assert!(printed == expected, "{folder:?} prints\n{printed}\nexpected is\n{expected}");
    }
}

/// The findings of a folder from the JSON output.
fn findings(folder: &Path) -> Vec<Value> {
    let outcome = validate(folder, &[".", "-o", "json"], b"");
    outcome.json()["findings"].as_array().unwrap().clone()
}

#[test]
fn every_code_has_a_row_and_a_fixture_and_there_is_no_other() {
    let found: BTreeSet<(String, String)> = folders()
        .iter()
        .flat_map(|folder| findings(folder))
        .map(|it| ["code", "severity"].map(|key| it[key].as_str().unwrap().to_owned()).into())
        .chain([("not-on-path".to_owned(), "warning".to_owned())]) // see `a_compiled_in_plugin_without_a_path_…`
        .collect();
    let codes: BTreeSet<&str> = FAULTS.iter().map(|it| it.code).collect();
    let of = |it: &Fault| (it.code.to_owned(), it.severity.word().to_owned());
    assert_eq!(found, FAULTS.iter().map(of).collect());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let has = findings(&folder).iter().any(|finding| finding["code"] == name.as_str());
        assert_eq!(has, codes.contains(name.as_str()), "{folder:?} is named after a code");
    }
}

#[test]
fn tools_get_every_field_and_the_picks() {
    let text = "{\n  \"cniVersion\": \"1.1.0\",\n  \"name\": \"n\",\n  \"plugins\": [{ \"type\": \"ptp\", \"mtu\": 40, \"ipMask\": true,\n    \"ipam\": { \"type\": \"host-local\", \"subnet\": \"10.1.0.0/24\" } }]\n}\n";
    let dir = scratch("10-n.conflist", text);
    let outcome = validate(Path::new(dir.text()), &["--output", "json", "."], b"");
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let finding = |column: u32, end: u32, path: &str| {
        json!({"file": "./10-n.conflist", "line": 4, "column": column, "endColumn": end, "path": path,
            "severity": "error", "code": "invalid-value", "message": "plugins[0].mtu: 40 is out of range",
            "expected": "68 to 65535", "hint": ""})
    };
    let mut unknown = finding(43, 51, "plugins[0].ipMask");
    unknown["severity"] = json!("warning");
    unknown["code"] = json!("unknown-key");
    unknown["message"] = json!("plugins[0].ipMask: not a key of ptp");
    unknown["expected"] = json!("");
    unknown["hint"] = json!("did you mean \"ipMasq\"?");
    assert_eq!(outcome.json()["findings"], json!([finding(39, 41, "plugins[0].mtu"), unknown]));
    let picks = outcome.json()["picks"].clone();
    assert_eq!(
        picks[0],
        json!({"runtime": "containerd", "directory": ".", "network": "n", "file": "10-n.conflist",
        "reason": "\"n\" of 10-n.conflist: the first file by name"})
    );
    assert_eq!(picks.as_array().unwrap().len(), 4, "{picks}");
}

/// The folder, the arguments, and the status.
const STATUSES: [(&str, &str, i32); 8] = [
    ("no-version", ".", 0),
    ("no-version", ". --strict", 1),
    ("clean", ". --strict", 0),
    ("clean", "--nonsense", 2),
    ("clean", "-o yaml .", 2),
    ("clean", "nowhere", 2),
    ("clean", "", 2),
    ("clean", "/dev/null", 2),
];

/// A clean file is not worth a word, and what cannot be asked is said on stderr.
#[test]
fn the_status_tells_findings_from_wrong_arguments() {
    for (folder, args, status) in STATUSES {
        let words: Vec<&str> = args.split(' ').collect();
        let outcome = validate(&fixtures().join(folder), &words, b"");
        assert_eq!(outcome.status, status, "{folder} {args}: {outcome:?}");
        assert_eq!(
            (outcome.stdout.is_empty(), outcome.stderr.is_empty()),
            (status == 2, status != 2)
        );
    }
    for file in ["10-lab.conflist", "20-schema-example.conf", "30-dropped.conflist"] {
        validate(&fixtures().join("clean"), &[file], b"").assert_is(0, "", "");
    }
}

/// Plugins of a text on stdin, of no directory, and words of the report; none where it has no finding.
const ON_STDIN: &str = r#"
"type": "loopback"
"plugins": [{"type": "loopback"}, {"type": "loopbak"}] | <stdin>:1:
"plugins": [{"type": "loopback"}]
"plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0"}}] | add the prefix length, such as "10.1.0.0/24"
"plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/255.255.255.0"}}] | write "10.1.0.0/24"
"plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/33"}}] | the prefix length is a number from 0 to 32
"#;

#[test]
fn a_text_on_stdin_is_what_it_seems_to_be() {
    let dir = Scratch::new();
    fs::create_dir(dir.join("n")).unwrap();
    fs::write(dir.join("n/10-x.conf"), "{").unwrap();
    for [plugins, said] in cells(ON_STDIN) {
        let text = format!(r#"{{"cniVersion": "1.1.0", "name": "n", {plugins}}}"#);
        let outcome = validate(Path::new(dir.text()), &["-"], text.as_bytes());
        assert_eq!(
            (outcome.status, outcome.stdout.is_empty()),
            (i32::from(!said.is_empty()), said.is_empty()),
            "{text}: {outcome:?}"
        );
        assert!(outcome.stdout.contains(said), "{text}: {outcome:?}");
        assert!(said.is_empty() || outcome.stdout.ends_with("\n1 file, 1 error\n"), "{outcome:?}");
    }
}

/// Reading a FIFO would block, so a file that is one is reported, and the others are checked.
#[test]
fn a_pipe_is_not_waited_for() {
    let dir = scratch(
        "20-n.conflist",
        r#"{ "cniVersion": "1.1.0", "name": "n", "plugins": [{ "type": "loopback" }] }"#,
    );
    nix::unistd::mkfifo(&dir.join("10-pipe.conflist"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let outcome = validate(Path::new(dir.text()), &["."], b"");
    let first = "./10-pipe.conflist: error: open: not a regular file [unreadable]\n";
    assert!(outcome.status == 1 && outcome.stdout.starts_with(first), "{outcome:?}");
    let outcome = validate(Path::new(dir.text()), &["10-pipe.conflist"], b"");
    outcome.assert_is(2, "", "10-pipe.conflist: open: not a regular file\n");
}

/// The plugin is killed together with the processes it has started.
#[test]
fn a_plugin_that_does_not_answer_is_not_waited_for() {
    let text = r#"{ "cniVersion": "1.1.0", "name": "n", "plugins": [{ "type": "silent" }, { "type": "closed" }] }"#;
    let dir = scratch("10-n.conflist", text);
    let pids = dir.join("pids");
    let stay = format!("echo $$ >>{0}; sleep 600 & echo $! >>{0}; wait", pids.display());
    plugin(&dir, "silent", &stay);
    plugin(&dir, "closed", &format!("exec >&- 2>&-; {stay}"));
    let begin = std::time::Instant::now();
    let outcome = validate(Path::new(dir.text()), &["."], b"");
    assert!(begin.elapsed() < patience(120), "{outcome:?}"); // its children sleep for ten minutes
    let said = "it does not report its versions: no answer in 5 s [no-answer]";
    assert_eq!(outcome.stdout.matches(said).count(), 2, "{outcome:?}");
    let state = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let runs = |pid: &str| !state(pid).is_empty() && !state(pid).contains(") Z ");
    for pid in fs::read_to_string(pids).unwrap().lines() {
        let end = std::time::Instant::now() + patience(10); // a kill takes a moment
        while runs(pid) && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(!runs(pid), "{pid} runs on: {}", state(pid));
    }
}

/// Text from files, file names and other programs is escaped, so that a terminal does not act on
/// it.
#[test]
fn foreign_text_does_not_control_a_terminal() {
    let evil = "\u{1b}[31m\u{7f}\u{85}\u{202e}\u{feff}";
    let text = format!(
        r#"{{ "cniVersion": "1.1.0", "name": "n", "plugins": [{{ "type": "loud", "\u001b[2J": 1 }}, {{ "type": "ptp", "{}": 1 }}] }}"#,
        &evil[evil.find('\u{7f}').unwrap()..]
    );
    let dir = scratch("10-\u{1b}]0;x\u{7}\n.conflist", &text);
    fs::write(dir.join("20-torn.conflist"), format!("{{ {evil}")).unwrap();
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"30-\xff.conflist");
    fs::write(dir.join("").join::<&std::ffi::OsStr>(name), "{").unwrap();
    plugin(&dir, "loud", &format!("printf '{evil}' >&2\nexit 1"));
    let outcome = validate(Path::new(dir.text()), &["."], b"");
    assert_eq!(outcome.stderr, "");
    let is_obeyed =
        |letter: char| letter.is_control() && letter != '\n' || "\u{202e}\u{feff}".contains(letter);
    assert!(!outcome.stdout.contains(is_obeyed), "{:?}", outcome.stdout);
    let key = "\"\\u{7f}\\u{85}\\u{202e}\\u{feff}\": 1";
    for shown in ["./10-\\u{1b}]0;x\\u{7}\\n.conflist:1:", key, "./30-\u{fffd}.conflist:1:2: error"]
    {
        assert!(outcome.stdout.contains(shown), "{}", outcome.stdout);
    }
}

/// Time grows with the text, not with its square: one line of twenty thousand mistakes, one key of
/// three million letters, and five thousand files. The limit is on CPU time, which does not grow on
/// a busy machine; a process that exceeds it is killed.
#[test]
fn much_is_looked_at_in_little_time() {
    let validate = |dir: &Path, args: &[&str], stdin: &[u8]| {
        let mut limited = Command::new("sh");
        let limit = format!("ulimit -t {}; exec \"$@\"", patience(20).as_secs());
        limited.args(["-c", &limit, "sh"]).arg(binary());
        outcome(limited, dir, args, stdin)
    };
    let keys: Vec<String> = (0..20_000).map(|i| format!("\"unknown-{i}\":{i}")).collect();
    let text = format!(
        r#"{{"cniVersion":"1.1.0","name":"n","plugins":[{{"type":"loopback",{}}}]}}{}"#,
        keys.join(","),
        "\n".repeat(3_000_000)
    );
    let outcome = validate(Path::new("/"), &["-"], text.as_bytes());
    assert_eq!(outcome.stdout.matches("[unknown-key]").count(), 20_000);
    let plugin = format!(r#"{{"type":"bridge","{}":1}}"#, "k".repeat(3_000_000));
    let text = format!(r#"{{"cniVersion":"1.1.0","name":"n","plugins":[{plugin}]}}"#);
    let outcome = validate(Path::new("/"), &["-"], text.as_bytes());
    assert_eq!(outcome.stdout.matches("[unknown-key]").count(), 1);
    let dir = Scratch::new();
    for i in 0..5000 {
        let subnet = format!("10.{}.{}.0/24", i / 256, i % 256);
        let plugin = format!(
            r#"{{"type":"bridge","isGateway":true,"ipam":{{"type":"host-local","subnet":"{subnet}"}}}}"#
        );
        let text = format!(
            r#"{{"cniVersion":"1.1.0","name":"n{i}","plugins":[{plugin},{{"type":"tuning"}}]}}"#
        );
        fs::write(dir.join(&format!("{i:05}.conflist")), text).unwrap();
    }
    let outcome = validate(Path::new(dir.text()), &["."], b"");
    assert_eq!(outcome.stdout.matches("[bridge-gateway]").count(), 4999);
}

/// `cni-multi net` runs the plugins compiled in; any other runtime looks for a program of that
/// name.
#[test]
fn a_compiled_in_plugin_without_a_path_is_reported_once() {
    let text = r#"{ "cniVersion": "1.1.0", "name": "n", "plugins": [ { "type": "loopback" }, { "type": "loopback" } ] }"#;
    let dir = scratch("10-n.conflist", text);
    let outcome =
        validate(Path::new(dir.text()), &["10-n.conflist", "--plugin-path", "/nowhere:/none"], b"");
    let said = "10-n.conflist:1:62: warning: plugins[0].type: failed to find plugin \"loopback\" in path [/nowhere /none] [not-on-path]";
    assert!(outcome.status == 0 && outcome.stdout.starts_with(said), "{outcome:?}");
    assert!(outcome.stdout.ends_with("\n1 file, 1 warning\n"), "{outcome:?}");
    let flags = ["-o", "json", "--plugin-path", "/nowhere", "."];
    let picks = validate(Path::new(dir.text()), &flags, b"").json()["picks"].clone();
    let reason_of = |runtime| {
        let mut picks = picks.as_array().unwrap().iter();
        picks.find(|pick| pick["runtime"] == runtime).unwrap()["reason"].clone()
    };
    assert_eq!(reason_of("CRI-O"), "none: no file loads and has all of its plugins available");
    assert_eq!(reason_of("containerd"), "\"n\" of 10-n.conflist: the first file by name");
}

/// A file may be truncated at any byte; no truncation may cause a panic or a hang.
#[test]
fn files_torn_at_any_byte_are_reported() {
    let dir = Scratch::new();
    let whole = fs::read(fixtures().join("clean/10-lab.conflist")).unwrap();
    for end in 0..whole.len() - 1 {
        fs::write(dir.join(&format!("{end:04}.conflist")), &whole[..end]).unwrap();
    }
    let outcome = validate(Path::new(dir.text()), &[".", "-o", "json"], b"");
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, ""));
    let findings = outcome.json()["findings"].as_array().unwrap().clone();
    // Only the final newline may be missing without an error.
    assert_eq!(findings.len(), whole.len() - 1);
    assert!(findings.iter().all(|finding| finding["code"] == "syntax"), "a torn file is no JSON");
}

/// Every input gets an answer: each value of every fixture is replaced by values of other types.
#[test]
fn values_of_any_kind_at_any_place_are_reported() {
    let dir = Scratch::new();
    let mut count = 0;
    for folder in folders() {
        for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let text = fs::read(&file).unwrap_or_default(); // of a directory
            let Ok(value) = serde_json::from_slice::<Value>(&text) else { continue };
            let others = json!([null, true, -1.5, "\u{0}ä", [[]], {"": {"a": 1}}]);
            for at in 0.. {
                let mut changed = value.clone();
                if !replace(&mut changed, &mut { at }, &others[at % 6]) {
                    break;
                }
                count += 1;
                fs::write(dir.join(&format!("{count:05}.conflist")), changed.to_string()).unwrap();
            }
        }
    }
    assert!(count > 500, "{count}");
    let outcome = validate(Path::new(dir.text()), &[".", "-o", "json"], b"");
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, ""));
    assert!(outcome.json()["findings"].as_array().unwrap().len() > count / 2);
}

/// Replaces the value at this index, counted in the order of the text.
fn replace(value: &mut Value, at: &mut usize, other: &Value) -> bool {
    if *at == 0 {
        value.clone_from(other);
        return true;
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| replace(item, at, other)),
        Value::Object(members) => members.values_mut().any(|member| replace(member, at, other)),
        _ => false,
    }
}

/// Files that conflict are compared wherever they are, and each directory has its own picks.
#[test]
fn several_paths_are_checked_together() {
    let network = |name: &str| {
        format!(
            r#"{{"cniVersion":"1.1.0","name":"{name}","plugins":[{{"type":"bridge","isGateway":true,"ipam":{{"type":"host-local","subnet":"10.1.0.0/24"}}}}]}}"#
        )
    };
    let one = scratch("10-one.conflist", &network("one"));
    let two = scratch("10-two.conflist", &network("two"));
    let outcome = validate(Path::new("/"), &[one.text(), two.text()], b"");
    assert!(outcome.stdout.contains("[overlap]"), "{outcome:?}");
    assert!(outcome.stdout.ends_with("\n2 files, 1 warning\n"), "{outcome:?}");
    for dir in [one.text(), two.text()] {
        let title = format!("which file of {dir} each runtime uses:\n");
        assert!(outcome.stdout.contains(&title), "{outcome:?}");
    }
    let files = [one.join("10-one.conflist"), two.join("10-two.conflist")];
    let files = files.map(|file| file.to_str().unwrap().to_owned());
    let outcome = validate(Path::new("/"), &[&files[0], &files[1]], b"");
    assert!(outcome.stdout.contains("[overlap]"), "{outcome:?}");
    assert!(!outcome.stdout.contains("each runtime uses"), "{outcome:?}");
}
