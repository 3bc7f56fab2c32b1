//! How a main plugin finds and runs its IPAM plugin, and handles the answer.
//!
//! The IPAM plugins here are shell scripts. STATUS of `bridge` and `ptp` only runs them.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{assert_error, assert_silent_success, has_user_namespaces, in_own_namespace};
use crate::support::attachment::skip;
use crate::support::call::{Call, Outcome, Peer};
use crate::support::patience;
use crate::support::peers::peers;
use crate::support::scratch::Scratch;
use crate::support::table::cells;

peers! {
    environment_is_passed_on_with_the_command,
    configuration_is_passed_on_byte_for_byte,
    delegate_runs_in_the_same_directory_without_arguments,
    delegate_that_does_not_read_stops_nobody,
    delegate_inherits_no_other_files,
    first_directory_of_the_path_wins,
    what_is_no_file_is_passed_over,
    missing_plugin_is_named_with_the_path,
    own_plugin_needs_no_path,
    type_with_a_slash_is_refused,
    type_is_needed_by_ptp_and_not_by_bridge,
    error_object_is_adopted,
    diagnosis_without_an_error_object,
    program_that_cannot_start_is_an_error,
    stderr_is_forwarded_and_stdout_of_status_ignored,
    delegate_is_called_for_each_command,
    failed_delegate_add_is_taken_back,
    unusable_result_of_a_delegate_is_an_error,
    busy_program_is_tried_again_and_no_success,
    own_plugin_needs_no_process,
}

/// A directory with scripts as plugins.
struct Scripts(Scratch);

impl Scripts {
    fn new() -> Scripts {
        Scripts(Scratch::new())
    }

    /// Adds a shell script.
    ///
    /// A child process writes it: if this process had the file open for writing, a concurrent test
    /// could inherit the descriptor, and executing the file would fail with ETXTBSY.
    fn add(&self, name: &str, body: &str) -> PathBuf {
        self.write(name, &format!("#!/bin/sh\n{body}\n"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        let write = r#"rm -f "$1" && printf %s "$2" >"$1" && chmod 755 "$1""#;
        let written = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status();
        assert!(written.unwrap().success());
        path
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn text(&self) -> &str {
        self.0.text()
    }
}

fn conf(ipam: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"net-1","ipam":{{"type":"{ipam}"}}}}"#)
}

/// STATUS of `plugin`, delegated to `ipam` in `path`.
fn status(peer: &Peer, plugin: &str, ipam: &str, path: &str) -> Call {
    Call::new(peer, plugin, "STATUS", conf(ipam)).env("CNI_PATH", path)
}

fn answer(peer: &Peer, body: &str) -> Outcome {
    let scripts = Scripts::new();
    scripts.add("fake-ipam", body);
    status(peer, "bridge", "fake-ipam", scripts.text()).run()
}

fn environment_is_passed_on_with_the_command(peer: &Peer) {
    let scripts = Scripts::new();
    scripts.add("fake-ipam", &format!("env -0 >{}/env", scripts.text()));
    for plugin in ["bridge", "ptp"] {
        let call = status(peer, plugin, "fake-ipam", scripts.text())
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=a")
            .env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .env("TRACESTATE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
            .env("BAGGAGE", "tenant=a%20b,tier=gold")
            .env("ODD", "two\nlines = \"ä\"")
            .env("EMPTY", "");
        assert_silent_success(&call.run());
        let seen = scripts.file("env");
        let mut seen: Vec<&str> = seen.split_terminator('\0').collect();
        // Variables that the shell sets itself.
        seen.retain(|pair| {
            !["PWD=", "OLDPWD=", "SHLVL=", "_=", "PATH="].iter().any(|name| pair.starts_with(name))
        });
        seen.sort_unstable();
        let sent: Vec<String> =
            call.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        sent.sort_unstable();
        assert_eq!(seen, sent);
    }
}

fn configuration_is_passed_on_byte_for_byte(peer: &Peer) {
    let scripts = Scripts::new();
    scripts.add("fake-ipam", &format!("cat >{}/stdin", scripts.text()));
    let conf = " {\"cniVersion\" : \"1.1.0\",\n\t\"NAME\":\"net-1\", \"unknown\":[1.50, 12345678901234567890, \"\\u003c<\"],\
                \"ipam\":{\"type\":\"x\"},\"ipam\":{\"Type\":\"fake-ipam\",\"n\":1e2} }\n\n";
    for plugin in ["bridge", "ptp"] {
        let call = Call::new(peer, plugin, "STATUS", conf).env("CNI_PATH", scripts.text());
        assert_silent_success(&call.run());
        assert_eq!(scripts.file("stdin"), conf);
    }
}

fn delegate_runs_in_the_same_directory_without_arguments(peer: &Peer) {
    let scripts = Scripts::new();
    scripts.add("fake-ipam", &format!(r#"echo "$(pwd -P) $# $0" >{}/seen"#, scripts.text()));
    assert_silent_success(&status(peer, "bridge", "fake-ipam", scripts.text()).run());
    let here = std::env::current_dir().unwrap();
    let expected = format!("{} 0 {}/fake-ipam\n", here.display(), scripts.text());
    assert_eq!(scripts.file("seen"), expected);
}

/// A delegate may leave its configuration unread, or write before it reads; neither side may block
/// the other.
fn delegate_that_does_not_read_stops_nobody(peer: &Peer) {
    let conf =
        conf("fake-ipam").replacen('{', &format!(r#"{{"padding":"{}","#, "x".repeat(1 << 20)), 1);
    for body in
        ["exit 0", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; cat >/dev/null"]
    {
        let scripts = Scripts::new();
        scripts.add("fake-ipam", body);
        for plugin in ["bridge", "ptp"] {
            let call = Call::new(peer, plugin, "STATUS", &conf).env("CNI_PATH", scripts.text());
            assert_silent_success(&call.run());
        }
    }
}

/// The plugin passes on the descriptors that this process inherited and left open, and adds none.
fn delegate_inherits_no_other_files(peer: &Peer) {
    let scripts = Scripts::new();
    let script =
        scripts.add("fake-ipam", &format!("cd /proc/$$/fd && echo * >{}/open", scripts.text()));
    assert!(Command::new(script).status().unwrap().success());
    let of_this_process = scripts.file("open");
    assert_silent_success(&status(peer, "bridge", "fake-ipam", scripts.text()).run());
    assert_eq!(scripts.file("open"), of_this_process);
}

fn first_directory_of_the_path_wins(peer: &Peer) {
    let (first, second) = (Scripts::new(), Scripts::new());
    for scripts in [&first, &second] {
        scripts.add("fake-ipam", &format!("touch {}/called", scripts.text()));
        scripts.add("host-local", &format!("touch {}/called-by-a-known-name", scripts.text()));
    }
    let [one, other, own] = [first.text(), second.text(), peer.dir().to_str().unwrap()];
    let path = format!("{one}/nothing:{one}:{other}:{own}");
    for (ipam, called) in [("fake-ipam", "called"), ("host-local", "called-by-a-known-name")] {
        assert_silent_success(&status(peer, "bridge", ipam, &path).run());
        assert!(first.0.join(called).exists(), "{ipam} of the first directory was not called");
        assert!(!second.0.join(called).exists(), "{ipam} of the second directory was called");
    }
}

fn what_is_no_file_is_passed_over(peer: &Peer) {
    let (first, second) = (Scripts::new(), Scripts::new());
    std::fs::create_dir(first.0.join("fake-ipam")).unwrap();
    symlink("nowhere", first.0.join("dangling")).unwrap();
    let target = second.add("target", &format!("touch {}/called-${{0##*/}}", second.text()));
    symlink(&target, second.0.join("fake-ipam")).unwrap();
    symlink(&target, second.0.join("dangling")).unwrap();
    for name in ["fake-ipam", "dangling"] {
        let path = format!("{}:{}", first.text(), second.text());
        assert_silent_success(&status(peer, "bridge", name, &path).run());
        // A plugin is executed under the name in the configuration, so that a multi-call binary
        // knows which plugin it is.
        assert!(second.0.join(&format!("called-{name}")).exists());
    }
}

fn missing_plugin_is_named_with_the_path(peer: &Peer) {
    for plugin in ["bridge", "ptp"] {
        let outcome = status(peer, plugin, "no-such-ipam", "/nowhere/a:/nowhere/b").run();
        if *peer == Peer::Ours {
            let error = outcome.err();
            assert_eq!(outcome.status, 1);
            assert!(![0, 999].contains(&error.code), "{outcome:?}");
            for mention in ["no-such-ipam", "/nowhere/a", "/nowhere/b"] {
                assert!(error.text().contains(mention), "no {mention}: {outcome:?}");
            }
        } else {
            let msg = r#"failed to find plugin "no-such-ipam" in path [/nowhere/a /nowhere/b]"#;
            assert_error(peer, &outcome, "1.1.0", 999, msg, "");
        }
    }
}

/// A lone binary without links to it works.
fn own_plugin_needs_no_path(peer: &Peer) {
    for path in ["/nowhere", "/nowhere/a:/nowhere/b"] {
        for plugin in ["bridge", "ptp"] {
            let outcome = status(peer, plugin, "static", path).run();
            if *peer == Peer::Ours {
                assert_silent_success(&outcome);
            } else {
                outcome.fails(999, r#"failed to find plugin "static" in path"#);
            }
        }
    }
}

fn type_with_a_slash_is_refused(peer: &Peer) {
    let scripts = Scripts::new();
    scripts.add("fake-ipam", &format!("touch {}/called", scripts.text()));
    std::fs::create_dir(scripts.0.join("sub")).unwrap();
    let absolute = format!("{}/fake-ipam", scripts.text());
    for ipam in ["../fake-ipam", "./fake-ipam", "sub/../fake-ipam", &absolute] {
        for plugin in ["bridge", "ptp"] {
            let outcome = status(peer, plugin, ipam, &format!("{0}/sub:{0}", scripts.text())).run();
            let code = if *peer == Peer::Ours { 7 } else { 999 };
            let error = outcome.fails(code, "");
            assert_eq!(outcome.status, 1);
            let refusal = format!("invalid plugin name: {ipam}");
            match peer {
                Peer::Ours => assert!(error.msg.contains(&refusal), "{outcome:?}"),
                Peer::Reference(_) => assert_eq!(error.msg, refusal),
            }
            assert!(!scripts.0.join("called").exists(), "a plugin outside of CNI_PATH was run");
        }
    }
}

fn type_is_needed_by_ptp_and_not_by_bridge(peer: &Peer) {
    for ipam in ["", r#","ipam":{}"#, r#","ipam":{"type":""}"#, r#","ipam":null"#] {
        let conf = format!(r#"{{"cniVersion":"1.1.0","name":"net-1"{ipam}}}"#);
        assert_silent_success(&Call::new(peer, "bridge", "STATUS", &conf).run());
        let outcome = Call::new(peer, "ptp", "STATUS", &conf).run();
        let error = outcome.err();
        if *peer == Peer::Ours {
            assert_eq!((outcome.status, error.code), (1, 7), "{outcome:?}");
        } else {
            assert_eq!((error.code, error.msg.as_str()), (999, "no plugin name provided"));
        }
    }
}

fn error_object_is_adopted(peer: &Peer) {
    let whole = r#"{"cniVersion":"0.4.0","code":42,"msg":"no <more>","details":"of that"}"#;
    for (object, code, msg, details) in [
        (whole, 42, "no <more>", "of that"),
        (r#"{"code":11,"msg":"later","x":[]}"#, 11, "later", ""),
        (r#"{"Code":50,"MSG":"not ready","details":null}"#, 50, "not ready", ""),
        (r#"{"code":4000000000,"msg":"m"}"#, 4_000_000_000, "m", ""),
        ("\n {\"code\":100,\"msg\":\"m\"} \n", 100, "m", ""),
    ] {
        for plugin in ["bridge", "ptp"] {
            let scripts = Scripts::new();
            scripts.add("fake-ipam", &format!("cat <<'END'\n{object}\nEND\nexit 1"));
            let outcome = status(peer, plugin, "fake-ipam", scripts.text()).run();
            assert_error(peer, &outcome, "1.1.0", code, msg, details);
        }
    }
}

/// Ours has a code for it, and names the plugin, its exit status and its output.
fn diagnosis_without_an_error_object(peer: &Peer) {
    for [body, reference, mentions] in cells(NO_ERROR_OBJECT) {
        let outcome = answer(peer, body);
        let error = outcome.err();
        assert_eq!(outcome.status, 1);
        if *peer == Peer::Ours {
            assert!(![0, 999].contains(&error.code), "{body}: {outcome:?}");
            for mention in mentions.split(", ") {
                assert!(error.text().contains(mention), "{body}: no {mention:?}: {outcome:?}");
            }
        } else {
            assert_eq!(error.code, 0);
            // Releases up to 1.9 omit the exit status if there was output on stderr.
            let without_status = reference.split(": exit status").next().unwrap();
            let begin = format!("netplugin failed{without_status}");
            assert!(error.msg.starts_with(&begin), "{body}: {outcome:?}");
        }
    }
}

/// What a plugin does, how the reference's message goes on after "netplugin failed", and what ours mentions.
const NO_ERROR_OBJECT: &str = r#"
exit 1 |  with no error message: exit status 1 | fake-ipam, 1
exit 37 |  with no error message: exit status 37 | fake-ipam, 37
echo some words >&2; exit 3 | : "some words\n": exit status 3 | some words, 3
echo garbage; exit 3 |  but error parsing its diagnostic message "garbage\n": invalid | garbage, fake-ipam
echo '[]'; exit 3 |  but error parsing its diagnostic message "[]\n": json: cannot | [], fake-ipam
kill -KILL $$ |  with no error message: signal: killed | fake-ipam, signal
echo '{}{}'; exit 3 |  but error parsing its diagnostic message "{}{}\n": invalid | {}{}, fake-ipam
"#;

fn program_that_cannot_start_is_an_error(peer: &Peer) {
    let scripts = Scripts::new();
    scripts.write("no-interpreter", "#!/nowhere/sh\n");
    let not_executable = scripts.add("not-executable", "exit 0");
    std::fs::set_permissions(&not_executable, Permissions::from_mode(0o644)).unwrap();
    for (name, reason) in
        [("no-interpreter", "no such file or directory"), ("not-executable", "permission denied")]
    {
        let outcome = status(peer, "bridge", name, scripts.text()).run();
        let error = outcome.err();
        assert_eq!(outcome.status, 1);
        assert_eq!(error.code != 0, *peer == Peer::Ours);
        for part in [format!("{}/{name}", scripts.text()).as_str(), reason] {
            assert!(error.text().contains(part), "no {part}: {outcome:?}");
        }
    }
}

/// The reference drops stderr of a failure if there is output on stdout.
fn stderr_is_forwarded_and_stdout_of_status_ignored(peer: &Peer) {
    for said in ["garbage", "{}", r#"{"code":42,"msg":"m"}"#] {
        let outcome = answer(peer, &format!("echo first >&2; echo second >&2; echo '{said}'"));
        outcome.assert_is(0, "", "first\nsecond\n");
    }
    let outcome = answer(peer, r#"echo words >&2; echo '{"code":42,"msg":"m"}'; exit 1"#);
    assert_eq!(outcome.err().code, 42);
    assert_eq!(outcome.stderr.contains("words\n"), *peer == Peer::Ours, "{outcome:?}");
}

/// A call of `plugin` under `unshare -Urn` with the scripts in its path.
fn privately(peer: &Peer, plugin: &str, command: &str, scripts: &Scripts) -> Call {
    let conf =
        r#"{"cniVersion":"1.1.0","name":"net-1","bridge":"br-1","ipam":{"type":"fake-ipam"}}"#;
    in_own_namespace(Call::new(peer, plugin, command, conf).env("CNI_PATH", scripts.text()))
}

fn delegate_is_called_for_each_command(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for plugin in ["bridge", "ptp"] {
        let scripts = Scripts::new();
        let body = "echo $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME >>DIR/calls; cat >DIR/stdin";
        scripts.add("fake-ipam", &body.replace("DIR", scripts.text()));
        let del = privately(peer, plugin, "DEL", &scripts).without("CNI_NETNS");
        assert_silent_success(&del.run());
        assert_eq!(scripts.file("calls"), "DEL container-1 eth0\n");
        assert_eq!(scripts.file("stdin").as_bytes(), del.stdin);

        if *peer == Peer::Ours {
            let mut gc = privately(peer, plugin, "GC", &scripts);
            gc.stdin.splice(..1, *br#"{"cni.dev/valid-attachments":[],"#);
            assert_silent_success(&gc.run());
            assert_eq!(scripts.file("calls"), "DEL container-1 eth0\nGC container-1 eth0\n");
            assert_eq!(scripts.file("stdin").as_bytes(), gc.stdin);
        }

        scripts.add("fake-ipam", r#"echo '{"code":42,"msg":"held"}'; exit 1"#);
        let outcome = del.run();
        assert_eq!((outcome.err().code, outcome.err().msg.as_str()), (42, "held"));
    }
}

/// The specification requires a DEL after a failed ADD of a delegate (section 4); the reference
/// leaves it to the runtime.
fn failed_delegate_add_is_taken_back(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for plugin in ["bridge", "ptp"] {
        let scripts = Scripts::new();
        let body = format!(
            r#"echo $CNI_COMMAND >>{}/calls; [ $CNI_COMMAND = DEL ] || {{ echo '{{"code":42,"msg":"m","details":"d"}}'; exit 1; }}"#,
            scripts.text()
        );
        scripts.add("fake-ipam", &body);
        let outcome = privately(peer, plugin, "ADD", &scripts).run();
        let error = outcome.fails(42, "m: d");
        assert_eq!((outcome.status, error.msg.as_str()), (1, "m"));
        let expected = if *peer == Peer::Ours { "ADD\nDEL\n" } else { "ADD\n" };
        assert_eq!(scripts.file("calls"), expected, "{plugin}");
    }
}

fn unusable_result_of_a_delegate_is_an_error(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for plugin in ["bridge", "ptp"] {
        let (later, no_list) = (r#"{"cniVersion":"7.0.0"}"#, r#"{"cniVersion":"1.1.0","ips":5}"#);
        let null = |list: &str| format!(r#"{{"cniVersion":"1.1.0","{list}":[null]}}"#);
        // The reference crashes by a null.
        let nulls = if *peer == Peer::Ours { &["interfaces", "ips", "routes"][..] } else { &[] };
        let nulls = nulls.iter().map(|list| (null(list), format!("{list}[0]")));
        let said = ["", "garbage", "[]", "{}{}", later, no_list, "null", "{}"];
        let said = said.map(|said| (said.to_owned(), "fake-ipam".to_owned()));
        for (said, mention) in said.into_iter().chain(nulls) {
            let scripts = Scripts::new();
            let body = format!(
                "echo $CNI_COMMAND >>{}/calls; [ $CNI_COMMAND = DEL ] || printf %s '{said}'",
                scripts.text()
            );
            scripts.add("fake-ipam", &body);
            let outcome = privately(peer, plugin, "ADD", &scripts).run();
            let error = outcome.err();
            assert_eq!(outcome.status, 1, "{plugin} {said:?}");
            if *peer == Peer::Ours {
                assert!(![0, 999].contains(&error.code), "{plugin} {said:?}: {outcome:?}");
                for mention in ["fake-ipam", &mention] {
                    assert!(error.text().contains(mention), "{plugin} {said:?}: {outcome:?}");
                }
                let calls = scripts.file("calls");
                assert_eq!(calls, "ADD\nDEL\n", "{plugin} {said:?}: the address stays taken");
            }
        }
    }
}

/// Holds the file open for writing, as an unfinished installation does.
fn busy_for(path: &std::path::Path, time: Duration) -> std::thread::JoinHandle<()> {
    let held = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        drop(held);
    })
}

/// The reference means to retry, but its second attempt fails because the command was already
/// started. An upgrade of the program takes a moment.
fn busy_program_is_tried_again_and_no_success(peer: &Peer) {
    let scripts = Scripts::new();
    let path = scripts.add("fake-ipam", &format!("touch {}/called", scripts.text()));
    let free = busy_for(&path, Duration::from_secs(1));
    let outcome = status(peer, "bridge", "fake-ipam", scripts.text()).run();
    free.join().unwrap();
    if *peer == Peer::Ours {
        assert_silent_success(&outcome);
        assert!(scripts.0.join("called").exists(), "success, and the plugin was not run");
        std::fs::remove_file(scripts.0.join("called")).unwrap();
    } else {
        assert_error(peer, &outcome, "1.1.0", 0, ALREADY_STARTED, "");
    }
    let _held = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    let start = Instant::now();
    let outcome = status(peer, "bridge", "fake-ipam", scripts.text()).run();
    if *peer == Peer::Ours {
        let text = outcome.err().text();
        assert!(text.contains("fake-ipam") && text.contains("text file busy"), "{outcome:?}");
    } else {
        assert_error(peer, &outcome, "1.1.0", 0, ALREADY_STARTED, "");
    }
    assert!(!scripts.0.join("called").exists());
    assert!(start.elapsed() < patience(30));
}

const ALREADY_STARTED: &str = "netplugin failed with no error message: exec: already started";

/// Ours is its own IPAM plugin, and calls it in the same process.
fn own_plugin_needs_no_process(peer: &Peer) {
    let traced = Command::new("strace").args(["-f", "-qq", "-e", "trace=none", "true"]).output();
    if !traced.is_ok_and(|output| output.status.success()) {
        return skip("strace that may trace");
    }
    let data = Scratch::new();
    for ipam in ["host-local", "static"] {
        for plugin in ["bridge", "ptp"] {
            let log = data.join("execve");
            let conf = format!(
                r#"{{"cniVersion":"1.1.0","name":"net-1","ipam":{{"type":"{ipam}","subnet":"10.1.2.0/24","dataDir":"{}"}}}}"#,
                data.text()
            );
            let strace = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", log.to_str().unwrap()];
            let call = Call::new(peer, plugin, "STATUS", conf).wrapped(&strace.map(str::to_owned));
            assert_silent_success(&call.run());
            let executed = std::fs::read_to_string(&log).unwrap();
            let expected = if *peer == Peer::Ours { 1 } else { 2 };
            assert_eq!(executed.matches("execve(").count(), expected, "{executed}");
        }
    }
}
