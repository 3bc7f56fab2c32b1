//! Names of containers, interfaces and networks, in arbitrary bytes. An invalid name is refused
//! before any change; a valid one that means something to a shell, a program or a format is only a
//! name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::is_answer;
use crate::support::attachment::{for_ours, with};
use crate::support::call::{Call, Outcome};
use crate::support::extent::sample;
use crate::support::networks::{bridge, firewall, portmap};
use crate::support::programs::located;
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, connect};

/// Invalid container ids, for every command.
const IDS: [&[u8]; 18] = [
    b"../../etc/passwd",
    b"/etc/passwd",
    b"..",
    b".",
    b"-rf",
    b"--help",
    b"a b",
    b"a\nb",
    b"a\r\nb",
    b"a\tb",
    b"a\x80b",
    b"\xff\xfe",
    b"a\x1b[31m",
    b"%n%s",
    b"a\"b",
    b"a;b",
    b"$(id)",
    "\u{202e}a".as_bytes(),
];

/// Invalid interface names.
const IFNAMES: [&[u8]; 12] = [
    b"..",
    b".",
    b"a/b",
    b"../x",
    b"a b",
    b"a\nb",
    b"a:b",
    b"sixteen-bytes-xx",
    b"eth%d",
    b"%n",
    b"a\tb",
    b"a\x0cb",
];

/// Runs the plugin as a runtime does, with arbitrary bytes as a variable's value.
fn run(call: &Call, name: &str, value: &[u8]) -> Outcome {
    let output = Command::new(located(&call.wrapper[0]))
        .args(&call.wrapper[1..])
        .arg(&call.program)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(&call.env)
        .env(name, OsString::from_vec(value.to_vec()))
        .stdin(Stdio::from(std::fs::File::open(config(call)).unwrap()))
        .output()
        .unwrap();
    Outcome {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The configuration as a file that can be read from its beginning.
fn config(call: &Call) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!(
        "cni-multi-names-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&path, &call.stdin).unwrap();
    path
}

#[test]
fn what_cannot_be_a_name_is_refused_before_anything_is_done() {
    for_ours("bridge", |lab| {
        let conf = with(&bridge::conf(), json!({"ipMasq": true}));
        let attachment = lab.attach(&lab.container(), &conf);
        let long = "a".repeat(100_000);
        let cases = IDS
            .map(|id| ("CNI_CONTAINERID", id))
            .into_iter()
            .chain(IFNAMES.map(|name| ("CNI_IFNAME", name)));
        let before = Watch::start(lab, &[]);
        for (variable, value) in cases.chain([("CNI_IFNAME", long.as_bytes())]) {
            for command in ["ADD", "CHECK", "DEL"] {
                let outcome = run(
                    &attachment.call(command, Some(&json!({"cniVersion": "1.0.0"}))),
                    variable,
                    value,
                );
                let said = String::from_utf8_lossy(value).into_owned();
                // Another plugin may have made an interface with a `%` in its name, so DEL accepts
                // it and finds nothing to delete.
                if variable == "CNI_IFNAME" && value.contains(&b'%') && command == "DEL" {
                    assert_eq!(outcome.status, 0, "{command} {said:?}: {outcome:?}");
                    continue;
                }
                assert!(
                    is_answer(&outcome) && outcome.status == 1,
                    "{command} {said:?}: {outcome:?}"
                );
                let code = outcome.err().code;
                assert!(
                    code == 4 || (command == "CHECK" && value.contains(&b'%')),
                    "{command} {said:?}: {outcome:?}"
                );
            }
        }
        before.assert_unchanged("all of them were refused");
    });
}

#[test]
fn an_invalid_network_name_is_refused_before_any_change() {
    for_ours("bridge", |lab| {
        let attachment = lab.attach(&lab.container(), &bridge::conf());
        let before = Watch::start(lab, &[]);
        let long = "n".repeat(300);
        for name in
            ["../x", "/etc", "a/b", "-rf", "a\nb", "a\0b", "a\u{80}b", "%s%n", "a\"; drop", &long]
        {
            for command in ["STATUS", "ADD", "CHECK", "DEL", "GC"] {
                let conf =
                    json!({"cniVersion": "1.1.0", "name": name, "cni.dev/valid-attachments": []});
                let outcome = attachment
                    .clone()
                    .conf(conf)
                    .call(command, Some(&json!({"cniVersion": "1.1.0"})))
                    .run();
                assert_eq!(outcome.err().code, 7, "{command} {name:?}: {outcome:?}");
            }
        }
        before.assert_unchanged("all of them were refused");
    });
}

/// Names that the kernel and the specification accept, each with a meaning to some program.
const STRANGE: [&[u8]; 17] = [
    b"-rf",
    b"--",
    b"$(>x)",
    b"`>x`",
    b";>x;#",
    b"'\"",
    b"\"};drop",
    b"a,b+",
    b"*?[a]",
    b"@set",
    b"!lo",
    b"#c",
    b"\\n",
    b"\x1b[31mred",
    b"\x01\x7f",
    "\u{202e}e".as_bytes(),
    b"a\x80b",
];

/// The chained plugins that write names into rules, files and sysctls.
fn chained(backend: &str) -> [Value; 3] {
    [
        portmap::portmap(Some(backend), json!([portmap::web()])),
        firewall::firewall(Some(backend)),
        json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}),
    ]
}

#[test]
fn a_strange_name_is_a_name_and_nothing_else() {
    for (turn, backend) in portmap::BACKENDS.into_iter().enumerate() {
        for_ours("bridge", |lab| {
            let main = with(
                &portmap::network(),
                json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true}),
            );
            lab.host.sh("mkdir /run/cwd");
            portmap::warm_up(lab, &main, &chained(backend)[0]); // creates what may stay after DEL
            let bystander = lab.chain(&main, &chained(backend)[1]);
            bystander.add();
            bystander.also(&chained(backend)[2]).add();
            let id = "0".repeat(200) + "a_b..c-";
            let before = Watch::start(lab, &[&bystander.container]);
            for name in sample(STRANGE.to_vec(), 3, turn) {
                let container = lab.container();
                let said = String::from_utf8_lossy(name).into_owned();
                // A stray file would appear in the runtime's working directory.
                let enter = |call: Call| {
                    let mut call = call;
                    call.wrapper.extend(
                        ["sh", "-c", "cd /run/cwd && exec \"$@\"", "sh"].map(str::to_owned),
                    );
                    call
                };
                let attachment = lab.attach(&container, &main).id(&id);
                let mut prev = run(&enter(attachment.call("ADD", None)), "CNI_IFNAME", name).ok();
                for conf in chained(backend) {
                    let conf = with(&conf, json!({"name": "net1", "cniVersion": "1.1.0"}));
                    let plugin = lab.attach(&container, &conf).id(&id);
                    prev = run(&enter(plugin.call("ADD", Some(&prev))), "CNI_IFNAME", name).ok();
                }
                let server = TcpServer::start(&container, 80);
                assert!(
                    connect(&lab.outside, "198.51.100.1:8080").is_some(),
                    "{said:?} with {backend}"
                );
                drop(server);
                for conf in chained(backend).iter().chain([&main]) {
                    let conf = with(conf, json!({"name": "net1", "cniVersion": "1.1.0"}));
                    let plugin = lab.attach(&container, &conf).id(&id);
                    let outcome = run(&enter(plugin.call("DEL", None)), "CNI_IFNAME", name);
                    assert_eq!(outcome.status, 0, "{said:?} with {backend}: {outcome:?}");
                }
                assert_eq!(before.changes_now(), "", "{said:?} with {backend}");
            }
            assert_eq!(
                lab.host.sh("ls -A /run/cwd; ls -A / | grep -xF x || true"),
                "",
                "a shell has seen a name"
            );
        });
    }
}

/// An id has no maximum length, but a file name has. An ADD without a record makes no change.
#[test]
fn a_name_too_long_for_a_file_is_reported_and_blocks_no_del() {
    for_ours("tuning", |lab| {
        let main = with(&bridge::conf(), json!({"cniVersion": "1.1.0"}));
        let chain = lab.chain(&main, &json!({"type": "tuning", "mtu": 1400}));
        let attachment = chain.clone().id(&"0".repeat(300));
        let before = Watch::start(lab, &[&chain.container]);
        let error = attachment.try_add().err();
        assert!(error.code == 5 && error.msg.contains("file name too long"), "{error:?}");
        attachment.del();
        attachment.gc(&[]).ok();
        before.assert_unchanged("what could not be kept");
    });
}
