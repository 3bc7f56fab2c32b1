//! `cni-multi completion SHELL`: prints the script with which a shell completes command lines.
//!
//! The scripts are small: at each completion they run the hidden command `complete` with the words
//! of the line, and [`line`] answers from the description of the command line that parses it, with
//! the networks, namespaces and containers of this host. So there is no second list of commands.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Command};

use super::argument;
use crate::cni::env::Environment;
use crate::terminal::Streams;
use crate::terminal::manual::Manual;

mod line;

/// The hidden command that the scripts run, followed by `--` and the words of the line.
pub const QUERY: &str = "complete";

/// The shells, each with its script.
const SCRIPTS: [(&str, &str); 3] = [
    ("bash", include_str!("complete.bash")),
    ("fish", include_str!("complete.fish")),
    ("zsh", include_str!("complete.zsh")),
];

/// The sections of its page.
pub const MANUAL: Manual = Manual {
    description: &[
        "The script runs the program again at each completion, which offers commands, options and \
         plugins, and the networks, namespaces and containers of this host, as far as the user may \
         read them.",
    ],
    examples: &[
        (
            "source <(cni-multi completion bash)",
            "In bash, and in zsh after compinit: until the shell ends.",
        ),
        (
            "cni-multi completion bash >/usr/local/share/bash-completion/completions/cni-multi",
            "In bash, for all users, with the package bash-completion.",
        ),
        (
            "cni-multi completion zsh >/usr/local/share/zsh/site-functions/_cni-multi",
            "In zsh, for all users.",
        ),
        ("cni-multi completion fish >~/.config/fish/completions/cni-multi.fish", "In fish."),
    ],
    files: &[
        ("/etc/cni/net.d", "Networks that are offered, without --conf-dir."),
        ("/run/netns", "Namespaces that are offered."),
        ("/var/lib/cni/results", "Containers that are offered, without --cache-dir."),
    ],
    environment: &[("NETCONFPATH", "The directory of networks, without --conf-dir.")],
    see_also: &["bash(1)", "zshcompsys(1)", "fish-completions(1)"],
    ..Manual::EMPTY
};

/// The command line.
pub fn command() -> Command {
    let shells = SCRIPTS.map(|(shell, _)| shell);
    let shell = Arg::new("shell").value_name("SHELL").required(true).value_parser(shells);
    Command::new("completion")
        .about("Print the completion script for a shell")
        .arg(shell.help("The shell"))
}

/// Runs the command; the script completes the program `name`.
pub fn run(matches: &ArgMatches, name: &str, io: &mut Streams<'_>) -> u8 {
    io.print(&script(argument(matches, "shell"), name))
}

/// The script of a shell for the program `name`.
pub fn script(shell: &str, name: &str) -> String {
    let script = SCRIPTS.iter().find(|known| known.0 == shell).map_or("", |known| known.1);
    script.replace("@NAME@", name).replace("@FUNCTION@", &name.replace('-', "_"))
}

/// Prints the completions of the last of `words`. The first word is the program, and its command line
/// is one of `commands`. Each completion is a line with its purpose after a tab; a line `:files` or
/// `:directories` leaves the completion to the shell. Always succeeds:
/// a shell that completes has no place for an error.
pub fn answer(
    words: &[OsString],
    commands: fn(&str) -> Command,
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let program = words.first().map_or("", |path| path.rsplit('/').next().unwrap_or_default());
    let mut command = commands(program);
    command.build();
    let offers = line::Line::read(&command, &words, env).offers();
    io.print(&offers.concat()); // the shell may have closed the pipe
    0
}
