//! Versions of the CNI specification.

use std::cmp::Ordering;
use std::fmt;

use crate::error::{Code, Error, Result};

/// The newest supported version, which VERSION reports as `cniVersion`.
pub const CURRENT: &str = "1.1.0";

/// Every supported version.
pub const ALL: &[&str] = &["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The version of a configuration without `cniVersion`.
pub const ABSENT: &str = "0.1.0";

/// A version for comparisons: `0.4` is 0.4.0 and `""` is 0.1.0. Whether a version is *supported* is
/// decided by its text, which must be in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(i64, i64, i64);

/// The first version with CHECK and GET.
pub const WITH_CHECK: Number = Number(0, 4, 0);
/// The first version with GC and STATUS.
pub const WITH_GC: Number = Number(1, 1, 0);
/// The first version with more than one address per family.
pub const WITH_MANY_ADDRESSES: Number = Number(0, 3, 0);

impl Number {
    /// Parses one to three numbers separated by dots; errors are code 6 with the reference's words.
    pub fn parse(text: &str) -> Result<Number> {
        let text = if text.is_empty() { ABSENT } else { text };
        let parts: Vec<&str> = text.split('.').collect();
        if parts.len() > 3 {
            let msg = format!("invalid version {text:?}: too many parts");
            return Err(Error::new(Code::DECODE, msg));
        }
        let part = |index: usize, name| match parts.get(index) {
            Some(part) => part.parse().map_err(|_| {
                let problem = format!("strconv.Atoi: parsing {part:?}: invalid syntax");
                let msg = format!("failed to convert {name} version part {part:?}: {problem}");
                Error::new(Code::DECODE, msg)
            }),
            None => Ok(0),
        };
        Ok(Number(part(0, "major")?, part(1, "minor")?, part(2, "micro")?))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Fails with code 1 unless `version` is in `supported`, letter for letter.
pub fn require_supported(version: &str, supported: &[&str]) -> Result<()> {
    if supported.contains(&version) {
        return Ok(());
    }
    let list: Vec<String> = supported.iter().map(|v| format!("{v:?}")).collect();
    Err(Error::new(Code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
        .with_details(format_args!("config is {version:?}, plugin supports [{}]", list.join(" "))))
}

/// The version gate of commands added after 0.1.0: the configuration's version and the plugin's
/// newest must be at least `least`.
pub fn require_at_least(
    least: Number,
    command: &str,
    version: &str,
    supported: &[&str],
) -> Result<()> {
    let wanted = Number::parse(version)?;
    if wanted.cmp(&least) == Ordering::Less {
        return Err(not_allowed("config", command));
    }
    for entry in supported {
        if Number::parse(entry)? >= wanted {
            return require_supported(version, supported);
        }
    }
    Err(not_allowed("plugin", command))
}

/// The error for a command that the version of the configuration or the plugin lacks.
fn not_allowed(of: &str, command: &str) -> Error {
    let msg = format!("{of} version does not allow {command}");
    Error::new(Code::INCOMPATIBLE_VERSION, msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_parse_as_in_the_reference() {
        assert_eq!(Number::parse("1.2.3").unwrap(), Number(1, 2, 3));
        assert_eq!(Number::parse("").unwrap(), Number(0, 1, 0));
        assert_eq!(Number::parse("0.4").unwrap(), WITH_CHECK);
        for bad in ["asdfasdf", "asdf.", ".asdfas", "asdf.adsf.", "0.", "..", "1.2.3.4.5"] {
            assert_eq!(Number::parse(bad).map_err(|e| e.code), Err(Code::DECODE), "{bad}");
        }
        assert!(Number::parse("1.10.0").unwrap() > Number::parse("1.9.9").unwrap());
    }

    #[test]
    fn support_is_by_the_letter() {
        assert!(require_supported("0.4.0", ALL).is_ok());
        let error = require_supported("0.1.0", &["1.2.3", "4.3.2"]).unwrap_err();
        assert_eq!(
            (error.code.0, error.to_string().as_str()),
            (
                1,
                "incompatible CNI versions; config is \"0.1.0\", plugin supports [\"1.2.3\" \"4.3.2\"]"
            )
        );
    }

    #[test]
    fn later_commands_are_gated() {
        let gate = |version, supported: &[&str]| {
            require_at_least(WITH_CHECK, "CHECK", version, supported)
                .map_err(|e| (e.code.0, e.msg.clone()))
        };
        assert_eq!(gate("0.4.0", ALL), Ok(()));
        assert_eq!(gate("0.3.1", ALL), Err((1, "config version does not allow CHECK".into())));
        assert_eq!(
            gate("0.4.0", &["0.1.0", "0.3.0"]),
            Err((1, "plugin version does not allow CHECK".into()))
        );
        assert_eq!(gate("0.4", ALL), Err((1, "incompatible CNI versions".into())));
        assert_eq!(gate("garbage", ALL).map_err(|e| e.0), Err(6));
        assert_eq!(gate("0.4.0", &["garbage"]).map_err(|e| e.0), Err(6));
    }
}
