//! The resolver settings of a result: the configuration's if it has any, else the IPAM plugin's.

use serde::Deserialize;

use crate::cni::result::{AddResult, Dns};

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

#[cfg(test)]
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
}
