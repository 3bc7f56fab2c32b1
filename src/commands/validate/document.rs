//! JSON text in which every value can be located by its path.

use std::cmp::Ordering;
use std::ops::Range;

use crate::cni::json::{SyntaxError, Value};

/// A file's text, the value that it holds and the places of its parts.
#[derive(Default)]
pub struct Document {
    /// The file's name, as in messages.
    pub file: String,
    /// Its text, with invalid UTF-8 replaced.
    pub text: String,
    /// Its value; null if it is not JSON.
    pub value: Value,
    /// Whether it is a list, whose top-level keys are case-sensitive.
    pub is_list: bool,
    root: Item,
    /// The start of each line except the first.
    lines: Vec<usize>,
}

/// The place of a value.
#[derive(Default)]
struct Item {
    span: Range<usize>,
    content: Content,
}

/// The parts of a value.
#[derive(Default)]
enum Content {
    #[default]
    Nothing,
    List(Vec<Item>),
    /// The members, and their indices sorted by key without case.
    Object(Vec<Member>, Vec<usize>),
}

struct Member {
    key: String,
    span: Range<usize>,
    item: Item,
}

/// The place of a path, followed as far as the document has it.
pub struct Place {
    /// The text of the value, including quotes.
    pub value: Range<usize>,
    /// The text of its key, if it has one.
    pub key: Option<Range<usize>>,
    /// Whether the whole path was found.
    pub is_exact: bool,
}

impl Document {
    /// Parses a text; returns the problem and its offset if it is not JSON.
    pub fn parse(file: String, bytes: &[u8]) -> (Document, Option<(usize, String)>) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let lines = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        match Value::read(&text) {
            Ok(value) => {
                let root = Scanner { text: text.as_bytes(), at: 0 }.item();
                (Document { file, text, value, is_list: false, root, lines }, None)
            }
            Err(error) => {
                let offset = offset_of(&error, &text);
                (
                    Document { file, text, lines, ..Document::default() },
                    Some((offset, error.problem)),
                )
            }
        }
    }

    /// A top-level member; the last of several.
    pub fn member(&self, key: &str) -> Option<&Value> {
        let Value::Object(pairs) = &self.value else { return None };
        pairs.iter().rev().find(|(other, _)| self.is_key("", other, key)).map(|(_, value)| value)
    }

    /// Whether two words are the same key in the object at this path.
    fn is_key(&self, path: &str, one: &str, other: &str) -> bool {
        let is_twin = |word: &str| {
            TWINS
                .iter()
                .any(|(list, twin)| name_of(path).eq_ignore_ascii_case(list) && *twin == word)
        };
        if path.is_empty() && self.is_list {
            one == other
        } else {
            one.eq_ignore_ascii_case(other) && is_twin(one) == is_twin(other)
        }
    }

    /// The place of the value at this path. Keys match as in decoding: without case, and the last
    /// one counts. A key may contain dots, so the document determines where a step of the path
    /// ends.
    pub fn find(&self, path: &str) -> Place {
        let (item, key, rest) = self.follow(path);
        Place { value: item.span.clone(), key, is_exact: rest.is_empty() }
    }

    /// The text to underline for a value: all of it if it fits on a line, else its key or its
    /// start.
    pub fn on_one_line(&self, value: Range<usize>, key: Option<Range<usize>>) -> Range<usize> {
        let is_line = self
            .text
            .get(value.clone())
            .is_some_and(|text| text.len() < 80 && !text.contains('\n'));
        match key {
            _ if is_line => value,
            Some(key) => key,
            None => value.start..value.start + 1,
        }
    }

    /// The keys of the object at this path; empty if there is no object.
    pub fn keys(&self, path: &str) -> Vec<&str> {
        match self.follow(path) {
            (Item { content: Content::Object(members, _), .. }, _, "") => {
                members.iter().map(|member| member.key.as_str()).collect()
            }
            _ => vec![],
        }
    }

    fn follow<'a, 'p>(&'a self, path: &'p str) -> (&'a Item, Option<Range<usize>>, &'p str) {
        let mut found = (&self.root, None, path);
        loop {
            let step = found.2.strip_prefix('.').unwrap_or(found.2);
            let next = match &found.0.content {
                Content::List(items) => step_into_list(items, step),
                Content::Object(members, order) => {
                    let at = &path[..path.len() - found.2.len()];
                    let is_key = |one: &str, other: &str| self.is_key(at, one, other);
                    step_into_object(members, order, step, &is_key)
                }
                Content::Nothing => None,
            };
            match next {
                Some(next) => found = next,
                None => return found,
            }
        }
    }

    /// The path of every key that occurs in an object more than once. In some maps the case of a
    /// key is significant.
    pub fn duplicates(&self) -> Vec<String> {
        let mut found = vec![];
        self.root.walk(String::new(), &mut |path, item| {
            let Content::Object(members, order) = &item.content else { return };
            let has_case = WITH_CASE.iter().any(|map| name_of(path).eq_ignore_ascii_case(map));
            let is_key = |one: &Member, other: &Member| {
                if has_case {
                    one.key == other.key
                } else {
                    self.is_key(path, &one.key, &other.key)
                }
            };
            for group in
                order.chunk_by(|&a, &b| without_case(&members[a].key, &members[b].key).is_eq())
            {
                let last = |&(i, at): &(usize, &usize)| {
                    let is_twin = |other: &usize| is_key(&members[*other], &members[*at]);
                    group[..i].iter().any(is_twin) && !group[i + 1..].iter().any(is_twin)
                };
                found.extend(
                    group
                        .iter()
                        .enumerate()
                        .filter(last)
                        .map(|(_, at)| below(path, &members[*at].key)),
                );
            }
        });
        found
    }

    /// Line and column, counted from 1; columns count characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let offset = if self.text.is_char_boundary(offset) { offset } else { self.text.len() };
        let line = self.lines.partition_point(|start| *start <= offset);
        let before = self.text.get(self.start_of(line)..offset).unwrap_or_default();
        (line + 1, before.chars().count() + 1)
    }

    /// The parts of the offset's line before and after it, without the newline.
    pub fn line(&self, offset: usize) -> (&str, &str) {
        let offset = if self.text.is_char_boundary(offset) { offset } else { self.text.len() };
        let start = self.start_of(self.lines.partition_point(|start| *start <= offset));
        let behind =
            self.text.get(offset..).unwrap_or_default().split('\n').next().unwrap_or_default();
        (self.text.get(start..offset).unwrap_or_default(), behind.trim_end_matches('\r'))
    }

    fn start_of(&self, line: usize) -> usize {
        line.checked_sub(1).and_then(|line| self.lines.get(line)).copied().unwrap_or_default()
    }
}

/// Maps whose keys are foreign names, which are case-sensitive.
const WITH_CASE: [&str; 2] = ["sysctl", "capabilities"];

/// Keys that differ only in case from another key of the same object and are decoded separately,
/// each with the name of the object that holds it.
const TWINS: [(&str, &str); 1] = [("addresses", "Address")];

/// The name of the value at a path; for an item of a list, the list's: `addresses` of
/// `ipam.addresses[0]`.
fn name_of(path: &str) -> &str {
    let key = path.rsplit('.').next().unwrap_or_default();
    key.split('[').next().unwrap_or_default()
}

fn without_case(one: &str, other: &str) -> Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    one.bytes().map(lower).cmp(other.bytes().map(lower))
}

/// The path of a member.
pub fn below(path: &str, key: &str) -> String {
    [path, if path.is_empty() { "" } else { "." }, key].concat()
}

type Step<'a, 'p> = Option<(&'a Item, Option<Range<usize>>, &'p str)>;

fn step_into_list<'a, 'p>(items: &'a [Item], step: &'p str) -> Step<'a, 'p> {
    let (index, rest) = step.strip_prefix('[')?.split_once(']')?;
    Some((items.get(index.parse::<usize>().ok()?)?, None, rest))
}

fn step_into_object<'a, 'p>(
    members: &'a [Member],
    order: &[usize],
    step: &'p str,
    is_key: &dyn Fn(&str, &str) -> bool,
) -> Step<'a, 'p> {
    // A key may contain the dots and brackets that end a step: the longest key wins, and the last
    // of several.
    let ends = step.match_indices(['.', '[']).map(|(at, _)| at).chain([step.len()]);
    for (key, rest) in
        ends.filter_map(|end| step.split_at_checked(end)).collect::<Vec<_>>().into_iter().rev()
    {
        let end = order.partition_point(|at| without_case(&members[*at].key, key).is_le());
        let group = order[..end].iter().rev().map(|at| &members[*at]);
        let mut spellings = group.take_while(|member| without_case(&member.key, key).is_eq());
        if let Some(member) = spellings.find(|member| !key.is_empty() && is_key(key, &member.key)) {
            return Some((&member.item, Some(member.span.clone()), rest));
        }
    }
    None
}

impl Item {
    fn walk<'a>(&'a self, path: String, visit: &mut dyn FnMut(&str, &'a Item)) {
        visit(&path, self);
        match &self.content {
            Content::Nothing => (),
            Content::List(items) => {
                items.iter().enumerate().for_each(|(i, item)| {
                    item.walk([&path, "[", &i.to_string(), "]"].concat(), visit)
                });
            }
            Content::Object(members, _) => {
                members
                    .iter()
                    .for_each(|member| member.item.walk(below(&path, &member.key), visit));
            }
        }
    }
}

/// A scanner for text that is known to be JSON; it also terminates on any other text.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&mut self) -> u8 {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied().unwrap_or_default()
    }

    fn item(&mut self) -> Item {
        let first = self.peek();
        let start = self.at;
        let content = match first {
            b'{' => {
                let members = self.members();
                let mut order: Vec<usize> = (0..members.len()).collect();
                order.sort_by(|a, b| without_case(&members[*a].key, &members[*b].key));
                Content::Object(members, order)
            }
            b'[' => Content::List(self.items()),
            b'"' => {
                self.string();
                Content::Nothing
            }
            _ => {
                let is_plain = |byte: &u8| !byte.is_ascii_whitespace() && !b",:]}".contains(byte);
                while self.text.get(self.at).is_some_and(is_plain) {
                    self.at += 1;
                }
                Content::Nothing
            }
        };
        Item { span: start..self.at, content }
    }

    fn items(&mut self) -> Vec<Item> {
        let mut items = vec![];
        self.at += 1;
        while !matches!(self.peek(), b']' | 0) {
            let before = self.at;
            items.push(self.item());
            if !self.is_next(b',') && self.at == before {
                break;
            }
        }
        self.is_next(b']');
        items
    }

    fn members(&mut self) -> Vec<Member> {
        let mut members = vec![];
        self.at += 1;
        while self.peek() == b'"' {
            let start = self.at;
            self.string();
            let span = start..self.at;
            let key = self.text.get(span.clone()).and_then(|key| Value::parse(key).ok());
            let key = key.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            self.is_next(b':');
            members.push(Member { key, span, item: self.item() });
            self.is_next(b',');
        }
        self.is_next(b'}');
        members
    }

    fn string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.text.get(self.at) {
            self.at += match byte {
                b'\\' => 2,
                _ => 1,
            };
            if *byte == b'"' {
                break;
            }
        }
        self.at = self.at.min(self.text.len());
    }

    fn is_next(&mut self, byte: u8) -> bool {
        let is = self.peek() == byte;
        self.at += usize::from(is);
        is
    }
}

/// The offset at which the text stops being JSON. The decoder's columns are bytes, and 0 is the end
/// of the previous line.
fn offset_of(error: &SyntaxError, text: &str) -> usize {
    let lines = text.split_inclusive('\n').take(error.line.saturating_sub(1));
    let start: usize = lines.map(str::len).sum();
    let end = text.trim_end().len();
    let offset = (start + error.column.max(1) - 1).min(end);
    (0..=offset).rev().find(|offset| text.is_char_boundary(*offset)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        let (document, problem) = Document::parse("f".into(), text.as_bytes());
        assert_eq!(problem, None, "{text}");
        document
    }

    fn at(text: &str, path: &str) -> String {
        let document = document(text);
        let place = document.find(path);
        let of = |span: Range<usize>| document.text[span].to_owned();
        format!(
            "{} {}{}",
            place.key.map(&of).unwrap_or_default(),
            of(place.value),
            if place.is_exact { "" } else { " -" }
        )
    }

    #[test]
    fn a_path_leads_to_its_value() {
        let text = "{\r\n\t\"plugins\": [ {\"type\":\"a\"}, {\"Sysctl\" : {\"net.core.x\":\"1\",\"net\":{\"core\":2}}, \"r\": [[1 , -2.5e3],[]], \"e\":{}} ], \"ä\\\"\\u0041\": null}";
        for (path, expected) in [
            ("plugins[0].type", "\"type\" \"a\""),
            ("plugins[1].sysctl.net.core.x", "\"net.core.x\" \"1\""),
            ("plugins[1].sysctl.net.core", "\"core\" 2"),
            ("plugins[1].r[0][1]", " -2.5e3"),
            ("plugins[1].r[1]", " []"),
            ("plugins[1].r[1][0].x", " [] -"),
            ("plugins[1].e.mtu", "\"e\" {} -"),
            ("plugins[0].typ", " {\"type\":\"a\"} -"),
            ("ä\"A", "\"ä\\\"\\u0041\" null"),
        ] {
            assert_eq!(at(text, path), expected, "{path}");
        }
        assert!(at(text, "").starts_with(" {"));
        assert_eq!(at(r#"{"a":1,"A":2}"#, "a"), "\"A\" 2", "the last one counts");
    }

    #[test]
    fn columns_count_characters_and_lines_end_in_either_way() {
        let document = document("{\r\n  \"ä\": \"öü\",\r\n\t\"b\": 1 }\n");
        let place = document.find("b");
        assert_eq!(document.position(place.key.clone().unwrap().start), (3, 2));
        assert_eq!(document.line(place.key.clone().unwrap().start), ("\t", "\"b\": 1 }"));
        assert_eq!(
            (document.position(document.find("ä").value.start), document.line(8)),
            ((2, 8), ("  \"ä", "\": \"öü\","))
        );
        assert_eq!(document.position(usize::MAX), (4, 1));
    }

    #[test]
    fn keys_that_stand_twice_are_found_in_any_case() {
        let text = r#"{"a":1,"p":[{"x":1,"y":2,"X":3}],"a":2}"#;
        let mut document = document(text);
        let found: Vec<_> = document
            .duplicates()
            .into_iter()
            .map(|path| document.find(&path).key.unwrap().start)
            .collect();
        assert_eq!(
            (document.duplicates(), found),
            (vec!["a".to_owned(), "p[0].X".to_owned()], vec![33, 25])
        );
        assert_eq!(document.keys("p[0]"), ["x", "y", "X"]);
        document.is_list = true;
        assert_eq!(
            (document.find("P").is_exact, document.find("p[0].Y").is_exact),
            (false, true),
            "a list's own have case"
        );
        assert_eq!(
            (document.member("P"), document.member("a")),
            (None, Some(&Value::Number(2.into())))
        );
        assert!(document.keys("p").is_empty() && document.keys("q").is_empty());
    }

    #[test]
    fn address_and_address_in_capitals_are_two_keys_of_static() {
        let twice = |text: &str| document(text).duplicates();
        let twins = r#"{"addresses":[{"address":"a","Address":{"IP":"b"}}]}"#;
        assert!(twice(twins).is_empty());
        assert_eq!(at(twins, "addresses[0].address"), "\"address\" \"a\"");
        assert_eq!(at(twins, "addresses[0].Address.IP"), "\"IP\" \"b\"");
        assert_eq!(
            twice(r#"{"addresses":[{"address":"a","ADDRESS":"b","Address":{}}]}"#),
            ["addresses[0].ADDRESS"]
        );
        assert_eq!(
            twice(r#"{"addresses":[{"Address":{},"Address":{}}]}"#),
            ["addresses[0].Address"]
        );
        assert_eq!(twice(r#"{"routes":[{"address":"a","Address":"b"}]}"#), ["routes[0].Address"]);
    }

    #[test]
    fn what_is_no_json_says_where() {
        for (text, line, column, problem) in [
            ("", 1, 1, "EOF while parsing a value"),
            ("{\n  \"a\": 1,\n}", 3, 1, "trailing comma"),
            ("{\n  \"ä\": x\n}", 2, 8, "expected value"),
            ("{\"a\": 1", 1, 7, "EOF while parsing an object"),
            ("{} {}", 1, 4, "trailing characters"),
        ] {
            let (document, found) = Document::parse("f".into(), text.as_bytes());
            let (offset, found) = found.unwrap();
            assert_eq!(
                (document.position(offset), found.as_str()),
                ((line, column), problem),
                "{text:?}"
            );
        }
    }

    /// Truncated files, and files that are no JSON at all.
    #[test]
    fn no_bytes_make_it_panic() {
        let text =
            "{\"ä\": [1, {\"b\\\"\": \"\\ud83d\\ude00\"}, [[]], -1.5e+3, true], \"c\": {\"d\": null}}\r\n".as_bytes();
        let mut seed = 1_u32;
        for round in 0..4000 {
            let mut bytes = text[..round % (text.len() + 1)].to_vec();
            for _ in 0..round / 500 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = seed as usize >> 8;
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    bytes[at] = (seed >> 24) as u8;
                }
            }
            let (document, problem) = Document::parse("f".into(), &bytes);
            let offset = problem.map_or(0, |(offset, _)| offset);
            let _ = (document.position(offset), document.line(offset), document.find("c.d").value);
            let lossy = String::from_utf8_lossy(&bytes).into_owned();
            Scanner { text: lossy.as_bytes(), at: 0 }.item(); // it never gets such a text
        }
    }
}
