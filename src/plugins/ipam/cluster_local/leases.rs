//! The leases for operators.

use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore};
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::files::operator;

/// The leases of the file store.
pub struct Leases {
    /// Reads the configuration as ADD does.
    pub conf: fn(&Context<'_>) -> Result<Conf>,
    /// The plugin that lists the networks of the directory; None for this one.
    pub of: Option<&'static str>,
}

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let sets = (self.conf)(cx).map(|conf| conf.sets).unwrap_or_default(); // leases are listed whatever the ranges are
        operator::holdings(&conf::place(cx), &sets)
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        Ok(operator::networks(Path::new(DEFAULT_DATA_DIR)))
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        self.of
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        operator::free(&conf::place(cx), held)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        Some(self)
    }
}

/// Leases of the cluster have claims in its store: the daemon makes them.
impl LeaseImporter for Leases {
    fn preview(&self, cx: &Context<'_>, _: &[Holding]) -> Result<usize> {
        Err(refused(cx))
    }

    fn import(
        &self,
        cx: &Context<'_>,
        _: &Incoming<'_>,
        _: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        Err(refused(cx))
    }
}

fn refused(cx: &Context<'_>) -> Error {
    let network = cx.config.name.as_str();
    let msg = format!("addresses of network {network:?} are claimed in the cluster's store");
    Error::new(Code::INVALID_CONFIG, msg).with_details(
        "import with scope machine, then run `cni-multi ipam join` before the daemon starts",
    )
}

/// The configuration, as ADD has it.
pub fn conf(cx: &Context<'_>) -> Result<Conf> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(conf)
}
