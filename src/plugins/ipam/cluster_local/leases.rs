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
    /// The configuration for an import.
    fn importing(&self, cx: &Context<'_>) -> Result<Conf> {
        let mut confs = (self.confs)(cx)?;
        let count = confs.len();
        confs.pop().filter(|_| count == 1).ok_or_else(|| {
            let network = cx.config.name.as_str();
            let msg = format!(
                "the ranges of network {network:?} are in {count} realms, expected one for an import"
            );
            Error::new(Code::INVALID_CONFIG, msg)
        })
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
        let place = conf.place(cx);
        match conf.scope {
            Scope::Machine => operator::import(&place, &conf.sets, incoming, then),
            Scope::Cluster => into_cluster(cx, &conf, incoming, then),
        }
    }
}

/// Writes the leases, and claims of their addresses, which the daemon makes when it starts.
#[cfg(feature = "cluster")]
fn into_cluster(
    cx: &Context<'_>,
    conf: &Conf,
    incoming: &Incoming<'_>,
    then: &mut dyn FnMut() -> Result<()>,
) -> Result<usize> {
    use super::held::Blocks;
    use super::operator::{claim, without_daemon};

    let _no_daemon = without_daemon(&conf::directory(cx))?;
    let (place, terms) = (conf.place(cx), conf.terms.clone());
    let Some(realm) = terms.realm else {
        return Err(Error::new(Code::BUG, "a configuration that was not validated"));
    };
    let fresh = Blocks { names: terms.names, ..Blocks::new(realm, terms.pools, terms.spare) };
    let mut claim_and_then = || {
        let addresses = incoming.leases.iter().map(|lease| (lease.address, None));
        claim(&place, fresh.clone(), addresses)?;
        then()
    };
    operator::import(&place, &conf.sets, incoming, &mut claim_and_then)
}

#[cfg(not(feature = "cluster"))]
fn into_cluster(
    _: &Context<'_>,
    _: &Conf,
    _: &Incoming<'_>,
    _: &mut dyn FnMut() -> Result<()>,
) -> Result<usize> {
    let msg = "this program was built without the cargo feature `cluster`";
    Err(Error::new(Code::INVALID_CONFIG, msg)
        .with_details("leases are imported into a network of scope cluster by a program with it"))
}

/// The configuration, as ADD has it.
pub fn confs(cx: &Context<'_>) -> Result<Vec<Conf>> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(vec![conf])
}
