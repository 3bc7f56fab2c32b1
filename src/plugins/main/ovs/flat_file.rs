//! The file with keys that a configuration leaves out.

use std::path::{Path, PathBuf};

use super::conf::Conf;
use crate::cni::conf;
use crate::cni::decode;
use crate::error::{Code, Error, Result};
use crate::plain_file;

/// The places of the file after `configuration_path`, as in the original.
const PLACES: [&str; 2] =
    ["/etc/kubernetes/cni/net.d/ovs.d/ovs.conf", "/etc/cni/net.d/ovs.d/ovs.conf"];

/// The configuration with the keys of the first file that exists, where it has none of its own.
/// Without a file it is complete.
pub fn completed(conf: &Conf) -> Result<Conf> {
    let Some((path, text)) = find(&conf.configuration_path)? else { return Ok(conf.clone()) };
    let completed = || {
        let completed = merged(conf.clone(), decode::from_value(&conf::document(&text)?)?);
        completed.validate_keys()?;
        Ok(completed)
    };
    completed().map_err(|e: Error| {
        e.context(format_args!("parse ovs config file {}: error", path.display()))
    })
}

fn find(configured: &str) -> Result<Option<(PathBuf, Vec<u8>)>> {
    for path in [configured].iter().chain(&PLACES).filter(|path| !path.is_empty()) {
        match plain_file::read_configuration(Path::new(path)) {
            Ok(text) => return Ok(Some((path.into(), text))),
            Err(e) if plain_file::is_nowhere(&e) => (),
            Err(e) => {
                let what = format_args!("open ovs config file {path} error");
                return Err(Error::io(what, &e).with_code(Code::IO));
            }
        }
    }
    Ok(None)
}

/// What is zero counts as left out, as in the original; `vlan` is so only if it is absent.
fn merged(mut conf: Conf, file: Conf) -> Conf {
    fill(&mut conf.bridge, file.bridge);
    fill(&mut conf.vlan, file.vlan);
    fill(&mut conf.vlan_mode, file.vlan_mode);
    if conf.trunk.is_empty() {
        conf.trunk = file.trunk;
    }
    fill(&mut conf.mtu, file.mtu);
    fill(&mut conf.accept_ra, file.accept_ra);
    fill(&mut conf.ofport_request, file.ofport_request);
    fill(&mut conf.interface_type, file.interface_type);
    fill(&mut conf.device_id, file.device_id);
    fill(&mut conf.socket_file, file.socket_file);
    fill(&mut conf.link_state_check_retries, file.link_state_check_retries);
    fill(&mut conf.link_state_check_interval, file.link_state_check_interval);
    conf
}

fn fill<T: Default + PartialEq>(own: &mut T, of_file: T) {
    if *own == T::default() {
        *own = of_file;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn of(keys: &str, file: &str) -> Result<Conf> {
        let scratch = Scratch::new();
        scratch.write("ovs.conf", file);
        let path = scratch.path().join("ovs.conf");
        let keys = conf::document(keys.as_bytes()).unwrap();
        let mut conf: Conf = decode::from_value(&keys).unwrap();
        conf.configuration_path = path.display().to_string();
        completed(&conf)
    }

    #[test]
    fn the_file_fills_what_is_zero() {
        let file = r#"{"bridge":"of-file","vlan":7,"mtu":1400,"socket_file":"/of/file","ofport_request":3,"trunk":[{"id":5}],"link_state_check_retries":2}"#;
        let own = of(r#"{"bridge":"own","vlan":0,"mtu":1300,"trunk":[{"id":6}]}"#, file).unwrap();
        assert_eq!((own.bridge.as_str(), own.vlan, own.mtu), ("own", Some(0), 1300));
        assert_eq!(own.vlans().trunks, [6]);
        assert_eq!((own.socket(), own.ofport_request), ("/of/file", 3));
        let filled = of("{}", file).unwrap();
        assert_eq!((filled.bridge.as_str(), filled.vlan, filled.mtu), ("of-file", Some(7), 1400));
        assert_eq!(filled.patience().as_millis(), 1200);
    }

    #[test]
    fn a_file_that_does_not_serve_is_named() {
        for (file, problem) in [
            ("{", "EOF"),
            (r#"{"mtu":"x"}"#, "mtu"),
            (r#"{"vlan":5000}"#, "vlan: 5000 is out of range, expected 0 to 4094"),
        ] {
            let msg = of("{}", file).unwrap_err().msg.clone();
            assert!(msg.starts_with("parse ovs config file /"), "{msg}");
            assert!(msg.contains("/ovs.conf: error: ") && msg.contains(problem), "{msg}");
        }
        let mut missing = Conf::default();
        missing.configuration_path = "/nonexistent/ovs.conf".into();
        assert!(completed(&missing).is_ok(), "none is no error");
    }
}
