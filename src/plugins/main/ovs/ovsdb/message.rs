//! The messages of JSON-RPC 1.0 that a server sends.

use std::io;

use crate::cni::json::Value;

/// What a message is.
pub enum Message {
    /// The answer to the request of this number.
    Answer(u64, Value),
    /// A question whether this side lives, with the answer that the server expects.
    Echo(Value),
    /// A notification.
    Other,
}

/// Sorts a message.
pub fn of(message: Value) -> Message {
    if message.get("method").and_then(Value::as_str) == Some("echo") {
        let part = |key| message.get(key).cloned().unwrap_or_default();
        let pong = [("id", part("id")), ("error", Value::Null), ("result", part("params"))];
        return Message::Echo(Value::object(pong));
    }
    match message.get("id").and_then(Value::as_u64) {
        Some(id) if message.get("method").is_none() => Message::Answer(id, message),
        _ => Message::Other,
    }
}

/// The error for bytes that are no answer of OVSDB.
pub fn malformed(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no answer of OVSDB: {}", problem.into()))
}
