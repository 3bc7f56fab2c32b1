//! Writing as Go's `encoding/json` does: its escapes, its floats, its indentation.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::ser::Formatter;

use super::value::Value;

/// The characters that Go escapes in strings although JSON does not require it, so that strings are
/// safe inside HTML and JavaScript.
const UNSAFE_IN_HTML: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];

/// The value on one line, without white space.
pub fn text(value: &(impl Serialize + ?Sized)) -> String {
    written(value, Layout::default())
}

/// The value on several lines, each level indented by one more `indent`; no newline at the end.
pub fn indented_text(value: &(impl Serialize + ?Sized), indent: &'static str) -> String {
    written(value, Layout { indent, ..Layout::default() })
}

/// The value on one line, with no more escapes than JSON requires, for human readers.
pub fn plain_text(value: &(impl Serialize + ?Sized)) -> String {
    written(value, Layout { is_plain: true, ..Layout::default() })
}

/// As [`plain_text`] on several lines, indented by two spaces.
pub fn plain_indented_text(value: &(impl Serialize + ?Sized)) -> String {
    written(value, Layout { indent: "  ", is_plain: true, ..Layout::default() })
}

impl Value {
    /// The value that a type is written as, of a text within the limits of [`Value::parse`]; `null`
    /// for a larger one.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Value {
        // What a type of ours writes is JSON, and small.
        Value::parse(plain_text(value).as_bytes()).unwrap_or_default()
    }

    /// The value on one line, as written by [`plain_text`].
    pub fn to_text(&self) -> String {
        plain_text(self)
    }

    /// The same on several lines, indented by two spaces.
    pub fn to_indented_text(&self) -> String {
        plain_indented_text(self)
    }
}

fn written(value: &(impl Serialize + ?Sized), layout: Layout) -> String {
    let mut text = vec![];
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, layout);
    // A Vec accepts every write, and no type of ours has keys other than strings.
    let done = value.serialize(&mut serializer);
    debug_assert!(done.is_ok(), "a type that has no JSON: {done:?}");
    String::from_utf8(text).unwrap_or_default()
}

/// Go's layout of a document.
#[derive(Default)]
struct Layout {
    /// The indentation per level; empty means compact.
    indent: &'static str,
    /// Whether to leave characters unescaped that are special in HTML only.
    is_plain: bool,
    depth: usize,
    /// Whether the list or object that ends next has items.
    has_items: bool,
}

impl Layout {
    fn begin<W: Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_items = false;
        out.write_all(bracket)
    }

    fn end<W: Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_items {
            self.new_line(out)?;
        }
        self.has_items = true; // it is an item of its parent
        out.write_all(bracket)
    }

    fn item<W: Write + ?Sized>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        if !is_first {
            out.write_all(b",")?;
        }
        self.has_items = true;
        self.new_line(out)
    }

    fn new_line<W: Write + ?Sized>(&self, out: &mut W) -> io::Result<()> {
        if self.indent.is_empty() {
            return Ok(());
        }
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(self.indent.as_bytes()))
    }
}

impl Formatter for Layout {
    fn write_f64<W: Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if self.is_plain {
            return out.write_all(fragment.as_bytes());
        }
        let mut written = 0;
        for (at, letter) in fragment.match_indices(UNSAFE_IN_HTML) {
            out.write_all(&fragment.as_bytes()[written..at])?;
            let code = letter.chars().next().map_or(0, u32::from);
            write!(out, "\\u{code:04x}")?;
            written = at + letter.len();
        }
        out.write_all(&fragment.as_bytes()[written..])
    }

    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        self.item(out, is_first)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        self.item(out, is_first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(if self.indent.is_empty() { b":" } else { b": " })
    }
}

/// Formats a float: without a point if it is whole, so that the next reader takes `1400.0` for an
/// integer, and with an exponent only if it would be long.
fn float(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned(); // Go writes `-0` for the negative one, which serde_json reads as a float
    }
    if (1e-6..1e21).contains(&size) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    if size < 1.0 { text } else { text.replace('e', "e+") }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(value) => value.serialize(serializer),
            Value::String(value) => serializer.serialize_str(value),
            Value::Array(list) => serializer.collect_seq(list),
            Value::Object(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    fn value(text: &str) -> Value {
        Value::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn text_has_no_blanks_and_the_order_of_the_value() {
        let text = r#"{"b":1,"a":[true,null,"x",-2,18446744073709551615,1.5],"B":{"c":{}}}"#;
        assert_eq!(value(text).to_text(), text);
    }

    #[test]
    fn indented_text_leaves_empty_lists_and_objects_on_their_line() {
        let value = value(r#"{"a":[],"b":{},"c":[1,{"d":"e\"","f":[[]]}]}"#);
        let expected = r#"{
  "a": [],
  "b": {},
  "c": [
    1,
    {
      "d": "e\"",
      "f": [
        []
      ]
    }
  ]
}"#;
        assert_eq!(value.to_indented_text(), expected);
        assert_eq!(Value::parse(expected.as_bytes()).unwrap(), value);
    }

    /// As in the reference, so results are the same to the byte.
    #[test]
    fn strings_and_keys_are_escaped_like_go() {
        let text = "<a>&\u{2028}\u{2029}\0\u{1}\u{8}\u{c}\n\r\t\u{1f}\u{7f}\"\\/é";
        let printed = "\"\\u003ca\\u003e\\u0026\\u2028\\u2029\\u0000\\u0001\\b\\f\\n\\r\\t\\u001f\u{7f}\\\"\\\\/é\"";
        assert_eq!(super::text(text), printed);
        let object = Value::object([(text, Value::Null)]);
        assert_eq!(super::text(&object), format!("{{{printed}:null}}"));
        assert_eq!(plain_text("<a>&\u{2028}\u{1}\""), "\"<a>&\u{2028}\\u0001\\\"\"");
    }

    /// The right side is the output of `json.Marshal` for the left, except for the sign of `-0`.
    #[test]
    fn floats_are_written_like_go() {
        for (read, written) in [
            (
                "[1400.0,14e2,8.08e3,-2.0,0.0,-0.0,1e18,-9e18]",
                "[1400,1400,8080,-2,0,0,1000000000000000000,-9000000000000000000]",
            ),
            ("[0.5,-1.25,1e300,-1e21,1e20]", "[0.5,-1.25,1e+300,-1e+21,100000000000000000000]"),
            ("[0.000001,1e-7,-1.5e-9]", "[0.000001,1e-7,-1.5e-9]"),
            ("[9223372036854775808.0]", "[9223372036854776000]"),
        ] {
            assert_eq!(value(read).to_text(), written);
        }
    }

    /// cnitool rounds integers beyond 2^53.
    #[test]
    fn integers_are_exact() {
        for number in
            ["0", "-1", "9007199254740993", "-9223372036854775808", "18446744073709551615"]
        {
            assert_eq!(value(number).sorted().to_text(), number);
        }
    }

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Sample {
        some_text: &'static str,
        none: Option<u8>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<u8>,
        pairs: Vec<(String, i64)>,
        #[serde(flatten)]
        more: BTreeMap<&'static str, Value>,
        float: f64,
    }

    #[test]
    fn the_value_of_a_type_has_the_text_of_the_type() {
        let sample = Sample {
            some_text: "<x>",
            none: None,
            left_out: vec![],
            pairs: vec![("a".to_owned(), -1), ("b".to_owned(), i64::MAX)],
            more: [("z", Value::Null), ("y", Value::Bool(true))].into(),
            float: 0.5,
        };
        let text = r#"{"someText":"\u003cx\u003e","none":null,"pairs":[["a",-1],["b",9223372036854775807]],"y":true,"z":null,"float":0.5}"#;
        assert_eq!(super::text(&sample), text);
        assert_eq!(Value::of(&sample), Value::parse(text.as_bytes()).unwrap());
    }
}
