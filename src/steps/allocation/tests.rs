//! Tests of the search on an in-memory store that borrows blocks and excludes addresses, as a
//! cluster-wide plugin does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::ranges::RangeConf;
use super::*;
use crate::rollback::transaction;

/// Leases in memory.
#[derive(Default)]
struct Memory {
    /// Shared with the undo of an ADD, which outlives the borrow of the store.
    leases: Rc<RefCell<BTreeMap<IpAddr, Owner>>>,
    last: BTreeMap<usize, IpAddr>,
    /// The subnets that this node has borrowed; if empty, it may use all addresses.
    blocks: Vec<ipnet::IpNet>,
    excluded: Vec<IpAddr>,
    /// The range set whose cursor cannot be written.
    broken_cursor: Option<usize>,
    attempts: usize,
}

impl Memory {
    fn may_give(&self, ip: IpAddr) -> bool {
        let is_borrowed =
            self.blocks.is_empty() || self.blocks.iter().any(|block| block.contains(&ip));
        is_borrowed && !self.excluded.contains(&ip)
    }

    fn allocate(&mut self, set: &RangeSet, id: &str, requested: &[&str]) -> Result<Vec<String>> {
        let requested: Vec<IpAddr> = requested.iter().map(|text| ip(text)).collect();
        let owner = Owner::new(id, "eth0");
        let sets = std::slice::from_ref(set);
        let need = Need { sets, requested: &requested, owner: &owner };
        let ips = transaction(|rb| allocate(&need, self, rb))?;
        Ok(ips.iter().map(|ip| ip.address.to_string()).collect())
    }

    fn held(&self) -> Vec<String> {
        self.leases.borrow().keys().map(IpAddr::to_string).collect()
    }
}

impl Store for Memory {
    fn candidates<'a>(
        &self,
        set: &'a RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'a> {
        let own: Vec<IpAddr> = set.candidates(last).filter(|ip| self.may_give(*ip)).collect();
        own.into_iter()
    }

    fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        let leases = self.leases.borrow();
        Ok(leases.iter().filter(|(_, holder)| *holder == owner).map(|(ip, _)| *ip).collect())
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        Ok(self.leases.borrow().keys().copied().collect())
    }

    fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool> {
        self.attempts += 1;
        let mut leases = self.leases.borrow_mut();
        let is_free = self.may_give(ip) && !leases.contains_key(&ip);
        if is_free {
            leases.insert(ip, owner.clone());
        }
        Ok(is_free)
    }

    fn release_on_failure(&self, ip: IpAddr, rb: &mut Rollback<'_>) {
        let leases = Rc::clone(&self.leases);
        rb.undo(format_args!("release {ip}"), move || {
            leases.borrow_mut().remove(&ip);
            Ok(())
        });
    }

    fn release(&mut self, ip: IpAddr) -> Result<()> {
        self.leases.borrow_mut().remove(&ip);
        Ok(())
    }

    fn last_reserved(&self, range_set: usize) -> Option<IpAddr> {
        self.last.get(&range_set).copied()
    }

    fn set_last_reserved(&mut self, range_set: usize, ip: IpAddr) -> Result<()> {
        if self.broken_cursor == Some(range_set) {
            return Err(Error::new(Code::IO, "no space left"));
        }
        self.last.insert(range_set, ip);
        Ok(())
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
    let mut store = Memory::default();
    let set = set("10.1.2.0/29"); // .2 to .6
    for (id, address) in [("a", "10.1.2.2/29"), ("b", "10.1.2.3/29")] {
        assert_eq!(store.allocate(&set, id, &[]).unwrap(), [address]);
    }
    let held = held_by_attachment(&store, &Owner::new("a", "eth0")).unwrap();
    release_all(&mut store, &held).unwrap();
    assert_eq!(store.held(), ["10.1.2.3"]);
    assert_eq!(store.allocate(&set, "c", &[]).unwrap(), ["10.1.2.4/29"]);
}

#[test]
fn a_store_with_blocks_and_exclusions_gives_nothing_else() {
    let set = set("10.1.0.0/16");
    let mut store = Memory {
        blocks: vec!["10.1.7.0/30".parse().unwrap()],
        excluded: vec![ip("10.1.7.1")],
        ..Memory::default()
    };
    for (id, address) in [("a", "10.1.7.0/16"), ("b", "10.1.7.2/16"), ("c", "10.1.7.3/16")] {
        assert_eq!(store.allocate(&set, id, &[]).unwrap(), [address]);
    }
    assert_eq!(store.attempts, 3, "addresses outside the block were tried");
    let full = store.allocate(&set, "d", &[]).unwrap_err();
    assert_eq!(full.code, Code::ADDRESS_UNAVAILABLE, "{full}");
    let excluded = store.allocate(&set, "e", &["10.1.7.1"]).unwrap_err();
    assert!(excluded.msg.contains("requested IP address 10.1.7.1 is not available"), "{excluded}");
}

#[test]
fn a_dense_set_is_listed_once() {
    let mut store = Memory::default();
    let set = set("10.1.0.0/16");
    let taken = set.candidates(None).take(1000);
    store.leases.borrow_mut().extend(taken.map(|ip| (ip, Owner::new("other", "eth0"))));
    assert_eq!(store.allocate(&set, "a", &[]).unwrap(), ["10.1.3.234/16"]);
    assert_eq!(store.attempts, 65, "64 single tries, and the free one");
}

#[test]
fn a_failure_after_a_reservation_releases_it() {
    let mut store = Memory::default();
    let set = set("10.1.2.0/29");
    store.broken_cursor = Some(0);
    store.allocate(&set, "a", &[]).unwrap_err();
    assert_eq!(store.held(), [""; 0]);
}

#[test]
fn a_second_address_for_one_attachment_is_refused() {
    let mut store = Memory::default();
    let set = set("10.1.2.0/29");
    store.allocate(&set, "a", &[]).unwrap();
    for requested in [&[][..], &["10.1.2.5"]] {
        assert_eq!(store.allocate(&set, "a", requested).unwrap_err().code, Code::CONFLICT);
    }
}
