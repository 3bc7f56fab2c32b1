//! An attachment as a port of the bridge: what ADD makes, in its order.

use super::conf::Conf;
use super::kept::{self, Kept};
use super::ovsdb::Database;
use super::port::{self, Port, Wanted};
use crate::cni::result::AddResult;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink, Watch};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;
use crate::steps::addresses::{self, DuplicateDetection, Wiring};
use crate::steps::ipam::Ipam;
use crate::steps::{interface, router_advertisements, veth};

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
        let stale = port::require_bridge(self.database, self.conf, &self.at.key)?;
        self.keep(rb)?;
        let pair = veth::create(self.cx, self.at, &self.conf.wishes(), rb)?;
        self.conf.accept_ra.make(Target { cx: self.cx, at: self.at }, rb)?;
        self.join(&pair.host, &stale, rb)?;
        let (mut result, mac) = match ipam {
            Some(ipam) => self.configure(ipam, pair.mac, rb)?,
            None => self.leave_unconfigured(pair.mac)?,
        };
        let host_end = self.carrying(&pair.host)?;
        let host_end = interface::on_host(&host_end);
        result.interfaces = vec![host_end, interface::in_container(self.at, &mac)];
        Ok(result)
    }

    /// Keeps the file of the original.
    fn keep(self, rb: &mut Rollback<'a>) -> Result<()> {
        let kept = Kept::of(&self.at.key);
        let earlier = kept.text()?;
        let text = kept::text_of(self.cx.config, self.conf)?;
        rb.undo("forget the configuration", move || Kept::of(&self.at.key).restore(earlier));
        kept.write(&text)
    }

    /// Sets the host's end up, and makes it a port.
    fn join(self, host_end: &Link, stale: &[Port], rb: &mut Rollback<'a>) -> Result<()> {
        // Before, since an answer may be lost; over another connection, which may be the reason.
        rb.undo("delete the port", move || {
            let database = self.conf.connect(self.cx)?;
            port::delete(&database, Wanted::Of(&self.at.key))
        });
        self.connect(host_end, stale)
    }

    /// Sets the host's end up, and makes it a port in place of `stale` ones. In this order: vswitchd
    /// reads the flags of a new port and writes them back with IFF_PROMISC, and IFF_UP is lost if it
    /// is set in between.
    pub fn connect(self, host_end: &Link, stale: &[Port]) -> Result<()> {
        router_advertisements::ignore(&host_end.name)?;
        self.host()?.set_up(host_end)?;
        port::create(self.database, self.conf, self.at, (&host_end.name, stale))
    }

    /// Layer 3: addresses and routes in the container.
    fn configure(
        self,
        ipam: &Ipam<'a>,
        mac: MacAddr,
        rb: &mut Rollback<'a>,
    ) -> Result<(AddResult, MacAddr)> {
        let mut result = ipam.add(self.at, rb)?;
        interface::assign_addresses(&mut result, CONTAINER);
        let mac = self.set_mac(ipam, mac, &result)?;
        let wiring = Wiring::to_subnet(DuplicateDetection::Off);
        addresses::configure(self.cx, self.at, &result, &wiring)?;
        Ok((result, mac))
    }

    /// Derives the hardware address from the first IP address, as the original does: who has the
    /// address next has the same one. A lease that depends on the hardware address keeps it.
    fn set_mac(self, ipam: &Ipam<'a>, mac: MacAddr, result: &AddResult) -> Result<MacAddr> {
        let Some(ip) = result.ips.first().map(|ip| ip.address.addr()) else { return Ok(mac) };
        if self.conf.asked.mac.is_some() || ipam.needs_link() {
            return Ok(mac);
        }
        let derived = MacAddr::of_ip(ip);
        let container = self.at.netlink()?;
        let link = container.link(self.at.ifname())?;
        let change = LinkChange { mac: Some(derived.clone()), ..LinkChange::default() };
        container.change_link(&link, &change)?;
        Ok(derived)
    }

    /// Layer 2: sets the interface up; everything else is left to the container.
    fn leave_unconfigured(self, mac: MacAddr) -> Result<(AddResult, MacAddr)> {
        let container = self.at.netlink()?;
        container.set_up(&container.link(self.at.ifname())?)?;
        Ok((AddResult::default(), mac))
    }

    /// Waits until the host's end has a carrier, and sets it up again if it is down. The row's
    /// `link_state` says the same later, and never while vswitchd is stopped.
    fn carrying(self, host_end: &Link) -> Result<Link> {
        let host = self.host()?;
        let link = host.link(&host_end.name)?;
        if link.is_operational() {
            return Ok(link);
        }
        let end = self.cx.deadline().of_wait(self.conf.patience());
        let watch = Watch::links()?;
        loop {
            let link = host.link(&host_end.name)?;
            if link.is_operational() {
                return Ok(link);
            }
            if !link.up {
                host.set_up(&link)?;
            }
            if !watch.until(end)? {
                return Err(without_carrier(&link));
            }
        }
    }

    /// The netlink socket of the host.
    pub fn host(self) -> Result<&'a Netlink> {
        self.cx.host()
    }
}

fn without_carrier(port: &Link) -> Error {
    let msg = format!(
        "The OF port {} state is not up, try increasing number of retries/interval config parameter",
        port.name
    );
    Error::new(Code::KERNEL, msg).with_details(format_args!("it is {}", port.operstate_text()))
}
