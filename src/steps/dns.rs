//! The resolver settings of a result: the configuration's if it has any, else the IPAM plugin's.

use serde::Deserialize;

use crate::cni::result::Dns;

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
    /// All of these settings if any is given, else `of_ipam`.
    pub fn or(&self, of_ipam: Dns) -> Dns {
        if self.nameservers.is_none()
            && self.search.is_none()
            && self.options.is_none()
            && self.domain.is_empty()
        {
            return of_ipam;
        }
        let list = |given: &Option<Vec<String>>| given.clone().unwrap_or_default();
        Dns {
            nameservers: list(&self.nameservers),
            domain: self.domain.clone(),
            search: list(&self.search),
            options: list(&self.options),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_setting_replaces_all_of_ipam_s_and_an_empty_list_is_one() {
        let of_ipam = Dns { domain: "ipam".into(), ..Dns::default() };
        assert_eq!(DnsConf::default().or(of_ipam.clone()), of_ipam);
        let empty = DnsConf { nameservers: Some(vec![]), ..DnsConf::default() };
        assert!(empty.or(of_ipam.clone()).is_empty());
        let domain = DnsConf { domain: "d".into(), ..DnsConf::default() };
        assert_eq!(domain.or(of_ipam).domain, "d");
    }
}
