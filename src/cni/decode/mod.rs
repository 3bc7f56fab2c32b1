//! Typed decoding of a configuration, with Go's rules and the path of every mistake.
//!
//! Runtimes depend on how `encoding/json` reads: keys match without case (containerd sends
//! `HostPort`); the last of several spellings counts and duplicate objects are merged; of two
//! fields that differ only in case, each takes its own spelling; `null` means not given. Keys of
//! maps that users fill (`sysctl`) keep their case. A serde `Deserializer` sees the field names of
//! each struct, so one place implements all this, and it carries the path:
//! `ipam.ranges[0][1].rangeStart: …`. It reports to an [`Observer`] what the types expect at each
//! place, so that unknown keys and schemas come from the same types.

mod mistake;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer,
    MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use self::mistake::{Failure, Path, unexpected};
use super::json::Value;
use crate::error::{Code, Result, Word};

pub use self::mistake::describe;
pub use self::mistake::{Observer, Shape};

/// Decodes `value`. A value of the wrong type is code 6; a value that its type rejects is code 7.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T> {
    observed(value, None)
}

/// As [`from_value`], and reports what the types expect at each place.
pub fn observed<T: DeserializeOwned>(value: &Value, observer: Option<&Observer>) -> Result<T> {
    T::deserialize(Node { value, path: Path::Root(observer) })
        .map_err(|failure| failure.into_error())
}

/// Decodes only the member of `root` at `key`, as if the document had no other; `default` if it is
/// not given.
pub fn member<T: DeserializeOwned + Default>(root: &Value, key: &'static str) -> Result<T> {
    let Some(value) = root.get(key) else { return Ok(T::default()) };
    let path = Path::Key(&Path::Root(None), key);
    T::deserialize(Node { value, path }).map_err(|failure| failure.at(path).into_error())
}

/// For `deserialize_with`: a value that its type rejects counts as not given.
pub fn or_default<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(from_value(&value).unwrap_or_default())
}

/// For `deserialize_with`: the items of a list that their type accepts; none of another value.
pub fn readable_items<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.items().iter().filter_map(|item| from_value(item).ok()).collect())
}

/// Decodes one of the words of a type, for `Deserialize` and for `deserialize_with`.
pub fn word<'de, D: Deserializer<'de>, T: Word>(deserializer: D) -> Result<T, D::Error> {
    word_or(deserializer, T::REFUSAL)
}

/// As [`word`], with another start of the sentence about an unknown word than [`Word::REFUSAL`].
pub fn word_or<'de, D: Deserializer<'de>, T: Word>(
    deserializer: D,
    refusal: &'static str,
) -> Result<T, D::Error> {
    deserializer.deserialize_enum(refusal, T::WORDS, WordVisitor(PhantomData))
}

/// Finds the value that a word stands for.
struct WordVisitor<T>(PhantomData<T>);

impl<T: Word> Visitor<'_> for WordVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::of(text).ok_or_else(|| E::unknown_variant(text, T::WORDS))
    }
}

/// A value with its place.
struct Node<'a> {
    value: &'a Value,
    path: Path<'a>,
}

/// Reads integers of every size alike; the visitors know their ranges.
macro_rules! as_u64 {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
                self.deserialize_u64(visitor)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let path = self.path;
        path.tell_kind(&visitor);
        let visited = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(value), ..) => visitor.visit_u64(value),
                (_, Some(value), _) => visitor.visit_i64(value),
                (.., value) => visitor.visit_f64(value.unwrap_or_default()),
            },
            Value::String(value) => visitor.visit_str(value),
            Value::Array(items) => visitor.visit_seq(Items { items, path: &path, next: 0 }),
            Value::Object(pairs) => visitor.visit_map(Members::of_map(pairs, &path)),
        };
        visited.map_err(|failure: Failure| failure.at(path))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let path = self.path;
        path.tell_keys(fields);
        match self.value {
            Value::Object(pairs) => visitor
                .visit_map(Members::of_struct(pairs, fields, &path))
                .map_err(|failure| failure.at(path)),
            // Null members were skipped, so this is an item of a list.
            Value::Null => Err(self.mismatch(&"an object").with_code(Code::INVALID_CONFIG)),
            _ => Err(self.mismatch(&"an object")),
        }
    }

    /// See [`word`].
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        refusal: &'static str,
        _words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let path = self.path;
        path.tell_kind(&visitor);
        let Value::String(text) = self.value else { return Err(self.mismatch(&visitor)) };
        visitor.visit_str(text).map_err(|failure: Failure| failure.refusing(refusal, text).at(path))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.path.tell_kind(&visitor);
        match self.value {
            Value::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.path.tell_kind(&visitor);
        match self.value {
            Value::String(value) => {
                visitor.visit_str(value).map_err(|failure: Failure| failure.at(self.path))
            }
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_str(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.path.tell_kind(&visitor);
        let Value::Number(number) = self.value else { return Err(self.mismatch(&visitor)) };
        let visited = match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => visitor.visit_u64(value),
            (None, Some(value)) => visitor.visit_i64(value),
            (None, None) => return Err(self.mismatch(&visitor)),
        };
        visited.map_err(|failure: Failure| failure.at(self.path))
    }

    as_u64! { deserialize_u8 deserialize_u16 deserialize_u32 deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let path = self.path;
        path.tell_kind(&visitor);
        match self.value {
            Value::Array(items) => visitor
                .visit_seq(Items { items, path: &self.path, next: 0 })
                .map_err(|failure| failure.at(path)),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let path = self.path;
        path.tell_kind(&visitor);
        match self.value {
            Value::Object(pairs) => {
                visitor.visit_map(Members::of_map(pairs, &path)).map_err(|failure| failure.at(path))
            }
            _ => Err(self.mismatch(&visitor)),
        }
    }

    forward_to_deserialize_any! {
        f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl Node<'_> {
    /// The error for a value of another kind than its type. One function for all types: a visitor's
    /// own error code would be compiled once for each type and kind.
    #[cold]
    #[inline(never)]
    fn mismatch(&self, expected: &dyn de::Expected) -> Failure {
        <Failure as de::Error>::invalid_type(unexpected(self.value), expected).at(self.path)
    }
}

struct Items<'a> {
    items: &'a [Value],
    path: &'a Path<'a>,
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some(value) = self.items.get(self.next) else { return Ok(None) };
        let path = Path::Index(self.path, self.next);
        self.next += 1;
        seed.deserialize(Node { value, path }).map(Some).map_err(|failure| failure.at(path))
    }
}

/// The members of an object: one per field for a struct, one per key for a map.
struct Members<'a> {
    members: Vec<(&'a str, Cow<'a, Value>)>,
    path: &'a Path<'a>,
    next: usize,
}

impl<'a> Members<'a> {
    fn of_struct(
        pairs: &'a [(String, Value)],
        fields: &'static [&'static str],
        path: &'a Path<'a>,
    ) -> Members<'a> {
        let found = |field: &&'static str| {
            let is_its = |(key, _): &&(String, Value)| {
                key.eq_ignore_ascii_case(field) && field_of(key, fields) == *field
            };
            let spellings = pairs.iter().filter(is_its).map(|(_, value)| value);
            Some((*field, spellings.fold(None, last_given)?))
        };
        Members { members: fields.iter().filter_map(found).collect(), path, next: 0 }
    }

    fn of_map(pairs: &'a [(String, Value)], path: &'a Path<'a>) -> Members<'a> {
        Members {
            members: pairs
                .iter()
                .map(|(key, value)| (key.as_str(), Cow::Borrowed(value)))
                .collect(),
            path,
            next: 0,
        }
    }
}

/// The field that a key is read into: among those that differ only in case, the one with exactly
/// this spelling, else the first.
fn field_of<'f>(key: &str, fields: &[&'f str]) -> &'f str {
    let exact = fields.iter().find(|field| **field == key);
    exact
        .or_else(|| fields.iter().find(|field| field.eq_ignore_ascii_case(key)))
        .copied()
        .unwrap_or_default()
}

/// Combines duplicates as Go does, which decodes members one after the other into the same field:
/// the last counts, null changes nothing, objects merge.
fn last_given<'a>(before: Option<Cow<'a, Value>>, next: &'a Value) -> Option<Cow<'a, Value>> {
    match (before, next) {
        (before, Value::Null) => before,
        (Some(mut object), Value::Object(more)) if matches!(*object, Value::Object(_)) => {
            if let Value::Object(pairs) = object.to_mut() {
                pairs.extend(more.iter().cloned());
            }
            Some(object)
        }
        (_, next) => Some(Cow::Borrowed(next)),
    }
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        let Some((key, _)) = self.members.get(self.next) else { return Ok(None) };
        let key: StrDeserializer<'_, Failure> = (*key).into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Failure> {
        let (key, value) =
            self.members.get(self.next).map_or(("", &Value::Null), |(key, value)| (*key, &**value));
        self.next += 1;
        let path = Path::Key(self.path, key);
        seed.deserialize(Node { value, path }).map_err(|failure| failure.at(path))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Conf {
        host_port: u16,
        name: String,
        sysctl: BTreeMap<String, String>,
        inner: Option<Inner>,
        ranges: Vec<Vec<Inner>>,
        big: u64,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Inner {
        is_gateway: bool,
        mtu: u32,
    }

    fn decode(text: &str) -> Result<Conf> {
        from_value(&Value::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn keys_match_in_any_case_but_keys_of_maps_are_exact() {
        let conf =
            decode(r#"{"HostPort":80,"INNER":{"ISGATEWAY":true},"Sysctl":{"Net.A":"1"},"Ranges":[[{"MTU":9}]]}"#)
                .unwrap();
        assert_eq!(conf.host_port, 80);
        assert_eq!(conf.inner, Some(Inner { is_gateway: true, mtu: 0 }));
        assert_eq!(conf.sysctl["Net.A"], "1");
        assert_eq!(conf.ranges[0][0].mtu, 9);
    }

    #[test]
    fn the_last_spelling_counts_null_changes_nothing_objects_merge() {
        let conf = decode(
            r#"{"name":"a","NAME":"b","name":null,"inner":{"mtu":1},"Inner":{"isGateway":true}}"#,
        )
        .unwrap();
        assert_eq!(
            (conf.name.as_str(), conf.inner),
            ("b", Some(Inner { is_gateway: true, mtu: 1 }))
        );
        assert_eq!(
            decode(r#"{"name":null,"ranges":null,"sysctl":null,"inner":null}"#).unwrap(),
            Conf::default()
        );
    }

    #[test]
    fn fields_that_differ_in_case_only_take_their_own_spelling() {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Twins {
            address: String,
            #[serde(rename = "Address")]
            other: Option<Inner>,
        }
        let twins = |text: &str| {
            let twins: Twins = from_value(&Value::parse(text.as_bytes()).unwrap()).unwrap();
            (twins.address, twins.other.map(|inner| inner.mtu))
        };
        let both = ("a".to_owned(), Some(7));
        assert_eq!(twins(r#"{"address":"a","Address":{"mtu":7}}"#), both);
        assert_eq!(twins(r#"{"Address":{"mtu":7},"address":"a"}"#), both);
        assert_eq!(twins(r#"{"ADDRESS":"b","Address":{"mtu":7}}"#), ("b".to_owned(), Some(7)));
        assert_eq!(twins(r#"{"address":"a","ADDRESS":"b"}"#), ("b".to_owned(), None));
    }

    #[test]
    fn an_observer_learns_what_is_expected_where() {
        let observer = Observer::default();
        let text = r#"{"Name":true,"inner":{"x":1},"ranges":[[{"mtu":"no"}]],"sysctl":{"a.b":"c"},"hostPort":1}"#;
        let error =
            observed::<Conf>(&Value::parse(text.as_bytes()).unwrap(), Some(&observer)).unwrap_err();
        assert!(error.msg.starts_with("name: expected a string"), "{error}");
        let told = |text: &str| {
            let _ = observed::<Conf>(&Value::parse(text.as_bytes()).unwrap(), Some(&observer));
            let expected = |(path, expected)| match expected {
                Shape::Keys(keys) => format!("{path}: {}", keys.join(" ")),
                Shape::Kind(kind) => format!("{path}: {kind}"),
            };
            observer.take().into_iter().map(expected).collect::<Vec<_>>()
        };
        let root = ": hostPort name sysctl inner ranges big";
        assert_eq!(told(text)[..2], [root, "hostPort: an integer from 0 to 65535"]);
        assert_eq!(told(r#"{"inner":{"x":1}}"#), [root, "inner: isGateway mtu"]);
        assert_eq!(
            told(r#"{"ranges":[[{"mtu":"no"}]]}"#),
            [
                root,
                "ranges: a list",
                "ranges[0]: a list",
                "ranges[0][0]: isGateway mtu",
                "ranges[0][0].mtu: an integer from 0 to 4294967295"
            ]
        );
        assert_eq!(
            told(r#"{"sysctl":{"a.b":"c"}}"#),
            [root, "sysctl: an object", "sysctl.a.b: a string"]
        );
        assert_eq!(told("{}"), [root]);
    }

    #[test]
    fn integers_beyond_2_to_the_53_are_exact() {
        assert_eq!(decode(r#"{"big":18446744073709551615}"#).unwrap().big, u64::MAX);
    }

    #[test]
    fn mistakes_name_their_path_the_value_and_what_was_expected() {
        let cases = [
            (r#"{"name":5}"#, 6, "name: expected a string, found integer 5"),
            (
                r#"{"hostPort":70000}"#,
                7,
                "hostPort: 70000 is out of range, expected an integer from 0 to 65535",
            ),
            (
                r#"{"hostPort":-1}"#,
                7,
                "hostPort: -1 is out of range, expected an integer from 0 to 65535",
            ),
            (
                r#"{"hostPort":1.5}"#,
                6,
                "hostPort: expected an integer from 0 to 65535, found number 1.5",
            ),
            (
                r#"{"ranges":[[{},{"Mtu":"x"}]]}"#,
                6,
                "ranges[0][1].mtu: expected an integer from 0 to 4294967295, found string \"x\"",
            ),
            (r#"{"ranges":[3]}"#, 6, "ranges[0]: expected a list, found integer 3"),
            (r#"{"inner":[]}"#, 6, "inner: expected an object, found a list"),
            ("[]", 6, "expected an object, found a list"),
        ];
        for (text, code, msg) in cases {
            let error = decode(text).unwrap_err();
            assert_eq!((error.code.0, error.msg.as_str()), (code, msg), "{text}");
        }
    }
}
