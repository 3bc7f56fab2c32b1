//! The Result of the CNI spec: what an ADD prints, and what later calls get back as `prevResult`.
//!
//! There are three shapes, and the `cniVersion` of a document selects one:
//! [`v02`], [`v04`] and [`v1`]. Plugins work with [`AddResult`], the 1.x shape without a version. A
//! [`Document`] is a result in the shape it was written in: it is parsed, converted and printed.
//!
//! Any two versions convert, a step at a time: `0.2 <-> 0.4 <-> 1.x`. Going up adds nothing; going
//! down loses what the older shape has no keys for, and fails when 0.2 would have no address at
//! all.
//!
//! Specification 1.1.0, section 5, "ADD Success".

mod conversion;
mod fields;
pub mod v02;
pub mod v04;
pub mod v1;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::fields::{NEWEST, or_oldest};
use crate::cni::json::{Value, indented_text, text};

pub use self::conversion::ResultError;
pub use self::fields::{Dns, Lists, Route, Shape};
pub use self::v1::{Interface, IpConfig};

/// The indentation of results printed by Go plugins.
pub const INDENT: &str = "    ";

/// The result of an ADD in the shape plugins work with, that of 1.1.0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddResult {
    /// The interfaces of the attachment.
    pub interfaces: Vec<Interface>,
    /// The addresses of the attachment.
    pub ips: Vec<IpConfig>,
    /// The routes of the container.
    pub routes: Vec<Route>,
    /// What the container's resolver should use.
    pub dns: Dns,
}

impl AddResult {
    /// The document a configuration of this `version` asks for; no version means 0.1.0.
    pub fn into_document(self, version: &str) -> Result<Document, ResultError> {
        let AddResult { interfaces, ips, routes, dns } = self;
        Document::V1(v1::Result { cni_version: NEWEST.to_owned(), interfaces, ips, routes, dns })
            .convert(version)
    }
}

impl From<v1::Result> for AddResult {
    fn from(result: v1::Result) -> Self {
        AddResult {
            interfaces: result.interfaces,
            ips: result.ips,
            routes: result.routes,
            dns: result.dns,
        }
    }
}

/// The shape of a version, or the error of a runtime or plugin for a document of an unknown
/// version.
pub fn shape_of(version: &str) -> Result<Shape, ResultError> {
    Shape::of(version).ok_or_else(|| ResultError::UnsupportedVersion(version.to_owned()))
}

/// A JSON value results can be read from.
///
/// The decoder implements Go's leniency: keys match without case, the last duplicate wins, a null
/// field is an absent one. Its error is shown unchanged.
pub trait Source {
    /// Decodes the whole value.
    fn decode<T: DeserializeOwned>(&self) -> Result<T, String>;
}

/// A result in the shape it was written in.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// Of 0.1.0 or 0.2.0.
    V02(v02::Result),
    /// Of 0.3.0, 0.3.1 or 0.4.0.
    V04(v04::Result),
    /// Of 1.0.0 or 1.1.0.
    V1(v1::Result),
}

/// The part of a document that shows its shape.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    cni_version: Option<String>,
}

impl Document {
    /// Reads what a plugin printed: in the shape of its own version, or of `assumed_version` if it
    /// has none.
    pub fn parse(source: &impl Source, assumed_version: &str) -> Result<Document, ResultError> {
        let own = own_version(source)?.unwrap_or_default();
        let version = if own.is_empty() { assumed_version } else { &own };
        Document::decode(source, shape_of(version)?, version)
    }

    /// Reads a `prevResult`, which must be of the shape of the configuration it came in.
    ///
    /// The versions may differ within the shape. An explicit `""` is a version here, and belongs
    /// to 0.2 only.
    pub fn parse_as_shape_of(
        source: &impl Source,
        config_version: &str,
    ) -> Result<Document, ResultError> {
        let parse = || {
            let shape = shape_of(config_version)?;
            let found = own_version(source)?.unwrap_or_else(|| config_version.to_owned());
            if Shape::of(&found) != Some(shape) {
                return Err(ResultError::ForeignVersion { shape, found });
            }
            Document::decode(source, shape, &found)
        };
        parse().map_err(|err| ResultError::PrevResult(Box::new(err)))
    }

    /// Decodes as `shape` and labels with `version`.
    fn decode(source: &impl Source, shape: Shape, version: &str) -> Result<Document, ResultError> {
        let document = match shape {
            Shape::V02 => source.decode().map(Document::V02),
            Shape::V04 => source.decode().map(Document::V04),
            Shape::V1 => source.decode().map(Document::V1),
        };
        Ok(document.map_err(ResultError::Decode)?.labelled(version))
    }

    /// The resolver settings.
    pub fn dns(&self) -> &Dns {
        match self {
            Document::V02(result) => &result.dns,
            Document::V04(result) => &result.dns,
            Document::V1(result) => &result.dns,
        }
    }

    /// The same result as a document of `version`; no version means 0.1.0. A document of the same
    /// version is returned unchanged.
    pub fn convert(self, version: &str) -> Result<Document, ResultError> {
        let version = or_oldest(version);
        let converted = match self.shape_to_convert_to(version)? {
            Shape::V02 => match self {
                Document::V02(_) => self,
                Document::V04(_) | Document::V1(_) => {
                    Document::V02(v02::Result::from_v04(self.into_v04())?)
                }
            },
            Shape::V04 => Document::V04(self.into_v04()),
            Shape::V1 => Document::V1(self.into_v1()),
        };
        Ok(converted.labelled(version))
    }

    /// The result in the shape plugins work with.
    pub fn into_add_result(self) -> Result<AddResult, ResultError> {
        self.shape_to_convert_to(NEWEST)?;
        Ok(self.into_v1().into())
    }

    /// The version it is labelled with; the newest of its shape if it has no label.
    pub fn cni_version(&self) -> &str {
        let (label, shape) = match self {
            Document::V02(result) => (&result.cni_version, Shape::V02),
            Document::V04(result) => (&result.cni_version, Shape::V04),
            Document::V1(result) => (&result.cni_version, Shape::V1),
        };
        if label.is_empty() { shape.newest() } else { label }
    }

    /// The JSON tree in the document's own shape.
    pub fn to_value(&self) -> Value {
        match self {
            Document::V02(result) => Value::of(result),
            Document::V04(result) => Value::of(result),
            Document::V1(result) => result.to_value(),
        }
    }

    /// What a plugin prints: indented, without a newline at the end.
    pub fn to_text(&self) -> String {
        indented_text(&self.to_value(), INDENT)
    }

    /// The same on one line.
    pub fn to_compact_text(&self) -> String {
        text(&self.to_value())
    }

    /// Checks that both versions exist, as the reference does before it converts.
    fn shape_to_convert_to(&self, version: &str) -> Result<Shape, ResultError> {
        let from = self.cni_version();
        match (Shape::of(from), Shape::of(version)) {
            (Some(_), Some(shape)) => Ok(shape),
            _ => Err(ResultError::NoConverter { from: from.to_owned(), to: version.to_owned() }),
        }
    }

    fn into_v04(self) -> v04::Result {
        match self {
            Document::V02(result) => v04::Result::from_v02(result),
            Document::V04(result) => result,
            Document::V1(result) => result.convert(),
        }
    }

    fn into_v1(self) -> v1::Result {
        match self {
            Document::V02(_) | Document::V04(_) => self.into_v04().convert(),
            Document::V1(result) => result,
        }
    }

    fn labelled(mut self, version: &str) -> Self {
        let label = match &mut self {
            Document::V02(result) => &mut result.cni_version,
            Document::V04(result) => &mut result.cni_version,
            Document::V1(result) => &mut result.cni_version,
        };
        or_oldest(version).clone_into(label);
        self
    }
}

/// The version in a source; none if the key is absent or null.
fn own_version(source: &impl Source) -> Result<Option<String>, ResultError> {
    source.decode::<Head>().map(|head| head.cni_version).map_err(ResultError::Decode)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
