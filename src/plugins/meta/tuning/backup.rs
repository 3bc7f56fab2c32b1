//! The backup of previous values: the reference's file `<dataDir>/<containerID>_<ifName>.json`.
//! Each implementation restores from the other's file. We add a member that the reference ignores,
//! with the owner of the file, the attributes that were set, and the sysctls.

use serde::{Deserialize, Serialize};

use super::attributes::Attributes;
use super::sysctls::same;
use crate::cni::attachment::Key;
use crate::cni::decode;
use crate::cni::json::{self, Value};
use crate::error::Result;
use crate::net::netns::{FileId, Mark};
use crate::net::sysctl::Sysctl;

/// The name of our member.
const OURS: &str = "cni-multi";

/// What an attachment has changed, and the previous values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backup {
    /// The owner; the reference does not record it.
    pub key: Option<Key>,
    /// The namespace with the changes, if the file names it.
    pub netns: Option<Mark>,
    /// The link's ifindex, if the file has it. It survives a rename.
    pub link: Option<u32>,
    /// The link's previous values.
    pub before: Attributes,
    /// The values that were set, as far as the file has them.
    pub after: Attributes,
    /// The sysctls, in the order in which they were set.
    pub sysctls: Vec<SavedSysctl>,
}

/// A sysctl that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSysctl {
    /// The sysctl.
    pub sysctl: Sysctl,
    /// Its previous value.
    pub before: String,
    /// The value that was set.
    pub after: String,
}

impl SavedSysctl {
    /// Returns the name, the previous value and the value that was set.
    fn into_texts(self) -> (String, String, String) {
        (self.sysctl.to_string(), self.before, self.after)
    }

    /// `None` for a name outside of `net`.
    fn of_texts((name, before, after): (String, String, String)) -> Option<SavedSysctl> {
        Some(SavedSysctl { sysctl: Sysctl::from_text(&name)?, before, after })
    }
}

impl Backup {
    /// Whether there is nothing to restore.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.sysctls.is_empty()
    }

    /// Whether the backup may belong to this attachment.
    pub fn may_be_of(&self, key: &Key) -> bool {
        self.key.as_ref().is_none_or(|of| of == key)
    }

    /// Whether the backup may belong to this namespace. The path of a deleted namespace may lead to
    /// another container by now.
    pub fn may_be_in(&self, netns: Mark) -> bool {
        self.netns.is_none_or(|was| was == netns)
    }

    /// Returns the sysctls, without their values.
    pub fn names(&self) -> Vec<Sysctl> {
        self.sysctls.iter().map(|saved| saved.sysctl.clone()).collect()
    }

    /// Merges this backup with an earlier one, which takes precedence for everything that still has
    /// the value set then. The rest of the earlier one is from a link or container that no longer
    /// exists. `now` has the link's values of the earlier one's attributes, `values` those of its
    /// sysctls.
    pub fn after_earlier(
        self,
        earlier: Backup,
        now: &Attributes,
        values: &[Option<String>],
    ) -> Backup {
        // The reference does not record what it set. Assume the values of this ADD: a repeated ADD
        // asks for what is there already.
        let set = earlier.after.or(self.after.clone());
        let before = earlier.before.where_equal(&set, now).or(self.before);
        let mut sysctls = unchanged(earlier.sysctls, values);
        merge(&mut sysctls, self.sysctls);
        Backup {
            key: self.key,
            netns: self.netns,
            link: self.link,
            before,
            after: self.after.or(set),
            sysctls,
        }
    }

    /// Parses a file. One that cannot be parsed is ignored: it restores nothing and blocks nothing.
    pub fn understood(text: &[u8]) -> Option<Backup> {
        Backup::parse(text).ok()
    }

    fn parse(text: &[u8]) -> Result<Backup> {
        let value = Value::parse(text)?;
        let backup = Backup { before: decode::from_value(&value)?, ..Backup::default() };
        match decode::member::<Option<Ours>>(&value, OURS)? {
            Some(ours) => ours.complete(backup),
            None => Ok(backup),
        }
    }

    /// Returns the content of the file.
    pub fn text(&self) -> Vec<u8> {
        let ours = self.key.as_ref().map(|key| Ours::of(key, self));
        let document = Document { before: &self.before, ours };
        // Indented by one space, as in the reference.
        json::indented_text(&document, " ").into_bytes()
    }
}

/// Returns the sysctls that still have the value that was set; `values` has the current ones.
fn unchanged(saved: Vec<SavedSysctl>, values: &[Option<String>]) -> Vec<SavedSysctl> {
    let is_as_set = |(saved, value): &(SavedSysctl, &Option<String>)| {
        value.as_ref().is_some_and(|value| same(value, &saved.after))
    };
    saved.into_iter().zip(values).filter(is_as_set).map(|(saved, _)| saved).collect()
}

/// Adds new sysctls. One that is there keeps its first value.
fn merge(sysctls: &mut Vec<SavedSysctl>, added: Vec<SavedSysctl>) {
    for new in added {
        match sysctls.iter_mut().find(|saved| saved.sysctl == new.sysctl) {
            Some(saved) => saved.after = new.after,
            None => sysctls.push(new),
        }
    }
}

/// The format of the file. It is not read as one type: serde flattens by the exact spelling of
/// keys, and the reference accepts any case.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    before: &'a Attributes,
    #[serde(rename = "cni-multi", skip_serializing_if = "Option::is_none")]
    ours: Option<Ours>,
}

/// Our member.
#[derive(Serialize, Deserialize)]
struct Ours {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    #[serde(rename = "netnsCookie", skip_serializing_if = "Option::is_none")]
    netns_cookie: Option<u64>,
    #[serde(rename = "netnsFile", skip_serializing_if = "Option::is_none")]
    netns_file: Option<FileId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
    #[serde(default)]
    set: Attributes,
    /// The name, the previous value and the value that was set.
    #[serde(default)]
    sysctl: Vec<(String, String, String)>,
}

impl Ours {
    fn of(key: &Key, backup: &Backup) -> Ours {
        let Backup { netns, link, after, sysctls, .. } = backup.clone();
        let (netns_cookie, netns_file) = match netns {
            Some(Mark::Cookie(cookie)) => (Some(cookie), None),
            Some(Mark::File(file)) => (None, Some(file)),
            None => (None, None),
        };
        Ours {
            network: key.network.to_string(),
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
            netns_cookie,
            netns_file,
            ifindex: link,
            set: after,
            sysctl: sysctls.into_iter().map(SavedSysctl::into_texts).collect(),
        }
    }

    /// The backup, with what this member adds to it. Names outside of `net` are left out.
    fn complete(self, backup: Backup) -> Result<Backup> {
        Ok(Backup {
            key: Some(Key::parse(&self.network, &self.container_id, &self.ifname)?),
            netns: self.netns_cookie.map(Mark::Cookie).or(self.netns_file.map(Mark::File)),
            link: self.ifindex,
            after: self.set,
            sysctls: self.sysctl.into_iter().filter_map(SavedSysctl::of_texts).collect(),
            ..backup
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn key(network: &str, id: &str) -> Key {
        Key::parse(network, id, "eth0").unwrap()
    }

    fn mtu(mtu: u32) -> Attributes {
        Attributes { mtu: Some(mtu), ..Attributes::default() }
    }

    fn saved(name: &str, before: &str, after: &str) -> SavedSysctl {
        SavedSysctl {
            sysctl: Sysctl::parse(name).unwrap(),
            before: before.into(),
            after: after.into(),
        }
    }

    #[test]
    fn the_file_is_the_reference_s_with_a_member_of_ours() {
        let before = Attributes {
            mac: Some("9e:00:00:00:00:01".parse().unwrap()),
            promisc: Some(false),
            mtu: Some(1500),
            allmulti: Some(false),
            txqlen: Some(1000),
        };
        let theirs = "{\n \"mac\": \"9e:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}";
        let backup = Backup { before, ..Backup::default() };
        assert_eq!(String::from_utf8(backup.text()).unwrap(), theirs);
        assert_eq!(Backup::parse(theirs.as_bytes()).unwrap(), backup);
        let sysctls = vec![
            saved("net/ipv4/conf/eth0.5/arp_filter", "0", "1"),
            saved("net.core.somaxconn", "", "a b"),
        ];
        let ours = Backup {
            key: Some(key("net", "c")),
            netns: Some(Mark::Cookie(1 << 40)),
            link: Some(7),
            after: mtu(1400),
            sysctls,
            ..backup
        };
        assert_eq!(Backup::parse(&ours.text()).unwrap(), ours);
        let before_cookies = Backup { netns: Some(Mark::File((4, 4026531840))), ..ours };
        assert_eq!(Backup::parse(&before_cookies.text()).unwrap(), before_cookies);
    }

    #[test]
    fn keys_of_a_backup_match_without_case_and_a_wrong_mac_is_none() {
        let text = br#"{"MTU":1500,"TxqLen":7,"mac":"x","mtu":null,"later":{},
            "CNI-Multi":{"Network":"net","containerid":"c","ifname":"eth0"}}"#;
        let before = Attributes { txqlen: Some(7), ..mtu(1500) };
        let expected = Backup { key: Some(key("net", "c")), before, ..Backup::default() };
        assert_eq!(Backup::understood(text), Some(expected));
        for damaged in ["", "{", r#"{"mtu":"x"}"#, r#"{"cni-multi":{"network":"net"}}"#] {
            assert_eq!(Backup::understood(damaged.as_bytes()), None, "{damaged}");
        }
    }

    #[test]
    fn a_file_that_names_something_outside_restores_nothing_there() {
        let text = br#"{"cni-multi":{"network":"n","containerID":"c","ifname":"e","sysctl":[["net/../kernel/hostname","x","y"]]}}"#;
        assert_eq!(Backup::parse(text).unwrap().sysctls, []);
    }

    #[test]
    fn the_first_backup_counts_while_it_is_as_it_was_set() {
        let earlier = Backup {
            before: mtu(1500),
            after: mtu(1400),
            sysctls: vec![saved("net.a", "0", "1"), saved("net.gone", "0", "1")],
            ..Backup::default()
        };
        let new = Backup {
            before: mtu(1400),
            after: mtu(1300),
            sysctls: vec![saved("net.b", "5", "6")],
            ..Backup::default()
        };
        let merged = new.clone().after_earlier(
            earlier.clone(),
            &mtu(1400),
            &[Some("1".into()), Some("7".into())],
        );
        assert_eq!((merged.before, merged.after), (mtu(1500), mtu(1300)));
        assert_eq!(merged.sysctls, [saved("net.a", "0", "1"), saved("net.b", "5", "6")]);
        let fresh = new.after_earlier(earlier, &mtu(1450), &[None, None]);
        assert_eq!((fresh.before, fresh.sysctls), (mtu(1400), vec![saved("net.b", "5", "6")]));
    }

    #[test]
    fn the_reference_s_backup_counts_when_add_is_repeated() {
        let reference = Backup { before: mtu(1500), ..Backup::default() };
        let again = Backup { before: mtu(1400), after: mtu(1400), ..Backup::default() };
        assert_eq!(
            again.clone().after_earlier(reference.clone(), &mtu(1400), &[]).before,
            mtu(1500)
        );
        assert_eq!(
            Backup { before: mtu(1600), ..again }.after_earlier(reference, &mtu(1600), &[]).before,
            mtu(1600)
        );
    }
}
