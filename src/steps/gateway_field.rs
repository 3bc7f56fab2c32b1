//! The configuration field that a gateway came from, for errors: a result's gateway is from the
//! configuration's `ipam` or from the IPAM plugin.

use std::net::IpAddr;

use crate::cni::conf::Config;
use crate::cni::json::Value;
use crate::cni::result::AddResult;

/// The sections in which IPAM plugins read gateways, and the names of the keys.
const SECTIONS: [&str; 3] = ["runtimeConfig", "args", "ipam"];
const KEYS: [&str; 2] = ["gateway", "gw"];

/// The path of the configuration field that has this gateway (`ipam.ranges[0][0].gateway`), or else
/// its path in the IPAM plugin's result.
pub fn of(config: &Config, result: &AddResult, gateway: IpAddr) -> String {
    let in_section = |section: &&str| find(config.value.get(section)?, section, gateway);
    SECTIONS.iter().find_map(in_section).unwrap_or_else(|| {
        match result.ips.iter().position(|ip| ip.gateway == Some(gateway)) {
            Some(index) => format!("ips[{index}].gateway of the IPAM plugin's result"),
            None => "routes[].gw of the IPAM plugin's result".to_owned(),
        }
    })
}

fn find(value: &Value, path: &str, gateway: IpAddr) -> Option<String> {
    let is = |value: &Value| value.as_str().and_then(|text| text.parse().ok()) == Some(gateway);
    match value {
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let is_hop = path.ends_with(".gws") && is(item);
            let path = format!("{path}[{index}]");
            if is_hop { Some(path) } else { find(item, &path, gateway) }
        }),
        Value::Object(pairs) => pairs.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            let is_it = KEYS.iter().any(|name| key.eq_ignore_ascii_case(name)) && is(value);
            if is_it { Some(path) } else { find(value, &path, gateway) }
        }),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::result::IpConfig;

    #[test]
    fn a_gateway_is_found_in_the_configuration_or_in_the_result() {
        let mut ip = IpConfig::new("10.1.0.2/24".parse().unwrap());
        ip.gateway = Some("10.8.0.9".parse().unwrap());
        let result = AddResult { ips: vec![ip], ..AddResult::default() };
        for (ipam, path) in [
            (r#"{"gateway": "10.8.0.9"}"#, "ipam.gateway"),
            (
                r#"{"ranges": [[{"gateway": "10.1.0.1"}, {"Gateway": "10.8.0.9"}]]}"#,
                "ipam.ranges[0][1].Gateway",
            ),
            (r#"{"addresses": [{"gateway": "10.8.0.9"}]}"#, "ipam.addresses[0].gateway"),
            (r#"{"routes": [{"dst": "0.0.0.0/0", "gw": "10.8.0.9"}]}"#, "ipam.routes[0].gw"),
            (r#"{"routes": [{"gws": ["10.8.0.8", "10.8.0.9"]}]}"#, "ipam.routes[0].gws[1]"),
            (r#"{"subnet": "10.8.0.9"}"#, "ips[0].gateway of the IPAM plugin's result"),
        ] {
            let config =
                Config::parse(format!(r#"{{"name": "net", "ipam": {ipam}}}"#).into_bytes())
                    .unwrap();
            assert_eq!(of(&config, &result, "10.8.0.9".parse().unwrap()), path);
        }
    }
}
