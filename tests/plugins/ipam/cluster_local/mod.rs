//! Tests of cluster-local.

#[cfg(feature = "cluster")]
mod etcd;
#[cfg(feature = "cluster")]
mod etcd_access;
#[cfg(feature = "cluster")]
mod etcd_fake;
#[cfg(feature = "cluster")]
mod etcd_failures;
