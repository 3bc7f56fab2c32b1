//! Which plugins a rehearsal runs. Those that would reach beyond a replica are left out: other
//! programs, and what asks a daemon.

use std::path::Path;

use serde::Deserialize;

use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::env::Environment;
use crate::cni::result::{AddResult, IpConfig};
use crate::error::Result;
use crate::plugin::{Attachment, Context, Detachment, Entry, Kind, Plugin, PluginConf};
use crate::plugins::main::flannel::{self, Flannel};
use crate::plugins::main::ovs::Ovs;
use crate::plugins::meta::firewall::{self, Firewall};
use crate::repair::Repairs;
use crate::runtime::chain::Runtime;
use crate::runtime::derive;
use crate::runtime::list::{NetworkList, PluginConfig};
use crate::runtime::parameters::Parameters;
use crate::runtime::rehearsal::{Part, Stage};

/// The IPAM plugin of ours that asks a daemon.
const DHCP: &str = "dhcp";
/// The address, and its gateway, that stand for those of a plugin that is not asked
/// (192.0.2.0/24 is for examples, RFC 5737).
const ADDRESS: &str = "192.0.2.254/24";
const GATEWAY: &str = "192.0.2.1";
/// What the texts of changes that depend on them contain.
pub const UNKNOWN: &str = "192.0.2.";
/// A path without plugins, so that only those of this binary are found.
const NO_PLUGINS: &str = "/nonexistent";
/// A system bus without a listener.
const NO_BUS: &str = "unix:path=/run/dbus/none";

/// The plugins of a rehearsal.
pub struct Cast {
    /// What becomes of each plugin of the network.
    pub parts: Vec<Part>,
    /// Where they are found.
    pub stage: Stage,
    /// IPAM plugins that are not asked.
    pub absent: Vec<Absent>,
}

/// An IPAM plugin that is not asked.
pub struct Absent {
    /// Its type.
    pub kind: String,
    /// Why it is not asked.
    pub why: String,
}

impl Cast {
    /// Decides for each plugin of the network. Fails as ADD does if one is not found, or cannot
    /// serve.
    pub fn choose(runtime: &Runtime<'_>, list: &NetworkList, at: &Parameters) -> Result<Cast> {
        let programs = runtime.other_programs(list)?;
        let mut parts = vec![];
        for (plugin, program) in list.plugins.iter().zip(&programs) {
            parts.push(match program {
                Some(program) => Part::Omitted(other_program(program)),
                None => part_of_own(runtime, list, plugin, at)?,
            });
        }
        let absent = absent_of(runtime, list, &parts, at)?;
        let has_others = programs.iter().any(Option::is_some) || !absent.is_empty();
        let path = if has_others { NO_PLUGINS.to_owned() } else { runtime.path.clone() };
        let stage = Stage { plugins: with_stand_ins(runtime.plugins, &absent), path };
        Ok(Cast { parts, stage, absent })
    }

    /// The environment of the plugins, without a bus.
    pub fn environment(&self, env: &Environment) -> Environment {
        env.with("DBUS_SYSTEM_BUS_ADDRESS", NO_BUS)
    }
}

fn other_program(program: &Path) -> String {
    format!("{} is not asked: it is another program", program.display())
}

/// The firewall plugin is left out if it asks firewalld, and flannel if it runs another program; ovs
/// always, since a replica has the host's database.
fn part_of_own(
    runtime: &Runtime<'_>,
    list: &NetworkList,
    plugin: &PluginConfig,
    at: &Parameters,
) -> Result<Part> {
    match plugin.kind.as_str() {
        Firewall::NAME => Ok(part_of_firewall(runtime, &config_of(list, plugin, at)?)),
        Flannel::NAME => Ok(part_of_flannel(runtime, &config_of(list, plugin, at)?)),
        Ovs::NAME => Ok(Part::Omitted("Open vSwitch is not asked".to_owned())),
        _ => Ok(Part::Played),
    }
}

fn part_of_firewall(runtime: &Runtime<'_>, config: &Config) -> Part {
    let context = Context::new(runtime.plugins, config, runtime.env, "", vec![]);
    match firewall::asks_firewalld(&context) {
        true => Part::Omitted("firewalld is not asked".to_owned()),
        false => Part::Played,
    }
}

/// What ADD refuses is played, so that it is an error of the rehearsal.
fn part_of_flannel(runtime: &Runtime<'_>, config: &Config) -> Part {
    let conf: Result<flannel::Conf> = config.decode();
    match conf.and_then(|conf| runtime.other_program(conf.delegate_type())) {
        Ok(Some(program)) => Part::Omitted(other_program(&program)),
        _ => Part::Played,
    }
}

/// The IPAM plugins that are not asked.
fn absent_of(
    runtime: &Runtime<'_>,
    list: &NetworkList,
    parts: &[Part],
    at: &Parameters,
) -> Result<Vec<Absent>> {
    let mut absent = vec![];
    for (plugin, part) in list.plugins.iter().zip(parts) {
        // A configuration that ADD refuses is an error of the rehearsal.
        let Ok(config) = config_of(list, plugin, at) else { continue };
        let kind = ipam_of(plugin, &config);
        if *part != Part::Played || kind.is_empty() {
            continue;
        }
        match runtime.other_program(&kind) {
            Ok(Some(program)) => absent.push(Absent { kind, why: other_program(&program) }),
            Ok(None) if kind == DHCP => {
                runtime.require_ipam(&kind, plugin, &config)?;
                absent.push(Absent { kind, why: "the DHCP server is not asked".to_owned() });
            }
            _ => (), // code of this binary, or an error of the rehearsal
        }
    }
    Ok(absent)
}

/// The type of the IPAM plugin, which flannel's configuration need not name.
fn ipam_of(plugin: &PluginConfig, config: &Config) -> String {
    let kind = config.ipam_type().unwrap_or_default();
    let is_usual = plugin.kind == Flannel::NAME && kind.is_empty();
    if is_usual { flannel::USUAL_IPAM.to_owned() } else { kind }
}

fn config_of(list: &NetworkList, plugin: &PluginConfig, at: &Parameters) -> Result<Config> {
    Config::parse(derive::for_attachment(list, plugin, None, &at.capability_args))
}

/// The plugins, with a stand-in for each IPAM plugin that is not asked. Ours still checks its
/// configuration.
fn with_stand_ins(plugins: &'static [Entry], absent: &[Absent]) -> &'static [Entry] {
    let stand_in = Entry::of::<StandIn>();
    let mut all: Vec<Entry> = plugins.to_vec();
    for Absent { kind, .. } in absent {
        match all.iter_mut().find(|entry| entry.name == kind) {
            Some(own) if kind == DHCP => *own = own.played_by(&stand_in),
            Some(own) => *own = stand_in.named(own.name),
            None => all.push(stand_in.named(kind.clone().leak())), // the process ends soon
        }
    }
    all.leak()
}

/// An IPAM plugin that allocates an address of the documentation.
struct StandIn;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Conf {}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[];

    fn validate(&mut self, _: &Context<'_>) -> Result<()> {
        Ok(())
    }
}

impl Plugin for StandIn {
    const NAME: &'static str = "";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "stands for an IPAM plugin that is not asked";
    type Conf = Conf;

    fn add(_: &Context<'_>, _: &Conf, _: &Attachment) -> Result<AddResult> {
        let mut ips = vec![];
        if let Ok(address) = ADDRESS.parse() {
            ips.push(IpConfig { gateway: GATEWAY.parse().ok(), ..IpConfig::new(address) });
        }
        Ok(AddResult { ips, ..AddResult::default() })
    }

    fn check(_: &Context<'_>, _: &Conf, _: &Attachment) -> Result<()> {
        Ok(())
    }

    fn del(_: &Context<'_>, _: &Conf, _: &Detachment) -> Result<()> {
        Ok(())
    }

    fn status(_: &Context<'_>, _: &Conf) -> Result<()> {
        Ok(())
    }

    fn gc(_: &Context<'_>, _: &Conf, _: &ValidAttachments) -> Result<()> {
        Ok(())
    }

    fn repair(_: &Context<'_>, _: &Conf, _: &Attachment, _: &Repairs) -> Result<()> {
        Ok(())
    }
}
