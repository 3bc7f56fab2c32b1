//! The leases for operators.

use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR};
use super::import;
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore};
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::files::operator;

/// The leases of the file store.
pub struct Leases;

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let sets = conf(cx).map(|conf| conf.sets).unwrap_or_default(); // leases are listed whatever the ranges are
        operator::holdings(&conf::place(cx), &sets)
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        Ok(operator::networks(Path::new(DEFAULT_DATA_DIR)))
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
        operator::preview(&conf::place(cx), &conf(cx)?.sets, leases)
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let conf = conf(cx)?;
        let place = conf::place(cx);
        import::claim(cx, &conf, incoming.leases)?;
        operator::import(&place, &conf.sets, incoming, then)
    }
}

/// The configuration, as ADD has it.
fn conf(cx: &Context<'_>) -> Result<Conf> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(conf)
}
