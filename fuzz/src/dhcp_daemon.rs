//! Any line as what the DHCP daemon is asked, and as what it answers: what is understood is written and read as the same.

use std::path::Path;

use cni_multi::cni::json::Value;
use cni_multi::plugins::ipam::dhcp::wire::{Request, Said, answer_line, read_answer};

/// See above.
pub fn run(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(Request::parse(request.to_text().as_bytes()).as_ref(), Ok(&request));
    }
    let socket = Path::new("/run/cni/dhcp.sock");
    let Ok(Said::Answer(answer)) = read_answer(&[bytes, b"\n"].concat(), socket) else { return };
    let line = answer_line(&answer);
    let Ok(Said::Answer(again)) = read_answer(line.as_bytes(), socket) else { panic!("not read again: {line}") };
    let text = |answer: &Result<Value, _>| answer.as_ref().map(Value::to_text).map_err(ToString::to_string);
    let text = |answer: &cni_multi::error::Result<Value>| text(answer);
    assert_eq!(text(&again), text(&answer));
}
