//! The names of nodes, clusters and realms.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest name of a node or a cluster. With what stands before it, a Lease has at most 253 bytes.
const LONGEST: usize = 240;
/// The longest name of a realm: a label of Kubernetes.
pub const LONGEST_REALM: usize = 63;

/// The name of a node, a cluster or a realm: a part of keys, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoName(String);

impl fmt::Display for NoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected =
            "expected lower-case letters, digits, '.' and '-', a letter or digit at both ends";
        write!(f, "{:?} is not a valid name, {expected}", self.0)
    }
}

impl FromStr for Name {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Name, NoName> {
        let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_of_name = |c: char| is_end(c) || matches!(c, '.' | '-');
        let is_name = text.len() <= LONGEST
            && text.starts_with(is_end)
            && text.ends_with(is_end)
            && text.chars().all(is_of_name);
        if is_name { Ok(Name(text.into())) } else { Err(NoName(text.to_owned())) }
    }
}

impl TryFrom<String> for Name {
    type Error = NoName;

    fn try_from(text: String) -> Result<Name, NoName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.as_str().to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_keys() {
        for name in ["default", "node-1.example.org", "0", &"a".repeat(LONGEST)] {
            assert_eq!(name.parse::<Name>().unwrap().as_str(), name);
        }
        for name in ["", ".", "-a", "a-", "A", "a_b", "a/b", "a b", "ä", &"a".repeat(LONGEST + 1)]
        {
            let refused = name.parse::<Name>().unwrap_err().to_string();
            assert!(refused.contains("is not a valid name, expected lower-case"), "{refused}");
        }
    }
}
