//! Any line as a request to the DHCP daemon and as its answer: a valid one is unchanged when
//! encoded and parsed again.

use std::path::Path;

use cni_multi::cni::json::Value;
use cni_multi::error::{Error, Result};
use cni_multi::plugins::ipam::dhcp::wire::{DAEMON, Request};
use cni_multi::service::wire::Words;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    if let Ok(request) = Request::read(bytes) {
        let line = DAEMON.request_line(&request);
        assert_eq!(Request::read(line.as_bytes()).as_ref(), Ok(&request));
    }
    let socket = Path::new("/run/cni/dhcp.sock");
    let read = |line: &[u8]| match DAEMON.read_answer::<Value>(line, socket) {
        Ok(Words::Answer(answer)) => Some(Ok(answer)),
        Ok(Words::Error(error)) => Some(Err(Error::from(error))),
        Ok(Words::Patience(_)) | Err(_) => None,
    };
    let Some(answer) = read(&[bytes, b"\n"].concat()) else { return };
    let line = DAEMON.answer_line(&answer);
    let Some(again) = read(line.as_bytes()) else { panic!("not read again: {line}") };
    let text = |answer: &Result<Value>| answer.as_ref().map(Value::to_text).map_err(ToString::to_string);
    assert_eq!(text(&again), text(&answer));
}
