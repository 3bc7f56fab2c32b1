//! D53x: why a gateway does not answer a container's echo.

use std::net::IpAddr;

use super::faults::{GATEWAY_SILENT, NO_ECHO, WRONG_MAC};
use super::finding::{Finding, quoted};
use super::neighbours::{self, Inquiry};
use super::path::{PATIENCE, Probe, Walk};
use crate::error::Result;
use crate::family::Family;
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Neighbour};
use crate::net::sysctl::Sysctl;

impl Walk<'_> {
    /// The finding about a gateway that has not answered an echo: whether it answers ARP or neighbour
    /// discovery, and from where; else what has dropped the packet. None if it answers after all: the
    /// host may have had a neighbour that is gone, and the question has told it the right one.
    pub fn silence(&self, gateway: IpAddr) -> Result<Option<Finding>> {
        let name = &self.interface.name;
        let silent = match self.mac_of(gateway)? {
            None if self.interface.arp => {
                let what = if gateway.is_ipv4() { "ARP" } else { "neighbour discovery" };
                let evidence = format!("{gateway} does not answer {what} on {name:?}");
                Some(self.deaf(gateway, self.wiring.found(&GATEWAY_SILENT, evidence)))
            }
            None => None,
            Some(mac) => self.wrong_mac(gateway, &mac)?,
        };
        if silent.as_ref().is_some_and(|it| !it.fix.is_empty()) {
            return Ok(silent);
        }
        let Some(passage) = self.send(Probe::Gateway(gateway))? else { return Ok(None) };
        if let Ok(Some(_)) = passage.answer {
            return Ok(None);
        }
        let found = self.judge(Probe::Gateway(gateway), &passage)?.or(silent);
        Ok(found.or_else(|| {
            let evidence = format!("{gateway} does not answer a ping from {name:?}");
            let finding = self.wiring.found(&NO_ECHO, evidence);
            Some(finding.show(self.wiring.within("ip neigh show")))
        }))
    }

    /// The hardware address that answers for the gateway, asked as the container's kernel asks.
    fn mac_of(&self, gateway: IpAddr) -> Result<Option<MacAddr>> {
        let Some(netns) = self.wiring.attachment.open()?.filter(|_| self.interface.arp) else {
            return Ok(None);
        };
        let own = self.wiring.inside.addresses.iter().filter(|it| {
            it.link == self.interface.index && Family::of(it.net.addr()) == self.family
        });
        let source = own.clone().find(|it| it.net.contains(&gateway)).or(own.clone().next());
        let source = source.map(|it| it.net.addr());
        let mut inquiry = [netns.enter(|| Inquiry::open(self.interface, gateway, source))?];
        neighbours::ask(&mut inquiry, PATIENCE, &self.node.sent)?;
        let [Inquiry { answer, .. }] = inquiry;
        Ok(answer)
    }

    /// The finding with the setting of the host that keeps its link silent, if it has the gateway.
    fn deaf(&self, gateway: IpAddr, silent: Finding) -> Finding {
        // Another link with the gateway's address is not the attachment's to change.
        let is_own = |link: &&Link| {
            let own = [self.wiring.bridge, self.wiring.below].into_iter().flatten();
            own.map(|it| it.index).any(|index| index == link.index)
        };
        let holder = self.wiring.router(self.node, self.family).filter(is_own);
        if let Some(Link { name, .. }) = holder.filter(|link| !link.arp) {
            let fix = format!("sudo ip link set {} arp on", quoted(name));
            return silent.saying(&format!(": {name:?} does not use ARP")).fix(fix);
        }
        let of_link = holder.map(|link| link.name.as_str());
        for of in of_link.into_iter().chain(["all"]).filter(|_| gateway.is_ipv4()) {
            let setting = Sysctl::ipv4_conf(of, "arp_ignore");
            let Some(value) = setting.read().ok().filter(|value| value.as_str() > "2") else {
                continue;
            };
            let found = silent.saying(&format!(": sysctl {setting} is {value}"));
            return match of {
                "all" => found.show(format!("sysctl {setting}")),
                _ => found.fix(format!("sudo sysctl -w {setting}=0")),
            };
        }
        silent.show(self.wiring.within("ip neigh show"))
    }

    /// The finding that the container sends to another hardware address than that which has
    /// answered for the gateway.
    fn wrong_mac(&self, gateway: IpAddr, mac: &MacAddr) -> Result<Option<Finding>> {
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(None) };
        let link = self.interface;
        let mut neighbours = netns.netlink()?.neighbours()?.into_iter();
        let is_wrong =
            |it: &Neighbour| it.link == link.index && it.address == gateway && it.mac != *mac;
        Ok(neighbours.find(is_wrong).map(|known| {
            let lasting = if known.is_permanent { "permanently " } else { "" };
            let evidence = format!(
                "{gateway} answers from {mac}, and the container {lasting}sends to {}",
                known.mac
            );
            let command = format!("ip neigh del {gateway} dev {}", quoted(&link.name));
            self.wiring.found(&WRONG_MAC, evidence).fix(self.wiring.within(&command))
        }))
    }
}
