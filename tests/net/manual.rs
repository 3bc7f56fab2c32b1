//! The manual pages and the completions cover the whole command line in valid formats.

use std::fs;
use std::process::Command;

use crate::support::attachment::skip;
use crate::support::scratch::Scratch;
use crate::support::shells::Shell;

#[path = "../../packaging/manual.rs"]
mod packaging;

fn written() -> Scratch {
    let dir = Scratch::new();
    packaging::write(&dir.join("share")).unwrap();
    dir
}

/// Every visible command with its long options; `net add` is `["net", "add"]`.
fn commands() -> Vec<(Vec<String>, Vec<String>)> {
    fn collect(
        command: &clap::Command,
        path: &[String],
        found: &mut Vec<(Vec<String>, Vec<String>)>,
    ) {
        let longs =
            command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
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

#[test]
fn every_command_has_a_page_with_its_options() {
    let dir = written();
    for (path, longs) in commands() {
        let name = [&["cni-multi".to_owned()], path.as_slice()].concat().join("-");
        let page = fs::read_to_string(dir.join(&format!("share/man/man1/{name}.1")))
            .unwrap()
            .replace("\\-", "-");
        for long in longs {
            assert!(page.contains(&format!("--{long}")), "{name}.1 has no --{long}");
        }
    }
    let pages = fs::read_dir(dir.join("share/man/man1")).unwrap().count();
    assert_eq!(pages, commands().len(), "no other, such as one of a hidden command");
}

#[test]
fn the_pages_are_typeset_without_a_warning() {
    if Command::new("groff").arg("--version").output().is_err() {
        return skip("groff");
    }
    let dir = written();
    for page in fs::read_dir(dir.join("share/man/man1")).unwrap().map(|entry| entry.unwrap().path())
    {
        let output = Command::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-z"])
            .arg(&page)
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{page:?}: {output:?}");
    }
}

#[test]
fn the_completions_know_every_command_and_option() {
    let dir = written();
    let files = [
        "bash-completion/completions/cni-multi",
        "zsh/site-functions/_cni-multi",
        "fish/vendor_completions.d/cni-multi.fish",
    ];
    for file in files {
        let text = fs::read_to_string(dir.join("share").join(file)).unwrap();
        assert!(!text.contains("create-tap"), "{file} has a hidden command");
        for (path, longs) in commands() {
            assert!(path.last().is_none_or(|name| text.contains(name)), "{file} has no {path:?}");
            for long in longs {
                assert!(
                    text.contains(&format!("--{long}")) || text.contains(&format!("-l {long} ")),
                    "{file} has no --{long}"
                );
            }
        }
    }
}

#[test]
fn shells_complete_what_is_typed() {
    let dir = written();
    for shell in Shell::installed() {
        let file = dir.join("share").join(match shell {
            Shell::Bash => "bash-completion/completions/cni-multi",
            Shell::Fish => "fish/vendor_completions.d/cni-multi.fish",
            Shell::Zsh => "zsh/site-functions/_cni-multi",
        });
        assert!(
            Command::new(shell.name()).arg("-n").arg(&file).status().unwrap().success(),
            "{shell:?}"
        );
        let offers = |line: &str| {
            let mut offered = shell.offers(&file, line, &|program| Command::new(program));
            offered.retain(|word| !word.starts_with('-') && word != "help");
            offered
        };
        let commands = ["cnitool", "dhcp", "install", "list", "net", "schema", "validate"];
        assert_eq!(offers("cni-multi "), commands, "{shell:?}");
        let verbs = ["add", "check", "del", "gc", "inspect", "list", "ps", "status"];
        assert_eq!(offers("cni-multi net "), verbs, "{shell:?}");
        assert_eq!(offers("cni-multi net list --output "), ["json", "table"], "{shell:?}");
        // clap_complete 4.6 does not complete positional arguments in fish.
        let plugins: &[&str] =
            if matches!(shell, Shell::Fish) { &[] } else { &["host-device", "host-local"] };
        assert_eq!(offers("cni-multi schema host-"), plugins, "{shell:?}");
        let options =
            shell.offers(&file, "cni-multi net add --no", &|program| Command::new(program));
        assert_eq!(options, ["--no-undo"], "{shell:?}");
    }
}
