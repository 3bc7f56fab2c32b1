//! The leases for operators.

use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR};
use super::import;
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore, Preview};
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::Lease;
use crate::steps::allocation::files::operator::{self, Target};

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

impl LeaseImporter for Leases {
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<Preview> {
        let conf = (self.conf)(cx)?;
        let missing = operator::preview(&conf::place(cx), &conf.sets, leases)?;
        Ok(Preview { missing, notes: import::preview(cx, &conf, leases)? })
    }

    fn prepare(&self, cx: &Context<'_>, incoming: &Incoming<'_>) -> Result<()> {
        let conf = (self.conf)(cx)?;
        operator::preview(&conf::place(cx), &conf.sets, incoming.leases)?; // fails before the first claim
        import::claim(cx, &conf, incoming)
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let conf = (self.conf)(cx)?;
        let place = conf::place(cx);
        let require = |leases: &[Lease]| import::require_held(&place, leases);
        let target = Target { place: &place, sets: &conf.sets, require: &require };
        operator::import(&target, incoming, then)
    }
}

/// The configuration, as ADD has it.
pub fn conf(cx: &Context<'_>) -> Result<Conf> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(conf)
}
