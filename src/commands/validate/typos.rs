//! Typing errors in a text that is not JSON, each at its own place.
//!
//! A JSON parser stops at the first error and names what it expected. This reader accepts what
//! people type in place of JSON, such as comments, single quotes and a comma too many, reports it
//! and continues. It stops where the rest of the text could mean anything.

use std::ops::Range;

use crate::cni::json::Value;
use crate::terminal::nearest::nearest;

/// The maximum number of typing errors that are reported for one text.
const MOST: usize = 20;

/// The deepest nesting that is followed, as in the JSON parser.
const DEEPEST: usize = 128;

/// The byte order mark (BOM) that some editors write before a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The words of JSON.
const WORDS: [&str; 3] = ["true", "false", "null"];

/// Words of other languages, each with its word of JSON.
const FOREIGN_WORDS: [(&str, &str); 7] = [
    ("none", "null"),
    ("nil", "null"),
    ("undefined", "null"),
    ("yes", "true"),
    ("on", "true"),
    ("no", "false"),
    ("off", "false"),
];

/// A typing error.
#[derive(Debug)]
pub struct Typo {
    /// The text to underline; may be empty at the end of a line.
    pub span: Range<usize>,
    /// What is wrong.
    pub problem: String,
    /// What to type.
    pub remedy: String,
}

/// The typing errors in a text, as far as they are certain; may be empty.
pub fn typos(text: &str) -> Vec<Typo> {
    let mut reader = Reader { text, at: 0, open: vec![], found: vec![] };
    let _ = reader.document(); // None: the rest of the text could mean anything
    reader.found
}

/// Reads a text; each method returns None where the rest cannot be understood.
struct Reader<'a> {
    text: &'a str,
    /// The offset of the next letter.
    at: usize,
    /// The brackets that are not closed yet.
    open: Vec<usize>,
    found: Vec<Typo>,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Option<()> {
        self.mark();
        self.blanks();
        let (here, next) = (self.at, self.peek()?);
        if !"{[".contains(next) {
            self.tell(here..here + next.len_utf8(), "not JSON", "a configuration begins with {");
            return None;
        }
        self.value()?;
        self.blanks();
        self.end()
    }

    /// Reports a byte order mark at the start of the text.
    fn mark(&mut self) {
        if self.text.starts_with(BYTE_ORDER_MARK) {
            self.at = BYTE_ORDER_MARK.len_utf8();
            let problem = "the file begins with a byte order mark";
            self.tell(0..self.at, problem, "save it without one");
        }
    }

    /// Reports text after the end of the document.
    fn end(&mut self) -> Option<()> {
        let next = self.peek()?;
        let (problem, remedy) = match next {
            '}' | ']' => (format!("a {next} too many"), "remove it"),
            '{' => ("a second object".to_owned(), "put it into a file of its own"),
            _ => ("text after the end of the configuration".to_owned(), "remove it"),
        };
        self.tell(self.at..self.at + next.len_utf8(), &problem, remedy);
        None
    }

    fn value(&mut self) -> Option<()> {
        match self.peek()? {
            '{' => self.group('}', Reader::member),
            '[' => self.group(']', Reader::value),
            '"' => self.string(),
            letter if is_foreign_quote(letter) => self.foreign_string(letter),
            letter if letter.is_ascii_digit() || "+-.".contains(letter) => self.number(),
            letter if is_of_word(letter) => self.word(),
            _ => None,
        }
    }

    /// Reads an object or a list: `close` ends it, `item` reads a part of it.
    fn group(&mut self, close: char, item: fn(&mut Self) -> Option<()>) -> Option<()> {
        if self.open.len() == DEEPEST {
            return None;
        }
        self.open.push(self.at);
        self.at += 1;
        loop {
            self.blanks();
            match self.next()? {
                ',' => self.report(1, "a comma too many", "remove it"),
                letter if letter == close => break,
                _ => {
                    item(self)?;
                    self.separator(close)?;
                }
            }
        }
        self.at += 1;
        self.open.pop();
        Some(())
    }

    /// Reads what follows an item of an object or a list.
    fn separator(&mut self, close: char) -> Option<()> {
        let end = self.at;
        self.blanks();
        match self.next()? {
            ',' => self.comma(close),
            ';' => self.report(1, "a semicolon", "type a comma"),
            letter if letter == close => (),
            letter @ ('}' | ']') => {
                let problem = format!("{letter} in place of {close}");
                self.report(1, &problem, &format!("type {close}"));
                return None;
            }
            ':' => return None,
            _ => self.tell(end..end, "a comma is missing", "type a comma here"),
        }
        Some(())
    }

    /// Reads a comma, and reports it if nothing follows.
    fn comma(&mut self, close: char) {
        let comma = self.at;
        self.at += 1;
        self.blanks();
        if self.peek() == Some(close) {
            let problem = format!("a comma before {close}");
            self.tell(comma..comma + 1, &problem, "remove it");
        }
    }

    fn member(&mut self) -> Option<()> {
        self.key()?;
        let end = self.at;
        self.blanks();
        match self.next()? {
            ':' => self.at += 1,
            '=' => self.report(1, "an equals sign", "type a colon"),
            _ => self.tell(end..end, "a colon is missing", "type a colon here"),
        }
        self.blanks();
        match self.next()? {
            ',' | '}' | ']' => {
                self.tell(self.at..self.at, "a value is missing", "type it here");
                Some(())
            }
            _ => self.value(),
        }
    }

    fn key(&mut self) -> Option<()> {
        match self.peek()? {
            '"' => self.string(),
            letter if is_foreign_quote(letter) => self.foreign_string(letter),
            letter if is_of_word(letter) => {
                let start = self.at;
                let word = self.take(is_of_word)?;
                self.tell(start..self.at, "a key without quotes", &in_quotes(word));
                Some(())
            }
            _ => None,
        }
    }

    fn string(&mut self) -> Option<()> {
        let start = self.at;
        self.at += 1;
        while let Some(letter) = self.peek() {
            match letter {
                '"' => {
                    self.at += 1;
                    return Some(());
                }
                '\\' => self.escape(),
                '\t' => self.report(1, "a tab in a text", "type \\t"),
                letter if letter < ' ' => break,
                letter => self.at += letter.len_utf8(),
            }
        }
        self.tell_open_string(start);
        None
    }

    /// Reads a backslash with the letter after it.
    fn escape(&mut self) {
        let escaped = self.text[self.at + 1..].chars().next().unwrap_or('"');
        let length = 1 + escaped.len_utf8();
        if "\"\\/bfnrtu".contains(escaped) {
            self.at = (self.at + length).min(self.text.len());
        } else {
            let remedy = format!("type \\\\ for a backslash, here \\\\{escaped}");
            self.report(length, &format!("\\{escaped} is no letter of JSON"), &remedy);
        }
    }

    /// Reports a string, begun at `start`, without an end on its line. A typographic quote was
    /// probably meant as its end.
    fn tell_open_string(&mut self, start: usize) {
        let quote = self.text[start..self.at].char_indices().find(|(_, it)| is_typographic(*it));
        match quote {
            Some((at, letter)) => {
                let at = start + at;
                self.tell(at..at + letter.len_utf8(), "a typographic quote", "type \"");
            }
            None => self.tell(self.at..self.at, "the text does not end on its line", "type \""),
        }
    }

    /// Reads a text in other quotes than JSON's, up to the next such quote on its line.
    fn foreign_string(&mut self, open: char) -> Option<()> {
        let start = self.at + open.len_utf8();
        let line = self.text[start..].lines().next()?;
        let is_end = |letter: char| match open {
            '\'' => letter == '\'',
            _ => letter == '"' || is_typographic(letter),
        };
        let (length, close) = line.char_indices().find(|(_, letter)| is_end(*letter))?;
        let remedy = in_quotes(&line[..length]);
        let problem = if open == '\'' { "single quotes" } else { "typographic quotes" };
        self.report(open.len_utf8() + length + close.len_utf8(), problem, &remedy);
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        let text = self.take(is_of_number)?;
        if is_json(text) {
            return Some(());
        }
        let number = text.trim_start_matches('+').trim_start_matches('0');
        let remedy = if is_json(number) { format!("type {number}") } else { in_quotes(text) };
        self.tell(start..self.at, &format!("{text} is not a number of JSON"), &remedy);
        Some(())
    }

    fn word(&mut self) -> Option<()> {
        let start = self.at;
        let word = self.take(is_of_word)?;
        if WORDS.contains(&word) {
            return Some(());
        }
        let remedy = match meant(word) {
            Some(meant) => format!("type {meant}"),
            None => in_quotes(word),
        };
        self.tell(start..self.at, &format!("{word} is not a value of JSON"), &remedy);
        Some(())
    }

    /// Skips white space, and reports comments and invisible letters.
    fn blanks(&mut self) {
        while let Some(letter) = self.peek() {
            let rest = &self.text[self.at..];
            if " \t\r\n".contains(letter) {
                self.at += 1;
            } else if let Some(length) = length_of_comment(rest) {
                self.report(length, "a comment", "JSON has no comments: remove it");
            } else if is_invisible(letter) {
                let problem = format!("an invisible letter, U+{:04X}", u32::from(letter));
                self.report(letter.len_utf8(), &problem, "type a space");
            } else {
                return;
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// The next letter; reports the end of the text.
    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        if next.is_none() {
            self.tell_end();
        }
        next
    }

    /// Takes the next letters of a kind. A text that ends with them is truncated: they are reported
    /// as its end alone.
    fn take(&mut self, is_of_kind: fn(char) -> bool) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let taken = &rest[..rest.find(|letter| !is_of_kind(letter)).unwrap_or(rest.len())];
        self.at += taken.len();
        if taken.len() == rest.trim_end().len() {
            self.tell_end();
            return None;
        }
        Some(taken)
    }

    /// Reports the end of the text inside an object or a list.
    fn tell_end(&mut self) {
        let Some(open) = self.open.last().copied() else { return };
        let line = self.text[..open].matches('\n').count() + 1;
        let (kind, bracket, close) = match self.text.as_bytes()[open] {
            b'{' => ("an object", '{', '}'),
            _ => ("a list", '[', ']'),
        };
        let end = self.text.trim_end().len();
        let problem = format!("the file ends inside {kind}");
        self.tell(end..end, &problem, &format!("type {close} for the {bracket} in line {line}"));
    }

    /// Reports the next letters of this length, and skips them.
    fn report(&mut self, length: usize, problem: &str, remedy: &str) {
        let start = self.at;
        self.at += length;
        self.tell(start..self.at, problem, remedy);
    }

    fn tell(&mut self, span: Range<usize>, problem: &str, remedy: &str) {
        if self.found.len() < MOST {
            let [problem, remedy] = [problem, remedy].map(str::to_owned);
            self.found.push(Typo { span, problem, remedy });
        }
    }
}

/// The word of JSON that was probably meant.
fn meant(word: &str) -> Option<&'static str> {
    let foreign = FOREIGN_WORDS.iter().find(|(foreign, _)| word.eq_ignore_ascii_case(foreign));
    foreign.map(|(_, meant)| *meant).or_else(|| nearest(word, WORDS.into_iter()))
}

/// The advice to type a text in JSON's quotes.
fn in_quotes(text: &str) -> String {
    format!("type \"{text}\"")
}

/// The length of the comment that a text begins with, if it begins with one.
fn length_of_comment(text: &str) -> Option<usize> {
    if text.starts_with("/*") {
        return Some(text.find("*/").map_or(text.trim_end().len(), |end| end + 2));
    }
    let is_comment = text.starts_with("//") || text.starts_with('#');
    is_comment.then(|| text.lines().next().map_or(0, |line| line.trim_end().len()))
}

fn is_json(text: &str) -> bool {
    Value::parse(text.as_bytes()).is_ok()
}

/// Whether the letter may be part of a word without quotes, such as a path or an address.
fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || "_-./".contains(letter)
}

fn is_of_number(letter: char) -> bool {
    is_of_word(letter) || letter == '+'
}

fn is_foreign_quote(letter: char) -> bool {
    letter == '\'' || is_typographic(letter)
}

/// Whether the letter is a quote of word processors and web pages.
fn is_typographic(letter: char) -> bool {
    matches!(letter, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}')
}

/// Whether an editor shows nothing for the letter, and JSON does not have it between values.
fn is_invisible(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The typing errors, each as `underlined text: problem; remedy`.
    fn of(text: &str) -> Vec<String> {
        let line = |typo: Typo| format!("{}: {}; {}", &text[typo.span], typo.problem, typo.remedy);
        typos(text).into_iter().map(line).collect()
    }

    #[test]
    fn each_typing_error_is_named_with_what_to_type() {
        for (text, expected) in [
            ("{\"a\": 1 // x\n}", "// x: a comment; JSON has no comments: remove it"),
            ("{ /* x */ \"a\": 1 }", "/* x */: a comment; JSON has no comments: remove it"),
            ("# x\n{}", "# x: a comment; JSON has no comments: remove it"),
            ("{\"a\": 'b'}", "'b': single quotes; type \"b\""),
            ("{“a”: 1}", "“a”: typographic quotes; type \"a\""),
            ("{\"a\": \"b”}", "”: a typographic quote; type \""),
            ("{\"a\": True}", "True: True is not a value of JSON; type true"),
            ("{\"a\": None}", "None: None is not a value of JSON; type null"),
            ("{\"a\": cni0}", "cni0: cni0 is not a value of JSON; type \"cni0\""),
            (
                "[10.1.0.0/24]",
                "10.1.0.0/24: 10.1.0.0/24 is not a number of JSON; type \"10.1.0.0/24\"",
            ),
            ("[010]", "010: 010 is not a number of JSON; type 10"),
            ("{a: 1}", "a: a key without quotes; type \"a\""),
            ("{\"a\" = 1}", "=: an equals sign; type a colon"),
            ("{\"a\" 1}", ": a colon is missing; type a colon here"),
            ("{\"a\": }", ": a value is missing; type it here"),
            ("{\"a\": 1\n\"b\": 2}", ": a comma is missing; type a comma here"),
            ("{\"a\": 1; \"b\": 2}", ";: a semicolon; type a comma"),
            ("{\"a\": 1,\n}", ",: a comma before }; remove it"),
            ("[1,, 2]", ",: a comma too many; remove it"),
            ("[1}", "}: } in place of ]; type ]"),
            ("{\"a\": \"b\n}", ": the text does not end on its line; type \""),
            (
                "{\"a\": \"\\d\"}",
                "\\d: \\d is no letter of JSON; type \\\\ for a backslash, here \\\\d",
            ),
            ("[\"a\tb\"]", "\t: a tab in a text; type \\t"),
            ("{\u{a0}}", "\u{a0}: an invisible letter, U+00A0; type a space"),
            ("\u{feff}{}", "\u{feff}: the file begins with a byte order mark; save it without one"),
            ("{\n[1", ""),
            ("{\"a\":\n[1", ": the file ends inside a list; type ] for the [ in line 2"),
            ("{}}", "}: a } too many; remove it"),
            ("{} {}", "{: a second object; put it into a file of its own"),
            ("a: 1", "a: not JSON; a configuration begins with {"),
        ] {
            let found = of(text);
            assert_eq!(found.first().map_or("", String::as_str), expected, "{text:?}");
            assert!(found.len() < 2, "{text:?}: {found:?}");
        }
    }

    #[test]
    fn every_typing_error_of_a_text_is_found() {
        let text = "{ # x\n 'a': True,\n “b”: [1 2,]\n c: none\n}";
        let expected =
            ["# x", "'a'", "True", "“b”", "", ",", "", "c", "none"].map(str::to_owned).to_vec();
        let found: Vec<String> =
            typos(text).into_iter().map(|typo| text[typo.span].to_owned()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn json_has_no_typing_error() {
        let text =
            "{\"a\": [1, -2.5e+3, {}, []], \"b\\\"\\u00e4\": \"// “x” 'y' #\", \"c\": null}\r\n";
        assert!(Value::parse(text.as_bytes()).is_ok());
        assert_eq!(of(text), Vec::<String>::new());
    }

    /// Any text at all, and nesting without an end.
    #[test]
    fn no_text_makes_it_panic() {
        let letters = [
            '{', '}', '[', ']', ',', ':', '"', '\'', '“', '\\', '/', '*', '#', 'ä', '\n', '1', 't',
            ' ',
        ];
        let mut seed = 1_u32;
        for _ in 0..20_000 {
            let mut text = String::from("{\"a\": [");
            for _ in 0..12 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                text.push(letters[(seed >> 8) as usize % letters.len()]);
            }
            for typo in typos(&text) {
                let _ = &text[typo.span];
            }
        }
        assert!(typos(&"[".repeat(1_000_000)).is_empty());
    }
}
