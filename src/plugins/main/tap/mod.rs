//! `tap`: an interface whose frames a process reads and writes, such as a virtual machine monitor.
//! <https://www.cni.dev/plugins/current/main/tap/>
//!
//! A tap may be created in another SELinux context. A process changes its context when it executes a
//! program (see /proc/[pid]/attr/exec in proc(5)), so this binary executes itself to create the
//! interface.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::{fs, io};

use clap::{Arg, ArgAction, ArgMatches};
use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::env::Environment;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, Result};
use crate::net::mac::{self, MacAddr};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::tuntap::{self, TapSpec};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, OperatorCommand, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing};
use crate::steps::dns::DnsConf;
use crate::steps::hardware_address::{self, MacConf};
use crate::steps::ipam::{self, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::{prev_result, veth};
use crate::terminal::Streams;
use crate::terminal::manual::Manual;

/// The kernel's name for this kind of link.
const KIND: &str = "tun";
/// This plugin's links in containers.
const LINKS: PluginLinks = PluginLinks { plugin: "tap", kind: KIND };
/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Leases, &LINKS];

/// The plugin.
pub struct Tap;

/// Its configuration; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    multi_queue: bool,
    mtu: u32,
    #[serde(deserialize_with = "mac::optional")]
    mac: Option<MacAddr>,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    bridge: String,
    dns: DnsConf,
    runtime_config: MacConf,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "multiQueue | boolean | false | It can be opened several times, with one queue each.
        mtu | integer | 0 | MTU of the interface, 68 to 65535; 0 leaves it to the kernel.
        mac | string | the kernel's | Its hardware address. CNI_ARGS and `runtimeConfig.mac` override it.
        owner | integer | none | The user id that may open it without privileges. With neither `owner` nor `group`, any process may that can open `/dev/net/tun`.
        group | integer | none | The group id that may. With both, the process needs both.
        selinuxContext | string | none | The SELinux context in which it is created.
        bridge | string | none | A bridge of the container; the tap becomes its port.",
        DnsConf::KEYS,
        "ipam.type | string | none | The IPAM plugin. Without it the interface is up and has no addresses.
        runtimeConfig.mac | string | `mac` | The hardware address, from the runtime.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        veth::validate_mtu(self.mtu)?;
        self.mac = hardware_address::of_key(self.mac.as_ref(), cx.args, &self.runtime_config)?;
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }
}

impl Plugin for Tap {
    const NAME: &'static str = "tap";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface whose frames a process reads and writes";
    const COMMANDS: &'static [OperatorCommand] = &[COMMAND];
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let addressing = Addressing::by_ipam_if_any(cx, DuplicateDetection::Off)?;
        let result = transaction(|rb| {
            let link = create(conf, at, rb)?;
            addressing.set_up(at, &link, rb)
        })?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        container_link::check(cx, at, |on| conf.compare(on))
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        tuntap::require_device().map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        ipam::status_if_any(cx)
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        container_link::repair(cx, at, repairs, |on| conf.compare(on))
    }
}

/// Creates the interface in the container with the name in CNI_IFNAME and the configured
/// properties.
fn create<'a>(conf: &Conf, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<Link> {
    let container = at.netlink()?;
    let bridge = conf.find_bridge(container)?;
    container_link::require_free_name(at)?;
    LINKS.forget(at)?;
    let Conf { multi_queue, owner, group, .. } = *conf;
    let spec = TapSpec { name: at.ifname().to_owned(), owner, group, multi_queue };
    at.run(|| match conf.selinux_context.as_str() {
        "" => tuntap::create_tap(&spec),
        context => create_tap(&spec, context),
    })?;
    let link = container_link::own(at, LINKS, at.ifname().to_owned(), rb)?;
    // The properties that an ioctl cannot set.
    let change = LinkChange {
        mtu: Some(conf.mtu).filter(|mtu| *mtu != 0),
        master: bridge.map(|bridge| bridge.index),
        mac: conf.mac.clone(),
        ..LinkChange::default()
    };
    if change != LinkChange::default() {
        container.change_link(&link, &change)?;
    }
    container.link(at.ifname()) // with its address
}

impl Conf {
    /// Compares what is in the container.
    fn compare(&self, on: Target<'_>) -> Result<()> {
        container_link::compare(on, prev_result::require(on.cx), Some(KIND), |link| {
            let bridge = self.find_bridge(on.at.netlink()?);
            match bridge.map_err(|e| e.with_code(Code::CHECK_FAILED))? {
                Some(bridge) if link.master != Some(bridge.index) => {
                    let (name, bridge) = (&link.name, &bridge.name);
                    let problem = format!("interface {name:?} is not a port of bridge {bridge:?}");
                    Err(Error::check(problem))
                }
                _ => Ok(()),
            }
        })
    }

    /// The bridge in the container, if one is configured.
    fn find_bridge(&self, container: &Netlink) -> Result<Option<Link>> {
        if self.bridge.is_empty() {
            return Ok(None);
        }
        let name = &self.bridge;
        match container.find_link(name)? {
            Some(link) if link.kind == "bridge" => Ok(Some(link)),
            Some(link) => {
                Err(Error::config("bridge", format_args!("{name:?} is a {}", link.kind_text()))
                    .expecting("a bridge"))
            }
            None => Err(Error::config(
                "bridge",
                format_args!("{name:?} is not a link of the container"),
            )
            .expecting("the name of a bridge there")),
        }
    }
}

/// The name of the internal command that the second execution runs; hidden from the help.
const NAME: &str = "create-tap";
/// The internal command.
const COMMAND: OperatorCommand =
    OperatorCommand { name: NAME, command_line: command, run, manual: |_| Manual::EMPTY };
/// The directory that exists on a host with SELinux.
const SELINUX: &str = "/sys/fs/selinux";
/// The file that sets the context of the next program this thread executes.
const NEXT_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Creates the tap in the namespace of this thread. The context stays set for every program that
/// the thread executes, and the thread ends soon.
fn create_tap(spec: &TapSpec, context: &str) -> Result<()> {
    let set = match fs::exists(SELINUX).unwrap_or(false) {
        true => fs::write(NEXT_CONTEXT, context),
        false => Err(io::Error::other("the host runs no SELinux")),
    };
    set.map_err(|e| {
        Error::config("selinuxContext", format_args!("{context:?} is refused: {e}"))
            .with_details("expected a context of this host's policy; without SELinux there is none")
    })?;
    let output = Command::new("/proc/self/exe")
        .arg0("cni-multi")
        .args([NAME.to_owned(), format!("--name={}", spec.name)])
        .args(spec.owner.map(|owner| format!("--owner={owner}")))
        .args(spec.group.map(|group| format!("--group={group}")))
        .args(spec.multi_queue.then_some("--multi-queue"))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io("execute this program in another SELinux context", &e))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(Code::KERNEL, reason.trim_end())
        .with_details(format_args!("in SELinux context {context:?}")))
}

/// The command line of [`create_tap`]'s second execution.
fn command() -> clap::Command {
    let id = |name| Arg::new(name).long(name).value_parser(clap::value_parser!(u32));
    clap::Command::new(NAME)
        .hide(true)
        .arg(Arg::new("name").long("name").required(true))
        .args([id("owner"), id("group")])
        .arg(Arg::new("multi-queue").long("multi-queue").action(ArgAction::SetTrue))
}

/// The second execution: creates the tap. Returns the exit status and prints the reason to stderr.
fn run(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    let spec = TapSpec {
        name: matches.get_one::<String>("name").cloned().unwrap_or_default(),
        owner: matches.get_one("owner").copied(),
        group: matches.get_one("group").copied(),
        multi_queue: matches.get_flag("multi-queue"),
    };
    match tuntap::create_tap(&spec) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io.stderr, "{error}"); // the status reports it too
            1
        }
    }
}
