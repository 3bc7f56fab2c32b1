//! The requested hardware address of the container's interface, which may be in several places of
//! the input.

use serde::Deserialize;

use crate::cni::args::Args;
use crate::error::{Error, Mistake, Result};
use crate::net::mac::{self, MacAddr};

/// A section of the configuration with a key `mac`: `runtimeConfig`, and for some plugins
/// `args.cni`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MacConf {
    /// The address; an empty string means none.
    #[serde(deserialize_with = "mac::optional")]
    pub mac: Option<MacAddr>,
}

/// `MAC` of CNI_ARGS.
pub fn of_args(cni_args: &str) -> Result<Option<MacAddr>> {
    parse_arg(Args::parse(cni_args, &["MAC"])?.get("MAC").unwrap_or_default())
}

/// The value of `MAC` in CNI_ARGS; an empty string means none.
pub fn parse_arg(text: &str) -> Result<Option<MacAddr>> {
    let given = Some(text).filter(|text| !text.is_empty()).map(str::parse).transpose();
    given.map_err(|mistake: Mistake| mistake.at("CNI_ARGS: MAC").into())
}

/// The address for a plugin with a key `mac`: CNI_ARGS overrides the key, and `runtimeConfig.mac`
/// overrides both.
pub fn of_key(
    own: Option<&MacAddr>,
    cni_args: &str,
    runtime_config: &MacConf,
) -> Result<Option<MacAddr>> {
    let of_args = of_args(cni_args)?;
    strongest([
        ("runtimeConfig.mac", runtime_config.mac.as_ref()),
        ("CNI_ARGS: MAC", of_args.as_ref()),
        ("mac", own),
    ])
}

/// The first address in `places`, which are pairs of path and address. Fails unless an Ethernet
/// interface can have the address.
pub fn strongest<const N: usize>(places: [(&str, Option<&MacAddr>); N]) -> Result<Option<MacAddr>> {
    let first = places.into_iter().find_map(|(path, mac)| Some((path, mac?)));
    let Some((path, mac)) = first else { return Ok(None) };
    let octets = mac.octets().len();
    if octets != 6 {
        return Err(Error::config(path, format_args!("{mac} has {octets} octets")).expecting("6"));
    }
    if mac.is_zero() || mac.is_multicast() {
        let problem = format_args!("{mac} is not the address of one interface");
        return Err(Error::config(path, problem).expecting("a unicast address"));
    }
    Ok(Some(mac.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_address_given_counts_and_error_names_its_place() {
        let mac = |text: &str| text.parse::<MacAddr>().unwrap();
        let good = mac("02:00:00:00:00:01");
        let other = mac("02:00:00:00:00:02");
        let group = mac("01:00:5e:00:00:01");
        assert_eq!(
            strongest([("a", None), ("b", Some(&good)), ("c", Some(&other))]).unwrap(),
            Some(good)
        );
        assert_eq!(strongest([("a", None)]).unwrap(), None);
        assert!(
            strongest([("a", None), ("b", Some(&group))])
                .unwrap_err()
                .msg
                .starts_with("b: 01:00:5e:00:00:01")
        );
        assert!(
            strongest([("a", Some(&mac("00:00:00:00:00:00:00:01")))])
                .unwrap_err()
                .msg
                .contains("8 octets")
        );
    }
}
