//! The configuration of `host-device`, and how it selects a device: by name, by hardware address,
//! or by its place in sysfs (sysfs(5)).

use std::path::Path;
use std::{fmt, fs};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::net::mac::{self, MacAddr};
use crate::net::netlink::{Link, Netlink};
use crate::plugin::{Context, PluginConf};
use crate::steps::dns::DnsConf;
use crate::steps::ipam;
use crate::steps::settings::AcceptRa;

/// The keys of the configuration: one of the four that select a device, or
/// `runtimeConfig.deviceID`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    device: String,
    #[serde(deserialize_with = "mac::optional")]
    hwaddr: Option<MacAddr>,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "acceptRA")]
    pub(super) accept_ra: AcceptRa,
    pub(super) dns: DnsConf,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConf,
}

/// The device that a device plugin of the orchestrator has chosen.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConf {
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// The directory of devices in sysfs.
const DEVICES: &str = "/sys/devices/";

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "device | string | none | The link's name on the host, or another name of it (`ip link property`).
        hwaddr | string | none | The link's hardware address.
        kernelpath | string | none | The device's directory below `/sys/devices/`; the first link in its `net` is taken.
        pciBusID | string | none | The device's address on the PCI bus, such as `0000:00:1f.6`; the first link in its `net`, or in that of its virtio device.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "ipam.type | string | none | The IPAM plugin. Without it the device is up and has no addresses.
        runtimeConfig.deviceID | string | none | The choice of a device plugin: an address on the PCI bus, or a name on the auxiliary bus. Overrides `pciBusID`.",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        for (path, id) in [
            ("pciBusID", &self.pci_bus_id),
            ("runtimeConfig.deviceID", &self.runtime_config.device_id),
        ] {
            if [".", ".."].contains(&id.as_str()) || id.contains(['/', '\0']) {
                return Err(Error::config(path, format_args!("{id:?} is not a device id"))
                    .expecting("one like 0000:00:1f.6"));
            }
        }
        let path = &self.kernelpath;
        let is_below = path.starts_with(DEVICES) && path.split('/').all(|part| part != "..");
        if !path.is_empty() && !is_below {
            return Err(Error::config(
                "kernelpath",
                format_args!("{path:?} is not below {DEVICES}"),
            )
            .saying(format_args!(
                "kernel device path {path:?} must be absolute and begin with {DEVICES}"
            )));
        }
        self.selector().map(drop)
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }
}

impl Conf {
    /// The one way in which the configuration selects the device.
    pub fn selector(&self) -> Result<Selector<'_>> {
        let id = given(&self.runtime_config.device_id);
        let pci = given(&self.pci_bus_id).filter(|_| id.is_none());
        let all = [
            given(&self.device).map(Selector::Name),
            self.hwaddr.as_ref().map(Selector::Mac),
            given(&self.kernelpath).map(Selector::KernelPath),
            pci.map(Selector::Pci),
            id.map(Selector::Id),
        ];
        let given: Vec<Selector<'_>> = all.into_iter().flatten().collect();
        match given[..] {
            [one] => Ok(one),
            [one, other, ..] => Err(Error::exclusive(other.path(), one.path())),
            [] => Err(Error::config("device", "nothing chooses a device")
                .expecting("one of four keys")
                .supplied_by("deviceID")
                .saying("specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"")),
        }
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Drivers that hand a device to a user-space process.
const OF_USER_SPACE: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const AUXILIARY_DEVICES: &str = "/sys/bus/auxiliary/devices";

/// A way to choose a device.
#[derive(Clone, Copy, Debug)]
pub enum Selector<'a> {
    /// By its name or altname.
    Name(&'a str),
    /// By its hardware address.
    Mac(&'a MacAddr),
    /// By its directory below /sys/devices.
    KernelPath(&'a str),
    /// By its address on the PCI bus.
    Pci(&'a str),
    /// By its address on the PCI bus or its name on the auxiliary bus, from the runtime.
    Id(&'a str),
}

/// The device that was selected.
#[derive(Debug)]
pub enum Device {
    /// A link of the host.
    Link(Box<Link>),
    /// Not a link: a user-space process drives it.
    OfUserSpace,
}

impl Selector<'_> {
    /// The path of the field in the configuration.
    pub fn path(&self) -> &'static str {
        match self {
            Selector::Name(_) => "device",
            Selector::Mac(_) => "hwaddr",
            Selector::KernelPath(_) => "kernelpath",
            Selector::Pci(_) => "pciBusID",
            Selector::Id(_) => "runtimeConfig.deviceID",
        }
    }

    fn mistake(&self, problem: impl fmt::Display) -> Error {
        Error::config(self.path(), format_args!("{self} {problem}"))
    }
}

/// The value in the configuration.
impl fmt::Display for Selector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Mac(mac) => mac.fmt(f),
            Selector::Name(text)
            | Selector::KernelPath(text)
            | Selector::Pci(text)
            | Selector::Id(text) => fmt::Debug::fmt(text, f),
        }
    }
}

/// Advice for a device that is not found.
const ELSEWHERE: &str = "a device that is in a container already is not on the host";

/// Finds the device. Reports a mistake in the configuration if it is not on the host.
pub fn find(host: &Netlink, selector: Selector<'_>) -> Result<Device> {
    match selector {
        Selector::Name(name) => selector.require(host.find_link(name)?),
        Selector::Mac(mac) => selector.require(host.find_link_by_mac(mac)?),
        Selector::KernelPath(path) => selector.find_in(host, &Path::new(path).join("net")),
        Selector::Pci(id) => selector.find_on_pci(host, &Path::new(PCI_DEVICES).join(id)),
        Selector::Id(id) => {
            let pci = Path::new(PCI_DEVICES).join(id);
            let auxiliary = Path::new(AUXILIARY_DEVICES).join(id);
            if pci.exists() {
                return selector.find_on_pci(host, &pci);
            }
            if auxiliary.exists() {
                return selector.find_in(host, &auxiliary.join("net"));
            }
            Err(selector
                .mistake("is not a device of the PCI or the auxiliary bus")
                .expecting("one")
                .saying(format_args!("runtime config DeviceID {id} not found or unsupported")))
        }
    }
}

impl Selector<'_> {
    fn require(self, link: Option<Link>) -> Result<Device> {
        let link = link.ok_or_else(|| {
            self.mistake("is not a link of the host")
                .expecting("one that is")
                .with_details(ELSEWHERE)
                .saying(match self {
                    Selector::Name(_) => "failed to find host device: Link not found",
                    _ => "failed to find host device: failed to find physical interface",
                })
        })?;
        Ok(Device::Link(Box::new(link)))
    }

    /// The first link in a directory `net` of sysfs.
    fn find_in(self, host: &Netlink, net: &Path) -> Result<Device> {
        let place = net.display();
        let entries = fs::read_dir(net)
            .map_err(|e| self.mistake(format_args!("has no network interface: {place}: {e}")))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let first = names.min().ok_or_else(|| {
            self.mistake(format_args!("has no network interface in {place}"))
                .with_details(ELSEWHERE)
        })?;
        self.require(host.find_link(&first)?)
    }

    /// The first link of a PCI device: in its own directory `net`, or in that of the virtio device
    /// on it.
    fn find_on_pci(self, host: &Netlink, device: &Path) -> Result<Device> {
        if !device.exists() {
            return Err(self
                .mistake("is not a device of the PCI bus")
                .expecting("one like 0000:00:1f.6"));
        }
        let driver = fs::read_link(device.join("driver"))
            .map_err(|e| self.mistake(format_args!("has no driver: {e}")))?;
        if OF_USER_SPACE.iter().any(|known| driver.ends_with(known)) {
            return Ok(Device::OfUserSpace);
        }
        let own = device.join("net");
        if own.exists() {
            return self.find_in(host, &own);
        }
        let entries = fs::read_dir(device).into_iter().flatten().flatten();
        let virtio =
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("virtio"));
        match virtio.map(|entry| entry.path().join("net")).filter(|net| net.exists()).min() {
            Some(net) => self.find_in(host, &net),
            None => Err(self
                .mistake("has no network interface")
                .expecting(format_args!("a directory net in {}", device.display()))),
        }
    }
}
