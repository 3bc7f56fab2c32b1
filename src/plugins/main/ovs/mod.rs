//! `ovs`: connects containers by a bridge of Open vSwitch.
//! <https://github.com/k8snetworkplumbingwg/ovs-cni>
//!
//! A veth pair, whose host end is a port of the bridge. Ports are rows of OVSDB, which outlive
//! a restart of the host; their `external_ids` name the attachment, so that DEL and GC need nothing
//! else. The operator creates the bridges.

mod conf;
mod member;
pub mod ovsdb;
pub mod port;
mod vlan;

use self::member::{Kept, Member};
use self::ovsdb::{Address, Database};
use self::port::Wanted;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Code, ErrorList, Result};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::veth::{self, Pairs};
use crate::steps::{container_link, prev_result};

pub use self::conf::Conf;

/// The plugin.
pub struct Ovs;

impl Plugin for Ovs {
    const NAME: &'static str = "ovs";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "connects containers by a bridge of Open vSwitch";
    /// The original serves devices with hardware offload, which are refused here.
    const IS_ALIAS: bool = true;
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let conf = &conf::completed(conf)?;
        conf.bridge()?;
        let ipam = Ipam::find_valid(cx)?;
        at.netns()?;
        let database = &conf.connect(cx)?;
        let member = Member { cx, conf, at, database };
        let result = transaction(|rb| member.attach(ipam.as_ref(), rb))?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let conf = &conf::completed(conf)?;
        let database = &conf.connect(cx)?;
        let mut found = ErrorList::default();
        found.push(ipam::check_if_any(cx, at));
        if let Some(result) = found.push(prev_result::require(cx))
            && let Some((inside, index)) =
                prev_result::see(at, &result, Some(veth::KIND), &mut found)
        {
            let link = found.push(veth::host_end(cx, at, &result, &inside));
            let member = Member { cx, conf, at, database };
            let parts = member.parts(&result, link.as_ref(), Some((&inside, index)));
            found.push(parts.compare(Target { cx, at }));
        }
        found.finish()
    }

    /// The file of the original goes last: it tells the next DEL of ports of the original.
    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(&[&Leases, &Ports(conf), &Pairs], cx, Removal::Del(at))?;
        Kept::of(&at.key).remove()
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let conf = &conf::completed(conf)?;
        container_link::require_kind(cx, veth::KIND)?;
        let bridge = conf.bridge()?;
        let has_bridge = conf.connect(cx).and_then(|database| port::has_bridge(&database, bridge));
        if !has_bridge.map_err(|e| e.with_code(Code::NOT_AVAILABLE))? {
            return Err(conf::bridge_missing(bridge).with_code(Code::NOT_AVAILABLE));
        }
        ipam::status_if_any(cx)
    }

    fn gc(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let owns: [&dyn Owned; 3] = [&Leases, &Ports(conf), &Pairs];
        ErrorList::of([
            owned::remove(&owns, cx, Removal::Gc(valid)),
            member::collect_garbage(cx.config, valid),
        ])
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let conf = &conf::completed(conf)?;
        conf.bridge()?;
        let result = prev_result::require(cx)?;
        let inside = at.netlink()?.link(at.ifname())?;
        let link = veth::host_end(cx, at, &result, &inside)?;
        let found = prev_result::index_of(&result, at).map(|index| (&inside, index));
        ipam::repair_before(cx, at, repairs, || {
            let member = Member { cx, conf, at, database: &conf.connect(cx)? };
            member.parts(&result, Some(&link), found).repair(Target { cx, at }, repairs)
        })
    }
}

/// The ports of attachments.
struct Ports<'c>(&'c Conf);

impl Owned for Ports<'_> {
    /// Ours, or else what the original has made for it, of which its file tells. The path of a
    /// namespace alone tells too little: another container may have it. The database is that of the
    /// ADD, or of the configuration if no file tells.
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        let kept = Kept::of(&at.key).configuration()?;
        let socket = kept.as_ref().and_then(|kept| kept.get("socket_file")?.as_str());
        let address = match socket.filter(|socket| !socket.is_empty()) {
            Some(socket) => Address::parse(socket)?,
            None => conf::completed(self.0)?.address()?,
        };
        let database = Database::connect(&address, cx.deadline())?;
        port::delete(&database, Wanted::Of(&at.key))?;
        if kept.is_none() || at.netns_path.is_empty() {
            return Ok(());
        }
        let (netns_path, ifname) = (at.netns_path.as_str(), at.key.ifname.as_str());
        port::delete(&database, Wanted::OfOriginal { netns_path, ifname })
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        let network = &cx.config.name;
        let database = conf::completed(self.0)?.connect(cx)?;
        let mut errors = ErrorList::default();
        for port in port::find(&database, Wanted::OfNetwork(network))? {
            let Some(key) = port.key().filter(|key| valid.is_stale(network, key)) else { continue };
            let stale = || Stale {
                what: format!("port {} of Open vSwitch", port.name),
                holder: Holder::of(&key),
                netns_path: port.netns_path.clone(),
                ..Stale::default()
            };
            errors.push(valid.remove(stale, || port::delete(&database, Wanted::Of(&key))));
        }
        errors.finish()
    }
}
