//! A result as text, byte for byte what Go's `json.MarshalIndent` prints.
//!
//! Each family builds a [`Json`] tree in its own key order, and the tree prints itself. Unlike a
//! serde serializer this cannot fail, and the order of keys is the order they were added in.

/// What Go plugins indent their results with.
const INDENT: &str = "    ";

/// A JSON value with the order of its keys; it has the kinds a result is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// A string.
    Text(String),
    /// An integer.
    Int(i64),
    /// A list.
    List(Vec<Json>),
    /// An object, in the order it prints.
    Object(Object),
}

/// The keys of an object, in the order they print.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object(pub Vec<(&'static str, Json)>);

impl Object {
    /// Adds a key.
    pub fn with(mut self, key: &'static str, value: impl Into<Json>) -> Self {
        self.0.push((key, value.into()));
        self
    }

    /// Adds a key if there is a value: Go's `omitempty`, together with [`text`], [`int`] and
    /// [`list`].
    pub fn with_some(self, key: &'static str, value: Option<impl Into<Json>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }
}

/// The text unless it is empty.
pub fn text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// The number unless it is 0.
pub fn int(number: i64) -> Option<i64> {
    (number != 0).then_some(number)
}

/// The list unless it is empty, each item made with `item`.
pub fn list<T>(items: &[T], item: impl Fn(&T) -> Json) -> Option<Json> {
    (!items.is_empty()).then(|| Json::List(items.iter().map(item).collect()))
}

/// The list of strings unless it is empty.
pub fn texts(items: &[String]) -> Option<Json> {
    list(items, |item| item.as_str().into())
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Json::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Json::Text(text)
    }
}

impl From<i64> for Json {
    fn from(number: i64) -> Self {
        Json::Int(number)
    }
}

impl From<Object> for Json {
    fn from(object: Object) -> Self {
        Json::Object(object)
    }
}

impl Json {
    /// The tree with its keys sorted at every level: the reference prints a 1.x result from a Go
    /// map. It also rounds integers beyond 2^53 to doubles on that way; ours stay exact.
    pub fn sorted(self) -> Self {
        match self {
            Json::List(items) => Json::List(items.into_iter().map(Json::sorted).collect()),
            Json::Object(Object(mut entries)) => {
                entries.sort_by_key(|(key, _)| *key);
                Json::Object(Object(
                    entries.into_iter().map(|(key, value)| (key, value.sorted())).collect(),
                ))
            }
            plain => plain,
        }
    }

    /// Indented with four blanks, without a newline at the end.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, Some(0));
        out
    }

    /// On one line, without blanks.
    pub fn to_compact_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, None);
        out
    }

    /// `depth` is the indentation of the line the value starts on; none prints compactly.
    fn write(&self, out: &mut String, depth: Option<usize>) {
        match self {
            Json::Text(text) => write_quoted(out, text),
            Json::Int(number) => out.push_str(&number.to_string()),
            Json::List(items) => write_items(out, depth, ('[', ']'), items, |out, item, depth| {
                item.write(out, depth)
            }),
            Json::Object(Object(entries)) => {
                write_items(out, depth, ('{', '}'), entries, |out, (key, value), depth| {
                    write_quoted(out, key);
                    out.push_str(if depth.is_some() { ": " } else { ":" });
                    value.write(out, depth);
                })
            }
        }
    }
}

/// Writes a list or object with `write_item` for each item; an empty one is just the two
/// `brackets`.
fn write_items<T>(
    out: &mut String,
    depth: Option<usize>,
    brackets: (char, char),
    items: &[T],
    write_item: impl Fn(&mut String, &T, Option<usize>),
) {
    let inner = depth.map(|depth| depth + 1);
    out.push(brackets.0);
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        new_line(out, inner);
        write_item(out, item, inner);
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(brackets.1);
}

/// Starts a line at `depth`, or nothing in compact text.
fn new_line(out: &mut String, depth: Option<usize>) {
    if let Some(depth) = depth {
        out.push('\n');
        out.push_str(&INDENT.repeat(depth));
    }
}

/// Writes a string with Go's escapes: those of JSON, and those that make it safe inside HTML and
/// JavaScript.
fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Json {
        let inner = Object::default().with("z", 0).with("a", "x").into();
        Object::default()
            .with("b", Json::List(vec![inner, Json::Int(-1)]))
            .with("a", Json::List(Vec::new()))
            .with("c", Object::default())
            .into()
    }

    #[test]
    fn text_is_indented_and_keeps_the_order_of_keys() {
        let expected = r#"{
    "b": [
        {
            "z": 0,
            "a": "x"
        },
        -1
    ],
    "a": [],
    "c": {}
}"#;
        assert_eq!(sample().to_text(), expected);
    }

    #[test]
    fn compact_text_has_no_blanks() {
        assert_eq!(sample().to_compact_text(), r#"{"b":[{"z":0,"a":"x"},-1],"a":[],"c":{}}"#);
    }

    #[test]
    fn a_map_sorts_keys_at_every_level() {
        assert_eq!(
            sample().sorted().to_compact_text(),
            r#"{"a":[],"b":[{"a":"x","z":0},-1],"c":{}}"#
        );
    }

    #[test]
    fn integers_are_exact() {
        for number in [0, -1, 9007199254740993, i64::MAX, i64::MIN] {
            assert_eq!(Json::Int(number).sorted().to_text(), number.to_string());
        }
    }

    #[test]
    fn strings_are_escaped_like_go() {
        let text = "<a>&\u{2028}\u{2029}\0\u{1}\u{8}\u{c}\n\r\t\u{1f}\u{7f}\"\\/é";
        let printed = "\"\\u003ca\\u003e\\u0026\\u2028\\u2029\\u0000\\u0001\\b\\f\\n\\r\\t\\u001f\u{7f}\\\"\\\\/é\"";
        assert_eq!(Json::from(text).to_text(), printed);
    }
}
