//! The answers of a plugin other than a result: the error object of a failure (specification,
//! section 5) and the versions that it supports.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::version;
use crate::error::Error;

/// The error object.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ErrorObject<'a> {
    /// The version of the configuration. It is ignored when read.
    #[serde(skip_deserializing)]
    cni_version: &'a str,
    /// The code; 0 if it is not given.
    pub code: u32,
    /// What went wrong.
    pub msg: Cow<'a, str>,
    /// More details.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub details: Cow<'a, str>,
}

impl<'a> ErrorObject<'a> {
    /// The object that reports the error.
    pub fn of(error: &'a Error, cni_version: &'a str) -> ErrorObject<'a> {
        ErrorObject {
            cni_version,
            code: error.code.0,
            msg: error.msg.as_str().into(),
            details: error.details().into(),
        }
    }
}

/// The answer to VERSION.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Versions {
    /// The version of the answer.
    pub cni_version: String,
    /// The versions that the plugin supports.
    pub supported_versions: Vec<String>,
}

impl Versions {
    /// The answer of a plugin that supports these versions.
    pub fn of(supported: &[&str]) -> Versions {
        Versions {
            cni_version: version::CURRENT.to_owned(),
            supported_versions: supported.iter().map(|version| (*version).to_owned()).collect(),
        }
    }
}
