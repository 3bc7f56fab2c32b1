//! The leases for operators.

use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR, Scope};
use super::machine_scope;
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore};
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::files::operator;

/// The leases of the file store.
pub struct Leases {
    /// Reads the configuration as ADD does: one for each realm.
    pub confs: fn(&Context<'_>) -> Result<Vec<Conf>>,
    /// The plugin that lists the networks of the directory; None for this one.
    pub of: Option<&'static str>,
}

impl Leases {
    /// The configuration for an import. Leases of the cluster have claims in its store: the daemon makes
    /// them.
    fn importing(&self, cx: &Context<'_>) -> Result<Conf> {
        let mut confs = (self.confs)(cx)?;
        let (count, network) = (confs.len(), cx.config.name.as_str());
        let refused = |msg| Err(Error::new(Code::INVALID_CONFIG, msg));
        match confs.pop() {
            Some(conf) if conf.scope == Scope::Cluster => {
                let msg =
                    format!("addresses of network {network:?} are claimed in the cluster's store");
                refused(msg).map_err(|e| e.with_details(
                    "import with scope machine, then run `cni-multi ipam join` before the daemon starts",
                ))
            }
            Some(conf) if count == 1 => Ok(conf),
            _ => refused(format!(
                "the ranges of network {network:?} are in {count} realms, expected one for an import"
            )),
        }
    }
}

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let confs = (self.confs)(cx).unwrap_or_default(); // leases are listed whatever the ranges are
        let mut places: Vec<_> =
            confs.into_iter().map(|conf| (conf.place(cx), conf.sets)).collect();
        for place in conf::places(cx)? {
            if places.iter().all(|(configured, _)| configured.dir() != place.dir()) {
                places.push((place, vec![]));
            }
        }
        let mut all = Holdings::default();
        for (place, sets) in places {
            let Holdings { held, ranges } = operator::holdings(&place, &sets)?;
            all.held.extend(held);
            all.ranges.extend(ranges);
        }
        Ok(all)
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        let mut names = operator::networks(Path::new(DEFAULT_DATA_DIR));
        for name in machine_scope::networks()? {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        self.of
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        for place in conf::places(cx)? {
            if operator::free(&place, held)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        Some(self)
    }
}

impl LeaseImporter for Leases {
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<usize> {
        let conf = self.importing(cx)?;
        operator::preview(&conf.place(cx), &conf.sets, leases)
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let conf = self.importing(cx)?;
        operator::import(&conf.place(cx), &conf.sets, incoming, then)
    }
}

/// The configuration, as ADD has it.
pub fn confs(cx: &Context<'_>) -> Result<Vec<Conf>> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(vec![conf])
}
