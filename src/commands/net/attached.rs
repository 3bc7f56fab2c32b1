//! An attachment as it is shown: what its file in the cache tells, and whether its namespace is there.

use std::path::Path;
use std::time::SystemTime;

use super::table;
use crate::cni::attachment::{ContainerId, NetworkName};
use crate::cni::json::Value;
use crate::cni::result::AddResult;
use crate::error::Result;
use crate::net::netns::Netns;
use crate::runtime::cache::{Cache, Found};
use crate::runtime::parameters::Parameters;

/// A file of the cache, read.
pub struct Attached {
    /// The file as it was found.
    pub found: Found,
    /// Whose it is; None where nothing tells.
    pub at: Option<Parameters>,
    /// The result of ADD, where it can be read.
    pub result: Option<AddResult>,
    /// Why something is missing; empty if nothing is.
    pub problem: String,
}

/// Every file of the cache. Bare results of old libcnis tell by their names alone to which of `networks` they belong.
pub fn all(cache: &Cache, networks: &[NetworkName]) -> Result<Vec<Attached>> {
    Ok(cache.all()?.into_iter().map(|found| Attached::of(found, networks)).collect())
}

impl Attached {
    fn of(found: Found, networks: &[NetworkName]) -> Attached {
        let at = found.record.as_ref().ok().and_then(|record| record.at.clone());
        let at = at.or_else(|| networks.iter().find_map(|network| found.attachment(network)));
        let (result, problem) = match &found.record {
            Err(error) => (None, error.to_string()),
            Ok(record) => match &record.result {
                Err(error) => (None, error.to_string()),
                Ok(None) => (None, "it has no result".to_owned()),
                Ok(Some(result)) => (result.clone().into_add_result().ok(), String::new()),
            },
        };
        let problem = match (&at, problem.is_empty()) {
            (None, true) => format!("{} tells of no attachment, only a result", found.file.display()),
            _ => problem,
        };
        Attached { found, at, result, problem }
    }

    /// The file's name, which no other attachment has.
    pub fn file_name(&self) -> String {
        self.found.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it is one to this network, or may be.
    pub fn is_of_network(&self, network: &NetworkName) -> bool {
        match &self.at {
            Some(at) => at.key.network == *network,
            None => self.file_name().starts_with(&format!("{network}-")),
        }
    }

    /// Whether it is this container's, or may be.
    pub fn is_of_container(&self, id: &ContainerId) -> bool {
        match &self.at {
            Some(at) => at.key.container_id == *id,
            None => self.file_name().contains(&format!("-{id}-")),
        }
    }

    /// Network, container, interface and namespace; empty where nothing tells.
    pub fn names(&self) -> [&str; 4] {
        self.at.as_ref().map_or([""; 4], |at| {
            [at.key.network.as_str(), at.key.container_id.as_str(), at.key.ifname.as_str(), &at.netns]
        })
    }

    /// The addresses of the result.
    pub fn addresses(&self) -> Vec<String> {
        self.result.iter().flat_map(|result| &result.ips).map(|ip| ip.address.to_string()).collect()
    }

    /// `alive`, `gone`, which is what GC detaches, or `unknown`.
    pub fn namespace(&self) -> &'static str {
        let [.., netns] = self.names();
        match Netns::open_if_there(netns) {
            Ok(Some(_)) => "alive",
            _ if !netns.is_empty() && matches!(Path::new(netns).try_exists(), Ok(false)) => "gone",
            _ => "unknown",
        }
    }

    /// How many seconds ago the file was written; None where the clock has another opinion.
    pub fn age(&self) -> Option<u64> {
        let written = self.found.written?;
        SystemTime::now().duration_since(written).ok().map(|age| age.as_secs())
    }

    /// What `ps` tells of it, and `inspect` first.
    pub fn to_value(&self) -> Vec<(String, Value)> {
        let [network, container, ifname, netns] = self.names();
        let members = table::object([
            ("network", table::text(network)),
            ("containerId", table::text(container)),
            ("ifname", table::text(ifname)),
            ("netns", table::text(netns)),
            ("namespace", table::text(self.namespace())),
            ("addresses", table::texts(&self.addresses())),
            ("ageSeconds", self.age().map_or(Value::Null, |age| Value::Number(age.into()))),
            ("file", table::text(&self.found.file.to_string_lossy())),
            ("problem", table::text(&self.problem)),
        ]);
        if let Value::Object(members) = members { members } else { vec![] }
    }
}

/// In the largest unit that is full.
pub fn age_text(seconds: Option<u64>) -> String {
    let Some(seconds) = seconds else { return String::new() };
    let units = [(86400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let (size, unit) = units.into_iter().find(|(size, _)| seconds >= *size).unwrap_or((1, "s"));
    format!("{}{unit}", seconds / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_largest_unit_that_is_full() {
        let cases = [(0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86399, "23h"), (200_000, "2d")];
        for (seconds, text) in cases {
            assert_eq!(age_text(Some(seconds)), text);
        }
        assert_eq!(age_text(None), "");
    }
}
