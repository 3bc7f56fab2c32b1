//! The leases for operators.

use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR};
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore, Preview};
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::files::operator::{self, Target};
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
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<Preview> {
        let missing = operator::preview(&conf::place(cx), &sets(cx)?, leases)?;
        Ok(Preview { missing, notes: vec![] })
    }

    /// Does nothing: host-local has no claims.
    fn prepare(&self, _: &Context<'_>, _: &Incoming<'_>) -> Result<()> {
        Ok(())
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let (place, sets) = (conf::place(cx), sets(cx)?);
        let target = Target { place: &place, sets: &sets, require: &|_| Ok(()) };
        operator::import(&target, incoming, then)
    }
}

/// The range sets of the configuration.
fn sets(cx: &Context<'_>) -> Result<Vec<RangeSet>> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(conf.sets)
}
