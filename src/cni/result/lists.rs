//! The result of CNI 0.3.0 and later: lists of interfaces, addresses and routes. The fields of
//! interfaces and addresses depend on the shape, [`super::v04`] or [`super::v1`].

use serde::{Deserialize, Serialize};

use super::fields::{Dns, Route};

/// A result whose addresses refer to its interfaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[serde(bound(deserialize = "I: Deserialize<'de>, A: Deserialize<'de>"))]
pub struct Result<I, A> {
    /// The version it is labelled with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cni_version: String,
    /// The interfaces of the attachment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<I>,
    /// The addresses of the attachment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<A>,
    /// The routes of the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// What the container's resolver should use.
    pub dns: Dns,
}

impl<I, A> Default for Result<I, A> {
    fn default() -> Self {
        Result {
            cni_version: String::new(),
            interfaces: vec![],
            ips: vec![],
            routes: vec![],
            dns: Dns::default(),
        }
    }
}

impl<I, A> Result<I, A> {
    /// Converts to the other shape, which has the same lists.
    pub(super) fn convert<J: From<I>, B: From<A>>(self) -> Result<J, B> {
        Result {
            cni_version: self.cni_version,
            interfaces: self.interfaces.into_iter().map(J::from).collect(),
            ips: self.ips.into_iter().map(B::from).collect(),
            routes: self.routes,
            dns: self.dns,
        }
    }
}
