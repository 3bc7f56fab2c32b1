//! Any bytes as the response of a member of etcd: read at once or in pieces, it is the same response or
//! the same flaw, and nothing that the engine reads of it panics.

use std::io::{self, Read};

use cni_multi::plugins::ipam::cluster_local::store::etcd::gateway::{
    self, KeyValue, Message, decode,
};
use cni_multi::plugins::ipam::cluster_local::store::http::incoming::Incoming;
use cni_multi::plugins::ipam::cluster_local::store::{Key, Value, http};

/// The limit of a body.
const MOST: usize = 32 * 1024;

/// The sizes of the pieces in which a response arrives.
const PIECES: [usize; 3] = [1, 7, 1024];

/// Bytes that arrive in pieces of a size, and then the connection ends.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(self.0.len()).min(into.len());
        self.0.read(&mut into[..count])
    }
}

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let whole = received(bytes, usize::MAX);
    for size in PIECES {
        assert_eq!(received(bytes, size), whole, "in pieces of {size} bytes");
    }
    lines(bytes);
    let Ok((status, body)) = whole else { return };
    assert!(body.len() <= MOST);
    for status in [status, 200] {
        let reply = http::Reply { status, body: body.clone(), server: String::new() };
        if let Ok(reply) = gateway::read(&reply) {
            reply.kvs.iter().for_each(value);
        }
    }
}

/// What is stored under a key may have been edited by hand.
fn value(kv: &KeyValue) {
    let text = decode(&kv.value).unwrap_or_default();
    let value = Value::of_json(&Key::Meta, &text);
    assert_eq!(Value::of_json(&Key::Meta, value.to_json().as_bytes()), value);
}

/// The messages of a stream.
fn lines(bytes: &[u8]) {
    let mut incoming = Incoming::new(bytes);
    let Ok(_) = incoming.head() else { return };
    while let Ok(Some(line)) = incoming.line() {
        if let Ok(Message { error: Some(problem), .. }) = serde_json::from_slice(&line) {
            let _ = problem.meaning(); // any will do
        }
    }
}

/// The response when it arrives in pieces of this size and then ends, or why it is none.
fn received(bytes: &[u8], size: usize) -> Result<(u16, Vec<u8>), String> {
    let mut incoming = Incoming::new(Pieces(bytes, size));
    let read = incoming.head().and_then(|status| Ok((status, incoming.body(MOST)?)));
    read.map_err(|error| error.to_string())
}
