//! Sticky addresses: an attachment gets the address again that its name had before.

use super::block::{CHUNK, width};
use super::pool::{Pool, Span};
use crate::cni::args::Args;
use crate::error::{Error, Result, warn};

/// The part of a pool that is kept for names: one address of this many.
const PART: u128 = 8;
/// The longest name in bytes. The file of blocks has all names, and the store the name of a block.
const LONGEST: usize = 253;
/// What runtimes of Kubernetes send.
const POD: [&str; 2] = ["K8S_POD_NAMESPACE", "K8S_POD_NAME"];

/// Why no uid of a pod takes an address from another node.
const UNSAFE: &str = "a new uid tells that the pod was replaced, not that its old container has stopped: a node \
    that is cut off runs it still, with the address. A name without a container moves to another node by itself";

/// Reads the setting: the keys of CNI_ARGS that make the name of an attachment, if it keeps its address.
pub fn read(text: &str) -> Result<Vec<String>> {
    let is_key =
        |key: &&str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match (text, text.strip_prefix("arg:").filter(is_key)) {
        ("" | "none", _) => Ok(vec![]),
        ("pod", _) => Ok(POD.map(str::to_owned).to_vec()),
        (_, Some(key)) => Ok(vec![key.to_owned()]),
        _ => Err(Error::config("ipam.sticky", format_args!("unknown setting {text:?}"))
            .expecting("none, pod, or arg: and the name of a key of CNI_ARGS")),
    }
}

/// Reads the setting about names that another node has.
pub fn read_takeover(text: &str) -> Result<()> {
    match text {
        "" | "none" => Ok(()),
        "pod-uid" => Err(Error::config("ipam.takeover", "\"pod-uid\" is refused as unsafe")
            .expecting("none")
            .with_details(UNSAFE)),
        _ => Err(Error::config("ipam.takeover", format_args!("unknown setting {text:?}"))
            .expecting("none")),
    }
}

/// The name of an attachment for each range set, of which it keeps an address: the values of these keys, and
/// the interface. None without keys, and if one is too long: the attachment keeps no address, rather than
/// having none. Code 7 if CNI_ARGS has no name.
pub fn names(keys: &[String], args: &str, ifname: &str, sets: usize) -> Result<Vec<String>> {
    if keys.is_empty() {
        return Ok(vec![]);
    }
    let known: Vec<&str> = ["IP"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let given = Args::parse(args, &known)?;
    let mut parts = vec![];
    for key in keys {
        let value = given.get(key).filter(|value| !value.is_empty());
        parts.push(value.ok_or_else(|| {
            let error = Error::config("ipam.sticky", format_args!("CNI_ARGS has no {key}"));
            error.with_details(match keys.iter().eq(POD) {
                true => {
                    "only Kubernetes sends it: set ipam.sticky to arg:NAME or to none".to_owned()
                }
                false => format!("call with CNI_ARGS={key}=NAME, or set ipam.sticky to none"),
            })
        })?);
    }
    parts.push(ifname);
    let name = parts.join("/");
    // No link's name contains a colon.
    let of_set = |number| if number == 0 { name.clone() } else { format!("{name}:{number}") };
    let names: Vec<String> = (0..sets).map(of_set).collect();
    if let Some(name) = names.iter().find(|name| name.len() > LONGEST) {
        let length = name.len();
        warn(format_args!(
            "ipam.sticky: the name has {length} bytes, expected at most {LONGEST}; it keeps no address"
        ));
        return Ok(vec![]);
    }
    Ok(names)
}

/// Splits a pool into the addresses for any attachment, and the last eighth, for names, in blocks of one.
/// None if there is no address for each part.
pub fn parts(whole: &Pool) -> Option<(Pool, Pool)> {
    let single = width(whole.family());
    let mut first = first_for_names(whole.spans())?;
    // Blocks of one chunk have one size.
    if whole.length() != single {
        let down = first - first % u128::from(CHUNK);
        let is_first = whole.spans().first().is_some_and(|span| down <= span.start());
        first = if is_first { down.checked_add(CHUNK.into())? } else { down };
    }
    let part = |from: u128, to: u128| -> Vec<Span> {
        whole.spans().iter().filter_map(|span| span.clipped(from, to)).collect()
    };
    let (for_any, for_names) = (part(0, first.checked_sub(1)?), part(first, u128::MAX));
    let has_both = !for_any.is_empty() && !for_names.is_empty();
    has_both.then(|| (Pool::of(for_any, whole.length()), Pool::of(for_names, single)))
}

/// The number of the first address of the last eighth, which has at least one.
fn first_for_names(spans: &[Span]) -> Option<u128> {
    let count = spans.iter().fold(0u128, |sum, span| sum.saturating_add(span.size()));
    let mut left = count - (count / PART).max(1);
    for span in spans {
        if left < span.size() {
            return span.start().checked_add(left);
        }
        left -= span.size();
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::pool::BlockSize;
    use super::*;
    use crate::steps::allocation::ranges::{RangeConf, RangeSet};

    fn parts(set: &RangeSet, excluded: &[Span], size: BlockSize) -> Option<(Pool, Pool)> {
        Pool::new(set, excluded, size).as_ref().and_then(super::parts)
    }

    fn spans(pool: &Pool) -> String {
        let spans: Vec<String> = pool.spans().iter().map(ToString::to_string).collect();
        spans.join(" ")
    }

    #[test]
    fn the_last_eighth_is_for_names() {
        let set = |subnet: &str| {
            let conf = RangeConf { subnet: Some(subnet.parse().unwrap()), ..RangeConf::default() };
            RangeSet::new(&[conf], "ranges[0]").unwrap()
        };
        let excluded = Some("10.1.0.240/29");
        let rest = "10.1.0.217-10.1.0.239 10.1.0.248-10.1.0.254";
        use BlockSize::{Auto, Chunk, Eight};
        for (subnet, excluded, size, for_any, for_names) in [
            ("10.1.0.0/24", None, Auto, "10.1.0.2-10.1.0.223", "10.1.0.224-10.1.0.254"),
            ("10.1.0.0/29", None, Auto, "10.1.0.2-10.1.0.5", "10.1.0.6-10.1.0.6"),
            ("10.1.0.0/24", excluded, Auto, "10.1.0.2-10.1.0.216", rest),
            // Of a chunk all blocks have one size.
            ("10.1.0.0/24", None, Eight, "10.1.0.2-10.1.0.191", "10.1.0.192-10.1.0.254"),
            ("10.1.0.0/16", None, Auto, "10.1.0.2-10.1.223.255", "10.1.224.0-10.1.255.254"),
            ("10.1.0.0/25", None, Chunk, "10.1.0.2-10.1.0.63", "10.1.0.64-10.1.0.126"),
            ("fd00::/120", None, Auto, "fd00::2-fd00::bf", "fd00::c0-fd00::ff"),
        ] {
            let excluded: Vec<Span> = excluded
                .map(|net: &str| Span::of_prefix(net.parse().unwrap()))
                .into_iter()
                .collect();
            let (any, names) = parts(&set(subnet), &excluded, size).unwrap();
            assert_eq!([spans(&any), spans(&names)], [for_any, for_names], "{subnet}");
            assert_eq!(names.length(), width(names.family()));
        }
        let all_but_one =
            [Span::of_prefix("10.1.0.4/30".parse().unwrap()), "10.1.0.3-10.1.0.3".parse().unwrap()];
        assert_eq!(parts(&set("10.1.0.0/29"), &all_but_one, Auto), None);
        assert_eq!(parts(&set("10.1.0.0/26"), &[], Eight), None, "it is one chunk");
        let first = Span::of_prefix("10.1.0.0/27".parse().unwrap());
        let (any, names) = parts(&set("10.1.0.0/25"), &[first], Chunk).unwrap();
        let expected = ["10.1.0.32-10.1.0.63", "10.1.0.64-10.1.0.126"];
        assert_eq!([spans(&any), spans(&names)], expected);
    }

    #[test]
    fn a_name_that_is_too_long_keeps_no_address() {
        let (keys, value) = (read("arg:VM").unwrap(), "n".repeat(LONGEST - "/eth0".len()));
        let names = |sets| names(&keys, &format!("VM={value}"), "eth0", sets).unwrap();
        assert_eq!(names(1), [format!("{value}/eth0")]);
        assert_eq!(names(2), [""; 0], "the second has a number as well");
    }

    #[test]
    fn settings_and_names() {
        let named = |setting: &str, args: &str| names(&read(setting).unwrap(), args, "eth0", 2);
        for (setting, args, expected) in [
            ("", "", &[][..]),
            ("none", "x=y", &[]),
            (
                "pod",
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=4",
                &["shop/web-0/eth0", "shop/web-0/eth0:1"],
            ),
            ("arg:VM", "VM=a;IP=10.1.0.9", &["a/eth0", "a/eth0:1"]),
        ] {
            assert_eq!(named(setting, args).unwrap(), expected, "{setting}");
        }
        for (setting, args, advice) in [
            ("pod", "", "only Kubernetes sends it"),
            ("pod", "K8S_POD_NAME=web-0", "only Kubernetes sends it"),
            ("arg:VM", "VM=", "call with CNI_ARGS=VM=NAME"),
            ("arg:VM", "", "call with CNI_ARGS=VM=NAME"),
        ] {
            let error = named(setting, args).unwrap_err();
            assert!(error.msg.contains("CNI_ARGS has no"), "{error}");
            assert!(error.details().contains(advice), "{error:?}");
        }
        for text in ["Pod", "arg:", "arg:a b", "arg:a;b", "x"] {
            assert_eq!(read(text).unwrap_err().code.0, 7, "{text}");
        }
    }
}
