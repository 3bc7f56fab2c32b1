//! The configuration of `dhcp`: its keys as written, and what they resolve to.

use std::collections::HashSet;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::plugin::{Context, PluginConf};
use crate::plugins::ipam::dhcp::client::dhcpv4::Provided;
use crate::plugins::ipam::dhcp::client::dhcpv6::Mode;
use crate::plugins::ipam::dhcp::wire::{Terms, socket_path};

/// DHCPv4 option names (RFC 2132, RFC 3004, RFC 3397, RFC 3442). The first six are the reference's.
const OPTION_NAMES: [(&str, u8); 12] = [
    ("dhcp-client-identifier", 61),
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("user-class", 77),
    ("vendor-class-identifier", 60),
    ("domain-name-servers", 6),
    ("domain-name", 15),
    ("interface-mtu", 26),
    ("static-routes", 33),
    ("domain-search", 119),
    ("classless-static-routes", 121),
];

/// Requested in addition, unless an entry has `skipDefault`: routers and the subnet mask.
const ALWAYS_REQUESTED: [u8; 2] = [3, 1];
/// Requested if the configuration leaves the list empty: subnet mask, routers, domain name, name
/// servers.
const LEAST_REQUESTED: [u8; 4] = [1, 3, 15, 6];

/// Options that are part of the message format, or that the client sets itself: pad, overload,
/// type, server, list, end.
const NOT_FOR_USERS: [u8; 6] = [0, 52, 53, 54, 55, 255];

/// The longest value of an option.
const VALUE_MAX: usize = 255;

/// What ADD works from.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// The leases to acquire, at least one.
    #[serde(skip)]
    pub leases: Vec<Terms>,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "ipam.provide | list | none | Options sent to the server. Of duplicates the last counts.
        ipam.provide[].option | string | required | The option, by name or number.
        ipam.provide[].value | string | none | Its value, at most 255 bytes, sent unchanged.
        ipam.provide[].fromArg | string | none | A key of CNI_ARGS; if it is present, its value replaces `value`.
        ipam.request | list | none | Options requested from the server, in this order, before routers and subnet mask.
        ipam.request[].option | string | none | The option, by name or number.
        ipam.request[].skipDefault | boolean | false | In any entry: do not request routers and subnet mask. If nothing is left to request, 1, 3, 15 and 6 are.
        ipam.priority | integer | 0 | The metric of every route of the result; 0 leaves it to the kernel.
        ipam.dhcpv4 | boolean | true | Lease an IPv4 address. False requires one of the next two.
        ipam.dhcpv6 | boolean | false | Lease an IPv6 address from a DHCPv6 server.
        ipam.slaac | boolean | false | Form an IPv6 address from a router's advertised prefix. Excludes `dhcpv6`.
        ipam.daemonSocketPath | path | `/run/cni/dhcp.sock` | The daemon's socket. DEL and GC find the lease by it.
        CNI_ARGS | string | none | Any keys: those named by a `fromArg` are used, others ignored.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        socket_path(cx.config)?;
        let document: Document = cx.config.decode()?;
        let ipam =
            document.ipam.ok_or_else(|| Error::missing("ipam", "an object with type dhcp"))?;
        let provide = provided(&ipam.provide, cx.args)?;
        let request = requested(&ipam.request)?;
        let terms = |v6| Terms {
            provide: provide.clone(),
            request: request.clone(),
            priority: ipam.priority,
            v6,
        };
        self.leases = sources(&ipam)?.into_iter().map(terms).collect();
        Ok(())
    }
}

/// The part of the configuration that is read; `KEYS` describes the keys.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Ipam>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    priority: i64,
    dhcpv4: Option<bool>,
    // The reference has neither of these two.
    dhcpv6: bool,
    slaac: bool,
    provide: Vec<Provide>,
    request: Vec<Request>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Provide {
    option: String,
    value: String,
    from_arg: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request {
    option: String,
    skip_default: bool,
}

/// The source of each lease; `None` is IPv4.
fn sources(ipam: &Ipam) -> Result<Vec<Option<Mode>>> {
    let mut sources = vec![];
    if ipam.dhcpv4.unwrap_or(true) {
        sources.push(None);
    }
    match (ipam.dhcpv6, ipam.slaac) {
        (true, true) => return Err(Error::exclusive("ipam.slaac", "ipam.dhcpv6")),
        (true, false) => sources.push(Some(Mode::Dhcp)),
        (false, true) => sources.push(Some(Mode::Slaac)),
        (false, false) if sources.is_empty() => {
            return Err(Error::config("ipam.dhcpv4", "false").expecting("dhcpv6 or slaac with it"));
        }
        (false, false) => (),
    }
    Ok(sources)
}

/// The options to send to the server. The last of several values for one option wins.
fn provided(list: &[Provide], args: &str) -> Result<Vec<Provided>> {
    let mut options: Vec<Provided> = vec![];
    for (i, Provide { option, value, from_arg }) in list.iter().enumerate() {
        let at = format!("ipam.provide[{i}]");
        let code = option_code(option, &at)?;
        if NOT_FOR_USERS.contains(&code) {
            let problem = format_args!("{code} is the client's own to send");
            return Err(Error::config(format_args!("{at}.option"), problem));
        }
        // Lenient like the reference: text that is not a pair and other plugins' keys are skipped.
        let mut pairs = args.split(';').filter_map(|pair| pair.split_once('='));
        let of_args = pairs.rfind(|(key, _)| key == from_arg && !key.is_empty());
        let of_args = of_args.map(|(_, value)| value);
        let written = Some(value.as_str()).filter(|value| !value.is_empty());
        for (value, key) in [(written, "value"), (of_args, "fromArg")] {
            if let Some(value) = value.filter(|value| value.len() > VALUE_MAX) {
                let problem = format!("{} bytes are too long", value.len());
                return Err(Error::config(format_args!("{at}.{key}"), problem)
                    .expecting(format_args!("at most {VALUE_MAX}"))
                    .saying(format!("value too long for option {option:?}")));
            }
        }
        if let Some(value) = of_args.or(written) {
            options.retain(|other| other.0 != code);
            options.push(Provided(code, value.into()));
        }
    }
    Ok(options)
}

/// The options to request from the server, each once.
fn requested(list: &[Request]) -> Result<Vec<u8>> {
    let mut codes = vec![];
    for (i, Request { option, .. }) in list.iter().enumerate() {
        if !option.is_empty() {
            codes.push(option_code(option, &format!("ipam.request[{i}]"))?);
        }
    }
    if !list.iter().any(|request| request.skip_default) {
        codes.extend(ALWAYS_REQUESTED);
    }
    if codes.is_empty() {
        codes.extend(LEAST_REQUESTED);
    }
    let mut seen = HashSet::new();
    codes.retain(|code| seen.insert(*code));
    Ok(codes)
}

/// The code of an option that is given by its name or number.
fn option_code(text: &str, at: &str) -> Result<u8> {
    let named = OPTION_NAMES.iter().find(|(name, _)| *name == text).map(|(_, code)| *code);
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let code = named.or_else(|| text.parse().ok().filter(|_| is_number));
    code.ok_or_else(|| {
        let names = OPTION_NAMES.map(|(name, _)| name).join(", ");
        Error::config(format_args!("{at}.option"), format_args!("{text:?} is not an option"))
            .expecting(format_args!("a number from 0 to 255, or one of {names}"))
            .saying(format_args!("Can not parse option {text:?}"))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::conf::Config;
    use crate::cni::env::Environment;
    use crate::error::Code;

    fn decoded(ipam: &str, args: &str) -> Result<Conf> {
        let config =
            Config::parse(format!(r#"{{"name":"n","ipam":{ipam}}}"#).into_bytes()).unwrap();
        let env = Environment::of_process();
        let mut conf: Conf = config.decode()?;
        conf.validate(&Context::new(&[], &config, &env, args, vec![]))?;
        Ok(conf)
    }

    fn requests(list: &str) -> Vec<u8> {
        decoded(&format!(r#"{{"request":{list}}}"#), "").unwrap().leases.remove(0).request
    }

    #[test]
    fn what_is_requested_comes_before_the_defaults_and_once() {
        assert_eq!(requests("[]"), [3, 1]);
        assert_eq!(
            requests(r#"[{"option":"host-name"},{"option":"3"},{"option":"routers"}]"#),
            [12, 3, 1]
        );
        assert_eq!(requests(r#"[{"skipDefault":true},{"option":"121"}]"#), [121]);
        assert_eq!(requests(r#"[{"skipDefault":true}]"#), [1, 3, 15, 6]);
        let named = r#"[{"option":"domain-name-servers"},{"option":"domain-name"},{"option":"interface-mtu"},
            {"option":"static-routes"},{"option":"domain-search"},{"option":"classless-static-routes"}]"#;
        assert_eq!(requests(named), [6, 15, 26, 33, 119, 121, 3, 1]);
    }

    #[test]
    fn a_value_of_cni_args_comes_before_the_one_that_is_written() {
        let ipam = r#"{"provide":[{"option":"host-name","value":"a","fromArg":"NAME"},{"option":"60","value":"v"},
            {"option":"77","fromArg":"none"}]}"#;
        let provided = |args: &str| decoded(ipam, args).unwrap().leases.remove(0).provide;
        let option = |code: u8, value: &str| Provided(code, value.into());
        assert_eq!(provided(""), [option(12, "a"), option(60, "v")]);
        assert_eq!(provided("x;NAME=b=c;=;"), [option(12, "b=c"), option(60, "v")]);
        assert_eq!(provided("NAME=b;NAME="), [option(12, ""), option(60, "v")]);
    }

    #[test]
    fn mistakes_name_their_path_and_what_was_expected() {
        let long = "x".repeat(256);
        let cases = [
            (
                r#"{"provide":[{"option":"hostname"}]}"#.to_owned(),
                "ipam.provide[0].option: \"hostname\" is not an option",
            ),
            (
                r#"{"request":[{},{"option":"+3"}]}"#.to_owned(),
                "ipam.request[1].option: \"+3\" is not an option",
            ),
            (
                r#"{"request":[{"option":"256"}]}"#.to_owned(),
                "ipam.request[0].option: \"256\" is not an option",
            ),
            (
                r#"{"provide":[{"option":"53","value":"x"}]}"#.to_owned(),
                "ipam.provide[0].option: 53 is the client's own",
            ),
            (
                format!(r#"{{"provide":[{{"option":"12","value":"{long}"}}]}}"#),
                "ipam.provide[0].value: 256 bytes are too long, expected at most 255",
            ),
            (r#"{"priority":"high"}"#.to_owned(), "ipam.priority: expected an integer"),
            (
                r#"{"provide":[{"option":"12","value":5}]}"#.to_owned(),
                "ipam.provide[0].value: expected a string",
            ),
            (r#"{"request":{"option":"3"}}"#.to_owned(), "ipam.request: expected a list"),
            (
                r#"{"request":[{"option":"3"},{"option":"-1"}]}"#.to_owned(),
                "ipam.request[1].option: \"-1\" is not an option",
            ),
            (r#"{"daemonSocketPath":7}"#.to_owned(), "ipam.daemonSocketPath: expected a string"),
            (
                r#"{"dhcpv6":true,"slaac":true}"#.to_owned(),
                "ipam.slaac and ipam.dhcpv6 are mutually exclusive",
            ),
            (
                r#"{"dhcpv4":false}"#.to_owned(),
                "ipam.dhcpv4: false, expected dhcpv6 or slaac with it",
            ),
            (r#"{"dhcpv6":"yes"}"#.to_owned(), "ipam.dhcpv6: expected a boolean"),
            ("null".to_owned(), "ipam: missing, expected an object with type dhcp"),
        ];
        for (ipam, expected) in cases {
            let error = decoded(&ipam, "").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = decoded(r#"{"provide":[{"option":"12","fromArg":"A"}]}"#, &format!("A={long}"))
            .unwrap_err();
        assert_eq!(error.msg, "value too long for option \"12\"");
        assert_eq!(
            error.details(),
            "ipam.provide[0].fromArg: 256 bytes are too long, expected at most 255"
        );
        assert_eq!(error.code, Code::INVALID_CONFIG);
    }

    #[test]
    fn an_address_of_either_family_is_leased_or_of_both() {
        let cases = [
            ("{}", vec![None]),
            (r#"{"dhcpv4":null}"#, vec![None]),
            (r#"{"dhcpv6":true}"#, vec![None, Some(Mode::Dhcp)]),
            (r#"{"slaac":true}"#, vec![None, Some(Mode::Slaac)]),
            (r#"{"dhcpv4":false,"dhcpv6":true}"#, vec![Some(Mode::Dhcp)]),
            (r#"{"dhcpv4":false,"slaac":true}"#, vec![Some(Mode::Slaac)]),
        ];
        for (ipam, leases) in cases {
            let found = decoded(ipam, "").unwrap().leases;
            assert_eq!(found.iter().map(|terms| terms.v6).collect::<Vec<_>>(), leases, "{ipam}");
        }
    }
}
