//! Colour, for people at a terminal only.

use std::io::{self, IsTerminal as _};

use crate::cni::env::Environment;

/// Whether output is coloured (<https://no-color.org>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// No colour.
    pub const PLAIN: Style = Style { colour: false };

    /// Colour if stdout is a terminal that has it, and NO_COLOR is empty or not set.
    pub fn of_stdout(env: &Environment) -> Style {
        let is_able = io::stdout().is_terminal() && env.get("TERM") != "dumb";
        Style { colour: is_able && env.get("NO_COLOR").is_empty() }
    }

    /// Bold text.
    pub fn title(self, text: &str) -> String {
        self.code("1", text)
    }

    /// Green text.
    pub fn good(self, text: &str) -> String {
        self.code("32", text)
    }

    /// Red text.
    pub fn bad(self, text: &str) -> String {
        self.code("31", text)
    }

    /// Yellow text.
    pub fn warning(self, text: &str) -> String {
        self.code("33", text)
    }

    /// Faint text.
    pub fn faint(self, text: &str) -> String {
        self.code("2", text)
    }

    /// The text within an SGR sequence (console_codes(4)).
    fn code(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
