//! The Result of the CNI spec: what an ADD prints, and what later calls get back as `prevResult`.
//!
//! There are three shapes, called families here, and the `cniVersion` of a document selects one:
//! [`v02`], [`v04`] and [`v1`]. Plugins work with [`AddResult`], the 1.x shape without a version. A
//! [`Document`] is a result in the family it was written in: it is parsed, converted and printed.
//!
//! Any two versions convert, a step at a time: `0.2 <-> 0.4 <-> 1.x`. Going up adds nothing; going
//! down loses what the older family has no keys for, and fails when 0.2 would have no address at
//! all.
//!
//! Specification 1.1.0, section 5, "ADD Success".

pub mod lists;
pub mod v02;
pub mod v04;
pub mod v1;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::v1::{Interface, IpConfig};
use crate::cni::addr;
use crate::cni::json::{Value, indented_text, text};

/// The version of a document without `cniVersion`.
const OLDEST: &str = "0.1.0";
/// The version of an [`AddResult`], which has room for every field.
const NEWEST: &str = "1.1.0";
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

/// A route, in results of every family and in the configurations of plugins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The destination. It is the one required field: a default here would be the default route.
    #[serde(with = "addr::cidr")]
    pub dst: IpNet,
    /// The next hop; without one the plugin chooses it, usually the gateway of the address.
    #[serde(default, with = "addr::ip", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The MTU along the route, 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: i64,
    /// The TCP segment size to advertise, 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub advmss: i64,
    /// The metric, 0 if absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// The routing table; 0 is a table (`unspec`), not an absent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<i64>,
    /// The scope; 0 is a scope (`global`), not an absent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<i64>,
}

impl Route {
    /// A route with only a destination.
    pub fn to(dst: IpNet) -> Self {
        Route { dst, gw: None, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// For a number that is omitted if it is 0.
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Resolver settings, in results of every family and in the configurations of plugins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Dns {
    /// Addresses of name servers, the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to search, the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options as in `resolv.conf`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_empty()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

/// The three shapes of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 0.1.0, 0.2.0 and no version: [`v02::Result`].
    V02,
    /// 0.3.0, 0.3.1 and 0.4.0: [`v04::Result`].
    V04,
    /// 1.0.0 and 1.1.0: [`v1::Result`].
    V1,
}

impl Family {
    const ALL: [Family; 3] = [Family::V02, Family::V04, Family::V1];

    /// The family of a version, by exact text: `0.4` has none.
    pub fn of(version: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.versions().contains(&version))
    }

    /// The versions of this family, oldest first.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Family::V02 => &["", OLDEST, "0.2.0"],
            Family::V04 => &["0.3.0", "0.3.1", "0.4.0"],
            Family::V1 => &["1.0.0", NEWEST],
        }
    }

    /// The version of a result without a label: the newest of its family.
    fn newest(self) -> &'static str {
        match self {
            Family::V02 => "0.2.0",
            Family::V04 => "0.4.0",
            Family::V1 => NEWEST,
        }
    }
}

/// The family of a version, or the error of a runtime or plugin for a document of an unknown
/// version.
pub fn family_of(version: &str) -> Result<Family, ResultError> {
    Family::of(version).ok_or_else(|| ResultError::UnsupportedVersion(version.to_owned()))
}

/// A JSON value results can be read from.
///
/// The decoder implements Go's leniency: keys match without case, the last duplicate wins, a null
/// field is an absent one. Its error is shown unchanged.
pub trait Source {
    /// Decodes the whole value.
    fn decode<T: DeserializeOwned>(&self) -> Result<T, String>;
}

/// A result in the family it was written in.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// Of 0.1.0 or 0.2.0.
    V02(v02::Result),
    /// Of 0.3.0, 0.3.1 or 0.4.0.
    V04(v04::Result),
    /// Of 1.0.0 or 1.1.0.
    V1(v1::Result),
}

/// The part of a document that shows its family.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    cni_version: Option<String>,
}

impl Document {
    /// Reads what a plugin printed: in the family of its own version, or of `assumed_version` if it
    /// has none.
    pub fn parse(source: &impl Source, assumed_version: &str) -> Result<Document, ResultError> {
        let own = own_version(source)?.unwrap_or_default();
        let version = if own.is_empty() { assumed_version } else { &own };
        Document::decode(source, family_of(version)?, version)
    }

    /// Reads a `prevResult`, which must be of the family of the configuration it came in.
    ///
    /// The versions may differ within the family. An explicit `""` is a version here, and belongs
    /// to 0.2 only.
    pub fn parse_as_family_of(
        source: &impl Source,
        config_version: &str,
    ) -> Result<Document, ResultError> {
        parse_in_family(source, config_version)
            .map_err(|err| ResultError::PrevResult(Box::new(err)))
    }

    /// Decodes as `family` and labels with `version`.
    fn decode(
        source: &impl Source,
        family: Family,
        version: &str,
    ) -> Result<Document, ResultError> {
        let document = match family {
            Family::V02 => source.decode().map(Document::V02),
            Family::V04 => source.decode().map(Document::V04),
            Family::V1 => source.decode().map(Document::V1),
        };
        Ok(document.map_err(ResultError::Decode)?.labelled(version))
    }

    /// The same result as a document of `version`; no version means 0.1.0. A document of the same
    /// version is returned unchanged.
    pub fn convert(self, version: &str) -> Result<Document, ResultError> {
        let version = or_oldest(version);
        let converted = match self.family_to_convert_to(version)? {
            Family::V02 => Document::V02(self.into_v02()?),
            Family::V04 => Document::V04(self.into_v04()),
            Family::V1 => Document::V1(self.into_v1()),
        };
        Ok(converted.labelled(version))
    }

    /// The result in the shape plugins work with.
    pub fn into_add_result(self) -> Result<AddResult, ResultError> {
        self.family_to_convert_to(NEWEST)?;
        Ok(self.into_v1().into())
    }

    /// The version it is labelled with; the newest of its family if it has no label.
    pub fn cni_version(&self) -> &str {
        let (label, family) = match self {
            Document::V02(result) => (&result.cni_version, Family::V02),
            Document::V04(result) => (&result.cni_version, Family::V04),
            Document::V1(result) => (&result.cni_version, Family::V1),
        };
        if label.is_empty() { family.newest() } else { label }
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
    fn family_to_convert_to(&self, version: &str) -> Result<Family, ResultError> {
        let from = self.cni_version();
        match (Family::of(from), Family::of(version)) {
            (Some(_), Some(family)) => Ok(family),
            _ => Err(ResultError::NoConverter { from: from.to_owned(), to: version.to_owned() }),
        }
    }

    fn into_v02(self) -> Result<v02::Result, ResultError> {
        match self {
            Document::V02(result) => Ok(result),
            Document::V04(_) | Document::V1(_) => v02::Result::from_v04(self.into_v04()),
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

/// The version, or 0.1.0 for none.
fn or_oldest(version: &str) -> &str {
    if version.is_empty() { OLDEST } else { version }
}

/// The version in a source; none if the key is absent or null.
fn own_version(source: &impl Source) -> Result<Option<String>, ResultError> {
    source.decode::<Head>().map(|head| head.cni_version).map_err(ResultError::Decode)
}

fn parse_in_family(source: &impl Source, config_version: &str) -> Result<Document, ResultError> {
    let family = family_of(config_version)?;
    let found = own_version(source)?.unwrap_or_else(|| config_version.to_owned());
    if Family::of(&found) != Some(family) {
        return Err(ResultError::ForeignVersion { family, found });
    }
    Document::decode(source, family, &found)
}

/// Why a result cannot be read or converted, in the words of the reference.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultError {
    /// The version does not exist.
    UnsupportedVersion(String),
    /// The document is of another family than required.
    ForeignVersion {
        /// The family asked for.
        family: Family,
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
            Self::ForeignVersion { family, found } => {
                let supported = family.versions().join(" ");
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
