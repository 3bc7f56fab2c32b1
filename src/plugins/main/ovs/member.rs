//! An attachment as a port of the bridge: what it consists of, in the order of ADD.
//!
//! [`Kept`] is the file that the original keeps for each attachment. Ours is the same, so that the
//! original can detach what was attached here; nothing here needs it, except to know ports of the
//! original.

use std::path::PathBuf;

use super::conf::Conf;
use super::ovsdb::Database;
use super::port::{self, Port, Wanted};
use crate::cni::attachment::Key;
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::json::{self, Value};
use crate::cni::result::AddResult;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Watch};
use crate::plain_file;
use crate::plugin::part::{Part, Parts, Target};
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;
use crate::steps::addresses::{DuplicateDetection, Inside, Wiring};
use crate::steps::ipam::Ipam;
use crate::steps::{interface, settings, veth};

/// The index of the container's interface in the result.
const CONTAINER: i64 = 1;

/// A container's interface and the bridge that it is, or will be, connected to.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The call.
    pub cx: &'a Context<'a>,
    /// The configuration, with the keys of the flat file.
    pub conf: &'a Conf,
    /// The interface.
    pub at: &'a Attachment,
    /// The database.
    pub database: &'a Database,
}

impl<'a> Member<'a> {
    /// Everything that ADD makes.
    pub fn attach(self, ipam: Option<&Ipam<'a>>, rb: &mut Rollback<'a>) -> Result<AddResult> {
        let on = Target { cx: self.cx, at: self.at };
        let stale = port::require_bridge(self.database, self.conf, &self.at.key)?;
        let kept = Kept::of(&self.at.key); // the file of the original
        let earlier = kept.text()?;
        let text = text_of(self.cx.config, self.conf)?;
        rb.undo("forget the configuration", move || Kept::of(&self.at.key).restore(earlier));
        kept.write(&text)?;
        let pair = veth::create(self.cx, self.at, &self.conf.wishes(), rb)?;
        self.before_addresses(Some(&pair.host), &stale).make(on, rb)?;
        let (mut result, mut mac) = (AddResult::default(), pair.mac);
        if let Some(ipam) = ipam {
            result = ipam.add(self.at, rb)?;
            interface::assign_addresses(&mut result, CONTAINER);
            // Derives the hardware address from the first IP address, as the original does: the
            // next container with that address has the same one. A lease that depends on the
            // hardware address keeps it.
            if let Some(ip) = result.ips.first()
                && self.conf.asked.mac.is_none()
                && !ipam.needs_link()
            {
                mac = MacAddr::of_ip(ip.address.addr());
                let container = self.at.netlink()?;
                let link = container.link(self.at.ifname())?;
                let change = LinkChange { mac: Some(mac.clone()), ..LinkChange::default() };
                container.change_link(&link, &change)?;
            }
        }
        self.inside(&result, None).make(on, rb)?;
        let host_end = interface::on_host(&self.wait_for_carrier(&pair.host.name)?);
        result.interfaces = vec![host_end, interface::in_container(self.at, &mac)];
        Ok(result)
    }

    /// What an attachment consists of, besides the lease and the pair. `link` is the host's end, `found`
    /// the container's with its index in the result, as CHECK has found it.
    pub fn parts<'p>(
        self,
        result: &'p AddResult,
        link: Option<&'p Link>,
        found: Option<(&'p Link, usize)>,
    ) -> Parts<'p, 'a>
    where
        'a: 'p,
    {
        let mut parts = self.before_addresses(link, &[]);
        parts.push("addresses and routes", self.inside(result, found));
        parts
    }

    /// What must be there before the IPAM plugin, which may need the network, is asked. `acceptRA` is
    /// set while no frame comes in.
    fn before_addresses<'p>(self, link: Option<&'p Link>, stale: &'p [Port]) -> Parts<'p, 'a>
    where
        'a: 'p,
    {
        let mut parts = Parts::default();
        parts.push("accept_ra", self.conf.accept_ra);
        parts.extend("ovs port", link.map(|link| BridgePort { member: self, link, stale }));
        parts
    }

    /// In layer 2, ADD sets the interface up, and everything else is left to the container.
    fn inside<'p>(self, result: &'p AddResult, found: Option<(&'p Link, usize)>) -> Inside<'p> {
        let has_ipam = self.cx.config.ipam_type().is_ok_and(|name| !name.is_empty());
        let wiring = has_ipam.then(|| Wiring::to_subnet(DuplicateDetection::Off));
        let is_layer_two = result.ips.is_empty() && result.routes.is_empty();
        Inside { result, wiring, found: found.filter(|_| !is_layer_two) }
    }

    /// Waits until the host's end has a carrier, and sets it up again if it is down. The row's
    /// `link_state` says the same later, and never while vswitchd is stopped.
    fn wait_for_carrier(self, host_end: &str) -> Result<Link> {
        let host = self.cx.host()?;
        let mut link = host.link(host_end)?;
        if link.is_operational() {
            return Ok(link);
        }
        let end = self.cx.deadline().of_wait(self.conf.patience());
        let watch = Watch::links()?;
        loop {
            link = host.link(host_end)?;
            if link.is_operational() {
                return Ok(link);
            }
            if !link.up {
                host.set_up(&link)?;
            }
            if !watch.until(end)? {
                let msg = format!(
                    "The OF port {host_end} state is not up, try increasing number of retries/interval config parameter"
                );
                let details = format_args!("it is {}", link.operstate_text());
                return Err(Error::new(Code::KERNEL, msg).with_details(details));
            }
        }
    }
}

/// The host's end, up, as the attachment's port of the bridge.
struct BridgePort<'p, 'a> {
    member: Member<'a>,
    link: &'p Link,
    /// What an earlier ADD of the attachment has left, as ADD has found it.
    stale: &'p [Port],
}

impl BridgePort<'_, '_> {
    /// Sets the host's end up, and makes it a port in place of `stale` ones. In this order: vswitchd
    /// reads the flags of a new port and writes them back with IFF_PROMISC, and IFF_UP is lost if it
    /// is set in between.
    fn connect(&self, stale: &[Port]) -> Result<()> {
        let Member { cx, conf, at, database } = self.member;
        settings::ignore_ra(&self.link.name)?;
        cx.host()?.set_up(self.link)?;
        port::create(database, conf, at, (&self.link.name, stale))
    }
}

impl<'a> Part<'a> for BridgePort<'_, 'a> {
    fn what(&self) -> String {
        let bridge = self.member.conf.bridge().unwrap_or_default(); // a repair has required it
        format!("make {:?} a port of bridge {bridge:?}", self.link.name)
    }

    fn make(&self, Target { cx, at }: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let conf = self.member.conf;
        // Before, since an answer may be lost; over another connection, which may be the reason.
        rb.undo("delete the port", move || port::delete(&conf.connect(cx)?, Wanted::Of(&at.key)));
        self.connect(self.stale)
    }

    fn make_again(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let Member { conf, database, .. } = self.member;
        self.connect(&port::require_bridge(database, conf, &on.at.key)?)
    }

    fn compare(&self, on: Target<'a>) -> Result<()> {
        let Member { conf, database, .. } = self.member;
        let row = port::verify(database, conf, (&on.at.key, &self.link.name));
        ErrorList::of([veth::verify_up(self.link), row])
    }
}

/// The directory of the files.
const DIR: &str = "/var/lib/cni/ovs-cni/cache";
/// The longest file.
const LIMIT: usize = 1024 * 1024;

/// The file of an attachment.
pub struct Kept(PathBuf);

impl Kept {
    /// The file of this attachment.
    pub fn of(key: &Key) -> Kept {
        Kept::named(&format!("{}-{}", key.container_id, key.ifname))
    }

    fn named(name: &str) -> Kept {
        Kept(PathBuf::from(DIR).join(name))
    }

    /// The draft. Names may have points, and no container's id begins with one.
    fn draft(&self) -> PathBuf {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        self.0.with_file_name(format!(".{name}.draft"))
    }

    /// The text of the file, if it is there.
    pub fn text(&self) -> Result<Option<Vec<u8>>> {
        match plain_file::read_if_any(&self.0, LIMIT) {
            // no file that the original or this plugin has written
            Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(None),
            text => text.map_err(Error::at_path("read", &self.0)),
        }
    }

    /// The configuration of the ADD; None without a file, or if it was torn.
    pub fn configuration(&self) -> Result<Option<Value>> {
        let Some(text) = self.text()? else { return Ok(None) };
        Ok(Value::parse(&text).ok().and_then(|value| value.get("Netconf").cloned()))
    }

    /// Whether the file is of an attachment to the configuration's network.
    fn is_of(&self, config: &Config) -> Result<bool> {
        let netconf = self.configuration()?;
        let network = netconf.as_ref().and_then(|netconf| netconf.get("name")?.as_str());
        Ok(network == Some(config.name.as_str()))
    }

    /// Writes what [`text_of`] has made.
    pub fn write(&self, text: &[u8]) -> Result<()> {
        plain_file::make_private_directory(DIR.as_ref())
            .and_then(|()| plain_file::put_by(&self.draft(), &self.0, text))
            .map_err(Error::at_path("write", &self.0))
    }

    /// Undoes [`Kept::write`]: `earlier` is [`Kept::text`] of before.
    pub fn restore(&self, earlier: Option<Vec<u8>>) -> Result<()> {
        match earlier {
            Some(text) => self.write(&text),
            None => self.remove(),
        }
    }

    /// Removes the file, and the draft of one.
    pub fn remove(&self) -> Result<()> {
        let removed = plain_file::remove(&self.0).map_err(Error::at_path("remove", &self.0));
        ErrorList::of([self.remove_draft(), removed])
    }

    fn remove_draft(&self) -> Result<()> {
        plain_file::remove(&self.draft()).map_err(Error::at_path("remove", &self.0))
    }
}

/// The text of a file: the configuration with the bridge and the socket as they are used.
pub fn text_of(config: &Config, conf: &Conf) -> Result<Vec<u8>> {
    let mut netconf = config.value.clone();
    for key in ["prevResult", "runtimeConfig"] {
        netconf.remove(key);
    }
    netconf.set("bridge", Value::text(conf.bridge()?));
    netconf.set("socket_file", Value::text(&*conf.socket_file));
    let kept = Value::object([
        ("Netconf", netconf),
        ("OrigIfName", Value::text("")),
        ("UserspaceMode", Value::Bool(false)),
        ("VdpaType", Value::text("")),
    ]);
    Ok(json::text(&kept).into_bytes())
}

/// Removes the files of this network's attachments that are not valid, and drafts of such
/// attachments, which do not tell their network: an ADD makes its draft again.
pub fn collect_garbage(config: &Config, valid: &ValidAttachments) -> Result<()> {
    let mut errors = ErrorList::default();
    for path in plain_file::entries(DIR.as_ref()).map_err(Error::at_path("list", DIR.as_ref()))? {
        let listed = path.file_name().unwrap_or_default().to_string_lossy();
        let draft = listed.strip_prefix('.').and_then(|name| name.strip_suffix(".draft"));
        let name = draft.unwrap_or(&listed);
        if is_valid(name, valid) {
            continue;
        }
        let kept = Kept::named(name);
        if draft.is_some() {
            let torn = || Stale { is_torn: true, ..stale(name) };
            errors.push(valid.remove(torn, || kept.remove_draft()));
        } else if errors.push(kept.is_of(config)) == Some(true) {
            errors.push(valid.remove(|| stale(name), || kept.remove()));
        }
    }
    errors.finish()
}

/// Whether a file may belong to a valid attachment. Both names may have the separator.
fn is_valid(name: &str, valid: &ValidAttachments) -> bool {
    let mut separators = name.match_indices('-');
    separators.any(|(at, _)| valid.contains(&name[..at], &name[at + 1..]))
}

fn stale(name: &str) -> Stale {
    let (container_id, ifname) = name.rsplit_once('-').unwrap_or((name, ""));
    let holder = Holder {
        container_id: container_id.to_owned(),
        ifname: ifname.to_owned(),
        ..Holder::default()
    };
    Stale { what: "kept configuration".to_owned(), holder, ..Stale::default() }
}
