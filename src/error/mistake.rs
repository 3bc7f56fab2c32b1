//! A configuration mistake as data: where, what, and what was expected instead. The sentence that
//! users read is its [`Display`](fmt::Display), and only that.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{self, Unexpected};

/// An invalid value in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The place of the value: `ipam.ranges[0][1].subnet`; empty for the whole document.
    pub path: String,
    /// What is wrong with the value.
    pub problem: Problem,
    /// What was expected in its place.
    pub expected: Expected,
    /// The capability by which a runtime supplies the value with ADD; empty if there is none.
    pub capability: &'static str,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The key is absent, or its value is empty and empty means none.
    Missing,
    /// The value is of another JSON kind: `string "x"`.
    Found(String),
    /// The key and this other one are mutually exclusive.
    Excludes(String),
    /// Anything else: `5000 is out of range`.
    Text(String),
}

/// What was expected in place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing beyond the problem.
    Unsaid,
    /// A value of a JSON kind.
    Kind(Kind),
    /// An integer in one of these ranges.
    Ranges(Vec<RangeInclusive<i64>>),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// In words: `an absolute path`.
    Text(String),
}

/// A JSON kind of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// An integer from 0 to this number.
    Natural(u64),
    /// An integer of either sign.
    Integer,
    /// An integer that is not negative, also in a string.
    IntegerOrText,
    /// A string.
    Text,
    /// A list.
    List,
    /// An object with any keys.
    Object,
    /// A type's own description.
    Other(String),
}

/// A type with a word for each value. The decoder knows the words, so that a mistake carries them
/// as data.
pub trait Word: Sized {
    /// The start of the reference plugin's sentence about an unknown word, which ends with that
    /// word; empty if it has none.
    const REFUSAL: &'static str = "";
    /// The words.
    const WORDS: &'static [&'static str];

    /// The value of a word. More words than [`Word::WORDS`] may be accepted, such as the empty
    /// text.
    fn of(word: &str) -> Option<Self>;
}

impl Mistake {
    /// Creates a mistake in a value; [`Mistake::at`] adds the place.
    pub fn new(problem: impl fmt::Display) -> Mistake {
        Mistake::of(Problem::Text(problem.to_string()))
    }

    /// Creates a mistake of this kind.
    pub fn of(problem: Problem) -> Mistake {
        Mistake { path: String::new(), problem, expected: Expected::Unsaid, capability: "" }
    }

    /// The same mistake with what was expected.
    #[must_use]
    pub fn expecting(self, expected: impl Into<Expected>) -> Mistake {
        Mistake { expected: expected.into(), ..self }
    }

    /// The same mistake at this place.
    #[must_use]
    pub fn at(self, path: impl fmt::Display) -> Mistake {
        Mistake { path: path.to_string(), ..self }
    }
}

impl Mistake {
    /// The mistake as a deserializer's error, for `Deserialize`.
    pub fn refuse<E: de::Error>(&self) -> E {
        if self.expected == Expected::Unsaid {
            return E::custom(&self.problem);
        }
        let problem = self.problem.to_string();
        let expected = self.expected.to_string();
        E::invalid_value(Unexpected::Other(&problem), &expected.as_str())
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Problem::Excludes(other) = &self.problem {
            return write!(f, "{} and {other} are mutually exclusive", self.path);
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        match (&self.problem, &self.expected) {
            (problem, Expected::Unsaid) => problem.fmt(f),
            (Problem::Found(_), expected) => write!(f, "expected {expected}, {}", self.problem),
            (problem, expected) => write!(f, "{problem}, expected {expected}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing => f.write_str("missing"),
            Problem::Found(found) => write!(f, "found {found}"),
            Problem::Excludes(other) => write!(f, "mutually exclusive with {other}"),
            Problem::Text(text) => f.write_str(text),
        }
    }
}

impl Expected {
    /// The ranges of numbers, if ranges were expected.
    pub fn ranges(&self) -> &[RangeInclusive<i64>] {
        if let Expected::Ranges(ranges) = self { ranges } else { &[] }
    }

    /// The words, if words were expected.
    pub fn words(&self) -> &'static [&'static str] {
        if let Expected::OneOf(words) = self { words } else { &[] }
    }
}

/// Displays nothing for [`Expected::Unsaid`].
impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Unsaid => Ok(()),
            Expected::Kind(kind) => kind.fmt(f),
            Expected::Ranges(ranges) => {
                let text = |range: &RangeInclusive<i64>| match (range.start(), range.end()) {
                    (least, most) if least == most => least.to_string(),
                    (least, most) => format!("{least} to {most}"),
                };
                write_choice(f, ranges.iter().map(text).collect())
            }
            Expected::OneOf(words) => {
                write_choice(f, words.iter().map(|word| format!("{word:?}")).collect())
            }
            Expected::Text(text) => f.write_str(text),
        }
    }
}

/// Writes `a`, `a or b`, `a, b or c`.
fn write_choice(f: &mut fmt::Formatter<'_>, texts: Vec<String>) -> fmt::Result {
    match &texts[..] {
        [] => Ok(()),
        [one] => f.write_str(one),
        [before @ .., last] => write!(f, "{} or {last}", before.join(", ")),
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Boolean => "a boolean",
            Kind::Natural(most) => return write!(f, "an integer from 0 to {most}"),
            Kind::Integer => "an integer",
            Kind::IntegerOrText => "an integer, or one in a string",
            Kind::Text => "a string",
            Kind::List => "a list",
            Kind::Object => "an object",
            Kind::Other(text) => text,
        })
    }
}

impl From<&str> for Expected {
    fn from(text: &str) -> Expected {
        Expected::Text(text.to_owned())
    }
}

impl From<fmt::Arguments<'_>> for Expected {
    fn from(text: fmt::Arguments<'_>) -> Expected {
        Expected::Text(text.to_string())
    }
}

impl From<Kind> for Expected {
    fn from(kind: Kind) -> Expected {
        Expected::Kind(kind)
    }
}

impl From<RangeInclusive<i64>> for Expected {
    fn from(range: RangeInclusive<i64>) -> Expected {
        Expected::Ranges(vec![range])
    }
}

impl<const N: usize> From<[RangeInclusive<i64>; N]> for Expected {
    fn from(ranges: [RangeInclusive<i64>; N]) -> Expected {
        Expected::Ranges(ranges.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_has_path_problem_and_expectation() {
        let ranges = || [1..=252, 256..=256, 300..=400];
        let cases = [
            (Mistake::new("odd"), "a.b: odd"),
            (Mistake::new("odd").expecting("an even one"), "a.b: odd, expected an even one"),
            (
                Mistake::new("7 is out of range").expecting(8..=9),
                "a.b: 7 is out of range, expected 8 to 9",
            ),
            (Mistake::new("0").expecting(ranges()), "a.b: 0, expected 1 to 252, 256 or 300 to 400"),
            (Mistake::new("x").expecting(Expected::OneOf(&["l2"])), "a.b: x, expected \"l2\""),
            (Mistake::of(Problem::Missing).expecting("a name"), "a.b: missing, expected a name"),
            (
                Mistake::of(Problem::Found("a list".into())).expecting(Kind::Natural(255)),
                "a.b: expected an integer from 0 to 255, found a list",
            ),
            (Mistake::of(Problem::Excludes("c".into())), "a.b and c are mutually exclusive"),
        ];
        for (mistake, expected) in cases {
            assert_eq!(mistake.at("a.b").to_string(), expected);
        }
        let of_document = Mistake::of(Problem::Found("null".into())).expecting(Kind::Object);
        assert_eq!(of_document.to_string(), "expected an object, found null");
    }
}
