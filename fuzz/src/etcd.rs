//! Any bytes as the response of a member of etcd: read at once or in pieces, it is the same response or
//! the same flaw, and nothing that the engine reads of it panics.

use cni_multi::plugins::ipam::cluster_local::etcd::reply::{
    LeaseReply, Message, RangeReply, TokenReply, TxnReply, WatchReply, decode,
};
use cni_multi::plugins::ipam::cluster_local::etcd::response::{Flaw, Limits, Response};
use cni_multi::plugins::ipam::cluster_local::etcd::verdict::Verdict;

const LIMITS: Limits = Limits { head: 4096, body: 32 * 1024 };

/// The sizes of the pieces in which a response arrives.
const PIECES: [usize; 3] = [1, 7, 1024];

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let whole = received(bytes, usize::MAX);
    for size in PIECES {
        let pieces = received(bytes, size);
        assert_eq!(text(&pieces), text(&whole), "in pieces of {size} bytes");
    }
    let Ok(response) = whole else { return };
    assert!(response.body().len() <= LIMITS.body);
    let Some(status) = response.status() else { return };
    let _ = Verdict::of(status, response.body());
    let _ = decode::<RangeReply>(response.body()); // the results do not matter, as below
    let _ = decode::<TxnReply>(response.body());
    let _ = decode::<LeaseReply>(response.body());
    let _ = decode::<Message<LeaseReply>>(response.body());
    let _ = decode::<TokenReply>(response.body());
    lines(response);
}

/// The messages of a stream.
fn lines(mut response: Response) {
    while let Some(line) = response.take_line() {
        let _ = decode::<Message<WatchReply>>(&line);
    }
}

/// The response when it arrives in pieces of this size and then ends.
fn received(bytes: &[u8], size: usize) -> Result<Response, Flaw> {
    let mut response = Response::new(LIMITS);
    for piece in bytes.chunks(size.min(bytes.len().max(1))) {
        if response.is_complete() {
            break; // the client reads no further
        }
        response.feed(piece)?;
    }
    let _ = response.end(); // a response that is cut is one as well
    Ok(response)
}

/// What has to be the same. Of a response that was refused it is not when that was noticed.
fn text(response: &Result<Response, Flaw>) -> Option<(Option<u16>, &[u8], bool)> {
    let response = response.as_ref().ok()?;
    Some((response.status(), response.body(), response.is_complete()))
}
