//! The manual and the completions that the binary prints: they cover the whole command line, in
//! valid formats, and shells complete what is on the host.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::attachment::skip;
use crate::support::call::{Peer, binary};
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;
use crate::support::shells::Shell;
use crate::support::table::cells;

/// The sections of every page about a command.
const SECTIONS: [&str; 7] =
    ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"];

fn run(args: &[&str]) -> Output {
    Command::new(binary()).arg0("cni-multi").args(args).output().unwrap()
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn written() -> Scratch {
    let dir = Scratch::new();
    assert_eq!(printed(&["man", dir.text()]), "");
    dir
}

/// Every visible command with its long options; `net add` is `["net", "add"]`.
fn commands() -> Vec<(Vec<String>, Vec<String>)> {
    fn collect(
        command: &clap::Command,
        path: &[String],
        found: &mut Vec<(Vec<String>, Vec<String>)>,
    ) {
        let longs = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let longs = longs.filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
        found.push((path.to_vec(), longs));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            collect(sub, &[path, &[sub.get_name().to_owned()]].concat(), found);
        }
    }
    let mut found = vec![];
    collect(&cni_multi::cli::commands(), &[], &mut found);
    assert!(found.len() > 8, "{found:?}");
    found
}

fn name_of(path: &[String]) -> String {
    [&["cni-multi".to_owned()], path].concat().join("-")
}

/// The titles of a page's sections, and the text as it is read.
fn read_page(path: &Path) -> (Vec<String>, String) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let titles = text.lines().filter_map(|line| line.strip_prefix(".SH ")).map(str::to_owned);
    (titles.collect(), text.replace("\\-", "-"))
}

#[test]
fn every_command_has_a_page_with_its_options() {
    let dir = written();
    let mut names = BTreeSet::from(["cnitool(1)".to_owned(), "cni.conflist(5)".to_owned()]);
    for (path, longs) in commands() {
        let name = name_of(&path);
        let (titles, text) = read_page(&dir.join(&format!("man/man1/{name}.1")));
        for title in SECTIONS {
            assert!(titles.iter().any(|there| there == title), "{name}.1 has no {title}");
        }
        for long in longs {
            assert!(text.contains(&format!("--{long}")), "{name}.1 has no --{long}");
        }
        names.insert(name + "(1)");
    }
    let listed = printed(&["man"]);
    assert_eq!(listed.lines().map(str::to_owned).collect::<BTreeSet<_>>(), names);
    let pages =
        ["man1", "man5"].map(|man| fs::read_dir(dir.join("man").join(man)).unwrap().count());
    assert_eq!(pages, [names.len() - 1, 1], "no other, such as one of a hidden command");
}

/// An example that does not parse would be copied by a reader all the same.
#[test]
fn every_example_is_a_valid_command_line() {
    let dir = written();
    let mut count = 0;
    for page in fs::read_dir(dir.join("man/man1")).unwrap().map(|entry| entry.unwrap().path()) {
        let (_, text) = read_page(&page);
        let (_, examples) = text.split_once(".SH EXAMPLES\n").unwrap();
        let examples = examples.split("\n.SH ").next().unwrap();
        for line in examples.lines().filter_map(|line| line.strip_prefix("\\fB")) {
            let line = line.trim_end_matches("\\fR").trim_start_matches("source <(");
            let words: Vec<&str> = line.trim_end_matches(')').split(' ').collect();
            let end = words.iter().position(|word| word.starts_with(['>', '|']));
            let words = &words[..end.unwrap_or(words.len())];
            let words =
                if words[0] == "cnitool" { &[&["cni-multi"], words].concat() } else { words };
            let parsed = cni_multi::cli::commands().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{page:?}: {line:?}: {}", parsed.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}

#[test]
fn the_pages_are_typeset_without_a_warning() {
    if Command::new("groff").arg("--version").output().is_err() {
        return skip("groff");
    }
    let dir = written();
    let pages = ["man/man1", "man/man5"].map(|man| fs::read_dir(dir.join(man)).unwrap());
    let pages = pages.into_iter().flatten().map(|entry| entry.unwrap().path());
    let output =
        Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).args(pages).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn one_page_is_printed_and_an_unknown_one_refused() {
    let dir = written();
    let page = fs::read_to_string(dir.join("man/man1/cni-multi-net-gc.1")).unwrap();
    assert_eq!(printed(&["man", "--page", "cni-multi-net-gc"]), page);
    assert_eq!(printed(&["man", "--page", "cni-multi-net-gc(1)"]), page);
    for (args, status) in [(["--page", "cni-multi-nat"], 2), (["", "/proc/none"], 1)] {
        let args: Vec<&str> = ["man"].into_iter().chain(args).filter(|it| !it.is_empty()).collect();
        let refused = run(&args);
        assert_eq!(
            (refused.status.code(), refused.stdout.is_empty()),
            (Some(status), true),
            "{refused:?}"
        );
        assert!(!refused.stderr.is_empty());
    }
}

/// install.sh writes the pages and the completions of both names to where shells look.
#[test]
fn install_sh_writes_manual_and_completions_below_share() {
    let dir = Scratch::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    let output = Command::new(script)
        .args(["--manual", "share", "--binary"])
        .arg(binary())
        .current_dir(dir.join(""))
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    for (shell, place) in [
        ("bash", "bash-completion/completions/NAME"),
        ("fish", "fish/vendor_completions.d/NAME.fish"),
        ("zsh", "zsh/site-functions/_NAME"),
    ] {
        let of = |name: &str| dir.join("share").join(place.replace("NAME", name));
        let file = |name: &str| fs::read_to_string(of(name)).unwrap();
        assert_eq!(file("cni-multi"), printed(&["completion", shell]));
        assert_eq!(file("cnitool"), printed(&["cnitool", "completion", shell]));
    }
    assert!(dir.join("share/man/man5/cni.conflist.5").exists());
}

/// The words that the binary offers for the last of these, as the scripts ask.
fn offered(words: &[&str]) -> Vec<String> {
    let text = printed(&[&["complete", "--"], words].concat());
    text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn completion_knows_every_command_and_option() {
    for (path, longs) in commands() {
        let words: Vec<&str> =
            ["cni-multi"].into_iter().chain(path.iter().map(String::as_str)).collect();
        if let Some((last, before)) = path.split_last() {
            let line = &words[..=before.len()];
            assert!(offered(&[line, &[last]].concat()).contains(last), "{path:?}");
        }
        let options = offered(&[words.as_slice(), &["--"]].concat());
        for long in longs {
            assert!(options.contains(&format!("--{long}")), "{path:?} --{long}: {options:?}");
        }
    }
    assert_eq!(offered(&["cni-multi", "create"]), [""; 0], "a hidden command");
}

/// The host of the test below: two networks, a namespace, and the record of a container elsewhere.
fn host() -> Lab {
    let lab = Lab::new(Peer::Ours);
    let binary = binary();
    lab.host.sh(&format!(
        r#"mkdir -p /run/etc/cni/net.d /run/programs /var/lib/cni/results
        cp -a /etc/. /run/etc/ 2>/dev/null; rm -rf /run/etc/cni; mkdir -p /run/etc/cni/net.d
        mount --bind /run/etc /etc
        ln -s {binary} /run/programs/cni-multi
        ln -s {binary} /run/programs/cnitool
        touch /run/netns/blue '/run/netns/a b' '/run/netns/$(touch x)'
        echo '{{"cniVersion":"1.0.0","name":"first","plugins":[{{"type":"loopback"}}]}}' >/etc/cni/net.d/1.conflist
        echo '{{"cniVersion":"1.0.0","name":"second","type":"loopback"}}' >/etc/cni/net.d/2.conf
        echo '{{"name":"$(touch /run/run)","plugins":[{{"type":"x"}}]}}' >/etc/cni/net.d/3.conflist
        echo '{{"kind":"cniCacheV1","containerId":"4f1c","networkName":"first","ifName":"eth0","config":"","netns":"/proc/4711/ns/net","cniArgs":null,"capabilityArgs":null,"result":null}}' \
            >/var/lib/cni/results/first-4f1c-eth0"#,
        binary = binary.display()
    ));
    lab
}

/// The command that runs a program on the host, where both names are programs.
fn on(lab: &Lab, program: &str) -> Command {
    let mut command = lab.host.command("env");
    let path = std::env::var("PATH").unwrap();
    command.arg(format!("PATH=/run/programs:{path}")).arg(program);
    command
}

/// What is typed, which may end with a space, and the words that are offered.
const COMPLETED: &str = r#"
cni-multi  | cnitool completion dhcp doctor example help install ipam list man metrics net schema validate
cni-multi net list --output  | json table
cni-multi net add --no | --no-undo
cni-multi net add  | first second
cni-multi net add first  | blue outside
cni-multi net del first /proc/4711/ns/n | /proc/4711/ns/net
cni-multi net ps --container-id  | 4f1c
cni-multi schema host- | host-device host-local
cni-multi man /pro | /proc/
"#;

#[test]
fn shells_complete_networks_namespaces_and_containers() {
    let lab = host();
    let dir = Scratch::new();
    for name in ["cni-multi", "cnitool"] {
        symlink(binary(), dir.join(name)).unwrap();
    }
    for shell in Shell::installed() {
        let script = |name: &str| {
            let file = dir.join(&format!("{name}.{}", shell.name()));
            let output =
                Command::new(dir.join(name)).args(["completion", shell.name()]).output().unwrap();
            fs::write(&file, output.stdout).unwrap();
            let read = Command::new(shell.name()).arg("-n").arg(&file).status().unwrap();
            assert!(read.success(), "{shell:?}");
            file
        };
        let (multi, cnitool) = (script("cni-multi"), script("cnitool"));
        for [line, expected] in cells(COMPLETED) {
            let offers = shell.offers(&multi, line, &|program| on(&lab, program));
            let offers: Vec<String> = offers.iter().map(|word| with_slash(word)).collect();
            assert_eq!(offers.join(" "), expected, "{shell:?} {line:?}");
        }
        let offers =
            shell.offers(&cnitool, "cnitool add first /run/netns/b", &|program| on(&lab, program));
        assert_eq!(offers, ["/run/netns/blue"], "{shell:?}");
    }
    assert_eq!(lab.host.sh("ls -d /run/run 2>/dev/null || echo none"), "none\n");
}

/// A directory as fish writes it; bash and zsh add the slash when they insert it.
fn with_slash(word: &str) -> String {
    if word == "/proc" || word == "proc" { "/proc/".to_owned() } else { word.to_owned() }
}
