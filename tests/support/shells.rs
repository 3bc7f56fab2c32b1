//! The completions that shells offer for the end of a command line, as the shells themselves
//! compute them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::attachment::skip;
use super::patience;
use super::scratch::Scratch;

/// A shell with completion.
#[derive(Clone, Copy, Debug)]
pub enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Calls the completion function that bash has for the command, as bash would.
const BASH: &str = r#"set -u
source "$1"
read -ra COMP_WORDS <<<"$2"
[[ $2 != *' ' ]] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p "${COMP_WORDS[0]}" | sed 's/.* -F \([^ ]*\) .*/\1/')
$function "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

const FISH: &str = "source $argv[1]; complete -C $argv[2]";

/// zsh completes at a terminal only. This creates one, types the line there with a tab after it,
/// and deletes the line again.
const ZSH: &str = r#"zmodload zsh/zpty
zpty shell zsh -d -i
zpty -r shell shown '*READY*' || exit
zpty -w -n shell "$2"$'\t\C-u'exit$'\n'
while zpty -r shell more; do shown+=$more; done
[[ -e $OFFERED ]] && cat $OFFERED || print -r -- $shown >&2
"#;

/// The startup file of that zsh: it records the offers, except those of completions that only query
/// (`-O` and the like).
const ZSHRC: &str = r#"PROMPT=READY
autoload -Uz compinit
compinit -D -u
zstyle ':completion:*' insert-tab false
compadd() {
  local -a offered
  [[ "$*" == *-[OAD]\ * ]] || { builtin compadd -O offered "$@"; print -rl -- $offered >>$OFFERED }
  builtin compadd "$@"
}
source $COMPLETION
"#;

impl Shell {
    pub const ALL: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

    /// The shell's name, which is also its program.
    pub fn name(self) -> &'static str {
        match self {
            Shell::Bash => "bash",
            Shell::Fish => "fish",
            Shell::Zsh => "zsh",
        }
    }

    /// The installed shells; each missing one is a skip.
    pub fn installed() -> Vec<Shell> {
        let is_there = |shell: &Shell| Command::new(shell.name()).arg("--version").output().is_ok();
        let (there, missing): (Vec<_>, Vec<_>) = Shell::ALL.into_iter().partition(is_there);
        missing.iter().for_each(|shell| skip(shell.name()));
        there
    }

    /// The offers for the last word of the line, sorted, when `file` defines the command's
    /// completion. `start` creates the command that runs a program where the line is typed.
    #[track_caller]
    pub fn offers(self, file: &Path, line: &str, start: &dyn Fn(&str) -> Command) -> Vec<String> {
        let home = Scratch::new();
        fs::write(home.join(".zshrc"), ZSHRC).unwrap();
        let mut command = start("timeout");
        command.arg(patience(60).as_secs().to_string()).arg(self.name());
        match self {
            Shell::Bash => command.args(["--norc", "-c", BASH, "bash"]),
            Shell::Fish => command.args(["--no-config", "-c", FISH]),
            Shell::Zsh => command.args(["-f", "-c", ZSH, "zsh"]),
        };
        let home_is =
            ["HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"].map(|name| (name, home.text()));
        command.arg(file).arg(line).envs(home_is).env("TERM", "xterm");
        let output =
            command.env("COMPLETION", file).env("OFFERED", home.join("offered")).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{self:?} {line:?}: {output:?}"
        );
        let stdout = String::from_utf8(output.stdout).unwrap();
        let words = stdout.lines().map(|line| line.split('\t').next().unwrap_or_default()); // fish describes them
        let mut words: Vec<String> =
            words.filter(|word| !word.is_empty()).map(str::to_owned).collect();
        words.sort();
        words.dedup();
        words
    }
}
