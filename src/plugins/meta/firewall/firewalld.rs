//! firewalld over D-Bus: the containers' addresses are sources of a zone, until firewalld is
//! reloaded.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::env::Environment;
use crate::deadline::Deadline;
use crate::error::{Code, Error, ErrorList, Result};
use crate::plugin::Context;
use crate::sys::dbus::{Answer, Bus, Object};

const NAME: &str = "org.fedoraproject.FirewallD1";
const DAEMON: Object =
    Object { destination: NAME, path: "/org/fedoraproject/FirewallD1", interface: NAME };
/// The signal of the daemon after a reload, which has removed what containers added.
const RELOADED: &str = "Reloaded";
const ZONE: Object = Object {
    destination: NAME,
    path: "/org/fedoraproject/FirewallD1",
    interface: "org.fedoraproject.FirewallD1.zone",
};
/// The system bus, unless the environment names another.
const SYSTEM_BUS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// The words by which firewalld reports that there is nothing to do.
const DONE_ALREADY: [&str; 2] = ["ZONE_ALREADY_SET", "ALREADY_ENABLED"];
const NOT_THERE: [&str; 3] = ["UNKNOWN_SOURCE", "NOT_ENABLED", "INVALID_ZONE"];
/// Another zone has the address.
const CONFLICT: &str = "ZONE_CONFLICT";

/// A connection to firewalld's zones.
pub struct Firewalld(Bus);

/// Connects to firewalld, if it is on the system bus now. A host without the socket costs no more
/// than looking for it.
pub fn find(cx: &Context<'_>) -> Result<Option<Firewalld>> {
    let Some(mut bus) = connect(cx.env, cx.deadline())? else { return Ok(None) };
    Ok(bus.has_owner(NAME)?.then_some(Firewalld(bus)))
}

fn connect(env: &Environment, deadline: Deadline) -> Result<Option<Bus>> {
    let address = env.get("DBUS_SYSTEM_BUS_ADDRESS");
    let address = if address.is_empty() { SYSTEM_BUS } else { &address };
    Bus::connect(address, deadline)
}

/// The reloads of firewalld, whether it is running now or not.
pub struct Reloads(Bus);

impl Reloads {
    /// Subscribes to the signal on the system bus.
    pub fn subscribe(env: &Environment) -> Result<Reloads> {
        let mut bus = connect(env, Deadline::default())?.ok_or_else(|| {
            Error::new(Code::HOST_PROGRAM, "there is no system bus")
                .with_details("firewalld needs one; is dbus running?")
        })?;
        bus.subscribe(DAEMON, RELOADED)?;
        Ok(Reloads(bus))
    }

    /// Waits for the next reload. Fails if the bus is stopped.
    pub fn wait(&mut self) -> Result<()> {
        self.0.wait_for(RELOADED)
    }
}

/// Connects to firewalld for callers that cannot continue without it.
pub fn require(cx: &Context<'_>) -> Result<Firewalld> {
    find(cx)?.ok_or_else(|| {
        Error::new(Code::HOST_PROGRAM, format!("{NAME} is not on the system bus"))
            .with_details("is firewalld running? backend \"nftables\" needs no program")
    })
}

impl Firewalld {
    /// Whether the zone has the address.
    pub fn has(&mut self, zone: &str, ip: IpAddr) -> Result<bool> {
        match self.ask("querySource", zone, ip)? {
            Answer::Done(body) => Ok(body.is_true()),
            Answer::Refused(why) => {
                Err(Error::new(Code::HOST_PROGRAM, format!("firewalld zone {zone:?}: {why}")))
            }
        }
    }

    /// Adds an address to a zone, which accepts packets from the address.
    pub fn add(&mut self, zone: &str, ip: IpAddr) -> Result<()> {
        match self.ask("addSource", zone, ip)? {
            Answer::Refused(why) if !is_one_of(&why, &DONE_ALREADY) => {
                let is_taken = why.contains(CONFLICT);
                let code = if is_taken { Code::CONFLICT } else { Code::HOST_PROGRAM };
                let what = format!("failed to add the address {ip} to {zone} zone: {why}");
                Err(Error::new(code, what))
            }
            _ => Ok(()),
        }
    }

    /// Verifies that the zone has all of the addresses.
    pub fn verify(&mut self, zone: &str, ips: &[IpAddr]) -> Result<()> {
        for ip in ips {
            match self.ask("querySource", zone, *ip)? {
                Answer::Done(body) if body.is_true() => (),
                Answer::Done(_) => {
                    let what = format!("failed to find the address {ip} in {zone} zone");
                    return Err(Error::check(what).with_details(
                        "a reload of firewalld removes what containers added: run `cni-multi net sync`",
                    ));
                }
                Answer::Refused(why) => {
                    return Err(Error::check(format!("firewalld zone {zone:?}: {why}")));
                }
            }
        }
        Ok(())
    }

    /// Removes each address from its zone, if the zone has it.
    pub fn remove(&mut self, sources: &[(IpAddr, String)]) -> Result<()> {
        let mut errors = ErrorList::default();
        for (ip, zone) in sources {
            // Stop at the first call without an answer: each call may take its full timeout.
            if let Answer::Refused(why) = self.ask("removeSource", zone, *ip)?
                // The address may be in another zone.
                && !is_one_of(&why, &NOT_THERE)
                && !why.contains(CONFLICT)
            {
                let msg = format!("remove address {ip} from firewalld zone {zone:?}: {why}");
                errors.add(Error::new(Code::HOST_PROGRAM, msg));
            }
        }
        errors.finish()
    }

    /// Requires that the zone exists.
    pub fn require_zone(&mut self, zone: &str) -> Result<()> {
        self.has(zone, IpAddr::from([127, 0, 0, 1])).map(drop)
    }

    fn ask(&mut self, method: &str, zone: &str, ip: IpAddr) -> Result<Answer> {
        self.0.call(ZONE, method, &[zone, &IpNet::from(ip).to_string()])
    }
}

/// Whether an error has one of these reasons. firewalld begins the text of its errors with a word
/// for the reason.
fn is_one_of(why: &str, reasons: &[&str]) -> bool {
    reasons.iter().any(|reason| why.starts_with(reason))
}
