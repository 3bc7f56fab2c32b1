//! The engine on etcd: its JSON gateway over HTTP/1.1, with TLS, in one thread that never waits.
//!
//! # The walk of one claim
//!
//! The daemon hands [`Operation::Claim`](super::engine::Operation::Claim) to
//! [`client::Client::submit`]. A [`job`] makes the requests of it, here one: [`write`] names what has
//! to be true (no key of a block that overlaps, by the ranges of [`keys`]; the node's record and the
//! epoch as they were) and what is written, and [`request`] puts that in the gateway's words.
//! [`transport`] sends it to the member that served last, by a [`connection`] that is kept open and
//! speaks [`tls`], or to the next member as long as no byte has left. The daemon's poll(2) tells
//! when the descriptor is ready; [`response`] takes the reply as it arrives, within limits, and
//! [`verdict`] says what it means: done, refused, to be tried elsewhere, or unknown. The job reads
//! a [`reply`] that is done, and [`client::Client::next_event`] yields the outcome.
//!
//! A write of which a byte has left is never repeated: if its reply does not come or may follow an
//! execution, its outcome is unknown, and the state machine reads. Reads are linearizable and go on
//! to the next member. After a pass over all members in vain there is a [`backoff`]. A [`watch`] has
//! a connection of its own; its changes are hints.

pub mod backoff;
pub mod blocking;
pub mod client;
pub mod connection;
pub mod encoding;
pub mod endpoint;
pub mod event;
pub mod found;
pub mod job;
pub mod keys;
pub mod login;
pub mod pages;
pub mod reply;
pub mod request;
pub mod response;
pub mod settings;
pub mod tls;
pub mod transport;
pub mod verdict;
pub mod watch;
pub mod write;
