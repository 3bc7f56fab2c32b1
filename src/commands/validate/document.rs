//! JSON text in which every value can be located by its path.

use std::ops::Range;

use super::reader::{self, Content, Item, Member, Object};
use crate::cni::json::Value;

/// A value in one of the documents.
#[derive(Clone, Default)]
pub struct Spot {
    /// The number of the document.
    pub document: usize,
    /// The path of the value in it; empty is the whole.
    pub path: String,
}

impl Spot {
    /// The whole document.
    pub fn whole(document: usize) -> Spot {
        Spot { document, path: String::new() }
    }

    /// The value at this path below; the same value if that is empty.
    pub fn at(&self, path: &str) -> Spot {
        let path = if path.is_empty() { self.path.clone() } else { below(&self.path, path) };
        Spot { path, ..*self }
    }
}

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
    /// Whether a directory beside it may have plugins of its network.
    pub is_in_directory: bool,
    root: Item,
    /// The start of each line except the first.
    lines: Vec<usize>,
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

/// A part of the document on the way along a path.
struct Step<'a, 'p> {
    item: &'a Item,
    /// The text of its key, if it has one.
    key: Option<Range<usize>>,
    /// The path that is left.
    rest: &'p str,
}

impl Document {
    /// Parses a text; returns the problem and its offset if it is not JSON.
    pub fn parse(file: String, bytes: &[u8]) -> (Document, Option<(usize, String)>) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let lines = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let mut document = Document { file, text, lines, ..Document::default() };
        let problem = match Value::read(&document.text) {
            Ok(value) => {
                document.root = reader::item(&document.text);
                document.value = value;
                None
            }
            Err(error) => {
                // The decoder's columns are bytes, and 0 is the end of the previous line.
                let text = &document.text;
                let line = error.line.checked_sub(2).map(|line| document.lines.get(line));
                let start = line.map_or(0, |start| start.copied().unwrap_or(text.len()));
                let offset = (start + error.column.max(1) - 1).min(text.trim_end().len());
                let mut before = (0..=offset).rev();
                let offset = before.find(|offset| text.is_char_boundary(*offset)).unwrap_or(0);
                Some((offset, error.problem))
            }
        };
        (document, problem)
    }

    /// A top-level member; the last of several.
    pub fn member(&self, key: &str) -> Option<&Value> {
        let Value::Object(pairs) = &self.value else { return None };
        pairs.iter().rev().find(|(other, _)| self.is_key("", other, key)).map(|(_, value)| value)
    }

    /// Whether two words are the same key in the object at this path.
    fn is_key(&self, path: &str, one: &str, other: &str) -> bool {
        if path.is_empty() && self.is_list {
            return one == other;
        }
        one.eq_ignore_ascii_case(other) && is_twin(path, one) == is_twin(path, other)
    }

    /// The place of the value at this path. Keys match as in decoding: without case, and the last
    /// one counts. A key may contain dots, so the document determines where a step of the path
    /// ends.
    pub fn find(&self, path: &str) -> Place {
        let Step { item, key, rest } = self.follow(path);
        Place { value: item.span.clone(), key, is_exact: rest.is_empty() }
    }

    /// The string at this path, if there is one.
    pub fn string_at(&self, path: &str) -> Option<String> {
        let place = self.find(path);
        let value = Value::read(self.text.get(place.value)?).ok().filter(|_| place.is_exact)?;
        value.as_str().map(str::to_owned)
    }

    /// The text to underline for the value at this path, or for its key: a value that does not fit
    /// on a line is marked at its key or its start.
    pub fn span(&self, path: &str, is_key: bool) -> Range<usize> {
        let place = self.find(path);
        let text = self.text.get(place.value.clone());
        let is_short = text.is_some_and(|text| text.len() < 80 && !text.contains('\n'));
        if place.is_exact && !is_key && is_short {
            return place.value;
        }
        place.key.unwrap_or(place.value.start..place.value.start + 1)
    }

    /// The keys of the object at this path; empty if there is no object.
    pub fn keys(&self, path: &str) -> Vec<&str> {
        match self.follow(path) {
            Step { item: Item { content: Content::Object(object), .. }, rest: "", .. } => {
                object.members.iter().map(|member| member.key.as_str()).collect()
            }
            _ => vec![],
        }
    }

    fn follow<'a, 'p>(&'a self, path: &'p str) -> Step<'a, 'p> {
        let mut found = Step { item: &self.root, key: None, rest: path };
        loop {
            let rest = found.rest.strip_prefix('.').unwrap_or(found.rest);
            let next = match &found.item.content {
                Content::List(items) => step_into_list(items, rest),
                Content::Object(object) => {
                    let at = &path[..path.len() - found.rest.len()];
                    self.step_into_object(object, at, rest)
                }
                Content::Nothing => None,
            };
            match next {
                Some(next) => found = next,
                None => return found,
            }
        }
    }

    /// Follows the next key of a path, of the object at `at`. A key may contain the dots and
    /// brackets that end a step: the longest key wins, and the last of several.
    fn step_into_object<'a, 'p>(
        &self,
        object: &'a Object,
        at: &str,
        path: &'p str,
    ) -> Option<Step<'a, 'p>> {
        // Where the key may end.
        let ends: Vec<usize> = path.match_indices(['.', '[']).map(|(end, _)| end).collect();
        let ends = ends.into_iter().chain([path.len()]).rev().filter(|end| *end > 0);
        ends.map(|end| path.split_at(end)).find_map(|(key, rest)| {
            let mut spellings = object.spellings(key);
            let Member { item, span, .. } = spellings.find(|it| self.is_key(at, key, &it.key))?;
            Some(Step { item, key: Some(span.clone()), rest })
        })
    }

    /// The path of every key that occurs in an object more than once.
    pub fn duplicates(&self) -> Vec<String> {
        let mut found = vec![];
        walk(&self.root, String::new(), &mut |path, object| {
            let name = name_of(path);
            let has_case = WITH_CASE.iter().any(|map| name.eq_ignore_ascii_case(map));
            let is_same = |one: &Member, other: &Member| {
                if has_case {
                    one.key == other.key
                } else {
                    self.is_key(path, &one.key, &other.key)
                }
            };
            // The last one of several is told.
            for group in object.groups() {
                for (index, member) in group.iter().enumerate() {
                    let is_again = group[..index].iter().any(|before| is_same(before, member));
                    if is_again && !group[index + 1..].iter().any(|after| is_same(after, member)) {
                        found.push(below(path, &member.key));
                    }
                }
            }
        });
        found
    }

    /// Line and column, counted from 1; columns count characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset);
        (line + 1, self.line(offset).0.chars().count() + 1)
    }

    /// The line, counted from 1, at which the value at this path begins.
    pub fn line_of(&self, path: &str) -> usize {
        self.position(self.find(path).value.start).0
    }

    /// The parts of the offset's line before and after it, without the newline.
    pub fn line(&self, offset: usize) -> (&str, &str) {
        let (before, after) = self.text.split_at_checked(offset).unwrap_or((&self.text, ""));
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = after.find('\n').unwrap_or(after.len());
        (&before[start..], after[..end].trim_end_matches('\r'))
    }
}

/// Maps whose keys are foreign names, which are case-sensitive; three are of Kubernetes.
const WITH_CASE: [&str; 5] = ["sysctl", "capabilities", "labels", "annotations", "data"];

/// Keys that differ only in case from another key of the same object and are decoded separately,
/// each with the name of the object that holds it.
const TWINS: [(&str, &str); 1] = [("addresses", "Address")];

/// Whether a word is one of the twins of the object at this path.
fn is_twin(path: &str, word: &str) -> bool {
    TWINS.iter().any(|(list, twin)| name_of(path).eq_ignore_ascii_case(list) && *twin == word)
}

/// The name of the value at a path; for an item of a list, the list's: `addresses` of
/// `ipam.addresses[0]`.
fn name_of(path: &str) -> &str {
    let key = path.rsplit('.').next().unwrap_or_default();
    key.split('[').next().unwrap_or_default()
}

/// The path of a member.
pub fn below(path: &str, key: &str) -> String {
    [path, if path.is_empty() { "" } else { "." }, key].concat()
}

/// The path of an item.
pub fn item(path: &str, index: usize) -> String {
    [path, "[", &index.to_string(), "]"].concat()
}

fn step_into_list<'a, 'p>(items: &'a [Item], path: &'p str) -> Option<Step<'a, 'p>> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    let item = items.get(index.parse::<usize>().ok()?)?;
    Some(Step { item, key: None, rest })
}

/// Calls `visit` with the path of each object.
fn walk(value: &Item, path: String, visit: &mut dyn FnMut(&str, &Object)) {
    match &value.content {
        Content::Nothing => (),
        Content::List(items) => {
            for (i, child) in items.iter().enumerate() {
                walk(child, item(&path, i), visit);
            }
        }
        Content::Object(object) => {
            visit(&path, object);
            for member in &object.members {
                walk(&member.item, below(&path, &member.key), visit);
            }
        }
    }
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
            reader::item(&String::from_utf8_lossy(&bytes)); // it never gets such a text
        }
    }
}
