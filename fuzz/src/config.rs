//! Any bytes as the configuration of every plugin: it is decoded and valid, or the error gives a
//! reason; a second run has the same outcome.

use cni_multi::cni::conf::Config;
use cni_multi::cni::env::Environment;
use cni_multi::error::{Code, Error};
use cni_multi::plugin::Context;
use cni_multi::registry::PLUGINS;

/// The codes of errors that may reject a configuration. A decoder with another error has done more
/// than decode.
const CODES: [Code; 4] = [Code::DECODE, Code::INVALID_CONFIG, Code::INVALID_ENVIRONMENT, Code::INCOMPATIBLE_VERSION];

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let config = match Config::parse(bytes.to_vec()) {
        Ok(config) => config,
        Err(error) => return require_reason(&error, "the configuration"),
    };
    if !crate::has_fraction(&config.value) {
        let again = Config::parse(config.value.to_text().into_bytes());
        assert_eq!(again.map(|again| again.value), Ok(config.value.clone()));
    }
    let common = [config.ipam_type().map(drop), config.prev_result().map(drop), config.valid_attachments().map(drop)];
    common.iter().filter_map(|read| read.as_ref().err()).for_each(|error| require_reason(error, "common keys"));
    let env = Environment::default();
    for entry in PLUGINS {
        let cx = Context::new(PLUGINS, &config, &env, "", vec![]);
        let valid = entry.validate(&cx);
        assert_eq!(valid, entry.validate(&cx), "{}", entry.name);
        if let Err(error) = valid {
            require_reason(&error, entry.name);
        }
    }
}

fn require_reason(error: &Error, of: &str) {
    assert!(CODES.contains(&error.code) && !error.msg.is_empty(), "{of}: {error:?}");
}
