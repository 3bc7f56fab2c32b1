//! The keys of whereabouts, as written.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cni::result::{Dns, Route};
use crate::steps::assigned::{self, Address};
use crate::steps::dns::DnsConf;

/// See [`PluginConf::KEYS`](crate::plugin::PluginConf::KEYS).
pub const KEYS: &[&str] = &[
    "ipam.range | string | required, or `ipam.ipRanges` | A subnet, or `A-B/length` for the addresses from A to B of a subnet. Host bits of the subnet are ignored; it has at least four addresses.
    ipam.range_start | address | the one after the subnet's own | The first address of `range`. Ignored unless it is a usable address of the subnet.
    ipam.range_end | address | the one before the subnet's last | The last address of `range`. Ignored unless it is a usable address of the subnet, and not before the first.
    ipam.exclude | list of strings | none | Addresses and subnets of `range` that are never allocated.
    ipam.ipRanges | list | none | Further ranges. Each gives an address; no two ranges overlap.
    ipam.ipRanges[].range | string | required | As `ipam.range`.
    ipam.ipRanges[].range_start | address | as above | As `ipam.range_start`.
    ipam.ipRanges[].range_end | address | as above | As `ipam.range_end`.
    ipam.ipRanges[].exclude | list of strings | none | As `ipam.exclude`, of this range.
    ipam.ipRanges[].enable_l3 | boolean | false | As `ipam.enable_l3`.
    ipam.gateway | address | none | The gateway of the allocated addresses of its family. It may be outside the subnet; it is never allocated.",
    Route::KEYS,
    DnsConf::KEYS_OF_IPAM,
    "ipam.addresses | list | none | Addresses for the result beside the allocated ones. The plugin never allocates them.",
    assigned::KEYS,
    "ipam.network_name | string | `default` | The [realm](cluster-local.md#configuration): addresses exclude each other within one. In lower case, and with `-` for any other character than letters, digits, `.` and `-`.
    ipam.enable_overlapping_ranges | boolean | true | Whether addresses exclude each other across ranges. With false each range has a realm, which is named after it. With scope `cluster` all ranges of a network make one realm: then only networks with the same ranges exclude each other.
    ipam.scope | string | `cluster` | As of [cluster-local](cluster-local.md#configuration); the original has no such key.
    ipam.node_slice_size | string | as `blockSize` `auto` | The size of blocks, as in `/29` or `29`: the next smaller one of 64, 8 and 1 addresses. No effect with scope `machine`.
    ipam.configuration_path | path | none | A flat file, by its absolute path.
    ipam.enable_l3 | boolean | false | Only false is possible: the first and the last address of a subnet are not allocated.
    ipam.dataDir | path | `/var/lib/cni/cluster-local` | As of [cluster-local](cluster-local.md#configuration); the original has no such key.
    ipam.etcd_host | any | none | No effect: `etcd.endpoints` in `ipam.json`.
    ipam.etcd_username | any | none | No effect: `etcd.user` in `ipam.json`.
    ipam.etcd_password | any | none | No effect: `etcd.passwordFile` in `ipam.json`.
    ipam.etcd_key_file | any | none | No effect: `etcd.key` in `ipam.json`.
    ipam.etcd_cert_file | any | none | No effect: `etcd.cert` in `ipam.json`.
    ipam.etcd_ca_cert_file | any | none | No effect: `etcd.ca` in `ipam.json`.
    ipam.datastore | any | none | No effect: leases are in files, claims in the store of the IPAM daemon.
    ipam.kubernetes | object | none | No effect: the plugin uses no Kubernetes API.
    ipam.kubernetes.kubeconfig | any | none | No effect.
    ipam.kubernetes.k8s_api_root | any | none | No effect.
    ipam.leader_lease_duration | any | none | No effect: there is no leader.
    ipam.leader_renew_deadline | any | none | No effect: there is no leader.
    ipam.leader_retry_period | any | none | No effect: there is no leader.
    ipam.optimistic_ipam | any | none | No effect: there is no claim per address.
    ipam.reconciler_cron_expression | any | none | No effect: [GC](#del-and-gc) frees what is left over.
    ipam.sleep_for_race | any | none | No effect: locks decide races.
    ipam.exclude_gateway | any | none | No effect: the gateway is never allocated.
    ipam.log_file | any | none | No effect: errors go to the runtime.
    ipam.log_level | any | none | No effect: as `log_file`.
    CNI_ARGS: IP | string | none | A comma-separated list of further addresses, as in `addresses`. `IgnoreUnknown=1` allows unknown arguments.
    CNI_ARGS: GATEWAY | string | none | A comma-separated list of gateways. The plugin sets each one as the gateway of those addresses in `addresses` and `CNI_ARGS: IP` whose subnet contains this gateway; it takes the place of a configured gateway.",
];

/// The keys that are decoded; `KEYS` describes them.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Document {
    pub ipam: Option<Ipam>,
}

/// The members of `ipam` with an effect.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Ipam {
    #[serde(rename = "ipRanges")]
    pub ip_ranges: Vec<RangeDocument>,
    pub gateway: String,
    pub routes: Vec<Route>,
    pub dns: Dns,
    pub addresses: Vec<Address>,
    pub network_name: String,
    pub scope: String,
    pub node_slice_size: String,
    pub enable_overlapping_ranges: Option<bool>,
    /// The flat file, which is read before.
    pub configuration_path: String,
    // Cluster-local reads it for each operation.
    #[serde(rename = "dataDir")]
    pub data_dir: String,
    // What has no effect is decoded for the schema and for `validate`.
    kubernetes: Kubernetes,
    datastore: IgnoredAny,
    log_file: IgnoredAny,
    log_level: IgnoredAny,
    leader_lease_duration: IgnoredAny,
    leader_renew_deadline: IgnoredAny,
    leader_retry_period: IgnoredAny,
    reconciler_cron_expression: IgnoredAny,
    sleep_for_race: IgnoredAny,
    exclude_gateway: IgnoredAny,
    optimistic_ipam: IgnoredAny,
    etcd_host: IgnoredAny,
    etcd_username: IgnoredAny,
    etcd_password: IgnoredAny,
    etcd_key_file: IgnoredAny,
    etcd_cert_file: IgnoredAny,
    etcd_ca_cert_file: IgnoredAny,
}

/// A range as configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeDocument {
    pub range: String,
    pub range_start: String,
    pub range_end: String,
    pub exclude: Vec<String>,
    pub enable_l3: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kubernetes {
    kubeconfig: IgnoredAny,
    k8s_api_root: IgnoredAny,
}

/// The range beside `type`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Single {
    pub ipam: RangeDocument,
}
