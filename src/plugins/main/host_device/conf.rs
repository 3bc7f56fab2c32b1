//! The configuration of `host-device`.

use serde::Deserialize;

use super::selector::Selector;
use crate::error::{Error, Result};
use crate::net::mac::{self, MacAddr};
use crate::plugin::{Context, PluginConf};
use crate::steps::dns::DnsConf;
use crate::steps::ipam;

/// The keys of the configuration: one of the four that select a device, or
/// `runtimeConfig.deviceID`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// The link's name or altname.
    device: String,
    /// The link's hardware address.
    #[serde(deserialize_with = "mac::optional")]
    hwaddr: Option<MacAddr>,
    /// The device's directory below /sys/devices.
    kernelpath: String,
    /// The device's address on the PCI bus, such as `0000:00:1f.6`.
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    /// Resolver settings of the result, in place of the IPAM plugin's.
    pub dns: DnsConf,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConf,
}

/// The device that a device plugin of the orchestrator has chosen.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConf {
    /// The device's address on the PCI bus, or its name on the auxiliary bus. It overrides
    /// `pciBusID`.
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// The directory of devices in sysfs.
const DEVICES: &str = "/sys/devices/";

impl PluginConf for Conf {
    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        for (path, id) in [
            ("pciBusID", &self.pci_bus_id),
            ("runtimeConfig.deviceID", &self.runtime_config.device_id),
        ] {
            if id.contains('/') || id == "." || id == ".." || id.contains('\0') {
                return Err(Error::config(path, format_args!("{id:?} is not a device id"))
                    .expecting("one like 0000:00:1f.6"));
            }
        }
        let is_below_devices = self.kernelpath.starts_with(DEVICES)
            && !self.kernelpath.split('/').any(|part| part == "..");
        if !self.kernelpath.is_empty() && !is_below_devices {
            let path = &self.kernelpath;
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
        let text = |text: &'_ String| !text.is_empty();
        let id = &self.runtime_config.device_id;
        let given = [
            text(&self.device).then_some(Selector::Name(&self.device)),
            self.hwaddr.as_ref().map(Selector::Mac),
            text(&self.kernelpath).then_some(Selector::KernelPath(&self.kernelpath)),
            (text(&self.pci_bus_id) && id.is_empty()).then_some(Selector::Pci(&self.pci_bus_id)),
            text(id).then_some(Selector::Id(id)),
        ];
        match given.into_iter().flatten().collect::<Vec<_>>().as_slice() {
            [] => Err(Error::config("device", "nothing chooses a device")
                .expecting("one of four keys")
                .saying("specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"")),
            [one] => Ok(*one),
            [one, other, ..] => Err(Error::exclusive(other.path(), one.path())),
        }
    }
}
