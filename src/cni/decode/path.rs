//! The place of a value in the document, and the observer of what is expected there.

use std::cell::RefCell;
use std::fmt;

use serde::de;

use crate::error::Kind;

/// A record of what the types expected, place by place, while a document was decoded.
#[derive(Debug, Default)]
pub struct Observer(RefCell<Vec<(String, Shape)>>);

/// What a type expects at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An object with these keys; others have no meaning.
    Keys(&'static [&'static str]),
    /// A value of this kind.
    Kind(Kind),
}

impl Observer {
    /// Records the keys of an object that is read without a type.
    pub fn tell(&self, path: &str, keys: &'static [&'static str]) {
        self.0.borrow_mut().push((path.to_owned(), Shape::Keys(keys)));
    }

    /// Every decoded place in order, possibly more than once.
    pub fn take(&self) -> Vec<(String, Shape)> {
        self.0.take()
    }
}

/// The place of a value in the document.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    /// The document itself.
    Root(Option<&'a Observer>),
    /// A member of an object.
    Key(&'a Path<'a>, &'a str),
    /// An item of a list.
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root(_) => Ok(()),
            Path::Key(Path::Root(_), key) => f.write_str(key),
            Path::Key(parent, key) => write!(f, "{parent}.{key}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl Path<'_> {
    /// Reports the keys of a type. Not inlined: one function for all decoded types.
    #[inline(never)]
    pub fn tell_keys(&self, keys: &'static [&'static str]) {
        if let Some(observer) = self.observer() {
            observer.0.borrow_mut().push((self.to_string(), Shape::Keys(keys)));
        }
    }

    /// Reports the kind of a type; see [`Path::tell_keys`].
    #[inline(never)]
    pub fn tell_kind(&self, kind: &dyn de::Expected) {
        if let Some(observer) = self.observer() {
            observer.0.borrow_mut().push((self.to_string(), Shape::Kind(kind_of(kind))));
        }
    }

    fn observer(&self) -> Option<&Observer> {
        let mut path = self;
        loop {
            match path {
                Path::Root(observer) => return *observer,
                Path::Key(parent, _) | Path::Index(parent, _) => path = parent,
            }
        }
    }
}

/// The JSON kind for serde's words.
pub fn kind_of(expected: &dyn de::Expected) -> Kind {
    match expected.to_string().as_str() {
        "a boolean" => Kind::Boolean,
        "u8" => Kind::Natural(u8::MAX.into()),
        "u16" => Kind::Natural(u16::MAX.into()),
        "u32" => Kind::Natural(u32::MAX.into()),
        "u64" => Kind::Natural(u64::MAX),
        "i64" => Kind::Integer,
        "an integer, or one in a string" => Kind::IntegerOrText,
        "a string" => Kind::Text,
        "a sequence" => Kind::List,
        "a map" | "an object" => Kind::Object,
        other => Kind::Other(other.to_owned()),
    }
}
