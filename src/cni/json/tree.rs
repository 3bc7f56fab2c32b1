//! Builds the tree of any serialisable value directly, without its text.

use serde::ser::{
    Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple,
    Serializer,
};
use serde_json::Error;

use super::value::Value;

impl Value {
    /// The tree of a value of any type.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Value {
        let tree = value.serialize(Tree);
        debug_assert!(tree.is_ok(), "a type that has no JSON: {tree:?}");
        tree.unwrap_or_default() // no type of ours has keys other than strings
    }
}

/// Builds the tree of one value.
struct Tree;

/// The members or items of a value collected so far.
struct Parts<T>(Vec<T>);

/// An object under construction.
type Members = Parts<(String, Value)>;

/// Rejects the kinds of value that no type of ours has.
fn refused<T>(kind: &str) -> Result<T, Error> {
    Err(Error::custom(format_args!("{kind} has no JSON here")))
}

macro_rules! numbers {
    ($($method:ident $type:ty),*) => {
        $(
            fn $method(self, value: $type) -> Result<Value, Error> {
                Ok(Value::number(value))
            }
        )*
    };
}

impl Serializer for Tree {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Parts<Value>;
    type SerializeTuple = Parts<Value>;
    type SerializeTupleStruct = Impossible<Value, Error>;
    type SerializeTupleVariant = Impossible<Value, Error>;
    type SerializeMap = Members;
    type SerializeStruct = Members;
    type SerializeStructVariant = Impossible<Value, Error>;

    numbers!(serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64);
    numbers!(serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64);

    fn serialize_bool(self, value: bool) -> Result<Value, Error> {
        Ok(Value::Bool(value))
    }

    fn serialize_f32(self, value: f32) -> Result<Value, Error> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<Value, Error> {
        Ok(serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn serialize_char(self, value: char) -> Result<Value, Error> {
        Ok(Value::text(value))
    }

    fn serialize_str(self, value: &str) -> Result<Value, Error> {
        Ok(Value::text(value))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Value, Error> {
        refused("a string of bytes")
    }

    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Value, Error> {
        Ok(Value::text(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        Ok(Value::object([(variant, value.serialize(self)?)]))
    }

    fn serialize_seq(self, count: Option<usize>) -> Result<Parts<Value>, Error> {
        Ok(Parts(Vec::with_capacity(count.unwrap_or_default())))
    }

    fn serialize_tuple(self, count: usize) -> Result<Parts<Value>, Error> {
        self.serialize_seq(Some(count))
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<Value, Error>, Error> {
        refused("a tuple with a name")
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<Value, Error>, Error> {
        refused("a variant with several fields")
    }

    fn serialize_map(self, count: Option<usize>) -> Result<Members, Error> {
        Ok(Parts(Vec::with_capacity(count.unwrap_or_default())))
    }

    fn serialize_struct(self, _: &'static str, count: usize) -> Result<Members, Error> {
        self.serialize_map(Some(count))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<Value, Error>, Error> {
        refused("a variant with several fields")
    }
}

impl SerializeSeq for Parts<Value> {
    type Ok = Value;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
        self.0.push(item.serialize(Tree)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(Value::Array(self.0))
    }
}

impl SerializeTuple for Parts<Value> {
    type Ok = Value;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
        SerializeSeq::serialize_element(self, item)
    }

    fn end(self) -> Result<Value, Error> {
        SerializeSeq::end(self)
    }
}

impl SerializeMap for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        match key.serialize(Tree)? {
            Value::String(key) => self.0.push((key, Value::Null)),
            _ => refused("a key that is no string")?,
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if let Some((_, member)) = self.0.last_mut() {
            *member = value.serialize(Tree)?;
        }
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(Value::Object(self.0))
    }
}

impl SerializeStruct for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.0.push((key.to_owned(), value.serialize(Tree)?));
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        SerializeMap::end(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;
    use crate::cni::json;

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
    fn the_tree_of_a_type_has_the_text_of_the_type() {
        let sample = Sample {
            some_text: "<x>",
            none: None,
            left_out: vec![],
            pairs: vec![("a".to_owned(), -1), ("b".to_owned(), i64::MAX)],
            more: [("z", Value::Null), ("y", Value::Bool(true))].into(),
            float: 0.5,
        };
        let text = r#"{"someText":"\u003cx\u003e","none":null,"pairs":[["a",-1],["b",9223372036854775807]],"y":true,"z":null,"float":0.5}"#;
        assert_eq!(json::text(&sample), text);
        assert_eq!(Value::of(&sample), Value::parse(text.as_bytes()).unwrap());
    }
}
