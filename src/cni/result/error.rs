//! Why a result cannot be read or converted, in the words of the reference.

use std::fmt;

use super::fields::Shape;

/// Why a result cannot be read or converted, in the words of the reference.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultError {
    /// The version does not exist.
    UnsupportedVersion(String),
    /// The document is of another shape than required.
    ForeignVersion {
        /// The shape asked for.
        shape: Shape,
        /// The version found.
        found: String,
    },
    /// One of the two versions does not exist.
    NoConverter {
        /// The version of the document.
        from: String,
        /// The version asked for.
        to: String,
    },
    /// The result has no address, which 0.2.0 and older require.
    NoAddress,
    /// The document is not a result, in the words of the decoder.
    Decode(String),
    /// The `prevResult` of a configuration cannot be read.
    PrevResult(Box<ResultError>),
}

impl fmt::Display for ResultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedVersion(version) => {
                write!(f, "unsupported CNI result version {version:?}")
            }
            Self::ForeignVersion { shape, found } => {
                let supported = shape.versions().join(" ");
                write!(
                    f,
                    "result type supports [{supported}] but unmarshalled CNIVersion is {found:?}"
                )
            }
            Self::NoConverter { from, to } => {
                write!(f, "no converter for CNI result version {from} to {to}")
            }
            Self::NoAddress => f.write_str("cannot convert: no valid IP addresses"),
            Self::Decode(message) => f.write_str(message),
            Self::PrevResult(err) => write!(f, "could not parse prevResult: {err}"),
        }
    }
}

impl std::error::Error for ResultError {}
