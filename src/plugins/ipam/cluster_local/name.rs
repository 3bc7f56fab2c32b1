//! The names of nodes, clusters and realms.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of a node or a cluster. With what stands before it, a Lease has at most 253 bytes.
const LONGEST: usize = 240;
/// The longest name of a realm: a label of Kubernetes.
pub const LONGEST_REALM: usize = 63;

/// The name of a node, a cluster or a realm: a part of keys, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

serde_by_text!(Name);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_of_name = |c: char| is_end(c) || matches!(c, '.' | '-');
        let is_name = text.len() <= LONGEST
            && text.starts_with(is_end)
            && text.ends_with(is_end)
            && text.chars().all(is_of_name);
        is_name.then(|| Name(text.into())).ok_or_else(|| {
            format!(
                "{text:?} is not a valid name, expected lower-case letters, digits, '.' and '-', \
                 a letter or digit at both ends"
            )
        })
    }
}

/// The realm of a network that names none.
impl Default for Name {
    fn default() -> Name {
        Name("default".into())
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
