//! The leases for operators.

use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR};
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore};
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::files::operator;
use crate::steps::allocation::ranges::RangeSet;

/// The leases of the file store.
pub struct Leases;

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let sets = sets(cx).unwrap_or_default(); // leases are listed whatever the ranges are
        operator::holdings(&conf::place(cx), &sets)
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        Ok(operator::networks(Path::new(DEFAULT_DATA_DIR)))
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        None
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        operator::free(&conf::place(cx), held)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        Some(self)
    }
}

impl LeaseImporter for Leases {
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<usize> {
        operator::preview(&conf::place(cx), &sets(cx)?, leases)
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        operator::import(&conf::place(cx), &sets(cx)?, incoming, then)
    }
}

/// The range sets of the configuration.
fn sets(cx: &Context<'_>) -> Result<Vec<RangeSet>> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(conf.sets)
}
