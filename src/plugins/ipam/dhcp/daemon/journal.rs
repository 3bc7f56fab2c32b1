//! What the daemon knows of each lease, in a file each. After a reboot the files are stale: no
//! container is left, and their times count from the previous boot.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::interface::Place;
use crate::cni::attachment::{Key, NetworkName, hex};
use crate::family::Family;
use crate::plugins::ipam::dhcp::client::{Intent, Lease};
use crate::plugins::ipam::dhcp::wire::{Names, Terms};
use crate::service::journal;

/// The daemon's journal.
pub type Journal = journal::Journal<Record>;

/// Everything that is known of a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The attachment that has the lease.
    #[serde(flatten)]
    pub key: Key,
    /// The container's interface.
    #[serde(flatten)]
    pub place: Place,
    /// The part of the configuration that applies to the lease.
    #[serde(flatten)]
    pub terms: Terms,
    /// The address was taken off the interface.
    #[serde(default)]
    pub lost: bool,
    /// The lease, once granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// What was requested, while the answer is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
}

impl Record {
    /// The family of the lease.
    pub fn family(&self) -> Family {
        self.terms.family()
    }
}

impl journal::Record for Record {
    const VERSION: u64 = 1;
    /// A CNI configuration may provide 250 options of 255 octets.
    const LIMIT: usize = 1 << 18;
    const ENDS_WITH_BOOT: bool = true;

    fn name(&self) -> String {
        file_name(&self.key, self.family())
    }

    fn verify(&self) -> Result<(), &'static str> {
        match (self.family(), &self.lease, &self.intent) {
            (Family::V4, None | Some(Lease::V4(_)), None | Some(Intent::V4(_)))
            | (Family::V6, None | Some(Lease::V6(_)), None | Some(Intent::V6(_))) => Ok(()),
            _ => Err("its lease is of another family"),
        }
    }
}

/// The file name of an attachment's lease.
pub fn file_name(key: &Key, family: Family) -> String {
    let family = if family == Family::V6 { "-6" } else { "" };
    format!("{}{family}", key.identity())
}

/// Removes the torn files of a network's leases, except those of valid attachments: nothing will
/// need them. The attachment is in the file's name.
pub fn forget_all_torn(journal: &Journal, network: &NetworkName, valid: &[Names]) {
    let names = |(id, ifname): &Names| {
        let (network, container_id, ifname) = (network.clone(), id.clone(), ifname.clone());
        let key = Key { network, container_id, ifname };
        Family::ALL.map(|family| file_name(&key, family))
    };
    let valid: HashSet<String> = valid.iter().flat_map(names).collect();
    let of_network = format!("{}-", hex(&Key::network_hash(network)));
    journal.forget_all_torn(|name| name.starts_with(&of_network) && !valid.contains(name));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::ipam::dhcp::client::dhcpv4::Provided;
    use crate::plugins::ipam::dhcp::client::dhcpv6::Mode;
    use crate::plugins::ipam::dhcp::wire::DAEMON;
    use crate::scratch::Scratch;
    use crate::service::journal::{Read, Record as _};

    fn record(id: &str) -> Record {
        let place = r#"{"netns":"/run/netns/x","device":4,"inode":4026532000,"cookie":77,"ifindex":2,
            "mac":"0a5800010203","mtu":1500,"broadcast":false,"probe":true}"#;
        let lease = r#"{"address":"10.0.0.5/24","server":"10.0.0.1","xid":7,"options":"ff","acquired":1000,"t1":2000,
            "t2":3000,"expires":4000}"#;
        Record {
            key: Key::parse("net", id, "eth0").unwrap(),
            place: serde_json::from_str(place).unwrap(),
            terms: Terms {
                provide: vec![Provided(12, b"web".to_vec())],
                request: vec![3, 1],
                priority: 5,
                v6: None,
            },
            lease: Some(serde_json::from_str(lease).unwrap()),
            lost: false,
            intent: Some(intent(r#"{"address":"10.0.0.6","server":"10.0.0.1","xid":9}"#)),
        }
    }

    fn intent(text: &str) -> Intent {
        serde_json::from_str(text).unwrap()
    }

    /// The same attachment's IPv6 lease.
    fn record_v6(id: &str) -> Record {
        let lease = r#"{"address":"2001:db8::10/64","server":"000a","router":"fe80::1","routes":[],"mtu":0,
            "nameServers":["2001:db8::53"],"domains":["lan"],"acquired":1000,"t1":2000,"t2":3000,"expires":4000}"#;
        let lease = serde_json::from_str(lease).unwrap();
        let intent = intent(r#"{"address":"2001:db8::10","server":"000a"}"#);
        let v4 = record(id);
        let terms = Terms { v6: Some(Mode::Dhcp), ..v4.terms.clone() };
        Record { lease: Some(lease), intent: Some(intent), terms, ..v4 }
    }

    fn records(journal: &Journal) -> Vec<Record> {
        let all = journal.read_all().unwrap().into_iter();
        all.filter_map(|read| if let Read::Record(record) = read { Some(*record) } else { None })
            .collect()
    }

    #[test]
    fn an_attachment_has_a_record_of_each_family() {
        let scratch = Scratch::new();
        let journal = Journal::open(&DAEMON, scratch.path()).unwrap();
        let v4 = record("one");
        let v6 = record_v6("one");
        let slaac =
            Record { terms: Terms { v6: Some(Mode::Slaac), ..v6.terms.clone() }, ..v6.clone() };
        journal.write(&v4).unwrap();
        for v6 in [v6, slaac] {
            journal.write(&v6).unwrap();
            assert_eq!(journal.find(&file_name(&v6.key, Family::V6)).unwrap(), Some(v6));
        }
        journal.remove(&file_name(&v4.key, Family::V6)).unwrap();
        assert_eq!(records(&journal), [v4]);
    }

    /// Records, members in their order, decode to these, which encode to the same members.
    #[test]
    fn records_have_these_members() {
        let v4 = r#"{"containerID":"one","network":"net","ifname":"eth0","netns":"/run/netns/x","device":4,"inode":4026532000,"ifindex":2,"mac":"0a5800010203","mtu":1500,"broadcast":false,"probe":true,"cookie":77,"provide":[[12,"776562"]],"request":[3,1],"priority":5,"version":1,"boot":"BOOT","lost":false,"lease":{"address":"10.0.0.5/24","server":"10.0.0.1","xid":7,"options":"ff","acquired":1000,"t1":2000,"t2":3000,"expires":4000},"intent":{"address":"10.0.0.6","server":"10.0.0.1","xid":9}}"#;
        let v6 = r#"{"containerID":"one","network":"net","ifname":"eth0","netns":"/run/netns/x","device":4,"inode":4026532000,"ifindex":2,"mac":"0a5800010203","mtu":1500,"broadcast":false,"probe":true,"cookie":77,"provide":[[12,"776562"]],"request":[3,1],"priority":5,"v6":"dhcp","version":1,"boot":"BOOT","lost":false,"lease":{"address":"2001:db8::10/64","server":"000a","routes":[],"mtu":0,"nameServers":["2001:db8::53"],"domains":["lan"],"router":"fe80::1","acquired":1000,"t1":2000,"t2":3000,"expires":4000},"intent":{"address":"2001:db8::10","server":"000a"}}"#;
        let members = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        for (text, record) in [(v4, record("one")), (v6, record_v6("one"))] {
            let scratch = Scratch::new();
            let journal = Journal::open(&DAEMON, scratch.path()).unwrap();
            let name = record.name() + ".json";
            let text = text.replace("BOOT", boot.trim());
            scratch.write(&name, &text);
            assert_eq!(records(&journal), std::slice::from_ref(&record));
            journal.write(&record).unwrap();
            let written = std::fs::read_to_string(scratch.path().join(&name)).unwrap();
            assert_eq!(members(&written), members(&text));
        }
    }

    #[test]
    fn a_lease_of_the_other_family_is_set_aside() {
        let scratch = Scratch::new();
        let journal = Journal::open(&DAEMON, scratch.path()).unwrap();
        let mixed = Record { lease: record_v6("one").lease, ..record("one") };
        journal.write(&mixed).unwrap();
        assert!(matches!(journal.read_all().unwrap()[..], [Read::Torn(..)]));
    }
}
