//! Tests of cluster-local.

#[cfg(feature = "cluster")]
mod etcd;
#[cfg(feature = "cluster")]
mod etcd_access;
#[cfg(feature = "cluster")]
mod etcd_failures;
#[cfg(feature = "cluster")]
mod etcd_fake;
