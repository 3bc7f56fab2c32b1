//! The values of records as text: the JSON that each engine stores.

use serde::{Deserialize, Serialize};

use super::super::name::Name;
use super::{Key, Token, Value};

#[derive(Serialize, Deserialize)]
struct Meta {
    id: Token,
}

#[derive(Serialize, Deserialize)]
struct Divided {
    divided: u8,
}

#[derive(Serialize, Deserialize)]
struct Conflict {
    node: Name,
}

impl Value {
    /// The value as it is stored.
    pub fn to_json(&self) -> String {
        let text = match self {
            Value::Meta(id) => serde_json::to_string(&Meta { id: *id }),
            Value::Node(record) => serde_json::to_string(record),
            Value::Claim(claim) => serde_json::to_string(claim),
            Value::Divided(size) => serde_json::to_string(&Divided { divided: *size }),
            Value::Want(want) => serde_json::to_string(want),
            Value::Conflict(node) => serde_json::to_string(&Conflict { node: node.clone() }),
            Value::Unreadable => Ok(String::new()), // no operation writes it
        };
        text.unwrap_or_default() // no type of these can fail
    }

    /// Reads what is stored under a key.
    pub fn of_json(key: &Key, text: &[u8]) -> Value {
        let read = match key {
            Key::Meta => serde_json::from_slice(text).map(|Meta { id }| Value::Meta(id)),
            Key::Node(_) => serde_json::from_slice(text).map(Value::Node),
            Key::Block(..) => match serde_json::from_slice(text) {
                Ok(Divided { divided: size @ (1 | 8) }) => Ok(Value::Divided(size)),
                _ => serde_json::from_slice(text).map(Value::Claim),
            },
            Key::Want(_) => serde_json::from_slice(text).map(Value::Want),
            Key::Conflict(..) => {
                serde_json::from_slice(text).map(|Conflict { node }| Value::Conflict(node))
            }
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
