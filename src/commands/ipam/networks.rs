//! The networks with leases: those of the configurations, and those of the stores alone.

use std::path::PathBuf;

use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::{Holdings, LeaseStore};
use crate::plugin::{Context, Entry};
use crate::runtime::cache::Cache;
use crate::runtime::list::{NetworkList, PluginConfig};
use crate::runtime::{derive, directory};

/// Where networks, records and plugins are.
pub struct Host<'a> {
    /// The directory of configurations.
    pub conf_dir: PathBuf,
    /// The records of attachments.
    pub cache: Cache,
    /// The plugins of this binary.
    pub plugins: &'static [Entry],
    /// The process's variables.
    pub env: &'a Environment,
    /// The directories of plugins.
    pub plugin_dirs: Vec<PathBuf>,
}

/// A network whose addresses a plugin of ours allocates.
pub struct Leased {
    /// Its name.
    pub network: NetworkName,
    /// The name of the IPAM plugin.
    pub ipam: &'static str,
    /// The plugin's leases.
    pub store: &'static dyn LeaseStore,
    /// The configuration; only name and type for a network without one.
    config: Config,
}

impl Leased {
    /// The context for a call of the store.
    pub fn context<'c>(&'c self, host: &'c Host<'_>) -> Context<'c> {
        Context::new(host.plugins, &self.config, host.env, "", vec![])
    }

    /// The leases, sorted by address.
    pub fn holdings(&self, host: &Host<'_>) -> Result<Holdings> {
        let mut holdings = self.store.holdings(&self.context(host))?;
        holdings.held.sort_by_key(|held| held.address);
        Ok(holdings)
    }
}

impl Host<'_> {
    /// The networks with leases, sorted by name; those of one name if one is given, and then at
    /// least one. A configuration that cannot be read is left out: `validate` reports it.
    pub fn leased(&self, wanted: Option<&NetworkName>) -> Result<Vec<Leased>> {
        let mut all = self.configured()?;
        let stores = self.plugins.iter().filter_map(|entry| Some((entry, entry.leases?)));
        for (entry, store) in stores.filter(|(_, store)| store.shares_place_of().is_none()) {
            // A store that cannot be read shows in the networks that are configured.
            let mut names = store.networks().unwrap_or_default();
            // A plugin of the network may keep its leases in this store.
            names.retain(|name| {
                !all.iter().any(|known| {
                    known.network == *name && known.store.shares_place_of() == Some(entry.name)
                })
            });
            names.into_iter().for_each(|name| add(&mut all, forgotten(name, entry, store)));
        }
        all.sort_by(|a, b| (a.network.as_str(), a.ipam).cmp(&(b.network.as_str(), b.ipam)));
        let Some(wanted) = wanted else { return Ok(all) };
        let (found, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|leased| leased.network == *wanted);
        if !found.is_empty() {
            return Ok(found);
        }
        let msg = format!("network {:?} has no leases here", wanted.as_str());
        let mut names: Vec<&str> = others.iter().map(|leased| leased.network.as_str()).collect();
        names.dedup();
        let error = Error::new(Code::INVALID_CONFIG, msg);
        Err(if names.is_empty() {
            error.with_details("no network has any")
        } else {
            error.with_details(format_args!("networks with leases: {}", names.join(", ")))
        })
    }

    /// The networks of the configurations.
    fn configured(&self) -> Result<Vec<Leased>> {
        let mut all = vec![];
        for file in directory::files(&self.conf_dir)? {
            let Ok(list) = directory::load(&file) else { continue };
            let list = list.with_own_names(self.plugins, &self.plugin_dirs);
            for plugin in &list.plugins {
                add(&mut all, self.leased_by(&list, plugin));
            }
        }
        Ok(all)
    }

    /// The network, if this plugin of its list calls an IPAM plugin with leases.
    fn leased_by(&self, list: &NetworkList, plugin: &PluginConfig) -> Option<Leased> {
        let config = Config::parse(derive::for_status(list, plugin)).ok()?;
        let ipam = config.ipam_type().ok()?;
        let entry = self.plugins.iter().find(|entry| entry.name == ipam)?;
        let network = config.name.clone();
        Some(Leased { network, ipam: entry.name, store: entry.leases?, config })
    }
}

/// Adds a network, unless an earlier file has it: the first one is the one that runtimes find.
fn add(all: &mut Vec<Leased>, leased: Option<Leased>) {
    let is_new = |new: &Leased| {
        !all.iter().any(|known| (&known.network, known.ipam) == (&new.network, new.ipam))
    };
    all.extend(leased.filter(is_new));
}

/// A network that only the store knows.
fn forgotten(
    network: NetworkName,
    entry: &'static Entry,
    store: &'static dyn LeaseStore,
) -> Option<Leased> {
    let ipam = Value::object([("type", Value::text(entry.name))]);
    let config = Value::object([("name", Value::text(network.as_str())), ("ipam", ipam)]);
    let config = Config::parse(config.to_text().into_bytes()).ok()?;
    Some(Leased { network, ipam: entry.name, store, config })
}
