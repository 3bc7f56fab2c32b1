//! `cluster-local` allocates addresses of ranges that several hosts share.
//!
//! A node borrows blocks of addresses from the cluster's store and allocates from them with local
//! files alone. [`block`] and [`pool`] say what can be borrowed, [`held`] is the file with what a
//! node has borrowed, and [`confirmed`] says whether plugins may use it. The rest is the daemon's:
//! `machine` decides what is asked of the [`store`], and `daemon` joins them.

/// Implements `Serialize` by `Display` and `Deserialize` by `FromStr`.
macro_rules! serde_by_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(from)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

mod add;
mod announced;
pub mod block;
pub mod client;
pub mod conf;
pub mod confirmed;
#[cfg(feature = "cluster")]
mod daemon;
pub mod held;
pub mod leases;
#[cfg(feature = "cluster")]
pub mod machine;
mod machine_scope;
pub mod name;
pub mod node;
#[cfg(feature = "cluster")]
mod operator;
mod plugin;
pub mod pool;
mod realm_names;
#[cfg(all(test, feature = "cluster"))]
#[allow(clippy::unwrap_used)]
mod simulation;
mod sticky;
pub mod store;
pub mod wire;

pub use self::plugin::ClusterLocal;
