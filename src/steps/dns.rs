//! The resolver settings of a result: the configuration's if it has any, else the IPAM plugin's.
//! Also reads the parts of resolv.conf(5) that a result has fields for.

use std::path::Path;

use serde::Deserialize;

use crate::cni::result::{AddResult, Dns};
use crate::error::{Error, Result};
use crate::plain_file;

/// `dns` of a configuration. An empty list counts as given: it means "none".
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DnsConf {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsConf {
    /// The rows of the four keys for `KEYS` of plugins.
    pub const KEYS: &'static str = "dns.nameservers | list of strings | IPAM's | Name servers of the result. Any of the four `dns` keys, even an empty list, replaces all of IPAM's.
        dns.domain | string | IPAM's | The local domain.
        dns.search | list of strings | IPAM's | Domains to search.
        dns.options | list of strings | IPAM's | Options as in resolv.conf(5).";

    /// The rows of the same keys of `ipam`.
    pub const KEYS_OF_IPAM: &'static str =
        "ipam.dns | object | none | Resolver settings for the result.
        ipam.dns.nameservers | list of strings | none | Name servers.
        ipam.dns.domain | string | none | The local domain.
        ipam.dns.search | list of strings | none | Domains to search.
        ipam.dns.options | list of strings | none | Options as in resolv.conf(5).";

    /// The result with these settings in place of its own, if any is given.
    pub fn put_into(&self, result: AddResult) -> AddResult {
        let DnsConf { nameservers, domain, search, options } = self;
        if domain.is_empty() && [nameservers, search, options].iter().all(|list| list.is_none()) {
            return result;
        }
        let list = |given: &Option<Vec<String>>| given.clone().unwrap_or_default();
        let dns = Dns {
            nameservers: list(nameservers),
            domain: domain.clone(),
            search: list(search),
            options: list(options),
        };
        AddResult { dns, ..result }
    }
}

/// Reads the resolver settings from the file.
pub fn read_resolv_conf(path: &Path) -> Result<Dns> {
    let text = plain_file::read_configuration(path)
        .map_err(|e| Error::io(format_args!("open {path:?}"), &e))?;
    Ok(parse_resolv_conf(&String::from_utf8_lossy(&text)))
}

/// Parses the lines. Comments, and lines without an argument, are ignored.
fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [key, first, ..] = &words[..] else { continue };
        // Name servers, search domains and options accumulate; the last `domain` wins.
        match key.as_str() {
            "nameserver" => dns.nameservers.push(first.clone()),
            "domain" => dns.domain.clone_from(first),
            "search" => dns.search.extend_from_slice(&words[1..]),
            "options" => dns.options.extend_from_slice(&words[1..]),
            _ => (), // sortlist, and keywords that resolvers may add
        }
    }
    dns
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_setting_replaces_all_of_ipam_s_and_an_empty_list_is_one() {
        let of_ipam = Dns { domain: "ipam".into(), ..Dns::default() };
        let result = AddResult { dns: of_ipam.clone(), ..AddResult::default() };
        assert_eq!(DnsConf::default().put_into(result.clone()).dns, of_ipam);
        let empty = DnsConf { nameservers: Some(vec![]), ..DnsConf::default() };
        assert!(empty.put_into(result.clone()).dns.is_empty());
        let domain = DnsConf { domain: "d".into(), ..DnsConf::default() };
        assert_eq!(domain.put_into(result).dns.domain, "d");
    }

    #[test]
    fn every_kind_of_line() {
        let text = "# a comment\n; another\n\n nameserver 192.0.2.0 ignored\nnameserver\t192.0.2.1\ndomain a.example\ndomain b.example\n\
                    search c.example d.example\nsearch e.example\noptions debug ndots:2\noptions x\nsortlist 1\nnameserver\nnonsense";
        let list = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let dns = Dns {
            nameservers: list("192.0.2.0 192.0.2.1"),
            domain: "b.example".into(),
            search: list("c.example d.example e.example"),
            options: list("debug ndots:2 x"),
        };
        assert_eq!(parse_resolv_conf(text), dns);
        assert!(parse_resolv_conf("").is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = read_resolv_conf(Path::new("/nowhere/resolv.conf")).unwrap_err();
        assert_eq!(
            (error.code.0, error.msg.as_str()),
            (5, "open \"/nowhere/resolv.conf\": no such file or directory")
        );
    }
}
