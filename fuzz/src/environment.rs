//! Any text as the variables of a call, as arguments and as names: an accepted name is safe in
//! every name that is derived from it.
//!
//! The input is lines of `NAME=value`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cni_multi::cni::addr::{parse_cidr, parse_ip};
use cni_multi::cni::args::Args;
use cni_multi::cni::attachment::Key;
use cni_multi::cni::env::{Environment, Parameters};
use cni_multi::cni::version::Number;
use cni_multi::error::Code;
use cni_multi::net::mac::MacAddr;
use cni_multi::net::sysctl::Sysctl;
use cni_multi::runtime::parameters;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let pair = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&line[..at]).to_owned(), OsStr::from_bytes(&line[at + 1..]).to_owned()))
    };
    let env: Environment = bytes.split(|byte| *byte == b'\n').filter_map(pair).collect();
    match Parameters::read(&env) {
        Ok(parameters) => {
            if let (Some(id), Some(ifname)) = (&parameters.container_id, &parameters.ifname) {
                require_key(&Key::parse("net", id.as_str(), ifname.as_str()).expect("they were checked"));
            }
        }
        Err(error) => assert!([Code::INVALID_ENVIRONMENT, Code::UNKNOWN_CONTAINER].contains(&error.code), "{error:?}"),
    }
    let [network, id, ifname, args] =
        ["NETWORK", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_ARGS"].map(|name| env.get(name));
    if let Ok(key) = Key::parse(&network, &id, &ifname) {
        require_key(&key);
    }
    require_args(&args);
    require_texts(&args);
}

/// Checks a key from which the names of files, links and chains are made.
fn require_key(key: &Key) {
    for name in [key.network.as_str(), key.container_id.as_str(), key.ifname.as_str()] {
        assert!(!name.is_empty() && !name.contains(['/', '\n']) && name != "." && name != "..", "{name:?}");
    }
    assert!(!key.network.as_str().contains('\0') && !key.container_id.as_str().contains('\0'));
    // Code that creates a link checks this first; the link's files are named by a hash.
    assert!(!key.ifname.as_str().contains('\0') || key.ifname.is_pattern());
    assert!(key.ifname.as_str().len() < 16, "{:?}", key.ifname);
    assert!(key.comment().len() <= 128 && key.comment().starts_with(&key.identity()));
    assert!(key.identity().len() == 33 && key.iptables_chain().len() == 28);
}

fn require_args(text: &str) {
    let known = ["IP", "MAC", "K8S_POD_NAME"];
    match Args::parse(text, &known) {
        Ok(args) => known.iter().filter_map(|key| args.get(key)).for_each(|value| assert!(!value.contains([';', '=']))),
        Err(error) => assert_eq!(error.code, Code::INVALID_ENVIRONMENT),
    }
    if let Ok(pairs) = parameters::parse_args(text) {
        let joined: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(joined.join(";"), text);
    }
    let _ = parameters::parse_capability_args(text); // must return, with any result
    assert!(parameters::container_id(text).is_ok());
}

/// Checks the final types of values: addresses, version numbers, hardware addresses, sysctls.
fn require_texts(text: &str) {
    if let Ok(Some(ip)) = parse_ip(text) {
        assert_eq!(parse_ip(&ip.to_string()), Ok(Some(ip)));
    }
    if let Ok(net) = parse_cidr(text) {
        assert_eq!(parse_cidr(&net.to_string()), Ok(net));
    }
    if let Ok(mac) = text.parse::<MacAddr>() {
        assert_eq!(mac.to_string().parse::<MacAddr>().as_ref(), Ok(&mac));
    }
    if let Some(sysctl) = Sysctl::parse(text) {
        assert!(!sysctl.to_string().contains(".."), "{sysctl}");
    }
    let _ = Number::parse(text); // must return, with any result
}
