//! The values of records as text: the JSON that each engine stores.

use serde::Deserialize;
use serde_json::{from_slice, json, to_string};

use super::super::name::Name;
use super::{Key, Token, Value};

/// The member of a value that has one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct One {
    id: Option<Token>,
    divided: Option<u8>,
    node: Option<Name>,
}

impl Value {
    /// The value as it is stored.
    pub fn to_json(&self) -> String {
        let text = match self {
            Value::Meta(id) => Ok(json!({"id": id}).to_string()),
            Value::Node(record) => to_string(record),
            Value::Claim(claim) => to_string(claim),
            Value::Divided(size) => Ok(json!({"divided": size}).to_string()),
            Value::Want(want) => to_string(want),
            Value::Conflict(node) => Ok(json!({"node": node}).to_string()),
            Value::Unreadable => Ok(String::new()), // no operation writes it
        };
        text.unwrap_or_default() // no type of these can fail
    }

    /// Reads what is stored under a key.
    pub fn of_json(key: &Key, text: &[u8]) -> Value {
        let one = || from_slice::<One>(text).unwrap_or_default();
        let read = match key {
            Key::Meta => one().id.map(Value::Meta),
            Key::Node(_) => from_slice(text).ok().map(Value::Node),
            Key::Block(..) => match one().divided {
                Some(size @ (1 | 8)) => Some(Value::Divided(size)),
                _ => from_slice(text).ok().map(Value::Claim),
            },
            Key::Want(_) => from_slice(text).ok().map(Value::Want),
            Key::Conflict(..) => one().node.map(Value::Conflict),
        };
        read.unwrap_or(Value::Unreadable)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Claim, NodeRecord, Want};
    use super::*;

    /// Each kind, as text under its key.
    fn table() -> Vec<(Key, Value, &'static str)> {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let (realm, block) = (name("default"), "4-0a580140-26".parse().unwrap());
        let node = NodeRecord {
            uid: Token(1),
            machine: Token(2),
            boot: "b".into(),
            session: Token(3),
            number: 4,
            nonce: Token(5),
            version: "0.1".into(),
            trusts_reboot: true,
            mark: None,
            ended: false,
        };
        let claim =
            Claim { node: name("n1"), uid: Token(1), token: Token(6), taken: None, name: None };
        let want = Want {
            uid: Token(1),
            nonce: Token(7),
            realm: realm.clone(),
            spans: vec![],
            name: Some("net/a".into()),
            renewal: 2,
            gifts: vec![block],
        };
        vec![
            (Key::Meta, Value::Meta(Token(9)), r#"{"id":"00000000000000000000000000000009"}"#),
            (
                Key::Node(name("n1")),
                Value::Node(node),
                r#"{"uid":"00000000000000000000000000000001","machine":"00000000000000000000000000000002","boot":"b","session":"00000000000000000000000000000003","number":4,"nonce":"00000000000000000000000000000005","version":"0.1","trustReboot":true}"#,
            ),
            (
                Key::Block(realm.clone(), block),
                Value::Claim(claim),
                r#"{"node":"n1","uid":"00000000000000000000000000000001","token":"00000000000000000000000000000006"}"#,
            ),
            (Key::Block(realm.clone(), block), Value::Divided(8), r#"{"divided":8}"#),
            (
                Key::Want(name("n1")),
                Value::Want(want),
                r#"{"uid":"00000000000000000000000000000001","nonce":"00000000000000000000000000000007","realm":"default","name":"net/a","renewal":2,"gifts":["4-0a580140-26"]}"#,
            ),
            (Key::Conflict(realm, block), Value::Conflict(name("n2")), r#"{"node":"n2"}"#),
        ]
    }

    #[test]
    fn each_value_is_read_from_the_text_that_it_is_written_as() {
        for (key, value, text) in table() {
            assert_eq!(value.to_json(), text);
            assert_eq!(Value::of_json(&key, text.as_bytes()), value);
        }
    }

    #[test]
    fn other_texts_cannot_be_read() {
        for (key, _, _) in table() {
            for text in ["", "null", "{}", "[]", "7", r#"{"divided":2}"#, "{\"id\":\"9\"}", "\u{0}"]
            {
                assert_eq!(Value::of_json(&key, text.as_bytes()), Value::Unreadable, "{text}");
            }
        }
    }
}
