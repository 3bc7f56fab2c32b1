//! The configuration of `host-device`.

use serde::Deserialize;

use super::selector::Selector;
use crate::error::{Error, Result};
use crate::net::mac::{self, MacAddr};
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
