//! Any bytes as the output of a foreign plugin: its result, its versions and its error.
//!
//! The input is its stdout, a line of three hyphens, and its stderr.

use std::path::Path;

use cni_multi::cni::delegate::{parse_error, parse_result, parse_versions};
use cni_multi::error::Code;
use cni_multi::runner::error_object;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let [stdout, stderr] = crate::parts(bytes);
    for version in ["", "0.4.0", "1.1.0", "9.9.9"] {
        match parse_result(stdout, version) {
            Ok(result) => assert!(parse_result(result.to_text().as_bytes(), version).is_ok(), "{}", result.to_text()),
            Err(error) => assert_eq!(error.code, Code::DECODE),
        }
    }
    if let Ok(versions) = parse_versions(stdout) {
        assert!(!versions.is_empty());
    }
    let error = parse_error(Path::new("/opt/cni/bin/other"), stdout, stderr, "exit status 1");
    assert!(error.code.0 != 0);
    let again = parse_error(Path::new("/"), error_object(&error, "1.0.0").as_bytes(), b"", "");
    assert_eq!((again.code, &again.msg, again.details()), (error.code, &error.msg, error.details()));
}
