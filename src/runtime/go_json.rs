//! JSON as it is after Go has read and written it: libcni does so with whatever it hands on or
//! keeps.

use crate::cni::json::Value;

/// The value with the members of its objects in order, as a Go map has them: of several of a name
/// the last one. A number that is whole is written so, since Go keeps all as floats: `1400.0` would
/// be refused where an integer is expected.
pub(super) fn normal(value: Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.into_iter().map(normal).collect()),
        Value::Object(pairs) => {
            let mut members: Vec<(String, Value)> = vec![];
            for (key, value) in pairs {
                let value = normal(value);
                match members.binary_search_by(|(known, _)| known.cmp(&key)) {
                    Ok(at) => members[at].1 = value,
                    Err(at) => members.insert(at, (key, value)),
                }
            }
            Value::Object(members)
        }
        Value::Number(number) if number.is_f64() => {
            // A conversion stops at the ends, so what is beyond 64 bits is another number and
            // stays.
            let float = number.as_f64().unwrap_or_default();
            let whole = float as i64;
            Value::Number(if whole as f64 == float && whole != i64::MAX {
                whole.into()
            } else {
                number
            })
        }
        scalar => scalar,
    }
}

/// The text, with the letters escaped that Go escapes for the sake of HTML; they occur in strings
/// only.
pub(super) fn text(value: &Value) -> String {
    let escapes = [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ];
    escapes.iter().fold(value.to_text(), |text, (letter, escape)| text.replace(*letter, escape))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right side is what `json.Unmarshal` and `json.Marshal` make of the left, but for
    /// integers beyond 2^53.
    #[test]
    fn whole_numbers_lose_their_point_and_members_are_in_order() {
        for (before, after) in [
            (
                "[1400.0,14e2,8.08e3,-2.0,0.0,1e18,-9e18]",
                "[1400,1400,8080,-2,0,1000000000000000000,-9000000000000000000]",
            ),
            ("[0.5,-1.25,1e300,9007199254740993]", "[0.5,-1.25,1e+300,9007199254740993]"),
            (r#"{"b":1.0,"a":{"d":[2.0],"c":0},"b":"<"}"#, r#"{"a":{"c":0,"d":[2]},"b":"\u003c"}"#),
        ] {
            assert_eq!(text(&normal(Value::parse(before.as_bytes()).unwrap())), after);
        }
        let large = normal(Value::parse(b"[9223372036854775808.0,1e21]").unwrap()).to_text();
        assert!(!large.contains("9223372036854775807"), "{large}");
    }
}
