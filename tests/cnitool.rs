//! `cnitool`, side by side with the reference's: `CNI_TOOL` is its path (tests/run compiles it from
//! Debian's source).

use std::path::PathBuf;
use std::process::Command;

use crate::support::attachment::skip;
use crate::support::call::{Outcome, Peer, binary, farm};
use crate::support::netns::{Lab, OUTSIDE};
use crate::support::snapshot::Watch;
use crate::support::table::cells;

/// The paths of the tools in a lab: ours, selected by argv[0], and the reference's.
const OURS: &str = "/run/tools/ours/cnitool";
const REFERENCE: &str = "/run/tools/reference/cnitool";

/// The reference's tool; None if it could not be compiled.
fn reference() -> Option<PathBuf> {
    std::env::var_os("CNI_TOOL").map(PathBuf::from).filter(|tool| tool.exists())
}

/// The tools that there are.
fn tools() -> impl Iterator<Item = &'static str> {
    [Some(OURS), reference().map(|_| REFERENCE)].into_iter().flatten()
}

/// A host with both tools, and with its own /etc that has a directory for networks.
fn lab(peer: Peer) -> Lab {
    let lab = Lab::new(peer);
    lab.host.sh(&format!(
        "mkdir -p /run/tools/ours /run/tools/reference /run/etc
         cp -a /etc/. /run/etc/ 2>/dev/null; rm -rf /run/etc/cni; mkdir -p /run/etc/cni/net.d; mount --bind /run/etc /etc
         ln -s {} {OURS}",
        binary().display()
    ));
    if let Some(tool) = reference() {
        lab.host.sh(&format!("ln -s {} {REFERENCE}", tool.display()));
    }
    lab
}

/// Runs a shell line on that host.
fn run(lab: &Lab, line: &str) -> Outcome {
    let output = lab.host.command("bash").args(["-c", line]).output().unwrap();
    Outcome {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn network(lab: &Lab, file: &str, text: &str) {
    std::fs::write(lab.path(&format!("/etc/cni/net.d/{file}")), text).unwrap();
}

/// A network of these plugins, in 1.0.0.
fn list(name: &str, plugins: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":{plugins}}}"#)
}

/// Every combination of the two tools over three operations that begin with an ADD; ours alone
/// where the reference's is missing.
fn turns() -> Vec<[&'static str; 3]> {
    let pairs = tools().flat_map(|add| tools().map(move |check| (add, check)));
    pairs.flat_map(|(add, check)| tools().map(move |del| [add, check, del])).collect()
}

/// The commands in the README of libcni's cnitool, from the configuration on, with the peer's
/// plugins in `./bin`.
const README: &str = r#"set -e
sudo() { env "$@"; }
echo '{"cniVersion":"0.4.0","name":"myptp","type":"ptp","ipMasq":true,"ipam":{"type":"host-local","subnet":"172.16.29.0/24","routes":[{"dst":"0.0.0.0/0"}]}}' | sudo tee /etc/cni/net.d/10-myptp.conf
sudo ip netns add testing
sudo CNI_PATH=./bin cnitool add myptp /var/run/netns/testing
sudo CNI_PATH=./bin cnitool check myptp /var/run/netns/testing
sudo ip -n testing addr
sudo ip netns exec testing ping -c 1 4.2.2.2
sudo CNI_PATH=./bin cnitool del myptp /var/run/netns/testing
sudo ip netns del testing
"#;

#[test]
fn the_script_of_the_readme_works_unchanged() {
    for peer in Peer::all() {
        let lab = lab(peer);
        lab.host.sh(&format!(
            "ip -n outside addr add 4.2.2.2/32 dev lo; ip route add default via {}; mkdir /run/plugins; ln -s {} /run/plugins/bin",
            OUTSIDE[0],
            lab.peer.dir().display()
        ));
        for tool in tools().map(|tool| tool.trim_end_matches("/cnitool")) {
            let before = Watch::start(&lab, &[]);
            let path = format!("cd /run/plugins; export PATH={tool}:$PATH");
            let outcome = run(&lab, &format!("{path}\n{README}"));
            let is = (outcome.status, outcome.stderr.as_str());
            assert_eq!(is, (0, ""), "{tool} with {:?}: {outcome:?}", lab.peer);
            assert!(outcome.stdout.contains("1 received"), "{outcome:?}");
            lab.host.sh("rm /etc/cni/net.d/10-myptp.conf");
            // The reference's masquerading leaves its table.
            if lab.peer == Peer::Ours {
                before.assert_unchanged("the script of the README");
            }
        }
    }
}

/// Arguments and capabilities must be the same for every operation, so all operations get these.
const WEB: &str = r#"
export CNI_PATH=PLUGINS CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAME=web'
export CAP_ARGS='{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}'
"#;

#[test]
fn one_tool_adds_another_checks_and_a_third_deletes() {
    if reference().is_none() {
        skip("the reference's cnitool in CNI_TOOL");
    }
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        let lab = lab(Peer::Ours);
        network(
            &lab,
            "web.conflist",
            &format!(
                r#"{{"cniVersion":"{version}","name":"web","plugins":[
                {{"type":"bridge","bridge":"web0","isGateway":true,"ipMasq":true,
                  "ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.66.0.0/24"}}]]}}}},
                {{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}"#
            ),
        );
        let container = lab.container();
        let on = |tool: &str, verb: &str| {
            let variables = WEB.replace("PLUGINS", farm().to_str().unwrap());
            run(&lab, &format!("{variables}{tool} {verb} web {}", container.netns))
        };
        assert_eq!(on(OURS, "add").status, 0);
        assert_eq!(on(OURS, "del").status, 0);
        let before = Watch::start(&lab, &[&container]);
        for [add, check, del] in turns() {
            let added = on(add, "add");
            assert_eq!((added.status, added.stderr.as_str()), (0, ""), "{add}: {added:?}");
            assert_eq!(added.json()["cniVersion"], version);
            assert_eq!(lab.host.sh("nft list tables | grep -c portmap"), "1\n");
            let checked = on(check, "check");
            let refused = "configuration version \"0.3.1\" does not support the CHECK command\n";
            let expected = if version == "0.3.1" { (1, refused) } else { (0, "") };
            assert_eq!((checked.status, &*checked.stderr), expected, "{add}, {check}");
            let deleted = on(del, "del");
            assert_eq!((deleted.status, deleted.stderr.as_str()), (0, ""), "{add}, {check}, {del}");
            before.assert_unchanged(&format!("{version}: {add}, {check}, {del}"));
            assert_eq!(lab.host.sh("ls /var/lib/cni/results"), "");
        }
    }
}

/// A network that has the same result with either tool.
const LO: &str = r#"{"name":"lo", "cniVersion":"1.0.0", "plugins":[{"type":"loopback","capabilities":{"mac":true}}]}"#;

/// Debian's libcni is 1.1.2, which does not yet keep `netns` and still writes an empty `dns`.
#[test]
fn both_print_and_keep_the_same() {
    if reference().is_none() {
        return skip("the reference's cnitool in CNI_TOOL");
    }
    let lab = lab(Peer::Ours);
    network(&lab, "lo.conflist", LO);
    let container = lab.container();
    let told = |tool: &str| {
        let arguments =
            r#"CNI_IFNAME=lo CNI_ARGS='B=2;A=<1>' CAP_ARGS='{"z":[1,{"b":1,"a":null}],"mac":"x"}'"#;
        let line =
            format!("{arguments} CNI_PATH={} {tool} add lo {}", farm().display(), container.netns);
        let added = run(&lab, &line);
        assert_eq!((added.status, added.stderr.as_str()), (0, ""), "{added:?}");
        let is_whole =
            |text: &str| text.starts_with("{\n    \"cniVersion\"") && text.ends_with("\n}");
        assert!(is_whole(&added.stdout), "{added:?}");
        let mut result = added.json();
        result.as_object_mut().unwrap().remove("dns");
        let kept = lab.host.sh("cd /var/lib/cni/results; stat -c '%a %n' . *; cat *; rm *");
        let netns = format!("\"netns\":{:?},", container.netns);
        (result, kept.replace("\"dns\":{},", "").replace(&netns, ""))
    };
    assert_eq!(told(OURS), told(REFERENCE));
}

/// The specification has runtimes delete `capabilities` from what a plugin gets; libcni does not.
#[test]
fn libcni_alone_leaves_capabilities_in_a_plugin_s_stdin() {
    let lab = lab(Peer::Ours);
    let keeps = r#"[{"type":"keeps","capabilities":{"mac":true}}]"#;
    network(&lab, "kept.conflist", &list("kept", keeps));
    lab.host.sh(
        r#"mkdir /run/bin; cd /run/bin
        printf '#!/bin/sh\ncat >/run/stdin; echo "{\\"cniVersion\\":\\"1.0.0\\"}"\n' >keeps; chmod +x keeps"#,
    );
    for (tool, is_left) in [(Some(OURS), false), (reference().map(|_| REFERENCE), true)] {
        let Some(tool) = tool else { return skip("the reference's cnitool in CNI_TOOL") };
        let line = format!("CNI_PATH=/run/bin {tool} add kept {}", lab.container().netns);
        assert_eq!(run(&lab, &line).status, 0, "{tool}");
        assert_eq!(lab.host.sh("cat /run/stdin").contains("capabilities"), is_left, "{tool}");
    }
}

#[test]
fn both_find_the_same_mistakes_in_the_same_order() {
    let lab = lab(Peer::Ours);
    network(&lab, "10-lo.conflist", LO);
    let old = list("old", r#"[{"type":"loopback"}]"#).replace("1.0.0", "0.3.1");
    network(&lab, "20-old.conflist", &old);
    network(&lab, "30-gone.conflist", &list("gone", r#"[{"type":"gone"}]"#));
    network(&lab, "40-single.conf", r#"{"name":"single","cniVersion":"1.0.0","type":"loopback"}"#);
    lab.host.sh("mkdir -p /run/bad /run/none; echo '{' > /run/bad/10.conflist");
    let path = format!("CNI_PATH={}", farm().display());
    let netns = lab.container().netns;
    // Each with its output on stderr. The plugin `gone` is looked up last, after everything that
    // the tool itself reads.
    let cases = r#"
NETCONFPATH=/run/none TOOL add lo NETNS | no net configurations found in /run/none
TOOL add other NETNS | no net configuration with name "other" in /etc/cni/net.d
CNI_ARGS=A TOOL add other NETNS | no net configuration with name "other" in /etc/cni/net.d
CNI_ARGS=A TOOL add gone NETNS | invalid CNI_ARGS pair "A"
CNI_ARGS='A=1;' TOOL del lo NETNS | invalid CNI_ARGS pair ""
CNI_ARGS=A= TOOL check lo NETNS | invalid CNI_ARGS pair "A="
TOOL check old NETNS | configuration version "0.3.1" does not support the CHECK command
NETCONFPATH=/run/bad TOOL add lo NETNS
CAP_ARGS='{' TOOL add lo NETNS
TOOL add gone NETNS
TOOL add lo /run/netns/nowhere
TOOL add lo
TOOL del
"#;
    for [line, stderr] in cells(cases) {
        for tool in tools() {
            let line = line.replace("TOOL", tool).replace("NETNS", &netns);
            let outcome = run(&lab, &format!("export {path} CNI_IFNAME=lo; {line}"));
            assert_eq!((outcome.status, &*outcome.stdout), (1, ""), "{line}: {outcome:?}");
            match stderr {
                // The message is a parser's, or ours says more.
                "" => assert!(!outcome.stderr.is_empty(), "{line}"),
                _ => assert_eq!(outcome.stderr, format!("{stderr}\n"), "{line}"),
            }
        }
    }
    for tool in tools() {
        let [add, del] =
            ["add", "del"].map(|it| format!("{path} CNI_IFNAME=lo {tool} {it} single {netns}"));
        let single = run(&lab, &format!("{add} && {del} more"));
        assert_eq!(single.status, 0, "one plugin's file, and too many arguments: {single:?}");
    }
}

/// libcni decodes numbers as floats, so 1400.0 reaches plugins as 1400; a Go plugin would refuse
/// 1400.0.
#[test]
fn whole_numbers_reach_plugins_as_integers() {
    let lab = lab(Peer::Ours);
    let floats = r#"[
        {"type":"bridge","bridge":"float0","mtu":14e2,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.69.0.0/24"}]]}},
        {"type":"portmap","capabilities":{"portMappings":true}}]"#;
    network(&lab, "floats.conflist", &list("floats", floats));
    network(
        &lab,
        "single.conf",
        r#"{"name":"single","cniVersion":"1.0.0","type":"bridge","mtu":1400.0,"bridge":"float1","ipam":{"type":"host-local","ranges":[[{"subnet":"10.70.0.0/24"}]]}}"#,
    );
    let args = r#"CAP_ARGS='{"portMappings":[{"hostPort":8.08e3,"containerPort":80.0,"protocol":"tcp"}]}'"#;
    for peer in Peer::all() {
        for [add, check, del] in turns() {
            let container = lab.container();
            for (network, ifname) in [("floats", "eth0"), ("single", "eth1")] {
                for (tool, verb) in [(add, "add"), (check, "check"), (del, "del")] {
                    let path = peer.dir().display();
                    let line = format!(
                        "{args} CNI_IFNAME={ifname} CNI_PATH={path} {tool} {verb} {network} {}",
                        container.netns
                    );
                    let outcome = run(&lab, &line);
                    assert_eq!((outcome.status, &*outcome.stderr), (0, ""), "{line}: {outcome:?}");
                    let has_mtu = || container.link(ifname).unwrap()["mtu"] == 1400;
                    assert!(verb != "add" || has_mtu(), "{line}");
                }
            }
        }
    }
}

/// The ID is derived from the text of the path made absolute, so a relative path and one with dots
/// name the same container.
#[test]
fn a_path_is_made_absolute_before_it_becomes_an_id() {
    let lab = lab(Peer::Ours);
    network(&lab, "lo.conflist", LO);
    let container = lab.container();
    let name = container.netns.strip_prefix("/run/netns/").unwrap();
    let path = format!("cd /run/netns; export CNI_IFNAME=lo CNI_PATH={}", farm().display());
    for tool in tools() {
        assert_eq!(run(&lab, &format!("{path}; {tool} add lo {name}")).status, 0);
        let kept = lab.host.sh("ls /var/lib/cni/results");
        let dots = format!("{path}; {tool} add lo ../../run/./netns//{name}");
        assert_eq!(run(&lab, &dots).status, 0);
        assert_eq!(lab.host.sh("ls /var/lib/cni/results"), kept);
        lab.host.sh("rm /var/lib/cni/results/*");
    }
}

#[test]
fn gc_takes_everything_for_stale_and_status_asks() {
    let lab = lab(Peer::Ours);
    let bridge = r#"[{"type":"bridge","bridge":"gc0",
        "ipam":{"type":"host-local","ranges":[[{"subnet":"10.67.0.0/24"}]]}}]"#;
    for (name, plugins) in [("net", bridge), ("other", r#"[{"type":"loopback"}]"#)] {
        let list = list(name, plugins).replace("1.0.0", "1.1.0");
        network(&lab, &format!("{name}.conflist"), &list);
    }
    let [one, two] = [lab.container(), lab.container()];
    let path = format!("export CNI_PATH={}", farm().display());
    let call = |line: &str| {
        let outcome = run(&lab, &format!("{path}; {line}"));
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{line}: {outcome:?}");
        outcome.stdout
    };
    assert_eq!(call(&format!("{OURS} status net nowhere")), "");
    let before = lab.host.sh("ls /var/lib/cni");
    call(&format!("CNI_IFNAME=lo {OURS} add other {}", one.netns));
    call(&format!("{OURS} add net {}", one.netns));
    call(&format!("{OURS} add net {} -i eth7", two.netns));
    assert!(one.link("eth0").is_some() && two.link("eth7").is_some());
    assert_eq!(call(&format!("{OURS} gc net nowhere")), "");
    assert!(one.link("eth0").is_none() && two.link("eth7").is_none());
    let kept = lab.host.sh("ls /var/lib/cni/results");
    let is_of_other = kept.starts_with("other-cnitool-") && kept.lines().count() == 1;
    assert!(is_of_other, "other networks stay: {kept}");
    assert_eq!(lab.host.sh("ls /var/lib/cni/networks/net | grep -c '^10'; true"), "0\n");
    assert_eq!(before, "");
}

/// libcni leaves the undo to its caller, and a script may inspect what is left.
#[test]
fn a_failed_add_is_left_as_it_is_until_del() {
    let lab = lab(Peer::Ours);
    let half = r#"[
        {"type":"bridge","bridge":"half0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.68.0.0/24"}]]}},
        {"type":"tuning","sysctl":{"net.nothing.of_the_kind":"1"}}]"#;
    network(&lab, "half.conflist", &list("half", half));
    let container = lab.container();
    for tool in tools() {
        let path = farm().display();
        let on = |verb: &str| {
            run(&lab, &format!("CNI_PATH={path} {tool} {verb} half {}", container.netns))
        };
        let failed = on("add");
        assert_eq!((failed.status, failed.stdout.as_str()), (1, ""), "{failed:?}");
        assert!(failed.stderr.starts_with("plugin type=\"tuning\" failed (add): "), "{failed:?}");
        assert!(container.link("eth0").is_some(), "{tool}");
        assert_eq!(on("del").status, 0);
        assert!(container.link("eth0").is_none(), "{tool}");
    }
}

/// SIGTERM leaves what `add` has done, as libcni does after a failed `add`.
#[test]
fn an_add_that_is_to_end_ends_between_two_plugins() {
    let lab = lab(Peer::Ours);
    network(&lab, "two.conflist", &list("two", r#"[{"type":"a"},{"type":"b"}]"#));
    lab.host.sh(
        r#"mkdir /run/fakes; cd /run/fakes
        printf '#!/bin/sh\ncat >/dev/null; echo "$CNI_COMMAND ${0##*/}" >>/run/calls; kill -TERM $PPID; echo "{\\"cniVersion\\":\\"1.0.0\\"}"\n' >a
        cp a b; chmod +x a b"#,
    );
    let on =
        |verb: &str| run(&lab, &format!("CNI_PATH=/run/fakes exec {OURS} {verb} two /run/netns/x"));
    let outcome = on("add");
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, "interrupted\n"));
    assert_eq!(on("del").status, -1, "the signal ends it when all is done");
    assert_eq!(lab.host.sh("cat /run/calls"), "ADD a\nDEL b\nDEL a\n");
}

#[test]
fn it_is_a_command_too_and_tells_how_it_is_used() {
    let run = |args: &[&str]| {
        let output = Command::new(binary()).args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    for args in
        [&["cnitool"][..], &["cnitool", "--help"], &["cnitool", "help"], &["cnitool", "add", "-h"]]
    {
        let (status, stdout, stderr) = run(args);
        let is_usage = stdout.contains("Usage: cnitool ");
        assert!((status, &*stderr) == (0, "") && is_usage, "{args:?}: {stdout}");
    }
    for args in [
        &["cnitool", "add", "net"][..],
        &["cnitool", "frobnicate", "net", "/x"],
        &["cnitool", "add", "--frobnicate", "net", "/x"],
    ] {
        let (status, stdout, stderr) = run(args);
        assert_eq!((status, &*stdout, stderr.is_empty()), (1, "", false), "{args:?}");
    }
}
