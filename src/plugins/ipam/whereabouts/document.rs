//! The keys of whereabouts, as written.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cni::result::{Dns, Route};
use crate::steps::assigned::Address;

/// The keys of `ipam` without effect: they concern the Kubernetes API, the daemons and the log of
/// the original, or an etcd that only our daemon connects to.
pub const NO_EFFECT: &[&str] = &[
    "datastore",
    "kubernetes",
    "log_file",
    "log_level",
    "leader_lease_duration",
    "leader_renew_deadline",
    "leader_retry_period",
    "reconciler_cron_expression",
    "sleep_for_race",
    "exclude_gateway",
    "optimistic_ipam",
    "etcd_host",
    "etcd_username",
    "etcd_password",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
];

/// The keys that are decoded.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Document {
    /// None if it is missing.
    pub ipam: Option<Ipam>,
}

/// The members of `ipam` with an effect.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Ipam {
    /// A range: `A/len`, or `A-B/len`. It comes before `ipRanges`.
    pub range: String,
    /// The first address of `range`.
    pub range_start: String,
    /// The last address of `range`.
    pub range_end: String,
    /// Addresses and subnets of `range` that are never allocated.
    pub exclude: Vec<String>,
    /// Ranges; one address is taken from each.
    #[serde(rename = "ipRanges")]
    pub ip_ranges: Vec<RangeDocument>,
    /// The gateway of all ranges of its family.
    pub gateway: String,
    /// Routes for the result.
    pub routes: Vec<Route>,
    /// Resolver settings for the result.
    pub dns: Dns,
    /// Addresses for the result beside the allocated ones.
    pub addresses: Vec<Address>,
    /// The name of the address plan.
    pub network_name: String,
    /// The size of blocks: `/24` or `24`.
    pub node_slice_size: String,
    /// Whether addresses exclude each other across ranges; unset counts as true.
    pub enable_overlapping_ranges: Option<bool>,
    /// Whether the first and the last address of a subnet are allocated; only false is possible.
    pub enable_l3: bool,
    /// The parent of the networks' directories, as cluster-local reads it for each operation.
    #[serde(rename = "dataDir")]
    pub data_dir: String,
    /// The endpoints of an etcd, which are the daemon's to know.
    pub etcd_host: String,
}

/// A range as configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeDocument {
    /// `A/len`, or `A-B/len`.
    pub range: String,
    /// The first address.
    pub range_start: String,
    /// The last address.
    pub range_end: String,
    /// Addresses and subnets that are never allocated.
    pub exclude: Vec<String>,
    /// See [`Ipam::enable_l3`].
    pub enable_l3: bool,
}

/// The keys that are decoded for their types alone.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Rest {
    ipam: Option<Unread>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Unread {
    datastore: IgnoredAny,
    kubernetes: Kubernetes,
    log_file: IgnoredAny,
    log_level: IgnoredAny,
    leader_lease_duration: IgnoredAny,
    leader_renew_deadline: IgnoredAny,
    leader_retry_period: IgnoredAny,
    reconciler_cron_expression: IgnoredAny,
    sleep_for_race: IgnoredAny,
    exclude_gateway: IgnoredAny,
    optimistic_ipam: IgnoredAny,
    etcd_username: IgnoredAny,
    etcd_password: IgnoredAny,
    etcd_key_file: IgnoredAny,
    etcd_cert_file: IgnoredAny,
    etcd_ca_cert_file: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kubernetes {
    kubeconfig: IgnoredAny,
    k8s_api_root: IgnoredAny,
}

impl Ipam {
    /// The ranges as written, each with its path: `range`, then `ipRanges`.
    pub fn ranges(&self) -> Vec<(String, RangeDocument)> {
        let single = RangeDocument {
            range: self.range.clone(),
            range_start: self.range_start.clone(),
            range_end: self.range_end.clone(),
            exclude: self.exclude.clone(),
            enable_l3: self.enable_l3,
        };
        let single = (!self.range.is_empty()).then(|| ("ipam".to_owned(), single));
        let listed = self.ip_ranges.iter().enumerate();
        let listed = listed.map(|(i, range)| (format!("ipam.ipRanges[{i}]"), range.clone()));
        single.into_iter().chain(listed).collect()
    }
}
