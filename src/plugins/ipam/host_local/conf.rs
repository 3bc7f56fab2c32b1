//! The configuration of host-local.

use serde::Deserialize;

use crate::cni::result::Route;
use crate::error::Result;
use crate::plugin::{Context, PluginConf};
use crate::steps::allocation::conf::{AllocationConf, directory};
use crate::steps::allocation::files::Place;
use crate::steps::allocation::ranges::RangeConf;
use crate::steps::allocation::requested;

/// The parent of the networks' directories.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// The settings that ADD, CHECK and STATUS use. DEL and GC use none of them, so an invalid one does
/// not fail DEL or GC.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// What an attachment gets.
    #[serde(skip)]
    pub allocation: AllocationConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        RangeConf::KEYS,
        RangeConf::KEYS_OF_SINGLE,
        Route::KEYS,
        "ipam.resolvConf | path | none | A file in the format of resolv.conf(5); its settings go into the result.
        ipam.dataDir | path | `/var/lib/cni/networks` | The parent of the networks' directories.",
        requested::KEYS,
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        self.allocation = AllocationConf::read(cx, &[])?;
        Ok(())
    }
}

/// The network's place on disk.
pub fn place(cx: &Context<'_>) -> Place {
    let data_dir = directory(cx.config, DEFAULT_DATA_DIR);
    Place::new(&data_dir, &cx.config.name, cx.deadline())
}
