//! Tests of the search with a policy that borrows blocks and excludes addresses, as a cluster-wide plugin
//! does.

use std::cell::Cell;

use super::files::Place;
use super::ranges::RangeConf;
use super::*;
use crate::deadline::Deadline;
use crate::scratch::Scratch;

/// What may be given, and a network's leases.
struct Node {
    data_dir: Scratch,
    /// The subnets that this node has borrowed; if empty, it may use all addresses.
    blocks: Vec<ipnet::IpNet>,
    excluded: Vec<IpAddr>,
    attempts: Cell<usize>,
}

impl Node {
    fn new() -> Node {
        let (data_dir, attempts) = (Scratch::new(), Cell::default());
        Node { data_dir, blocks: vec![], excluded: vec![], attempts }
    }

    fn store(&self, id: &str) -> FileStore {
        let network = NetworkName::parse("net").unwrap();
        let place = Place::new(self.data_dir.path(), &network, Deadline::default());
        FileStore::create(&place, &Owner::new(id, "eth0")).unwrap()
    }

    fn may_give(&self, ip: IpAddr) -> bool {
        let is_borrowed =
            self.blocks.is_empty() || self.blocks.iter().any(|block| block.contains(&ip));
        is_borrowed && !self.excluded.contains(&ip)
    }

    fn allocate(&self, set: &RangeSet, id: &str, requested: &[&str]) -> Result<Vec<String>> {
        let requested: Vec<IpAddr> = requested.iter().map(|text| ip(text)).collect();
        let owner = Owner::new(id, "eth0");
        let sets = std::slice::from_ref(set);
        let need = Need { sets, requested: &requested, owner: &owner };
        let ips = allocate(&need, &mut self.store(id), self, || Ok(()))?;
        Ok(ips.iter().map(|ip| ip.address.to_string()).collect())
    }

    fn held(&self) -> Vec<String> {
        let taken = self.store("a").taken().unwrap();
        taken.iter().map(IpAddr::to_string).collect()
    }
}

impl Policy for Node {
    fn candidates<'a>(
        &self,
        set: &'a RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'a> {
        let own: Vec<IpAddr> = set.candidates(last).filter(|ip| self.may_give(*ip)).collect();
        own.into_iter()
    }

    fn allows(&self, ip: IpAddr) -> bool {
        self.attempts.set(self.attempts.get() + 1);
        self.may_give(ip)
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn set(subnet: &str) -> RangeSet {
    let conf = RangeConf { subnet: Some(subnet.parse().unwrap()), ..RangeConf::default() };
    RangeSet::new(&[conf], "ranges[0]").unwrap()
}

#[test]
fn addresses_go_round_and_come_back_when_released() {
    let node = Node::new();
    let set = set("10.1.2.0/29"); // .2 to .6
    for (id, address) in [("a", "10.1.2.2/29"), ("b", "10.1.2.3/29")] {
        assert_eq!(node.allocate(&set, id, &[]).unwrap(), [address]);
    }
    let mut store = node.store("a");
    assert_eq!(store.held_by_attachment(&Owner::new("a", "eth0")).unwrap(), [ip("10.1.2.2")]);
    store.release(ip("10.1.2.2")).unwrap();
    drop(store);
    assert_eq!(node.held(), ["10.1.2.3"]);
    assert_eq!(node.allocate(&set, "c", &[]).unwrap(), ["10.1.2.4/29"]);
}

#[test]
fn a_policy_with_blocks_and_exclusions_gives_nothing_else() {
    let set = set("10.1.0.0/16");
    let (blocks, excluded) = (vec!["10.1.7.0/30".parse().unwrap()], vec![ip("10.1.7.1")]);
    let node = Node { blocks, excluded, ..Node::new() };
    for (id, address) in [("a", "10.1.7.0/16"), ("b", "10.1.7.2/16"), ("c", "10.1.7.3/16")] {
        assert_eq!(node.allocate(&set, id, &[]).unwrap(), [address]);
    }
    assert_eq!(node.attempts.get(), 3, "addresses outside the block were tried");
    let full = node.allocate(&set, "d", &[]).unwrap_err();
    assert_eq!(full.code, Code::ADDRESS_UNAVAILABLE, "{full}");
    let excluded = node.allocate(&set, "e", &["10.1.7.1"]).unwrap_err();
    assert!(excluded.msg.contains("requested IP address 10.1.7.1 is not available"), "{excluded}");
}

#[test]
fn a_dense_set_is_listed_once() {
    let node = Node::new();
    let set = set("10.1.0.0/16");
    for ip in set.candidates(None).take(1000) {
        node.data_dir.write(&format!("net/{ip}"), "other\r\neth0");
    }
    assert_eq!(node.allocate(&set, "a", &[]).unwrap(), ["10.1.3.234/16"]);
    assert_eq!(node.attempts.get(), 65, "64 single tries, and the free one");
}

#[test]
fn a_failure_after_a_reservation_releases_it() {
    let node = Node::new();
    std::fs::create_dir_all(node.data_dir.path().join("net/last_reserved_ip.0")).unwrap();
    node.allocate(&set("10.1.2.0/29"), "a", &[]).unwrap_err();
    assert_eq!(node.held(), [""; 0]);
}

#[test]
fn a_second_address_for_one_attachment_is_refused() {
    let node = Node::new();
    let set = set("10.1.2.0/29");
    node.allocate(&set, "a", &[]).unwrap();
    for requested in [&[][..], &["10.1.2.5"]] {
        assert_eq!(node.allocate(&set, "a", requested).unwrap_err().code, Code::CONFLICT);
    }
}
