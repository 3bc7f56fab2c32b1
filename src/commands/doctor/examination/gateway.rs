//! D53x: why a gateway does not answer a container's echo.

use std::net::IpAddr;

use super::faults::{GATEWAY_SILENT, NO_ECHO, WRONG_MAC};
use super::finding::{Finding, quoted};
use super::neighbours::{self, Inquiry};
use super::path::{PATIENCE, Probe, Walk};
use crate::error::Result;
use crate::family::Family;
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::net::sysctl::Sysctl;

impl Walk<'_> {
    /// The finding about a gateway that has not answered an echo: whether it answers ARP or neighbour
    /// discovery, and from where; else what has dropped the packet. None if it answers after all: the
    /// host may have had a neighbour that is gone, and the question has told it the right one.
    pub fn silence(&self, gateway: IpAddr) -> Result<Option<Finding>> {
        let name = &self.interface.name;
        let silent = match self.ask_for(gateway)? {
            Some(inquiry) if inquiry.is_silent() => {
                let what = if gateway.is_ipv4() { "ARP" } else { "neighbour discovery" };
                let evidence = format!("{gateway} does not answer {what} on {name:?}");
                Some(self.deaf(gateway, self.wiring.found(&GATEWAY_SILENT, evidence)))
            }
            Some(Inquiry { answer: Some(mac), .. }) => self.wrong_mac(gateway, &mac),
            _ => None,
        };
        if silent.as_ref().is_some_and(|it| !it.fix.is_empty()) {
            return Ok(silent);
        }
        let Some(passage) = self.send(Probe::Gateway(gateway))? else { return Ok(silent) };
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

    /// Asks for the gateway's hardware address as the container's kernel does; None if it has no
    /// neighbours on this link, or no address to ask from.
    fn ask_for(&self, gateway: IpAddr) -> Result<Option<Inquiry>> {
        let netns = self.wiring.attachment.open()?.filter(|_| self.interface.arp);
        let of_family = || {
            let own = self.wiring.own_addresses(self.interface).map(|it| it.net);
            own.filter(|net| Family::of_net(*net) == self.family)
        };
        let source = of_family().find(|net| net.contains(&gateway)).or(of_family().next());
        let Some((netns, source)) = netns.zip(source) else { return Ok(None) };
        let (links, link) = (&self.wiring.inside.links, self.interface);
        let open = || Inquiry::open(links, link, gateway, Some(source.addr()));
        let mut inquiry = [netns.enter(open)?];
        neighbours::ask(&mut inquiry, PATIENCE, &self.node.sent)?;
        Ok(inquiry.into_iter().next())
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
    /// answered for the gateway. What cannot be read is left out.
    fn wrong_mac(&self, gateway: IpAddr, mac: &MacAddr) -> Option<Finding> {
        let netns = self.wiring.attachment.open().ok()??;
        let neighbours = netns.netlink().and_then(|netlink| netlink.neighbours()).ok()?;
        let link = self.interface;
        let mut of_link = neighbours.into_iter().filter(|it| it.link == link.index);
        let known = of_link.find(|it| it.address == gateway && it.mac != *mac)?;
        let lasting = if known.is_permanent { "permanently " } else { "" };
        let evidence = format!(
            "{gateway} answers from {mac}, and the container {lasting}sends to {}",
            known.mac
        );
        let command = format!("ip neigh del {gateway} dev {}", quoted(&link.name));
        Some(self.wiring.found(&WRONG_MAC, evidence).fix(self.wiring.within(&command)))
    }
}
