//! Writes the manual pages and the shell completions, from the command line definition that the
//! binary itself uses.
//!
//! `cargo run --example manual -- DIR`, or `./install.sh --manual DIR`, makes below `DIR`, which is
//! a `share` like /usr/local/share:
//!
//! * `man/man1/cni-multi*.1`, a page for each command
//! * `bash-completion/completions/cni-multi`
//! * `zsh/site-functions/_cni-multi`
//! * `fish/vendor_completions.d/cni-multi.fish`

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Command, ValueHint};
use clap_complete::aot::{Generator, Shell};
use clap_mangen::Man;
use cni_multi::registry::PLUGINS;

#[allow(dead_code, reason = "the tests call `write` themselves")]
fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        complain("expected a directory, such as /usr/local/share");
        return ExitCode::from(2);
    };
    match write(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{}: {error}", Path::new(&dir).display()));
            ExitCode::FAILURE
        }
    }
}

fn complain(problem: &str) {
    let _ = io::Write::write_all(&mut io::stderr(), format!("manual: {problem}\n").as_bytes()); // the status reports it too
}

/// Writes everything below `dir`; replaces files with these names.
pub fn write(dir: &Path) -> io::Result<()> {
    let mut commands =
        with_values(for_people(cni_multi::cli::commands())).disable_help_subcommand(true);
    commands.build();
    write_pages(&commands, &dir.join("man/man1"), "cni-multi")?;
    let shells = [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ];
    for (shell, place) in shells {
        write_completions(&mut commands, shell, &dir.join(place))?;
    }
    Ok(())
}

/// Removes the hidden subcommands, which only the binary itself calls.
fn for_people(command: Command) -> Command {
    let hidden: Vec<String> =
        command.get_subcommands().filter(|sub| sub.is_hide_set()).map(name_of).collect();
    let shown: Vec<Command> =
        command.get_subcommands().filter(|sub| !hidden.contains(&name_of(sub))).cloned().collect();
    let about = command.get_about().cloned().unwrap_or_default();
    let version = command.get_version().unwrap_or_default().to_owned();
    let after = command.get_after_help().cloned().unwrap_or_default();
    Command::new("cni-multi").version(version).about(about).after_help(after).subcommands(shown)
}

/// Adds values for shells to offer. The binary checks them itself and has no lists of them.
fn with_values(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_value_names() {
        Some([name]) if name == "FORMAT" => arg.value_parser(["table", "json"]),
        Some([name]) if name == "PLUGIN" => {
            arg.value_parser(PossibleValuesParser::new(PLUGINS.iter().map(|plugin| plugin.name)))
        }
        Some([name]) if name == "DIR" => arg.value_hint(ValueHint::DirPath),
        _ => arg,
    });
    let names: Vec<String> = command.get_subcommands().map(name_of).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_values))
}

fn name_of(command: &Command) -> String {
    command.get_name().to_owned()
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &Command, dir: &Path, name: &'static str) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for sub in command.get_subcommands() {
        let full: &'static str = format!("{name}-{}", sub.get_name()).leak();
        write_pages(sub, dir, full)?;
    }
    let mut page = vec![];
    let command = command.clone().name(name).version(env!("CARGO_PKG_VERSION"));
    Man::new(command).title(name).manual("cni-multi").render(&mut page)?;
    fs::write(dir.join(format!("{name}.1")), page)
}

fn write_completions(commands: &mut Command, shell: Shell, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut text = vec![];
    clap_complete::aot::generate(shell, commands, "cni-multi", &mut text);
    // clap_complete 4.6 for bash writes the `-` of our name in two different ways, so that the
    // completion would find no subcommand.
    let text = String::from_utf8_lossy(&text).replace("cni__subcmd__multi", "cni__multi");
    let file = match shell {
        Shell::Bash => "cni-multi".to_owned(), // bash-completion looks for the command's own name
        other => other.file_name("cni-multi"),
    };
    fs::write(dir.join(file), text)
}
