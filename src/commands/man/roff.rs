//! Pages of the manual as man(7) markup.

use std::fmt::Display;

/// A page that is being written.
pub struct Roff(String);

impl Roff {
    /// Begins the page `name` of a section of the manual.
    pub fn page(name: &str, section: u8) -> Roff {
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Roff(String::new());
        // No hyphenation, and the left margin only: commands and keys must not be broken.
        page.line(format_args!(".TH \"{name}\" \"{section}\" \"\" \"cni-multi {version}\""));
        page.line(".nh");
        page.line(".ad l");
        page
    }

    fn line(&mut self, line: impl Display) {
        self.0 += &format!("{line}\n");
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        self.line(format_args!(".SH {title}"));
    }

    /// Begins a part of a section.
    pub fn part(&mut self, title: &str) {
        self.line(format_args!(".SS {}", escaped(title)));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.line(".PP");
        self.text(text);
    }

    /// Text of the current paragraph.
    pub fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(escaped(line)));
    }

    /// A command line, as it is typed.
    pub fn command(&mut self, text: &str) {
        self.line(".PP\n.nf");
        self.line(bold(text));
        self.line(".fi");
    }

    /// A term and its explanation, indented by `level`; the term is marked up already.
    pub fn item(&mut self, marked: &str, text: &str) {
        self.line(".TP");
        self.line(marked);
        self.text(text);
    }

    /// Begins items that belong to the item before.
    pub fn indent(&mut self) {
        self.line(".RS");
    }

    /// Ends them.
    pub fn outdent(&mut self) {
        self.line(".RE");
    }

    /// The page.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// The text in bold.
pub fn bold(text: &str) -> String {
    ["\\fB", &escaped(text), "\\fR"].concat()
}

/// The text in italics.
pub fn italic(text: &str) -> String {
    ["\\fI", &escaped(text), "\\fR"].concat()
}

/// The text without meaning for roff: `-` would become a hyphen, and a line that begins with `.` or
/// `'` a request.
pub fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let text = text.replace('`', "\\(ga").replace('^', "\\(ha").replace('~', "\\(ti");
    if text.starts_with('.') { ["\\&", &text].concat() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_letters() {
        assert_eq!(
            escaped(".a-b 'c' \\ `d` ^~"),
            "\\&.a\\-b \\(aqc\\(aq \\e \\(gad\\(ga \\(ha\\(ti"
        );
    }
}
