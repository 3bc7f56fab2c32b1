//! CNI_ARGS: `KEY=value;KEY2=value2`, the flat and deprecated channel (specification, section 2).

use crate::error::{Code, Error, Result};

/// The pairs known to a plugin, with the last value of each key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Args<'a> {
    /// Parses as strictly as the reference: each piece is `KEY=value`, keys are matched with case,
    /// and a key that is not in `known` is an error unless `IgnoreUnknown` is true anywhere in
    /// the text.
    pub fn parse(text: &'a str, known: &[&str]) -> Result<Args<'a>> {
        if text.is_empty() {
            return Ok(Args::default());
        }
        let mut pairs = vec![];
        let mut unknown = vec![];
        let mut ignore_unknown = false;
        for piece in text.split(';') {
            let pair = piece.split_once('=').filter(|(_, value)| !value.contains('='));
            let Some((key, value)) = pair else {
                return Err(invalid(format!("invalid pair {piece:?}"))
                    .with_details("expected KEY=value pairs with ; between them"));
            };
            if key == "IgnoreUnknown" {
                ignore_unknown = match value.to_ascii_lowercase().as_str() {
                    "1" | "true" => true,
                    "0" | "false" => false,
                    _ => {
                        let reason = "boolean unmarshal error: invalid input";
                        return Err(invalid(format!(
                            "error parsing value of pair {piece:?}: {reason} {value}"
                        )));
                    }
                };
            } else if known.contains(&key) {
                pairs.push((key, value));
            } else {
                unknown.push(format!("{piece:?}"));
            }
        }
        if !unknown.is_empty() && !ignore_unknown {
            let msg = format!("unknown args [{}]", unknown.join(" "));
            return Err(invalid(msg).with_details(format_args!(
                "this plugin knows {} and IgnoreUnknown=1, which lets others pass",
                known.join(", ")
            )));
        }
        Ok(Args(pairs))
    }

    /// The value of `key`, if it was given.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(k, _)| *k == key).map(|(_, value)| *value)
    }
}

/// Reports a mistake in CNI_ARGS. It is an environment variable, so the specification requires code
/// 4.
fn invalid(msg: String) -> Error {
    Error::new(Code::INVALID_ENVIRONMENT, format!("CNI_ARGS: {msg}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pairs_are_found_and_the_last_counts() {
        let args = Args::parse(
            "IP=10.0.0.1;IgnoreUnknown=True;K8S_POD_NAME=x;IP=10.0.0.2;MAC=",
            &["IP", "MAC"],
        )
        .unwrap();
        assert_eq!(
            (args.get("IP"), args.get("MAC"), args.get("K8S_POD_NAME")),
            (Some("10.0.0.2"), Some(""), None)
        );
        assert_eq!(Args::parse("", &[]).unwrap(), Args::default());
    }

    #[test]
    fn mistakes_are_told_in_the_reference_s_words() {
        let cases = [
            ("A=b;C=d", "CNI_ARGS: unknown args [\"A=b\" \"C=d\"]"),
            ("IgnoreUnknown=0;A=b", "CNI_ARGS: unknown args [\"A=b\"]"),
            ("ip=1", "CNI_ARGS: unknown args [\"ip=1\"]"),
            ("IP=1;", "CNI_ARGS: invalid pair \"\""),
            ("IP=a=b", "CNI_ARGS: invalid pair \"IP=a=b\""),
            (
                "IgnoreUnknown=yes",
                "CNI_ARGS: error parsing value of pair \"IgnoreUnknown=yes\": boolean unmarshal error: invalid input yes",
            ),
        ];
        for (text, msg) in cases {
            assert_eq!(Args::parse(text, &["IP"]).unwrap_err().msg, msg);
        }
    }
}
