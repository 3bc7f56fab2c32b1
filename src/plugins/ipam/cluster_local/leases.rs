//! The leases for operators.

use std::collections::BTreeSet;
use std::path::Path;

use super::conf::{self, Conf, DEFAULT_DATA_DIR, Scope};
use super::machine_scope::REALMS;
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::Result;
#[cfg(not(feature = "cluster"))]
use crate::error::{Code, Error};
use crate::plugin::leases::Holding;
use crate::plugin::{Context, PluginConf as _};
use crate::steps::allocation::files::Place;
use crate::steps::allocation::files::operator::{self, FileLeases};
use crate::steps::allocation::ranges::RangeSet;

/// The leases of the file store.
pub struct Leases {
    /// Reads the configuration as ADD does: one for each part.
    pub confs: fn(&Context<'_>) -> Result<Vec<Conf>>,
    /// The plugin that lists the networks of the directory; None for this one.
    pub of: Option<&'static str>,
}

impl FileLeases for Leases {
    fn configured(&self, cx: &Context<'_>) -> Result<Vec<(Place, Vec<RangeSet>)>> {
        let confs = (self.confs)(cx)?.into_iter();
        Ok(confs.map(|conf| (conf.place(cx), conf.allocation.sets)).collect())
    }

    fn places(&self, cx: &Context<'_>) -> Vec<Result<Place>> {
        conf::places(cx)
    }

    /// The directory of a realm has leases with the names of networks.
    fn networks(&self) -> Result<Vec<NetworkName>> {
        let data_dir = Path::new(DEFAULT_DATA_DIR);
        let mut found: BTreeSet<NetworkName> = operator::networks(data_dir).into_iter().collect();
        let realms = data_dir.join(REALMS);
        for realm in operator::networks(&realms) {
            let place = Place::new(&realms, &realm, Deadline::default()).of_this_boot();
            for lease in place.leases()?.unwrap_or_default() {
                let network = lease.owner.network.map(|name| NetworkName::parse(&name));
                found.extend(network.transpose()?);
            }
        }
        Ok(found.into_iter().collect())
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        self.of
    }

    /// With scope `cluster` the daemon makes the claims when it starts.
    fn claim(&self, cx: &Context<'_>, place: &Place, leases: &[Holding]) -> Result<()> {
        let mut confs = (self.confs)(cx)?.into_iter();
        let conf = confs.find(|conf| conf.place(cx).dir() == place.dir());
        let Some(conf) = conf.filter(|conf| conf.scope == Scope::Cluster) else { return Ok(()) };
        #[cfg(feature = "cluster")]
        {
            let _no_daemon = super::operator::without_daemon(&conf::directory(cx))?;
            let addresses = leases.iter().map(|lease| (lease.address, None));
            super::operator::claim(place, conf.terms, addresses)
        }
        #[cfg(not(feature = "cluster"))]
        {
            let msg = "this program was built without the cargo feature `cluster`";
            Err(Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!(
                "{} leases are imported into a network of scope {:?} by a program with it",
                leases.len(),
                conf.scope
            )))
        }
    }
}

/// The configuration, as ADD has it.
pub fn confs(cx: &Context<'_>) -> Result<Vec<Conf>> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(vec![conf])
}
