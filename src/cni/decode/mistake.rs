//! The description of a value that could not be decoded, in JSON's terms, the place of a value in
//! the document, and the observer of what is expected there.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, Unexpected};

use crate::cni::json::Value;
use crate::error::{Code, Error, Expected, Kind, Mistake, Problem};

/// A value that could not be decoded.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    /// Its path is relative to the value being decoded until `is_placed`.
    mistake: Box<Mistake>,
    is_placed: bool,
    /// The reference plugin's sentence, if it has one.
    sentence: Option<String>,
}

impl Failure {
    fn new(code: Code, mistake: Mistake) -> Failure {
        Failure { code, mistake: Box::new(mistake), is_placed: false, sentence: None }
    }

    /// The same failure with another code.
    pub fn with_code(self, code: Code) -> Failure {
        Failure { code, ..self }
    }

    /// The same failure with the reference plugin's sentence about an unknown word, which begins
    /// with `opening`.
    pub fn refusing(self, opening: &str, word: &str) -> Failure {
        let sentence = (!opening.is_empty()).then(|| format!("{opening} {word:?}"));
        Failure { sentence, ..self }
    }

    /// Adds the path; only the innermost caller's counts. One function for all decoded types.
    #[cold]
    #[inline(never)]
    pub fn at(mut self, path: Path<'_>) -> Failure {
        if !self.is_placed {
            self.mistake.path = match self.mistake.path.as_str() {
                "" => path.to_string(),
                member => Path::Key(&path, member).to_string(),
            };
            self.is_placed = true;
        }
        self
    }

    /// The error that users see.
    pub fn into_error(self) -> Error {
        let error = Error::from(*self.mistake).with_code(self.code);
        self.sentence.into_iter().fold(error, Error::saying)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mistake.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: fmt::Display>(problem: T) -> Failure {
        Failure::new(Code::INVALID_CONFIG, Mistake::new(problem))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Failure {
        let problem = Problem::Found(Found(found).to_string());
        Failure::new(Code::DECODE, Mistake::of(problem).expecting(kind_of(expected)))
    }

    fn missing_field(field: &'static str) -> Failure {
        Failure::new(Code::INVALID_CONFIG, Mistake::of(Problem::Missing).at(field))
    }

    fn unknown_variant(word: &str, words: &'static [&'static str]) -> Failure {
        let mistake = Mistake::new(format_args!("{word:?} is unknown"));
        Failure::new(Code::INVALID_CONFIG, mistake.expecting(Expected::OneOf(words)))
    }

    /// Treats `Other` as the problem in words: see [`Mistake::refuse`].
    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Failure {
        let mistake = match found {
            Unexpected::Other(problem) => {
                Mistake::new(problem).expecting(format_args!("{expected}"))
            }
            found => Mistake::new(format_args!("{} is out of range", Number(found)))
                .expecting(kind_of(expected)),
        };
        Failure::new(Code::INVALID_CONFIG, mistake)
    }
}

/// The value as the user wrote it: `5000`, not "integer `5000`".
struct Number<'a>(Unexpected<'a>);

impl fmt::Display for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Signed(number) => write!(f, "{number}"),
            Unexpected::Unsigned(number) => write!(f, "{number}"),
            other => write!(f, "{other}"),
        }
    }
}

/// The value found instead of the expected one, in JSON's terms.
struct Found<'a>(Unexpected<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Bool(value) => write!(f, "boolean {value}"),
            Unexpected::Signed(number) => write!(f, "integer {number}"),
            Unexpected::Unsigned(number) => write!(f, "integer {number}"),
            Unexpected::Float(number) => write!(f, "number {number}"),
            Unexpected::Seq => f.write_str("a list"),
            Unexpected::Map => f.write_str("an object"),
            Unexpected::Unit => f.write_str("null"),
            other => write!(f, "{other}"),
        }
    }
}

/// Describes a value as messages do: `a list`, `string "x"`.
pub fn describe(value: &Value) -> String {
    Found(unexpected(value)).to_string()
}

pub fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Unexpected::Unsigned(value),
            (_, Some(value)) => Unexpected::Signed(value),
            _ => Unexpected::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(value) => Unexpected::Str(value),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

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
