//! Any text as the variables of a call, as arguments and as names: what is accepted as a name is one, whatever is made of it.
//!
//! Lines of `NAME=value`.

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

/// See above.
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

/// Names of files, links and chains are made of it.
fn require_key(key: &Key) {
    for name in [key.network.as_str(), key.container_id.as_str(), key.ifname.as_str()] {
        assert!(!name.is_empty() && !name.contains(['/', '\n']) && name != "." && name != "..", "{name:?}");
    }
    assert!(!key.network.as_str().contains('\0') && !key.container_id.as_str().contains('\0'));
    // Whoever makes a link looks at this first; its files are named by a hash.
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
    let _ = parameters::parse_capability_args(text); // it only has to come back
    assert!(parameters::container_id(text).is_ok());
}

/// What the values are in the end: addresses, numbers of versions, hardware addresses, sysctls.
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
    let _ = Number::parse(text); // it only has to come back
}
