use std::path::Path;

use super::Flannel;
use super::conf::{self, Conf};
use super::kept::{Found, Kept};
use super::subnet_env::SubnetEnv;
use crate::cni::attachment::Key;
use crate::cni::conf::Config;
use crate::cni::env::Environment;
use crate::error::{Code, Error};
use crate::plugin::{Context, Entry};
use crate::scratch::Scratch;

const V4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n";
const V6: &str =
    "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\n";
const REST: &str = "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

fn env(text: &str) -> Result<SubnetEnv, (u32, String)> {
    SubnetEnv::parse(text, Path::new("/e")).map_err(|e| (e.code.0, e.msg.clone()))
}

/// flannel's configuration with these keys.
fn config(keys: &str) -> Config {
    let config = format!(r#"{{"name":"cbr0","cniVersion":"0.3.1","type":"flannel"{keys}}}"#);
    Config::parse(config.into_bytes()).unwrap()
}

fn text_of(made: Config) -> String {
    String::from_utf8(made.text).unwrap()
}

fn made(keys: &str, text: &str) -> String {
    let config = config(keys);
    let conf: Conf = config.decode().unwrap();
    text_of(conf::of_add(&config, &conf, &env(text).unwrap()).unwrap())
}

fn refused(keys: &str) -> Error {
    let config = config(keys);
    let env: Environment = [("CNI_IFNAME".into(), "eth0".into())].into_iter().collect();
    let cx = Context::new(&[], &config, &env, "", vec![]);
    Entry::of::<Flannel>().validate(&cx).unwrap_err()
}

#[test]
fn a_wrong_configuration_is_refused_in_the_original_s_words() {
    let must_not = |key: &str| {
        format!("'delegate' dictionary must not have '{key}' field, it'll be set by flannel")
    };
    let of_type = "'delegate' dictionary, if present, must have (string) 'type' field";
    for (keys, msg) in [
        (r#","delegate":{"type":7}"#, of_type.to_owned()),
        (r#","delegate":{"name":"x"}"#, must_not("name")),
        (r#","delegate":{"ipam":null}"#, must_not("ipam")),
        (
            r#","delegate":{"type":"flannel"}"#,
            "delegate.type: flannel would run itself, expected a plugin that creates the interface"
                .to_owned(),
        ),
        (
            r#","subnetFileTimeout":61"#,
            "subnetFileTimeout: 61 is out of range, expected 0 to 60".to_owned(),
        ),
    ] {
        assert_eq!(refused(keys).msg, msg, "{keys}");
    }
    let error = refused(r#","ipam":{"routes":[{"dst":"10.0.0.0/8"},{"dst":"x"}]}"#);
    let mistake = error.mistake.as_ref().unwrap();
    assert_eq!(mistake.path, "ipam.routes[1].dst");
}

/// Our plugins need no more than the names; what is not known any more is left out.
#[test]
fn del_and_gc_need_neither_a_kept_configuration_nor_the_file() {
    let keys = r#","delegate":{"type":"ptp","mtu":1400},"ipam":{"type":"x","k":1},"cni.dev/valid-attachments":[],"prevResult":{}"#;
    let expected = r#"{"cni.dev/valid-attachments":[],"cniVersion":"0.3.1","ipam":{"k":1,"type":"x"},"mtu":1400,"name":"cbr0","type":"ptp"}"#;
    assert_eq!(text_of(conf::of_del(&config(keys)).unwrap()), expected);
    let expected =
        r#"{"cniVersion":"0.3.1","ipam":{"type":"host-local"},"name":"cbr0","type":"bridge"}"#;
    assert_eq!(text_of(conf::of_del(&config("")).unwrap()), expected);
}

#[test]
fn check_passes_the_result_of_its_own_call_on() {
    let kept =
        Config::parse(br#"{"mtu":1,"name":"cbr0","prevResult":{"old":1}}"#.to_vec()).unwrap();
    let config = config(r#","prevResult":{"new":1}"#);
    let made = conf::with_result_of(&config, &kept).unwrap();
    assert_eq!(text_of(made), r#"{"mtu":1,"name":"cbr0","prevResult":{"new":1}}"#);
}

/// The right sides are what the original keeps.
#[test]
fn the_delegate_s_configuration_is_the_original_s() {
    let v4 = r#""ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}]"#;
    let v6 =
        r#""ranges":[[{"subnet":"2001:cafe:42:1::/64"}]],"routes":[{"dst":"2001:cafe:42::/56"}]"#;
    let both = r#""ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"2001:cafe:42:1::/64"}]],"routes":[{"dst":"10.244.0.0/16"},{"dst":"2001:cafe:42::/56"}]"#;
    let usual = |ipam: &str| {
        format!(
            r#"{{"cniVersion":"0.3.1","ipMasq":false,"ipam":{{{ipam},"type":"host-local"}},"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}}"#
        )
    };
    assert_eq!(made("", &format!("{V4}{REST}")), usual(v4));
    assert_eq!(made("", &format!("{V6}{REST}")), usual(v6));
    assert_eq!(made("", &format!("{V6}{V4}{REST}")), usual(both));
    let keys = r#","delegate":{"type":"ipvlan","master":"eth0","mtu":1400,"ipMasq":null,"a":"<&>"},"ipam":{"type":"x","ranges":7,"routes":[{"dst":"10.9.1.2/16","gw":"10.9.0.1"}],"k":1},"runtimeConfig":{"mac":"02:00:00:00:00:01"}"#;
    let expected = r#"{"a":"\u003c\u0026\u003e","cniVersion":"0.3.1","ipMasq":null,"ipam":{"k":1,"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.9.1.2/16","gw":"10.9.0.1"},{"dst":"10.244.0.0/16"}],"type":"x"},"master":"eth0","mtu":1400,"name":"cbr0","runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"ipvlan"}"#;
    assert_eq!(made(keys, &format!("{V4}{REST}")), expected);
}

#[test]
fn lines_are_read_as_the_original_reads_them() {
    let text = "# by hand\r\nFLANNEL_NETWORK=10.244.3.0/16,10.245.0.0/16,10.244.0.0/16\r\nFLANNEL_SUBNET=10.1.1.1/24\r\nFLANNEL_SUBNET=10.244.1.1/24\r\nFLANNEL_MTU=1450\r\nOTHER\r\nFLANNEL_IPMASQ=TRUE";
    let found = env(text).unwrap();
    let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    assert_eq!(found.networks, nets(&["10.244.0.0/16", "10.245.0.0/16"]));
    assert_eq!(found.subnets, nets(&["10.244.1.0/24"]));
    assert_eq!((found.mtu, found.ip_masq), (1450, false));
}

#[test]
fn lines_that_do_not_serve_are_refused() {
    let whole = format!("{V4}{REST}");
    for (from, to, code, words) in [
        ("=1450", "=-1", Code::INVALID_CONFIG, "parsing \"-1\": invalid syntax"),
        ("=1450", "=4294967296", Code::INVALID_CONFIG, "value out of range"),
        ("=1450", "= 1450", Code::INVALID_CONFIG, "invalid syntax"),
        ("=1450", "", Code::INVALID_CONFIG, "FLANNEL_MTU has no value"),
        ("10.244.1.1/24", "10.244.1.1", Code::INVALID_CONFIG, "invalid CIDR address: 10.244.1.1"),
        ("FLANNEL_MTU", "export FLANNEL_MTU", Code::TRY_AGAIN, "/e is missing FLANNEL_MTU."),
    ] {
        let (found, msg) = env(&whole.replace(from, to)).unwrap_err();
        assert!(found == code.0 && msg.contains(words), "{to:?}: {found} {msg}");
    }
    let all = "/e is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ.";
    assert!(env("").unwrap_err().1.contains(all));
}

#[test]
fn either_finds_what_the_other_keeps() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("data");
    let kept = Kept(&dir);
    let key = |ifname: &str| Key::parse("cbr0", "pod", ifname).unwrap();
    let text = |mtu: u32| format!(r#"{{"mtu":{mtu},"name":"cbr0"}}"#).into_bytes();
    let mtu = |found: Found| match found {
        Found::Whole(config) => config.value.get("mtu").and_then(|mtu| mtu.as_u64()),
        Found::Torn | Found::Nothing => None,
    };
    kept.write(&key("eth0"), &text(1)).unwrap();
    kept.write(&key("net1"), &text(2)).unwrap();
    assert_eq!(std::fs::read(dir.join("pod")).unwrap(), text(1), "the original's");
    assert!(kept.of_original().unwrap().is_empty(), "it has a second name");
    kept.write(&key("eth0"), &text(3)).unwrap();
    assert_eq!(std::fs::read(dir.join("pod")).unwrap(), text(3));
    assert_eq!(mtu(kept.find(&key("net1")).unwrap()), Some(2));
    assert_eq!(mtu(kept.find(&key("net2")).unwrap()), None, "another interface's");
    kept.remove(&key("net1")).unwrap();
    assert!(dir.join("pod").exists());
    kept.remove(&key("eth0")).unwrap();
    assert!(!dir.join("pod").exists());

    assert!(kept.of_original().unwrap().is_empty());
    std::os::unix::fs::symlink("elsewhere", dir.join("pod")).unwrap();
    assert!(kept.of_original().unwrap().is_empty(), "a link is no file of the original");
    assert!(matches!(kept.find(&key("eth0")).unwrap(), Found::Nothing));
    std::fs::remove_file(dir.join("pod")).unwrap();

    std::fs::write(dir.join("pod"), text(4)).unwrap();
    assert_eq!(kept.of_original().unwrap().len(), 1);
    assert_eq!(mtu(kept.find(&key("eth0")).unwrap()), Some(4), "by the original");
    kept.write(&key("net1"), &text(5)).unwrap();
    kept.restore(&key("net1"), None).unwrap();
    assert_eq!(mtu(kept.find(&key("eth0")).unwrap()), Some(4), "a failed ADD leaves it");
    std::fs::write(dir.join("pod"), &text(4)[..5]).unwrap();
    assert!(matches!(kept.find(&key("eth0")).unwrap(), Found::Torn));
    kept.remove(&key("eth0")).unwrap();
    assert!(!dir.join("pod").exists());
}
