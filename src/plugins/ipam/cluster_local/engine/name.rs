//! The names of nodes and realms.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest name of a node or a realm: that of a host.
const LONGEST_NAME: usize = 253;

/// The name of a node or a realm: a part of a key.
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
        let expected = "expected letters, digits, '.', '_' and '-', a letter or digit first";
        write!(f, "{:?} is not a valid name, {expected}", self.0)
    }
}

impl FromStr for Name {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Name, NoName> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_name = begins_well && text.len() <= LONGEST_NAME && text.chars().all(is_of_name);
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
