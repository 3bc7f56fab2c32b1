//! Where each value of a text is; in a text that is not JSON, each typing error at its own place.
//!
//! A JSON parser stops at the first error and names what it expected. This reader accepts what
//! people type in place of JSON, such as comments, single quotes and a comma too many, reports it
//! and continues. It stops where the rest of the text could mean anything.

use std::cmp::Ordering;
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

/// The place of a value.
#[derive(Default)]
pub struct Item {
    /// The text of the value, including quotes.
    pub span: Range<usize>,
    /// Its parts.
    pub content: Content,
}

/// The parts of a value.
#[derive(Default)]
pub enum Content {
    /// None.
    #[default]
    Nothing,
    /// The items of a list.
    List(Vec<Item>),
    /// An object.
    Object(Object),
}

/// The members of an object.
pub struct Object {
    /// The members.
    pub members: Vec<Member>,
    /// The indices of the members, sorted by key without case.
    order: Vec<usize>,
}

/// A member of an object.
pub struct Member {
    /// The key.
    pub key: String,
    /// The text of the key, including quotes.
    pub span: Range<usize>,
    /// The value.
    pub item: Item,
}

impl Object {
    fn new(members: Vec<Member>) -> Object {
        let mut order: Vec<usize> = (0..members.len()).collect();
        let key = |at: &usize| members[*at].key.as_str();
        order.sort_unstable_by(|a, b| without_case(key(a), key(b)).then(a.cmp(b)));
        Object { members, order }
    }

    /// The members with this key in any case, the last one first.
    pub fn spellings<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Member> {
        let compared = |at: usize| without_case(&self.members[at].key, key);
        let end = self.order.partition_point(|at| compared(*at).is_le());
        let group = self.order[..end].iter().rev();
        group.take_while(move |at| compared(**at).is_eq()).map(|at| &self.members[*at])
    }

    /// The members, those with one key in any case together.
    pub fn groups(&self) -> Vec<Vec<&Member>> {
        let sorted: Vec<&Member> = self.order.iter().map(|at| &self.members[*at]).collect();
        let groups = sorted.chunk_by(|one, other| without_case(&one.key, &other.key).is_eq());
        groups.map(<[&Member]>::to_vec).collect()
    }
}

fn without_case(one: &str, other: &str) -> Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    one.bytes().map(lower).cmp(other.bytes().map(lower))
}

/// The typing errors in a text, as far as they are certain; may be empty.
pub fn typos(text: &str) -> Vec<Typo> {
    let mut reader = Reader { text, at: 0, open: vec![], found: vec![] };
    let _ = reader.document(); // None: the rest of the text could mean anything
    reader.found
}

/// The place of the value of a text that is JSON, and of all values in it.
pub fn item(text: &str) -> Item {
    let span = text.len() - text.trim_start().len()..text.trim_end().len();
    let mut reader = Reader { text, at: span.start, open: vec![], found: vec![] };
    reader.value().unwrap_or(Item { span, content: Content::Nothing }) // a word that ends the text
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
        if self.text.starts_with(BYTE_ORDER_MARK) {
            self.at = BYTE_ORDER_MARK.len_utf8();
            let problem = "the file begins with a byte order mark";
            self.tell(0..self.at, problem, "save it without one");
        }
        self.blanks();
        let (here, next) = (self.at, self.peek()?);
        if !"{[".contains(next) {
            self.tell(here..here + next.len_utf8(), "not JSON", "a configuration begins with {");
            return None;
        }
        self.value()?;
        self.blanks();
        // Text after the end of the document.
        let next = self.peek()?;
        let (problem, remedy) = match next {
            '}' | ']' => (format!("a {next} too many"), "remove it"),
            '{' => ("a second object".to_owned(), "put it into a file of its own"),
            _ => ("text after the end of the configuration".to_owned(), "remove it"),
        };
        self.tell(self.at..self.at + next.len_utf8(), &problem, remedy);
        None
    }

    fn value(&mut self) -> Option<Item> {
        let start = self.at;
        let mut content = Content::Nothing;
        match self.peek()? {
            '{' => content = Content::Object(Object::new(self.group('}', Reader::member)?)),
            '[' => content = Content::List(self.group(']', Reader::value)?),
            '"' => self.string()?,
            letter if is_foreign_quote(letter) => self.foreign_string(letter)?,
            letter if letter.is_ascii_digit() || "+-.".contains(letter) => self.number()?,
            letter if is_of_word(letter) => self.word()?,
            _ => return None,
        }
        Some(Item { span: start..self.at, content })
    }

    /// Reads an object or a list: `close` ends it, `item` reads a part of it.
    fn group<T>(&mut self, close: char, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        if self.open.len() == DEEPEST {
            return None;
        }
        self.open.push(self.at);
        self.at += 1;
        let mut items = vec![];
        loop {
            self.blanks();
            match self.next()? {
                ',' => self.report(1, "a comma too many", "remove it"),
                letter if letter == close => break,
                _ => {
                    items.push(item(self)?);
                    self.separator(close)?;
                }
            }
        }
        self.at += 1;
        self.open.pop();
        Some(items)
    }

    /// Reads what follows an item of an object or a list.
    fn separator(&mut self, close: char) -> Option<()> {
        let end = self.at;
        self.blanks();
        match self.next()? {
            ',' => {
                let comma = self.at;
                self.at += 1;
                self.blanks();
                if self.peek() == Some(close) {
                    let problem = format!("a comma before {close}");
                    self.tell(comma..comma + 1, &problem, "remove it");
                }
            }
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

    fn member(&mut self) -> Option<Member> {
        let start = self.at;
        match self.peek()? {
            '"' => self.string()?,
            letter if is_foreign_quote(letter) => self.foreign_string(letter)?,
            letter if is_of_word(letter) => {
                let word = self.take(is_of_word)?;
                self.tell(start..self.at, "a key without quotes", &in_quotes(word));
            }
            _ => return None,
        }
        let end = self.at;
        let key = Value::parse(&self.text.as_bytes()[start..end]).ok();
        let key = key.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        self.blanks();
        match self.next()? {
            ':' => self.at += 1,
            '=' => self.report(1, "an equals sign", "type a colon"),
            _ => self.tell(end..end, "a colon is missing", "type a colon here"),
        }
        self.blanks();
        let item = match self.next()? {
            ',' | '}' | ']' => {
                self.tell(self.at..self.at, "a value is missing", "type it here");
                Item::default()
            }
            _ => self.value()?,
        };
        Some(Member { key, span: start..end, item })
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
                '\\' => {
                    let escaped = self.text[self.at + 1..].chars().next().unwrap_or('"');
                    let length = 1 + escaped.len_utf8();
                    if "\"\\/bfnrtu".contains(escaped) {
                        self.at = (self.at + length).min(self.text.len());
                    } else {
                        let remedy = format!("type \\\\ for a backslash, here \\\\{escaped}");
                        self.report(length, &format!("\\{escaped} is no letter of JSON"), &remedy);
                    }
                }
                '\t' => self.report(1, "a tab in a text", "type \\t"),
                letter if letter < ' ' => break,
                letter => self.at += letter.len_utf8(),
            }
        }
        // The string has no end on its line. A typographic quote was probably meant as its end.
        let quote = self.text[start..self.at].char_indices().find(|(_, it)| is_typographic(*it));
        match quote {
            Some((at, letter)) => {
                let at = start + at;
                self.tell(at..at + letter.len_utf8(), "a typographic quote", "type \"");
            }
            None => self.tell(self.at..self.at, "the text does not end on its line", "type \""),
        }
        None
    }

    /// Reads a text in other quotes than JSON's, up to the next such quote on its line.
    fn foreign_string(&mut self, open: char) -> Option<()> {
        let start = self.at + open.len_utf8();
        let line = &self.text[start..];
        let is_end = |letter: char| match open {
            '\'' => letter == '\'',
            _ => letter == '"' || is_typographic(letter),
        };
        let mut letters = line.char_indices().take_while(|(_, letter)| *letter != '\n');
        let (length, close) = letters.find(|(_, letter)| is_end(*letter))?;
        let remedy = in_quotes(&line[..length]);
        let problem = if open == '\'' { "single quotes" } else { "typographic quotes" };
        self.report(open.len_utf8() + length + close.len_utf8(), problem, &remedy);
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        let is_json = |text: &str| Value::parse(text.as_bytes()).is_ok();
        let text = self.take(|letter| is_of_word(letter) || letter == '+')?;
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
        let foreign = FOREIGN_WORDS.iter().find(|(foreign, _)| word.eq_ignore_ascii_case(foreign));
        let meant = foreign.map(|(_, meant)| *meant).or_else(|| nearest(word, WORDS.into_iter()));
        let remedy = meant.map_or_else(|| in_quotes(word), |meant| format!("type {meant}"));
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
            } else if letter.is_whitespace()
                || matches!(letter, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
            {
                // An editor shows nothing for it, and JSON does not have it between values.
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
        if self.text[self.at..].trim_start().is_empty() {
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

/// Whether the letter may be part of a word without quotes, such as a path or an address.
fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || "_-./".contains(letter)
}

fn is_foreign_quote(letter: char) -> bool {
    letter == '\'' || is_typographic(letter)
}

/// Whether the letter is a quote of word processors and web pages.
fn is_typographic(letter: char) -> bool {
    matches!(letter, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}')
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
