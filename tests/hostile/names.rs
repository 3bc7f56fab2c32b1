//! Names of containers, interfaces and networks, in arbitrary bytes. An invalid name is refused
//! before any change; a valid one that means something to a shell, a program or a format is only a
//! name.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{in_directory, is_answer};
use crate::support::attachment::{for_ours, with};
use crate::support::call::{Call, Outcome};
use crate::support::extent::sample;
use crate::support::list::List;
use crate::support::networks::{bridge, firewall, portmap};
use crate::support::programs::located;
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, connect};

/// Invalid container ids, for every command. A tilde separates the names.
const IDS: &[u8] = b"../../etc/passwd~/etc/passwd~..~.~-rf~--help~a b~a\nb~a\r\nb~a\tb~a\x80b~\xff\xfe~a\x1b[31m~%n%s~a\"b~a;b~$(id)~\xe2\x80\xaea";

/// Invalid interface names.
const IFNAMES: &[u8] = b"..~.~a/b~../x~a b~a\nb~a:b~sixteen-bytes-xx~eth%d~%n~a\tb~a\x0cb";

/// Names that the kernel and the specification accept, each with a meaning to some program.
const STRANGE: &[u8] = b"-rf~--~$(>x)~`>x`~;>x;#~'\"~\"};drop~a,b+~*?[a]~@set~!lo~#c~\\n~\x1b[31mred~\x01\x7f~\xe2\x80\xaee~a\x80b";

fn each(names: &[u8]) -> impl Iterator<Item = &[u8]> {
    names.split(|byte| *byte == b'~')
}

/// Runs the plugin as a runtime does, with arbitrary bytes as a variable's value.
fn run(call: &Call, name: &str, value: &[u8]) -> Outcome {
    let mut command = Command::new(located(&call.wrapper[0]));
    command.args(&call.wrapper[1..]).arg(&call.program).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(&call.env);
    command.env(name, OsString::from_vec(value.to_vec())).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(&call.stdin); // it may end without reading it
    Outcome::of(child)
}

#[test]
fn what_cannot_be_a_name_is_refused_before_anything_is_done() {
    for_ours("bridge", |lab| {
        let conf = with(&bridge::conf(), json!({"ipMasq": true}));
        let attachment = lab.attach(&lab.container(), &conf);
        let long = "a".repeat(100_000);
        let ids = each(IDS).map(|id| ("CNI_CONTAINERID", id));
        let cases = ids.chain(each(IFNAMES).map(|name| ("CNI_IFNAME", name)));
        let before = Watch::start(lab, &[]);
        for (variable, value) in cases.chain([("CNI_IFNAME", long.as_bytes())]) {
            for command in ["ADD", "CHECK", "DEL"] {
                let call = attachment.call(command, Some(&json!({"cniVersion": "1.0.0"})));
                let outcome = run(&call, variable, value);
                let what = format!("{command} {:?}: {outcome:?}", String::from_utf8_lossy(value));
                // Another plugin may have made an interface with a `%` in its name, so DEL accepts
                // it and finds nothing to delete.
                if variable == "CNI_IFNAME" && value.contains(&b'%') && command == "DEL" {
                    assert_eq!(outcome.status, 0, "{what}");
                    continue;
                }
                assert!(is_answer(&outcome) && outcome.status == 1, "{what}");
                let code = outcome.err().code;
                assert!(code == 4 || (command == "CHECK" && value.contains(&b'%')), "{what}");
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
                let version = json!({"cniVersion": "1.1.0"});
                let keys = with(&version, json!({"name": name, "cni.dev/valid-attachments": []}));
                let call = attachment.clone().conf(keys).call(command, Some(&version));
                let outcome = call.run();
                assert_eq!(outcome.err().code, 7, "{command} {name:?}: {outcome:?}");
            }
        }
        before.assert_unchanged("all of them were refused");
    });
}

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
            let keys = json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true});
            let main = with(&portmap::network(), keys);
            lab.host.sh("mkdir /run/cwd");
            portmap::warm_up(lab, &main, &chained(backend)[0]); // creates what may stay after DEL
            let bystander = lab.chain(&main, &chained(backend)[1]);
            bystander.add();
            bystander.also(&chained(backend)[2]).add();
            let id = "0".repeat(200) + "a_b..c-";
            let before = Watch::start(lab, &[&bystander.container]);
            for name in sample(each(STRANGE).collect(), 3, turn) {
                let container = lab.container();
                let what = format!("{:?} with {backend}", String::from_utf8_lossy(name));
                eprintln!("{what}"); // shown when the case fails
                let list = [&[main.clone()][..], &chained(backend)].concat();
                let plugins = List::of(lab, &container, &list).0.into_iter();
                let plugins: Vec<_> = plugins.map(|plugin| plugin.id(&id)).collect();
                // A stray file would appear in the runtime's working directory.
                let run = |call| run(&in_directory(call, "/run/cwd"), "CNI_IFNAME", name).ok();
                let mut prev = Value::Null;
                for plugin in &plugins {
                    prev = run(plugin.call("ADD", Some(&prev)));
                }
                let server = TcpServer::start(&container, 80);
                assert!(connect(&lab.outside, "198.51.100.1:8080").is_some(), "{what}");
                drop(server);
                plugins.iter().rev().for_each(|plugin| drop(run(plugin.call("DEL", None))));
                assert_eq!(before.changes_now(), "", "{what}");
            }
            let written = lab.host.sh("ls -A /run/cwd; ls -A / | grep -xF x || true");
            assert_eq!(written, "", "a shell has seen a name");
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
